"""Whether two anchors belong to the same wall clock."""

from __future__ import annotations

import json

import pytest

from stepprof.host.clock import Anchor

SECOND = 10**9

ANCHOR = """
import json, sys, time
from stepprof.host import real_time

wall, monotonic = int(sys.argv[1]), int(sys.argv[2])
time_ns, perf_counter_ns = time.time_ns, time.perf_counter_ns
real_time.time_ns = lambda: time_ns() + wall
real_time.perf_counter_ns = lambda: perf_counter_ns() + monotonic

from stepprof.host.clock import Anchor
print(json.dumps(Anchor.take().to_dict()))
"""


class TestAheadOf:
    @pytest.fixture
    def anchor(self, run_script):
        """Return a function that takes an anchor in another process with shifted clocks."""

        def take(wall, monotonic):
            return Anchor.of(json.loads(run_script(ANCHOR, str(wall), str(monotonic)).stdout))

        return take

    def test_processes_of_one_boot_have_one_clock(self, anchor):
        """Two processes of one boot have the same wall clock, even if the
        monotonic clock has another offset.
        """
        here = Anchor.take()
        assert anchor(0, 0).ahead_of(here) == (0, 0)
        assert anchor(0, 1000 * SECOND).ahead_of(here) == (0, 0)

    @pytest.mark.parametrize("seconds", [37, -0.001])
    def test_another_wall_clock_is_compared_by_the_monotonic_one(self, anchor, seconds):
        """If the other wall clock was shifted, the monotonic clock shows by how much."""
        ahead, error = anchor(int(seconds * SECOND), 0).ahead_of(Anchor.take())
        assert abs(ahead - seconds * SECOND) <= error + 1000
        assert error < 1_000_000

    def test_wall_and_monotonic_clocks_both_differ(self, anchor):
        """If both clocks differ, the difference of the wall clocks is unknown."""
        assert anchor(37 * SECOND, 37 * SECOND).ahead_of(Anchor.take()) is None

    def test_a_clock_that_was_set(self):
        """For two readings of one process, the monotonic clock shows by how much the wall clock was set."""
        first, late = Anchor(0, 0, 5, 0), Anchor(38 * SECOND, SECOND, 5, 9 * SECOND)
        assert late.ahead_of(first, of_process=True) == (37 * SECOND, 10)


class TestOf:
    @pytest.mark.parametrize("value", [None, [], {}, {"unix_ns": 1, "monotonic_ns": 2, "error_ns": 3}])
    def test_an_incomplete_anchor_is_none(self, value):
        assert Anchor.of(value) is None

    @pytest.mark.parametrize("value", ["1", 1.0, True, None, 2**70])
    def test_a_damaged_anchor_is_none(self, value):
        assert Anchor.of({**Anchor(1, 2, 3, 4).to_dict(), "ticks_ns": value}) is None

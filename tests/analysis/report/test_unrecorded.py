"""How long a process would have taken without recording."""

from __future__ import annotations

import pytest

from stepprof.analysis.report.digest import Window
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.processes import Process
from stepprof.analysis.report.step_graph import StepGraph
from stepprof.analysis.report.timelines import Timeline
from stepprof.analysis.report.unrecorded import Unrecorded, changes_of
from stepprof.analysis.timeline.model import Alignment, Origin


def rank(number, begin, *waits, ahead=0):
    """Return a rank that works in a window that ends at 200 ns, and was held up before its begin."""
    origin = Origin("rank", f"rank {number}", rank=number, host="h", pid=number)
    process = Process(
        f"rank {number}", "rank", origin, Alignment("reference", ahead, 0), [], [Window(None, begin, 200)]
    )
    held = Intervals.one(0, begin)
    return Timeline(process, [(begin, 200, None, ())], [*waits], EMPTY, EMPTY, EMPTY, held, EMPTY)


class TestUnrecorded:
    def test_profilers_and_waits(self) -> None:
        """Of 100 ns a profiler took 20, and a wait would be 30 ns shorter; a wait that ends elsewhere does not count."""
        window = {
            "host": "h", "pid": 1, "start_unix_ns": 130, "start_seconds": 20e-9, "end_unix_ns": None,
            "stall_seconds": 0.0,
        }  # fmt: skip
        unrecorded = Unrecorded.of([window], {"h 1": [(150, -30), (100, -5), (201, -5)]})
        assert unrecorded.length("h 1", 100, 200) == 50
        assert unrecorded.length("h 2", 100, 200) == 100


def held(pid, *starts, ahead=0):
    """Return windows of a process before each of which the profiler held it up for 100 s, which its clock shows later."""
    return [
        {
            "host": "h", "pid": pid, "start_unix_ns": (start + 100 + ahead) * 10**9, "start_seconds": 100.0,
            "end_unix_ns": None, "stall_seconds": None,
        }
        for start in starts
    ]  # fmt: skip


class TestDisplaced:
    @pytest.mark.parametrize(
        ("of_rank", "true"),
        [
            pytest.param([0], (0.0, 0.0), id="at the same time"),
            pytest.param(
                [100], (100.0, 100.0), id="one after the other: a driver waits for ranks held up later"
            ),
            pytest.param([50, 150], (150.0, 50.0), id="partly at the same time"),
            pytest.param([], (0.0, 0.0), id="not at all"),
        ],
    )
    def test_only_delays_at_the_same_time_cancel_out(
        self, of_rank: list[int], true: tuple[float, float]
    ) -> None:
        """A driver waits longer for ranks that are held up after it was. Clocks that are apart do not hide that."""
        windows = [*held(1, 0), *held(2, *of_rank, ahead=3600)]
        unrecorded = Unrecorded.of(windows, {}, {"h 2": 3600 * 10**9})
        assert unrecorded.displaced("h 1") == true


class TestChanges:
    def test_a_rank_waits_for_one_whose_profiler_started_later(self) -> None:
        """Both come into a collective after equal work, on clocks of their own. The profiler of rank 1 started 40 ns later."""
        known = [rank(0, 10, (60, 100, "rank 1"), ahead=1000), rank(1, 50)]
        assert changes_of(known, StepGraph(known, 0, frozenset())) == [("h 0", [(1100, -40)])]

    def test_the_rank_that_was_held_up_would_wait(self) -> None:
        """Rank 1 came last by its profiler alone: it works for 10 ns, and rank 0 for 50 ns."""
        known = [rank(0, 10, (60, 100, "rank 1")), rank(1, 90)]
        assert dict(changes_of(known, StepGraph(known, 0, frozenset()))) == {
            "h 0": [(100, -40)],
            "h 1": [(101, 40)],
        }

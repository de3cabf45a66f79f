"""The overrun of a recording beyond its window, and the time that an engine needs to write its trace."""

from __future__ import annotations

import pytest

from stepprof.remote.base import Clock
from stepprof.remote.core.trace_times import overrun_seconds, write_seconds
from stepprof.run.model import Artifact

HERE = Clock("here", 0, 0, "same-host")
THERE = Clock("there", 5_000_000_000, 20_000_000, "ping-pong")
SECOND = 10**9


def trace(ended, written=None):
    return Artifact("a", "trace", 1, 1, ended, written)


class TestOverrun:
    @pytest.mark.parametrize(
        ("ends", "clock", "seconds"),
        [
            ([12 * SECOND], HERE, 2.0),
            ([11 * SECOND, 12 * SECOND], HERE, 2.0),
            ([17 * SECOND], THERE, 2.0),
            ([15 * SECOND + 10_000_000], THERE, None),
            ([9 * SECOND], HERE, None),
            ([None], HERE, None),
            ([], HERE, None),
            ([12 * SECOND], None, None),
        ],
    )
    def test_overrun_lasts_from_the_stop_to_the_end_of_the_recording(self, ends, clock, seconds):
        """The overrun lasts from the sending of the stop to the end of the longest recording. It is not
        stated if it is within the clock's error.
        """
        assert overrun_seconds(10 * SECOND, map(trace, ends), clock) == seconds

    def test_a_failed_start_has_no_overrun(self):
        """If no stop time is known, as after a failed start, no overrun is stated."""
        assert overrun_seconds(None, [trace(5)], HERE) is None


class TestWriting:
    @pytest.mark.parametrize(
        ("written", "clock", "seconds"),
        [(13 * SECOND, HERE, 3.0), (13 * SECOND, THERE, None), (9 * SECOND, HERE, None), (None, HERE, None)],
    )
    def test_writing_lasts_from_the_end_to_the_files_time(self, written, clock, seconds):
        """The time is stated only if the end of the recording and the file's time are from the same clock."""
        assert write_seconds([trace(10 * SECOND, written)], clock) == seconds

    def test_the_slowest_write_counts(self):
        """Of several traces the longest time of writing counts, because the stop waits for all workers."""
        both = [trace(SECOND, 2 * SECOND), trace(2 * SECOND, 5 * SECOND), trace(None, None)]
        assert write_seconds(both, HERE) == 3.0

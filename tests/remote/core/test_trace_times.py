"""The overrun of a recording beyond its window, and the time that an engine needs to write its trace."""

from __future__ import annotations

import pytest

from stepprof.remote.base import Clock
from stepprof.remote.core.trace_times import overrun_seconds, shortfall, write_seconds
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


class TestCovering:
    HERE = Clock("here", 0, 0, "same-host")
    SECOND = 10**9

    @pytest.mark.parametrize(
        ("began", "ended", "clock", "words"),
        [
            (9, 21, HERE, None),
            (9, 20, HERE, None),
            (12, 21, HERE, "began the capture that was returned, 2 s after"),
            (9, 15, HERE, "ended the capture 5 s before"),
            (2, 5, HERE, "ended the capture 15 s before"),
            (12, 23, Clock("there", 2 * SECOND, 0, "ping-pong"), None),
            (9, 21, Clock("there", -2 * SECOND, 0, "ping-pong"), "began the capture"),
            (12, 21, Clock("there", 0, 3 * SECOND, "http-date"), None),
            (12, 15, None, None),
            (None, 15, HERE, None),
        ],
    )
    def test_a_window_from_10_to_20(
        self, began: int | None, ended: int, clock: Clock | None, words: str | None
    ) -> None:
        """A trace that does not cover the window has a reason. The comparison uses the engine's clock and
        its error, and makes no statement without a clock.
        """
        began_ns = None if began is None else began * self.SECOND
        artifact = Artifact("a", "trace", 1, ended_ns=ended * self.SECOND, began_ns=began_ns)
        found = shortfall([artifact], 10 * self.SECOND, 20 * self.SECOND, clock)
        assert (found is None) is (words is None)
        assert words is None or words in str(found)

    def test_a_begin_that_is_not_compared_is_not_short(self) -> None:
        """If the begin of the window is not compared, as for a capture with a delay, the trace is not
        short.
        """
        artifact = Artifact("a", "trace", 1, ended_ns=21 * self.SECOND, began_ns=15 * self.SECOND)
        assert shortfall([artifact], None, 20 * self.SECOND, self.HERE) is None

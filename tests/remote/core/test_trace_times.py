"""The overrun of a recording beyond its window, and the time that an engine needs to write its trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from driven import make_window

from stepprof.remote.base import Clock, Stopped
from stepprof.remote.core.trace_times import TRACE_NS, by_calls, overrun_seconds, shortfall, write_seconds
from stepprof.run.model import Artifact
from stepprof.run.schema import EngineEntry

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


class TestByCalls:
    """A window whose start was sent at 9 s and answered at 10 s, and whose stop was sent at 20 s and answered at 23 s."""

    @pytest.mark.parametrize(
        ("traces", "more", "capped", "bounds"),
        [
            ([(9.5, 21)], {}, None, (-0.5, 0.5)),
            ([(9.5, 21)], {}, "engine", (-0.5, 0.5)),
            ([(9.5, 20.25)], {}, None, (-0.5, 0.25)),
            ([(3609.5, 3621)], {}, None, (3599.5, 3600.5)),
            ([(9.5, 21), (9.75, 21)], {}, None, (-0.5, 0.75)),
            ([(12, 21)], {"delay_iterations": 4}, None, (-2, 1)),
            ([(12, 21)], {"by_stage": True}, None, (-2, 3)),
            ([(9.5, 12)], {}, "engine", (-0.5, 0.5)),
            ([(12, 21)], {}, None, None),
            ([(9.5, 15)], {}, None, None),
            ([(9.5, 21), (19.5, 31)], {}, None, None),
            ([(None, 21)], {}, None, None),
            ([], {}, None, None),
        ],
    )
    def test_the_offset_is_within_the_bounds(
        self,
        tmp_path: Path,
        traces: list[tuple[float | None, float]],
        more: dict[str, Any],
        capped: Any,
        bounds: tuple[float, float] | None,
    ) -> None:
        """The calls bound the offset. Nothing is stated if no offset fits: another process began or ended the capture, or workers have several clocks."""
        files = [
            Artifact(
                "a",
                "trace",
                1,
                began_ns=None if began is None else int(began * SECOND),
                ended_ns=int(ended * SECOND),
            )
            for began, ended in traces
        ]
        entry = EngineEntry(
            role="rollout",
            occurrence=0,
            start_unix_ns=10 * SECOND,
            end_unix_ns=20 * SECOND,
            start_seconds=1.0,
        )
        clock = by_calls(
            make_window(tmp_path, **more), Stopped(files, capped_by=capped), entry, "there", 23 * SECOND
        )
        if bounds is None:
            assert clock is None
            return
        least, most = bounds
        assert clock is not None
        assert (clock.host, clock.method) == ("there", "calls")
        assert clock.offset_ns == pytest.approx((least + most) / 2 * SECOND, abs=2)
        assert clock.error_ns == pytest.approx((most - least) / 2 * SECOND + TRACE_NS, abs=2)

    def test_a_stop_that_brought_too_little(self, tmp_path: Path) -> None:
        """A capture that another process may have ended shows no clock."""
        artifact = Artifact("a", "trace", 1, began_ns=int(9.5 * SECOND), ended_ns=21 * SECOND)
        entry = EngineEntry(role="rollout", occurrence=0, start_unix_ns=10 * SECOND, end_unix_ns=20 * SECOND)
        stopped = Stopped([artifact], partial="it was stopped in the window")
        assert by_calls(make_window(tmp_path), stopped, entry, "there", 23 * SECOND) is None


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
            (12, 21, Clock("there", 0, 3 * SECOND, "calls"), None),
            (12, 15, None, "the traces cover 7 s less than the window"),
            (9, 21, None, None),
            (None, 15, HERE, None),
        ],
    )
    def test_a_window_from_10_to_20(
        self, began: int | None, ended: int, clock: Clock | None, words: str | None
    ) -> None:
        """A trace that does not cover the window has a reason. The comparison uses the engine's clock and
        its error; without a clock, the lengths are compared.
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

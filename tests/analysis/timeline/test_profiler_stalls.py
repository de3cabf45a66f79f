"""The timeline shows the delays that the profiler caused, next to the work of the process."""

from __future__ import annotations

from dataclasses import replace

import pytest
from digested import MS, T0, spans, trace

from stepprof.analysis.timeline.manifest_sources import Input
from stepprof.analysis.timeline.model import Alignment, Origin
from stepprof.analysis.timeline.profiler_stalls import profiler_times, with_held, with_held_slices


def window(**more):
    return {
        "host": "h", "pid": 100, "rank": 0, "boot_id": None, "pid_namespace": None,
        "start_unix_ns": T0 + 50 * MS, "end_unix_ns": T0 + 90 * MS,
        "arm_seconds": 0.02, "arm_unix_ns": None, "start_seconds": 0.01, "stall_seconds": 0.005, **more,
    }  # fmt: skip


def milliseconds(held):
    return [(what, (begin - T0) / MS, (end - T0) / MS) for what, begin, end in held]


class TestProfilerTimes:
    def test_arming_and_starting_end_where_the_window_begins(self):
        """Arming and starting end where the window begins, and the stop begins where the window ends."""
        assert milliseconds(profiler_times(window())) == [
            ("start", 40, 50),
            ("arm", 20, 40),
            ("stop", 90, 95),
        ]

    def test_arming_in_an_earlier_window(self):
        """If the profiler was armed in an earlier window, the manifest gives the time."""
        times = profiler_times(window(arm_unix_ns=T0 + 3 * MS))
        assert milliseconds(times) == [("start", 40, 50), ("arm", 3, 23), ("stop", 90, 95)]

    @pytest.mark.parametrize("odd", [None, 0.0, -1.0, 1e9])
    def test_unknown_delays_are_not_drawn(self, odd):
        """Unknown delays and impossible ones from a damaged manifest are not drawn."""
        assert profiler_times(window(arm_seconds=odd, start_seconds=odd, stall_seconds=odd)) == []

    def test_a_process_that_died_in_its_window(self):
        """A process that died in its window has no stop."""
        times = profiler_times(window(end_unix_ns=None))
        assert [what for what, _, _ in times] == ["start", "arm"]


class TestWithHeld:
    def test_delays_are_on_the_spans_or_the_first_trace(self):
        """The delays of a process are on the timeline once: on its spans, or else on its first trace."""
        origins = [
            Origin("rank", "a", "actor", 0, None, "h", 100),
            Origin("spans", "b", None, 0, None, "h", 100),
            Origin("rank", "c", "actor", 1, None, "h", 101),
            Origin("rank", "d", "ref", 1, None, "h", 101),
        ]
        inputs = [Input(origin, ("x",), 1) for origin in origins]
        held = with_held(inputs, [window(), window(rank=1, pid=101)])
        assert [len(each.held) for each in held] == [0, 3, 3, 0]


class TestSlices:
    def test_a_track_of_its_own_on_the_common_clock(self):
        """The times in the manifest are on the process's clock. The track has them on the common clock."""
        source = replace(
            spans(0, ("window", "actor", 50, 40, "actor")), alignment=Alignment("ping-pong", 7 * MS, 10)
        )
        made = with_held_slices(source, profiler_times(window()))
        rows = {
            made.names[name]: ((start - T0) / MS, duration / MS, made.tracks[track].name, made.categories[category])
            for name, start, duration, track, category in zip(
                made.slices.name, made.slices.start, made.slices.duration, made.slices.track, made.slices.category, strict=True
            )
        }  # fmt: skip
        assert rows == {
            "actor": (50, 40, "main", "window"),
            "profiler start": (33, 10, "profiler", "profiler"),
            "profiler arm": (13, 20, "profiler", "profiler"),
            "profiler stop": (83, 5, "profiler", "profiler"),
        }
        assert len(made.slices.args or []) == 4

    def test_without_delays_there_is_no_track(self):
        """A source without delays is unchanged."""
        source = trace(0, ("thread", "cpu_op", "mm", 0, 1))
        assert with_held_slices(source, ()) is source

"""An engine's capture is cut to its window: it keeps the forward steps that began in the window,
whole, and nothing of later steps.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from digested import MS, T0, engine, engine_entry, source

from stepprof.analysis.timeline.capture_window import CaptureWindow
from stepprof.analysis.timeline.cutting import cut
from stepprof.analysis.timeline.model import Alignment, Origin

STEPS = [(at * 10, 8, 4) for at in range(20)]
"""A forward step of 8 ms every 10 ms, for 200 ms."""
ENGINE = Origin("engine", "step-000002/rollout/replica-0/rank-0.trace.json.gz", "rollout", 0, 0, "h")


def window(start, end, *, sent=None, answered=None, unsure=0):
    """Return a window in milliseconds since T0, with the times at which the start was sent and the
    stop answered.
    """
    return CaptureWindow(
        T0 + round(start * MS),
        T0 + round(end * MS),
        T0 + round((start if sent is None else sent) * MS),
        None if answered is None else T0 + round(answered * MS),
        None if unsure is None else round(unsure * MS),
    )


def kept(made, kind="iterations"):
    """Return the slices on one kind of track as (begin, duration) in milliseconds."""
    found = made.source
    return [
        ((int(start) - T0) / MS, int(duration) / MS)
        for start, duration, track in zip(
            found.slices.start, found.slices.duration, found.slices.track, strict=True
        )
        if found.tracks[track].kind == kind
    ]


def batches(made):
    """Return the batch sizes as (time in milliseconds, value)."""
    counters = made.source.counters
    return [
        ((int(at) - T0) / MS, float(value)) for at, value in zip(counters.time, counters.value, strict=True)
    ]


def by_track(made):
    """Return the batch sizes of each scheduler."""
    counters, found = made.source.counters, {}
    for (at, value), track in zip(batches(made), counters.track, strict=True):
        found.setdefault(made.source.tracks[track].name, []).append((at, value))
    return found


class TestForwardSteps:
    def test_only_forward_steps_that_began_in_the_window_are_kept(self):
        """The stop took effect 100 ms late, so the engine recorded ten forward steps too many. They
        are cut.
        """
        made = cut(engine(0, *STEPS), window(0, 100))
        assert [start for start, _ in kept(made)] == [at * 10.0 for at in range(10)]
        assert (made.recorded, made.least, made.most, made.is_known) == (20, 10, 10, True)
        assert "10 of its 20 forward steps started outside the window" in made.source.findings[-1]

    def test_a_step_across_the_end_is_kept_whole(self):
        """A forward step that began in the window is kept, although it ends after it."""
        made = cut(engine(0, *STEPS), window(0, 95))
        assert kept(made)[-1] == (90.0, 8.0)
        assert batches(made)[-1] == (98.0, 0.0)

    def test_a_step_across_the_begin_is_left_out(self):
        """A forward step across the begin belongs to the window before. Two adjacent windows share
        no step and lose none.
        """
        before, after = (cut(engine(0, *STEPS), window(*edges)) for edges in ((0, 95), (95, 195)))
        assert kept(before) + kept(after) == [(start, length) for start, length, _ in STEPS]

    def test_the_batch_size_ends_with_the_last_one(self):
        """The batch size drops to zero at the end of the last step, and values of later steps are cut."""
        made = cut(engine(0, *STEPS), window(0, 100))
        assert batches(made) == [*((at * 10.0, 4.0) for at in range(10)), (98.0, 0.0)]

    def test_before_a_pause_it_ends_with_the_step(self):
        """The batch size drops to zero before the pause, which belongs to no step."""
        late = [*STEPS[:10], (500, 8, 4), (510, 8, 4)]
        made = cut(engine(0, *late), window(0, 95))
        assert batches(made)[-1] == (98.0, 0.0)
        assert len(kept(made)) == 10

    def test_a_capture_within_the_window_is_kept(self):
        """A capture that lies within its window is unchanged."""
        whole = engine(0, *STEPS)
        made = cut(whole, window(-1, 300))
        assert kept(made) == [(start, length) for start, length, _ in STEPS]
        assert made.source.findings == []

    def test_a_window_without_forward_steps(self):
        """The engine paused while the window was open, so no forward step is kept."""
        made = cut(engine(0, *STEPS), window(300, 400, sent=-1))
        assert (kept(made), made.recorded, made.most) == ([], 20, 0)

    def test_steps_without_a_request_are_kept_and_not_counted(self):
        """vLLM runs forward steps without requests. They are kept but not counted."""
        made = cut(engine(0, (0, 8, 4), (10, 8, 0), (20, 8, 4)), window(0, 15))
        assert (len(kept(made)), made.recorded, made.most) == (2, 2, 1)

    def test_each_scheduler_is_cut_separately(self):
        """Two data-parallel schedulers in one trace have separate forward steps."""
        steps = [
            ((kind, name), "iteration", "step[DECODE bs=4]", at + shift, 8)
            for kind, name, shift in (("iterations", "a", 0), ("iterations", "b", 5))
            for at, _, _ in STEPS
        ]
        both = source(
            ENGINE,
            *steps,
            counters=[
                (f"{pid}: batch size", at + shift, 4)
                for pid, shift in (("a", 0), ("b", 5))
                for at, _, _ in STEPS
            ],
        )
        both.tracks = [
            replace(track, key=(track.kind, track.name.partition(":")[0])) for track in both.tracks
        ]
        made = cut(both, window(0, 102))
        ends = {name: max(at for at, value in values) for name, values in by_track(made).items()}
        assert ends == {"a: batch size": 108.0, "b: batch size": 103.0}
        assert made.most == 11 + 10

    def test_a_cut_capture_can_be_cut_again(self):
        """A JSON timeline was cut when it was merged. Cutting it again changes nothing."""
        once = cut(engine(0, *STEPS), window(0, 95))
        again = cut(once.source, window(0, 95))
        assert (kept(again), batches(again)) == (kept(once), batches(once))
        assert again.source.findings == once.source.findings


class TestEvents:
    def traced(self, *more):
        steps = [("iterations", "iteration", "step[DECODE bs=4]", at, length) for at, length, _ in STEPS]
        return source(ENGINE, *steps, *more)

    def test_work_of_the_last_step_is_kept(self):
        """Work of the last forward step is kept also after the window's end. Longer slices are cut there."""
        made = cut(
            self.traced(
                (("thread", "main"), "cpu_op", "before", 20, 2),
                (("thread", "main"), "cpu_op", "in the last step", 97, 1),
                (("thread", "main"), "cpu_op", "beyond", 101, 1),
                (("thread", "main"), "python_function", "loop", 0, 200),
            ),
            window(0, 95),
        )
        assert kept(made, "thread") == [(20.0, 2.0), (97.0, 1.0), (0.0, 100.0)]

    def test_polling_after_the_window_is_left_out(self):
        """An idle scheduler that is stopped late records its polling loop. The part after the
        window is cut.
        """
        idle = [(("thread", "main"), "cpu_op", "poll", 200 + at, 0.5) for at in range(50)]
        made = cut(self.traced(*idle), window(0, 230))
        assert kept(made, "thread") == [(200.0 + at, 0.5) for at in range(30)]

    def test_kernels_follow_the_step_that_launched_them(self):
        """A device runs behind its host. The annotations on the device show which step a kernel
        belongs to.
        """
        behind = 7
        notes = [
            (("async", "annotations"), "gpu_user_annotation", "step[DECODE bs=4]", at + behind, length)
            for at, length, _ in STEPS
        ]
        kernels = [(("stream", "7"), "kernel", "k", at + behind, 9) for at, _, _ in STEPS]
        made = cut(self.traced(*notes, *kernels), window(45, 95))
        assert kept(made, "stream") == [(at * 10.0 + behind, 9.0) for at in range(5, 10)]

    def test_kernels_without_copies_of_the_annotations(self):
        """Without annotations on the device, a kernel belongs to the step that runs on the host
        when it begins.
        """
        kernels = [(("stream", "7"), "kernel", "k", at + 1, 12) for at, _, _ in STEPS]
        made = cut(self.traced(*kernels), window(45, 95))
        assert kept(made, "stream") == [(at * 10.0 + 1, 12.0) for at in range(5, 10)]

    def test_without_forward_steps_events_are_cut_by_time(self):
        """An old engine has no forward steps, so events are cut by time alone."""
        ops = [(("thread", "main"), "cpu_op", "op", at * 10, 8) for at in range(20)]
        made = cut(source(ENGINE, *ops), window(0, 95))
        assert kept(made, "thread") == [*((at * 10.0, 8.0) for at in range(9)), (90.0, 5.0)]
        assert made.source.findings == []


class TestClocks:
    def test_a_clock_that_may_be_wrong_by_more_than_the_window_lasts(self):
        """The clock may be wrong by more than the window's length. Nothing is cut, and a finding says so."""
        made = cut(engine(0, *STEPS), window(0, 146, sent=-5, answered=1500, unsure=1000))
        assert (made.is_known, len(kept(made))) == (False, 20)
        assert (made.least, made.most) == (0, 15)
        [finding] = made.source.findings
        assert "known within 1 s only: 0 to 15 of its 20 forward steps" in finding

    def test_steps_that_are_certainly_outside_are_left_out_only_if_it_is_known_which(self):
        """If a forward step may be on either side of the window's edge, nothing is certain and the
        count is a range.
        """
        unclear = cut(engine(0, *STEPS), window(0, 98, sent=-50, answered=500, unsure=9))
        assert (unclear.is_known, unclear.least, unclear.most) == (False, 9, 10)
        assert "9 to 10 of its 20 forward steps" in unclear.source.findings[-1]
        clear = cut(engine(0, *STEPS), window(-5, 95, sent=-50, answered=500, unsure=4))
        assert (clear.is_known, clear.most, len(kept(clear))) == (True, 10, 10)

    def test_an_ambiguous_selection_of_steps_is_not_cut(self):
        """Any possible clock offset puts ten steps into the window, but different ones."""
        made = cut(engine(0, *STEPS), window(40, 140, sent=-50, answered=500, unsure=30))
        assert (made.is_known, made.least, made.most) == (False, 10, 10)
        assert ": 10 of its 20 forward steps" in made.source.findings[-1]

    def test_a_capture_that_may_lie_in_the_window_as_a_whole(self):
        """The capture may lie in the window as a whole. Everything is kept without a finding."""
        made = cut(engine(0, *STEPS), window(15, 250, sent=-50, answered=500, unsure=40))
        assert (made.is_known, made.most, len(kept(made))) == (True, 20, 20)
        assert made.source.findings == []

    def test_clocks_that_were_never_compared(self):
        """On clocks that were never compared, only a capture longer than its window is known to exceed it."""
        late = cut(engine(0, *STEPS), window(0, 100, sent=-1, answered=400, unsure=None))
        assert not late.is_known
        assert "was never compared" in late.source.findings[-1]
        whole = cut(engine(0, *STEPS), window(5_000, 5_300, sent=4_990, unsure=None))
        assert (whole.is_known, whole.most, len(kept(whole))) == (True, 20, 20)

    @pytest.mark.parametrize("moved", [-100_000, 100_000])
    def test_a_capture_outside_its_window_is_not_cut(self, moved):
        """The capture lies outside its window as a whole, so its clock must be wrong. Nothing is cut."""
        made = cut(engine(0, *STEPS), window(moved, moved + 100, answered=moved + 200))
        assert (made.is_known, len(kept(made))) == (False, 20)
        assert "its times or its clock are wrong" in made.source.findings[-1]


class TestOf:
    def test_the_window_comes_from_the_manifest(self):
        """The window has the times, on the driver's clock, at which start and stop were sent and answered."""
        entry = engine_entry(start_unix_ns=T0, end_unix_ns=T0 + 10**9)
        assert CaptureWindow.of(entry) == CaptureWindow(T0, T0 + 10**9, T0 - 250_000_000, T0 + 1_500_000_000)

    def test_window_times_are_on_the_common_clock(self):
        """The driver and the engine have different offsets from the common clock."""
        driver, other = Alignment("ping-pong", 5, 20), Alignment("calls", -7, 100)
        placed = CaptureWindow(100, 200, 90, 300).placed(driver, other)
        assert placed == CaptureWindow(95, 195, 85, 295, 120)
        assert (
            CaptureWindow(100, 200, 90).placed(driver, Alignment("unmeasured", 0, None, "x")).unsure is None
        )

    @pytest.mark.parametrize(
        "change", [{"start_unix_ns": None}, {"end_unix_ns": None}, {"end_unix_ns": 1e300}]
    )
    def test_without_times_there_is_no_window(self, change):
        """A capture that never began, and a damaged entry, have no window."""
        assert CaptureWindow.of({**engine_entry(start_unix_ns=T0, end_unix_ns=T0 + 5), **change}) is None

    def test_a_stop_that_was_never_answered(self):
        """Without an answer to the stop, the end of the capture is open."""
        entry = engine_entry(start_unix_ns=T0, end_unix_ns=T0, stop_seconds=None)
        assert CaptureWindow.of(entry).answered is None


def test_without_a_window_nothing_is_cut():
    """Without a window the whole capture is kept."""
    made = cut(engine(0, *STEPS), None)
    assert (made.recorded, made.is_known, len(kept(made))) == (20, True, 20)
    assert cut(source(ENGINE), window(0, 1)).recorded == 0

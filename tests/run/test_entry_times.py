"""The times in manifest entries: the window's body, the delays before and after it, and its CPU time."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from faulty import control, ended

from stepprof import profile_step, region
from stepprof.host.clock import Anchor
from stepprof.run.entry_times import Timing
from stepprof.run.spans import read_spans

FIGURES = {"arm": "arm_seconds", "start": "start_seconds", "stop": "stall_seconds"}
COMPARED_NS = 50_000
"""The largest difference [ns] between two comparisons of the wall clock with the
monotonic clock on a busy machine.
"""


ANCHOR = Anchor(unix_ns=10**18, monotonic_ns=0, error_ns=0)


def keys(timing: Timing) -> dict:
    return timing.keys(ANCHOR)


def windows_of_spans(session, step=2) -> dict:
    """Return (start, end) of the windows of a step by role, from the span files."""
    spans = [span for span in read_spans(session.path, step=step) if span["kind"] == "window"]
    return {span["role"]: (span["start"], span["start"] + span["dur"]) for span in spans}


def own(entry) -> tuple[int, int]:
    """Return when the body of the entry began and ended."""
    return entry["start_unix_ns"], entry["end_unix_ns"]


def same(found: tuple[int, int], expected: tuple[int, int]) -> bool:
    """Return whether two pairs of times are equal. The manifest and each span file compare the clocks
    separately, so a difference of COMPARED_NS is allowed.
    """
    return all(abs(mine - other) < COMPARED_NS for mine, other in zip(found, expected, strict=True))


def spin(seconds: float) -> None:
    """Use the CPU on this thread for this many seconds."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class TestTiming:
    def test_an_entry_before_the_body_has_only_known_times(self) -> None:
        """The entry that is written before the body has its begin, its arming and its
        wait. All other figures are None.
        """
        found = keys(Timing(500, waited_seconds=1.23456789))
        assert (found["start_unix_ns"], found["end_unix_ns"]) == (10**18 + 500, None)
        assert (found["arm_seconds"], found["arm_unix_ns"], found["wait_seconds"]) == (0.0, None, 1.234568)
        assert [found[key] for key in ("start_seconds", "cpu_seconds", "thread_cpu_seconds")] == [None] * 3

    @pytest.mark.parametrize(("armed_ns", "start_seconds"), [(2_000_000, 0.002), (-9_000_000, 0.003)])
    def test_arming_counts_once(self, armed_ns, start_seconds) -> None:
        """Arming after the window was entered is subtracted from the start time. Earlier arming is not."""
        timing = Timing(1_000_000)
        timing.armed(armed_ns, armed_ns + 1_000_000)
        timing.begin(4_000_000)
        found = keys(timing)
        assert (found["start_unix_ns"], found["start_seconds"]) == (10**18 + 4_000_000, start_seconds)
        assert (found["arm_unix_ns"], found["arm_seconds"]) == (10**18 + armed_ns, 0.001)

    def test_a_wait_is_not_counted_as_start(self) -> None:
        """The start time is counted from the end of the wait."""
        timing = Timing(time.perf_counter_ns() - 10**12)
        timing.waited(1000.0)
        timing.begin(time.perf_counter_ns())
        assert keys(timing)["start_seconds"] < 1000 == keys(timing)["wait_seconds"]

    def test_cpu_time_of_the_process_and_of_the_thread(self) -> None:
        """`thread_cpu_seconds` counts the thread of the window, and
        `cpu_seconds` all threads of the process.
        """
        timing = Timing(0)
        timing.begin(time.perf_counter_ns())
        thread = threading.Thread(target=spin, args=(0.02,))
        thread.start()
        thread.join()
        spin(0.01)
        assert timing.end(time.perf_counter_ns())
        assert keys(timing)["thread_cpu_seconds"] >= 0.01
        assert keys(timing)["cpu_seconds"] >= keys(timing)["thread_cpu_seconds"] + 0.02

    @pytest.mark.parametrize("moved", [False, True])
    def test_ended_by_another_thread(self, moved) -> None:
        """If another thread ends the capture, the CPU time of the window's thread is known. If another
        thread ends the body (`moved`), it is None.
        """
        timing = Timing(0)
        timing.begin(time.perf_counter_ns())
        spin(0.005)
        thread = threading.Thread(target=lambda: timing.end(time.perf_counter_ns(), moved=moved))
        thread.start()
        thread.join()
        found = keys(timing)
        assert found["cpu_seconds"] >= 0.005
        assert (found["thread_cpu_seconds"] is None) if moved else (found["thread_cpu_seconds"] >= 0.005)

    def test_the_first_end_counts(self) -> None:
        """The first end, such as that of a cap, is kept. A body that begins after its
        capture has ended has length zero.
        """
        timing = Timing(0)
        timing.begin(10)
        assert timing.end(20)
        assert not timing.end(30)
        assert keys(timing)["end_unix_ns"] == 10**18 + 20
        never = Timing(0)
        never.end(20)
        never.begin(30)
        assert own(keys(never)) == (10**18 + 20, 10**18 + 20)


@pytest.mark.usefixtures("faulty")
class TestOwnTime:
    def test_the_entrys_begin_equals_the_spans(self, start) -> None:
        """The times of an entry equal those of its span, for a complete, a joined and a failed window."""
        session = start(steps="2")
        with profile_step(2, role="actor"), profile_step(2, role="reward"):
            pass
        control.fail("start", *[OSError("no"), OSError("no")])
        with profile_step(2, role="ref"):
            pass
        found = {entry["role"]: entry for entry in ended(session)}
        assert {role: entry["status"] for role, entry in found.items()} == {
            "actor": "complete",
            "reward": "joined",
            "ref": "failed",
        }
        spans = windows_of_spans(session)
        assert set(spans) == set(found)
        for role, entry in found.items():
            assert same(own(entry), spans[role])
            length = (entry["end_unix_ns"] - entry["start_unix_ns"]) / 1e9
            assert 0 <= entry["thread_cpu_seconds"] <= entry["cpu_seconds"] + 1e-4
            assert entry["start_seconds"] > 0
            assert entry["wait_seconds"] == 0
            assert length > 0

    def test_start_and_stop_lie_outside(self, start) -> None:
        """If the profiler is slow to arm, start and stop, each delay has its own figure,
        and the window contains none.
        """
        session = start(steps="2")
        slow = {"arm": 0.05, "start": 0.03, "stop": 0.02}
        for call, seconds in slow.items():
            control.hold(call)
            threading.Thread(target=self._release_late, args=(call, seconds)).start()
        with profile_step(2, role="actor"):
            pass
        (entry,) = ended(session)
        assert same(own(entry), windows_of_spans(session)["actor"])
        assert {call: entry[key] >= slow[call] for call, key in FIGURES.items()} == dict.fromkeys(slow, True)
        begun = entry["start_unix_ns"] - (entry["start_seconds"] + entry["arm_seconds"]) * 1e9
        assert begun - 2_000 <= entry["arm_unix_ns"] < entry["start_unix_ns"]

    @staticmethod
    def _release_late(call, seconds) -> None:
        control.reached[call].wait(30)
        time.sleep(seconds)
        control.release(call)

    def test_armed_in_the_step_before(self, start) -> None:
        """If the profiler was armed at the end of the previous step, the entry states that time."""
        session = start(steps="2")
        for step in (1, 2):
            with profile_step(step, role="actor"):
                pass
        (entry,) = ended(session)
        before, here = (windows_of_spans(session, step)["actor"] for step in (1, 2))
        armed = entry["arm_unix_ns"]
        assert before[1] - COMPARED_NS <= armed < armed + entry["arm_seconds"] * 1e9 <= here[0] + COMPARED_NS
        assert entry["start_unix_ns"] - entry["start_seconds"] * 1e9 > entry["arm_unix_ns"]

    def test_regions_have_their_own(self, start) -> None:
        """The entry of a captured region has the region's times. A window inside
        the region has its own times.
        """
        session = start(steps="2", capture_per="region", regions=["update"])
        with profile_step(2, role="actor"):
            with region("update"), profile_step(2, role="reward"):
                spin(0.002)
            with region("update"):
                pass
        first, inner, second = ended(session)
        spans = [span for span in read_spans(session.path, step=2) if span["name"] == "update"]
        for entry, span in zip((first, second), spans, strict=True):
            assert entry["region"] == "update"
            assert entry["start_unix_ns"] <= span["start"] + COMPARED_NS
            assert span["start"] + span["dur"] <= entry["end_unix_ns"] + COMPARED_NS
        assert first["thread_cpu_seconds"] >= inner["thread_cpu_seconds"] >= 0.002
        assert first["end_unix_ns"] < second["start_unix_ns"]
        assert inner["status"] == "joined"
        assert same(own(inner), windows_of_spans(session)["reward"])

    def test_a_window_that_outlives_the_region_that_it_joined(self, start) -> None:
        """If a window joined a region's capture and ended later, its entry is
        partial and ends with the capture.
        """
        session = start(steps="2", capture_per="region", regions=["update"])
        with profile_step(2, role="actor"):
            with region("update"):
                inner = profile_step(2, role="reward").start()
            inner.stop()
        captured, joined = ended(session)
        assert (joined["status"], joined["end_unix_ns"]) == ("partial", captured["end_unix_ns"])
        assert joined["end_unix_ns"] < windows_of_spans(session)["reward"][1]

    def test_a_schedule(self, start) -> None:
        """With a schedule, the entry lasts from the begin of the first recorded
        region to the end of the last one.
        """
        session = start(steps="2", schedule={"region": "update", "wait": 1, "warmup": 1, "active": 2})
        with profile_step(2, role="actor"):
            for _ in range(6):
                with region("update"):
                    pass
        (entry,) = ended(session)
        spans = [span for span in read_spans(session.path, step=2) if span["name"] == "update"]
        begun, over = entry["start_unix_ns"], entry["end_unix_ns"]
        assert spans[1]["start"] < begun <= spans[2]["start"] + COMPARED_NS
        assert spans[3]["start"] + spans[3]["dur"] - COMPARED_NS <= over < spans[5]["start"]
        assert entry["arm_unix_ns"] < entry["start_unix_ns"]

    def test_a_run_of_steps_as_one(self, start) -> None:
        """With `join_steps`, each window has its own times. The stop is counted after the last window."""
        session = start(steps="2-3", join_steps=True)
        for step in (1, 2, 3, 4):
            with profile_step(step, role="actor"):
                pass
        found = ended(session)
        assert [(entry["step"], entry["status"]) for entry in found] == [(2, "complete"), (3, "joined")]
        for entry in found:
            assert same(own(entry), windows_of_spans(session, entry["step"])["actor"])
        assert found[0]["stall_seconds"] == 0 < found[1]["stall_seconds"]
        assert found[0]["arm_seconds"] > 0 == found[1]["arm_seconds"]

    @pytest.mark.parametrize("thread_bound", [False, True])
    def test_a_capped_capture(self, start, thread_bound) -> None:
        """The entry and its CPU time end with the capture. A stop on the background thread does
        not delay the training thread.
        """
        control.thread_bound = thread_bound
        session = start(steps="2", max_seconds=0.05)
        with profile_step(2, role="actor"), profile_step(2, role="reward"):
            while control.calls[-1] != "stop":
                with region("update"):
                    spin(0.002)
            spin(0.02)
        actor, reward = ended(session)
        assert (actor["status"], actor["capped_by"], reward["status"]) == (
            "complete",
            "max_seconds",
            "joined",
        )
        assert actor["end_unix_ns"] == reward["end_unix_ns"]
        for entry in (actor, reward):
            start_ns, end_ns = windows_of_spans(session)[entry["role"]]
            assert same((entry["start_unix_ns"], 0), (start_ns, 0))
            assert entry["end_unix_ns"] < end_ns - 20_000_000
            length = (entry["end_unix_ns"] - entry["start_unix_ns"]) / 1e9
            assert 0 < entry["thread_cpu_seconds"] <= length + 0.001
        assert (actor["stall_seconds"] > 0) == thread_bound

    def test_the_cap_does_not_include_a_slow_start(self, start) -> None:
        """`max_seconds` limits the recording, and counts from the end of the profiler's start."""
        session = start(steps="2", max_seconds=0.3)
        control.hold("start")
        threading.Thread(target=self._release_late, args=("start", 0.4)).start()
        with profile_step(2, role="actor"):
            while control.calls[-1] != "stop":
                time.sleep(0.01)
        (entry,) = ended(session)
        assert entry["capped_by"] == "max_seconds"
        assert entry["start_seconds"] >= 0.4
        assert entry["end_unix_ns"] - entry["start_unix_ns"] >= 290_000_000

    @pytest.mark.parametrize("written_at_once", [False, True])
    def test_an_enter_that_is_interrupted(self, start, written_at_once) -> None:
        """If the start is interrupted, the body never runs. The entry is failed and has length zero, even
        if the failure is written before the interrupt leaves `profile_step`.
        """
        session = start(steps="2")
        if written_at_once:
            session.background.stop(5)  # from now on the posting thread does the work that it posts
        control.fail("start", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt), profile_step(2, role="actor"):
            pass
        (entry,) = ended(session)
        assert entry["status"] == "failed"
        assert entry["start_unix_ns"] == entry["end_unix_ns"]

    def test_a_coroutine(self, start) -> None:
        """A window in a coroutine lasts until the coroutine leaves it, and has the CPU
        time of the event loop's thread.
        """
        session = start(steps="2")

        async def step() -> None:
            async with profile_step(2, role="actor"):
                await asyncio.sleep(0.001)
                spin(0.002)

        asyncio.run(step())
        (entry,) = ended(session)
        assert same(own(entry), windows_of_spans(session)["actor"])
        assert entry["thread_cpu_seconds"] >= 0.002

    def test_left_on_another_thread(self, start) -> None:
        """If another thread leaves the window, the entry has the CPU time of the
        process and none of a thread.
        """
        session = start(steps="2")
        window = profile_step(2, role="actor").start()
        thread = threading.Thread(target=window.stop)
        thread.start()
        thread.join()
        (entry,) = ended(session)
        assert same(own(entry), windows_of_spans(session)["actor"])
        assert entry["thread_cpu_seconds"] is None
        assert entry["cpu_seconds"] > 0

    def test_waiting_for_an_earlier_stop(self, start) -> None:
        """The wait for an earlier stop has its own figure, and is not part of the start time."""
        session = start(steps="2-3")
        control.hold("stop")
        first = threading.Thread(target=lambda: profile_step(2, role="a").start().stop())
        first.start()
        assert control.reached["stop"].wait(30)
        threading.Timer(0.1, control.release, ["stop"]).start()
        with profile_step(3, role="b"):
            pass
        first.join()
        second = ended(session)[1]
        assert same(own(second), windows_of_spans(session, 3)["b"])
        assert second["wait_seconds"] > second["start_seconds"] > 0


@pytest.mark.torch
class TestWithTorch:
    def test_every_kind_of_window(self, warm) -> None:
        """Torch records nested, capped, region and joined windows. Each entry has the window's own times,
        and the operators in the trace lie between them.
        """
        warm.leave = True
        warm.run(
            """
            import gzip, json
            from stepprof.run.manifest import read_step
            from stepprof.run.spans import read_spans
            common = {"output_dir": "runs", "min_free_memory": "none"}

            def own(entry):
                return entry["start_unix_ns"], entry["end_unix_ns"]

            def spans(session, step, kind="window"):
                return [
                    (span["name"], span["start"], span["start"] + span["dur"])
                    for span in read_spans(session.path, step=step)
                    if span["kind"] == kind
                ]

            def same(found, expected):
                return all(abs(mine - other) < 50_000 for mine, other in zip(found, expected, strict=True))

            def ended(session, step=2):
                stepprof.shutdown()
                return read_step(session.path, step)["windows"]

            def operators(session, entry, step=2):
                (artifact,) = entry["artifacts"]
                with gzip.open(session.path / f"step-{step:06d}" / artifact["path"]) as file:
                    trace = json.load(file)
                base = int(trace["baseTimeNanoseconds"])
                return [base + event["ts"] * 1e3 for event in trace["traceEvents"] if event.get("cat") == "cpu_op"]

            # nested windows: the profiler's start is in neither of them
            session = stepprof.init({**common, "steps": "2"}, run_id="nested")
            with profile_step(1):
                work()
            with profile_step(2):
                with profile_step(2, role="actor"):
                    work(200)
            whole, actor = sorted(ended(session), key=own)
            assert all(same(own(each), span[1:]) for each, span in zip((actor, whole), spans(session, 2), strict=True))
            assert all(own(actor)[0] <= at <= own(actor)[1] for at in operators(session, whole))
            assert actor["status"] == "joined" and actor["thread_cpu_seconds"] > 0
            before = spans(session, 1)[0][2]
            assert before < whole["arm_unix_ns"] < whole["start_unix_ns"] - whole["start_seconds"] * 1e9
            assert whole["start_seconds"] > 0 and whole["stall_seconds"] > 0

            # capped: the entry ends where the capture does
            session = stepprof.init({**common, "steps": "2", "max_seconds": 0.3}, run_id="capped")
            with profile_step(2):
                while stepprof.state().status == "recording":
                    with region("update"):
                        work(50)
                over = time.time_ns()
                work(500)
            (entry,) = ended(session)
            assert (entry["status"], entry["capped_by"]) == ("complete", "max_seconds")
            assert same(own(entry)[:1], spans(session, 2)[0][1:2])
            assert entry["end_unix_ns"] <= over < spans(session, 2)[0][2]
            assert 0 < entry["thread_cpu_seconds"] <= (entry["end_unix_ns"] - entry["start_unix_ns"]) / 1e9

            # regions
            session = stepprof.init({**common, "steps": "2", "capture_per": "region", "regions": ["update"]}, run_id="region")
            with profile_step(2, role="actor"):
                work()
                with region("update"):
                    with profile_step(2, role="reward"):
                        work(100)
                work()
            entries = {each["role"]: each for each in ended(session)}
            (update,) = spans(session, 2, "region")
            captured = entries["actor"]
            assert captured["start_unix_ns"] <= update[1] + 50_000 and update[2] <= captured["end_unix_ns"] + 50_000
            assert same(own(entries["reward"]), next(each[1:] for each in spans(session, 2) if each[0] == "reward"))
            found = operators(session, captured)
            assert len(found) >= 200 and all(own(captured)[0] <= at <= own(captured)[1] for at in found)

            # a run of steps
            session = stepprof.init({**common, "steps": "2-3", "join_steps": True}, run_id="joined")
            for step in (1, 2, 3, 4):
                with profile_step(step, role="actor"):
                    work()
            (two,), (three,) = ended(session, 2), read_step(session.path, 3)["windows"]
            assert (two["status"], three["status"]) == ("complete", "joined")
            assert same(own(two), spans(session, 2)[0][1:]) and same(own(three), spans(session, 3)[0][1:])
            assert two["stall_seconds"] == 0 < three["stall_seconds"]
            """
        ).check()

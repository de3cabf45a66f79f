"""The windows of a process: those that open a capture, those that join one, and the entries of all others."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time

import pytest
from faulty import control, ended, outcomes, transitions, windows

import stepprof
from stepprof import profile_step
from stepprof.backends.base import Busy, Incomplete
from stepprof.errors import BackendError
from stepprof.instrument.context import cell


def run(*path):
    """Enter the windows inside each other, and leave them again."""
    step, role = path[0]
    with profile_step(step, role=role):
        if path[1:]:
            run(*path[1:])


def loop(steps, roles=(None,)):
    """Run a training loop whose steps have these windows, without a pause between them."""
    for step in steps:
        for role in roles:
            with profile_step(step, role=role):
                pass


def in_thread(act):
    """Call a function on another thread, and return its result."""
    result = []
    thread = threading.Thread(target=lambda: result.append(act()))
    thread.start()
    thread.join(30)
    assert result, "the other thread did not end"
    return result[0]


def until(condition, seconds=10.0):
    """Wait until the condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.usefixtures("faulty")
class TestWindows:
    def test_the_manifest_states_the_options_that_are_not_the_defaults(self, start) -> None:
        """Every window of a capture has them, also one that joined it: recordings with unlike options are not compared."""
        session = start(
            steps="2", plugins={"faulty": {"depth": 3, "where": object()}}, roles={"ref": {"plugins": {}}}
        )
        run((2, "actor"), (2, "inner"))
        ended(session)
        options = [window["options"] for window in windows(session)]
        assert options == [{"faulty": {"depth": 3, "where": "<object>"}}] * 2

    def test_the_end_of_an_export_does_not_affect_the_next_capture(self, start, monkeypatch) -> None:
        """If an export ends on its own thread while the next capture begins, that
        capture is watched all the same.
        """
        session = start(steps="2")
        watch, reached, go_on = session.background.watch, threading.Event(), threading.Event()

        def watch_late(on):
            if threading.current_thread() is telling:
                reached.set()
                go_on.wait(0.5)
            watch(on)

        monkeypatch.setattr(session.background, "watch", watch_late)
        telling = threading.Thread(target=session.local._changed, daemon=True)
        telling.start()
        assert reached.wait(30)
        with profile_step(2):
            go_on.set()
            telling.join(30)
            assert session.recorder.hook is not None
            assert session.background._watchful

    def test_a_selected_window_is_captured(self, start) -> None:
        """The selected step has one capture from enter to exit, with its artifact in the manifest. The
        steps around it are not recorded.
        """
        session = start(steps="2")
        loop([1, 2, 3])
        (window,) = ended(session)
        assert (window["step"], window["status"], window["backend"]) == (2, "complete", "faulty")
        (artifact,) = window["artifacts"]
        content = json.loads((session.path / "step-000002" / artifact["path"]).read_bytes())
        assert (content["step"], content["role"], content["rank"]) == (2, None, 0)
        assert artifact["path"] == "step/rank-0.json"
        assert window["start_unix_ns"] < window["end_unix_ns"]
        assert control.calls == ["arm", "start", "stop"]

    def test_nested_windows_are_one_capture(self, start) -> None:
        """The outermost window opens the capture, and the windows inside join it."""
        session = start(steps="2")
        run((2, None), (2, "rollout"), (2, "reward"))
        assert [w["status"] for w in ended(session)] == ["complete", "joined", "joined"]
        assert len(control.captures) == 1
        assert windows(session)[1]["capture"] == {"step": 2, "stem": "step/rank-0"}

    def test_siblings_are_one_capture_each(self, start) -> None:
        """Consecutive windows of a step have one capture each."""
        session = start(steps="2-4")
        loop([1, 2, 3, 4, 5], ["rollout", "actor"])
        expected = [(step, role, "complete") for step in (2, 3, 4) for role in ("rollout", "actor")]
        ended(session)
        assert outcomes(session) == expected

    def test_the_same_role_again_is_another_occurrence(self, start) -> None:
        """A second window of a role in a step has the occurrence 2, and its file gets a number."""
        session = start(steps="2")
        loop([2], ["actor", "actor"])
        found = ended(session)
        assert [w["occurrence"] for w in found] == [1, 2]
        assert [w["artifacts"][0]["path"] for w in found] == ["actor/rank-0.json", "actor/rank-0.2.json"]

    def test_a_window_of_another_step_that_outlives_the_capture_is_partial(self, start) -> None:
        """If two steps overlap, the capture ends with its own step, and the window
        of the other step is partial.
        """
        session = start(steps="2-3")
        two, three = profile_step(2, role="a").start(), profile_step(3, role="b").start()
        two.stop()
        assert stepprof.state().status != "recording"
        three.stop()
        assert [(w["step"], w["status"], w["error"]) for w in ended(session)] == [
            (2, "complete", None),
            (3, "partial", "the window outlived its capture, which ended with step 2"),
        ]

    def test_the_capture_ends_with_the_last_window_of_its_step(self, start) -> None:
        """If the window that opened the capture exits first, the capture ends
        with the window that joined it.
        """
        session = start(steps="2")
        outer = profile_step(2, role="rollout").start()
        inner = profile_step(2, role="actor").start()
        outer.stop()
        assert stepprof.state().status == "recording"
        inner.stop()
        assert stepprof.state().status == "idle"
        assert [w["status"] for w in ended(session)] == ["complete", "joined"]

    def test_overlapping_windows_in_threads(self, start) -> None:
        """If three threads enter windows of a step at the same time, one window opens the
        capture and the others join it.
        """
        session = start(steps="2")
        barrier = threading.Barrier(4)

        def work(role):
            with profile_step(2, role=role):
                barrier.wait(10)
                barrier.wait(10)

        threads = [threading.Thread(target=work, args=(role,)) for role in ("a", "b", "c")]
        for thread in threads:
            thread.start()
        barrier.wait(10)
        assert len(control.captures) == 1
        barrier.wait(10)
        for thread in threads:
            thread.join()
        assert sorted(w["status"] for w in ended(session)) == ["complete", "joined", "joined"]

    async def test_overlapping_windows_in_tasks(self, start) -> None:
        """If coroutines of two steps overlap, the window of the other step is partial, and a
        later one of the same step joins.
        """
        session = start(steps="2-3")

        async def work(step, seconds):
            async with profile_step(step, role="rollout"):
                await asyncio.sleep(seconds)

        await asyncio.gather(work(2, 0.02), work(3, 0.04), work(2, 0.03))
        found = ended(session)
        assert [(w["step"], w["occurrence"], w["status"]) for w in found] == [
            (2, 1, "complete"),
            (3, 1, "partial"),
            (2, 2, "joined"),
        ]

    def test_an_exception_passes_unchanged(self, start) -> None:
        """The caller gets the same exception object, the capture is complete, and the
        manifest names the exception.
        """
        session = start(steps="2")
        error = ValueError("mine")
        with (
            pytest.raises(ValueError, match="mine") as caught,
            profile_step(2),
            profile_step(2, role="actor"),
        ):
            raise error
        assert caught.value is error
        assert [(w["status"], w["body_error"]) for w in ended(session)] == [
            ("complete", "ValueError: mine"),
            ("joined", "ValueError: mine"),
        ]

    def test_the_version_is_recorded(self, start) -> None:
        """The version that the loop passes is in the manifest and in the metadata of the artifact."""
        session = start(steps="2")
        with profile_step(2, version="v7"):
            pass
        assert [w["version"] for w in ended(session)] == ["v7"]
        assert control.captures[0].metadata["version"] == "v7"

    def test_a_second_stop_is_refused(self, start, log) -> None:
        """A start of an open window, a second stop, and a stop without a start
        are logged and call no backend.
        """
        start(steps="2")
        window = profile_step(2).start()
        window.start()
        window.stop()
        calls = list(control.calls)
        window.stop()
        profile_step(2).stop()
        assert control.calls == calls
        assert [(line["what"], line["reason"]) for line in log if line["event"] == "call.refused"] == [
            ("start", "this window of step 2 is already open"),
            ("stop", "this window is not open"),
            ("stop", "this window is not open"),
        ]

    def test_a_ticket_closes_once(self, start, log) -> None:
        """Closing a ticket a second time is logged, and does not end the capture of another window."""
        session = start(steps="2-3")
        ticket = session.enter(2, None, None, None)
        session.exit(ticket, None)
        second = profile_step(3).start()
        session.exit(ticket, None)
        assert stepprof.state().status == "recording"
        second.stop()
        assert [line["reason"] for line in log if line["event"] == "stop.refused"] == [
            "this window is closed already"
        ]

    def test_a_stop_after_the_session_ended_touches_nothing(self, start) -> None:
        """The stop of a window of an earlier session does not end a capture of the next session."""
        start(steps="2")
        window = profile_step(2).start()
        stepprof.shutdown()
        second = start(steps="2", run_id="next")
        with profile_step(2):
            window.stop()
            assert stepprof.state().status == "recording"
        assert [w["status"] for w in ended(second)] == ["complete"]


@pytest.mark.usefixtures("faulty")
class TestLeftOpen:
    def test_the_next_start_of_its_role_closes_it_as_partial(self, start) -> None:
        """The next start of the same role closes the open window as partial with a
        reason, and is captured itself.
        """
        session = start(steps="2-3")
        profile_step(2, role="actor").start()
        second = profile_step(3, role="actor").start()
        second.stop()
        found = ended(session)
        assert [(w["step"], w["status"], w["body_error"]) for w in found] == [
            (2, "partial", None),
            (3, "complete", None),
        ]
        assert found[0]["error"] == "the window was left open, and closed by the next start of its role"

    def test_a_joined_window_left_open_is_partial(self, start) -> None:
        """If a joined window is left open, the next start of its role closes it as partial."""
        session = start(steps="2")
        with profile_step(2):
            profile_step(2, role="actor").start()
            profile_step(2, role="actor").start().stop()
        assert [w["status"] for w in ended(session)] == ["complete", "partial", "joined"]

    def test_another_role_or_thread_leaves_it_alone(self, start) -> None:
        """A window that was left open is closed neither by another role, nor by another thread, nor by
        the start of a `with` block.
        """
        start(steps="none", spans=True)
        window = profile_step(2, role="actor").start()
        with profile_step(3, role="actor"):
            profile_step(3, role="ref").start().stop()
            in_thread(lambda: profile_step(3, role="actor").start().stop())
            assert window._start

    async def test_each_task_has_its_own_window(self, start) -> None:
        """If a task leaves a window open, the next start of its role in this task closes it as partial."""
        session = start(steps="2-3")

        async def work():
            await profile_step(2, role="actor").astart()
            window = await profile_step(3, role="actor").astart()
            await window.astop()

        await asyncio.create_task(work())
        assert [w["status"] for w in ended(session)] == ["partial", "complete"]

    def test_a_window_left_open_is_partial_at_the_end(self, start) -> None:
        """A window that is open at the end of the run is partial, with that reason and an artifact."""
        session = start(steps="2")
        profile_step(2).start()
        (window,) = ended(session)
        assert (window["status"], window["error"]) == ("partial", "the run ended while it was recording")
        assert window["artifacts"]


@pytest.mark.usefixtures("faulty")
class TestCapturePerRole:
    def test_windows_without_a_role_open_nothing(self, start) -> None:
        """With `capture_per = "role"`, the window of the whole step opens no
        capture, and each role has its own.
        """
        session = start(steps="2", capture_per="role")
        with profile_step(2):
            loop([2], ["rollout", "actor"])
        ended(session)
        assert outcomes(session) == [(2, "rollout", "complete"), (2, "actor", "complete")]


@pytest.mark.usefixtures("faulty")
class TestRolePolicies:
    def test_each_role_has_its_own_steps_and_ranks(self, start) -> None:
        """Each role is recorded only on its own steps and ranks. A role that is
        not selected is in no manifest.
        """
        roles = {"rollout": {"steps": "3"}, "ref": {"ranks": "1"}, "critic": {"enabled": False}}
        session = start(steps="2", roles=roles, rank=0, world_size=2)
        loop([1, 2, 3], ["rollout", "ref", "critic", "actor"])
        ended(session)
        assert outcomes(session) == [(2, "actor", "complete"), (3, "rollout", "complete")]

    def test_each_role_has_its_own_backend_and_options(self, start) -> None:
        """The backend of a role is made with the options of that role."""
        session = start(
            steps="2",
            faulty={"level": 1},
            roles={"ref": {"backend": "null"}, "actor": {"faulty": {"level": 2}}},
        )
        loop([2], ["rollout", "ref", "actor"])
        assert [w["backend"] for w in ended(session)] == ["faulty", "null", "faulty"]
        made = [backend.options for backend in session.local.capturer.backends if backend.name == "faulty"]
        assert made == [{"level": 1}, {"level": 2}]


@pytest.mark.usefixtures("faulty")
class TestJoinSteps:
    def test_a_run_of_steps_is_one_capture(self, start) -> None:
        """With `join_steps`, one capture covers all windows from the first selected step to the last one."""
        session = start(steps="2-4", join_steps=True)
        loop([1, 2, 3, 4, 5], ["rollout", "actor"])
        assert stepprof.state().status == "idle"
        ended(session)
        assert [status for _, _, status in outcomes(session)] == ["complete"] + ["joined"] * 5
        assert len(control.captures) == 1

    def test_a_run_that_the_loop_ends_inside(self, start) -> None:
        """If the loop ends inside a run of steps, the end of the run stops the capture, which is complete."""
        session = start(steps="2-9", join_steps=True)
        loop([2, 3, 4])
        assert stepprof.state().status == "recording"
        assert [w["status"] for w in ended(session)] == ["complete", "joined", "joined"]
        assert windows(session, 2)[0]["artifacts"]

    def test_a_window_left_open_in_a_run_of_steps(self, start) -> None:
        """If a window is open at the end, the capture of the run of steps is partial."""
        session = start(steps="2-9", join_steps=True)
        loop([2, 3])
        profile_step(4).start()
        found = ended(session)
        assert [w["status"] for w in found] == ["partial", "joined", "joined"]

    def test_runs_apart_are_captures_apart(self, start) -> None:
        """Two runs of steps with other steps between them are two captures."""
        session = start(steps="2-3, 5-6", join_steps=True)
        loop(range(1, 8))
        ended(session)
        assert [status for _, _, status in outcomes(session)] == ["complete", "joined"] * 2

    def test_a_single_step_joins_no_other(self, start) -> None:
        """A selected step without a selected neighbour has one capture for each window."""
        session = start(steps="2", join_steps=True)
        loop([1, 2, 3], ["rollout", "actor"])
        ended(session)
        assert [status for _, _, status in outcomes(session)] == ["complete", "complete"]

    def test_the_last_step_lacks_a_window(self, start) -> None:
        """If the last step lacks a window, the first window of a step that is
        not selected ends the capture.
        """
        session = start(steps="2-3", join_steps=True)
        loop([2], ["rollout", "actor"])
        loop([3], ["rollout"])
        assert stepprof.state().status == "recording"
        loop([4], ["rollout"])
        assert stepprof.state().status == "idle"
        assert [w["status"] for w in ended(session)] == ["complete", "joined", "joined"]

    def test_steps_left_out_end_it(self, start) -> None:
        """A selected step that does not follow directly has a capture of its own."""
        session = start(steps="2-3, 10", join_steps=True)
        loop([2], ["rollout", "actor"])
        loop([3], ["rollout"])
        loop([10], ["rollout"])
        ended(session)
        assert outcomes(session) == [
            (2, "rollout", "complete"),
            (2, "actor", "joined"),
            (3, "rollout", "joined"),
            (10, "rollout", "complete"),
        ]

    def test_a_role_that_is_left_out_does_not_end_it(self, start) -> None:
        """A window of a role that is switched off does not end the capture of the run of steps."""
        session = start(steps="2-3", join_steps=True, roles={"ref": {"enabled": False}})
        loop([1, 2, 3, 4], ["ref", "actor"])
        ended(session)
        assert outcomes(session) == [(2, "actor", "complete"), (3, "actor", "joined")]

    def test_a_cap_ends_the_run(self, start) -> None:
        """If a cap ends the capture, later windows of the same step are skipped. The next
        step has a capture of its own.
        """
        session = start(steps="2-4", join_steps=True, max_bytes="1kB")
        loop([2])
        with profile_step(3):
            control.size = 2000
            session.background.round()
            assert stepprof.state().status == "idle"
            control.size = 0
            loop([3], ["actor"])
        loop([4])
        found = ended(session)
        assert [(w["step"], w["status"], w["capped_by"]) for w in found] == [
            (2, "complete", "max_bytes"),
            (3, "joined", None),
            (3, "skipped", None),
            (4, "complete", None),
        ]


@pytest.mark.usefixtures("faulty")
class TestArming:
    def test_arming_happens_at_the_exit_of_the_previous_step(self, start, log) -> None:
        """The backend is armed at the exit of the step before the selected one, so that the
        selected step starts faster.
        """
        start(steps="2")
        loop([1])
        state = stepprof.state()
        assert (state.status, state.step, state.backend) == ("armed", 2, "faulty")
        assert control.calls == ["arm"]
        loop([2])
        assert control.calls == ["arm", "start", "stop"]
        assert transitions(log) == [
            ("idle", "armed"),
            ("armed", "recording"),
            ("recording", "flushing"),
            ("flushing", "idle"),
        ]

    @pytest.mark.parametrize(("per", "role"), [("step", None), ("role", "actor")])
    def test_the_state_names_the_window_it_is_armed_for(self, start, per, role) -> None:
        """The state names the window that will open the capture: the whole step's window
        if it may, or else the role's.
        """
        start(steps="2", capture_per=per)
        with profile_step(1):
            with profile_step(1, role="actor"):
                pass
            assert (stepprof.state().status, stepprof.state().role) == ("armed", "actor")
        assert (stepprof.state().status, stepprof.state().role) == ("armed", role)
        assert control.calls == ["arm"]
        assert cell.session.local.capturer.machine.holder == f"{role or 'step'}/0 of step 2"

    def test_the_first_step_of_all_arms_at_its_enter(self, start) -> None:
        """If the first step is selected, it is armed at its own enter."""
        session = start(steps="2")
        loop([2])
        assert [w["status"] for w in ended(session)] == ["complete"]

    def test_each_selected_step_in_a_row_is_armed(self, start) -> None:
        """If two selected steps follow each other, the second one is armed at the exit of the first."""
        start(steps="2-3")
        loop([2])
        assert (stepprof.state().status, stepprof.state().step) == ("armed", 3)

    def test_an_armed_step_that_never_comes(self, start, log) -> None:
        """If the armed step never comes, the first window of a later step disarms the backend."""
        start(steps="2")
        loop([1])
        assert stepprof.state().status == "armed"
        loop([1])  # an earlier step does not disarm
        assert stepprof.state().status == "armed"
        loop([3])
        assert stepprof.state().status == "idle"
        assert control.calls == ["arm", "abort"]
        assert [line for line in log if line["event"] == "state.changed"][-1][
            "reason"
        ] == "step 2 was never entered"

    def test_the_end_of_the_run_releases_an_armed_session(self, start) -> None:
        """The end of the run disarms a backend that was armed for a later step."""
        start(steps="2")
        loop([1])
        stepprof.shutdown()
        assert control.calls == ["arm", "abort"]

    def test_armed_for_another_step(self, start) -> None:
        """If the armed step is not entered, the backend is disarmed and armed
        again for the next selected step.
        """
        session = start(steps="2, 7")
        loop([1])
        loop([6])
        assert (stepprof.state().status, stepprof.state().step) == ("armed", 7)
        loop([1, 7])
        assert [w["step"] for w in ended(session)] == [7]
        assert control.calls == ["arm", "abort", "arm", "start", "stop"]

    def test_arming_fails(self, start) -> None:
        """If arming fails, the state has the reason. The window arms again and is recorded."""
        session = start(steps="2")
        control.fail("arm")
        loop([1])
        assert stepprof.state().status == "idle"
        assert stepprof.state().last_error == "arm for step 2: BackendError: arm failed"
        loop([2])
        assert [w["status"] for w in ended(session)] == ["complete"]

    def test_arming_does_not_wait(self, start, log) -> None:
        """While a capture runs, arming for the next step is refused at once, and the log gives the reason."""
        start(steps="2-3", join_steps=False)
        with profile_step(2, role="actor"):
            loop([2], ["reward"])
        lines = [line for line in log if line["event"] == "arm.refused"]
        assert [line["reason"] for line in lines] == ["recording, held by actor/0 of step 2"]

    def test_an_interrupt_while_arming(self, start) -> None:
        """An interrupt during arming reaches the caller, and the backend is disarmed."""
        start(steps="2")
        control.fail("arm", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            loop([1])
        assert (stepprof.state().status, stepprof.state().backend) == ("idle", None)
        assert control.calls == ["arm", "abort"]


@pytest.mark.usefixtures("faulty")
class TestFailures:
    def test_an_unavailable_backend_is_one_warning(self, start, log) -> None:
        """If the backend is unavailable, one warning is logged, and each window is failed with the reason."""
        control.unavailable = "no driver"
        session = start(steps="2-3")
        loop([1, 2, 3])
        assert len([line for line in log if line["event"] == "backend.unavailable"]) == 1
        assert [(w["status"], w["error"]) for w in ended(session)] == [
            ("failed", "faulty cannot record here: no driver")
        ] * 2

    def test_a_backend_that_cannot_even_be_asked(self, start) -> None:
        """If the check for availability raises an exception, this is the reason of the failed window."""
        control.unavailable = RuntimeError("broken")
        session = start(steps="2")
        loop([2])
        assert [w["error"] for w in ended(session)] == ["faulty cannot record here: RuntimeError: broken"]

    def test_a_failed_export_is_kept_and_the_next_step_records(self, start) -> None:
        """A failed export is in the state and in the manifest, and the next step is recorded."""
        session = start(steps="2-3")
        control.fail("export", OSError("disk full"))
        loop([2])
        state = stepprof.state()
        assert (state.last_error, state.pending_exports, state.recorded_steps) == (
            "export: OSError: disk full",
            (),
            (),
        )
        loop([3])
        assert stepprof.state().recorded_steps == (3,)
        assert [(w["status"], w["error"]) for w in ended(session)] == [
            ("failed", "export: OSError: disk full"),
            ("complete", None),
        ]

    def test_a_failed_stop(self, start) -> None:
        """If the stop fails, the capture's windows and those that joined it are
        failed. The next step is recorded.
        """
        session = start(steps="2-3")
        control.fail("stop")
        run((2, None), (2, "actor"))
        assert stepprof.state().last_error == "BackendError: stop failed"
        loop([3])
        assert [w["status"] for w in ended(session)] == ["failed", "failed", "complete"]

    def test_a_failed_start_is_tried_once_more_where_it_was_armed(self, start) -> None:
        """If the start of an armed backend fails, the backend is armed and started again."""
        session = start(steps="2-3")
        loop([1])
        control.fail("start")
        loop([2])
        assert control.calls == ["arm", "start", "abort", "arm", "start", "stop", "arm"]
        assert [w["status"] for w in ended(session)] == ["complete"]

    def test_a_failed_start_fails_the_window(self, start) -> None:
        """If the start fails without earlier arming, the window is failed with
        the reason, and the body runs.
        """
        session = start(steps="2")
        control.fail("start")
        loop([2])
        assert [(w["status"], w["error"], w["artifacts"]) for w in ended(session)] == [
            ("failed", "BackendError: start failed", [])
        ]

    def test_another_profiler_makes_the_window_skipped(self, start) -> None:
        """If another profiler runs, the window is skipped, and the start is not tried again."""
        session = start(steps="2")
        loop([1])
        control.fail("start", Busy("torch.profiler runs in thread 7"))
        loop([2])
        assert control.calls == ["arm", "start", "abort"]
        assert [(w["status"], w["error"]) for w in ended(session)] == [
            ("skipped", "Busy: torch.profiler runs in thread 7")
        ]

    @pytest.mark.parametrize("call", ["start", "stop"])
    def test_an_interrupt_inside_the_backend(self, start, call) -> None:
        """An interrupt in the backend's start or stop reaches the caller. Its window is failed,
        and the next step is recorded.
        """
        session = start(steps="2-3")
        control.fail(call, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            loop([2])
        assert stepprof.state().status == "idle"
        loop([3])
        assert [(w["step"], w["status"], w["error"]) for w in ended(session)] == [
            (2, "failed", "KeyboardInterrupt"),
            (3, "complete", None),
        ]

    def test_an_abort_that_raises(self, start, log) -> None:
        """If `abort` raises an exception, against its contract, this is logged,
        and the next step is recorded.
        """
        session = start(steps="2-3")
        control.fail("stop")
        control.fail("abort", RuntimeError("worse"))
        loop([2, 3])
        assert [line["reason"] for line in log if line["event"] == "abort.failed"] == ["RuntimeError: worse"]
        assert [w["status"] for w in ended(session)] == ["failed", "complete"]

    @pytest.mark.parametrize(
        ("error", "event"),
        [(OSError("disk full"), "export.failed"), (Incomplete("no kernels"), "export.incomplete")],
        ids=["failed", "incomplete"],
    )
    def test_a_failed_export_has_its_own_event(self, start, log, error, event) -> None:
        """The log distinguishes a failed export from an incomplete one."""
        start(steps="2")
        control.fail("export", error)
        loop([2])
        (line,) = (
            each
            for each in log
            if each["event"] in ("export.failed", "export.incomplete", "window.not_recorded")
        )
        assert (line["event"], line["step"], line["reason"]) == (event, 2, f"{type(error).__name__}: {error}")

    def test_an_export_mode_that_raises(self, start) -> None:
        """If the backend cannot state its export mode, the export runs in place."""
        session = start(steps="2")
        control.fail("export_mode")
        loop([2])
        assert [w["status"] for w in ended(session)] == ["complete"]

    def test_the_run_directory_cannot_be_written(self, start, tmp_path) -> None:
        """If the folder of the step cannot be made, the loop goes on, and the next step is recorded."""
        session = start(steps="2-3")
        (session.path / "step-000002").symlink_to("/proc/self")  # no process can make a folder there
        loop([2, 3])
        assert "FileNotFoundError" in stepprof.state().last_error
        stepprof.shutdown()
        assert [w["status"] for w in windows(session, 3)] == ["complete"]


@pytest.mark.usefixtures("faulty")
class TestStrict:
    def test_a_failed_start_is_raised(self, start) -> None:
        """With `strict`, a failed start is raised as a BackendError with its reason."""
        start(steps="2", strict=True)
        control.fail("start", OSError("no"))
        with pytest.raises(BackendError, match="OSError: no"):
            loop([2])

    def test_a_failed_stop_is_raised(self, start) -> None:
        """With `strict`, a failed stop is raised, and the state is idle."""
        start(steps="2", strict=True)
        control.fail("stop")
        with pytest.raises(BackendError, match="stop failed"):
            loop([2])
        assert stepprof.state().status == "idle"

    def test_the_bodys_exception_takes_precedence(self, start) -> None:
        """With `strict`, the exception of the body is raised, not that of the failed stop."""
        start(steps="2", strict=True)
        control.fail("stop")
        with pytest.raises(ZeroDivisionError), profile_step(2):
            1 / 0  # noqa: B018


@pytest.mark.usefixtures("faulty")
class TestCaps:
    def hit(self, session) -> None:
        """Run rounds of the background thread until a cap has ended the capture."""
        until(lambda: session.background.round() and stepprof.state().status != "recording")

    @pytest.mark.parametrize(
        ("cap", "reason"),
        [
            ({"max_seconds": 0.05}, "max_seconds"),
            ({"max_bytes": "1kB"}, "max_bytes"),
            ({"min_free_memory": "99.9%"}, "memory"),
        ],
    )
    def test_a_cap_ends_the_capture(self, start, cap, reason) -> None:
        """A cap ends the capture, which is complete with the cap's name. Later
        windows of the step are skipped.
        """
        session = start(steps="2", **cap)
        with profile_step(2):
            control.size = 2000
            self.hit(session)
            loop([2], ["actor"])
        assert [(w["status"], w["capped_by"]) for w in ended(session)] == [
            ("complete", reason),
            ("skipped", None),
        ]
        assert windows(session)[1]["error"] == "the capture of step 2 has ended already"

    def test_caps_are_checked_without_regions(self, start) -> None:
        """The background thread checks the caps, without a region or tick."""
        start(steps="2", max_seconds=0.01)
        with profile_step(2):
            until(lambda: stepprof.state().status == "idle", 2.0)

    @pytest.mark.parametrize("edge", ["region", "mark", "tick", "window", "window not selected"])
    def test_a_thread_bound_backend_is_capped_by_its_own_thread(self, start, edge) -> None:
        """A backend that is bound to its thread is stopped by that thread, at its next
        region, mark, tick or window.
        """
        control.thread_bound = True
        session = start(steps="2", max_bytes="1kB", roles={"ref": {"enabled": False}})
        with profile_step(2):
            control.size = 2000
            in_thread(session.background.round)
            assert stepprof.state().status == "recording"
            acts = {
                "region": lambda: stepprof.region("x").__enter__(),
                "mark": lambda: stepprof.mark("x"),
                "tick": stepprof.tick,
                "window": lambda: loop([2], ["actor"]),
                "window not selected": lambda: profile_step(2, role="ref").__enter__(),
            }
            acts[edge]()
            assert stepprof.state().status == "idle"
        assert ended(session)[0]["capped_by"] == "max_bytes"

    def test_an_unknown_size_is_reported_once(self, start, log) -> None:
        """If the size of the capture is unknown, this is logged once."""
        session = start(steps="2")
        control.fail("bytes_so_far", RuntimeError("no idea"), RuntimeError("no idea"))
        with profile_step(2):
            for _ in range(3):
                session.background.round()
        assert len([line for line in log if line["event"] == "capture.size_unknown"]) == 1


@pytest.mark.usefixtures("faulty")
class TestThreadBound:
    def test_a_stop_on_another_thread_is_posted(self, start, log) -> None:
        """The stop of a thread-bound capture on another thread is logged with the owner, who
        carries it out at its next region.
        """
        control.thread_bound = True
        session = start(steps="2")
        window = profile_step(2).start()
        in_thread(window.stop)
        assert stepprof.state().status == "recording"
        with stepprof.region("next"):
            pass
        assert stepprof.state().status == "idle"
        (reason,) = [line["reason"] for line in log if line["event"] == "capture.stop_posted"]
        assert f"belongs to thread {threading.get_ident()}" in reason
        assert [w["status"] for w in ended(session)] == ["complete"]

    def test_regions_of_other_threads_do_not_apply_it(self, start, log) -> None:
        """Regions and ticks of another thread neither carry out the posted stop nor log it again."""
        control.thread_bound = True
        start(steps="2")
        window = profile_step(2).start()

        def others():
            window.stop()
            for _ in range(10):
                with stepprof.region("theirs"):
                    stepprof.tick()
            return True

        in_thread(others)
        assert stepprof.state().status == "recording"
        assert len([line for line in log if line["event"] == "capture.stop_posted"]) == 1

    def test_the_end_of_the_run_on_another_thread(self, start) -> None:
        """If the thread that owns the capture has ended, the capture is failed with this
        reason at the end of the run.
        """
        control.thread_bound = True
        session = start(steps="2")
        in_thread(lambda: profile_step(2).start())
        (window,) = ended(session)
        assert window["status"] == "failed"
        assert window["error"].startswith("the run ended while it was recording, on another thread")

    def test_the_end_of_the_run_waits_for_the_owning_thread(self, start) -> None:
        """If the owning thread still enters regions, it stops the capture at the end of the
        run, and the window is partial.
        """
        control.thread_bound = True
        session = start(steps="2")
        going = threading.Event()

        def work():
            profile_step(2).start()
            while not going.wait(0.005):
                with stepprof.region("step"):
                    pass

        thread = threading.Thread(target=work)
        thread.start()
        until(lambda: stepprof.state().status == "recording")
        stepprof.shutdown()
        going.set()
        thread.join()
        assert [w["status"] for w in windows(session)] == ["partial"]


@pytest.mark.usefixtures("faulty")
class TestStopOnAnotherThread:
    """The stop runs on another thread, and the backend's stop waits until the test releases it."""

    @pytest.fixture
    def handing_over(self, start):
        """Return a function that starts a session and begins the stop of step 2 on another thread."""
        threads = []

        def begin(**config):
            session = start(steps="2-3", **config)
            control.hold("stop")
            window = profile_step(2).start()
            thread = threading.Thread(target=window.stop, name="handing over")
            thread.start()
            threads.append(thread)
            until(lambda: stepprof.state().status == "flushing")
            return session

        yield begin
        if "stop" in control.released:
            control.release("stop")
        for thread in threads:
            thread.join(10)

    def test_the_state_names_the_capture_being_stopped(self, handing_over) -> None:
        """While the capture is flushing, the state still names its step and backend."""
        handing_over()
        assert (stepprof.state().step, stepprof.state().backend) == (2, "faulty")

    def test_a_selected_window_waits_for_the_stop(self, handing_over) -> None:
        """The next selected window waits for the stop and is recorded, with the waiting time in its entry."""
        session = handing_over()
        threading.Timer(0.1, control.release, ["stop"]).start()
        loop([3])
        second = ended(session)[1]
        assert (second["step"], second["status"]) == (3, "complete")
        assert 0.02 < second["wait_seconds"] < 5

    def test_a_window_is_skipped_after_the_timeout(self, handing_over) -> None:
        """If the stop does not end in time, the next window is skipped with the
        reason and the waiting time.
        """
        session = handing_over(engine_stop_timeout_seconds=0.1)
        loop([3])
        control.release("stop")
        second = ended(session)[1]
        assert (second["step"], second["status"]) == (3, "skipped")
        assert second["error"].startswith("the stop on another thread did not end within 0.1")
        assert second["wait_seconds"] >= 0.1

    def test_a_run_that_ends_meanwhile_stays_at_its_end(self, handing_over) -> None:
        """If the run ends during the stop, the stopping thread does not arm the next step."""
        session = handing_over()
        stepprof.shutdown(0.1)
        control.release("stop")
        (thread,) = (each for each in threading.enumerate() if each.name == "handing over")
        thread.join(30)
        assert control.calls == ["arm", "start", "stop"]
        assert session.local.capturer.machine.state == "idle"

    async def test_waiting_does_not_block_the_event_loop(self, handing_over) -> None:
        """While a coroutine waits for the stop, other coroutines of the event loop run."""
        session = handing_over()
        ticks = []

        async def tick():
            for number in itertools.count():
                await asyncio.sleep(0.005)
                ticks.append(number)
                if number == 10:
                    control.release("stop")

        task = asyncio.create_task(tick())
        async with profile_step(3):
            entered_after = len(ticks)
        task.cancel()
        assert entered_after >= 10
        second = ended(session)[1]
        assert (second["status"], second["wait_seconds"] >= 0.02) == ("complete", True)

    async def test_waiting_in_a_coroutine_is_bounded(self, handing_over) -> None:
        """If the stop does not end in time, the window of a coroutine is skipped."""
        session = handing_over(engine_stop_timeout_seconds=0.1)
        async with profile_step(3):
            pass
        control.release("stop")
        second = ended(session)[1]
        assert (second["status"], second["wait_seconds"] >= 0.1) == ("skipped", True)

    async def test_a_window_that_is_not_selected_does_not_wait(self, handing_over) -> None:
        """During the stop, windows that are not selected or invalid, regions and ticks do not wait."""
        handing_over()
        began = time.monotonic()
        for step in (1, 7, "x", -1, None):
            async with profile_step(step), profile_step(7, role=["x"]):
                with profile_step(7), stepprof.region("r"):
                    stepprof.tick()
        assert time.monotonic() - began < 2
        assert stepprof.state().status == "flushing"

    def test_a_joined_window_exits_without_waiting(self, start) -> None:
        """A window that had joined exits while the capture is being stopped, without waiting."""
        session = start(steps="2-3")
        two, three = profile_step(2, role="a").start(), profile_step(3, role="b").start()
        control.hold("stop")
        thread = threading.Thread(target=two.stop)
        thread.start()
        until(lambda: stepprof.state().status == "flushing")
        three.stop()
        assert stepprof.state().status == "flushing"
        control.release("stop")
        thread.join()
        assert [w["status"] for w in ended(session)] == ["complete", "partial"]

    def test_the_end_of_the_run_waits_for_the_stop(self, handing_over) -> None:
        """The end of the run waits for the stop, and the window is complete."""
        session = handing_over()
        threading.Timer(0.1, control.release, ["stop"]).start()
        assert [w["status"] for w in ended(session)] == ["complete"]

    def test_a_window_inside_the_backends_own_act_is_skipped(self, start) -> None:
        """A window inside a call of the backend, as of a signal handler, is skipped,
        because it would wait for itself.
        """
        session = start(steps="2-3")

        def inside():
            loop([3])
            return BackendError("start failed")

        class Meanwhile(list):
            def __bool__(self):
                self[:] = []
                loop([3])
                return False

        control.raising["start"] = Meanwhile()
        loop([2])
        assert sorted((w["step"], w["status"]) for w in ended(session)) == [(2, "complete"), (3, "skipped")]
        assert "already acting on the target" in windows(session, 3)[0]["error"]


@pytest.mark.usefixtures("faulty")
class TestStateAndLog:
    def test_each_transition_is_one_line(self, start, log) -> None:
        """Each change of state is one log line with step, role, rank, backend, and the
        seconds in the state before.
        """
        start(steps="2", rank=3, world_size=4, ranks="3")
        loop([1, 2], ["actor"])
        lines = [line for line in log if line["event"] == "state.changed"]
        shown = [
            {
                k: v
                for k, v in line.items()
                if k not in ("seconds", "event", "log_level", "run_id", "host", "occurrence")
            }
            for line in lines
        ]
        same = {"target": "rank-3", "step": 2, "role": "actor", "rank": 3, "backend": "faulty"}
        states = ["idle", "armed", "recording", "flushing", "idle"]
        assert shown == [{"from": old, "to": new, **same} for old, new in itertools.pairwise(states)]
        assert all(isinstance(line["seconds"], float) for line in lines)

    def test_an_abort_is_logged_with_step_role_and_reason(self, start, log) -> None:
        """The log line of an abort has the step, the role, the backend and the reason."""
        start(steps="2")
        control.fail("stop")
        loop([2], ["actor"])
        line = [line for line in log if line["event"] == "state.changed"][-1]
        assert (line["from"], line["to"]) == ("flushing", "idle")
        assert (line["step"], line["role"], line["backend"], line["reason"]) == (
            2,
            "actor",
            "faulty",
            "BackendError: stop failed",
        )

    def test_the_state_describes_the_capture(self, start) -> None:
        """The state has the step, role, rank, backend and duration of the capture, also as one line."""
        start(steps="2")
        with profile_step(2, role="actor"):
            state = stepprof.state()
            assert str(state) == "recording step=2 role=actor rank=0 backend=faulty"
            assert 0 <= state.since_seconds < 60
        assert str(stepprof.state()) == "idle rank=0"
        assert stepprof.state().recorded_steps == (2,)

    def test_pending_exports_are_shown_until_they_end(self, start) -> None:
        """An export on its own thread is pending in the state until it ends."""
        session = start(steps="2", export="thread")
        loop([2])
        session.exporter.wait(10)
        until(lambda: stepprof.state().pending_exports == ())
        assert str(stepprof.state()) == "idle rank=0"


def test_after_shutdown_the_state_is_idle(start, faulty) -> None:
    """After the session has ended, a window calls no backend."""
    start(steps="2")
    stepprof.shutdown()
    loop([2])
    assert cell.session is None
    assert control.calls == []


class TestManifest:
    def test_the_training_thread_writes_one_version(self, run_script) -> None:
        """After the capture, only the background thread writes the manifest, even
        if the export runs in place.
        """
        done = run_script("""
import threading, time
import stepprof
session = stepprof.init({"steps": "2", "backend": "null", "export": "inline"})
writers = []
session.local.capturer.origin.observers.append(lambda fragment: writers.append(threading.current_thread().name))
with stepprof.profile_step(2):
    pass
assert stepprof.state().recorded_steps == (2,)
deadline = time.monotonic() + 30
while not writers and time.monotonic() < deadline:
    time.sleep(0.01)
print(*sorted(set(writers)))
""")
        assert done.check().stdout.split() == ["stepprof"]

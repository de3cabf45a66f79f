"""Test a real ``AsyncLLM`` that follows the windows: the content of the traces, and the messages of
refused calls.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from driven import make_window, on_remote, record
from vllm_driven import Trace
from vllm_tiny import arguments

from stepprof.remote.base import EngineFailure
from stepprof.remote.vllm.driver import VllmDriver, VllmKind
from stepprof.remote.vllm.object_link import ObjectLink

if TYPE_CHECKING:
    from vllm_driven import Live


@pytest.fixture
def driver(live: Live) -> Iterator[VllmDriver]:
    """Return a driver of the shared engine. After the test, any capture is aborted."""
    made = VllmDriver.of_engine(live.engine)
    yield made
    on_remote(made.abort())


def only_trace(window: object, stopped: object) -> Trace:
    """Return the only trace of a capture."""
    (artifact,) = stopped.artifacts  # type: ignore[attr-defined]
    return Trace.of(window, artifact)  # type: ignore[arg-type]


async def _raising() -> None:
    raise RuntimeError("a bad moment")


class TestEngine:
    def test_an_engine_is_recognised_by_its_type(self, live: Live) -> None:
        """The kind recognises the engine by the name of its type, and refuses a URL, a class and
        another object.
        """
        kind = VllmKind()
        assert kind.recognises(live.engine)
        assert not kind.recognises("http://localhost:8000")
        assert not kind.recognises(type(live.engine))
        assert not kind.recognises(object())

    def test_the_driver_knows_the_engines_loop_and_worker(self, live: Live, driver: VllmDriver) -> None:
        """The driver knows the loop of the engine, its one worker, and that this worker is another
        process.
        """
        assert driver.loop is live.loop
        assert driver.workers == 1
        assert not driver.inside
        assert driver.key == f"object:{id(live.engine)}"

    def test_two_steps_are_written_to_two_folders_without_a_restart(
        self, live: Live, driver: VllmDriver, tmp_path: Path
    ) -> None:
        """The folder of each step has the forward steps of its own window, and no others."""
        before = [process.pid for process in live.processes()]
        for step, tokens in ((2, 5), (3, 9)):
            live.generate(3, prompts=2)  # outside the windows: in no trace
            window = make_window(tmp_path, step)
            began = time.time_ns()
            trace = only_trace(window, record(driver, window, lambda tokens=tokens: live.generate(tokens)))
            ended = time.time_ns()
            assert trace.forward == [(3, 0), *[(0, 1)] * (tokens - 1)]
            assert began < trace.within_ns[0] < trace.within_ns[1] < ended
            assert trace.stated == {
                "run_id": "test",
                "step": step,
                "role": "rollout",
                "replica": 0,
                "rank": 0,
            }
            assert [path.name for path in window.output.iterdir()] == ["rank-0.trace.json.gz"]
        assert before == [process.pid for process in live.processes()]

    def test_no_folders_are_left_next_to_the_link(
        self, live: Live, driver: VllmDriver, tmp_path: Path
    ) -> None:
        """Between windows the link leads to the idle folder, and the folders of the windows are removed."""
        record(driver, make_window(tmp_path), lambda: live.generate(2))
        link = Path(live.engine.vllm_config.profiler_config.torch_profiler_dir)
        assert link.readlink() == Path("idle")
        assert {path.name for path in link.parent.iterdir()} == {"current", "idle", ".owner"}

    def test_a_window_over_several_requests_has_all_of_them(
        self, live: Live, driver: VllmDriver, tmp_path: Path
    ) -> None:
        """Concurrent requests share forward steps. The tokens of these steps add up to the requested
        number.
        """
        window = make_window(tmp_path)
        trace = only_trace(window, record(driver, window, lambda: live.generate(4, prompts=3)))
        assert sum(prompt for prompt, _ in trace.forward) == 3 * 3
        assert sum(generated for _, generated in trace.forward) == 3 * 3

    def test_an_idle_engine_gives_a_trace_without_steps(self, driver: VllmDriver, tmp_path: Path) -> None:
        """If nothing ran in the window, the trace has no forward steps. This is not a failure."""
        window = make_window(tmp_path)
        stopped = record(driver, window, lambda: None)
        assert only_trace(window, stopped).forward == []
        assert stopped.partial is None

    def test_a_sleeping_engine_is_recorded_and_reported(
        self, live: Live, driver: VllmDriver, tmp_path: Path
    ) -> None:
        """A sleeping engine is started, because it may wake up in the window. If it does not, the
        entry says why no forward step was recorded.
        """
        live.run(live.engine.sleep(0))
        try:
            stopped = record(driver, make_window(tmp_path), lambda: None)
        finally:
            live.run(live.engine.wake_up())
        assert stopped.partial == "it made no forward step: it is asleep"
        window = make_window(tmp_path, 3)
        assert only_trace(window, record(driver, window, lambda: live.generate(2))).forward == [
            (3, 0),
            (0, 1),
        ]


class TestBounds:
    def test_max_iterations_end_the_capture_before_the_window(
        self, live: Live, driver: VllmDriver, tmp_path: Path
    ) -> None:
        """The engine stops itself after the limit of forward steps. The entry says so, and the next
        window is recorded.
        """
        window = make_window(tmp_path, max_iterations=3)
        stopped = record(driver, window, lambda: live.generate(8))
        assert only_trace(window, stopped).forward == [(3, 0), (0, 1), (0, 1)]
        assert stopped.capped_by == "engine"
        window = make_window(tmp_path, 3)
        stopped = record(driver, window, lambda: live.generate(4))
        assert len(only_trace(window, stopped).forward) == 4
        assert stopped.capped_by is None

    def test_a_limit_that_is_not_reached_has_no_effect(
        self, live: Live, driver: VllmDriver, tmp_path: Path
    ) -> None:
        """A window shorter than the limit is complete."""
        window = make_window(tmp_path, max_iterations=50)
        stopped = record(driver, window, lambda: live.generate(3))
        assert len(only_trace(window, stopped).forward) == 3
        assert stopped.capped_by is None

    def test_delay_iterations_let_steps_pass(self, live: Live, driver: VllmDriver, tmp_path: Path) -> None:
        """A delay of one step leaves out the first forward step; by vLLM's own count it would leave
        out none.
        """
        window = make_window(tmp_path, delay_iterations=1)
        stopped = record(driver, window, lambda: live.generate(5))
        assert only_trace(window, stopped).forward == [(0, 1)] * 4

    def test_delay_and_number_of_steps_hold_together(
        self, live: Live, driver: VllmDriver, tmp_path: Path
    ) -> None:
        """The capture begins after the delay and then lasts for the number of steps."""
        window = make_window(tmp_path, delay_iterations=3, max_iterations=2)
        stopped = record(driver, window, lambda: live.generate(9))
        assert only_trace(window, stopped).forward == [(0, 1)] * 2
        assert stopped.capped_by == "engine"

    def test_a_delay_longer_than_the_window_is_reported(
        self, live: Live, driver: VllmDriver, tmp_path: Path
    ) -> None:
        """A capture that never began has no file. This is not a failure, and the entry is partial
        with the reason.
        """
        stopped = record(driver, make_window(tmp_path, delay_iterations=50), lambda: live.generate(3))
        assert stopped.artifacts == ()
        assert stopped.partial is not None
        assert "fewer than the 50 forward steps of delay_iterations" in stopped.partial


class TestOrder:
    def test_a_capture_of_another_client_is_refused_and_left_alone(
        self, live: Live, driver: VllmDriver, tmp_path: Path
    ) -> None:
        """A capture that the user began makes the window `busy`. The user's own stop still returns
        the file.
        """
        live.run(live.engine.start_profile())
        window = make_window(tmp_path)
        on_remote(driver.arm(window))
        with pytest.raises(EngineFailure, match="another client records the vLLM engine") as caught:
            on_remote(driver.start(window))
        assert caught.value.health == "busy"
        assert not caught.value.owes_stop
        idle = Path(live.engine.vllm_config.profiler_config.torch_profiler_dir).parent / "idle"
        live.generate(2)
        live.run(live.engine.stop_profile())
        left = [path for path in idle.iterdir() if path.name.endswith(".pt.trace.json.gz")]
        assert len(left) == 1
        for path in idle.iterdir():
            path.unlink()

    def test_stop_without_start_is_refused_without_a_call(
        self, live: Live, driver: VllmDriver, tmp_path: Path
    ) -> None:
        """No stop is sent to the engine, because it would end another client's capture."""
        window = make_window(tmp_path)
        on_remote(driver.arm(window))
        live.run(live.engine.start_profile())
        with pytest.raises(EngineFailure, match="stop without start"):
            on_remote(driver.stop(window))
        assert live.engine._profile_session_active
        live.run(live.engine.stop_profile())

    def test_start_without_arm_is_refused_without_a_call(
        self, live: Live, driver: VllmDriver, tmp_path: Path
    ) -> None:
        """A start without an arm is refused, because its folder was not checked."""
        with pytest.raises(EngineFailure, match="start without arm"):
            on_remote(driver.start(make_window(tmp_path)))
        assert not live.engine._profile_session_active

    def test_a_living_drivers_capture_is_left_alone_and_a_dead_ones_stopped(
        self, live: Live, driver: VllmDriver, tmp_path: Path
    ) -> None:
        """While the first driver takes part, the second one gets `busy`. When the first one has
        ended, its capture is stopped, and its trace stays in the engine's folder.
        """
        left = make_window(tmp_path, 2)
        gone = VllmDriver.of_engine(live.engine)
        on_remote(gone.arm(left))
        on_remote(gone.start(left))
        live.generate(2)
        window = make_window(tmp_path, 3)
        on_remote(driver.arm(window))
        with pytest.raises(EngineFailure, match=r"recorded by another driver: run test, step 2") as caught:
            on_remote(driver.start(window))
        assert (caught.value.health, caught.value.owes_stop) == ("busy", False)
        live.generate(3)
        gone.retire()
        trace = only_trace(window, record(driver, window, lambda: live.generate(6)))
        assert len(trace.forward) == 6
        folder = Path(live.engine.vllm_config.profiler_config.torch_profiler_dir).parent
        (path,) = folder.glob("step-2.*/*.pt.trace.json.gz")
        assert len(Trace.left(path).forward) == 5
        shutil.rmtree(path.parent)

    def test_a_failed_stop_is_sent_again(
        self, live: Live, driver: VllmDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The start of the next window first ends the open capture, and moves its trace to the earlier step."""
        window = make_window(tmp_path, 2)
        on_remote(driver.arm(window))
        on_remote(driver.start(window))
        live.generate(4)
        with monkeypatch.context() as patch:
            patch.setattr(live.engine, "stop_profile", _raising)
            with pytest.raises(EngineFailure, match="a bad moment"):
                on_remote(driver.stop(window))
        after = make_window(tmp_path, 3)
        assert len(only_trace(after, record(driver, after, lambda: live.generate(2))).forward) == 2
        assert len(Trace.read(window.output / "rank-0.trace.json.gz").forward) == 4

    def test_an_open_capture_is_kept_at_the_detach(
        self, live: Live, driver: VllmDriver, tmp_path: Path
    ) -> None:
        """`close` ends the open capture within its timeout and keeps its trace."""
        window = make_window(tmp_path, 2)
        on_remote(driver.arm(window))
        on_remote(driver.start(window))
        live.generate(2)
        on_remote(driver.close(60.0, 60.0))
        assert len(Trace.read(window.output / "rank-0.trace.json.gz").forward) == 2
        assert not live.engine._profile_session_active

    def test_the_users_stop_in_the_window_makes_it_partial(
        self, live: Live, driver: VllmDriver, tmp_path: Path
    ) -> None:
        """The trace has the forward steps until the user's stop. The window is partial, and no
        limit is reported as the reason.
        """

        def body() -> None:
            live.generate(3)
            live.run(live.engine.stop_profile())
            live.generate(3)

        window = make_window(tmp_path)
        stopped = record(driver, window, body)
        assert len(only_trace(window, stopped).forward) == 3
        assert (stopped.capped_by, "another process stopped" in str(stopped.partial)) == (None, True)

    def test_the_users_stop_and_start_in_the_window_leave_two_traces(
        self, live: Live, driver: VllmDriver, tmp_path: Path
    ) -> None:
        """Both traces are of the same worker. They are not mistaken for those of two data-parallel
        engines.
        """

        def body() -> None:
            live.generate(3)
            live.run(live.engine.stop_profile())
            live.run(live.engine.start_profile())
            live.generate(4)

        window = make_window(tmp_path)
        stopped = record(driver, window, body)
        assert "stopped the engine's profiler while it recorded, and started it again" in str(stopped.partial)
        traces = [Trace.of(window, artifact) for artifact in stopped.artifacts]
        assert [(trace.stated["rank"], len(trace.forward)) for trace in traces] == [(0, 3), (0, 4)]
        assert [artifact.began_ns is not None for artifact in stopped.artifacts] == [True, True]

    def test_a_start_that_the_user_cancelled_is_busy_until_it_is_stopped(
        self, live: Live, driver: VllmDriver, tmp_path: Path
    ) -> None:
        """vLLM keeps such a start forever, and it looks like a running capture. Only the user may
        stop it: an abort of stepprof does not.
        """

        async def begin_and_give_up() -> None:
            begun = asyncio.ensure_future(live.engine.start_profile())
            await asyncio.sleep(0)
            begun.cancel()
            await asyncio.wait({begun})
            assert begun.cancelled()

        live.run(begin_and_give_up())
        window = make_window(tmp_path)
        on_remote(driver.arm(window))
        with pytest.raises(EngineFailure, match="call its stop_profile once"):
            on_remote(driver.start(window))
        on_remote(driver.abort())
        assert live.engine._profile_session_active
        live.run(live.engine.stop_profile())
        assert only_trace(window, record(driver, window, lambda: live.generate(2))).forward

    def test_an_aborted_window_leaves_no_file(self, live: Live, driver: VllmDriver, tmp_path: Path) -> None:
        """An abort discards the recorded data, and the link leads to the idle folder."""
        window = make_window(tmp_path)
        on_remote(driver.arm(window))
        on_remote(driver.start(window))
        live.generate(2)
        on_remote(driver.abort())
        assert not list(window.output.iterdir())
        link = Path(live.engine.vllm_config.profiler_config.torch_profiler_dir)
        assert link.readlink() == Path("idle")
        assert not list(link.parent.glob("step-*"))

    def test_arm_starts_nothing(self, live: Live, driver: VllmDriver, tmp_path: Path) -> None:
        """Two arm calls, for one window and then for another one, send no call to the engine."""
        on_remote(driver.arm(make_window(tmp_path, 2)))
        on_remote(driver.arm(make_window(tmp_path, 3)))
        assert not live.engine._profile_session_active

    def test_an_engine_never_configured_is_refused_before_anything_is_sent(
        self, live: Live, driver: VllmDriver, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If vLLM was built without a profiler configuration, the message names the missing setting
        and the value to write.
        """
        from vllm import AsyncEngineArgs

        bare = AsyncEngineArgs(**arguments(model)).create_engine_config()
        with monkeypatch.context() as patch:
            patch.setattr(live.engine.vllm_config, "profiler_config", bare.profiler_config)
            with pytest.raises(EngineFailure) as caught:
                on_remote(VllmDriver.of_engine(live.engine, "policy").arm(make_window(tmp_path)))
        assert caught.value.health == "unconfigured"
        reported = str(caught.value)
        assert (
            "the vLLM engine (policy) was built without a profiler that can be recorded: its profiler_config.profiler is None"
            in reported
        )
        assert "AsyncEngineArgs(…, **args), where args = stepprof.remote.vllm.engine_args(folder)" in reported
        window = make_window(tmp_path, 3)
        assert only_trace(window, record(driver, window, lambda: live.generate(2))).forward


class TestSelection:
    def test_unselected_workers_leave_no_file(self, live: Live, driver: VllmDriver, tmp_path: Path) -> None:
        """The engine records all its workers, and only the traces of the selected ones are kept."""
        window = make_window(tmp_path, workers=frozenset({1}))
        stopped = record(driver, window, lambda: live.generate(2))
        assert stopped.artifacts == ()
        assert stopped.partial is None
        assert not list(window.output.iterdir())

    def test_impossible_options_are_reported_once(
        self, live: Live, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Stacks and shapes can only be set when the engine is built. The log reports each such
        option once.
        """
        driver = VllmDriver.of_engine(live.engine)
        for step in (2, 3):
            window = make_window(
                tmp_path, step, with_stack=True, record_shapes=True, by_stage=True, max_iterations=9
            )
            on_remote(driver.arm(window))
        reported = [
            record.getMessage() for record in caplog.records if "engine.limited" in record.getMessage()
        ]
        assert len(reported) == 3
        assert "with_stack = true was requested, but the engine was built without it" in reported[0]


class TestFolders:
    def test_a_link_of_another_engine_is_refused(
        self, live: Live, driver: VllmDriver, tmp_path: Path
    ) -> None:
        """A second engine with the same link is refused before anything is sent, because their
        traces would be mixed up.
        """
        on_remote(driver.arm(make_window(tmp_path)))
        link = ObjectLink(live.engine, "other")
        link.key = "object:1"
        other = VllmDriver(link)
        with pytest.raises(
            EngineFailure, match=r"call stepprof\.remote\.vllm\.engine_args once for each engine"
        ) as caught:
            on_remote(other.arm(make_window(tmp_path)))
        assert caught.value.health == "unconfigured"

    def test_an_engine_without_a_file_is_a_described_failure(
        self, live: Live, driver: VllmDriver, tmp_path: Path
    ) -> None:
        """vLLM's workers hide torch's exception when the folder is missing, so a returned stop is
        no proof. The driver reports the missing trace.
        """
        window = make_window(tmp_path)
        on_remote(driver.arm(window))
        on_remote(driver.start(window))
        link = Path(live.engine.vllm_config.profiler_config.torch_profiler_dir)
        folder = link.parent / link.readlink()
        folder.rmdir()
        live.generate(2)
        with pytest.raises(EngineFailure, match="stopped and left no trace") as caught:
            on_remote(driver.stop(window))
        assert caught.value.health == "ok"
        assert link.readlink() == Path("idle")
        window = make_window(tmp_path, 3)
        assert only_trace(window, record(driver, window, lambda: live.generate(2))).forward

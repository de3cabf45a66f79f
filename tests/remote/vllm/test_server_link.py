"""Answers that the real vLLM server does not give on demand: its failures, and those of other versions.
The real server is recorded in `tests/real/vllm/test_vllm_server.py`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from serving import serving

from remote.vllm.test_driver import STAMP, make_window, write_trace
from stepprof.backends.nsys.reports import ReportLost
from stepprof.remote.base import EngineFailure, EngineWindow
from stepprof.remote.http.client import Client
from stepprof.remote.loop import remote_loop
from stepprof.remote.nsys import ELSEWHERE
from stepprof.remote.vllm.arguments import lay_out
from stepprof.remote.vllm.driver import VllmDriver

READY = {
    "GET /start_profile": 405,
    "GET /health": 200,
    "GET /version": {"version": "0.32.0"},
    "POST /start_profile": 200,
    "POST /stop_profile": 200,
}


@contextmanager
def vllm(**changed: Any) -> Iterator[tuple[SimpleNamespace, VllmDriver]]:
    """Yield a server that answers like vLLM, except for the changed routes, and its driver. Routes are
    written ``POST_stop_profile``.
    """
    routes = {name.replace("_", " /", 1): answer for name, answer in changed.items()}
    with serving({**READY, **routes}) as server:
        yield server, VllmDriver.of_server(Client(server.url))


def run(work: Any) -> Any:
    """Wait for a coroutine on stepprof's own loop."""
    return remote_loop().submit(work).result(20)


def refusal(work: Any) -> EngineFailure:
    """Return the failure of a coroutine."""
    with pytest.raises(EngineFailure) as caught:
        run(work)
    return caught.value


def entries(window: EngineWindow) -> list[dict[str, Any]]:
    """Return the entries of a window's engines in the manifest."""
    (path,) = (window.folder / "manifest").iterdir()
    reported: list[dict[str, Any]] = json.loads(path.read_text())["engines"]
    return reported


def posts(server: SimpleNamespace) -> list[str]:
    """Return the starts and stops that were sent."""
    return [asked.path for asked in server.asked if asked.method == "POST"]


def started(server: SimpleNamespace) -> Any:
    """Return the body of the start that was sent. The server's metrics are requested at the same time."""
    return next(
        asked.json for asked in server.asked if asked.path == "/start_profile" and asked.method == "POST"
    )


@pytest.fixture
def window(tmp_path: Path) -> EngineWindow:
    """Return a window whose engine writes to an unknown folder."""
    return make_window(tmp_path)


@pytest.fixture
def shared(tmp_path: Path) -> Callable[..., EngineWindow]:
    """Return a function that makes windows whose engine writes to one folder with a link."""
    link = lay_out(tmp_path / "traces")

    def made(**options: Any) -> EngineWindow:
        return make_window(tmp_path, trace_dir=link.parent, **options)

    return made


class TestArm:
    def test_a_dead_engine_behind_a_living_server(self, window: EngineWindow) -> None:
        """A server whose health is 503 has a dead engine, and gets no start."""
        with vllm(GET_health=(503, "EngineDeadError")) as (server, driver):
            error = refusal(driver.arm(window))
            assert error.health == "dead"
            assert "EngineDeadError" in str(error)
            assert not posts(server)

    def test_something_else_that_answers(self, window: EngineWindow) -> None:
        """vLLM answers GET /start_profile only with 404 or 405. If the answer is 500, the engine is
        unreachable.
        """
        with vllm(GET_start_profile=(500, "a proxy")) as (_, driver):
            error = refusal(driver.arm(window))
            assert error.health == "unreachable"
            assert "answered 500 to GET /start_profile: a proxy" in str(error)

    def test_a_proxy_that_wants_a_key(self, window: EngineWindow) -> None:
        """If the server answers 401, the failure names the option `api_key`."""
        with vllm(GET_start_profile=401) as (_, driver):
            assert "pass attach(…, api_key=…)" in str(refusal(driver.arm(window)))

    def test_an_older_server_takes_no_bounds(self, tmp_path: Path) -> None:
        """Before 0.32 a limit belongs to the server's command line, so a limit for a window is refused.
        Without one the start is sent.
        """
        with vllm(GET_version={"version": "0.31.0"}) as (server, driver):
            error = refusal(driver.arm(make_window(tmp_path, max_iterations=3)))
            assert error.health == "unconfigured"
            assert "this one does not report its arguments" in str(error)
            run(driver.arm(make_window(tmp_path)))
            run(driver.start(make_window(tmp_path)))
            assert started(server) == {}

    @pytest.mark.parametrize(
        "reported",
        [
            [],
            {"vllm_config": []},
            {"vllm_config": {"profiler_config": [{}]}},
            *(
                {"vllm_config": {"profiler_config": {"profiler": "torch", key: value}}}
                for key in ("torch_profiler_dir", "torch_profiler_activities", "max_iterations")
                for value in ([7], [["x"]], {"a": 1}, "\0")
            ),
            {"vllm_config": {"profiler_config": {"profiler": 7}}},
        ],
    )
    def test_settings_of_a_wrong_type(self, tmp_path: Path, reported: Any) -> None:
        """Settings of a wrong type in the server's answer do not make the arm fail."""
        with serving({**READY, "GET /server_info?config_format=json": reported}) as server:
            run(VllmDriver.of_server(Client(server.url)).arm(make_window(tmp_path)))

    @pytest.mark.parametrize("folder", ["x" * 300, "x/" * 3000])
    def test_a_folder_that_cannot_be(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
    ) -> None:
        """If the server names an impossible folder, it is refused with the reason."""
        monkeypatch.chdir(tmp_path)
        config = {"vllm_config": {"profiler_config": {"profiler": "torch", "torch_profiler_dir": folder}}}
        with serving({**READY, "GET /server_info?config_format=json": config}) as server:
            error = refusal(VllmDriver.of_server(Client(server.url)).arm(make_window(tmp_path)))
        assert error.health == "unconfigured"
        assert "File name too long" in str(error)

    @pytest.mark.parametrize("version", ["9" * 5000 + ".1", 7, None, [], {"a": 1}])
    def test_an_invalid_version(self, tmp_path: Path, version: Any) -> None:
        """If the version is invalid, the server's description decides which parameters its start accepts."""
        with vllm(GET_version={"version": version}) as (server, driver):
            run(driver.arm(make_window(tmp_path)))
        assert "/openapi.json" in [asked.path for asked in server.asked]

    def test_an_unknown_version_reports_its_parameters(self, tmp_path: Path) -> None:
        """If the version is unknown, the server's description decides which parameters its start accepts."""
        described = '{"StartProfileRequest": {"properties": {"profile_prefix": {}, "max_iterations": {}}}}'
        with vllm(**{"GET_version": {"version": "0.1.dev1+gabc"}, "GET_openapi.json": (200, described)}) as (
            server,
            driver,
        ):
            window = make_window(tmp_path, max_iterations=3)
            run(driver.arm(window))
            run(driver.start(window))
            body = started(server)
            assert body["max_iterations"] == 3
            assert set(body) == {"max_iterations", "profile_prefix"}

    def test_a_server_that_would_crash_is_refused(self, window: EngineWindow) -> None:
        """A server that reports `ignore_frontend = false` would crash, so it is refused and gets no start."""
        reported = {"vllm_config": {"profiler_config": {"profiler": "torch", "ignore_frontend": False}}}
        with vllm(**{"GET_server_info?config_format=json": reported}) as (server, driver):
            error = refusal(driver.arm(window))
            assert error.health == "unconfigured"
            assert "ignore_frontend=true" in str(error)
            assert not posts(server)

    def test_a_server_that_may_crash_is_warned_about_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A server that does not report its settings may crash, which is logged once."""
        with vllm() as (_, driver):
            for _ in range(2):
                run(driver.arm(make_window(tmp_path, trace_dir=tmp_path / "plain")))
        reported = [line for line in caplog.messages if "ignore_frontend=true can crash" in line]
        assert len(reported) == 1


class TestStart:
    def test_another_living_driver_has_it(self, shared: Callable[..., EngineWindow]) -> None:
        """While the first driver records, the second is refused, and the failure names the first one.
        After an abort the second driver records.
        """
        with vllm() as (server, driver):
            run(driver.arm(shared()))
            run(driver.start(shared()))
            again, window = VllmDriver.of_server(Client(server.url)), shared(step=3)
            run(again.arm(window))
            error = refusal(again.start(window))
            assert error.health == "busy"
            assert f"step 2, rollout (process {os.getpid()} on" in str(error)
            assert posts(server) == ["/start_profile"]
            run(driver.abort())
            run(again.start(window))
            run(again.abort())
            assert posts(server) == ["/start_profile", "/stop_profile"] * 2

    @pytest.mark.parametrize("folder", [True, False])
    def test_a_dead_drivers_capture_is_stopped_first(
        self, shared: Callable[..., EngineWindow], window: EngineWindow, folder: bool
    ) -> None:
        """The next driver stops a dead driver's capture before its own start. The files of the capture stay where they are."""
        with vllm() as (server, driver):
            first, second = (shared(), shared(step=3)) if folder else (window, window)
            run(driver.arm(first))
            run(driver.start(first))
            if first.trace_dir is not None:
                left = (first.trace_dir / "current").resolve() / f"rank0.{STAMP}.pt.trace.json.gz"
                write_trace(left)
            driver.retire()
            again = VllmDriver.of_server(Client(server.url))
            run(again.arm(second))
            run(again.start(second))
            assert posts(server) == ["/start_profile", "/stop_profile", "/start_profile"]
            assert "has left the engine" in str(refusal(driver.stop(first)))  # late, and no longer its own
            run(driver.abort())
            assert posts(server) == ["/start_profile", "/stop_profile", "/start_profile"]
            run(again.abort())
            assert not (first.folder / "manifest").exists()
            assert first.trace_dir is None or left.exists()

    @pytest.mark.parametrize(
        ("answer", "health", "owes", "words"),
        [
            ((409, "active"), "busy", False, "send POST http"),
            ((404, ""), "unconfigured", False, "serve_args(folder)"),
            ((400, "a bad prefix"), "unknown", False, "a bad prefix"),
            ((500, "boom"), "unknown", True, "answered 500 to POST /start_profile: boom"),
            ((500, "EngineDeadError"), "dead", False, "is dead"),
        ],
    )
    def test_each_refusal_has_its_message(
        self, answer: Any, health: str, owes: bool, words: str, shared: Callable[..., EngineWindow]
    ) -> None:
        """Each refusal has its own message and health. If the start may have begun, an abort sends the
        stop. Otherwise the link stays idle.
        """
        with vllm(POST_start_profile=answer) as (server, driver):
            window = shared()
            run(driver.arm(window))
            error = refusal(driver.start(window))
            assert (error.health, error.owes_stop) == (health, owes)
            assert words in str(error)
            assert window.trace_dir is not None
            idle = (window.trace_dir / "current").readlink() == Path("idle")
            assert idle is not owes
            if owes:
                run(driver.abort())
                assert posts(server)[-1] == "/stop_profile"
                assert (window.trace_dir / "current").readlink() == Path("idle")

    def test_a_start_whose_answer_is_lost_must_be_stopped(self, window: EngineWindow) -> None:
        """A start without an answer may have begun, so a stop must follow."""

        def lost(handler: Any) -> None:
            handler.close_connection = True
            handler.connection.close()

        with vllm(POST_start_profile=lost) as (_, driver):
            run(driver.arm(window))
            assert refusal(driver.start(window)).owes_stop


class TestStop:
    def test_files_written_at_the_limit_are_kept(self, shared: Callable[..., EngineWindow]) -> None:
        """The stop fails, but the trace is already there: it is kept, and the result is partial."""
        with vllm(POST_stop_profile=(500, "EngineDeadError")) as (_, driver):
            window = shared(max_iterations=2)
            run(driver.arm(window))
            run(driver.start(window))
            assert window.trace_dir is not None
            write_trace(window.trace_dir / "current" / f"rank0.{STAMP}.pt.trace.json.gz")
            stopped = run(driver.stop(window))
            assert len(stopped.artifacts) == 1
            assert "is dead" in stopped.partial

    def test_a_stop_that_failed_is_sent_again_before_the_next_start(
        self, shared: Callable[..., EngineWindow]
    ) -> None:
        """After a failed stop the server may still record, so the stop is sent again before the next
        start.
        """
        answers = iter([(500, "a bad moment"), 200])
        with vllm(POST_stop_profile=lambda _: next(answers)) as (server, driver):
            window = shared()
            run(driver.arm(window))
            run(driver.start(window))
            assert "a bad moment" in str(refusal(driver.stop(window)))
            run(driver.start(window))
            assert posts(server) == ["/start_profile", "/stop_profile", "/stop_profile", "/start_profile"]

    def test_a_close_while_a_stop_is_pending(
        self, shared: Callable[..., EngineWindow], caplog: pytest.LogCaptureFixture
    ) -> None:
        """`close` waits for a pending stop and sends no second one, so the stop finds its files."""
        release = threading.Event()

        def stop(_: Any) -> int:
            assert release.wait(20)
            write_trace(window.trace_dir / "current" / f"rank0.{STAMP}.pt.trace.json.gz")
            return 200

        with vllm(POST_stop_profile=stop) as (server, driver):
            window = shared()
            run(driver.arm(window))
            run(driver.start(window))
            stopping = remote_loop().submit(driver.stop(window))
            while len(posts(server)) < 2:
                time.sleep(0.01)
            run(driver.close(1.0, 0.3))
            release.set()
            stopped = stopping.result(20)
            run(driver.close(1.0, 5.0))
            assert posts(server) == ["/start_profile", "/stop_profile"]
        assert len(stopped.artifacts) == 1
        assert "capture.recovered" not in caplog.text

    def test_without_a_folder_only_the_failure_is_reported(self, window: EngineWindow) -> None:
        """If the folder is unknown, the failed stop has no files and is raised."""
        with vllm(POST_stop_profile=(500, "boom")) as (_, driver):
            run(driver.arm(window))
            run(driver.start(window))
            assert "boom" in str(refusal(driver.stop(window)))

    def test_a_refused_abort_is_reported(self, window: EngineWindow) -> None:
        """An abort that the server answers with 404 is accepted; one that fails with 500 raises. Before a
        start nothing is sent.
        """
        for answer in (404, (500, "boom")):
            with vllm(POST_stop_profile=answer) as (server, driver):
                run(driver.abort())
                assert not posts(server)  # this driver has started no capture
                run(driver.arm(window))
                run(driver.start(window))
                if answer == 404:
                    run(driver.abort())
                else:
                    assert "boom" in str(refusal(driver.abort()))
                driver.retire()

    def test_a_local_servers_clock_is_this_hosts(self, window: EngineWindow) -> None:
        """A server on this host has the same clock, so its offset is 0."""
        with vllm() as (_, driver):
            run(driver.arm(window))
            assert run(driver.clock()).offset_ns == 0


class TestNsys:
    """The role's backend is nsys: the server marks its range, and its own command line defines where the
    report is.
    """

    def test_a_window(self, shared: Callable[..., EngineWindow]) -> None:
        """The server gets a start and a stop. Its process runs without nsys, so the late report is lost."""
        with vllm() as (server, driver):
            window = shared(backend="nsys")
            run(driver.arm(window))
            run(driver.start(window))
            stopped = run(driver.stop(window))
            assert posts(server) == ["/start_profile", "/stop_profile"]
        assert (stopped.artifacts, stopped.partial) == ((), None)
        with pytest.raises(ReportLost, match="the engine was not started under nsys"):
            run(stopped.later.wait())

    def test_a_server_whose_process_cannot_be_inspected(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the server's process cannot be inspected and no folder is given, the result is partial."""
        monkeypatch.setattr("stepprof.remote.nsys_server.listener", lambda port: None)
        with vllm() as (_, driver):
            window = make_window(tmp_path, backend="nsys")
            run(driver.arm(window))
            run(driver.start(window))
            assert run(driver.stop(window)).partial == ELSEWHERE

    def test_a_stop_that_failed(self, tmp_path: Path) -> None:
        """A failed stop is sent again before the next start. After an abort there is no capture to stop."""
        answers = iter([(500, "a bad moment"), 200, 200])
        with vllm(POST_stop_profile=lambda _: next(answers)) as (server, driver):
            window = make_window(tmp_path, backend="nsys")
            run(driver.arm(window))
            run(driver.start(window))
            assert "a bad moment" in str(refusal(driver.stop(window)))
            run(driver.start(window))
            assert posts(server) == ["/start_profile", "/stop_profile", "/stop_profile", "/start_profile"]
            run(driver.abort())
            assert "stop without start" in str(refusal(driver.stop(window)))

    @pytest.mark.parametrize(("backend", "started_for"), [("nsys", "torch"), ("torch", "cuda")])
    def test_a_server_started_for_another_profiler_is_refused(
        self, tmp_path: Path, backend: str, started_for: str
    ) -> None:
        """If the server reports that it was started for another profiler, the arm is refused and nothing
        is sent.
        """
        reported = {"vllm_config": {"profiler_config": {"profiler": started_for, "ignore_frontend": True}}}
        with vllm(**{"GET_server_info?config_format=json": reported}) as (server, driver):
            error = refusal(driver.arm(make_window(tmp_path, backend=backend)))
            assert error.health == "unconfigured"
            assert f'was started with profiler "{started_for}"' in str(error)
            assert posts(server) == []

    def test_memory_is_refused(self, tmp_path: Path) -> None:
        """A vLLM server cannot record memory. The arm is refused, because the kind of server is unknown
        before, and nothing is sent.
        """
        with vllm() as (server, driver):
            error = refusal(driver.arm(make_window(tmp_path, backend="memory")))
            assert error.health == "unconfigured"
            assert "a vLLM engine cannot record with it (one of: torch, npu, nsys)" in str(error)
            assert posts(server) == []

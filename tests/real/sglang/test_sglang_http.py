"""Test a real SGLang server that follows the windows, and simulated servers with other answers."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sglang_tiny
from driven import (
    begin,
    clock_by_calls,
    end_beside_a_stopped_engine,
    make_window,
    on_remote,
    read_entries,
    record,
    running,
)
from holding import check_late, holding, reported, working_on
from serving import serving
from sglang_driven import Trace, described, forward_steps
from sglang_server import ADMIN_KEY, KEY, Server

import stepprof
from stepprof.cli.main import main
from stepprof.remote.base import EngineFailure
from stepprof.remote.http.kind import Client
from stepprof.remote.sglang.driver import SglangDriver

FILE = "rollout/replica-0/rank-0.trace.json.gz"
STEPS = forward_steps(3)

SAYS = {
    "version": "0.5.23",
    "device": "cpu",
    "tp_size": 1,
    "model_path": "a/model",
    "internal_states": [],
    "sleep_on_idle": True,
}
TAKES = (
    "output_dir",
    "num_steps",
    "activities",
    "with_stack",
    "record_shapes",
    "profile_by_stage",
    "profile_id",
)


def schema(fields: tuple[str, ...] = TAKES, name: str = "ProfileReq") -> dict[str, Any]:
    """Return the server's description of the arguments of its start."""
    return {"components": {"schemas": {name: {"properties": {key: {} for key in fields}}}}}


def replies(**more: Any) -> dict[str, tuple[int, Any]]:
    """Return the replies of a server that answers as SGLang does."""
    return {
        "GET /server_info": (200, {**SAYS, **more}),
        "GET /openapi.json": (200, schema()),
        "GET /health": (200, {}),
        "POST /start_profile": (200, "Start profiling."),
        "POST /stop_profile": (200, "Stop profiling."),
    }


@pytest.fixture(scope="module")
def server(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return the server for all tests that do not change it."""
    made = Server(model, tmp_path_factory.mktemp("server") / "log")
    try:
        made.wait()
        yield made
    finally:
        made.close()


@pytest.fixture
def driver(server: Server) -> SglangDriver:
    """Return a driver with the server's keys."""
    return SglangDriver.of_server(Client(server.url, KEY, ADMIN_KEY))


def posted(server: SimpleNamespace) -> list[str]:
    """Return the requests that changed the state of the server."""
    return [each.path for each in server.asked if each.method == "POST"]


def failure(work: Any) -> EngineFailure:
    """Return the failure of a call."""
    with pytest.raises(EngineFailure) as caught:
        on_remote(work)
    return caught.value


class TestServer:
    def test_two_steps_are_written_to_two_folders(
        self, server: Server, driver: SglangDriver, tmp_path: Path
    ) -> None:
        """The folder of each step has the forward steps of its own window."""
        for step in (2, 3):
            window = make_window(tmp_path, step)
            brought = described(window, record(driver, window, lambda: server.generate(3)))
            assert {path: trace["forward"] for path, trace in brought["traces"].items()} == {FILE: STEPS}
            assert brought["traces"][FILE]["stated"]["step"] == step
            assert not brought["traces"][FILE]["stacks"]
            assert brought["left"] == ["rank-0.trace.json.gz"]
        assert (driver.kind, driver.name, driver.workers) == ("sglang", server.url, 1)

    def test_ends_by_itself(self, server: Server, driver: SglangDriver, tmp_path: Path) -> None:
        """A server whose capture has ended answers the stop with a bare 500. The driver reads the
        result from its files.
        """
        window = make_window(tmp_path, max_iterations=2)
        brought = described(window, record(driver, window, lambda: server.generate(5)))
        assert brought["traces"][FILE]["forward"] == STEPS[:2]
        assert (brought["capped_by"], brought["partial"]) == ("engine", None)

    def test_stop_without_a_capture(self, server: Server, driver: SglangDriver, tmp_path: Path) -> None:
        """Another client stops the capture and removes the file. The driver reports the 500 as a
        failure with that reason.
        """
        window = make_window(tmp_path)
        on_remote(driver.arm(window))
        on_remote(driver.start(window))
        server.ask("POST", "/stop_profile", key=ADMIN_KEY)
        for path in window.output.iterdir():
            path.unlink()
        refused = failure(driver.stop(window))
        assert "was not recording" in str(refused)
        assert refused.health == "ok"

    @pytest.mark.parametrize("keys", [(), (KEY,)])
    def test_missing_keys_are_named_and_not_shown(
        self, server: Server, tmp_path: Path, keys: tuple[str, ...]
    ) -> None:
        """Without a key the server answers nothing, and without the admin key it refuses a start.
        The error names the missing admin key and does not show the user's key.
        """
        driver = SglangDriver.of_server(Client(server.url, *keys))
        window = make_window(tmp_path)

        async def arm_and_start() -> None:
            await driver.arm(window)
            await driver.start(window)

        refused = failure(arm_and_start())
        assert refused.health == "unconfigured"
        assert "admin_key=…" in str(refused)
        assert KEY not in str(refused)

    def test_folder_that_cannot_be_made(self, server: Server, driver: SglangDriver, tmp_path: Path) -> None:
        """The arm call refuses the folder, and the server keeps running."""
        (tmp_path / "file").write_text("in the way")
        refused = failure(driver.arm(make_window(tmp_path, trace_dir=tmp_path / "file")))
        assert "cannot be written" in str(refused)
        server.generate(1)

    def test_files_come_from_the_folder_that_both_see(
        self, server: Server, driver: SglangDriver, tmp_path: Path
    ) -> None:
        """The trace is moved from the folder that both processes see, and only the file that names the holder remains there, empty."""
        window = make_window(tmp_path / "run", trace_dir=tmp_path / "shared")
        brought = described(window, record(driver, window, lambda: server.generate(3)))
        assert brought["traces"][FILE]["forward"] == STEPS
        (holder,) = (tmp_path / "shared").iterdir()
        assert (holder.suffix, holder.read_text()) == (".holder", "")

    def test_a_step_ends_after_the_server_has_written(self, server: Server, tmp_path: Path) -> None:
        """The step continues while the server writes its trace, and is complete after that."""
        begin(tmp_path, steps="2")
        try:
            stepprof.attach(server.url, role="rollout", api_key=KEY, admin_key=ADMIN_KEY)
            with stepprof.profile_step(2):
                with stepprof.profile_step(2, role="rollout"):
                    server.generate(3)
                (pending,) = read_entries(tmp_path)
            is_there = (tmp_path / "run" / "step-000002" / "rollout/replica-0/rank-0.trace.json.gz").is_file()
        finally:
            stepprof.shutdown()
        (entry,) = read_entries(tmp_path)
        assert (pending["pending"], is_there) == (True, True)
        assert (entry["status"], entry["error"], entry["pending"]) == ("complete", None, False)
        assert Trace.named(tmp_path, entry["artifacts"][0]).forward == STEPS

    def test_clock(self, driver: SglangDriver, tmp_path: Path) -> None:
        """The clock of the server is that of this host."""
        on_remote(driver.arm(make_window(tmp_path)))
        clock = on_remote(driver.clock())
        assert (clock.offset_ns, clock.method) == (0, "same-host")

    def test_the_clock_that_its_trace_shows(
        self, server: Server, driver: SglangDriver, tmp_path: Path
    ) -> None:
        """The start, the stop and the trace bound the clock of a server: here it is that of this host."""
        clock = clock_by_calls(driver, make_window(tmp_path), lambda: server.generate(3))
        assert clock is not None
        assert abs(clock.offset_ns) <= clock.error_ns


class TestAnswers:
    def test_a_server_that_is_down(self, tmp_path: Path) -> None:
        """If no server listens at the address, the arm call fails as `unreachable`."""
        with serving({}) as gone:
            pass
        refused = failure(SglangDriver.of_server(Client(gone.url)).arm(make_window(tmp_path)))
        assert refused.health == "unreachable"

    def test_second_start_is_not_sent(self, tmp_path: Path) -> None:
        """The server receives one start with a value for every option that has a default, and one
        stop.
        """
        with serving(replies()) as server:
            driver, window = SglangDriver.of_server(Client(server.url)), make_window(tmp_path)
            on_remote(driver.arm(window))
            on_remote(driver.start(window))
            assert failure(driver.start(make_window(tmp_path, 3))).health == "busy"
            refused = failure(driver.stop(window))
            posts = [each for each in server.asked if each.method == "POST"]
        assert [each.path for each in posts] == ["/start_profile", "/stop_profile"]
        assert posts[0].json == {
            "output_dir": str(window.output),
            "activities": ["CPU"],
            "with_stack": False,
            "record_shapes": False,
            "profile_by_stage": False,
            "profile_id": "rollout-replica-0",
            "num_steps": 32,
        }
        assert "there is no trace in" in str(refused)

    def test_older_server(self, tmp_path: Path) -> None:
        """An older server has its information at another path and another name of the request. Its
        limit ends one step early, so it gets one more.
        """
        answers = {
            **replies(),
            "GET /server_info": (404, {}),
            "GET /get_server_info": (200, {**SAYS, "version": "0.5.3"}),
            "GET /openapi.json": (200, schema(TAKES[:-1], "ProfileReqInput")),
        }
        with serving(answers) as server:
            driver, window = (
                SglangDriver.of_server(Client(server.url)),
                make_window(tmp_path, max_iterations=4),
            )
            on_remote(driver.arm(window))
            on_remote(driver.start(window))
        (body,) = [each.json for each in server.asked if each.method == "POST"]
        assert body["num_steps"] == 5
        assert "profile_id" not in body

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"model_path": "/not/here"}, "in a container, or behind a tunnel"),
            ({"device": "cuda"}, None),
        ],
    )
    def test_folder_is_only_named_where_it_is_the_same(
        self, tmp_path: Path, changes: dict[str, Any], message: str | None
    ) -> None:
        """A folder that the server cannot see would end its process, so it is refused. With a
        `trace_dir`, the driver assumes that both see the folder.
        """
        with serving(replies(**changes)) as server:
            driver = SglangDriver.of_server(Client(server.url))
            if message is None:
                on_remote(driver.arm(make_window(tmp_path)))
                return
            assert message in str(failure(driver.arm(make_window(tmp_path))))
            on_remote(driver.arm(make_window(tmp_path, trace_dir=tmp_path)))

    @pytest.mark.parametrize(
        ("path", "answer", "health", "message"),
        [
            ("GET /server_info", (503, "busy"), "unreachable", "503"),
            ("GET /server_info", (200, ["what?"]), "unreachable", "is not an SGLang server"),
            ("GET /openapi.json", (404, {}), "unconfigured", "does not list the arguments of its start"),
        ],
    )
    def test_refused_at_arm(
        self, tmp_path: Path, path: str, answer: tuple[int, Any], health: str, message: str
    ) -> None:
        """Unusual answers of a server are reported before any start is sent."""
        with serving({**replies(), path: answer}) as server:
            refused = failure(SglangDriver.of_server(Client(server.url)).arm(make_window(tmp_path)))
        assert (refused.health, message in str(refused)) == (health, True)
        assert all(each.method == "GET" for each in server.asked)

    def test_start_is_refused(self, tmp_path: Path) -> None:
        """After a refused start no stop is pending, and the next window can be armed."""
        with serving({**replies(), "POST /start_profile": (500, "Internal Server Error")}) as server:
            driver, window = SglangDriver.of_server(Client(server.url)), make_window(tmp_path)
            on_remote(driver.arm(window))
            refused = failure(driver.start(window))
            assert (refused.owes_stop, "500" in str(refused)) == (False, True)
            on_remote(driver.abort())
            on_remote(driver.arm(make_window(tmp_path, 3)))
        assert posted(server) == ["/start_profile"]

    def test_start_that_is_not_answered_is_stopped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without an answer it is unknown whether the server records. The driver sends the pending
        stop once.
        """
        monkeypatch.setattr("stepprof.remote.sglang.server_link.START_SECONDS", 0.3)
        slow = {**replies(), "POST /start_profile": lambda _: time.sleep(1) or "at last"}
        with serving(slow) as server:
            driver, window = SglangDriver.of_server(Client(server.url)), make_window(tmp_path)
            on_remote(driver.arm(window))
            assert failure(driver.start(window)).owes_stop
            on_remote(driver.abort())
            on_remote(driver.abort())
        assert posted(server) == ["/start_profile", "/stop_profile"]


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[None]:
    """Start a session in which the rollouts of steps 2 and 3 are recorded."""
    begin(tmp_path)
    yield
    stepprof.shutdown()


JOB = """
import os, signal, sys, time
from pathlib import Path
import stepprof, stepprof.recording.exit_handlers
from driven import begin

url, key, admin_key, how = sys.argv[1:]
signal.signal(signal.SIGTERM, signal.SIG_DFL)  # coverage has a handler of its own
stepprof.recording.exit_handlers.SIGTERM_SECONDS = 60.0  # others use both cores
begin(Path.cwd(), steps="2")
stepprof.attach(url, role="rollout", api_key=key, admin_key=admin_key)
window = stepprof.profile_step(2, role="rollout").start()
print("recording", flush=True)
sys.stdin.readline()
if how != "exit":
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(60)
sys.exit(3)
"""


class TestEndOfTheJob:
    @pytest.mark.parametrize(
        ("how", "status"),
        [("exit", 3), ("SIGTERM", -signal.SIGTERM), ("SIGKILL", -signal.SIGKILL)],
    )
    def test_a_job_that_ends_while_its_engine_records(
        self, server: Server, tmp_path: Path, how: str, status: int
    ) -> None:
        """The engine is stopped and its trace is kept as partial. After SIGKILL the next job stops it, before its own first window."""
        arguments = [sys.executable, "-c", JOB, server.url, KEY, ADMIN_KEY, how]
        with subprocess.Popen(
            arguments,
            cwd=tmp_path,
            env={**os.environ, **sglang_tiny.variables()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as job:
            assert job.stdin is not None
            assert job.stdout is not None
            assert job.stdout.readline() == "recording\n"
            server.generate(3)
            job.communicate("\n", timeout=90)
        assert job.returncode == status
        (entry,) = read_entries(tmp_path)
        if how == "SIGKILL":
            assert (entry["status"], entry["artifacts"]) == ("lost", [])
            window = make_window(tmp_path / "next")
            driver = SglangDriver.of_server(Client(server.url, KEY, ADMIN_KEY))
            brought = described(window, record(driver, window, lambda: server.generate(3)))
            assert (
                brought["traces"][FILE]["forward"] == STEPS
            )  # all of the next job's, and none of this job's
            return
        assert (entry["status"], entry["health"]) == ("partial", "ok")
        (artifact,) = entry["artifacts"]
        assert Trace.read(tmp_path / "run" / "step-000002" / artifact["path"]).forward == STEPS

    def test_a_job_that_ends_while_its_engine_is_stopped(
        self, server: Server, driver: SglangDriver, tmp_path: Path
    ) -> None:
        """The exit of the interpreter takes at most the timeout of a stop, and one log line names
        the reason of the wait. The next driver stops the capture, and records only its own forward steps.
        """
        end_beside_a_stopped_engine(
            server.url, tmp_path, server.scheduler(), lambda: server.generate(3),
            env=sglang_tiny.variables(), api_key=KEY, admin_key=ADMIN_KEY,
        )  # fmt: skip
        window = make_window(tmp_path / "next")
        brought = described(window, record(driver, window, lambda: server.generate(3)))
        assert brought["traces"][FILE]["forward"] == STEPS


class TestOthers:
    @pytest.mark.usefixtures("recording")
    def test_the_users_own_profile_is_left_alone(self, server: Server, tmp_path: Path) -> None:
        """The window fails as `busy`. The user's stop works, and the user's file has all of its
        forward steps.
        """
        plain = {"activities": ["CPU"], "with_stack": False, "record_shapes": False, "profile_id": "user"}
        asked = {**plain, "output_dir": str(tmp_path / "user")}
        server.ask("POST", "/start_profile", asked, key=ADMIN_KEY)
        stepprof.attach(server.url, role="rollout", api_key=KEY, admin_key=ADMIN_KEY)
        with stepprof.profile_step(2, role="rollout"):
            server.generate(3)
        server.ask("POST", "/stop_profile", key=ADMIN_KEY)
        with stepprof.profile_step(3, role="rollout"):
            server.generate(3)
        stepprof.shutdown()
        statuses = [
            (entry["status"], entry["health"]) for step in (2, 3) for entry in read_entries(tmp_path, step)
        ]
        assert statuses == [("failed", "busy"), ("complete", "ok")]
        (path,) = (tmp_path / "user").iterdir()
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        assert sum(event["name"].startswith("step[") for event in events) == len(STEPS)

    def test_a_trace_of_its_own_profiler(
        self, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """No run of stepprof exists: a report has the forward steps and the time of each stage, as
        the JSON has them. `check` and `merge` take the folder too.
        """
        asked = {"activities": ["CPU"], "with_stack": False, "output_dir": str(tmp_path / "own")}
        server.ask("POST", "/start_profile", asked, key=ADMIN_KEY)
        server.generate(4)
        server.ask("POST", "/stop_profile", key=ADMIN_KEY)
        (path,) = (tmp_path / "own").iterdir()
        trace = Trace.left(path)
        assert trace.forward == forward_steps(4)
        out = tmp_path / "out.json"
        assert main(["report", str(path.parent), "--json", str(out)]) == 0
        (engine,) = json.loads(out.read_bytes())["engines"]
        stages = {stage["stage"]: stage for stage in engine["stages"]}
        assert {name: stage["iterations"] for name, stage in stages.items()} == {"prefill": 1, "decode": 3}
        first, last = trace.spans[0], trace.spans[-1]
        length = (float(last["ts"]) + last["dur"] - float(first["ts"])) / 1e6
        total = sum(stage["seconds"] for stage in stages.values())
        steps = sum(each["dur"] for each in trace.spans) / 1e6
        assert steps - 1e-5 <= total <= length + 1e-5
        for command in ("check", "merge"):
            assert main([command, str(path.parent)]) == 0

    def test_another_job_records_it(self, server: Server, tmp_path: Path) -> None:
        """The capture of the other job is complete, and the error of this window names that job."""
        arguments = (server.url, KEY, ADMIN_KEY, "exit")
        with running(JOB, *arguments, cwd=tmp_path, env=sglang_tiny.variables()) as job:
            driver, window = (
                SglangDriver.of_server(Client(server.url, KEY, ADMIN_KEY)),
                make_window(tmp_path / "next"),
            )
            on_remote(driver.arm(window))
            refused = failure(driver.start(window))
            assert refused.health == "busy"
            assert f"run run, step 2, rollout (process {job.pid} on" in str(refused)
            server.generate(3)
            job.communicate("\n", timeout=90)
        (entry,) = read_entries(tmp_path)
        assert Trace.read(tmp_path / "run" / "step-000002" / entry["artifacts"][0]["path"]).forward == STEPS


class TestRecorded:
    @pytest.mark.usefixtures("recording")
    def test_router_and_a_dead_replica(self, server: Server, tmp_path: Path) -> None:
        """A router is replaced by its workers, which get its keys. One of the two workers is dead,
        and the other records.
        """
        listed = {"workers": [{"url": server.url, "is_healthy": True}, {"url": "http://127.0.0.1:9"}]}
        with serving({"GET /workers": listed}) as router:
            stepprof.attach(router.url, role="rollout", api_key=KEY, admin_key=ADMIN_KEY, workers="127.0.0.1")
            for step in (1, 2):
                with stepprof.profile_step(step, role="rollout"):
                    server.generate(3)
            stepprof.shutdown()
            assert all(each.method == "GET" for each in router.asked)
        alive, dead = read_entries(tmp_path)
        assert (alive["status"], alive["kind"], alive["name"]) == ("complete", "sglang", server.url)
        (artifact,) = alive["artifacts"]
        assert Trace.read(tmp_path / "run" / "step-000002" / artifact["path"]).forward == STEPS
        assert (dead["status"], dead["health"]) == ("failed", "unreachable")

    def test_a_delayed_stop_excludes_later_steps(
        self, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """After a late stop the trace has later forward steps. The entry says so, and the report
        covers only the window.
        """
        begin(tmp_path, steps="2", rollout={"engine": {"max_iterations": "none"}})
        with holding(server.url, {"/stop_profile": 0.5}) as url:
            try:
                stepprof.attach(url, role="rollout", api_key=KEY, admin_key=ADMIN_KEY)
                window = stepprof.profile_step(2, role="rollout").start()
                server.generate(5)
                with working_on(lambda: server.generate(5)):
                    window.stop()
            finally:
                stepprof.shutdown()
        (entry,) = read_entries(tmp_path)
        trace = Trace.named(tmp_path, entry["artifacts"][0])
        begins = [trace.since_epoch(span, span)[0] for span in trace.spans]
        check_late(entry, reported(tmp_path / "run", capsys), begins, 0.5)

    @pytest.mark.usefixtures("recording")
    def test_scheduler_is_killed_while_training_goes_on(self, server: Server, tmp_path: Path) -> None:
        """The server dies with its scheduler. The window ends within 60 s, and the manifest has the
        state of the engine for this and the next step. This test must be the last one.
        """
        stepprof.attach(server.url, role="rollout", api_key=KEY, admin_key=ADMIN_KEY)
        done = []
        with stepprof.profile_step(2, role="rollout"):
            server.generate(2)
            os.kill(server.scheduler(), signal.SIGKILL)
            began = time.monotonic()
        assert time.monotonic() - began < 60
        with stepprof.profile_step(3, role="rollout"):
            done.append(3)
        stepprof.shutdown()
        assert done == [3]
        (entry,) = read_entries(tmp_path, 2)
        assert (entry["status"], entry["health"]) == ("lost", "dead")
        assert "died while it was recording" in entry["error"]
        (entry,) = read_entries(tmp_path, 3)
        assert (entry["status"], entry["health"]) == ("failed", "unreachable")

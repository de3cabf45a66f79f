"""Test a real ``vllm serve`` that follows the windows over HTTP. Each reason for a refusal has its
own message.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
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
from engineserver import EngineServer
from vllm_driven import Trace

import stepprof
from stepprof.remote.base import EngineFailure
from stepprof.remote.http.client import Client
from stepprof.remote.http.kind import HttpKind
from stepprof.remote.vllm.driver import VllmDriver, serve_args

KEY = "sk-of-the-tests"


class Serving(EngineServer):
    """``vllm serve`` with the arguments of the tests."""

    def __init__(self, model: str, log: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        fixed = "--load-format dummy --dtype float32 --max-model-len 256 --max-num-seqs 8 --enforce-eager --gpu-memory-utilization 0.1"
        named = ["--model", model, "--served-model-name", "tiny", "--kv-cache-memory-bytes", str(64 * 2**20)]
        module = "vllm.entrypoints.openai.api_server"
        super().__init__(module, [*named, *fixed.split(), *arguments], log, key=KEY, env=env)

    def generate(self, tokens: int) -> None:
        """Send one request for this number of tokens."""
        asked = {"model": "tiny", "prompt": "abc", "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        self.ask("POST", "/v1/completions", asked)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the server and these tests share."""
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def servers(
    model: str, traces: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Serving, Serving]]:
    """Return two servers, started concurrently: one that can be recorded and requires a key, and
    one without a profiler configuration.
    """
    logs = tmp_path_factory.mktemp("logs")
    with contextlib.ExitStack() as ending:
        development = {"VLLM_SERVER_DEV_MODE": "1"}
        one = Serving(model, logs / "one", *serve_args(traces), "--api-key", KEY, env=development)
        ending.callback(one.close)
        other = Serving(model, logs / "other")
        ending.callback(other.close)
        one.wait()
        other.wait()
        yield one, other


@pytest.fixture
def server(servers: tuple[Serving, Serving]) -> Serving:
    """Return the server that can be recorded."""
    return servers[0]


@pytest.fixture
def driver(server: Serving) -> Iterator[VllmDriver]:
    """Return the driver of that server. After the test, any capture is aborted."""
    made = VllmDriver.of_server(Client(server.url, api_key=KEY))
    yield made
    on_remote(made.abort())


def test_two_steps_are_written_to_two_folders_without_a_restart(
    server: Serving, driver: VllmDriver, traces: Path, tmp_path: Path
) -> None:
    """The folder of each step has the forward steps of its own window, and no others."""
    for step, tokens in ((2, 4), (3, 7)):
        server.generate(2)
        window = make_window(tmp_path, step, trace_dir=traces / "engine-1")
        stopped = record(driver, window, lambda tokens=tokens: server.generate(tokens))
        assert stopped.partial is None
        (artifact,) = stopped.artifacts
        assert Trace.of(window, artifact).forward == [(3, 0), *[(0, 1)] * (tokens - 1)]
    assert (traces / "engine-1" / "current").readlink() == Path("idle")
    clock = on_remote(driver.clock())
    assert (clock.host, clock.offset_ns) == (socket.gethostname(), 0)


def test_a_server_in_development_mode_reports_its_folder(
    server: Serving, driver: VllmDriver, tmp_path: Path
) -> None:
    """On this host, a server that reports its settings needs no trace_dir."""
    window = make_window(tmp_path)
    (artifact,) = record(driver, window, lambda: server.generate(3)).artifacts
    assert len(Trace.of(window, artifact).forward) == 3


def test_the_clock_that_its_trace_shows(server: Serving, driver: VllmDriver, tmp_path: Path) -> None:
    """The start, the stop and the trace bound the clock of a server: here it is that of this host."""
    clock = clock_by_calls(driver, make_window(tmp_path), lambda: server.generate(3))
    assert clock is not None
    assert abs(clock.offset_ns) <= clock.error_ns


def test_synchronous_windows_of_a_coroutine(server: Serving, tmp_path: Path) -> None:
    """The windows block a loop that the server does not need. Each trace has the forward steps of
    its window and no others.
    """
    begin(tmp_path)
    stepprof.attach(server.url, role="rollout", api_key=KEY)

    async def loop() -> None:
        for step in range(1, 5):
            with stepprof.profile_step(step, role="rollout"):
                await asyncio.to_thread(server.generate, step + 2)
            await asyncio.to_thread(server.generate, 2)

    asyncio.run(loop())
    stepprof.shutdown()
    for step in (2, 3):
        (entry,) = read_entries(tmp_path, step)
        assert (entry["status"], entry["error"]) == ("complete", None)
        trace = Trace.named(tmp_path, entry["artifacts"][0], step)
        assert trace.forward == [(3, 0), *[(0, 1)] * (step + 1)]


def test_metrics_are_read_at_start_and_stop(
    server: Serving, driver: VllmDriver, traces: Path, tmp_path: Path
) -> None:
    """The entry has the server's counts of the window: one prompt of 3 tokens, and 5 generated
    ones. No call waits for a count, so a late one is left out. On a busy machine this takes more
    than one window.
    """
    server.generate(2)
    for attempt in range(5):
        window = make_window(tmp_path / str(attempt), trace_dir=traces / "engine-1")
        counted = record(driver, window, lambda: server.generate(5)).statistics
        server.generate(2)
        if counted is not None:
            break
    assert counted is not None
    assert [counted[key] for key in ("requests", "prompt_tokens", "generated_tokens", "preemptions")] == [
        1,
        3,
        5,
        0,
    ]
    assert (counted["first_tokens"], counted["token_gaps"], counted["idle"]) == (1, 4, True)


def test_bounds_go_with_the_start(server: Serving, driver: VllmDriver, traces: Path, tmp_path: Path) -> None:
    """From vLLM 0.32 on, the body of the request has the delay and the maximum."""
    window = make_window(tmp_path, trace_dir=traces / "engine-1", delay_iterations=1, max_iterations=3)
    stopped = record(driver, window, lambda: server.generate(9))
    (artifact,) = stopped.artifacts
    assert Trace.of(window, artifact).forward == [(0, 1)] * 3
    assert stopped.capped_by == "engine"


def test_a_capture_of_another_client_is_refused_and_left_alone(
    server: Serving, driver: VllmDriver, traces: Path, tmp_path: Path
) -> None:
    """The server answers 409. The driver reports it as `busy` and does not change the capture."""
    server.ask("POST", "/start_profile")
    window = make_window(tmp_path, trace_dir=traces / "engine-1")
    on_remote(driver.arm(window))
    with pytest.raises(
        EngineFailure, match="answered 409 to POST /start_profile; it is left alone"
    ) as caught:
        on_remote(driver.start(window))
    assert caught.value.health == "busy"
    assert KEY not in str(caught.value)
    server.ask("POST", "/stop_profile")


def test_without_its_folder_it_is_recorded_and_the_traces_stay(
    server: Serving, driver: VllmDriver, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a folder that both see, the traces stay on the server. The entry names its host."""

    async def nowhere(window: object, settings: object) -> None: ...

    monkeypatch.setattr(driver._link, "place", nowhere)
    stopped = record(driver, make_window(tmp_path), lambda: server.generate(2))
    assert stopped.artifacts == ()
    assert stopped.partial is not None
    assert f"its traces are on {socket.gethostname()}" in stopped.partial
    left = [path for path in (traces / "engine-1" / "idle").iterdir() if path.name.endswith(".gz")]
    assert left
    for path in left:
        path.unlink()


def test_stop_without_start_is_refused_without_a_request(
    server: Serving, driver: VllmDriver, tmp_path: Path
) -> None:
    """No stop is sent, because it would end another client's capture."""
    on_remote(driver.arm(make_window(tmp_path)))
    with pytest.raises(EngineFailure, match="stop without start"):
        on_remote(driver.stop(make_window(tmp_path)))


def test_an_unconfigured_server_gets_instructions(servers: tuple[Serving, Serving], tmp_path: Path) -> None:
    """The server has no route for the start (404). The message has the arguments that add it."""
    bare = VllmDriver.of_server(Client(servers[1].url))
    with pytest.raises(EngineFailure, match=r"has no route /start_profile \(404\)") as caught:
        on_remote(bare.arm(make_window(tmp_path)))
    assert caught.value.health == "unconfigured"
    assert "stepprof.remote.vllm.serve_args(folder)" in str(caught.value)
    servers[1].generate(2)


def test_a_server_that_is_down_is_unreachable(tmp_path: Path) -> None:
    """If no server listens at the address, the engine is `unreachable`."""
    gone = VllmDriver.of_server(Client("http://127.0.0.1:9"))
    with pytest.raises(EngineFailure, match="is the server up") as caught:
        on_remote(gone.arm(make_window(tmp_path)))
    assert caught.value.health == "unreachable"


def test_a_url_is_recognised_as_vllm_and_follows_the_windows(
    servers: tuple[Serving, Serving], traces: Path, tmp_path: Path
) -> None:
    """Three servers are attached: one that records, one without a profiler, and one that is down.
    Each has its own outcome, and the body continues.
    """
    server, bare = servers
    assert HttpKind().recognises(server.url)
    begin(tmp_path)
    try:
        stepprof.attach(server.url, role="rollout", replica=0, trace_dir=traces / "engine-1", api_key=KEY)
        stepprof.attach([bare.url, "http://127.0.0.1:9"], role="rollout", replica=1)
        for step in (1, 2, 3):
            with stepprof.profile_step(step, role="rollout"):
                server.generate(step)
    finally:
        stepprof.shutdown()
    for step in (2, 3):
        entries = read_entries(tmp_path, step)
        assert [entry["status"] for entry in entries] == ["complete", "failed", "failed"]
        assert [entry["health"] for entry in entries] == ["ok", "unconfigured", "unreachable"]
        assert KEY not in json.dumps(entries)
        (artifact,) = entries[0]["artifacts"]
        assert artifact["path"] == "rollout/replica-0/rank-0.trace.json.gz"
        assert entries[0]["kind"] == "vllm"


JOB = """
import sys
from pathlib import Path
import stepprof
from driven import begin

url, key, traces = sys.argv[1:]
begin(Path.cwd(), steps="2", engine_start_timeout_seconds=60)
stepprof.attach(url, role="rollout", api_key=key, trace_dir=traces)
window = stepprof.profile_step(2, role="rollout").start()
print("recording", flush=True)
sys.stdin.readline()
window.stop()
stepprof.shutdown()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_another_job_records_it(server: Serving, traces: Path, tmp_path: Path, killed: bool) -> None:
    """A living job keeps its complete capture, and the window of this job is `busy`. After SIGKILL
    the capture is stopped, and its trace stays in the engine's folder. The next windows of this job have only their own
    forward steps.
    """
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    folder = traces / "engine-1"
    with running(JOB, server.url, KEY, str(folder), cwd=theirs) as job:
        server.generate(3)
        begin(ours, steps="2-4")
        try:
            stepprof.attach(server.url, role="rollout", trace_dir=folder, api_key=KEY)
            with stepprof.profile_step(2, role="rollout"):
                server.generate(2)
            if killed:
                job.kill()
                job.wait(30)
            else:
                job.communicate("\n", timeout=90)
            for step in (3, 4):
                with stepprof.profile_step(step, role="rollout"):
                    server.generate(4)
        finally:
            stepprof.shutdown()
    (refused,) = read_entries(ours, 2)
    assert (refused["status"], refused["health"], refused["artifacts"]) == ("failed", "busy", [])
    assert f"run run, step 2, rollout (process {job.pid} on" in refused["error"]
    (entry,) = read_entries(theirs)
    assert entry["status"] == ("lost" if killed else "complete")
    if killed:
        (left,) = folder.glob("step-2.*/*.pt.trace.json.gz")
        assert len(Trace.left(left).forward) == 5
        shutil.rmtree(left.parent)
    else:
        assert len(Trace.named(theirs, entry["artifacts"][0]).forward) == 5
    for step in (3, 4):
        (entry,) = read_entries(ours, step)
        assert (entry["status"], entry["error"]) == ("complete", None)
        assert len(Trace.named(ours, entry["artifacts"][0], step).forward) == 4
    assert {path.name for path in folder.iterdir()} == {"current", "idle", ".owner", ".capture.holder"}


def test_a_job_that_ends_while_its_engine_is_stopped(server: Serving, traces: Path, tmp_path: Path) -> None:
    """The exit of the interpreter takes at most the timeout of a stop, and one log line names the
    reason of the wait. The next driver stops the capture, and its trace stays in the engine's folder.
    """
    folder = traces / "engine-1"
    core = server.find(b"EngineCore")
    end_beside_a_stopped_engine(
        server.url, tmp_path, core, lambda: server.generate(3), api_key=KEY, trace_dir=str(folder)
    )
    after = VllmDriver.of_server(Client(server.url, api_key=KEY))
    window = make_window(tmp_path / "after", trace_dir=folder)
    (artifact,) = record(after, window, lambda: server.generate(4)).artifacts
    assert len(Trace.of(window, artifact).forward) == 4
    (left,) = folder.glob("step-2.*/*.pt.trace.json.gz")
    assert len(Trace.left(left).forward) == 3
    shutil.rmtree(left.parent)
    assert {path.name for path in folder.iterdir()} == {"current", "idle", ".owner", ".capture.holder"}


def test_the_users_own_profile_is_left_alone(server: Serving, traces: Path, tmp_path: Path) -> None:
    """The window is `busy`. The user's stop works, and the user's trace has all of its forward steps."""
    server.ask("POST", "/start_profile")
    begin(tmp_path)
    try:
        stepprof.attach(server.url, role="rollout", trace_dir=traces / "engine-1", api_key=KEY)
        with stepprof.profile_step(2, role="rollout"):
            server.generate(5)
        server.ask("POST", "/stop_profile")
        with stepprof.profile_step(3, role="rollout"):
            server.generate(2)
    finally:
        stepprof.shutdown()
    statuses = [
        (entry["status"], entry["health"]) for step in (2, 3) for entry in read_entries(tmp_path, step)
    ]
    assert statuses == [("failed", "busy"), ("complete", "ok")]
    (left,) = (traces / "engine-1" / "idle").glob("*.pt.trace.json.gz")
    events = json.loads(gzip.decompress(left.read_bytes()))["traceEvents"]
    assert sum(str(event.get("name")).startswith("execute_context_") for event in events) >= 5
    left.unlink()


def test_a_server_that_dies_while_it_records_is_unreachable(
    server: Serving, driver: VllmDriver, traces: Path, tmp_path: Path
) -> None:
    """The server is killed, so this is the last test that uses it. Its recording is lost, and the driver
    reports that.
    """
    window = make_window(tmp_path, trace_dir=traces / "engine-1")
    on_remote(driver.arm(window))
    on_remote(driver.start(window))
    server.close()
    with pytest.raises(EngineFailure) as caught:
        on_remote(driver.stop(window))
    assert caught.value.health in ("unreachable", "dead")
    with pytest.raises(EngineFailure):
        on_remote(driver.arm(window))
    driver.abort = _nothing  # type: ignore[method-assign]


async def _nothing() -> None:
    return

"""Test a real engine with a real session: ``init``, ``attach``, ``profile_step``, and the entries
in the manifest.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from driven import MATRIX, begin, make_window, name_of, outlive_a_driver, read_entries, wait_for_entry
from holding import check_late, reported
from vllm_driven import Trace

import stepprof

if TYPE_CHECKING:
    from vllm_driven import Live


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Return a function that starts a session in which rollouts are recorded; it ends with the test."""

    yield functools.partial(begin, tmp_path)
    stepprof.shutdown()


def placed(artifact: dict[str, Any]) -> str:
    """Return the name of an artifact in the folder of replica 0."""
    folder, _, name = artifact["path"].rpartition("/")
    assert folder == "rollout/replica-0"
    return str(name)


def traces_of(live: Live) -> Path:
    """Return the folder in which the engine writes, with a link to that of each window."""
    return Path(live.engine.vllm_config.profiler_config.torch_profiler_dir).parent


def traces_in_reach(live: Live) -> set[Path]:
    """Return the traces in the engine's folder, including those of other clients."""
    return set(traces_of(live).rglob("*.pt.trace.json.gz"))


def test_two_steps_of_a_coroutine_on_the_engines_own_loop(
    live: Live, recording: Callable[..., Any], tmp_path: Path
) -> None:
    """``async with`` records on the engine's loop. Every entry is complete, and each trace has the
    forward steps of its window and its own metadata.
    """
    recording()
    stepprof.attach(live.engine, role="rollout")

    async def loop() -> None:
        for step in range(1, 5):
            async with stepprof.profile_step(step, role="rollout"):
                await live.generating(step + 2)
            async with stepprof.profile_step(step, role="actor"):
                await live.generating(1, prompts=3)  # this window is not of the engine's role

    live.run(loop())
    stepprof.shutdown()
    for step in (2, 3):
        (entry,) = read_entries(tmp_path, step)
        assert (entry["status"], entry["health"], entry["error"]) == ("complete", "ok", None)
        assert (entry["kind"], entry["name"], entry["replica"]) == ("vllm", "AsyncLLM", 0)
        (artifact,) = entry["artifacts"]
        assert placed(artifact) == "rank-0.trace.json.gz"
        trace = Trace.named(tmp_path, artifact, step)
        assert trace.forward == [(3, 0), *[(0, 1)] * (step + 1)]
        assert entry["start_unix_ns"] < trace.within_ns[0] < trace.within_ns[1] < entry["end_unix_ns"]
        stated = {key: trace.stated[key] for key in ("run_id", "step", "role", "replica", "rank")}
        assert stated == {"run_id": "run", "step": step, "role": "rollout", "replica": 0, "rank": 0}
    assert not (tmp_path / "run" / "step-000001").exists()


def test_a_synchronous_block_on_another_thread_than_the_engines_loop(
    live: Live, recording: Callable[..., Any], tmp_path: Path
) -> None:
    """A trainer's thread waits in ``with`` while the engine's loop, on another thread, answers."""
    recording()
    stepprof.attach(live.engine, role="rollout")
    with stepprof.profile_step(2, role="rollout"):
        assert stepprof.state().engines == {"rollout/0": "recording"}
        live.generate(3)
    stepprof.shutdown()
    (entry,) = read_entries(tmp_path)
    assert entry["status"] == "complete"
    assert len(Trace.named(tmp_path, entry["artifacts"][0]).forward) == 3


def test_a_synchronous_block_on_the_engines_loop_sends_nothing(
    live: Live, recording: Callable[..., Any], tmp_path: Path, log: list[dict[str, Any]]
) -> None:
    """A synchronous window on the engine's loop would block itself, so it is skipped. Its error
    says what to write instead, and one warning covers all steps.
    """
    recording()
    stepprof.attach(live.engine, role="rollout")

    async def wrong() -> float:
        began = time.monotonic()
        for step in (2, 3):
            with stepprof.profile_step(step, role="rollout"):
                await live.generating(2)
        return time.monotonic() - began

    assert live.run(wrong()) < 30
    assert not live.engine._profile_session_active
    stepprof.shutdown()
    for step in (2, 3):
        (entry,) = read_entries(tmp_path, step)
        assert entry["status"] == "skipped"
        assert "async with stepprof.profile_step" in entry["error"]
    (line,) = [line for line in log if line["event"] == "engine.not_started"]
    assert "async with stepprof.profile_step" in line["reason"]


def test_a_body_that_raises_stops_the_engine(
    live: Live, recording: Callable[..., Any], tmp_path: Path
) -> None:
    """The exception reaches the caller unchanged. The engine is stopped, its trace is kept, and the
    entry has the exception.
    """
    recording()
    stepprof.attach(live.engine, role="rollout")
    error = ValueError("a bad sample")

    def rollout() -> None:
        with stepprof.profile_step(2, role="rollout"):
            live.generate(2)
            raise error

    with pytest.raises(ValueError, match="a bad sample") as caught:
        rollout()
    assert caught.value is error
    assert not live.engine._profile_session_active
    stepprof.shutdown()
    (entry,) = read_entries(tmp_path)
    assert entry["status"] == "complete"
    assert "a bad sample" in entry["body_error"]
    assert len(Trace.named(tmp_path, entry["artifacts"][0]).forward) == 2


def test_a_cancelled_coroutine_leaves_no_capture(
    live: Live, recording: Callable[..., Any], tmp_path: Path
) -> None:
    """A coroutine is cancelled while it waits for the start. The engine is stopped nevertheless,
    and records the next step.
    """
    recording()
    stepprof.attach(live.engine, role="rollout")

    async def given_up() -> None:
        async def body() -> None:
            async with stepprof.profile_step(2, role="rollout"):
                await asyncio.sleep(100)

        task = asyncio.ensure_future(body())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})

    live.run(given_up())
    with stepprof.profile_step(3, role="rollout"):
        live.generate(4)
    stepprof.shutdown()
    assert not live.engine._profile_session_active
    (entry,) = read_entries(tmp_path, 3)
    assert entry["status"] == "complete"
    assert len(Trace.named(tmp_path, entry["artifacts"][0], 3).forward) == 4


def test_a_stop_beyond_the_timeout_still_brings_its_files(
    live: Live, recording: Callable[..., Any], tmp_path: Path
) -> None:
    """The body does not wait longer than the stop timeout. The late answer is added to the
    manifest.
    """
    session = recording(engine_stop_timeout_seconds=0.05, rollout={"engine": {"max_iterations": "none"}})
    stepprof.attach(live.engine, role="rollout")
    window = stepprof.profile_step(2, role="rollout").start()
    live.generate(40)
    began = time.monotonic()
    window.stop()
    waited = time.monotonic() - began
    deadline = time.monotonic() + 60
    while read_entries(tmp_path)[0]["status"] == "lost" and time.monotonic() < deadline:
        session.background.round()
        time.sleep(0.05)
    (entry,) = read_entries(tmp_path)
    assert entry["status"] == "complete"
    assert entry["stop_seconds"] > 0.05
    assert waited < entry["stop_seconds"] + 5
    assert len(Trace.named(tmp_path, entry["artifacts"][0]).forward) == 40


def test_a_stopped_process_keeps_the_run_no_longer_than_its_stop_may_take(
    live: Live, recording: Callable[..., Any], tmp_path: Path, log: list[dict[str, Any]]
) -> None:
    """The core of the engine is stopped while it records. The window and the end of the run each
    wait at most the role's timeout, and one line names the engine. The entry first says that the
    window has closed. After the late answer it is complete.
    """
    recording(engine_stop_timeout_seconds=2)
    attached = stepprof.attach(live.engine, role="rollout")
    (core,) = live.processes()
    window = stepprof.profile_step(2, role="rollout").start()
    live.generate(2)
    os.kill(core.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        window.stop()
        stepprof.shutdown()
        assert time.monotonic() - began < 20
    finally:
        os.kill(core.pid, signal.SIGCONT)
    (line,) = [line for line in log if line["event"] == "shutdown.waiting"]
    assert (line["targets"], line["answer_seconds"]) == ("rollout/0", 2)
    (entry,) = read_entries(tmp_path)
    assert (entry["status"], entry["stop_seconds"]) == ("lost", None)
    assert "its window has closed" in entry["error"]
    assert entry["start_unix_ns"] < entry["end_unix_ns"]
    live.generate(2)
    entry = wait_for_entry(tmp_path, "complete")
    assert entry["error"] is None
    assert attached.status == {"rollout/0": "idle, ok"}
    assert Trace.named(tmp_path, entry["artifacts"][0]).forward[:2] == [(3, 0), (0, 1)]


def test_a_stop_whose_answer_is_lost_still_lists_its_files(
    live: Live,
    recording: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log: list[dict[str, Any]],
) -> None:
    """The engine has written its trace, and the stop call raises. The manifest has the trace, and
    none remains in the engine's folder.
    """
    recording()
    stepprof.attach(live.engine, role="rollout")
    stop = live.engine.stop_profile
    there_before = traces_in_reach(live)

    async def stop_and_raise() -> None:
        await stop()
        raise RuntimeError("the answer is lost")

    with stepprof.profile_step(2, role="rollout"):
        live.generate(3)
        monkeypatch.setattr(live.engine, "stop_profile", stop_and_raise)
    monkeypatch.undo()
    stepprof.shutdown()
    (entry,) = read_entries(tmp_path)
    assert entry["status"] == "partial"
    assert "the answer is lost" in entry["error"]
    assert "capture.lost" not in [line["event"] for line in log]
    assert len(Trace.named(tmp_path, entry["artifacts"][0]).forward) == 3
    assert traces_in_reach(live) == there_before


def test_an_actor_outlives_the_driver_of_its_job(live: Live, tmp_path: Path) -> None:
    """The driver is killed inside its window. The actor ends the capture, and the next job records all of its own forward steps."""
    stopped = outlive_a_driver(live.engine, tmp_path, live.generate)
    (artifact,) = stopped.artifacts
    trace = Trace.of(make_window(tmp_path / "second" / "run"), artifact)
    assert len(trace.forward) == 4


def test_auto_stop_is_a_legal_end(live: Live, recording: Callable[..., Any], tmp_path: Path) -> None:
    """The engine's own limit ends the capture. The entry is complete and says so, and the next step
    is recorded too.
    """
    recording(rollout={"engine": {"max_iterations": 2}})
    stepprof.attach(live.engine, role="rollout")
    for step in (2, 3):
        with stepprof.profile_step(step, role="rollout"):
            live.generate(7)
    stepprof.shutdown()
    for step in (2, 3):
        (entry,) = read_entries(tmp_path, step)
        assert (entry["status"], entry["capped_by"]) == ("complete", "engine")
        assert len(Trace.named(tmp_path, entry["artifacts"][0], step).forward) == 2


def test_a_late_stop_excludes_later_steps(
    live: Live, recording: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine's loop is busy when the window ends, and its core continues. The trace has later
    forward steps, the entry says so, and the report covers only the window.
    """
    recording(rollout={"engine": {"max_iterations": "none"}})
    stepprof.attach(live.engine, role="rollout")
    window = stepprof.profile_step(2, role="rollout").start()
    following = asyncio.run_coroutine_threadsafe(live.generating(240, prompts=4), live.loop)
    time.sleep(0.15)
    live.loop.call_soon_threadsafe(time.sleep, 0.5)
    window.stop()
    following.result(100)
    stepprof.shutdown()
    (entry,) = read_entries(tmp_path)
    trace = Trace.named(tmp_path, entry["artifacts"][0])
    busy = [span for span in trace.spans if not span["name"].endswith("context_0(0)_generation_0(0)")]
    begins = [trace.since_epoch(span, span)[0] for span in busy]
    check_late(entry, reported(tmp_path / "run", capsys), begins, 0.5)


def test_the_default_bound_and_none(
    live: Live, recording: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default limit is 32 forward steps. The entry and the report state it, and the report
    estimates the cost of a stop from it.
    """
    recording()
    stepprof.attach(live.engine, role="rollout")
    for step, tokens in ((2, 40), (3, 5)):
        with stepprof.profile_step(step, role="rollout"):
            live.generate(tokens)
    stepprof.shutdown()
    for step, capped, forward in ((2, "engine", 32), (3, None, 5)):
        (entry,) = read_entries(tmp_path, step)
        assert (entry["status"], entry["capped_by"]) == ("complete", capped)
        assert len(Trace.named(tmp_path, entry["artifacts"][0], step).forward) == forward
    report = reported(tmp_path / "run", capsys)
    assert any(
        "only the first 32 forward steps of rollout/0 were recorded" in each["text"]
        for each in report["findings"]
    )
    (cost,) = report["stops"]
    assert (cost["iterations"], cost["basis"], [bound for bound, _ in cost["estimates"]]) == (
        32,
        "write",
        [128, 512],
    )
    assert cost["estimates"][0][1] == pytest.approx(4 * cost["seconds"])


TWO_WORKERS = """
import json, os, signal, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import stepprof
from driven import begin
from vllm_driven import Live
from stepprof.remote.vllm import engine_args

def main():
    model, options, ranks, here = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], Path.cwd()
    live = Live(model, tensor_parallel_size=2, **engine_args(here / "traces", options))
    begin(here, steps="2", rollout={"ranks": ranks, "engine": options})
    stepprof.attach(live.engine, role="rollout")
    for step in (1, 2, 3):
        with stepprof.profile_step(step, role="rollout"):
            live.generate(2)
    stepprof.shutdown()
    for core in live.processes():
        core.kill()

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(("options", "ranks", "device"), MATRIX, ids=name_of)
def test_step_2_of_an_engine_of_two_workers(
    run_vllm: Callable[..., Any], tmp_path: Path, options: dict[str, Any], ranks: str, device: str
) -> None:
    """A tensor-parallel engine records all its workers. The traces of the selected workers are
    kept, with the selected content.
    """
    if device != "cpu":
        pytest.skip(
            f"not run: no {device} device on the machines that run these tests, whose vLLM is the CPU's build"
        )
    run_vllm(TWO_WORKERS, json.dumps(options), ranks).check()
    (entry,) = read_entries(tmp_path)
    assert (entry["status"], entry["error"]) == ("complete", None)
    workers = [1] if ranks == "1" else [0, 1]
    assert [placed(artifact) for artifact in entry["artifacts"]] == [
        f"rank-{worker}.trace.json.gz" for worker in workers
    ]
    for worker, artifact in zip(workers, entry["artifacts"], strict=True):
        trace = Trace.named(tmp_path, artifact)
        assert trace.stated["rank"] == worker
        assert trace.forward == [(3, 0), (0, 1)]
        assert (trace.has_shapes, trace.has_stacks) == (bool(options), bool(options))
    assert not (tmp_path / "run" / "step-000001").exists()

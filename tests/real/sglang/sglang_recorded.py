"""Run sessions next to an engine, in the process that holds it. The tests check the files that the
windows leave.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from driven import begin, outlive_a_driver, read_entries, wait_for_entry
from sglang_scenarios import generate

import stepprof

Plain = dict[str, Any]


@contextmanager
def logged() -> Iterator[list[Plain]]:
    """Collect the log lines of the block, without values that cannot be sent to the tests."""
    with structlog.testing.capture_logs() as lines:
        yield lines
    structlog.reset_defaults()
    lines[:] = [
        {key: value for key, value in line.items() if isinstance(value, str | float | int)} for line in lines
    ]


def synchronous(engine: Any, folder: Path, config: Plain, steps: int = 4, prompts: int = 1) -> list[str]:
    """Run a training loop as it is written for an ``Engine``, and return the engine's state in each
    rollout.
    """
    seen = []
    begin(folder, **config)
    stepprof.attach(engine, role="rollout")
    for step in range(1, steps + 1):
        with stepprof.profile_step(step, role="rollout"):
            seen.append(str(stepprof.state().engines.get("rollout/0")))
            generate(engine, step + 2, prompts)
        with stepprof.profile_step(step, role="actor"):
            generate(engine, 1)  # this window is not of the engine's role
    stepprof.shutdown()
    return seen


def of_lengths(engine: Any, folder: Path, tokens: dict[int, int]) -> None:
    """Run one step for each number of tokens, with the default limit of forward steps."""
    begin(folder)
    stepprof.attach(engine, role="rollout")
    for step, count in tokens.items():
        with stepprof.profile_step(step, role="rollout"):
            generate(engine, count)
    stepprof.shutdown()


def running(engine: Any, folder: Path, tokens: int) -> None:
    """Run a training loop that records only on request, until a file contains the number of its
    last step.
    """
    begin(folder, steps="none")
    stepprof.attach(engine, role="rollout")
    last, step = folder / "last-step", 0
    while not last.exists() or step < int(last.read_text()):
        step += 1
        with stepprof.profile_step(step, role="rollout"):
            generate(engine, tokens)
        with stepprof.profile_step(step, role="actor"):
            generate(engine, 1)  # this window is not of the engine's role
    stepprof.shutdown()


def in_coroutines(engine: Any, folder: Path) -> Plain:
    """Open windows with ``async with`` on the engine's loop, and synchronous windows there, which
    are wrong.
    """
    begin(folder, steps="2-4")
    stepprof.attach(engine.tokenizer_manager, role="rollout")

    async def one(tokens: int) -> None:
        await engine.async_generate("abc", {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True})

    async def loop() -> float:
        async with stepprof.profile_step(2, role="rollout"):
            await asyncio.gather(one(40), one(40))
        began = time.monotonic()
        for step in (3, 4):
            with stepprof.profile_step(step, role="rollout"):
                await one(2)
        return time.monotonic() - began

    with logged() as lines:
        seconds = engine.loop.run_until_complete(loop())
        stepprof.shutdown()
    return {"seconds": seconds, "lines": lines}


def on_another_loop(engine: Any, folder: Path) -> None:
    """Open synchronous windows in a coroutine whose loop is not the engine's."""
    begin(folder)
    stepprof.attach(engine, role="rollout")

    async def loop() -> None:
        for step in range(1, 5):
            with stepprof.profile_step(step, role="rollout"):
                await asyncio.to_thread(generate, engine, step + 2)
            await asyncio.to_thread(generate, engine, 1)

    asyncio.run(loop())
    stepprof.shutdown()


def hangs_on_another_loop(engine: Any, folder: Path) -> Plain:
    """Open a synchronous window in a coroutine while the scheduler is stopped, and a window once it
    answers again.
    """
    begin(folder, engine_start_timeout_seconds=1)
    stepprof.attach(engine, role="rollout")

    async def loop() -> tuple[float, Plain]:
        signal_scheduler(signal.SIGSTOP)
        try:
            began = time.monotonic()
            with stepprof.profile_step(2, role="rollout"):
                pass
            return time.monotonic() - began, wait_for_entry(folder, "failed")
        finally:
            signal_scheduler(signal.SIGCONT)

    seconds, entry = asyncio.run(loop())
    deadline = time.monotonic() + 60
    while stepprof.state().engines != {"rollout/0": "armed"} and time.monotonic() < deadline:
        generate(engine, 1)
    with stepprof.profile_step(3, role="rollout"):
        generate(engine, 3)
    stepprof.shutdown()
    return {"seconds": seconds, "entry": entry}


def armed_in_vain(engine: Any, folder: Path) -> bool:
    """End the run while the engine is armed for step 3. Return whether the folder of that step
    existed.
    """
    session = begin(folder)
    stepprof.attach(engine, role="rollout")
    with stepprof.profile_step(2, role="rollout"):
        generate(engine, 2)
    deadline = time.monotonic() + 20
    while "armed" not in stepprof.state().engines.values() and time.monotonic() < deadline:
        time.sleep(0.01)
    was_there = (session.path / "step-000003" / "rollout").exists()
    stepprof.shutdown()
    return was_there


def answer_of_the_stop_is_lost(engine: Any, folder: Path) -> tuple[Plain, list[str]]:
    """Make the stop call raise after SGLang has written its trace. Return the entry after the
    window, and the files of the step at that time.
    """
    begin(folder)
    stepprof.attach(engine, role="rollout")
    stop = engine.tokenizer_manager.stop_profile

    async def stop_and_raise() -> None:
        await stop()
        raise RuntimeError("the answer is lost")

    with stepprof.profile_step(2, role="rollout"):
        generate(engine, 3)
        engine.tokenizer_manager.stop_profile = stop_and_raise
    del engine.tokenizer_manager.stop_profile
    place = folder / "run" / "step-000002"
    deadline = time.monotonic() + 60
    while True:  # the error names the trace soon after the failure; a later stop adds it to the manifest
        (entry,) = read_entries(folder)
        left = [path.relative_to(place).as_posix() for path in place.rglob("*TP-0*")]
        named = entry["status"] == "failed" and any(path in entry["error"] for path in left)
        if named or entry["status"] == "partial" or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    stepprof.shutdown()
    return entry, left


def left_synchronously(engine: Any, folder: Path) -> Plain:
    """Stop a window synchronously on the engine's loop, and open an asynchronous window after it."""
    begin(folder)
    stepprof.attach(engine.tokenizer_manager, role="rollout")

    async def one(tokens: int) -> None:
        await engine.async_generate("abc", {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True})

    async def loop() -> float:
        window = await stepprof.profile_step(2, role="rollout").astart()
        await one(4)
        began = time.monotonic()
        window.stop()
        seconds = time.monotonic() - began
        async with stepprof.profile_step(3, role="rollout"):
            await one(3)
        return seconds

    with logged() as lines:
        seconds = engine.loop.run_until_complete(loop())
        stepprof.shutdown()
    return {"seconds": seconds, "lines": lines}


def body_that_raises(engine: Any, folder: Path) -> Plain:
    """Raise an exception in the body. Return whether it reaches the caller unchanged, and whether
    the engine was stopped.
    """
    begin(folder)
    stepprof.attach(engine, role="rollout")
    error = ValueError("a bad sample")
    try:
        with stepprof.profile_step(2, role="rollout"):
            generate(engine, 2)
            raise error
    except ValueError as caught:
        unchanged = caught is error
    stepprof.shutdown()
    try:
        engine.stop_profile()
    except RuntimeError as refused:
        return {"unchanged": unchanged, "stopped": "not in progress" in str(refused)}
    return {"unchanged": unchanged, "stopped": False}


def stop_that_takes_too_long(engine: Any, folder: Path) -> Plain:
    """Stop a window with a short timeout. The caller continues and generates while the stop is
    still pending.
    """
    session = begin(folder, engine_stop_timeout_seconds=0.05, rollout={"engine": {"max_iterations": "none"}})
    stepprof.attach(engine, role="rollout")
    window = stepprof.profile_step(2, role="rollout").start()
    generate(engine, 40)
    began = time.monotonic()
    window.stop()
    waited = time.monotonic() - began
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and stepprof.state().engines.get("rollout/0") != "idle":
        generate(engine, 2)
        session.background.round()
        time.sleep(0.05)
    stepprof.shutdown()
    return {"waited": waited}


def unwritable(engine: Any, folder: Path) -> None:
    """Record step 2 while the engine's folder cannot be created, and step 3 while it can."""
    begin(folder / "run-of-two")
    stepprof.attach(engine, role="rollout", trace_dir=folder / "file")
    (folder / "file").write_text("in the way")
    with stepprof.profile_step(2, role="rollout"):
        generate(engine, 2)
    (folder / "file").unlink()
    with stepprof.profile_step(3, role="rollout"):
        generate(engine, 2)
    stepprof.shutdown()


def signal_scheduler(number: int) -> None:
    """Send a signal to the engine's scheduler."""
    for child in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        if b"scheduler" in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(int(child), number)


def scheduler_stopped(engine: Any, folder: Path) -> Plain:
    """Stop the process of the scheduler while it records, and continue it after the end of the run."""
    session = begin(folder, engine_stop_timeout_seconds=2)
    attached = stepprof.attach(engine, role="rollout")
    window = stepprof.profile_step(2, role="rollout").start()
    generate(engine, 2)
    signal_scheduler(signal.SIGSTOP)
    began = time.monotonic()
    with logged() as lines:
        window.stop()
        stepprof.shutdown()
    seconds = time.monotonic() - began
    signal_scheduler(signal.SIGCONT)
    deadline = time.monotonic() + 60
    while session.fleet.statuses()["rollout/0"] != "idle" and time.monotonic() < deadline:
        generate(engine, 2)
        time.sleep(0.05)
    return {"seconds": seconds, "status": attached.status, "lines": lines}


def driver_killed(engine: Any, folder: Path) -> list[str]:
    """Let an actor with the engine outlive the driver of its job. Return the artifacts of the next
    job.
    """
    stopped = outlive_a_driver(engine, folder, functools.partial(generate, engine))
    return [artifact.path for artifact in stopped.artifacts]


def scheduler_killed(engine: Any, folder: Path) -> Plain:
    """Kill the scheduler while it records. SGLang ends this process at the latest when the engine
    is used next, so the engine is not used.
    """
    begin(folder)
    stepprof.attach(engine, role="rollout")
    window = stepprof.profile_step(2, role="rollout").start()
    generate(engine, 2)
    signal_scheduler(signal.SIGKILL)
    began = time.monotonic()
    window.stop()
    seconds = time.monotonic() - began
    with stepprof.profile_step(3, role="rollout"):
        pass
    stepprof.shutdown()
    return {"seconds": seconds}


def warm_up(engine: Any) -> None:
    """Use the engine for the first time, so that its first window has all of its steps."""
    generate(engine, 2)


def raw_unwritable_stop(engine: Any, folder: Path) -> None:
    """Record with SGLang itself into a folder that it cannot create. This returns only if the
    process survives.
    """
    (folder / "file").write_text("in the way")
    engine.start_profile(
        output_dir=str(folder / "file" / "below"), activities=["CPU"], with_stack=False, record_shapes=False
    )
    generate(engine, 2)
    engine.stop_profile()
    time.sleep(60)

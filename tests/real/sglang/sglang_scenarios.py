"""Act on an engine in the process that holds it. The tests check the files."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from driven import make_window, on_remote, record
from sglang_driven import Trace, described

from stepprof.remote.base import EngineFailure
from stepprof.remote.loop import remote_loop
from stepprof.remote.sglang.driver import SglangDriver

Plain = dict[str, Any]


def generate(engine: Any, tokens: int, prompts: int = 1) -> None:
    """Generate this number of tokens for each of several concurrent prompts."""
    engine.generate(["abc"] * prompts, {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True})


def first_window(engine: Any, folder: Path) -> Plain:
    """Record a window around the first use of the engine. Return facts about its loop before and
    after.
    """
    driver = SglangDriver.of_engine(engine)
    window = make_window(folder, 1)
    used_before = engine.tokenizer_manager.event_loop is not None
    on_remote(driver.arm(window))
    on_remote(driver.start(window))
    unused = engine.tokenizer_manager.event_loop is None
    generate(engine, 6)
    stopped = on_remote(driver.stop(window))
    again = record(driver, make_window(folder, 2), lambda: generate(engine, 3))
    return {
        "used_before": used_before,
        "left_unused": unused,
        "first": described(window, stopped),
        "second": described(make_window(folder, 2), again),
        "is_its_own_loop": engine.tokenizer_manager.event_loop is engine.loop,
    }


def two_steps(engine: Any, folder: Path) -> list[Plain]:
    """Record two windows in a row, with work between them."""
    driver = SglangDriver.of_engine(engine)
    brought = []
    for step, tokens in ((2, 5), (3, 9)):
        generate(engine, 3)
        window = make_window(folder, step)
        began = time.time_ns()
        stopped = record(driver, window, lambda: generate(engine, tokens))  # noqa: B023
        brought.append({**described(window, stopped), "body_ns": (began, time.time_ns())})
    generate(engine, 2)
    return brought


def window_with(engine: Any, folder: Path, tokens: int, options: Plain, prompts: int = 1) -> Plain:
    """Record one window with options. Return its content, and the files that the engine leaves when
    it continues to work.
    """
    driver = SglangDriver.of_engine(engine)
    window = make_window(folder, **options)
    stopped = record(driver, window, lambda: generate(engine, tokens, prompts) if tokens else None)
    brought = described(window, stopped)
    generate(engine, 4)
    return {**brought, "left_later": _names(window.output)}


def failure_of(engine: Any, folder: Path, tokens: int, options: Plain) -> Plain:
    """Return the error of a window, and the content of the next one."""
    driver = SglangDriver.of_engine(engine)
    window = make_window(folder, **options)
    reported = _failure(lambda: record(driver, window, lambda: generate(engine, tokens) if tokens else None))
    generate(engine, 4)
    left = _names(window.output)
    next_one = record(driver, make_window(folder, 3), lambda: generate(engine, 2))
    return {**reported, "left": left, "next": described(make_window(folder, 3), next_one)}


def second_start(engine: Any, folder: Path) -> Plain:
    """Start twice in a row. The second start is refused, and the first capture is complete."""
    driver, window = SglangDriver.of_engine(engine), make_window(folder, 2)
    on_remote(driver.arm(window))
    on_remote(driver.start(window))
    generate(engine, 3)
    reported = _failure(lambda: on_remote(driver.start(make_window(folder, 3))))
    armed = _failure(lambda: on_remote(driver.arm(make_window(folder, 3))))
    generate(engine, 2)
    return {
        **reported,
        "armed": armed,
        "first": described(window, on_remote(driver.stop(window))),
        "second_left": _names(make_window(folder, 3).output),
    }


def stop_without_start(engine: Any, folder: Path) -> Plain:
    """Send stops without a start, through the driver and directly to SGLang, and an abort without a
    capture.
    """
    driver, window = SglangDriver.of_engine(engine), make_window(folder)
    reported = _failure(lambda: on_remote(driver.stop(window)))
    on_remote(driver.abort())
    return {**reported, "raw": _refusal(engine.stop_profile)}


def stopped_by_another(engine: Any, folder: Path) -> Plain:
    """Let another client stop the engine inside the window."""
    driver, window = SglangDriver.of_engine(engine), make_window(folder)

    def body() -> None:
        generate(engine, 3)
        engine.stop_profile()
        generate(engine, 3)

    return described(window, record(driver, window, body))


def recorded_by_the_user(engine: Any, folder: Path) -> Plain:
    """Start a window while the user's own profile runs."""
    plain = {"activities": ["CPU"], "with_stack": False, "record_shapes": False}
    engine.start_profile(output_dir=str(folder / "user"), profile_id="user", **plain)
    generate(engine, 3)
    driver, window = SglangDriver.of_engine(engine), make_window(folder)
    on_remote(driver.arm(window))
    reported = _failure(lambda: on_remote(driver.start(window)))
    on_remote(driver.abort())
    generate(engine, 2)
    engine.stop_profile()
    (path,) = (folder / "user").iterdir()
    with gzip.open(path) as file:
        names = [event["name"] for event in json.load(file)["traceEvents"]]
    after = record(driver, make_window(folder, 3), lambda: generate(engine, 2))
    steps = sum(name.startswith("step[") for name in names)
    return {**reported, "users_steps": steps, "next": described(make_window(folder, 3), after)}


def two_drivers(engine: Any, folder: Path) -> Plain:
    """Start a second driver while the first one records, and again when the first one has ended."""
    first, window = SglangDriver.of_engine(engine), make_window(folder, 2)
    on_remote(first.arm(window))
    on_remote(first.start(window))
    generate(engine, 3)
    second, after = SglangDriver.of_engine(engine.tokenizer_manager), make_window(folder, 3)
    on_remote(second.arm(after))
    reported = _failure(lambda: on_remote(second.start(after)))
    generate(engine, 2)
    first.retire()
    stopped = record(second, after, lambda: generate(engine, 4))
    (left,) = window.output.rglob("*.trace.json.gz")
    return {
        **reported,
        "first": Trace.left(left).forward,
        "second": described(after, stopped),
    }


def armed_by_another(engine: Any, folder: Path) -> Plain:
    """Let another program leave a request armed for a step that has not begun. Return SGLang's
    files for it, and the files after a window of stepprof.
    """
    plain = {"activities": ["CPU"], "with_stack": False, "record_shapes": False, "start_step": 1}

    def leave_armed(where: Path) -> None:
        engine.start_profile(output_dir=str(where), profile_id="by-itself", **plain)
        reported = _refusal(engine.stop_profile)
        assert "not in progress" in reported

    leave_armed(folder / "trap")
    generate(engine, 2)
    engine.stop_profile()
    leave_armed(folder / "after")
    window = make_window(folder)
    stopped = record(SglangDriver.of_engine(engine), window, lambda: None)
    generate(engine, 2)
    assert "not in progress" in _refusal(engine.stop_profile)
    return {
        "trap": _names(folder / "trap"),
        "ours": [artifact.path for artifact in stopped.artifacts],
        "after": _names(folder / "after"),
    }


def unwritable(engine: Any, folder: Path) -> Plain:
    """Arm a window whose folder is below a file."""
    (folder / "file").write_text("in the way")
    driver = SglangDriver.of_engine(engine)
    window = dataclasses.replace(make_window(folder), folder=folder / "file")
    reported = _failure(lambda: on_remote(driver.arm(window)))
    stopped = record(driver, make_window(folder, 3), lambda: generate(engine, 2))
    return {**reported, "next": described(make_window(folder, 3), stopped)}


def other_worker(engine: Any, folder: Path) -> str:
    """Record a window for a rank that the engine does not have."""
    window = make_window(folder, workers=frozenset({7}))
    stopped = record(SglangDriver.of_engine(engine), window, lambda: generate(engine, 2))
    assert stopped.artifacts == ()
    assert _names(window.output) == []
    return str(stopped.partial)


def aborted(engine: Any, folder: Path) -> Plain:
    """Abort a capture twice, and record another one after it."""
    driver, window = SglangDriver.of_engine(engine), make_window(folder)
    on_remote(driver.arm(window))
    on_remote(driver.start(window))
    generate(engine, 3)
    aborting = remote_loop().submit(driver.abort())
    while not aborting.done():  # the engine answers the abort when it is used
        generate(engine, 1)
    on_remote(driver.abort())
    left = _names(window.output)
    stopped = record(driver, make_window(folder, 3), lambda: generate(engine, 2))
    return {"left": left, "next": described(make_window(folder, 3), stopped)}


def folder_lost_while_recording(engine: Any, folder: Path) -> Plain:
    """Replace the folder by a file while the engine records. Then remove the file, and record the
    next window.
    """
    driver, window = SglangDriver.of_engine(engine), make_window(folder)
    on_remote(driver.arm(window))
    on_remote(driver.start(window))
    generate(engine, 3)
    window.output.rmdir()
    window.output.write_text("in the way")
    reported = _failure(lambda: on_remote(driver.stop(window)))
    on_remote(driver.arm(make_window(folder, 3)))  # sends nothing: the caller may use the engine at this time
    still = _failure(lambda: on_remote(driver.start(make_window(folder, 3))))
    window.output.unlink()
    generate(engine, 3)
    stopped = record(driver, make_window(folder, 4), lambda: generate(engine, 2))
    return {**reported, "still": still, "next": described(make_window(folder, 4), stopped)}


def with_environment(engine: Any, folder: Path, name: str, value: str) -> Plain:
    """Arm a window while a variable of the environment is set."""
    os.environ[name] = value
    try:
        return _failure(lambda: on_remote(SglangDriver.of_engine(engine).arm(make_window(folder))))
    finally:
        del os.environ[name]


def asynchronous(engine: Any, folder: Path) -> Plain:
    """Record a window in a coroutine on the engine's running loop, through the tokenizer manager,
    with a request in progress.
    """
    driver, window = SglangDriver.of_engine(engine.tokenizer_manager), make_window(folder)

    async def one(tokens: int) -> None:
        await engine.async_generate("abc", {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True})

    async def steps() -> Plain:
        loop = asyncio.get_running_loop()
        ticks = 0

        async def watch() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        watching = asyncio.ensure_future(watch())
        under_way = asyncio.ensure_future(one(400))
        await asyncio.sleep(0.3)
        await asyncio.wrap_future(remote_loop().submit(driver.arm(window)))
        await asyncio.wrap_future(remote_loop().submit(driver.start(window)))
        await one(5)
        ticks = 0
        stopped = await asyncio.wrap_future(remote_loop().submit(driver.stop(window)))
        ticked, was_done = ticks, under_way.done()
        await under_way
        watching.cancel()
        return {
            **described(window, stopped),
            "knows_loop": driver.loop is loop,
            "was_done": was_done,
            "ticks_while_stopping": ticked,
        }

    return engine.loop.run_until_complete(steps())  # type: ignore[no-any-return]


def loop_stops_and_runs(engine: Any, folder: Path) -> Plain:
    """Send the start and the stop while the engine generates on another thread, and its loop stops
    running soon after.
    """
    driver, window = SglangDriver.of_engine(engine), make_window(folder, max_iterations="none")
    on_remote(driver.arm(window))
    failed: list[BaseException] = []

    def generating(tokens: int) -> threading.Thread:
        def run() -> None:
            try:
                generate(engine, tokens)
            except BaseException as error:  # noqa: BLE001 - the test reads it
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        while not engine.loop.is_running():
            time.sleep(0.001)
        return thread

    thread = generating(300)
    on_remote(driver.start(window))
    thread.join()
    thread = generating(40)
    stopped = on_remote(driver.stop(window))
    thread.join()
    generate(engine, 2)
    return {**described(window, stopped), "failed": [repr(error) for error in failed]}


def _failure(act: Any) -> Plain:
    try:
        act()
    except EngineFailure as error:
        return {"message": str(error), "health": error.health}
    raise AssertionError("nothing failed")


def _refusal(act: Any) -> str:
    try:
        act()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("SGLang did not refuse")


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

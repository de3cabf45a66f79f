"""The driver that holds an engine's profiler: places, living holders, and captures that an ended process left."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driven import make_window, on_remote

from stepprof.host.process_identity import writer_identity
from stepprof.remote.base import EngineFailure, EngineWindow, Stopped
from stepprof.remote.core import ownership
from stepprof.remote.core.ownership import FilePlace, Hold, MemoryPlace, Place, place_next_to_the_runs

HOLDS = """
import sys
from pathlib import Path
from driven import make_window, on_remote
from stepprof.remote.core.ownership import FilePlace, Hold

async def stop():
    pass

hold = Hold("engine")
on_remote(hold.take(make_window(Path(sys.argv[2])), FilePlace(Path(sys.argv[1])), stop))
print("held", flush=True)
input()
"""


CHILD = """
import os, time
if not os.fork():
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
input()
"""


@pytest.fixture
def window(tmp_path: Path) -> EngineWindow:
    """Return a window of a run below the folder of the test."""
    return make_window(tmp_path / "runs" / "run", max_iterations=7, workers=frozenset({1}))


class Engine:
    """Ends captures, or fails to, and counts its stops."""

    def __init__(self, result: Stopped | EngineFailure | None = None) -> None:
        self.result = result or Stopped()
        self.hold: Hold | None = None
        self.seconds = 0.0
        self.stops = 0

    async def stop(self) -> None:
        """Count a stop."""
        self.stops += 1

    async def finish(self, window: EngineWindow) -> Stopped:
        """Return the configured result, or raise it. With `hold`, the capture has ended then."""
        await asyncio.sleep(self.seconds)
        self.stops += 1
        if self.hold is not None:
            await self.hold.give()
        if isinstance(self.result, EngineFailure):
            raise self.result
        return self.result


def _slowly(act: Any) -> Any:
    """Return a function that takes 0.2 s longer."""

    def acts(*arguments: Any) -> Any:
        time.sleep(0.2)
        return act(*arguments)

    return acts


@pytest.fixture(params=["file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return a function that makes the place of one engine for one driver, of each kind."""
    path = tmp_path / "engine" / "x.holder"

    def make() -> Place:
        return FilePlace(path) if request.param == "file" else MemoryPlace(f"object:{path}")

    yield make
    ownership._in_memory.clear()


class TestPlaces:
    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        """If the file cannot be written, no call is sent, because drivers could not see each other."""
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(EngineFailure, match="nothing was sent") as caught:
            FilePlace(tmp_path / "file" / "x.holder").take("me", {})
        assert caught.value.health == "unconfigured"

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        """A link in place of the file is refused: it could lead to any file of the user."""
        target = tmp_path / "target"
        target.write_text("keep")
        (tmp_path / "x.holder").symlink_to(target)
        with pytest.raises(EngineFailure, match="cannot be written"):
            FilePlace(tmp_path / "x.holder").take("me", {})
        assert target.read_text() == "keep"

    def test_a_file_system_without_locks(self, tmp_path: Path, mocker: Any) -> None:
        """Without locks a name in the file counts as a living driver, and the failure says which file to remove."""
        mocker.patch.object(fcntl, "flock", side_effect=OSError(37, "No locks available"))
        path = tmp_path / "x.holder"
        first, second = FilePlace(path), FilePlace(path)
        assert first.take("one", {}) is None
        ownership._open_here.clear()  # as in another process
        with pytest.raises(ownership.Taken, match=r"one; if it has ended, remove .*x\.holder"):
            second.take("two", {})
        first.give()
        assert second.take("two", {}) is None
        second.give()

    def test_locks_that_belong_to_the_process(self, tmp_path: Path, mocker: Any) -> None:
        """A second driver of the same process is refused, also where each lock of a process succeeds, as on NFS."""
        mocker.patch.object(fcntl, "flock")
        first, second = FilePlace(tmp_path / "x.holder"), FilePlace(tmp_path / "x.holder")
        assert first.take("one", {}) is None
        with pytest.raises(ownership.Taken, match="one"):
            second.take("two", {})
        first.leave()
        assert second.take("two", {}) == "one"
        second.give()

    def test_where_no_folder_is_shared(self, window: EngineWindow, tmp_path: Path) -> None:
        """Jobs with the same `output_dir` use the same file for one engine, and different files for different engines."""
        other = make_window(tmp_path / "runs" / "other", 7)
        one = place_next_to_the_runs(window, "http://a:1").path
        assert one == place_next_to_the_runs(other, "http://a:1").path
        assert one != place_next_to_the_runs(window, "http://a:2").path
        assert one.parent == tmp_path / "runs" / ".engines"


class TestHold:
    def test_a_living_holder(self, place: Any, window: EngineWindow) -> None:
        """While the first driver holds the engine, the second is refused with the name of the first, and stops nothing."""
        first, second, engine = Hold("engine"), Hold("engine"), Engine()
        on_remote(first.take(window, place(), engine.stop))
        with pytest.raises(
            EngineFailure, match="recorded by another driver: run test, step 2, rollout"
        ) as caught:
            on_remote(second.take(window, place(), engine.stop))
        assert (caught.value.health, engine.stops) == ("busy", 0)
        assert f"process {os.getpid()}" in str(caught.value)
        on_remote(first.give())
        on_remote(second.take(window, place(), engine.stop))
        on_remote(second.give())
        assert engine.stops == 0

    def test_a_holder_that_left(self, place: Any, window: EngineWindow, log: Any) -> None:
        """The capture of a driver that left without an answer to its stop is stopped once, and the engine is free."""
        first, second, engine = Hold("engine"), Hold("engine"), Engine()
        on_remote(first.take(window, place(), engine.stop))
        first.retire()
        on_remote(second.take(window, place(), engine.stop))
        assert engine.stops == 1
        (line,) = [line for line in log if line["event"] == "capture.abandoned"]
        assert line["left_by"].startswith("run test, step 2, rollout (process")
        on_remote(second.give())

    def test_a_place_that_was_taken_after_the_end_of_a_process(
        self, tmp_path: Path, window: EngineWindow
    ) -> None:
        """A driver in an actor whose job has ended stops nothing, and frees nothing, once another one holds the engine."""
        places = [MemoryPlace(f"object:{tmp_path}") for _ in range(3)]
        first, second, third, engine = Hold("engine"), Hold("engine"), Hold("engine"), Engine()
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as job:
            owner = writer_identity(job.pid)
            job.kill()
        on_remote(first.take(replace(window, owner=owner), places[0], engine.stop))
        on_remote(second.take(window, places[1], engine.stop))
        assert engine.stops == 1
        assert first.window is None
        on_remote(first.settle(engine))
        first.retire()
        on_remote(first.give())
        assert engine.stops == 1
        with pytest.raises(EngineFailure, match="recorded by another driver"):
            on_remote(third.take(window, places[2], engine.stop))
        on_remote(second.give())
        on_remote(third.take(window, places[2], engine.stop))
        on_remote(third.give())
        second.retire()

    def test_a_driver_that_no_longer_waits_for_its_place(
        self, place: Any, window: EngineWindow, mocker: Any
    ) -> None:
        """If the start is cancelled while the file is locked, the place is given back."""
        mocker.patch.object(ownership, "_write", side_effect=_slowly(ownership._write))
        first, second, engine = Hold("engine"), Hold("engine"), Engine()

        async def cancelled() -> None:
            taking = asyncio.ensure_future(first.take(window, place(), engine.stop))
            await asyncio.sleep(0.05)
            taking.cancel()
            await asyncio.wait({taking})
            await asyncio.sleep(0.5)

        on_remote(cancelled())
        on_remote(first.give())
        on_remote(second.take(window, place(), engine.stop))
        on_remote(second.give())

    def test_a_capture_that_cannot_be_stopped(self, place: Any, window: EngineWindow) -> None:
        """If the stop of a capture that was left fails, the driver is refused with that reason, and the next one stops it again."""
        first, second, engine = Hold("engine"), Hold("engine"), Engine()

        async def refuse() -> None:
            raise EngineFailure("no answer", "unreachable")

        on_remote(first.take(window, place(), engine.stop))
        first.retire()
        with pytest.raises(EngineFailure, match="cannot be stopped: no answer") as caught:
            on_remote(second.take(window, place(), refuse))
        assert caught.value.health == "unreachable"
        on_remote(second.give())
        on_remote(second.take(window, place(), engine.stop))
        assert engine.stops == 1
        on_remote(second.give())

    def test_a_forked_child_keeps_no_lock(self, tmp_path: Path, window: EngineWindow) -> None:
        """A child that outlives the holder, such as an export, does not hold the engine."""
        path, engine = tmp_path / "x.holder", Engine()
        forks = HOLDS.replace("input()", CHILD)
        helpers = str(Path(__file__).parents[2] / "helpers")
        with subprocess.Popen(
            [sys.executable, "-c", forks, str(path), str(window.folder.parent)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([helpers, *sys.path])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as job:
            assert job.stdout is not None
            assert job.stdout.readline() == b"held\n"
            child = int(job.stdout.readline())
            job.kill()
            job.wait(30)
        try:
            hold = Hold("engine")
            on_remote(hold.take(window, FilePlace(path), engine.stop))
            assert engine.stops == 1
            on_remote(hold.give())
        finally:
            os.kill(child, signal.SIGKILL)

    def test_a_killed_process(self, tmp_path: Path, window: EngineWindow) -> None:
        """The engine of a living process is busy. When that process was killed, its capture is stopped at once."""
        path, engine = tmp_path / "x.holder", Engine()
        helpers = str(Path(__file__).parents[2] / "helpers")
        with subprocess.Popen(
            [sys.executable, "-c", HOLDS, str(path), str(window.folder.parent)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([helpers, *sys.path])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as job:
            assert job.stdout is not None
            assert job.stdout.readline() == b"held\n"
            hold = Hold("engine")
            with pytest.raises(EngineFailure, match=f"process {job.pid} on"):
                on_remote(hold.take(window, FilePlace(path), engine.stop))
            assert engine.stops == 0
            job.kill()
            job.wait(30)
        on_remote(hold.take(window, FilePlace(path), engine.stop))
        assert engine.stops == 1
        on_remote(hold.give())
        assert path.read_text() == ""

    @pytest.mark.parametrize("still_open", [True, False])
    def test_an_own_end_that_fails(self, place: Any, window: EngineWindow, still_open: bool) -> None:
        """If the capture may still run, the engine stays taken and the failure is raised. If it has ended, it is lost and the engine is free."""
        hold, engine = Hold("engine"), Engine(EngineFailure("no trace"))
        on_remote(hold.take(window, place(), engine.stop))
        if still_open:
            with pytest.raises(EngineFailure, match="no trace"):
                on_remote(hold.settle(engine))
        else:
            engine.hold = hold
            on_remote(hold.settle(engine))
        assert (hold.window is None) is not still_open
        on_remote(hold.give())

    def test_a_close_is_bounded(self, place: Any, window: EngineWindow) -> None:
        """`close` returns after its timeout, although the end of the capture takes longer."""
        hold, engine = Hold("engine"), Engine()
        engine.seconds = 5.0
        on_remote(hold.take(window, place(), engine.stop))
        began = time.monotonic()
        on_remote(hold.close(engine, 0.05))
        assert time.monotonic() - began < 4

    def test_a_stop_that_is_pending(self, place: Any, window: EngineWindow) -> None:
        """While a stop is pending, `settle` does not end the capture again."""
        hold, engine = Hold("engine"), Engine()

        async def run() -> None:
            await hold.take(window, place(), engine.stop)
            async with hold.ending:
                settling = asyncio.ensure_future(hold.settle(engine))
                await asyncio.sleep(0.02)
                await hold.give()
            await settling

        on_remote(run())
        assert engine.stops == 0

    def test_an_end_that_fails_late(
        self, place: Any, window: EngineWindow, log: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """If the end of a capture fails after `close` has returned, the reason is logged without a traceback."""
        hold, engine = Hold("engine"), Engine(EngineFailure("no answer"))
        engine.seconds = 0.2
        on_remote(hold.take(window, place(), engine.stop))
        on_remote(hold.close(engine, 0.01))
        deadline = time.monotonic() + 20
        while not [line for line in log if line["event"] == "capture.left"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        gc.collect()
        assert "never retrieved" not in caplog.text

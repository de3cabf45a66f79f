"""The driver that holds an engine's profiler: slots, live and dead holders, and captures that an ended run
left.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from driven import make_window, on_remote
from runs import ended_writer

from stepprof.host.process_identity import writer_identity
from stepprof.remote.base import Clock, EngineFailure, EngineWindow, Stopped
from stepprof.remote.core import owner_slots, ownership
from stepprof.remote.core.inherited_captures import keep, kept_there, left_there
from stepprof.remote.core.owner_slots import SILENT_SECONDS, FileSlot, Held, MemorySlot, shared_slot
from stepprof.remote.core.ownership import Hold
from stepprof.remote.core.trace_times import shortfall
from stepprof.run.layout import RunDir
from stepprof.run.manifest_writer import Fragment, Origin
from stepprof.run.model import Artifact, Window
from stepprof.run.schema import EngineEntry

HOUR = 3600.0
ELSEWHERE = {**writer_identity(), "host": "another-host"}


@pytest.fixture
def window(tmp_path: Path) -> EngineWindow:
    """Return a window of a run below the folder of the test."""
    return make_window(tmp_path / "runs" / "run", max_iterations=7, workers=frozenset({1}))


@pytest.fixture(params=["file", "memory"])
def slot(request: pytest.FixtureRequest, tmp_path: Path) -> FileSlot | MemorySlot:
    """Return a slot of each kind."""
    if request.param == "file":
        return FileSlot(tmp_path / "engine" / ".capture.json")
    return MemorySlot(f"object:{tmp_path}")


def held(window: EngineWindow, token: str = "1", **changes: Any) -> Held:
    """Return a holder, by default of this process."""
    here = writer_identity()
    return dataclasses.replace(Held(token, here, here, window), **changes)


class Finishing:
    """End captures, or fail to, and keep which windows were ended."""

    def __init__(self, stopped: Stopped | EngineFailure, hold: Hold | None = None) -> None:
        self.stopped = stopped
        self.hold = hold
        self.finished: list[EngineWindow] = []

    async def finish(self, window: EngineWindow) -> Stopped:
        """Return the configured result, or raise it."""
        self.finished.append(window)
        if self.hold is not None:
            await self.hold.give()
        if isinstance(self.stopped, EngineFailure):
            raise self.stopped
        return self.stopped


class TestSlots:
    def test_only_one_driver_holds_a_slot(self, slot: FileSlot | MemorySlot, window: EngineWindow) -> None:
        """The second driver finds the slot taken, and can neither remove nor replace the first one."""
        assert slot.read() is None
        assert slot.take(held(window, "1"))
        assert not slot.take(held(window, "2"))
        slot.give("2")
        found = slot.read()
        assert found is not None
        assert found.token == "1"
        slot.give("1")
        assert slot.read() is None

    def test_one_process_ends_a_capture(self, slot: FileSlot | MemorySlot, window: EngineWindow) -> None:
        """If two processes find a dead holder, only one may end its capture. Later claims of that capture
        are refused.
        """
        left = held(window)
        assert slot.take(left)
        release = slot.claim_end(left)
        assert release is not None
        assert slot.claim_end(left) is None
        slot.give(left.token)
        release()
        assert slot.claim_end(left) is None

    def test_a_process_that_died_while_it_ended_one(self, tmp_path: Path, window: EngineWindow) -> None:
        """If a process died while it ended a capture, the next process ends it and removes both claim
        files.
        """
        slot, left = FileSlot(tmp_path / "slot.json"), held(window)
        assert slot.take(left)
        (tmp_path / "slot.json.1.1").write_text(json.dumps(ended_writer()))
        release = slot.claim_end(left)
        assert release is not None
        release()
        assert [path.name for path in tmp_path.glob("slot*")] == ["slot.json"]

    def test_another_process_reads_the_same_holder(self, tmp_path: Path, window: EngineWindow) -> None:
        """Another process reads the same window and owner from the slot's file, without the driver object."""
        slot = FileSlot(tmp_path / "slot.json")
        reported = held(window, state={"folder": "step-2.rollout-0.1"}, driver=Finishing(Stopped()))
        assert slot.take(reported)
        found = slot.read()
        assert found is not None
        assert found.window == dataclasses.replace(window, owner=reported.owner)
        assert (found.state, found.driver, str(found)) == (reported.state, None, str(reported))
        assert str(found) == f"run test, step 2, rollout (process {os.getpid()} on {reported.owner['host']})"

    @pytest.mark.parametrize("text", ["", "{}", "[1]", '{"window": 1}'])
    def test_a_file_that_is_something_else(self, tmp_path: Path, text: str) -> None:
        """A slot file with other content raises EngineFailure, which names the file."""
        path = tmp_path / "slot.json"
        path.write_text(text)
        with pytest.raises(
            EngineFailure,
            match=r"slot\.json must name the process that records the engine, and is not trusted",
        ):
            FileSlot(path).read()

    def test_a_file_of_another_user(
        self, tmp_path: Path, window: EngineWindow, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A slot file of another user is not trusted, because it could name any folder. The engine counts
        as busy.
        """
        slot = FileSlot(tmp_path / "slot.json")
        assert slot.take(held(window))
        monkeypatch.setattr(owner_slots, "owner_for", lambda path: 4_000_000)
        with pytest.raises(EngineFailure, match="only user 4000000") as caught:
            on_remote(Hold("engine", slot).take(window))
        assert caught.value.health == "busy"

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path, window: EngineWindow) -> None:
        """If the slot cannot be written, no call is sent, because drivers could not see each other."""
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(EngineFailure, match="nothing was sent") as caught:
            FileSlot(tmp_path / "file" / "slot.json").take(held(window))
        assert caught.value.health == "unconfigured"

    def test_the_age_of_a_heartbeat(self, tmp_path: Path, window: EngineWindow) -> None:
        """The age of a heartbeat is measured by the clock of the file system. A new heartbeat resets it."""
        slot = FileSlot(tmp_path / "slot.json")
        assert slot.take(held(window))
        assert slot.silent_seconds() < 60
        os.utime(slot.path, (time.time() - HOUR, time.time() - HOUR))
        assert slot.silent_seconds() > HOUR / 2
        slot.beat()
        assert slot.silent_seconds() < 60

    def test_where_no_folder_is_shared(self, window: EngineWindow, tmp_path: Path) -> None:
        """Jobs with the same `output_dir` use the same slot file for one engine, and different files for
        different engines.
        """
        other = make_window(tmp_path / "runs" / "other", 7)
        assert shared_slot(window, "http://a:1").path == shared_slot(other, "http://a:1").path
        assert shared_slot(window, "http://a:1").path != shared_slot(window, "http://a:2").path
        assert shared_slot(window, "http://a:1").path.parent == tmp_path / "runs" / ".engines"


class TestLiving:
    @pytest.mark.parametrize(
        ("holder", "owner", "silent", "lives"),
        [
            ({}, {}, 0.0, True),
            (ended_writer(), {}, 0.0, False),
            ({}, ended_writer(), 0.0, False),
            (ELSEWHERE, ELSEWHERE, SILENT_SECONDS - 1, True),
            (ELSEWHERE, ELSEWHERE, SILENT_SECONDS + 1, False),
            ({}, ELSEWHERE, HOUR, True),
        ],
    )
    def test_dead_and_silent_holders_count_as_gone(
        self,
        window: EngineWindow,
        holder: Mapping[str, object],
        owner: Mapping[str, object],
        silent: float,
        lives: bool,
    ) -> None:
        """A process of this host is looked up. A process of another host counts as gone after a long
        silence. A holder in an actor also needs its owner process.
        """
        here = writer_identity()
        made = held(window, holder=holder or here, owner=owner or here)
        assert made.lives(silent, lambda token: token == "1") is lives

    def test_a_driver_of_this_process_that_was_detached(self, window: EngineWindow) -> None:
        """A detached driver does not count as alive, although its process lives."""
        assert not held(window).lives(0.0, lambda token: False)


class TestHold:
    def test_a_living_holder(self, slot: FileSlot | MemorySlot, window: EngineWindow) -> None:
        """While the first driver holds the engine, the second is refused, and the failure names the
        holder. It does not end the capture.
        """
        first, second = Hold("engine", slot), Hold("engine", slot)
        ending = Finishing(Stopped())
        on_remote(first.take(window, driver=ending))
        on_remote(second.settle(lambda _: ending))
        with pytest.raises(EngineFailure, match="recorded by another driver: run test, step 2") as caught:
            on_remote(second.take(window))
        assert (caught.value.health, ending.finished) == ("busy", [])
        on_remote(first.give())
        on_remote(second.take(window))
        on_remote(second.give())

    def test_a_holder_that_is_gone(self, slot: FileSlot | MemorySlot, window: EngineWindow) -> None:
        """The second driver ends the capture of a holder that is gone. The files are in the manifest of
        that run, and the engine is free.
        """
        first, second = Hold("engine", slot), Hold("engine", slot)
        path = window.output / "rank-0.trace.json.gz"
        path.write_bytes(b"trace")
        ending = Finishing(Stopped([Artifact(f"{window.stem}/{path.name}", "trace", 5)]))
        on_remote(first.take(window, driver=ending))
        first.retire()
        on_remote(second.settle(lambda _: ending))
        assert [each.window for each in ending.finished] == [window.window]
        (entry,) = entries(window)
        assert (entry["status"], entry["artifacts"][0]["path"]) == ("partial", f"{window.stem}/{path.name}")
        on_remote(second.take(window))
        on_remote(second.give())

    def test_a_holder_of_another_kind(self, slot: FileSlot | MemorySlot, window: EngineWindow) -> None:
        """The state of the holder is that of another kind of engine. Its window is lost with that reason,
        and the engine is free.
        """
        first, second = Hold("engine", slot), Hold("engine", slot)
        on_remote(first.take(window, state={"prefix": "vllm"}))
        first.retire()
        on_remote(second.settle(lambda held: held.state["by_stage"]))
        (entry,) = entries(window)
        assert (entry["status"], "another kind of engine" in entry["error"]) == ("lost", True)
        on_remote(second.take(window))
        on_remote(second.give())

    @pytest.mark.parametrize("still_open", [True, False])
    def test_an_end_that_fails(
        self, slot: FileSlot | MemorySlot, window: EngineWindow, still_open: bool
    ) -> None:
        """If the capture may still run, the engine stays taken and the failure is raised. If the capture
        has ended, its window is lost.
        """
        first, second = Hold("engine", slot), Hold("engine", slot)
        on_remote(first.take(window))
        first.retire()
        failing = Finishing(EngineFailure("no trace"), None if still_open else first)
        if still_open:
            with pytest.raises(EngineFailure, match="no trace"):
                on_remote(second.settle(lambda _: failing))
            assert slot.read() is not None
            slot.give(first._token)
            return
        on_remote(second.settle(lambda _: failing))
        (entry,) = entries(window)
        assert (entry["status"], "no trace" in entry["error"]) == ("lost", True)

    def test_a_holder_considered_dead_by_another_driver(
        self, slot: FileSlot | MemorySlot, window: EngineWindow
    ) -> None:
        """A driver that was considered dead finds that another driver has the engine. It gets the files
        that were kept for it, as partial.
        """
        first, second = Hold("engine", slot), Hold("engine", slot)
        on_remote(first.take(window))
        assert not on_remote(first.is_taken())
        slot.give(first._token)
        on_remote(second.take(make_window(window.folder.parent, 3)))
        assert on_remote(first.is_taken())
        (window.output / "rank-0.trace.json.gz").write_bytes(b"trace")
        stopped = on_remote(first.taken_over(window))
        assert [artifact.path for artifact in stopped.artifacts] == [f"{window.stem}/rank-0.trace.json.gz"]
        assert "considered this one dead" in stopped.partial
        assert not on_remote(second.is_taken())
        on_remote(second.give())

    def test_a_close_is_bounded(self, slot: FileSlot | MemorySlot, window: EngineWindow) -> None:
        """`close` returns after its timeout. The slot then counts as free, and the capture ends in the
        background.
        """

        class Hanging(Finishing):
            async def finish(self, window: EngineWindow) -> Stopped:
                await ownership.asyncio.sleep(0.5)
                return await super().finish(window)

        first = Hold("engine", slot)
        hanging = Hanging(Stopped(), first)
        on_remote(first.take(window))
        began = time.monotonic()
        on_remote(first.close(lambda _: hanging, 0.05))
        assert time.monotonic() - began < 10
        found = slot.read()
        assert found is not None
        assert not found.lives(0.0, ownership._living.__contains__)
        deadline = time.monotonic() + 20
        while slot.read() is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert slot.read() is None

    def test_a_stop_that_is_pending(self, tmp_path: Path, window: EngineWindow) -> None:
        """While a stop is pending, `close` and the next driver do not end the capture again. The next
        driver waits for that stop.
        """
        slot, ending = MemorySlot(f"object:{tmp_path}/pending"), Finishing(Stopped())
        first, second = Hold("engine", slot), Hold("engine", slot)

        async def run() -> Stopped:
            answer = ownership.asyncio.Event()

            async def end() -> Stopped:
                await answer.wait()
                await first.give()
                return Stopped(partial="of the stop")

            await first.take(window, driver=ending)
            stopping = ownership.asyncio.ensure_future(first.stop(window, end, lambda: None))
            await ownership.asyncio.sleep(0)
            await first.close(lambda _: ending, 0.05)
            settling = ownership.asyncio.ensure_future(second.settle(lambda _: ending))
            await ownership.asyncio.sleep(0.05)
            answer.set()
            await settling
            return await stopping

        assert on_remote(run()).partial == "of the stop"
        assert not ending.finished
        assert slot.read() is None
        assert not (window.folder / "manifest").exists()

    def test_an_end_that_fails_late(
        self, tmp_path: Path, window: EngineWindow, log: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """If the end of a capture fails after `close` has returned, the reason is logged without a
        traceback.
        """

        class Late(Finishing):
            async def finish(self, window: EngineWindow) -> Stopped:
                await ownership.asyncio.sleep(0.2)
                return await super().finish(window)

        first = Hold("engine", MemorySlot(f"object:{tmp_path}/late"))
        on_remote(first.take(window))
        on_remote(first.close(lambda _: Late(EngineFailure("no answer")), 0.01))
        deadline = time.monotonic() + 20
        while not [line for line in log if line["event"] == "capture.left"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        gc.collect()
        assert "never retrieved" not in caplog.text
        owner_slots._in_memory.clear()

    def test_a_holder_sends_heartbeats(
        self, tmp_path: Path, window: EngineWindow, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A holder refreshes its heartbeat while it holds the engine."""
        monkeypatch.setattr(ownership, "BEAT_SECONDS", 0.01)
        slot = FileSlot(tmp_path / "slot.json")
        hold = Hold("engine", slot)
        on_remote(hold.take(window))
        os.utime(slot.path, (time.time() - HOUR, time.time() - HOUR))
        deadline = time.monotonic() + 20
        while slot.silent_seconds() > 60 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert slot.silent_seconds() < 60
        on_remote(hold.give())

    def test_a_retired_holder_sends_no_heartbeats(
        self, tmp_path: Path, window: EngineWindow, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A retired holder ends its heartbeats, so that the next driver does not take it for alive."""
        monkeypatch.setattr(ownership, "BEAT_SECONDS", 0.01)
        hold = Hold("engine", FileSlot(tmp_path / "engine" / ".capture.json"))
        on_remote(hold.take(window))
        beating = hold._beating
        assert beating is not None
        hold.retire()
        deadline = time.monotonic() + 20
        while not beating.done():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def test_a_killed_process(self, tmp_path: Path, window: EngineWindow) -> None:
        """The slot of a killed process remains, but its holder counts as dead at once. Its capture is
        ended and the engine is free.
        """
        script = (
            "import sys; from pathlib import Path; from driven import make_window, on_remote\n"
            "from stepprof.remote.core.ownership import Hold; from stepprof.remote.core.owner_slots import FileSlot\n"
            "hold = Hold('engine', FileSlot(Path(sys.argv[1])))\n"
            "on_remote(hold.take(make_window(Path(sys.argv[2])))); print('held', flush=True); input()"
        )
        path = tmp_path / "slot.json"
        with subprocess.Popen(
            [sys.executable, "-c", script, str(path), str(window.folder.parent)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2] / "helpers"), *sys.path]),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as job:
            assert job.stdout is not None
            assert job.stdout.readline() == b"held\n"
            hold, ending = Hold("engine", FileSlot(path)), Finishing(Stopped())
            on_remote(hold.settle(lambda _: ending))
            assert not ending.finished
            job.kill()
            job.wait(30)
        on_remote(hold.settle(lambda _: ending))
        assert len(ending.finished) == 1
        on_remote(hold.take(window))
        on_remote(hold.give())


def entries(window: EngineWindow) -> list[dict[str, Any]]:
    """Return the entries of a window's engines in the manifest."""
    (path,) = (window.folder / "manifest").iterdir()
    reported: list[dict[str, Any]] = json.loads(path.read_text())["engines"]
    return reported


@pytest.fixture
def fragment(window: EngineWindow) -> Fragment:
    """Return a fragment of this process with the window's engine, written ahead as lost."""
    run = RunDir(window.folder.parent, "run")
    made = Fragment(Origin(run, 0, 1), Window(2, "rollout"), lambda act: act(), engines=True)
    made.engines.append(EngineEntry(role="rollout", replica=0, pending=True, error="lost"))
    made.write_ahead()
    return made


class TestKeeping:
    def test_an_entry_of_this_process(self, window: EngineWindow, fragment: Fragment) -> None:
        """The entry in memory changes together with the file, so the next write does not undo the change."""
        keep(window, Stopped([Artifact("a", "trace", 1)]), "why", fragment.origin.writer)
        assert fragment.engines[0].status == "partial"
        fragment.write()
        (entry,) = entries(window)
        assert (entry["status"], entry["error"], len(entry["artifacts"])) == ("partial", "why", 1)
        assert entry["end_unix_ns"] is not None

    def test_an_entry_of_another_process(self, window: EngineWindow, fragment: Fragment) -> None:
        """Only the fragment of the given process is changed."""
        gone = ended_writer()
        assert fragment.claim is not None
        path = fragment.claim.fragment
        content = json.loads(path.read_text())
        theirs = path.with_name("rollout-engines-rank-9.json")
        theirs.write_text(json.dumps({**content, "writer": gone}))
        keep(window, Stopped([Artifact("a", "trace", 1)], partial="half"), "why", gone)
        assert json.loads(theirs.read_text())["engines"][0]["error"] == "why; half"
        assert json.loads(path.read_text()) == content

    def test_better_information_is_kept(self, window: EngineWindow, fragment: Fragment) -> None:
        """A failed entry keeps its reason if no file was found. Later files are added to those that are
        already listed.
        """
        fragment.engines[0].update(status="failed", error="the stop failed")
        keep(window, Stopped(), "why", fragment.origin.writer)
        assert fragment.engines[0].error == "the stop failed"
        for name in "ab":
            keep(window, Stopped([Artifact(name, "trace", 1)]), "why", fragment.origin.writer)
        assert [each["path"] for each in fragment.engines[0].artifacts] == ["a", "b"]

    def test_a_process_that_died_at_once_gets_a_fragment(self, window: EngineWindow) -> None:
        """If the process died before it wrote a fragment, one is written in its name."""
        gone = ended_writer()
        keep(window, Stopped([Artifact("a", "trace", 1)]), "why", gone)
        (path,) = (window.folder / "manifest").iterdir()
        content = json.loads(path.read_text())
        assert (content["writer"]["pid"], content["engines"][0]["status"]) == (gone["pid"], "partial")

    def test_a_fragment_that_cannot_be_changed(self, window: EngineWindow, log: Any) -> None:
        """If the manifest cannot be written, one log line names the files."""
        (window.folder / "manifest").write_text("in the way")
        keep(window, Stopped([Artifact("a", "trace", 1)]), "why", ended_writer())
        (line,) = [line for line in log if line["event"] == "manifest.not_written"]
        assert line["files"] == ["a"]

    def test_existing_files_are_listed(self, window: EngineWindow) -> None:
        """Only files with the names of artifacts are listed. After a failed stop all files that are not
        hidden are listed.
        """
        for name in (
            "rank-0.trace.json.gz",
            "dp-1-rank-0.trace.json.gz",
            "x-TP-0.trace.json.gz",
            ".rank-1.trace.json.gz",
        ):
            (window.output / name).write_bytes(b"trace")
        assert [Path(each.path).name for each in kept_there(window)] == [
            "dp-1-rank-0.trace.json.gz",
            "rank-0.trace.json.gz",
        ]
        assert len(left_there(window)) == 3


class TestCovering:
    HERE = Clock("here", 0, 0, "same-host")
    SECOND = 10**9

    @pytest.mark.parametrize(
        ("began", "ended", "clock", "words"),
        [
            (9, 21, HERE, None),
            (9, 20, HERE, None),
            (12, 21, HERE, "began the capture that was returned, 2 s after"),
            (9, 15, HERE, "ended the capture 5 s before"),
            (2, 5, HERE, "ended the capture 15 s before"),
            (12, 23, Clock("there", 2 * SECOND, 0, "ping-pong"), None),
            (9, 21, Clock("there", -2 * SECOND, 0, "ping-pong"), "began the capture"),
            (12, 21, Clock("there", 0, 3 * SECOND, "http-date"), None),
            (12, 15, None, None),
            (None, 15, HERE, None),
        ],
    )
    def test_a_window_from_10_to_20(
        self, began: int | None, ended: int, clock: Clock | None, words: str | None
    ) -> None:
        """A trace that does not cover the window has a reason. The comparison uses the engine's clock and
        its error, and makes no statement without a clock.
        """
        began_ns = None if began is None else began * self.SECOND
        artifact = Artifact("a", "trace", 1, ended_ns=ended * self.SECOND, began_ns=began_ns)
        found = shortfall([artifact], 10 * self.SECOND, 20 * self.SECOND, clock)
        assert (found is None) is (words is None)
        assert words is None or words in str(found)

    def test_a_begin_that_is_not_compared_is_not_short(self) -> None:
        """If the begin of the window is not compared, as for a capture with a delay, the trace is not
        short.
        """
        artifact = Artifact("a", "trace", 1, ended_ns=21 * self.SECOND, began_ns=15 * self.SECOND)
        assert shortfall([artifact], None, 20 * self.SECOND, self.HERE) is None

"""One SGLang engine's captures, from arm to stop, whatever the way it is spoken to.

What only this module knows: how to find out whether an engine records. SGLang answers a second start with success, throws the
first capture away and writes into the first one's folder (and, since a range of its scheduler's is open then, into memory that torch has
given back: see `stepprof.remote.sglang.stages`); it keeps a request armed whose steps did not come; a stop without a capture is an
error, and also what follows a capture that has ended by itself. But it refuses a start for a later forward step while it records, and
changes nothing then. So such a start is sent first, for a step that never comes, and the real one only after it was accepted.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from stepprof.log import logger
from stepprof.remote.base import EngineFailure, Stopped
from stepprof.remote.core.ownership import Hold
from stepprof.remote.loop import in_thread
from stepprof.remote.nsys.engine import NsysPart, Started
from stepprof.remote.sglang.files import bring, discard, find, folder_of, is_whole, require_writable
from stepprof.remote.sglang.request import Facts, Request
from stepprof.run.manifest_writer import describe_error

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow
    from stepprof.remote.core.owner_slots import Finisher, Held, Slot
    from stepprof.run.model import Artifact

__all__ = ["Link", "SglangCapture"]

UNANSWERED_SECONDS = 120.0
"""How long the files of 0.4.6, which does not answer a stop, are waited for."""

STAGES_SECONDS = 20.0
"""How long the files of the later stages of a pipeline are waited for."""

LOOK_SECONDS = 0.25

STOPPED_BY_OTHERS = "another client stopped it before the window ended"


class Link(Protocol):
    """How an engine is spoken to: an object in this process, or a server."""

    async def facts(self, window: EngineWindow) -> Facts:
        """What the engine is. Raises EngineFailure where it must not be started."""

    async def nsys(self, window: EngineWindow) -> Started:
        """How its process was started under nsys."""

    def answers(self) -> bool:
        """Whether a call would be answered while the caller goes on; a synchronous engine answers only while it is waited for."""

    def slot(self, window: EngineWindow) -> Slot:
        """Where the drivers of this engine note which of them records."""

    async def records(self, fields: Mapping[str, Any]) -> str | None:
        """Send a start for a step that never comes. Return how it was refused, as it is while the engine records; None: it was not."""

    async def start(self, fields: Mapping[str, Any]) -> None:
        """Send a start."""

    async def stop(self) -> bool | None:
        """Send a stop. True: it recorded; False: it says that it did not; None: it refused, and does not say why."""

    def withdraw(self) -> bool:
        """Take back a start that has not been sent yet; whether there was one."""


@dataclass(slots=True)
class _Sent:
    """A start that was sent: a stop must follow."""

    window: EngineWindow
    request: Request
    folder: Path
    part: NsysPart | None = None
    """Of what nsys records."""
    doubtful: bool = False
    """Whether it is over is not known: a stop failed, or a start was not answered."""


class SglangCapture:
    """Arm, start, stop and abort, over a link."""

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self._name = name
        self._hold = Hold(name)
        self._facts: Facts | None = None
        self._sent: _Sent | None = None

    @property
    def workers(self) -> int | None:
        """How many processes write a trace, once that is known."""
        return None if self._facts is None else self._facts.workers

    async def arm(self, window: EngineWindow) -> None:
        """Everything that can be refused: the engine, the request, the folder."""
        self._refuse_second("armed")
        self._facts = await self._link.facts(window)
        folder = folder_of(window)
        Request.of(window, self._facts, folder)
        await in_thread(require_writable, folder, "started")
        if self._hold.held is None:
            self._hold.slot = self._link.slot(window)
        if self._link.answers():
            await self._hold.settle(self._finisher)

    async def start(self, window: EngineWindow) -> None:
        """Send the start: once it has left, it is kept until its stop has been answered."""
        self._refuse_second("started")
        if self._facts is None or (self._sent is not None and self._sent.doubtful):
            await self.arm(window)
        assert self._facts is not None  # noqa: S101 - narrows a type; no input decides it
        folder = folder_of(window)
        request = Request.of(window, self._facts, folder)
        await in_thread(require_writable, folder, "started")
        await self._hold.settle(self._finisher)
        await self._hold.take(window, driver=self, state={"folder": str(folder), **request.noted})
        self._sent = sent = _Sent(window, request, folder)
        try:
            await self._refuse_others(self._facts, folder)
            if "nsys" in request.backends:
                started = await self._link.nsys(window)
                sent.part = await NsysPart.begin(window, started, lambda: self._link.start(request.fields))
            else:
                await self._link.start(request.fields)
        except Exception as error:
            if isinstance(error, EngineFailure) and not error.owes_stop:
                await self._free()
            else:  # it may have arrived
                sent.doubtful = True
            raise

    async def _refuse_others(self, facts: Facts, folder: Path) -> None:
        """Refuse an engine that records for someone else. Raises EngineFailure: nothing was begun."""
        if "start_step" not in facts.fields:
            return
        try:
            refusal = await self._link.records(Request.of_a_step_that_never_comes(facts, folder).fields)
        except EngineFailure as error:
            error.owes_stop = False
            raise
        except Exception as error:
            raise EngineFailure(
                f"{self._name} did not say whether it records: {describe_error(error)}"
            ) from error
        if refusal is not None:
            raise EngineFailure(
                f"{self._name} records already, and not for a job that is known here; it is left alone ({refusal}). If no process waits for that "
                "capture (a job that died may have left it), call its stop_profile once (a server: POST /stop_profile)",
                "busy",
            )

    async def stop(self, window: EngineWindow) -> Stopped:
        """End the capture, and bring its files to the run."""
        return await self._hold.stop(window, lambda: self._end(send=True), self._forget)

    def _forget(self) -> None:
        self._sent = None

    async def finish(self, window: EngineWindow) -> Stopped:
        """End a capture whose stop failed, or never came; it is left alone where another stop has ended it."""
        sent, facts = self._sent, self._facts
        if sent is None or facts is None or sent.request.by_stage:
            return await self._end(send=True)
        return await self._end(send=not await in_thread(find, sent.folder, facts.users))

    @property
    def writes_to(self) -> Path | None:
        """Where the capture that runs is written."""
        return None if self._sent is None else self._sent.folder

    async def close(self, timeout: float) -> None:
        """Stop what is still open, and keep it as partial; another driver may have the engine then."""
        await self._hold.close(self._finisher, timeout)

    def retire(self) -> None:
        """Take no more part; what is still open is left to the next driver."""
        self._hold.retire()

    def _finisher(self, held: Held) -> Finisher:
        """Return what can end a capture: this driver its own, another one that of a driver that is gone."""
        if held is self._hold.held:
            return self
        made = SglangCapture(self._link, self._name)
        made._facts = self._facts
        made._sent = _Sent(held.window, Request.from_noted(held.state), Path(held.state["folder"]))
        made._hold = Hold.of(self._name, self._hold.slot, held)
        return made

    async def _free(self) -> None:
        self._sent = None
        await self._hold.give()

    async def _end(self, *, send: bool) -> Stopped:
        try:
            return await self._ended(send=send)
        finally:
            if self._sent is None:
                await self._hold.give()

    async def _ended(self, *, send: bool) -> Stopped:
        sent, facts = self._sent, self._facts
        if sent is None or facts is None:
            raise EngineFailure("stop without start: nothing was sent to the engine", "ok")
        if self._link.withdraw():
            self._sent = None
            if sent.part is not None:
                sent.part.withdraw()
            raise EngineFailure(
                "the engine was not used while the window was open, and never before: nothing was sent to it",
                "ok",
            )
        if sent.part is not None:
            return await self._end_range(sent, sent.part)
        recorded: bool | None = False
        if send:
            recorded = await self._send_stop(sent)
        self._sent = None
        if not facts.answers and sent.request.writes_traces:
            await _until_whole(sent.folder, facts, UNANSWERED_SECONDS)
        elif facts.ranks > facts.tp:  # only the first stage of a pipeline is waited for
            await _until_whole(sent.folder, facts, STAGES_SECONDS)
        brought = await in_thread(_bring, sent, facts)
        if sent.request.by_stage and len(brought.stages) < 2:
            await self._clear(sent, facts)
        if not brought.artifacts and not brought.problems:
            raise EngineFailure(await in_thread(_nothing, recorded, sent), "ok")
        ended_itself = not recorded and _reached_bound(brought.artifacts, sent.request)
        if not recorded and not ended_itself:
            brought.problems.insert(0, STOPPED_BY_OTHERS)
        return Stopped(
            tuple(brought.artifacts),
            capped_by="engine" if ended_itself else None,
            partial="; ".join(brought.problems) or None,
        )

    async def _end_range(self, sent: _Sent, part: NsysPart) -> Stopped:
        """End its part in a capture of nsys's, which writes the report."""
        recorded: bool | None = True

        async def send() -> None:
            nonlocal recorded
            recorded = await self._send_stop(sent)

        stopped = await part.end(send)
        self._sent = None
        if recorded:
            return stopped
        if sent.request.bound is not None:
            return replace(stopped, capped_by="engine")
        return replace(stopped, partial=stopped.partial or STOPPED_BY_OTHERS)

    async def abort(self) -> None:
        """End whatever was sent and throw away what it brought; what had ended by itself is no failure."""
        async with self._hold.ending:
            await self._abort()

    async def _abort(self) -> None:
        sent, facts = self._sent, self._facts
        if sent is None or facts is None:
            return
        part = sent.part
        if not self._link.withdraw() and (part is None or part.sent):
            await self._send_stop(sent)
            if sent.request.by_stage:
                await self._clear(sent, facts)
        await self._free()
        if part is not None:
            part.abandon()
        await in_thread(discard, sent.folder, facts.users)

    async def _send_stop(self, sent: _Sent) -> bool | None:
        sent.doubtful = False
        try:
            await in_thread(require_writable, sent.folder, "stopped")
            recorded = await self._link.stop()
        except Exception as error:
            sent.doubtful = True
            if isinstance(error, EngineFailure) and error.health in ("dead", "unreachable"):
                await self._free()  # what answers there next has nothing of ours
            raise
        self._sent = None
        return recorded

    async def _clear(self, sent: _Sent, facts: Facts) -> None:
        """Take back what a request left armed: a stage that did not come would be captured whenever it comes."""
        scratch = sent.folder / ".clearing"
        try:
            await self._link.start(Request.clearing(facts, scratch).fields)
            self._sent = _Sent(sent.window, Request.clearing(facts, scratch), scratch, doubtful=True)
            await self._send_stop(self._sent)
        except EngineFailure as error:
            logger.warning("sglang.stage_left", name=facts.name, reason=str(error))
        finally:
            await in_thread(lambda: shutil.rmtree(scratch, ignore_errors=True))

    def _refuse_second(self, what: str) -> None:
        sent = self._sent
        if sent is not None and not sent.doubtful:
            raise EngineFailure(
                f"{self._name} records step {sent.window.window.step} already; it was not {what}: SGLang would throw the first capture away",
                "busy",
            )


def _bring(sent: _Sent, facts: Facts) -> Any:
    brought = bring(sent.folder, sent.window, facts, sent.request)
    folder, shared = sent.folder, sent.window.trace_dir
    while shared is not None and folder != shared:
        try:
            folder.rmdir()
        except OSError:  # the first one that is not empty is where others are
            break
        folder = folder.parent
    return brought


def _reached_bound(artifacts: Sequence[Artifact], request: Request) -> bool:
    """Whether a capture that had ended before its stop ended by its bound: else another driver stopped it. An old engine names no forward steps, and is believed."""
    counts = [artifact.forward_steps for artifact in artifacts]
    if request.bound is None:
        return False
    recorded = sum(counts) if request.cut else max(counts, default=0)
    return not recorded or recorded >= request.bound


def _nothing(recorded: bool | None, sent: _Sent) -> str:
    if find(sent.folder):
        return f"the traces in {sent.folder} belong to another user than the engine"
    if recorded:
        return (
            f"the stop has returned, and there is no trace in {sent.folder}: the engine sees another folder under that name; name one that "
            "both see: attach(…, trace_dir=…)"
        )
    if sent.request.by_stage:
        return "the engine ran no forward step while the window was open: there is no stage to record"
    return "the engine says that it was not recording, and left no trace: another client stopped it, or it was restarted"


async def _until_whole(folder: Path, facts: Facts, seconds: float) -> None:
    """Wait for files that SGLang does not announce."""
    waited = 0.0
    while waited < seconds:
        found = await in_thread(find, folder, facts.users)
        whole = [await in_thread(is_whole, each.path, facts.users) for each in found]
        if len(found) >= facts.workers and all(whole):
            return
        await asyncio.sleep(LOOK_SECONDS)
        waited += LOOK_SECONDS

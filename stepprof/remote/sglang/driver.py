"""Record an SGLang engine: an ``Engine`` or ``TokenizerManager`` of this process, or a server.

`SglangDriver` knows how to find out whether an engine records. SGLang answers a second start with
success, discards the first capture and writes into its folder (and into freed memory: see
`stepprof.remote.sglang.stages`). A request whose steps were never reached stays armed. A stop fails
without a capture, and also after a capture that has ended by itself. But while it records, SGLang
refuses a start for a later forward step, and changes nothing. So a start for a step that never
comes is sent first, and the real one only if that was accepted.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.remote.base import EngineDriver, EngineFailure, Stopped
from stepprof.remote.core.ownership import LEFT, Hold
from stepprof.remote.core.statistics import Reading, between
from stepprof.remote.kinds import ObjectKind
from stepprof.remote.loop import in_thread
from stepprof.remote.nsys import NsysPart
from stepprof.remote.sglang.files import bring, discard, find, folder_of, holder_of, require_writable
from stepprof.remote.sglang.object_link import ObjectLink
from stepprof.remote.sglang.outcome import STOPPED_BY_OTHERS, credible, outcome, wait_for_files
from stepprof.remote.sglang.request import Facts, Request
from stepprof.remote.sglang.server_link import ServerLink
from stepprof.run.manifest_writer import describe_error

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator

    from stepprof.remote.base import Clock, EngineWindow
    from stepprof.remote.core.statistics import Sample
    from stepprof.remote.http.client import Client

MARGIN = 0.8
"""The share of a timeout for which calls may run the engine's loop: it is free again before the caller continues."""


@dataclass(slots=True)
class _Sent:
    """A start that was sent: a stop must follow."""

    window: EngineWindow
    request: Request
    folder: Path
    part: NsysPart | None = None
    """The part in a report of nsys."""
    doubtful: bool = False
    """Whether it is unknown if the capture is over: a stop failed, or a start was not answered."""


class SglangDriver(EngineDriver):
    """Records one engine."""

    kind = "sglang"

    def __init__(self, link: ObjectLink | ServerLink) -> None:
        self._link = link
        self.name = link.name
        self.key = link.key
        self.host = link.process.host
        self.runs_loop = link.runs_loop
        self._hold = Hold(link.name)
        self._facts: Facts | None = None
        self._sent: _Sent | None = None
        self._before: Sample | None = None
        """The engine's counters at the start."""

    @classmethod
    def of_engine(cls, engine: object, name: str | None = None) -> SglangDriver:
        """Return the driver of an engine object of this process; ``name`` defaults to its type."""
        return cls(ObjectLink(engine, name or type(engine).__name__))

    @classmethod
    def of_server(cls, client: Client) -> SglangDriver:
        """Return the driver of the server that a client speaks to."""
        return cls(ServerLink(client))

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that an engine object lives on."""
        return self._link.loop

    @property
    def workers(self) -> int | None:
        """The number of processes that write a trace; None: not known yet."""
        facts = self._facts or self._link.describe()
        return None if facts is None else facts.workers

    @property
    def writes_to(self) -> Path | None:
        """The folder that the running capture is written to."""
        return None if self._sent is None else self._sent.folder

    async def arm(self, window: EngineWindow) -> None:
        """Check that the engine answers and would survive the request, and that its folder can be written."""
        self._refuse_second("armed")
        self._facts = await self._link.facts(window)
        self.host = self._link.process.host
        folder = folder_of(window)
        Request.of(window, self._facts, folder)
        await in_thread(require_writable, folder, "started")
        if self._link.answers:
            await self._hold.settle(self)

    async def start(self, window: EngineWindow) -> None:
        """Send the start. An engine that was never used starts with its first request."""
        async with self._caller_waits(window.start_seconds):
            await self._start(window)

    @contextlib.asynccontextmanager
    async def _caller_waits(self, seconds: float) -> AsyncIterator[None]:
        """Let calls run the engine's loop while the caller waits, and end each such run before it continues."""
        self._link.allow(MARGIN * seconds)
        try:
            yield
        finally:
            await self._link.release()

    async def _start(self, window: EngineWindow) -> None:
        self._refuse_second("started")
        if self._facts is None or (self._sent is not None and self._sent.doubtful):
            await self.arm(window)
        assert self._facts is not None  # noqa: S101 - narrows a type; no input decides it
        folder = folder_of(window)
        request = Request.of(window, self._facts, folder)
        await in_thread(require_writable, folder, "started")
        await self._hold.settle(self)
        place = self._link.process.place(window, holder_of(window, self.key))
        await self._hold.take(window, place, self._link.stop)
        self._sent = sent = _Sent(window, request, folder)
        reading = Reading(self._link.statistics(), self.name)
        try:
            await self._refuse_others(self._facts, folder)
            await self._send_start(sent)
        except ours(Exception) as error:
            if isinstance(error, EngineFailure) and not error.owes_stop:
                await self._free()
            else:  # the start may have arrived
                sent.doubtful = True
            raise
        self._before = reading.now()

    async def _send_start(self, sent: _Sent) -> None:
        if "nsys" not in sent.request.backends:
            await self._link.start(sent.request.fields)
            return
        started = await self._link.process.nsys(sent.window)
        sent.part = await NsysPart.begin(sent.window, started, lambda: self._link.start(sent.request.fields))

    async def _refuse_others(self, facts: Facts, folder: Path) -> None:
        """Raise EngineFailure if the engine records for another client. Starts nothing."""
        if "start_step" not in facts.fields:
            return
        try:
            refusal = await self._link.records(Request.of_a_step_that_never_comes(facts, folder).fields)
        except EngineFailure as error:
            error.owes_stop = False
            raise
        except ours(Exception) as error:
            raise EngineFailure(
                f"{self.name} did not answer whether it records: {describe_error(error)}"
            ) from error
        if refusal is not None:
            raise EngineFailure(
                f"{self.name} is already recording for an unknown job; it is left alone ({refusal}). If no process waits for that "
                "capture (a job that died may have left it), call its stop_profile once (a server: POST /stop_profile)",
                "busy",
            )

    async def stop(self, window: EngineWindow) -> Stopped:
        """End the capture, and move its files to the run."""
        async with self._caller_waits(window.stop_seconds):
            return await self._stop(window)

    async def _stop(self, window: EngineWindow) -> Stopped:
        late = self._link.late
        before, self._before = self._before, None
        reading = Reading(self._link.statistics(), self.name)
        async with self._hold.ending:
            if self._sent is not None and self._hold.window is None:
                self._sent = None
                raise EngineFailure(LEFT, "ok")
            stopped = await self._end(send=True)
        return replace(
            stopped,
            partial="; ".join(filter(None, [late, stopped.partial])) or None,
            statistics=credible(between(before, reading.now()), self._facts),
        )

    async def finish(self, window: EngineWindow) -> Stopped:
        """End a capture whose stop failed or was never sent. Sends no stop if another client has ended it."""
        sent, facts = self._sent, self._facts
        if sent is None or facts is None or sent.request.by_stage:
            return await self._end(send=True)
        return await self._end(send=not await in_thread(find, sent.folder, facts.users))

    async def close(self, timeout: float, answer_seconds: float) -> None:
        """Stop an open capture, and keep it as partial. Another driver may use the engine afterwards."""
        await self._hold.close(self, answer_seconds)

    def retire(self) -> None:
        """Stop calling the engine. The next driver stops a capture that is still open."""
        self._hold.retire()

    async def clock(self) -> Clock | None:
        """Compare the engine's clock with that of this process."""
        return await self._link.process.clock()

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
        recorded = await self._send_stop(sent) if send else False
        self._sent = None
        await wait_for_files(sent.folder, facts, sent.request)
        brought = await in_thread(bring, sent.folder, sent.window, facts, sent.request)
        if sent.request.by_stage and len(brought.stages) < 2:
            await self._clear(sent, facts)
        return await in_thread(outcome, brought, recorded, sent.request, sent.folder)

    async def _end_range(self, sent: _Sent, part: NsysPart) -> Stopped:
        """End the engine's part in a range of nsys, which writes the report."""
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
        """Stop the capture of this driver, and drop its files. A capture that had ended by itself is no failure."""
        self._link.allow(0.0)  # the caller continues, and its own use of the engine gets the stop answered
        async with self._hold.ending:
            if self._sent is not None and self._facts is not None and self._hold.window is not None:
                await self._drop(self._sent, self._facts)

    async def _drop(self, sent: _Sent, facts: Facts) -> None:
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
        except ours(Exception) as error:
            sent.doubtful = True
            if isinstance(error, EngineFailure) and error.health in ("dead", "unreachable"):
                await self._free()  # the next engine has none of this driver's captures
            raise
        self._sent = None
        return recorded

    async def _clear(self, sent: _Sent, facts: Facts) -> None:
        """Withdraw a request that stays armed: otherwise a stage that was not reached would be captured at any later time."""
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
                f"{self.name} records step {sent.window.window.step} already; it was not {what}: SGLang would discard the first capture",
                "busy",
            )


class SglangKind(ObjectKind):
    """Recognises SGLang's engine objects."""

    package = "sglang"
    names = frozenset({"Engine", "TokenizerManager"})
    what = "an SGLang engine"
    driver = SglangDriver.of_engine

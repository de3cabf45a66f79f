"""Record a vLLM engine: an ``AsyncLLM`` or ``LLM`` of this process, or a server.

`VllmDriver` knows the order of the steps of a capture and its files. How the engine is called is in `stepprof.remote.vllm.object_link` and
`stepprof.remote.vllm.server_link`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepprof.host import real_time
from stepprof.remote.base import Clock, EngineDriver, EngineFailure, Stopped
from stepprof.remote.core.engine_backends import by_nsys, refuse_backends
from stepprof.remote.core.ownership import LEFT, Hold
from stepprof.remote.core.statistics import Reading, between
from stepprof.remote.kinds import ObjectKind
from stepprof.remote.loop import in_thread
from stepprof.remote.nsys import NsysPart
from stepprof.remote.vllm.arguments import engine_args, environment, serve_args
from stepprof.remote.vllm.capabilities import bound_of, differences, outcome, start_arguments
from stepprof.remote.vllm.files import bring
from stepprof.remote.vllm.folder import Session, TraceFolder, new_prefix
from stepprof.remote.vllm.object_link import ObjectLink
from stepprof.remote.vllm.server_link import ServerLink

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from stepprof.remote.base import EngineWindow
    from stepprof.remote.core.statistics import Sample
    from stepprof.remote.http.client import Client
    from stepprof.remote.vllm.link import Facts

__all__ = ["VllmDriver", "VllmKind", "engine_args", "environment", "serve_args"]


class VllmDriver(EngineDriver):
    """Records one engine."""

    kind = "vllm"

    def __init__(self, link: ObjectLink | ServerLink) -> None:
        self._link = link
        self.name = link.name
        self.key = link.key
        self.host = link.process.host
        self.workers = link.processes().count
        self._hold = Hold(link.called)
        self._prefix = new_prefix()
        self._facts: Facts | None = None
        self._place: TraceFolder | None = None
        self._session: Session | None = None
        """The capture that a stop is pending for."""
        self._part: NsysPart | None = None
        self._before: Sample | None = None
        """The engine's counters at the start."""
        self._brought = False
        """Whether a failed stop has left the files of the capture."""

    @classmethod
    def of_engine(cls, engine: object, name: str | None = None) -> VllmDriver:
        """Return the driver of an engine object of this process; ``name`` defaults to its type."""
        return cls(ObjectLink(engine, name or type(engine).__name__))

    @classmethod
    def of_server(cls, client: Client) -> VllmDriver:
        """Return the driver of the server that a client speaks to."""
        return cls(ServerLink(client))

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that an engine object lives on."""
        return self._link.loop

    @property
    def inside(self) -> bool:
        """Whether the engine's worker is this process."""
        return self._link.inside

    @property
    def writes_to(self) -> Path | None:
        """The folder that the running capture is written to, if it can be seen from here."""
        return None if self._session is None or self._place is None else self._session.folder

    async def arm(self, window: EngineWindow) -> None:
        """Check that the engine is alive, was configured to be recorded and accepts the limits; prepare its folder."""
        refuse_backends(self.kind, window.options, self.name)
        self._facts = facts = await self._link.facts(window)
        self.host = self._link.process.host
        start_arguments(window, facts.settings, facts.takes, self._prefix)
        for line in differences(window, facts.settings, facts.takes):
            self._link.warn(line)
        self._place = None if by_nsys(window.options) else await self._link.place(window, facts.settings)
        await self._hold.settle(self)

    async def start(self, window: EngineWindow) -> None:
        """Point the engine's folder at this window, and start the capture."""
        self._link.require_alive()
        facts, place = self._facts, self._place
        if facts is None:
            raise EngineFailure("start without arm: nothing was sent to the engine", "ok")
        given = start_arguments(window, facts.settings, facts.takes, self._prefix)
        await self._hold.settle(self)
        held = self._link.process.place(window, None if place is None else place.holder)
        await self._hold.take(window, held, self._link.leave)
        session = None
        try:
            session = Session(Path()) if place is None else await in_thread(place.begin, window)
            if place is not None:
                await in_thread(place.lead, session)
            self._session, self._brought = session, False
            reading = Reading(self._link.statistics(), self.name)
            await self._send_start(window, given)
            self._before = reading.now()
        except BaseException as error:
            if not getattr(error, "owes_stop", self._session is not None):
                await self._free()
                if place is not None and session is not None:
                    await in_thread(place.end, session)
            raise

    async def _send_start(self, window: EngineWindow, given: Mapping[str, object]) -> None:
        if by_nsys(window.options):
            started = await self._link.process.nsys(window)
            self._part = await NsysPart.begin(window, started, lambda: self._link.start(given))
        else:
            await self._link.start(given)

    async def stop(self, window: EngineWindow) -> Stopped:
        """Stop the capture, and move its files to the run, if they are visible from here."""
        before, self._before = self._before, None
        reading = Reading(self._link.statistics(), self.name)
        async with self._hold.ending:
            if self._session is not None and self._hold.window is None:
                self._forget()
                raise EngineFailure(LEFT, "ok")
            stopped = await self._stop(window)
        return replace(stopped, statistics=between(before, reading.now()))

    async def _stop(self, window: EngineWindow) -> Stopped:
        if self._part is None:
            return await self._end(window, send=True)
        stopped = await self._part.end(self._link.stop)
        self._part = None
        await self._free()
        return stopped

    async def finish(self, window: EngineWindow) -> Stopped:
        """End a capture whose stop failed or was never sent. Sends no stop if another client has ended it."""
        place, session = self._place, self._session
        if by_nsys(window.options):
            await self._link.leave()
            self._forget()
            await self._hold.give()
            return Stopped()
        over = (
            place is not None
            and session is not None
            and await in_thread(place.is_over, session, window, self._prefix)
        )
        try:
            return await self._end(window, send=not over)
        except EngineFailure:
            if self._brought and self._session is None:  # this stop succeeded, and had nothing to add
                return Stopped()
            raise

    async def _end(self, window: EngineWindow, *, send: bool) -> Stopped:
        place, session, facts = self._place, self._session, self._facts
        if session is None or facts is None:
            raise EngineFailure("stop without start: nothing was sent to the engine", "ok")
        early = place is not None and bool(await in_thread(place.traces, session, self._prefix))
        sent_ns = real_time.time_ns()
        failure: EngineFailure | None = None
        try:
            if send:
                await self._link.stop()
        except EngineFailure as error:
            failure = error
        over = failure is None or self._link.dead
        if over:  # otherwise the capture may still run: the next start stops it first
            await self._free()
        workers = self._link.processes()
        if place is None:
            if failure is not None:
                raise failure
            return Stopped(partial=self._link.elsewhere)
        brought = await in_thread(lambda: bring(place, session, window, self._prefix, workers, over=over))
        if failure is not None:
            self._brought |= bool(brought.artifacts)
            if (
                brought.artifacts
            ):  # the engine's own limit had ended the capture before, or only the answer was lost
                return Stopped(tuple(brought.artifacts), partial=str(failure))
            raise failure
        if self._link.process.same_host:
            early = early or any(written < sent_ns for written in brought.written_ns)
        asleep = brought.steps == 0 and await self._link.is_asleep()
        bound = bound_of(window, facts.settings, facts.takes)
        return outcome(window, brought, workers, early=early, asleep=asleep, name=self.name, bound=bound)

    async def abort(self) -> None:
        """Stop the capture of this driver, and drop its files. Raises EngineFailure if the engine is dead or refuses."""
        dead = self._link.dead
        async with self._hold.ending:
            if self._hold.window is not None:
                await self._drop(send=not dead)
        if dead:
            self._link.require_alive()

    async def _drop(self, *, send: bool) -> None:
        if send:
            await self._link.leave()
        session = self._session
        self._forget()
        await self._hold.give()
        if self._place is not None and session is not None:
            await in_thread(self._place.discard, session, self._prefix)

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
        self._session = None
        await self._hold.give()

    def _forget(self) -> None:
        part, self._part, self._session = self._part, None, None
        if part is not None:
            part.abandon()


class VllmKind(ObjectKind):
    """Recognises vLLM's engine objects."""

    package = "vllm"
    names = frozenset({"AsyncLLM", "LLM", "LLMEngine", "AsyncLLMEngine"})
    what = "a vLLM engine"
    driver = VllmDriver.of_engine

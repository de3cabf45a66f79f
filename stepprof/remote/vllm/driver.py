"""vLLM in this process: starts and stops the profiler of an ``AsyncLLM`` or an ``LLM``, as each version needs it.

What only this module knows: which of its calls can be believed, and that three things end a process: its front-end profiler (started and stopped on two threads), stacks in a long capture,
and a second profiler in a process that is its own worker. Servers are in `stepprof.remote.vllm.server`.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stepprof.log import logger
from stepprof.remote.base import Clock, EngineDriver, EngineFailure, Stopped
from stepprof.remote.core.engine_backends import by_nsys, refuse_backends
from stepprof.remote.core.owner_slots import MemorySlot
from stepprof.remote.core.ownership import Hold
from stepprof.remote.kinds import check_options
from stepprof.remote.loop import in_thread, on_loop
from stepprof.remote.nsys.engine import NsysPart, this_process
from stepprof.remote.vllm.arguments import Settings, engine_args, environment, serve_args
from stepprof.remote.vllm.capabilities import bound_of, died, differences, outcome, start_arguments
from stepprof.remote.vllm.engine_object import EngineObject
from stepprof.remote.vllm.files import bring
from stepprof.remote.vllm.folder import Session, TraceFolder, new_prefix
from stepprof.remote.vllm.server import VllmServer

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow, Health
    from stepprof.remote.core.owner_slots import Finisher, Held

__all__ = ["VllmEngine", "VllmKind", "VllmServer", "engine_args", "environment", "serve_args"]

T = TypeVar("T")

NAMES = frozenset({"AsyncLLM", "LLM", "LLMEngine", "AsyncLLMEngine"})

LOOK_SECONDS = 0.5
"""How often a call that has not been answered looks whether the engine still lives: vLLM leaves such a call open for ever."""

DYING_LOOKS = 6


class VllmKind:
    """Recognises vLLM's engine objects."""

    def recognises(self, target: object) -> bool:
        """Whether it is one, or of a class derived from one."""
        return any(
            base.__name__ in NAMES and base.__module__.partition(".")[0] == "vllm"
            for base in type(target).__mro__
        )

    def connect(self, target: object, **options: object) -> EngineDriver:
        """A driver for it. Nothing is asked of the engine yet."""
        name = options.pop("name", None)
        options = {key: value for key, value in options.items() if key not in ("kind", "find")}
        check_options(options, (), "a vLLM engine")
        return VllmEngine(target, None if name is None else str(name))


class VllmEngine(EngineDriver):
    """Speaks to an engine object of this process.

    Args:
        engine: an ``AsyncLLM``, an ``LLM``, or what they derive from in older versions.
        name: what it is called in logs; None: its type.
    """

    kind = "vllm"
    workers: int

    def __init__(self, engine: object, name: str | None = None) -> None:
        self.name = name or type(engine).__name__
        self._object = EngineObject(engine, self.name)
        self._prefix = new_prefix()
        self._place: TraceFolder | None = None
        self._session: Session | None = None
        self._part: NsysPart | None = None
        self._told: set[str] = set()
        self.key = f"object:{id(engine)}"
        self._hold = Hold(f"the vLLM engine ({self.name})", MemorySlot(self.key))
        self.host = socket.gethostname()
        processes = self._object.processes()
        self.workers = processes.width * max(processes.groups, 1)

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that an asynchronous engine lives on."""
        return self._object.loop

    @property
    def inside(self) -> bool:
        """Whether the worker is this very process."""
        return self._object.inside

    # -- the four verbs

    async def arm(self, window: EngineWindow) -> None:
        """See that it lives, was built to be recorded, takes the bounds, and that its folder can be used."""
        self._refuse_dead()
        refuse_backends(self.kind, window.options, self.name)
        settings = self._object.settings(window.options)
        self._arguments(window, settings)
        self._leave_front_end_out()
        self._tell_what_it_cannot(window, settings)
        if by_nsys(window.options):
            self._place = None
        else:
            # whatever trace_dir says: this host is the engine's, and its workers write where it was told to
            place = TraceFolder(Path(str(settings.folder)), self.key, lambda: not self._object.dead)
            await in_thread(place.prepare)
            self._place = place
        await self._hold.settle(self._finisher)

    async def start(self, window: EngineWindow) -> None:
        """Lead its folder to this window, and start it."""
        self._refuse_dead()
        if self._place is None and not by_nsys(window.options):
            raise EngineFailure("start without arm: nothing was sent to the engine", "ok")
        given = self._arguments(window, self._object.settings(window.options))
        await self._hold.settle(self._finisher)
        await self._hold.take(window, driver=self)
        try:
            await self._begin(window, given)
        except BaseException as error:
            if not getattr(error, "owes_stop", True):
                await self._hold.give()
            raise

    async def _begin(self, window: EngineWindow, given: dict[str, object]) -> None:
        place = self._place
        if place is None:
            self._part = await NsysPart.begin(
                window, this_process(window), lambda: self._answered("start_profile", given)
            )
            return
        session = await in_thread(place.begin, window)
        await in_thread(place.lead, session)
        try:
            await self._answered("start_profile", given)
        except EngineFailure as error:
            if error.owes_stop:
                self._session = session
            else:
                await in_thread(place.end, session)
            raise
        self._session = session

    async def stop(self, window: EngineWindow) -> Stopped:
        """Stop it, and take what it wrote."""
        return await self._hold.stop(window, lambda: self._stop(window), self._forget)

    async def _stop(self, window: EngineWindow) -> Stopped:
        if self._part is not None:
            stopped = await self._part.end(lambda: self._call("stop_profile"))
            self._part = None
            await self._hold.give()
            return stopped
        return await self._end(window, send=True)

    async def finish(self, window: EngineWindow) -> Stopped:
        """End a capture whose stop failed, or never came; it is left alone where another stop has ended it."""
        if self._part is not None:
            await self._leave()
            self._forget()
            await self._hold.give()
            return Stopped()
        place, session = self._place, self._session
        over = (
            place is not None
            and session is not None
            and await in_thread(place.is_over, session, window, self._prefix)
        )
        return await self._end(window, send=not over)

    async def _end(self, window: EngineWindow, *, send: bool) -> Stopped:
        place, session = self._place, self._session
        if place is None or session is None:
            raise EngineFailure("stop without start: nothing was sent to the engine", "ok")
        early = bool(await in_thread(place.traces, session, self._prefix))
        sent_ns = time.time_ns()
        try:
            if send:
                await self._call("stop_profile")
        except EngineFailure as error:
            dead, workers = self._object.dead, self._object.processes()
            if dead:
                await self._free()  # else it may still be open: the next start stops it first
            brought = await in_thread(lambda: bring(place, session, window, self._prefix, workers, over=dead))
            if brought.artifacts:  # what a bound of its own had ended before
                return Stopped(tuple(brought.artifacts), partial=str(error))
            raise
        await self._free()
        workers = self._object.processes()
        brought = await in_thread(bring, place, session, window, self._prefix, workers)
        early = early or any(written < sent_ns for written in brought.written_ns)
        asleep = brought.steps == 0 and await self._is_asleep()
        settings = self._object.settings(window.options)
        bound = bound_of(window, settings, self._object.start_parameters)
        return outcome(window, brought, workers, early=early, asleep=asleep, name=self.name, bound=bound)

    async def abort(self) -> None:
        """Stop what was begun here, and throw it away; another driver's capture goes on. Raises EngineFailure where it is dead or refuses."""
        dead = self._object.dead
        if self._hold.held is not None:
            if not dead and not await self._hold.is_taken():
                await self._leave()
            place, session = self._place, self._session
            self._forget()
            await self._hold.give()
            if place is not None and session is not None:
                await in_thread(place.discard, session, self._prefix)
        if dead:
            self._refuse_dead()

    @property
    def writes_to(self) -> Path | None:
        """Where the capture that runs is written."""
        return None if self._session is None else self._session.folder

    async def close(self, timeout: float, answer_seconds: float) -> None:
        """Stop what is still open, and keep it as partial; another driver may have the engine then."""
        await self._hold.close(self._finisher, answer_seconds)

    def retire(self) -> None:
        """Take no more part; what is still open is left to the next driver."""
        self._hold.retire()

    async def clock(self) -> Clock | None:
        """The clock of this host."""
        return Clock(host=socket.gethostname(), offset_ns=0, error_ns=0, method="same-host")

    # -- how it is spoken to

    def _arguments(self, window: EngineWindow, settings: Settings) -> dict[str, object]:
        """What this version's ``start_profile`` is given. Raises EngineFailure: bounds that it does not take."""
        return start_arguments(window, settings, self._object.start_parameters, self._prefix)

    async def _call(self, method: str, **given: object) -> None:
        """`_answered`; a call that failed looks for some seconds whether the engine is about to be dead."""
        try:
            await self._answered(method, given)
        except EngineFailure as failure:
            if failure.health == "unknown" and await self._dies():
                raise EngineFailure(died(self.name), "dead") from failure
            raise

    async def _answered(self, method: str, given: dict[str, object]) -> None:
        """Make a call, and wait for its answer or the engine's death. Raises EngineFailure as soon as it has failed."""
        try:
            await self._unless_dead(self._send(method, given))
        except EngineFailure:
            raise
        except Exception as error:
            raise _as_failure(error, method, self.name) from error

    async def _dies(self) -> bool:
        """Whether the engine is about to be dead: a killed worker fails the call first, and vLLM finds out why a little later."""
        for _ in range(DYING_LOOKS):
            if self._object.dead:
                return True
            await asyncio.sleep(LOOK_SECONDS)
        return self._object.dead

    def _send(self, method: str, given: dict[str, object]) -> Awaitable[object]:
        act: Callable[..., Any] = getattr(self._object.engine, method)
        if not self._object.is_async:
            return in_thread(lambda: act(**given))
        loop = self.loop
        if loop is None:
            raise EngineFailure(
                f"the vLLM engine ({self.name}) has not run on any event loop yet, so that its event loop is not known: build it or "
                "attach it inside a coroutine",
                "unreachable",
            )
        return on_loop(loop, lambda: act(**given))

    async def _unless_dead(self, call: Awaitable[T]) -> T:
        """The answer of a call. When the engine or its loop ends, its answer never comes: the call is left alone, not cancelled."""
        answer, loop = asyncio.ensure_future(call), self.loop
        while not answer.done():
            await asyncio.wait({answer}, timeout=LOOK_SECONDS)
            if not answer.done() and loop is not None and not loop.is_running():
                answer.add_done_callback(_forget)
                raise EngineFailure(
                    f"the event loop that the vLLM engine ({self.name}) lives on has ended before it answered",
                    "unreachable",
                )
            if not answer.done() and self._object.dead:
                await asyncio.wait({answer}, timeout=LOOK_SECONDS)
                if not answer.done():
                    answer.add_done_callback(_forget)
                    raise EngineFailure(died(self.name), "dead")
        return answer.result()

    def _finisher(self, held: Held) -> Finisher:
        return held.driver or self

    async def _free(self) -> None:
        self._session = None
        await self._hold.give()

    def _forget(self) -> None:
        part, self._part, self._session = self._part, None, None
        if part is not None:
            part.abandon()

    async def _leave(self) -> None:
        """Stop whatever runs: without a capture that does nothing."""
        await self._call("stop_profile")

    async def _is_asleep(self) -> bool:
        """Whether it sleeps, where it can be asked."""
        if not self._object.is_async or not hasattr(self._object.engine, "is_sleeping"):
            return False
        try:
            return bool(await self._unless_dead(self._send("is_sleeping", {})))
        except Exception as error:  # noqa: BLE001 - a hint for a message
            logger.debug("engine.query_failed", name=self.name, reason=str(error))
            return False

    def _refuse_dead(self) -> None:
        if self._object.dead:
            raise EngineFailure(died(self.name), "dead")

    def _leave_front_end_out(self) -> None:
        """Take vLLM's front-end profiler away: it starts on one thread and stops on another, and torch ends the process for that."""
        if self._object.leave_front_end_out():
            self._tell(
                "vLLM's front-end profiler is left out, since it can crash the process that calls it; build the engine with "
                "ignore_frontend=True, as engine_args does"
            )

    def _tell_what_it_cannot(self, window: EngineWindow, settings: Settings) -> None:
        """What was asked for, and was decided otherwise when the engine was built. One line each."""
        for line in differences(window, settings, self._object.start_parameters):
            self._tell(line)

    def _tell(self, reason: str) -> None:
        if reason not in self._told:
            self._told.add(reason)
            logger.warning("engine.limited", name=self.name, reason=reason)


def _as_failure(error: Exception, method: str, name: str) -> EngineFailure:
    """What an exception of vLLM means."""
    what, text = type(error).__name__, str(error)
    health: Health = "unknown"
    if what == "EngineDeadError":
        return EngineFailure(died(name), "dead")
    if what == "ProfilerAlreadyActiveError":
        return EngineFailure(
            f"another client records the vLLM engine ({name}): its start_profile was called before and not stopped; it is left alone. If none does, "
            "call its stop_profile once",
            "busy",
        )
    if "rofil" in text and "not enabled" in text:
        health = "unconfigured"
    return EngineFailure(
        f"{method} of the vLLM engine ({name}) failed: {what}: {text}", health, owes_stop=health == "unknown"
    )


def _forget(answer: asyncio.Future[Any]) -> None:
    """Read a result that no caller waits for, so that asyncio does not complain."""
    if not answer.cancelled():
        answer.exception()

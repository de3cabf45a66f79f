"""vLLM in this process: an ``AsyncLLM`` or an ``LLM`` is told to record, each version in its own words.

What only this module knows: where an engine keeps its settings, its event loop and its processes, which of its calls can be
believed, and that three things end a process: its front-end profiler (started and stopped on two threads), stacks in a long capture,
and a second profiler in a process that is its own worker. Servers are in `stepprof.remote.vllm_http`.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from stepprof.log import logger
from stepprof.remote.base import Clock, EngineFailure, Stopped
from stepprof.remote.loop import in_thread, on_loop
from stepprof.remote.profilers import REPORT_ELSEWHERE, by_nsys, refuse_backends
from stepprof.remote.vllm_args import Settings, engine_args, environment, serve_args
from stepprof.remote.vllm_files import Workers, bring
from stepprof.remote.vllm_folder import Session, TraceFolder, new_prefix
from stepprof.remote.vllm_http import VllmServer
from stepprof.remote.vllm_words import died, differences, outcome, start_arguments

if TYPE_CHECKING:
    from stepprof.options import EngineOptions
    from stepprof.remote.base import EngineDriver, EngineWindow, Health

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
        from stepprof.remote.attach import check_options

        name = options.pop("name", None)
        options = {key: value for key, value in options.items() if key not in ("kind", "find")}
        check_options(options, (), "a vLLM engine")
        return cast("EngineDriver", VllmEngine(target, None if name is None else str(name)))


class VllmEngine:
    """Speaks to an engine object of this process.

    Args:
        engine: an ``AsyncLLM``, an ``LLM``, or what they derive from in older versions.
        name: what it is called in logs; None: its type.
    """

    kind = "vllm"

    def __init__(self, engine: object, name: str | None = None) -> None:
        self._engine: Any = engine
        self._core: Any = getattr(engine, "llm_engine", engine)
        self._prefix = new_prefix()
        self._attached_on = _running_loop()
        self._place: TraceFolder | None = None
        self._session: Session | None = None
        self._told: set[str] = set()
        self.name = name or type(engine).__name__
        self.key = f"object:{id(engine)}"
        self.host: str | None = socket.gethostname()
        self.workers = self._processes().width * max(self._processes().groups, 1)
        """How many ranks of its own it has."""

    # -- what the engine is

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that an asynchronous engine lives on: that of its output task, else the one that attached it."""
        if not self._is_async:
            return None
        resources = getattr(getattr(self._core, "engine_core", None), "resources", None)
        for task in (
            getattr(self._core, "output_handler", None),
            getattr(resources, "output_queue_task", None),
            getattr(self._core, "_background_loop_unshielded", None),
        ):
            if isinstance(task, asyncio.Task):
                loop: asyncio.AbstractEventLoop = task.get_loop()
                return loop
        return self._attached_on

    @property
    def inside(self) -> bool:
        """Whether the worker is this very process: its core and its executor both run here."""
        core = getattr(self._core, "engine_core", None)
        if core is not None:
            if type(core).__name__ != "InprocClient":
                return False
            executor = getattr(core.engine_core, "model_executor", None)
        else:  # the engine before vLLM's version 1: its core always ran here
            executor = getattr(self._core, "model_executor", None) or getattr(
                getattr(self._core, "engine", None), "model_executor", None
            )
        return executor is not None and any(
            base.__name__ in ("UniProcExecutor", "GPUExecutor", "CPUExecutor")
            for base in type(executor).__mro__
        )

    @property
    def _is_async(self) -> bool:
        return inspect.iscoroutinefunction(self._engine.start_profile)

    @property
    def _dead(self) -> bool:
        if getattr(self._core, "errored", False):
            return True
        resources = getattr(getattr(self._core, "engine_core", None), "resources", None)
        return bool(getattr(resources, "engine_dead", False))

    def _config(self) -> Any:
        return getattr(self._core, "vllm_config", None)

    def _settings(self, options: EngineOptions) -> Settings:
        """What its profiler was set to. Raises EngineFailure: nothing that can be recorded, or not with what is asked for."""
        wanted = "cuda" if by_nsys(options) else "torch"
        config = getattr(self._config(), "profiler_config", None)
        if config is not None:
            settings = Settings.of_config(config)
        else:
            settings = Settings.of_environment(importlib.import_module("vllm.envs"))
        if settings.profiler == wanted == "cuda":
            return settings
        if settings.profiler == wanted and settings.folder and "://" not in settings.folder:
            return settings
        if config is None:
            missing = "the environment variable VLLM_TORCH_PROFILER_DIR was not set when it was built"
        elif settings.profiler is None:
            missing = "its profiler_config.profiler is None"
        elif settings.profiler != wanted:
            missing = f'its profiler_config.profiler is "{settings.profiler}", not "{wanted}"'
        else:
            missing = f"its profiler_config.torch_profiler_dir is {settings.folder!r}, not a folder"
        how = "AsyncEngineArgs(…, **args)" if self._is_async else "LLM(…, **args)"
        raise EngineFailure(
            f"the vLLM engine ({self.name}) was built without a profiler that can be recorded: {missing}. It cannot be switched on later. Build it "
            f"with {how}, where args = stepprof.remote.vllm.engine_args(folder{', options' if wanted == 'cuda' else ''})",
            "unconfigured",
        )

    def _processes(self) -> Workers:
        parallel = getattr(self._config(), "parallel_config", None)
        client = getattr(self._core, "engine_core", None)
        cores = getattr(client, "core_engines", None)
        manager = getattr(getattr(client, "resources", None), "engine_manager", None)
        return Workers(
            cores=[process.pid for process in getattr(manager, "processes", None) or ()],
            width=getattr(parallel, "world_size", 1) or 1,
            groups=len(cores) if cores else 1,
        )

    # -- the four verbs

    async def arm(self, window: EngineWindow) -> None:
        """See that it lives, was built to be recorded, takes the bounds, and that its folder can be used."""
        self._refuse_dead()
        refuse_backends(self.kind, window.options, self.name)
        settings = self._settings(window.options)
        self._arguments(window, settings)
        self._leave_front_end_out()
        self._tell_what_it_cannot(window, settings)
        if by_nsys(window.options):
            self._place = None
            return
        # whatever trace_dir says: this host is the engine's, and its workers write where it was told to
        place = TraceFolder(Path(str(settings.folder)), self.key, lambda: not self._dead)
        await in_thread(place.prepare)
        self._place = place

    async def start(self, window: EngineWindow) -> None:
        """Lead its folder to this window, and start it."""
        self._refuse_dead()
        place = self._place
        if place is None and not by_nsys(window.options):
            raise EngineFailure("start without arm: nothing was sent to the engine", "ok")
        given = self._arguments(window, self._settings(window.options))
        if self._session is not None or (place is not None and await in_thread(lambda: place.left_open)):
            logger.warning(
                "capture left open", name=self.name, reason="begun for an earlier window and never stopped"
            )
            await self._leave()
        session = Session(Path()) if place is None else await in_thread(place.begin, window)
        try:
            await self._call("start_profile", **given)
        except EngineFailure:
            if place is not None:
                await in_thread(place.end, session)
            raise
        self._session = session

    async def stop(self, window: EngineWindow) -> Stopped:
        """Stop it, and take what it wrote."""
        place, session = self._place, self._session
        if place is None and session is not None:
            await self._call("stop_profile")
            self._session = None
            return Stopped(partial=REPORT_ELSEWHERE)
        if place is None or session is None:
            raise EngineFailure("stop without start: nothing was sent to the engine", "ok")
        early = bool(await in_thread(place.traces, session, self._prefix))
        sent_ns = time.time_ns()
        try:
            await self._call("stop_profile")
        except EngineFailure as error:
            if self._dead:
                self._session = None  # else it may still be open: the next start stops it first
            brought = await in_thread(bring, place, session, window, self._prefix, self._processes())
            if brought.artifacts:  # what a bound of its own had ended before
                return Stopped(tuple(brought.artifacts), partial=str(error))
            raise
        self._session = None
        workers = self._processes()
        brought = await in_thread(bring, place, session, window, self._prefix, workers)
        early = early or any(written < sent_ns for written in brought.written_ns)
        asleep = brought.steps == 0 and await self._is_asleep()
        return outcome(window, brought, workers, early=early, asleep=asleep, name=self.name)

    async def abort(self) -> None:
        """Stop whatever runs; what it wrote of a capture of ours is thrown away. A dead engine has nothing to stop."""
        if not self._dead:
            await self._leave()
        place, session = self._place, self._session
        self._session = None
        if place is not None and session is not None:
            await in_thread(place.discard, session, self._prefix)

    async def clock(self) -> Clock | None:
        """The clock of this host."""
        return Clock(host=socket.gethostname(), offset_ns=0, error_ns=0, method="same-host")

    # -- how it is spoken to

    def _arguments(self, window: EngineWindow, settings: Settings) -> dict[str, object]:
        """What this version's ``start_profile`` is given. Raises EngineFailure: bounds that it does not take."""
        return start_arguments(
            window, settings, inspect.signature(self._engine.start_profile).parameters, self._prefix
        )

    async def _call(self, method: str, **given: object) -> None:
        """Make a call, and wait for its answer or the engine's death. Raises EngineFailure."""
        try:
            await self._unless_dead(self._send(method, given))
        except EngineFailure:
            raise
        except Exception as error:
            failure = _as_failure(error, method, self.name)
            if failure.health == "unknown" and await self._dies():
                failure = EngineFailure(died(self.name), "dead")
            raise failure from error

    async def _dies(self) -> bool:
        """Whether the engine is about to be dead: a killed worker fails the call first, and vLLM finds out why a little later."""
        for _ in range(DYING_LOOKS):
            if self._dead:
                return True
            await asyncio.sleep(LOOK_SECONDS)
        return self._dead

    def _send(self, method: str, given: dict[str, object]) -> Awaitable[object]:
        act: Callable[..., Any] = getattr(self._engine, method)
        if not self._is_async:
            return in_thread(lambda: act(**given))
        loop = self.loop
        if loop is None:
            raise EngineFailure(
                f"the vLLM engine ({self.name}) has not run on any event loop yet, so that nobody knows on which one it will live: build it or "
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
            if not answer.done() and self._dead:
                await asyncio.wait({answer}, timeout=LOOK_SECONDS)
                if not answer.done():
                    answer.add_done_callback(_forget)
                    raise EngineFailure(died(self.name), "dead")
        return answer.result()

    async def _leave(self) -> None:
        """Stop whatever runs: without a capture that does nothing."""
        await self._call("stop_profile")

    async def _is_asleep(self) -> bool:
        """Whether it sleeps, where it can be asked."""
        if not self._is_async or not hasattr(self._engine, "is_sleeping"):
            return False
        try:
            return bool(await self._unless_dead(self._send("is_sleeping", {})))
        except Exception as error:  # noqa: BLE001 - a hint for a message
            logger.debug("engine not asked whether it sleeps", name=self.name, reason=str(error))
            return False

    def _refuse_dead(self) -> None:
        if self._dead:
            raise EngineFailure(died(self.name), "dead")

    def _leave_front_end_out(self) -> None:
        """Take vLLM's front-end profiler away: it starts on one thread and stops on another, and torch ends the process for that."""
        if getattr(self._core, "profiler", None) is not None and self._is_async:
            self._core.profiler = None
            self._tell(
                "front-end profiler of vLLM left out",
                "it can crash the process that calls it; build the engine with ignore_frontend=True, as engine_args does",
            )

    def _tell_what_it_cannot(self, window: EngineWindow, settings: Settings) -> None:
        """What was asked for, and was decided otherwise when the engine was built. One line each."""
        for line in differences(window, settings):
            self._tell("engine records as it was built", line)

    def _tell(self, event: str, reason: str) -> None:
        if reason not in self._told:
            self._told.add(reason)
            logger.warning(event, name=self.name, reason=reason)


def _as_failure(error: Exception, method: str, name: str) -> EngineFailure:
    """What an exception of vLLM means."""
    what, text = type(error).__name__, str(error)
    health: Health = "unknown"
    if what == "EngineDeadError":
        return EngineFailure(died(name), "dead")
    if what == "ProfilerAlreadyActiveError":
        return EngineFailure(
            f"somebody else records the vLLM engine ({name}): its start_profile was called before and not stopped; it is left alone. If nobody does, "
            "call its stop_profile once",
            "busy",
        )
    if "rofil" in text and "not enabled" in text:
        health = "unconfigured"
    return EngineFailure(
        f"{method} of the vLLM engine ({name}) failed: {what}: {text}", health, owes_stop=health == "unknown"
    )


def _forget(answer: asyncio.Future[Any]) -> None:
    """Look at a result that nobody waits for, so that asyncio does not complain."""
    if not answer.cancelled():
        answer.exception()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

"""Calls to a vLLM engine object of this process, and its loop, settings and processes.

Most of these attributes are private and differ between versions. They are read each time, because an engine sets some of them only while it runs.
vLLM leaves a call open for ever if the engine dies, so each call also checks whether the engine and
its loop are alive. No call is cancelled.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.remote.base import EngineFailure
from stepprof.remote.core.engine_backends import by_nsys
from stepprof.remote.core.statistics import VLLM, metrics_of
from stepprof.remote.engine_process import OwnProcess
from stepprof.remote.loop import drop_result, in_thread, on_loop, running_loop
from stepprof.remote.vllm.arguments import Settings
from stepprof.remote.vllm.files import Workers
from stepprof.remote.vllm.folder import TraceFolder
from stepprof.remote.vllm.link import Facts, Link

if TYPE_CHECKING:
    from stepprof.config.options.engine import EngineOptions
    from stepprof.remote.base import EngineWindow, Health
    from stepprof.remote.core.statistics import Sample

T = TypeVar("T")

LOOK_SECONDS = 0.5
"""How often the engine is checked while a call is unanswered."""

DEATH_CHECKS = 6
"""Checks after a failed call: a killed worker fails the call first, and vLLM notices the death a little later."""

FRONT_END = (
    "vLLM's front-end profiler is left out, since it can crash the process that calls it; build the engine with "
    "ignore_frontend=True, as engine_args does"
)


class ObjectLink(Link):
    """Calls to an ``AsyncLLM``, an ``LLM``, or their base classes in older versions."""

    elsewhere = ""
    """Where its traces are if they are not visible from here: they always are."""

    def __init__(self, engine: object, name: str) -> None:
        key = f"object:{id(engine)}"
        super().__init__(name, key, f"the vLLM engine ({name})")
        self.process = OwnProcess(key)
        self._engine: Any = engine
        self._core: Any = getattr(engine, "llm_engine", engine)
        self._attached_on = running_loop()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of an asynchronous engine: that of its output task, else the one that attached it."""
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
        """Whether the worker is this process: its core and its executor both run here."""
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
        """Whether its calls are coroutines, which must run on its own loop."""
        return inspect.iscoroutinefunction(self._engine.start_profile)

    @property
    def dead(self) -> bool:
        """Whether vLLM reports that one of its processes has ended."""
        if getattr(self._core, "errored", False):
            return True
        resources = getattr(getattr(self._core, "engine_core", None), "resources", None)
        return bool(getattr(resources, "engine_dead", False))

    def _config(self) -> Any:
        return getattr(self._core, "vllm_config", None)

    def _settings(self, options: EngineOptions) -> Settings:
        """Return the settings of its profiler. Raises EngineFailure: there are none, or none that
        suit the backend of the options.
        """
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
            f"{self.called} was built without a profiler that can be recorded: {missing}. It cannot be switched on later. Build it "
            f"with {how}, where args = stepprof.remote.vllm.engine_args(folder{', options' if wanted == 'cuda' else ''})",
            "unconfigured",
        )

    def processes(self) -> Workers:
        """Return its core processes, as far as known here, and how many ranks each drives."""
        parallel = getattr(self._config(), "parallel_config", None)
        client = getattr(self._core, "engine_core", None)
        cores = getattr(client, "core_engines", None)
        manager = getattr(getattr(client, "resources", None), "engine_manager", None)
        return Workers(
            cores=[process.pid for process in getattr(manager, "processes", None) or ()],
            width=getattr(parallel, "world_size", 1) or 1,
            groups=len(cores) if cores else 1,
        )

    def require_alive(self) -> None:
        """Raise EngineFailure if the engine is dead."""
        if self.dead:
            raise self._died()

    def _died(self) -> EngineFailure:
        return EngineFailure(
            f"{self.called} is dead: one of its processes has ended, and its capture is lost. See its log for the cause, and create a new engine",
            "dead",
        )

    async def facts(self, window: EngineWindow) -> Facts:
        """Return its settings, and the parameters of its version's ``start_profile``."""
        self.require_alive()
        takes = inspect.signature(self._engine.start_profile).parameters
        return Facts(self._settings(window.options), takes)

    async def place(self, window: EngineWindow, settings: Settings) -> TraceFolder:
        """Return the folder that it was built with: this host is the engine's, so ``trace_dir`` has no effect."""
        place = TraceFolder(Path(str(settings.folder)), self.key, lambda: not self.dead)
        await in_thread(place.prepare)
        return place

    async def statistics(self) -> Sample | None:
        """Return its own Prometheus counters; None: it was built without (``disable_log_stats``)."""
        found = metrics_of(VLLM, _counted(getattr(self._core, "logger_manager", None)))
        if found is None:
            return None
        scheduler = getattr(self._config(), "scheduler_config", None)
        limit = getattr(scheduler, "max_num_seqs", None)
        return replace(found, limit=limit * self.processes().groups if isinstance(limit, int) else None)

    async def start(self, given: Mapping[str, object]) -> None:
        """Call ``start_profile``, without vLLM's front-end profiler: it stops on another thread than it starts on, which ends the process."""
        if self._is_async and getattr(self._core, "profiler", None) is not None:
            self._core.profiler = None
            self.warn(FRONT_END)
        await self._answered("start_profile", given)

    async def stop(self) -> None:
        """Call ``stop_profile``. If that fails, check for some seconds whether the engine is dying."""
        try:
            await self._answered("stop_profile", {})
        except EngineFailure as failure:
            if failure.health == "unknown" and await self._dies():
                raise self._died() from failure
            raise

    async def leave(self) -> None:
        """Stop a capture that may not run."""
        await self.stop()

    async def is_asleep(self) -> bool:
        """Return whether it sleeps, if it can be asked."""
        if not self._is_async or not hasattr(self._engine, "is_sleeping"):
            return False
        try:
            return bool(await self._unless_dead(self._send("is_sleeping", {})))
        except ours(Exception) as error:  # a hint for a message
            logger.debug("engine.query_failed", name=self.name, reason=str(error))
            return False

    # -- calls

    async def _answered(self, method: str, given: Mapping[str, object]) -> None:
        """Make a call, and wait for its answer or the engine's death. Raises EngineFailure."""
        try:
            await self._unless_dead(self._send(method, given))
        except EngineFailure:
            raise
        except ours(Exception) as error:
            raise self._as_failure(error, method) from error

    async def _dies(self) -> bool:
        """Return whether the engine is found dead within some seconds."""
        for _ in range(DEATH_CHECKS):
            if self.dead:
                return True
            await asyncio.sleep(LOOK_SECONDS)
        return self.dead

    def _send(self, method: str, given: Mapping[str, object]) -> Awaitable[object]:
        act: Callable[..., Any] = getattr(self._engine, method)
        if not self._is_async:
            return in_thread(lambda: act(**given))
        loop = self.loop
        if loop is None:
            raise EngineFailure(
                f"{self.called} has not run on any event loop yet, so its event loop is unknown: build it or attach it inside a coroutine",
                "unreachable",
            )
        return on_loop(loop, lambda: act(**given))

    async def _unless_dead(self, call: Awaitable[T]) -> T:
        """Return the answer of a call. Raises EngineFailure if the engine or its loop ends first; the call is left alone, not cancelled."""
        answer, loop = asyncio.ensure_future(call), self.loop
        while not answer.done():
            await asyncio.wait({answer}, timeout=LOOK_SECONDS)
            if not answer.done() and loop is not None and not loop.is_running():
                answer.add_done_callback(drop_result)
                raise EngineFailure(
                    f"the event loop that {self.called} lives on has ended before it answered",
                    "unreachable",
                )
            if not answer.done() and self.dead:
                await asyncio.wait({answer}, timeout=LOOK_SECONDS)
                if not answer.done():
                    answer.add_done_callback(drop_result)
                    raise self._died()
        return answer.result()

    def _as_failure(self, error: Exception, method: str) -> EngineFailure:
        """Return the failure that an exception of vLLM means."""
        what, text = type(error).__name__, str(error)
        if what == "EngineDeadError":
            return self._died()
        if what == "ProfilerAlreadyActiveError":
            return EngineFailure(
                f"another client records {self.called}: its start_profile was called before and not stopped; it is left alone. If no client "
                "does, call its stop_profile once",
                "busy",
            )
        health: Health = "unconfigured" if "rofil" in text and "not enabled" in text else "unknown"
        return EngineFailure(
            f"{method} of {self.called} failed: {what}: {text}", health, owes_stop=health == "unknown"
        )


def _counted(manager: Any) -> Iterator[tuple[str, float]]:
    """Yield names and values of the engine's own Prometheus counters, which its logger holds by the number of its core."""
    loggers = getattr(manager, "stat_loggers", None) or [getattr(manager, "prometheus_logger", None)]
    for each in loggers:
        if any(base.__name__ == "PrometheusStatLogger" for base in type(each).__mro__):
            for held in vars(each).values():
                yield from _values(held)
            yield from _values(
                getattr(
                    getattr(each, "spec_decoding_prom", None), "counter_spec_decode_num_draft_tokens", None
                )
            )


def _values(held: Any) -> Iterator[tuple[str, float]]:
    """Yield names and values of the counters of all cores, if it is a mapping of these."""
    for counter in held.values() if isinstance(held, dict) else ():
        for metric in counter.collect() if hasattr(counter, "collect") else ():
            for sample in metric.samples:
                yield sample.name, sample.value

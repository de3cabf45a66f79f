"""Where an engine object of vLLM keeps what has to be known of it: its loop, its settings, its processes, whether it lives.

Private attributes, most of them, and others in each version; read each time, since an engine comes to have them only while it runs.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepprof.remote.base import EngineFailure
from stepprof.remote.core.engine_backends import by_nsys
from stepprof.remote.vllm.arguments import Settings
from stepprof.remote.vllm.files import Workers

if TYPE_CHECKING:
    from stepprof.config.options.engine import EngineOptions

__all__ = ["EngineObject"]


class EngineObject:
    """An ``AsyncLLM``, an ``LLM``, or what they derive from in older versions.

    Args:
        engine: the object.
        name: what it is called in messages.
    """

    def __init__(self, engine: object, name: str) -> None:
        self.engine: Any = engine
        self.name = name
        self._core: Any = getattr(engine, "llm_engine", engine)
        self._attached_on = _running_loop()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that an asynchronous engine lives on: that of its output task, else the one that attached it."""
        if not self.is_async:
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
    def is_async(self) -> bool:
        """Whether its calls are coroutines, to be made on its own loop."""
        return inspect.iscoroutinefunction(self.engine.start_profile)

    @property
    def dead(self) -> bool:
        """Whether vLLM says that one of its processes has ended."""
        if getattr(self._core, "errored", False):
            return True
        resources = getattr(getattr(self._core, "engine_core", None), "resources", None)
        return bool(getattr(resources, "engine_dead", False))

    def _config(self) -> Any:
        return getattr(self._core, "vllm_config", None)

    def settings(self, options: EngineOptions) -> Settings:
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
        how = "AsyncEngineArgs(…, **args)" if self.is_async else "LLM(…, **args)"
        raise EngineFailure(
            f"the vLLM engine ({self.name}) was built without a profiler that can be recorded: {missing}. It cannot be switched on later. Build it "
            f"with {how}, where args = stepprof.remote.vllm.engine_args(folder{', options' if wanted == 'cuda' else ''})",
            "unconfigured",
        )

    def processes(self) -> Workers:
        """Its core processes, as far as they are known here, and how many ranks each drives."""
        parallel = getattr(self._config(), "parallel_config", None)
        client = getattr(self._core, "engine_core", None)
        cores = getattr(client, "core_engines", None)
        manager = getattr(getattr(client, "resources", None), "engine_manager", None)
        return Workers(
            cores=[process.pid for process in getattr(manager, "processes", None) or ()],
            width=getattr(parallel, "world_size", 1) or 1,
            groups=len(cores) if cores else 1,
        )

    @property
    def start_parameters(self) -> Mapping[str, inspect.Parameter]:
        """What its version's ``start_profile`` takes."""
        return inspect.signature(self.engine.start_profile).parameters

    def leave_front_end_out(self) -> bool:
        """Take its front-end profiler away; whether it had one."""
        if getattr(self._core, "profiler", None) is None or not self.is_async:
            return False
        self._core.profiler = None
        return True


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

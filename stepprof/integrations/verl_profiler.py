"""Read the configuration of verl's own profiler, for a job that sets ``STEPPROF_FROM=framework``.

What only this module knows: an empty ``contents`` means every activity; the actor's profiler decides for all that runs in its
ranks; a replica is recorded if it owns one of the global ranks, as in stepprof.
"""

from __future__ import annotations

from typing import Any

from stepprof.errors import ConfigError

BACKENDS = {"torch": "torch", "npu": "npu", "torch_memory": "memory"}
"""Tools of ``global_profiler.tool`` with their counterpart."""

SWITCHES = {"stack": "with_stack", "shapes": "record_shapes", "memory": "profile_memory"}
"""Words of ``contents`` with their counterpart."""


def as_configuration(config: Any) -> dict[str, Any]:
    """Return the configuration of stepprof for a job's configuration of verl.

    Args:
        config: verl's, with ``global_profiler`` and the ``profiler`` of each role.

    Raises:
        ConfigError: it names no steps, or a tool without a counterpart.
    """
    own = config.global_profiler
    if own.tool not in BACKENDS:
        known = ", ".join(BACKENDS)
        raise ConfigError.at(
            "global_profiler.tool", own.tool, f"must be one of {known} for STEPPROF_FROM=framework"
        )
    if not own.steps:
        raise ConfigError.at(
            "global_profiler.steps", own.steps, "must name steps for STEPPROF_FROM=framework"
        )
    roles = config.actor_rollout_ref
    found: dict[str, Any] = {
        "steps": list(own.steps),
        "join_steps": bool(own.profile_continuous_steps),
        "backend": BACKENDS[own.tool] if roles.actor.profiler.enable else "null",
        "ranks": _ranks(roles.actor.profiler),
        "roles": {"rollout": _of_rollout(roles.rollout.profiler)},
    }
    if own.tool == "torch":
        found["torch"] = _contents(roles.actor.profiler)
    return found


def engine_options(profiler: Any) -> dict[str, Any]:
    """Return the ``[engine]`` options that a role's profiler asks for."""
    options = _contents(profiler)
    options.pop("profile_memory", None)
    return options


def _of_rollout(profiler: Any) -> dict[str, Any]:
    if not profiler.enable:
        return {"enabled": False}
    return {"backend": "torch", "ranks": _ranks(profiler), "engine": engine_options(profiler)}


def _ranks(profiler: Any) -> str | list[int]:
    return "all" if profiler.all_ranks else list(profiler.ranks or []) or [0]


def _contents(profiler: Any) -> dict[str, Any]:
    options: Any = profiler.tool_config["torch"] if profiler.tool == "torch" else {}
    # a server's is a dataclass, with plain mappings in it
    contents = set((options.get("contents") if hasattr(options, "get") else options.contents) or ())
    found: dict[str, Any] = {key: True for word, key in SWITCHES.items() if word in contents}
    if contents and "cuda" not in contents:
        found["activities"] = ["cpu"]
    return found

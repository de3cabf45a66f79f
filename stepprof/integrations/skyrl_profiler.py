"""Read the configuration of SkyRL's own profiler, for a job that sets ``STEPPROF_FROM=framework``.

Its schedule counts the steps of this job from 0. It records only the ranks of the policy. The
driver reads its configuration before each call of the ranks' profilers, so switching it off there
is enough.
"""

from __future__ import annotations

from typing import Any

from stepprof.errors import ConfigError
from stepprof.integrations import own_profiler

CONFIG = "skyrl.train.config.config:TorchProfilerConfig"
OPTION = "trainer.policy.torch_profiler_config"

SCHEDULE = ("skip_first", "wait", "warmup", "active", "repeat")
SWITCHES = ("record_shapes", "with_stack", "with_flops", "with_modules")
FIELDS = ("enable", "ranks", "activities", *SCHEDULE, *SWITCHES)


def as_configuration(trainer: Any) -> dict[str, Any]:
    """Return the configuration of stepprof.

    Raises:
        ConfigError: SkyRL's profiler records no step of the job.
    """
    own = _own(trainer)
    steps = _steps(trainer)
    if not steps:
        raise ConfigError.at(
            f"{OPTION}.enable",
            own.enable,
            "must be on and select a step of the job for STEPPROF_FROM=framework",
        )
    return {
        "steps": steps,
        "join_steps": own.active > 1,
        "backend": "torch",
        "ranks": list(own.ranks),
        "torch": {
            "activities": [each.lower() for each in own.activities],
            **{name: bool(getattr(own, name)) for name in SWITCHES},
        },
        "roles": {"rollout": {"enabled": False}},
    }


def settle(trainer: Any, *, take_over: bool) -> None:
    """Leave SkyRL's profiler off, or report the steps that both record."""
    steps = _steps(trainer)
    if take_over:
        _own(trainer).enable = False
    own_profiler.settle("skyrl", OPTION, steps, take_over=take_over)


def _own(trainer: Any) -> Any:
    return trainer.cfg.trainer.policy.torch_profiler_config


def _steps(trainer: Any) -> list[int]:
    own = _own(trainer)
    if not own.enable:
        return []
    schedule = {name: getattr(own, name) for name in SCHEDULE}
    return own_profiler.scheduled_steps(trainer.total_training_steps or 0, **schedule)

"""Read the options of slime's and miles' own profiler, for a job that sets ``STEPPROF_FROM=framework``.

Their profiler counts trainings from 0 since the job began. ``--profile-step-end`` is not recorded,
and the training before ``--profile-step-start`` is its warm-up.
"""

from __future__ import annotations

from typing import Any

from stepprof.errors import ConfigError
from stepprof.integrations import own_profiler

__all__ = ["OwnProfiler", "take_over"]

TARGET = "train_overall"
"""The profiler target of whole trainings. The others record micro-batches."""

OPTION = "--profile-step-start"


class OwnProfiler:
    """The steps that the framework's own profiler is configured for.

    Args:
        args: the options of the job.
        is_replaced: stepprof records them instead.
    """

    def __init__(self, args: Any, *, is_replaced: bool) -> None:
        self._begin = args.profile_step_start
        self._end = args.profile_step_end
        self._is_replaced = is_replaced

    def as_configuration(self, first: int) -> dict[str, Any] | None:
        """Return the configuration of stepprof, or None if it does not replace the framework's profiler.

        Args:
            first: the number of the job's first rollout.
        """
        if not self._is_replaced:
            return None
        return {
            "steps": [first + 1 + each for each in range(self._begin, self._end)],
            "join_steps": True,
            "backend": "torch",
            "ranks": "all",
            "torch": {"record_shapes": True, "with_stack": True, "with_flops": True},
            "roles": {"rollout": {"enabled": False}},
        }

    def settle(self, adapter: str, first: int) -> None:
        """Note which configuration applies, or report the steps that both profilers record."""
        begin = self._begin if self._is_replaced else max(self._begin - 1, 0)
        steps = [first + 1 + each for each in range(begin, self._end)]
        own_profiler.settle(adapter, OPTION, steps, take_over=self._is_replaced)


def take_over(args: Any) -> OwnProfiler | None:
    """Return the framework's own profiler, which is switched off if stepprof replaces it; None: it
    is not configured.

    Raises:
        ConfigError: stepprof should replace it, but it records no training.
    """
    is_replaced = own_profiler.is_asked_for()
    is_configured = args.use_pytorch_profiler and TARGET in args.profile_target
    if not is_replaced:
        return OwnProfiler(args, is_replaced=False) if is_configured else None
    if not is_configured:
        option, value = (
            ("--profile-target", args.profile_target)
            if args.use_pytorch_profiler
            else ("--use-pytorch-profiler", False)
        )
        raise ConfigError.at(
            option, value, f"must be set, with --profile-target {TARGET}, for STEPPROF_FROM=framework"
        )
    if args.profile_step_end <= args.profile_step_start:
        raise ConfigError.at(
            "--profile-step-end", args.profile_step_end, f"must be above {OPTION} ({args.profile_step_start})"
        )
    args.use_pytorch_profiler = False
    return OwnProfiler(args, is_replaced=True)

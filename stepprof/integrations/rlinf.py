"""The adapters of RLinf: the process of a runner, which starts the session and attaches the workers, and regions in these.

A runner increments its step inside the timer "step". Most of a runner's calls overlap, so that few
of them are timed. RLinf imports the module that ``RLINF_EXT_MODULE`` names in each worker, and
calls its `register`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import stepprof
import stepprof_autoload
from stepprof.errors import ConfigError
from stepprof.integrations import own_profiler
from stepprof.integrations.groups import merged
from stepprof.integrations.hooks import around, block, hooked
from stepprof.integrations.timed_job import Close, TimedJob
from stepprof.integrations.training_loop import (
    close_timer,
    end_jobs,
    is_incomplete,
    open_timer,
    start_session,
)

TIMER = "rlinf.utils.distributed:ScopedTimer.__call__"
RANGE = "rlinf.scheduler.hardware.accelerators.accelerator:AcceleratorUtil.profiling_range"

OPTION = "cluster.profiling.steps"

STEP = "step"
EVALUATIONS = ("eval", "evaluate")

ROLES = {
    "generate_rollouts": "rollout",
    "cal_adv_and_returns": "advantage",
    "sync_weights": "weight_sync",
}
"""Timers of a runner that are windows of a role; all others are regions."""

Groups = dict[str, tuple[str, ...]]

ACTOR: Groups = {"actor": ("actor", "advantage", "weight_sync")}
REASONING: Groups = {**ACTOR, "actor_inference": ("inference",), "critic": ("critic",)}
EMBODIED: Groups = {**ACTOR, "rollout": ("rollout", "weight_sync")}

RUNNERS: dict[str, tuple[str, Groups]] = {
    "rlinf.runners.reasoning_runner:ReasoningRunner": ("global_steps", REASONING),
    "rlinf.runners.embodied_runner:EmbodiedRunner": ("global_step", EMBODIED),
    "rlinf.runners.sft_runner:SFTRunner": ("global_step", ACTOR),
}
"""The runners, with the attribute that counts finished steps, and their groups of workers with the roles whose windows they follow."""

_jobs: list[TimedJob] = []
"""The job of this process, while its runner runs."""


def register() -> None:
    """Attach the adapters in a worker: ``RLINF_EXT_MODULE=stepprof.integrations.rlinf``."""
    stepprof_autoload.activate(asked=True)


def _run_begins(counter: str, groups: Groups, runner: Any, _: tuple[Any, ...], __: dict[str, Any]) -> bool:
    if is_incomplete("rlinf", ADAPTERS):
        return False
    asked, own = own_profiler.is_asked_for(), _own_steps(runner)
    if asked and not own:
        raise ConfigError.at(
            OPTION, None, "must name steps of a runner that profiles, for STEPPROF_FROM=framework"
        )
    given = own_profiler.with_overrides({"steps": own, "ranks": "all"} if asked else None)
    if not start_session("rlinf", partial(_attach, runner, groups), given):
        return False
    if asked:
        runner._profile_all_steps, runner._profile_steps = False, None
    own_profiler.settle("rlinf.timers", OPTION, own, take_over=asked)
    _jobs[:] = [TimedJob("rlinf", lambda: getattr(runner, counter) + 1, ROLES, (STEP,), EVALUATIONS)]
    return True


_run_ends = partial(end_jobs, _jobs)


def _own_steps(runner: Any) -> list[int]:
    """Return the steps of RLinf's ``cluster.profiling.steps``, which count from 0; [] of a runner that does not profile."""
    if getattr(runner, "_profile_all_steps", False):
        return [*range(1, int(runner.max_steps) + 1)]
    return sorted(step + 1 for step in getattr(runner, "_profile_steps", None) or ())


def _attach(runner: Any, groups: Groups) -> None:
    found = ((getattr(runner, name), roles) for name, roles in groups.items())
    actors = (
        ([each.worker for each in group.worker_info_list], roles)
        for group, roles in found
        if group is not None
    )
    for workers, roles in merged(actors):
        stepprof.attach(workers, role=roles, kind="rank")


def _timer_begins(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Close:
    name = args[0] if args else kwargs["name"]
    for job in _jobs:
        return job.begin(name)
    return partial(close_timer, open_timer(name))


def _timer_ends(close: Close | None, error: BaseException | None) -> None:
    if close is not None:
        close(error)


def _range_begins(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return open_timer(kwargs["label"] if "label" in kwargs else args[1])


_adapter = partial(hooked, distributions=("rlinf",), tested="~=0.3.0")

ADAPTERS = (
    _adapter("rlinf.timers", TIMER, [block(TIMER, _timer_begins, _timer_ends, needs=("name",))]),
    _adapter(
        "rlinf.workers",
        "rlinf.scheduler.worker.worker",
        [block(RANGE, _range_begins, close_timer, needs=("label",), timer=True)],
    ),
    *(
        _adapter(
            f"rlinf.{target.partition(':')[2]}",
            target,
            [around(f"{target}.run", partial(_run_begins, *runner), _run_ends)],
            {
                f"{target}.__init__": ("actor",),
                "rlinf.scheduler.worker.worker_group:WorkerGroup.worker_info_list": (),
            },
        )
        for target, runner in RUNNERS.items()
    ),
)

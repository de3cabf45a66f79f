"""The adapters of AReaL: the process that runs a trainer's loop, and the scopes of AReaL's own
tracer.

The log counts from 1: ``global_step`` 0 is step 1. Every loop ends a step with
``_save_perf_tracer``. A scope outside of a step, before the next ``train.rollout``, belongs to the
following step.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import stepprof
from stepprof.errors import ConfigError
from stepprof.integrations import own_profiler
from stepprof.integrations.groups import merged
from stepprof.integrations.hooks import Hook, around, hooked
from stepprof.integrations.training_loop import (
    TrainingLoop,
    close_timer,
    end_evaluations,
    end_jobs,
    is_incomplete,
    open_timer,
    start_session,
)

if TYPE_CHECKING:
    from stepprof.instrument.step import StepWindow
    from stepprof.integrations.patches import Patches

TRACER = "areal.utils.perf_tracer"
SCOPES = (f"{TRACER}:trace_scope", f"{TRACER}:atrace_scope")
OPTION = "perf_tracer.profile_steps"
OWN_PROFILER = f"{TRACER}:PerfTracer._should_enable_profiler"
TRAINERS = (
    "areal.trainer.rl_trainer:PPOTrainer",
    "areal.trainer.sft_trainer:SFTTrainer",
    "areal.trainer.rw_trainer:RWTrainer",
    "areal.trainer.dpo_trainer:DPOTrainer",
)

PREFIX = "train."
"""The prefix of the loop's scopes. The first one of a step opens its window."""

ROLES = {
    "train.rollout": "rollout",
    "train.compute_values": "critic",
    "train.ref_logp": "ref",
    "train.teacher_logp": "teacher",
    "train.recompute_logp": "actor",
    "train.compute_advantage": "advantage",
    "train.ppo_update": "actor",
    "train.critic_ppo_update": "critic",
    "train.update_weights": "weight_sync",
    "train.sft_step": "actor",
    "train.rw_step": "actor",
    "train.dpo_step": "actor",
}
"""Scopes that are windows of a role; all others are regions."""

GROUPS = {
    "actor": ("actor", "advantage", "weight_sync"),
    "critic": ("critic",),
    "ref": ("ref",),
    "teacher": ("teacher",),
}
"""AReaL's groups of workers, with the roles whose windows they follow; the first names them."""


class ArealJob:
    """The windows of a process that runs a trainer's loop."""

    def __init__(self) -> None:
        self.loop = TrainingLoop("areal")
        self.finished: int | None = None

    def begin(self, step: int | None) -> None:
        """Open the window of a step, numbered as in the log, unless one is open. None: the step
        after the last one.
        """
        if step is None and self.finished is not None:
            step = self.finished + 1
        if self.loop.step is None and step is not None:
            self.loop.begin(step)

    def end(self, step: int, error: BaseException | None) -> None:
        """Close the window of a step."""
        self.loop.end(error)
        self.finished = step


_jobs: list[ArealJob] = []
"""The job of this process, while its trainer trains."""


# -- the loop


def _training_begins(trainer: Any, _: tuple[Any, ...], __: dict[str, Any]) -> bool:
    if is_incomplete("areal", ADAPTERS):
        return False
    asked = own_profiler.is_asked_for()
    given = _as_configuration(trainer.config) if asked else None
    process = None if trainer.scheduler is None else "driver"  # without a scheduler each rank runs the loop
    config = own_profiler.with_overrides(given)
    if not start_session("areal", partial(_attach_processes, trainer), config, process):
        return False
    own_profiler.settle("areal.scopes", OPTION, _own_steps(trainer.config), take_over=asked)
    _jobs[:] = [ArealJob()]
    return True


_training_ends = partial(end_jobs, _jobs)


def _step_is_over(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return int(args[0] if args else kwargs["step"])


def _step_ends(step: int | None, error: BaseException | None) -> None:
    for job in _jobs:
        job.end((step or 0) + 1, error)


def _evaluation_begins(*_: object) -> list[tuple[TrainingLoop, StepWindow | None]]:
    return [(job.loop, job.loop.evaluation(job.finished or 0)) for job in _jobs]


def _own_steps(config: Any) -> list[int]:
    """Return the steps of AReaL's ``perf_tracer.profile_steps``, which count from 0."""
    own = config.perf_tracer
    return [] if own is None else [int(step) + 1 for step in own.profile_steps or ()]


def _as_configuration(config: Any) -> dict[str, Any]:
    steps = _own_steps(config)
    if not steps:
        given = None if config.perf_tracer is None else config.perf_tracer.profile_steps
        raise ConfigError.at(OPTION, given, "must name steps for STEPPROF_FROM=framework")
    return {"steps": steps}


# -- other processes


def _attach_processes(trainer: Any) -> None:
    for actors, roles in _ranks(trainer.scheduler):
        stepprof.attach(actors, role=roles, kind="rank")
    servers = getattr(getattr(trainer, "rollout", None), "server_infos", None)  # other loops have no rollout
    if servers:
        urls = [f"http://{each.host}:{each.port}" for each in servers]
        stepprof.attach(urls, role="rollout", kind=trainer.rollout_alloc.backend)


def _ranks(scheduler: Any) -> list[tuple[list[Any], list[str]]]:
    """Return the Ray actors of each group of workers with the roles that they play; other schedulers have no actors."""
    found = []
    for name, roles in GROUPS.items() if scheduler is not None else ():
        elsewhere = scheduler._colocated_roles.get(name)
        infos = scheduler._workers.get(name) or scheduler._workers.get(elsewhere) or ()
        found.append(([each.actor for each in infos if hasattr(each, "actor")], roles))
    return merged(found)


# -- scopes


def _scope_begins(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = args[0] if args else kwargs["name"]
    if not (_jobs and name.startswith(PREFIX)):
        return open_timer(name)
    given = (kwargs.get("args") or {}).get("global_step")
    for job in _jobs:
        job.begin(None if given is None else given + 1)
    return open_timer(name, ROLES.get(name))


def _attach_scope(scope: str, patches: Patches) -> None:
    for target in (scope, *_bound_elsewhere(scope)):
        patches.block(target, _scope_begins, close_timer, timer=True)


def _switch_own_profiler_off(patches: Patches) -> None:
    if own_profiler.is_asked_for():
        patches.result(OWN_PROFILER, lambda *_: False)


def _bound_elsewhere(scope: str) -> list[str]:
    """Return the places in which modules that are imported already have bound a function of the tracer."""
    tracer, _, name = scope.partition(":")
    function = getattr(sys.modules[tracer], name)
    modules = [(each, module) for each, module in sys.modules.items() if each.startswith("areal.")]
    return [
        f"{each}:{name}"
        for each, module in modules
        if each != tracer and getattr(module, name, None) is function
    ]


_adapter = partial(hooked, distributions=("areal",), tested="~=1.0.4")

ADAPTERS = (
    _adapter(
        "areal.scopes",
        TRACER,
        [
            *(Hook(scope, ("name", "args"), partial(_attach_scope, scope)) for scope in SCOPES),
            Hook(OWN_PROFILER, ("requested", "global_step"), _switch_own_profiler_off),
        ],
    ),
    _adapter(
        "areal",
        "areal.trainer",
        [
            hook
            for trainer in TRAINERS
            for hook in (
                around(f"{trainer}.train", _training_begins, _training_ends),
                around(f"{trainer}._save_perf_tracer", _step_is_over, _step_ends, needs=("step",)),
                around(f"{trainer}._evaluate_fn", _evaluation_begins, end_evaluations),
            )
        ],
    ),
)

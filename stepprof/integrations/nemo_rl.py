"""The adapters of NeMo-RL: the process that trains, which starts the session and attaches ranks and engines, and the timers of all.

A loop passes its step number to `maybe_gpu_profile_step`. Dynamic sampling enters the timer of a
step several times for one step. An evaluation has its own timer.
"""

from __future__ import annotations

import inspect
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import stepprof
from stepprof.integrations import nemo_rl_nsys, own_profiler
from stepprof.integrations.adapter import Adapter
from stepprof.integrations.groups import merged
from stepprof.integrations.hooks import Hook, around, hooked
from stepprof.integrations.patches import look_up
from stepprof.integrations.timed_job import KEPT, Close, TimedJob
from stepprof.integrations.training_loop import (
    close_timer,
    end_jobs,
    is_incomplete,
    open_timer,
    start_session,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepprof.integrations.patches import Patches

NAME = "nemo_rl"
TIMER = "nemo_rl.utils.timer:Timer"
NSYS = "nemo_rl.utils.nsys"
NUMBER = f"{NSYS}:maybe_gpu_profile_step"
WORKERS = "nemo_rl.distributed.worker_groups:RayWorkerGroup"

STEP = "total_step_time"
EVALUATIONS = ("total_validation_time", "validation_total")
SAMPLING = "dynamic_sampling"
"""A step with this timer and without `TRAINING` is not over: the next one has the same number and
continues it.
"""
TRAINING = "policy_training"

ROLES = {
    "generation": "rollout",
    "exposed_generation": "rollout",
    "reward_calculation": "reward",
    "policy_and_reference_logprobs": "experience",
    "value_inference": "critic",
    "teacher_logprob_inference": "teacher",
    "teacher_forward": "teacher",
    "advantage_calculation": "advantage",
    "value_training": "critic",
    TRAINING: "actor",
    "prepare_for_generation/transfer_and_update_weights": "weight_sync",
    "weight_sync": "weight_sync",
}
"""Timers that are windows of a role; all others are regions."""

TRAINERS = {
    "grpo:grpo_train": ("policy", "policy_generation"),
    "grpo:async_grpo_train": ("policy", "policy_generation", "teacher_worker_groups"),
    "grpo_sync:grpo_train_sync": ("policy", "policy_generation"),
    "ppo:ppo_train": ("policy", "policy_generation", "value_model"),
    "ppo:async_ppo_train": ("policy", "policy_generation", "value_model"),
    "distillation:distillation_train": ("student_policy", "teacher_policy", "student_generation"),
    "xtoken_off_policy_distillation:xtoken_off_policy_distillation_train": ("student_policy", "teacher_policies"),
    "dpo:dpo_train": ("policy",),
    "sft:sft_train": ("policy",),
    "rm:rm_train": ("policy",),
}  # fmt: skip
"""The loops, as functions below `nemo_rl.algorithms`, with the parameters that hold other processes."""

GROUPS = {
    **dict.fromkeys(("policy", "student_policy"), ("actor", "experience", "weight_sync")),
    "value_model": ("critic",),
    **dict.fromkeys(("teacher_policy", "teacher_policies", "teacher_worker_groups"), ("teacher",)),
}
"""Parameters that hold ranks, with the roles whose windows these follow; the first names them."""

GENERATIONS = ("policy_generation", "student_generation")
"""Parameters that hold engines."""


class NemoRLJob(TimedJob):
    """The windows of the process that trains."""

    def __init__(self) -> None:
        super().__init__(NAME, lambda: self.number, ROLES, (STEP,), EVALUATIONS)
        self.number = 0
        self._is_sampling = False

    def begin(self, timer: str) -> Close:
        """Open the window or region of a timer; return a function that closes it."""
        if timer in (SAMPLING, TRAINING):
            self._is_sampling = timer == SAMPLING
        return super().begin(timer)

    def step_ends(self, error: BaseException | None) -> None:
        """Close the window of the step, unless the step continues with further samples."""
        if not self._is_sampling or error is not None:
            self.loop.end(error)
        self._is_sampling = False


_jobs: list[NemoRLJob] = []
"""The job of this process, while its loop runs."""


def _training_begins(target: str, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    given = inspect.signature(look_up(target)).bind(*args, **kwargs).arguments
    if is_incomplete(NAME, ADAPTERS):
        return False
    config = own_profiler.with_overrides(nemo_rl_nsys.as_configuration())
    if not start_session(NAME, partial(_attach_processes, given), config):
        return False
    nemo_rl_nsys.settle(f"{NAME}.nsys")
    _jobs[:] = [NemoRLJob()]
    return True


_training_ends = partial(end_jobs, _jobs)


def _attach_processes(given: Mapping[str, Any]) -> None:
    ranks = [
        (each.worker_group.workers, roles)
        for name, roles in GROUPS.items()
        for each in _each(given.get(name))
    ]
    for workers, roles in merged(ranks):
        stepprof.attach(workers, role=roles, kind="rank")
    for name in GENERATIONS:
        for each in _each(given.get(name)):
            _attach_engines(each)


def _each(found: Any) -> Iterator[Any]:
    """Yield the workers in a parameter: one, several, or none."""
    if isinstance(found, dict):
        yield from found.values()
    elif isinstance(found, list):
        yield from found
    elif found is not None:
        yield found


def _attach_engines(generation: Any) -> None:
    if hasattr(generation, "get_rollout_engine_urls"):
        stepprof.attach(generation.get_rollout_engine_urls, role="rollout", kind="sglang")
    elif getattr(generation, "cfg", {}).get("backend") == "vllm":  # others may have `vllm_cfg` too
        stepprof.attach(partial(_owners, generation.worker_group), role="rollout", kind="engine", find="llm")


def _owners(group: Any) -> list[Any]:
    """Return the actors of a group that hold a vLLM engine: one of those that share a model."""
    return [group.workers[group.get_dp_leader_worker_idx(each)] for each in range(group.dp_size)]


# -- timers of every process


def _timer_begins(timer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    label = args[0] if args else kwargs["label"]
    kept = timer.__dict__.setdefault(KEPT, {})
    if label not in kept:  # NeMo-RL refuses it
        close = _jobs[0].begin(label) if _jobs else partial(close_timer, open_timer(label))
        kept[label] = close, sys.exc_info()[1]


def _timer_ends(timer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    kept = timer.__dict__.get(KEPT, {}).pop(args[0] if args else kwargs["label"], None)
    if kept is not None:
        close, before = kept
        error = sys.exc_info()[1]  # `stop` is called in a `finally`
        close(None if error is before else error)


def _step_is_announced(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for job in _jobs:
        job.number = int(args[1] if len(args) > 1 else kwargs["step"])


def _attach_nsys(patches: Patches) -> None:
    nemo_rl_nsys.take_over(NSYS)
    patches.around(NUMBER, _step_is_announced)


_adapter = partial(hooked, distributions=("nemo-rl",), tested="~=0.6.0")


def _of_module(module: str) -> Adapter:
    """Return the adapter of a module that has loops."""
    loops = {
        f"nemo_rl.algorithms.{each}": given
        for each, given in TRAINERS.items()
        if each.startswith(f"{module}:")
    }
    return _adapter(
        f"{NAME}.{module}",
        f"nemo_rl.algorithms.{module}",
        [
            around(target, partial(_training_begins, target), _training_ends, needs=given)
            for target, given in loops.items()
        ],
        {
            **{f"{WORKERS}.{each}": () for each in ("workers", "dp_size")},
            f"{WORKERS}.get_dp_leader_worker_idx": ("dp_shard_idx",),
        },
    )


ADAPTERS = (
    _adapter(
        f"{NAME}.timer",
        TIMER,
        [
            around(f"{TIMER}.start", _timer_begins, needs=("label",)),
            around(f"{TIMER}.stop", _timer_ends, needs=("label",)),
        ],
    ),
    _adapter(
        f"{NAME}.nsys",
        NSYS,
        [Hook(NUMBER, ("policy", "step"), _attach_nsys)],
        {f"{NSYS}:{each}": () for each in (nemo_rl_nsys.RANGE, nemo_rl_nsys.PATTERNS)},
    ),
    *(_of_module(each) for each in dict.fromkeys(target.partition(":")[0] for target in TRAINERS)),
)

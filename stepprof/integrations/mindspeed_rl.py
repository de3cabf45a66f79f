"""The adapters of MindSpeed-RL: the process of a trainer, which starts the session and attaches the workers.

codetiming's timer "iteration" is the whole step; all other times are measured by hand. Unless a job
is ``blocking``, the calls of the workers overlap, so that only the update of the actor is a phase.
`fit` shuts Ray down before it returns, so the session ends with the last iteration.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import stepprof
from stepprof.integrations import own_profiler
from stepprof.integrations.groups import merged
from stepprof.integrations.hooks import around, hooked, result, timed
from stepprof.integrations.mindspeed_rl_profiler import OwnProfiler
from stepprof.integrations.timed_job import TimedJob, codetiming_hooks
from stepprof.integrations.training_loop import is_incomplete, start_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TRAINERS = (
    "mindspeed_rl.trainer.grpo_trainer_hybrid:RayGRPOTrainer",
    "mindspeed_rl.trainer.ppo_trainer_hybrid:RayPPOTrainer",
)
GROUP = "mindspeed_rl.workers.scheduler.launcher:RayActorGroup"
BASE = "mindspeed_rl.trainer.base:RayBaseTrainer"

STEP = "iteration"

PHASES = {
    "generate_sequences": None,
    "compute_rm_score": None,
    "compute_ref_log_prob": None,
    "compute_log_prob": None,
    "compute_values": None,
    "update_critic": None,
    "wait_all_ref_objs_run_over": None,
    "update": "actor",
    "update_actor": "actor",
    "save_checkpoint": None,
}
"""Methods of a group of workers that are regions, or windows of a role. Most of those without a role only send the work."""

GROUPS = {"actor_worker": "actor", "ref_worker": "ref", "critic_worker": "critic"}
"""The trainer's groups of workers, with the role whose windows they follow."""


class MindSpeedJob(TimedJob):
    """The windows of the process that trains.

    Args:
        trainer: MindSpeed-RL's trainer.
    """

    def __init__(self, trainer: Any) -> None:
        super().__init__("mindspeed_rl", lambda: self.finished + 1, {}, (STEP,))
        self.finished = 0
        self._last = int(trainer.train_iters)

    def step_ends(self, error: BaseException | None) -> None:
        """Close the window of the step; after the last one, end the session."""
        self.loop.end(error)
        self.finished += error is None
        if self.finished >= self._last:
            _end()


_jobs: list[MindSpeedJob] = []
"""The job of this process, while its trainer fits."""

_own = OwnProfiler()


def _end() -> None:
    _jobs.clear()
    stepprof.shutdown()


def _fit_begins(trainer: Any, _: tuple[Any, ...], __: dict[str, Any]) -> bool:
    if is_incomplete("mindspeed_rl", ADAPTERS):
        return False
    given = own_profiler.with_overrides(_own.as_configuration())
    if not start_session("mindspeed_rl", partial(_attach_workers, trainer), given):
        return False
    _own.settle("mindspeed_rl.timers")
    _jobs[:] = [MindSpeedJob(trainer)]
    return True


def _fit_ends(begun: bool | None, error: BaseException | None) -> None:
    for job in [*_jobs] if begun else ():
        job.loop.end(error)
        _end()


def _iteration_is_known(finished: int, *_: object) -> None:
    for job in _jobs:
        job.finished = int(finished)


def _attach_workers(trainer: Any) -> None:
    for workers, roles in merged(_groups(trainer)):
        stepprof.attach(workers, role=roles, kind="rank")


def _groups(trainer: Any) -> Iterator[tuple[Sequence[Any], Sequence[str]]]:
    for name, role in GROUPS.items():
        group = getattr(trainer, name)
        if group is not None:
            yield group.actor_handlers, (role,)
    for reward in trainer.reward_list or ():
        yield getattr(reward, "actor_handlers", ()), ("reward",)  # a rule is an actor without a rank


_adapter = partial(hooked, distributions=("mindspeed_rl",), tested="~=2.1.0")

ADAPTERS = (
    _adapter(
        "mindspeed_rl.timers",
        GROUP,
        [
            *codetiming_hooks(lambda: _jobs[0] if _jobs else None),
            *(timed(f"{GROUP}.{method}", method, role) for method, role in PHASES.items()),
            result(f"{GROUP}.get_iteration", _iteration_is_known),
            around(f"{GROUP}.__init__", _own.group_begins, needs=("profiler_config",)),
        ],
    ),
    *(
        _adapter(
            f"mindspeed_rl.{target.partition(':')[2]}",
            target,
            [around(f"{target}.fit", _fit_begins, _fit_ends, needs=("data_iters",))],
            {f"{BASE}.__init__": ("train_iters", "reward_list", *GROUPS)},
        )
        for target in TRAINERS
    ),
)

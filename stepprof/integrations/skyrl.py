"""The adapters of SkyRL: the process of its trainer, which starts the session and attaches ranks and engines.

Every phase is a `Timer`. Dynamic sampling enters the timer "step" several times for one step. The
fully asynchronous trainer refuses callbacks, so none is added.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import stepprof
from stepprof.integrations import own_profiler, skyrl_profiler
from stepprof.integrations.hooks import around, hooked
from stepprof.integrations.timed_job import KEPT, Close, TimedJob, close_kept
from stepprof.integrations.training_loop import end_jobs, start_session

TRAINER = "skyrl.train.trainer:RayPPOTrainer"
ASYNC_TRAINER = "skyrl.train.fully_async_trainer:FullyAsyncRayPPOTrainer"
TIMER = "skyrl.train.utils.utils:Timer"
CLIENT = "skyrl.backends.skyrl_train.inference_servers.remote_inference_client:RemoteInferenceClient"

STEP = "step"
EVAL = "eval"
TRAINING = "train_critic_and_policy"
"""The timer that ends the repetition of dynamic sampling. A step without it is not over: the next
one has the same number and continues it.
"""

ROLES = {
    "generate": "rollout",
    "wait_for_generation_buffer": "rollout",
    "fwd_logprobs_values_reward": "experience",
    "compute_advantages_and_returns": "advantage",
    "critic_train": "critic",
    "policy_train": "actor",
    "sync_weights": "weight_sync",
}
"""Timers that are windows of a role; all others are regions."""

GROUPS = {
    "policy_model": ("actor", "experience", "weight_sync"),
    "critic_model": ("critic", "experience"),
    "ref_model": ("ref", "experience"),
}
"""The trainer's groups of ranks, with the roles whose windows they follow; the first names them."""


class SkyRLJob(TimedJob):
    """The windows of the process that trains.

    Args:
        trainer: SkyRL's trainer.
    """

    def __init__(self, trainer: Any) -> None:
        super().__init__("skyrl", lambda: int(trainer.global_step), ROLES, (STEP,), (EVAL,))
        self._is_trained = False

    def begin(self, timer: str) -> Close:
        """Open the window or region of a timer; return a function that closes it."""
        self._is_trained |= timer == TRAINING
        return super().begin(timer)

    def step_ends(self, error: BaseException | None) -> None:
        """Close the window of the step, if it has trained or failed."""
        if self._is_trained or error is not None:
            self.loop.end(error)
        self._is_trained = False


_jobs: list[SkyRLJob] = []
"""The job of this process, while its trainer trains."""


def _training_begins(trainer: Any, _: tuple[Any, ...], __: dict[str, Any]) -> bool:
    asked = own_profiler.is_asked_for()
    given = own_profiler.with_overrides(skyrl_profiler.as_configuration(trainer) if asked else None)
    if not start_session("skyrl", partial(_attach_processes, trainer), given):
        return False
    skyrl_profiler.settle(trainer, take_over=asked)
    _jobs[:] = [SkyRLJob(trainer)]
    return True


def _attach_processes(trainer: Any) -> None:
    for name, roles in GROUPS.items():
        group = getattr(trainer, name)
        if group is not None:
            stepprof.attach(list(group._actor_handlers), role=roles, kind="rank")
    urls = getattr(trainer.inference_engine_client, "server_urls", None)  # a job's own client may have none
    if urls:
        stepprof.attach(list(urls), role="rollout", kind="vllm")


_training_ends = partial(end_jobs, _jobs)


def _timer_begins(timer: Any, _: tuple[Any, ...], __: dict[str, Any]) -> None:
    for job in _jobs:
        timer.__dict__[KEPT] = job.begin(timer.message)


_adapter = partial(hooked, distributions=("skyrl",), tested=">=0.3.0,<0.5")

ADAPTERS = (
    _adapter(
        "skyrl",
        TRAINER,
        [
            around(f"{TRAINER}.train", _training_begins, _training_ends),
            *(around(f"{TIMER}.__{name}__", _timer_begins) for name in ("enter", "aenter")),
            *(around(f"{TIMER}.__{name}__", close_kept) for name in ("exit", "aexit")),
        ],
        {
            f"{TRAINER}.__init__": ("inference_engine_client",),
            f"{TIMER}.__init__": ("message",),
            CLIENT: ("server_urls",),
            skyrl_profiler.CONFIG: skyrl_profiler.FIELDS,
        },
    ),
    _adapter(
        "skyrl.fully_async",
        ASYNC_TRAINER,
        [around(f"{ASYNC_TRAINER}.train", _training_begins, _training_ends)],
    ),
)

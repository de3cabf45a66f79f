"""The adapters of OpenRLHF: the Ray actor of its PPO trainer, which starts the session and attaches
the other processes, and its ranks.

The log counts from 1: what `train_step` gets as 0 is step 1. The rollout of a step is generated
before that call. The trainer's class is decorated where it is defined, so its own methods are
pickled by value and those of its base by reference. So `fit` cannot be patched: the job ends with
the last samples of the last episode, or with the evaluation that follows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import stepprof
from stepprof.integrations.adapter import Adapter
from stepprof.integrations.groups import is_ray_worker
from stepprof.integrations.hooks import Hook, around, hooked, result, timed
from stepprof.integrations.training_loop import (
    TrainingLoop,
    close_timer,
    end_evaluations,
    open_timer,
    start_session,
)

if TYPE_CHECKING:
    from stepprof.instrument.step import StepWindow
    from stepprof.integrations.patches import Patches

TRAINER = "openrlhf.trainer.ppo_trainer:BasePPOTrainer"
GENERATOR = "openrlhf.trainer.ppo_utils.samples_generator:SamplesGenerator"
MAKER = "openrlhf.trainer.ppo_utils.experience_maker:RemoteExperienceMaker"
ACTOR = "openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer"
CRITIC = "openrlhf.trainer.ray.ppo_critic:CriticPPOTrainer"

PHASES = {
    f"{MAKER}.make_experience_batch": ("make_experience", "experience"),
    f"{TRAINER}.ppo_train": ("ppo_train", "actor"),
    f"{TRAINER}.broadcast_to_vllm": ("broadcast", "weight_sync"),
}
"""Methods of the trainer's process that are windows of a role. The names are those of OpenRLHF's `timing/…`."""

GROUPS = {
    "actor_model_group": ("actor", "experience", "weight_sync"),
    "critic_model_group": ("critic", "experience", "actor"),
    "reward_model_group": ("reward", "experience"),
    "reference_model_group": ("ref", "experience"),
}
"""The trainer's groups of ranks, with the roles whose windows they follow; the first names them."""

STAGES = {
    f"{ACTOR}.ppo_train": "ppo_train",
    f"{ACTOR}.training_step": "training_step",
    f"{ACTOR}.broadcast_to_vllm": "broadcast_to_vllm",
    f"{CRITIC}.ppo_train": "ppo_train",
    f"{CRITIC}.training_step": "training_step",
}
"""Methods of a rank that are regions."""


class OpenRLHFJob:
    """The windows of the process that trains.

    Args:
        step: the last step that is finished, as OpenRLHF's log counts them.
        episodes: how many passes over the prompts are left.
    """

    def __init__(self, step: int, episodes: int) -> None:
        self.loop = TrainingLoop("openrlhf")
        self.step = step
        self.episodes = episodes

    def end(self) -> None:
        """End the session: Ray ends this process without leaving time for it."""
        self.loop.end()
        _jobs.clear()
        stepprof.shutdown()


_jobs: list[OpenRLHFJob] = []
"""The job of this process, once its trainer is about to fit."""


# -- the trainer's process


def _fit_is_due(trainer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    states = args[0] if args else kwargs["checkpoint_states"]
    job = OpenRLHFJob(states["global_step"], trainer.args.train.num_episodes - states["episode"])
    if start_session("openrlhf", partial(_attach_processes, trainer)):
        _jobs[:] = [job]


def _attach_processes(trainer: Any) -> None:
    for name, roles in GROUPS.items():
        group = getattr(trainer, name)
        if group is not None:
            stepprof.attach(list(group._actor_handlers), role=roles, kind="rank")
    if trainer.vllm_engines:
        stepprof.attach(list(trainer.vllm_engines), role="rollout", kind="engine", find="llm")


def _rollout_begins(*_: object) -> Any:
    for job in _jobs:
        job.loop.begin(job.step + 1)
    return open_timer("generation", "rollout")


def _samples_are_made(result: Any, *_: object) -> None:
    samples, *_unused, exhausted = result
    for job in [*_jobs]:
        job.episodes -= bool(exhausted)
        if not job.episodes and not samples:
            job.end()


def _training_begins(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    finished = kwargs["global_step"] if "global_step" in kwargs else args[1]
    for job in _jobs:
        job.step = finished
        job.loop.begin(job.step + 1)


def _training_ends(_: object, error: BaseException | None) -> None:
    for job in _jobs:
        if error is not None:
            job.loop.end(error)
        job.step += error is None


def _saving_begins(trainer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
    finished = kwargs["global_step"] if "global_step" in kwargs else args[0]
    is_evaluated = finished % trainer.args.eval.steps == 0 and bool(getattr(trainer, "eval_dataloader", None))
    return open_timer("save_logs_and_checkpoints"), is_evaluated


def _saving_ends(token: tuple[Any, bool] | None, error: BaseException | None) -> None:
    timer, is_evaluated = token or (None, False)
    close_timer(timer, error)
    for job in [*_jobs]:
        job.loop.end(error)
        if not job.episodes and not is_evaluated:
            job.end()


def _best_is_saved(token: Any, error: BaseException | None) -> None:
    close_timer(token, error)
    for job in [*_jobs]:
        if not job.episodes:
            job.end()


def _evaluation_begins(*_: object) -> list[tuple[TrainingLoop, StepWindow | None]]:
    return [(job.loop, job.loop.evaluation(job.step)) for job in _jobs]


# -- adapters


def _in_workers(name: str, hooks: list[Hook], needs: dict[str, tuple[str, ...]]) -> Adapter:
    """Return an adapter of the trainer that makes no patch in the job's own process, where it would
    hide the original from pickling.
    """
    adapter = _adapter(name, TRAINER, hooks, needs)

    def attach(patches: Patches) -> None:
        if is_ray_worker():
            adapter.attach(patches)

    return replace(adapter, attach=attach)


_adapter = partial(hooked, distributions=("openrlhf",), tested="~=0.11.2")

ADAPTERS = (
    _in_workers(
        "openrlhf",
        [
            around(f"{TRAINER}.restore_best_checkpoint_state", _fit_is_due, needs=("checkpoint_states",)),
            around(
                f"{TRAINER}.train_step",
                _training_begins,
                _training_ends,
                needs=("rollout_samples", "global_step"),
            ),
            around(
                f"{TRAINER}.save_logs_and_checkpoints",
                _saving_begins,
                _saving_ends,
                needs=("global_step",),
            ),
            around(
                f"{TRAINER}.save_best_checkpoint",
                lambda *_: open_timer("save_best_checkpoint"),
                _best_is_saved,
            ),
            around(f"{GENERATOR}.generate_samples", _rollout_begins, close_timer),
            around(f"{GENERATOR}.generate_eval_samples", _evaluation_begins, end_evaluations),
            *(timed(method, *phase) for method, phase in PHASES.items()),
        ],
        {
            f"{TRAINER}.__init__": (*GROUPS, "vllm_engines"),
            "openrlhf.trainer.ray.launcher:RayActorGroup.async_run_method": ("method_name",),
        },
    ),
    _in_workers("openrlhf.samples", [result(f"{GENERATOR}.generate_samples", _samples_are_made)], {}),
    *(
        _adapter(
            name,
            target,
            [timed(method, region) for method, region in STAGES.items() if method.startswith(target)],
        )
        for name, target in (("openrlhf.actor", ACTOR), ("openrlhf.critic", CRITIC))
    ),
)

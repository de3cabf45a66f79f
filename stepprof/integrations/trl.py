"""The adapter of TRL: its own timers are regions, and those of the table `ROLES` are roles.

The windows of the steps are those of Transformers' `Trainer`, which TRL's trainers derive from.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import stepprof
from stepprof.integrations.hooks import around, hooked, timed
from stepprof.integrations.training_loop import close_timer, ensure_session, open_timer
from stepprof.integrations.transformers import TRAINER, loop_of
from stepprof.log import logger

TIMER = "trl.extras.profiling:ProfilingContext"
ROLES = {
    "transformers.generate": "rollout",
    "transformers.generate_batch": "rollout",
    "vLLM.generate": "rollout",
    "sync_weights": "weight_sync",
    "_calculate_rewards": "reward",
}
"""Timers of TRL that are roles. The name of each begins with the trainer's class, which is left out here."""
ASYNC_TRAINER = "trl.experimental.async_grpo.async_grpo_trainer:AsyncGRPOTrainer"
ASYNC_PHASES = {"training_step": ("update_actor", "actor"), "_sync_weight": ("sync_weights", "weight_sync")}
"""Methods of the asynchronous trainer, which uses no timer of TRL; each is a region and a role."""
GENERATION = "trl.generation.vllm_generation:VLLMGeneration"
KEPT = "_stepprof_timer"

_servers: list[str] = []
"""URLs of vLLM servers that a trainer generates with, until its training begins."""


@lru_cache(maxsize=256)
def _role_of(name: str) -> str | None:
    return ROLES.get(name.partition(".")[2])


def _timer_begins(timer: Any, _: tuple[Any, ...], __: dict[str, Any]) -> Any:
    name = timer.name
    timer.__dict__[KEPT] = open_timer(name, _role_of(name))


def _timer_ends(timer: Any, arguments: tuple[Any, ...], _: dict[str, Any]) -> Any:
    opened = timer.__dict__.pop(KEPT, None)
    close_timer(opened, arguments[1] if len(arguments) > 1 else None)


# -- the actor: TRL has no timer for its update, which begins after the inputs are prepared


def _update_begins(trainer: Any, _: tuple[Any, ...], __: dict[str, Any]) -> Any:
    if generates(trainer):
        trainer.__dict__["_stepprof_actor"] = open_timer("update_actor", "actor")


def _micro_step_begins(trainer: Any, _: tuple[Any, ...], __: dict[str, Any]) -> Any:
    if generates(trainer):
        _note_rollout(trainer)
    return trainer


def _micro_step_ends(trainer: Any, error: BaseException | None) -> None:
    if trainer is not None:
        close_timer(trainer.__dict__.pop("_stepprof_actor", None), error)


def generates(trainer: Any) -> bool:
    """Return whether a trainer generates its samples itself: GRPO and RLOO keep them in a buffer."""
    return hasattr(trainer, "_buffered_inputs")


def _note_rollout(trainer: Any) -> None:
    """Log it if a recorded step generates nothing, and name the next step that does."""
    loop, every = loop_of(trainer), trainer.args.steps_per_generation * trainer.num_iterations
    accumulation = max(trainer.args.gradient_accumulation_steps, 1)
    micro = trainer._step
    if loop.step is None or not loop.is_recording or micro % accumulation:
        return
    following = -(-micro // every) * every
    if following < micro + accumulation:
        return
    generating = loop.step + following // accumulation - micro // accumulation
    stepprof.mark("no_rollout", next_step_with_rollout=generating)
    logger.notice("step.without_rollout", loud=True, step=loop.step, next=f"--steps {generating}")


# -- a vLLM server that the trainer generates with; with `vllm_mode="colocate"` vLLM runs in the trainer's process, and is part of its capture


def _vllm_is_made(generation: Any, _: tuple[Any, ...], __: dict[str, Any]) -> Any:
    return generation


def _vllm_was_made(generation: Any, error: BaseException | None) -> None:
    if error is None and generation is not None and hasattr(generation, "vllm_client"):
        _servers.append(generation.vllm_client.base_url)


def _train_begins(*_: object) -> None:
    """Attach the servers: now the session can start, since rank and world are known."""
    if _servers and ensure_session("trl"):
        stepprof.attach([*dict.fromkeys(_servers)], role="rollout", kind="vllm")
        _servers.clear()


_adapter = partial(hooked, distributions=("trl",))

ADAPTERS = (
    _adapter(
        "trl",
        TIMER,
        [
            around(f"{TIMER}.__enter__", _timer_begins, timer=True),
            around(f"{TIMER}.__exit__", _timer_ends, timer=True),
            around(f"{TRAINER}.compute_loss_context_manager", _update_begins),
            around(
                f"{TRAINER}.training_step", _micro_step_begins, _micro_step_ends, needs=("model", "inputs")
            ),
        ],
        {f"{TIMER}.__init__": ("name",)},
        tested=">=0.27,<1.17",
    ),
    _adapter(
        "trl.vllm",
        GENERATION,
        [
            around(f"{GENERATION}._init_vllm", _vllm_is_made, _vllm_was_made),
            around(f"{TRAINER}.train", _train_begins),
        ],
        {
            f"{GENERATION}.__init__": ("mode", "server_base_url"),
            "trl.generation.vllm_client:VLLMClient.__init__": ("base_url", "host", "server_port"),
        },
        tested="~=1.16.0",
    ),
    _adapter(
        "trl.async_grpo",
        ASYNC_TRAINER,
        [timed(f"{ASYNC_TRAINER}.{method}", *phase) for method, phase in ASYNC_PHASES.items()],
        tested="~=1.16.0",
    ),
)

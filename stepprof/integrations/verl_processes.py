"""The adapters of verl's other processes: ranks, agent loops, reward workers, vLLM servers, and what Ray starts on other nodes.

Their patches add regions, which cost a look at one cell until the trainer's process attaches them.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import stepprof
from stepprof.config.config import load
from stepprof.config.loaders import KEY_OF_VARIABLE, VARIABLES
from stepprof.integrations import own_profiler, verl_profiler
from stepprof.integrations.hooks import Hook, around, hooked, result, timed
from stepprof.integrations.training_loop import close_timer, open_timer
from stepprof.run.output_root import output_root

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from stepprof.instrument.region import bind
    from stepprof.integrations.patches import Patches

WORKER = "verl.workers.engine_workers:ActorRolloutRefWorker"
TRAINING_WORKER = "verl.workers.engine_workers:TrainingWorker"
AGENT_LOOP = "verl.experimental.agent_loop.agent_loop:AgentLoopWorker"
REWARD_LOOP = "verl.experimental.reward_loop.reward_loop:RewardLoopWorker"
VLLM_SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer"
RAY_ENVIRONMENT = "verl.trainer.constants_ppo:get_ppo_ray_runtime_env"

STAGES = {
    f"{WORKER}.compute_log_prob": "actor_compute_log_prob",
    f"{WORKER}.compute_ref_log_prob": "ref_compute_log_prob",
    f"{WORKER}.update_actor": "actor_update",
    f"{WORKER}.update_weights": "update_weights",
    f"{TRAINING_WORKER}.train_mini_batch": "train_mini_batch",
    f"{TRAINING_WORKER}.train_batch": "train_batch",
    f"{TRAINING_WORKER}.infer_batch": "infer_batch",
}
"""Methods of a rank that are regions, with the names of verl's own profiler."""


# -- samples


def _sample_begins(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bind, Any]:
    trajectory = kwargs["trajectory"] if "trajectory" in kwargs else args[1]
    sample = f"{trajectory['sample_index']}.{kwargs.get('session_id', trajectory['rollout_n'])}"
    step = int(trajectory["step"])
    knows_step = (
        step >= 0 and not trajectory["validate"]
    )  # -1: of a fully asynchronous trainer, which step is not known
    attributes: dict[str, object] = {"step": step} if knows_step else {}
    bound = stepprof.bind(sample=sample, **attributes).__enter__()
    return bound, open_timer("agent_loop")


def _sample_ends(token: tuple[bind, Any] | None, error: BaseException | None) -> None:
    if token is not None:
        bound, region = token
        close_timer(region, error)
        bound.__exit__(None, None, None)


# -- engines


def _engine_is_built(server: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Give a vLLM engine the profiler that it must be built with, unless the job has configured one."""
    from stepprof.remote.vllm import engine_args

    arguments: MutableMapping[str, Any] = args[0] if args else kwargs["engine_kwargs"]
    if "profiler_config" not in arguments:
        config = load(None)
        options: Any = config.policy("rollout").engine
        if own_profiler.is_asked_for():
            options = verl_profiler.engine_options(server.config.profiler)
        arguments.update(engine_args(output_root(config.output_dir) / ".engines", options))


def _switch_own_profiler_off(patches: Patches) -> None:
    if own_profiler.is_asked_for():
        patches.result(f"{VLLM_SERVER}._should_profile", lambda *_: False)


# -- other nodes


def with_variables(environment: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return verl's environment for Ray with stepprof's variables, which processes on other nodes do not inherit."""
    given = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    config = args[0] if args else kwargs.get("config")
    asked = None if config is None else config.get("stepprof")
    for variable, key in KEY_OF_VARIABLE.items():
        if asked is not None and asked.get(key) is not None:
            given.setdefault(variable, _as_text(asked[key]))
    environment["env_vars"].update(given)
    return environment


def _as_text(value: Any) -> str:
    """Return a value of Hydra's as that of a variable: a list is separated by commas."""
    is_list = hasattr(value, "__iter__") and not isinstance(value, str)
    return ",".join(map(str, value)) if is_list else str(value)


of_verl = partial(hooked, distributions=("verl",), tested="~=0.9.1")
"""Returns an adapter of verl."""

ADAPTERS = (
    of_verl(
        "verl.environment",
        RAY_ENVIRONMENT,
        [result(RAY_ENVIRONMENT, with_variables, needs=("config",))],
    ),
    of_verl("verl.workers", WORKER, [timed(method, name) for method, name in STAGES.items()]),
    of_verl(
        "verl.agent_loop",
        AGENT_LOOP,
        [
            around(
                f"{AGENT_LOOP}._run_agent_loop",
                _sample_begins,
                _sample_ends,
                needs=("sampling_params", "trajectory"),
            )
        ],
    ),
    of_verl(
        "verl.reward_loop",
        REWARD_LOOP,
        [timed(f"{REWARD_LOOP}.compute_score", "reward", needs=("data",))],
    ),
    of_verl(
        "verl.vllm",
        VLLM_SERVER,
        [
            around(f"{VLLM_SERVER}._preprocess_engine_kwargs", _engine_is_built, needs=("engine_kwargs",)),
            Hook(f"{VLLM_SERVER}._should_profile", (), _switch_own_profiler_off),
        ],
    ),
)

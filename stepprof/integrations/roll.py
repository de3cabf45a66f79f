"""The adapters of ROLL: the process of a pipeline, which starts the session and attaches the workers, and codetiming's timers everywhere.

ROLL's log counts steps from 0. A pipeline keeps the last finished step in ``state.step``. The
agentic pipeline validates in a thread concurrently with the rollout, so its timer "val" is not an
evaluation window.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import stepprof
from stepprof.integrations import own_profiler
from stepprof.integrations.groups import merged
from stepprof.integrations.hooks import around, hooked
from stepprof.integrations.timed_job import TimedJob, codetiming_hooks
from stepprof.integrations.training_loop import end_jobs, is_incomplete, start_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PIPELINES = (
    "roll.pipeline.rlvr.rlvr_pipeline:RLVRPipeline",
    "roll.pipeline.rlvr.rlvr_vlm_pipeline:RLVRVLMPipeline",
    "roll.pipeline.agentic.agentic_pipeline:AgenticPipeline",
    "roll.pipeline.dpo.dpo_pipeline:DPOPipeline",
)
STATE = "roll.utils.worker_state:WorkerState"
CONFIG = "roll.configs.base_config:BaseConfig"
CLUSTER = "roll.distributed.executor.cluster:Cluster"

STEPS = ("step_total", "pipeline_step_total")
EVALUATIONS = ("val_step",)

ROLES = {
    "step_generate": "rollout",
    "rollout": "rollout",
    "step_model_update": "weight_sync",
    "model_update": "weight_sync",
    "cal_ref_log_probs": "ref",
    "cal_old_log_probs_values": "actor",
    "compute_advantage": "advantage",
    "step_train": "actor",
    "train_timer": "actor",
    "actor_train": "actor",
}
"""Timers of a pipeline that are windows of a role; all others are regions."""

_jobs: list[TimedJob] = []
"""The job of this process, while its pipeline runs."""


def _run_begins(pipeline: Any, _: tuple[Any, ...], __: dict[str, Any]) -> bool:
    if is_incomplete("roll", ADAPTERS) or not start_session("roll", partial(_attach_workers, pipeline)):
        return False
    _report_own_profiler(pipeline.pipeline_config)
    _jobs[:] = [TimedJob("roll", lambda: int(pipeline.state.step) + 1, ROLES, STEPS, EVALUATIONS)]
    return True


_run_ends = partial(end_jobs, _jobs)


def _report_own_profiler(config: Any) -> None:
    """Report ROLL's own profiler, which records each call of each worker in every step. Only its option switches it off."""
    if config.profiler_timeline:
        steps = range(int(config.max_steps) + 1)
        own_profiler.settle("roll.timers", "profiler_timeline", steps, take_over=False, is_replaceable=False)


def _attach_workers(pipeline: Any) -> None:
    for workers, roles in merged(_groups(pipeline)):
        stepprof.attach(workers, role=roles, kind="rank")
    engines = getattr(pipeline, "actor_infer", None)  # DPO generates nothing
    if engines is not None and engines.worker_config.strategy_args.strategy_name == "vllm":
        stepprof.attach(list(engines.workers), role="rollout", kind="engine", find="strategy.model")


def _groups(pipeline: Any) -> Iterator[tuple[Sequence[Any], Sequence[str]]]:
    """Yield the actors of each cluster with the roles whose windows they follow."""
    single = getattr(pipeline, "reference", None)
    references = list(getattr(pipeline, "references", {}).values()) or [single] * (single is not None)
    yield pipeline.actor_train.workers, ("actor", "weight_sync", *(() if references else ("ref",)))
    critic = getattr(pipeline, "critic", None)
    if critic is not None:
        yield critic.workers, ("critic", "actor")
    for each in references:
        yield each.workers, ("ref",)


_adapter = partial(hooked, distributions=("roll",), tested="~=0.3.0")

ADAPTERS = (
    _adapter("roll.timers", "roll.pipeline", codetiming_hooks(lambda: _jobs[0] if _jobs else None)),
    *(
        _adapter(
            f"roll.{target.partition(':')[2]}",
            target,
            [around(f"{target}.run", _run_begins, _run_ends)],
            {
                STATE: ("step",),
                f"{CLUSTER}.__init__": ("worker_config",),
                CONFIG: ("profiler_timeline", "max_steps"),
            },
        )
        for target in PIPELINES
    ),
)

"""The adapter of torchtitan: each rank runs the trainer's loop, and every span of its structured logger is a region.

Spans are entered even if the structured logger is off. The span "step" is the whole step. A cycle
of torchtitan's profiler is a torch schedule that begins with step 1.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from stepprof.errors import ConfigError
from stepprof.integrations import own_profiler
from stepprof.integrations.hooks import around, hooked
from stepprof.integrations.timed_job import KEPT, TimedJob, close_kept
from stepprof.integrations.training_loop import close_timer, end_jobs, ensure_session, open_timer

TRAINER = "torchtitan.trainer:Trainer"
SPAN = "torchtitan.observability.structured_logger.structured_logging:log_trace_span"
PROFILER = "torchtitan.tools.profiler:Profiler.Config"

STEP = "step"
EVAL = "eval"

OPTION = "profiler.enable_profiling"

_jobs: list[TimedJob] = []
"""The job of this process, while its trainer trains."""


def _training_begins(trainer: Any, _: tuple[Any, ...], __: dict[str, Any]) -> bool:
    own, steps = trainer.config.profiler, _own_steps(trainer.config)
    asked = own_profiler.is_asked_for()
    if asked and not steps:
        raise ConfigError.at(
            OPTION,
            own.enable_profiling,
            "must be on and select a step of the job for STEPPROF_FROM=framework",
        )
    if not ensure_session("torchtitan", own_profiler.with_overrides({"steps": steps} if asked else None)):
        return False
    if asked:
        own.enable_profiling = False
    own_profiler.settle("torchtitan", OPTION, steps, take_over=asked)
    _jobs[:] = [TimedJob("torchtitan", lambda: int(trainer.step), {}, (STEP,), (EVAL,))]
    return True


_training_ends = partial(end_jobs, _jobs)


def _own_steps(config: Any) -> list[int]:
    """Return the steps that torchtitan's own profiler would record."""
    own = config.profiler
    if not own.enable_profiling:
        return []
    wait = own.profile_freq - own.profiler_active - own.profiler_warmup
    others = {key: getattr(own, f"profiler_{key}") for key in ("repeat", "skip_first", "skip_first_wait")}
    given = {key: value for key, value in others.items() if value is not None}
    recorded = {"wait": wait, "warmup": own.profiler_warmup, "active": own.profiler_active}
    return own_profiler.scheduled_steps(config.training.steps, **recorded, **given)


def _span_begins(span: Any, _: tuple[Any, ...], __: dict[str, Any]) -> None:
    name = span.base_name
    for job in _jobs:
        span.__dict__[KEPT] = job.begin(name)
    if not _jobs:
        timer = open_timer(name)
        if timer is not None:
            span.__dict__[KEPT] = lambda error: close_timer(timer, error)


ADAPTERS = (
    hooked(
        "torchtitan",
        TRAINER,
        [
            around(f"{TRAINER}.train", _training_begins, _training_ends),
            around(f"{SPAN}.__enter__", _span_begins),
            around(f"{SPAN}.__exit__", close_kept),
        ],
        {
            f"{SPAN}.__init__": ("event_type",),
            PROFILER: (
                *("enable_profiling", "profile_freq", "profiler_active", "profiler_warmup"),
                *("profiler_repeat", "profiler_skip_first", "profiler_skip_first_wait"),
            ),
        },
        distributions=("torchtitan",),
        tested="~=0.3.0",
    ),
)

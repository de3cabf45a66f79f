"""Replace a framework's own profiler, for a job that sets ``STEPPROF_FROM=framework``, or report the steps that both record."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import Any

from stepprof.config.loaders import CONFIG_VARIABLE, FROM_VARIABLE, misspelt, overrides, plain
from stepprof.config.validators import Mistakes
from stepprof.errors import ConfigError
from stepprof.instrument.context import cell
from stepprof.log import logger
from stepprof.recording.session import current_session


def is_asked_for() -> bool:
    """Return whether the job asks for the steps of the framework's own profiler.

    Raises:
        ConfigError: the variable has an unknown value.
    """
    value = os.environ.get(FROM_VARIABLE, "").strip()
    if value not in ("", "framework"):
        raise ConfigError.at(f"${FROM_VARIABLE}", value, 'must be "framework"; did you mean "framework"?')
    return bool(value)


def refuse(framework: str) -> None:
    """Raise if a job asks for the steps of a profiler that the adapter does not read, and selects
    none itself.

    Raises:
        ConfigError: the job would record nothing.
    """
    if is_asked_for() and not any(os.environ.get(name) for name in ("STEPPROF_STEPS", CONFIG_VARIABLE)):
        problem = f"the profiler configuration of {framework} is not read; set STEPPROF_STEPS instead"
        raise ConfigError.at(f"${FROM_VARIABLE}", "framework", problem)


def with_overrides(given: Any) -> Any:
    """Return the configuration that a framework gives with the variables of the environment on top; None if it gives none."""
    if given is None:
        return None
    Mistakes([*misspelt(os.environ)]).report()
    return {**plain(given), **{key: value for _, key, value in overrides(os.environ)}}  # type: ignore[dict-item]


def scheduled_steps(total: int, **schedule: int) -> list[int]:
    """Return the steps, from 1, that a schedule of torch's profiler records in a job of `total` steps.

    Args:
        total: how many steps the job has.
        schedule: what `torch.profiler.schedule` takes.
    """
    from torch.profiler import ProfilerAction
    from torch.profiler import schedule as scheduled

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a schedule without warm-up is the framework's business
        action = scheduled(**schedule)
    recording = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
    return [finished + 1 for finished in range(total) if action(finished) in recording]


def settle(
    adapter: str, option: str, steps: Iterable[int], *, take_over: bool, is_replaceable: bool = True
) -> None:
    """Note that the configuration comes from the framework, or report the steps that its profiler records too.

    Args:
        adapter: its name.
        option: the framework's, that selects the steps.
        steps: in which the framework's own profiler runs.
        take_over: stepprof records them alone; the adapter has switched the other profiler off.
        is_replaceable: whether the adapter can do that.
    """
    session = current_session()
    if session is None:
        return
    if take_over:
        cell.adapters[adapter] = {**cell.adapters[adapter], "configuration": option}
        session.note_adapters()
        return
    both = [step for step in steps if step in session.config.policy(None).steps]
    if both:
        instead = (
            ", or set STEPPROF_FROM=framework to record them with stepprof alone" if is_replaceable else ""
        )
        reason = f"{option} selects them too; leave it out{instead}"
        logger.warning("adapter.other_profiler", name=adapter, steps=both, reason=reason)

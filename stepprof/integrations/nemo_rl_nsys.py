"""Read the variables of NeMo-RL's profiling with Nsight Systems, for a job that sets
``STEPPROF_FROM=framework``.

The last number of the range is not recorded. NeMo-RL starts a worker below ``nsys`` if its module
has read both variables. So the variables are emptied there, before another module copies them.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from stepprof.errors import ConfigError
from stepprof.integrations import own_profiler

RANGE = "NRL_NSYS_PROFILE_STEP_RANGE"
PATTERNS = "NRL_NSYS_WORKER_PATTERNS"


def take_over(module: str) -> None:
    """Switch NeMo-RL's profiling off, if the job wants stepprof instead.

    Args:
        module: NeMo-RL's, that has read the variables, if it is imported.
    """
    found = sys.modules.get(module)
    if found is not None and own_profiler.is_asked_for():
        for name in (RANGE, PATTERNS):
            setattr(found, name, "")


def as_configuration() -> dict[str, Any] | None:
    """Return the configuration of stepprof, or None if it does not replace NeMo-RL's profiling.

    Raises:
        ConfigError: it should replace it, but no steps are selected.
    """
    if not own_profiler.is_asked_for():
        return None
    for name in (RANGE, PATTERNS):
        if not os.environ.get(name):
            raise ConfigError.at(f"${name}", "", "must be set for STEPPROF_FROM=framework")
    steps = [*_steps()]
    if not steps:
        raise ConfigError.at(
            f"${RANGE}", os.environ[RANGE], "must be START:STOP, two numbers, with START below STOP"
        )
    return {"steps": steps, "join_steps": True, "ranks": "all"}


def settle(adapter: str) -> None:
    """Note which configuration applies, or report the steps that both record."""
    steps = _steps() if os.environ.get(PATTERNS) else ()
    own_profiler.settle(adapter, RANGE, steps, take_over=own_profiler.is_asked_for())


def _steps() -> range:
    """Return the steps that the variable selects; none if it is invalid, which NeMo-RL itself reports."""
    begin, _, end = os.environ.get(RANGE, "").partition(":")
    return range(int(begin), int(end)) if begin.isdecimal() and end.isdecimal() else range(0)

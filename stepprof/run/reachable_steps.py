"""Which step every rank of a run can still reach: what they told of themselves is some seconds old, and a request takes some until it is seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["reachable_step"]

REACH_SECONDS = 2.5
"""How long a request takes until every rank has seen it: they look once a second, and a busy file system shows it late."""

MOST_UNSEEN_SECONDS = 15.0
"""How far on a rank may be expected that has told nothing for longer."""

STEADY = 0.8
"""A step may be this much shorter than the shortest of the last few."""


def reachable_step(statuses: Sequence[Mapping[str, Any]]) -> int:
    """The first step that none of these ranks will have begun when they have seen a request that is made now.

    >>> rank = {"step": 7, "stride": 1, "pace_seconds": 60.0, "age_seconds": 1.0, "step_since_unix_ns": 0, "published_unix_ns": int(9e9)}
    >>> reachable_step([rank, {**rank, "step": 5}])
    8
    >>> reachable_step([{**rank, "pace_seconds": 0.1}]), reachable_step([{**rank, "step": 70, "stride": 10}])
    (52, 80)
    """
    return max((_first_after(status) for status in statuses), default=1)


def _first_after(status: Mapping[str, Any]) -> int:
    step: int | None = status["step"]
    if step is None:
        return 1
    stride: int = status["stride"] or 1
    seconds: float | None = status["pace_seconds"]
    if seconds is None:
        return step + 2 * stride
    shortest = max(seconds * STEADY, 1e-4)
    # what is older is of a process that hangs, or of a clock that is wrong: of neither may so many steps be expected
    unseen = min(status["age_seconds"], MOST_UNSEEN_SECONDS) + REACH_SECONDS
    steps = math.ceil(unseen / shortest)
    told, since = status["published_unix_ns"], status["step_since_unix_ns"]
    if since is not None:
        # by the clock of the rank alone; it was noticed up to a second after it began
        running = max((told - since) / 1e9, 0.0) + 1.0 + unseen
        steps = min(steps, math.floor(running / shortest))
    return int(step + stride * (1 + min(steps, 10**6)))

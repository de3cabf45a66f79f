"""Find a step that every rank of a run can still reach, from status files that are some seconds old."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

REACH_SECONDS = 2.5
"""Seconds until every rank has seen a request: they look once a second, and file systems may be slow."""

MOST_UNSEEN_SECONDS = 15.0
"""Extrapolate the position of a rank at most this far beyond its last status."""

STEADY = 0.8
"""Assume that a step takes at least this share of the shortest recent step."""


def reachable_step(statuses: Sequence[Mapping[str, Any]]) -> int:
    """Return the first step that no rank will have begun before it has seen a request made now.

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
    # an older status is of a process that hangs, or of a wrong clock: expect no more steps from it
    unseen = min(status["age_seconds"], MOST_UNSEEN_SECONDS) + REACH_SECONDS
    steps = math.ceil(unseen / shortest)
    reported, since = status["published_unix_ns"], status["step_since_unix_ns"]
    if since is not None:
        # by the rank's own clock; the step was noticed up to a second after its start
        running = max((reported - since) / 1e9, 0.0) + 1.0 + unseen
        steps = min(steps, math.floor(running / shortest))
    return int(step + stride * (1 + min(steps, 10**6)))

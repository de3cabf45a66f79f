"""Groups of Ray actors that hold the ranks of a job."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any


def merged(groups: Iterable[tuple[Sequence[Any], Sequence[str]]]) -> list[tuple[list[Any], list[str]]]:
    """Return each group of actors once, with the roles of all that are made of the same actors.

    Args:
        groups: actors with the roles whose windows they follow; one without actors is left out.
    """
    found: dict[tuple[Any, ...], tuple[list[Any], list[str]]] = {}
    for actors, roles in groups:
        if actors:
            found.setdefault(tuple(each._actor_id for each in actors), ([*actors], []))[1].extend(roles)
    return list(found.values())


def is_ray_worker() -> bool:
    """Return whether Ray has started this process."""
    ray: Any = sys.modules.get("ray")
    return ray is not None and ray._private.worker.global_worker.mode == ray.WORKER_MODE

"""Sort sources in a timeline, and tracks in a source, in the order in which people look for them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np

from stepprof.analysis.timeline.model import Origin, Source

_KIND_ORDER = {"iterations": 0, "counter": 1, "thread": 2, "stream": 3, "async": 4, "sample": 5}
_ORIGIN_ORDER = {"spans": 0, "rank": 1, "engine": 2, "trace": 3}
_NUMBERS = re.compile(r"(\d+)")


def source_order(origin: Origin, roles: Mapping[str | None, int]) -> tuple[object, ...]:
    """Return a key to sort sources by.

    Spans are first, those of the driver above the others, so that the whole step is visible at a
    glance. Then come ranks by role, engines, and other traces by path.

    Args:
        origin: the origin of the source.
        roles: when each role started; other roles are last.
    """
    role = (roles.get(origin.role, math.inf), origin.role or "")
    rank = (
        origin.rank != "driver",
        origin.rank is None or isinstance(origin.rank, str),
        origin.rank if isinstance(origin.rank, int) else 0,
        str(origin.rank),
    )
    replica = math.inf if origin.replica is None else origin.replica
    path = [
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _NUMBERS.split(origin.path)
    ]
    if origin.kind == "spans":
        return (0, rank, origin.host or "", path)
    return (_ORIGIN_ORDER[origin.kind], role, replica, rank, origin.occurrence, origin.host or "", path)


def order_of_tracks(source: Source) -> list[int]:
    """Return the place of each track among those of its source: iterations and counters first,
    samples last, the longest of them at the end.
    """
    extent = np.zeros(len(source.tracks), np.int64)
    if len(source.slices):
        first = np.full(len(source.tracks), np.iinfo(np.int64).max)
        last = np.full(len(source.tracks), np.iinfo(np.int64).min)
        np.minimum.at(first, source.slices.track, source.slices.start)
        np.maximum.at(last, source.slices.track, source.slices.start + source.slices.duration)
        extent = np.where(last >= first, last - first, 0)
    keys = [
        (
            _KIND_ORDER[track.kind],
            int(extent[number]) if track.kind == "sample" else track.order,
            track.name,
            number,
        )
        for number, track in enumerate(source.tracks)
    ]
    order = [0] * len(keys)
    for place, number in enumerate(sorted(range(len(keys)), key=keys.__getitem__)):
        order[number] = place
    return order

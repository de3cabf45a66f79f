"""Find out whether the collectives in a trace are exactly those that one thread called in it, in that order, in the group of all ranks.

gloo's annotations say neither the process group of a collective nor its number. They can still be matched across ranks by their order, if nothing else is possible: the job has one process group,
and every rank recorded them from the same call on. The second holds where a thread called them within its window: the calls of a window are the same on all ranks, while what was called before it
may run into one rank's capture and not into another one's. torch records the call (an operator of ``c10d``) apart from the collective itself, which threads of gloo's run.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from stepprof.analysis.report.collectives import is_host_communication
from stepprof.analysis.timeline.model import Source

__all__ = ["Issued", "issued"]

QUIET_NS = 50_000_000
"""A call does not wait for so long while none of gloo's threads is busy: they begin one within 0.15 ms, on a loaded machine within 40 ms (torch 2.13)."""
LATE_NS = 1_000_000
"""How much later than its caller goes on the annotation of a call may end: 0.1 ms, and more where threads have to be scheduled."""
_FEW = 3
_CALL = "c10d::"
_PAIRS = ("send", "recv")
"""Between two ranks: no collectives."""


class Issued(msgspec.Struct, frozen=True):
    """Who called all collectives of a source."""

    world: int
    """How many ranks the job has, all in one process group."""
    thread: str


def issued(source: Source, bounds: tuple[int, int] | None = None) -> Issued | None:
    """Return which thread called all collectives of a source; None where it is not sure that all of them, and no others, are there.

    Args:
        source: cut to the bounds.
        bounds: of the step, on the clock of the source's island.
    """
    world = _world(source.metadata)
    slices = source.slices
    calls = np.flatnonzero(np.array([_is(name, called=True) for name in source.names], bool)[slices.name])
    annotations = np.flatnonzero(
        np.array([_is(name, called=False) for name in source.names], bool)[slices.name]
    )
    threads = {source.tracks[track] for track in np.unique(slices.track[calls]).tolist()}
    if world is None or not len(calls) or len(calls) != len(annotations) or len(threads) != 1:
        return None
    called = np.sort(slices.start[calls])
    annotations = annotations[np.argsort(slices.start[annotations], kind="stable")]
    begun = slices.start[annotations]
    reach = np.maximum.accumulate(begun + slices.duration[annotations])
    if bounds is not None and min(called[0], begun[0]) <= bounds[0]:
        return None  # one that was cut may have begun in an earlier window
    if (begun < called).any():
        return None
    # were the first one of an earlier call, each of these calls would have waited until the next one was made, the last one beyond the end
    idle = np.maximum(begun[1:] - reach[:-1], 0).sum() + (0 if bounds is None else bounds[1] - reach[-1])
    one_by_one = len(called) >= _FEW and bool((called[1:] >= reach[:-1] - LATE_NS).all())
    if not one_by_one and idle < QUIET_NS:
        return None
    (track,) = threads
    return Issued(world, track.key[-1])


def _is(name: str, *, called: bool) -> bool:
    known = name.startswith(_CALL) if called else is_host_communication(name)
    return known and not any(word in name for word in _PAIRS)


def _world(metadata: Mapping[str, object]) -> int | None:
    """How many ranks the job has, if they are its only process group: a call may also be of a group of one rank, as frameworks make them."""
    stated = metadata.get("distributedInfo")
    if not isinstance(stated, dict):
        return None
    world, config = stated.get("world_size"), stated.get("pg_config")
    if not isinstance(config, list) or not all(isinstance(each, dict) for each in config):
        return None
    sizes = [each.get("pg_size") for each in config]
    return world if sizes == [world] and type(world) is int else None

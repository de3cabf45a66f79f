"""Find out whether one thread called all collectives of a trace, in the group of all ranks.

gloo's annotations state neither the process group of a collective nor its number. Its calls can
still be matched across ranks by their order if two conditions hold. The job has one process group,
and all ranks recorded the calls from the same one on.

The second condition holds where a thread called them within its window: the calls of a window are
the same on all ranks. A call made before the window may still run in the capture of one rank and
not in that of another. torch records the call (an operator of ``c10d``) apart from the collective
itself, which gloo's threads run.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from stepprof.analysis.report.collectives import is_host_communication
from stepprof.analysis.timeline.model import Source

QUIET_NS = 50_000_000
"""The longest time that a call waits while gloo's threads are idle. They begin a call within 0.15
ms, on a loaded machine within 40 ms (torch 2.13).
"""
LATE_NS = 1_000_000
"""How much later than its caller continues the annotation of a call may end: 0.1 ms, and more where
threads have to be scheduled.
"""
_FEW = 3
_CALL = "c10d::"
_PAIRS = ("send", "recv")
"""Transfers between two ranks are no collectives."""


class Issued(msgspec.Struct, frozen=True):
    """The thread that called all collectives of a source."""

    world: int
    """How many ranks the job has, all in one process group."""
    thread: str


def issued(source: Source, bounds: tuple[int, int] | None = None) -> Issued | None:
    """Return the thread that called all collectives of a source; None if others may have called
    some.

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
    # if the first one were of an earlier call, each call would have waited for the next one, and the last one beyond the end
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
    """Return the number of ranks if they are the job's only process group.

    Frameworks also make groups of one rank, and a call may be of such a group.
    """
    stated = metadata.get("distributedInfo")
    if not isinstance(stated, dict):
        return None
    world, config = stated.get("world_size"), stated.get("pg_config")
    if not isinstance(config, list) or not all(isinstance(each, dict) for each in config):
        return None
    sizes = [each.get("pg_size") for each in config]
    return world if sizes == [world] and type(world) is int else None

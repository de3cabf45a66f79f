"""Read the process group of a collective from the trace, and whether one thread called all collectives of the job.

torch states it next to every kernel of NCCL (and next to `record_param_comms`), since CUPTI links
kernels to their launches. gloo's annotations on threads do not state it (torch 2.13); there the
groups follow from the calls that overlap.

Nor do they state the number of a call. Calls can still be matched across ranks by their order if two
conditions hold. The job has one process group, and all ranks recorded the calls from the same one on.

The second condition holds where a thread called them within its window: the calls of a window are
the same on all ranks. A call made before the window may still run in the capture of one rank and
not in that of another. torch records the call (an operator of ``c10d``) apart from the collective
itself, which gloo's threads run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from stepprof.analysis.report.collectives import (
    CallArguments,
    Group,
    is_device_communication,
    is_host_communication,
    ranks_text,
)
from stepprof.analysis.timeline.columns import Interned
from stepprof.analysis.timeline.distinct import distinct
from stepprof.analysis.timeline.event import Event
from stepprof.analysis.timeline.model import Args, Indices, Source
from stepprof.analysis.timeline.salvage import DECODE_ERRORS

_NUMBER = re.compile(r"\d{1,7}")
_LARGEST_GROUP = 1 << 20
"""More ranks than any job has. A larger number is from a damaged file."""
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


class _Args(msgspec.Struct, gc=False):
    ranks: str | list[int] | None = msgspec.field(default=None, name="Process Group Ranks")
    name: str | int | None = msgspec.field(default=None, name="Process Group Name")
    description: str | None = msgspec.field(default=None, name="Process Group Description")
    size: int | None = msgspec.field(default=None, name="Group size")
    seq: int | None = msgspec.field(default=None, name="Seq")
    collective: str | None = msgspec.field(default=None, name="Collective name")
    finished: bool = True

    def group(self) -> Group | None:
        """Return the group; None if the event does not state it.

        torch truncates the ranks of a large group; then the size is used.
        """
        if self.ranks is None and self.name is None:
            return None
        reported = str(self.ranks or "").replace(" ", "")
        size = self.size if self.size is not None and 0 < self.size < _LARGEST_GROUP else 0
        numbers = (
            [] if "..." in reported else [int(each) for each in _NUMBER.findall(reported)[:_LARGEST_GROUP]]
        )
        if size and len(set(numbers)) != size:
            numbers = []
        return Group(
            name=f"{self.name or ''} {self.description or ''} {reported} {size or ''}",
            ranks=ranks_text(numbers),
            size=size or len(set(numbers)),
        )


_args = msgspec.json.Decoder(_Args)


class Communication:
    """Keeps the arguments of communication while a file is read.
    `stepprof.analysis.timeline.load.load` takes it.
    """

    def __init__(self) -> None:
        self._wanted = np.zeros(0, np.bool_)

    def __call__(self, events: Sequence[Event], name: Indices, names: Interned[str]) -> list[Args] | None:
        """Return the arguments of collectives, None for everything else; None if there are no collectives."""
        known = len(self._wanted)
        if len(names) > known:
            new = [
                is_device_communication(each) or is_host_communication(each) for each in list(names)[known:]
            ]
            self._wanted = np.concatenate((self._wanted, np.array(new, np.bool_)))
        wanted = np.flatnonzero(self._wanted[name]).tolist()
        if not wanted:
            return None
        kept: list[Args] = [None] * len(events)
        for at in wanted:
            kept[at] = bytes(events[at].args) or None
        return kept


def groups_of(args: Sequence[Args]) -> CallArguments:
    """Return the process groups and numbers that the arguments of calls state, and whether the
    calls had ended.
    """
    groups: Interned[Group] = Interned()
    group, seq = np.full(len(args), -1, np.int32), np.full(len(args), -1, np.int64)
    unfinished = np.zeros(len(args), bool)
    collective: list[str | None] = [None] * len(args)
    for at, raw in enumerate(args):
        if raw is None:
            continue
        try:
            reported = _args.decode(raw)
        except DECODE_ERRORS:
            continue
        unfinished[at] = not reported.finished
        collective[at] = reported.collective and f"collective {reported.collective}"
        stated = reported.group()
        if stated is not None:
            group[at] = groups[stated]
            seq[at] = reported.seq if reported.seq is not None and 0 <= reported.seq < 2**62 else -1
    return CallArguments(list(groups), group, seq, collective, unfinished)


def configured_groups(metadata: Mapping[str, object]) -> tuple[int, int, list[str]]:
    """Return the world size (0: not stated), the rank (-1: not stated) and the ranks of each
    process group in a trace.

    >>> configured_groups({"distributedInfo": {"rank": 1, "world_size": 3, "pg_config": [{"pg_size": 2, "ranks": [0, 1]}]}})
    (3, 1, ['0-1'])
    """
    stated = metadata.get("distributedInfo")
    if not isinstance(stated, dict):
        return 0, -1, []
    world, rank, config = (stated.get(key) for key in ("world_size", "rank", "pg_config"))
    world = world if type(world) is int and 0 < world < _LARGEST_GROUP else 0
    rank = rank if type(rank) is int and 0 <= rank < (world or _LARGEST_GROUP) else -1
    groups = []
    for each in config if isinstance(config, list) else []:
        ranks = each.get("ranks") if isinstance(each, dict) else None
        if (
            isinstance(ranks, list)
            and ranks
            and all(type(number) is int and 0 <= number < _LARGEST_GROUP for number in ranks)
        ):
            groups.append(ranks_text(ranks))
        # torch leaves out the ranks of the whole world
        elif isinstance(each, dict) and world and each.get("pg_size") == world:
            groups.append(ranks_text(range(world)))
    return world, rank, list(dict.fromkeys(groups))


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
    threads = {source.tracks[track] for track in distinct(slices.track[calls]).tolist()}
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

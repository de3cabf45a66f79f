"""Read the process group of a collective from the trace.

torch states it next to every kernel of NCCL (and next to `record_param_comms`), since CUPTI links
kernels to their launches. gloo's annotations on threads do not state it (torch 2.13); there the
groups follow from the calls that overlap.
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
from stepprof.analysis.timeline.event import Event
from stepprof.analysis.timeline.model import Args, Indices
from stepprof.analysis.timeline.salvage import DECODE_ERRORS

_NUMBER = re.compile(r"\d{1,7}")
_LARGEST_GROUP = 1 << 20
"""More ranks than any job has. A larger number is from a damaged file."""


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
        elif (
            isinstance(each, dict) and world and each.get("pg_size") == world
        ):  # torch leaves out the ranks of the whole world
            groups.append(ranks_text(range(world)))
    return world, rank, list(dict.fromkeys(groups))

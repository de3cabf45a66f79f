"""Which process group a collective was of, as far as the trace says: torch writes that beside every kernel of NCCL's (and beside `record_param_comms`), since CUPTI's kernels are linked to what launched them.

gloo's annotations on threads say nothing of the kind (torch 2.13): there the groups follow from which calls overlap.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from stepprof.report.collectives import Groups, is_device_communication, is_host_communication
from stepprof.timeline.columns import Interned
from stepprof.timeline.event import Event
from stepprof.timeline.model import Args, Indices
from stepprof.timeline.salvage import DECODE_ERRORS

__all__ = ["Communication", "groups_of"]


class _Args(msgspec.Struct, gc=False):
    ranks: str | list[int] | None = msgspec.field(default=None, name="Process Group Ranks")
    name: str | int | None = msgspec.field(default=None, name="Process Group Name")
    description: str | None = msgspec.field(default=None, name="Process Group Description")
    size: int | None = msgspec.field(default=None, name="Group size")
    seq: int | None = msgspec.field(default=None, name="Seq")

    def group(self) -> str | None:
        """What tells the group from others, the same on each of its ranks: of a large one the ranks are cut short, and the name goes on."""
        if self.ranks is None and self.name is None:
            return None
        ranks = str(self.ranks or "").replace(" ", "")
        return f"{self.name or ''} {self.description or ''} {ranks} {self.size or ''}"


_args = msgspec.json.Decoder(_Args)


class Communication:
    """Keeps the arguments of communication while a file is read, as `stepprof.timeline.load.load` takes it."""

    def __init__(self) -> None:
        self._wanted = np.zeros(0, np.bool_)

    def __call__(self, events: Sequence[Event], name: Indices, names: Interned[str]) -> list[Args]:
        """The arguments of collectives; None for everything else."""
        known = len(self._wanted)
        if len(names) > known:
            new = [
                is_device_communication(each) or is_host_communication(each) for each in list(names)[known:]
            ]
            self._wanted = np.concatenate((self._wanted, np.array(new, np.bool_)))
        kept: list[Args] = [None] * len(events)
        for at in np.flatnonzero(self._wanted[name]).tolist():
            kept[at] = bytes(events[at].args) or None
        return kept


def groups_of(args: Sequence[Args]) -> Groups:
    """The groups that collectives say they are of, for each the number of its group, and the number that it has among the calls of that; -1: it does not say."""
    groups: Interned[str] = Interned()
    group, seq = np.full(len(args), -1, np.int32), np.full(len(args), -1, np.int64)
    for at, raw in enumerate(args):
        if raw is None:
            continue
        try:
            told = _args.decode(raw)
        except DECODE_ERRORS:
            continue
        text = told.group()
        if text is not None:
            group[at] = groups[text]
            seq[at] = told.seq if told.seq is not None and 0 <= told.seq < 2**62 else -1
    return list(groups), group, seq

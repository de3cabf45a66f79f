"""Collectives: what is communication by its name, and who waited for whom inside.

In a collective that synchronises, nobody leaves before the last one has come, so the calls of the ranks are matched by their order, and there are two measures of a rank's wait. By durations: what its
call took longer than the shortest one, since the last to arrive waits least; that needs no clock, but takes it that all leave together, as they do on devices and not where threads have to be
scheduled. By arrivals: until the last one had come; that is only as right as the clocks. A wait is the smaller of the two, and by arrivals alone among the threads of one host. The clocks
also confirm that the calls belong together: every rank's must still run when the last one begins. Where they do not (the ranks are of different groups, a call is missing), nothing is claimed.

Where a trace says which process group a call was of, only calls of one group are matched; and where it numbers them, by their numbers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.report.intervals import EMPTY, Intervals, Times

__all__ = [
    "MOST_CALLS",
    "Calls",
    "Peer",
    "Waiting",
    "is_device_communication",
    "is_host_communication",
    "match",
]

MOST_CALLS = 50_000
"""Calls of one source that travel; of a source with more, none do."""
TOLERANCE_NS = 2_000_000
"""How far a rank's call may end before the last one begins, beyond the clocks' errors: the ends of a barrier of one host spread by up to a millisecond."""
CONFIRMED = 0.95
"""The share of calls that must overlap for ranks to be taken for one group."""

_AT_ONCE = 4096
_DEVICE = re.compile(
    r"nccl|\brccl|hccl|hcom_|mscclpp|nvshmem|deep_?ep|cross_device_reduce|(one|two)_shot_all|multimem_all"
    r"|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all",
    re.IGNORECASE,
)
_HOST = re.compile(r"(gloo|mpi|ucc|xccl|oneccl|hccl|nccl):", re.IGNORECASE)
_SYNCHRONISES = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier|cross_device_reduce", re.IGNORECASE
)


def is_device_communication(name: str) -> bool:
    """Whether a kernel moves data between ranks, by its name.

    >>> is_device_communication("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    True
    >>> is_device_communication("void at::native::reduce_kernel<512, 1>(...)")
    False
    """
    return _DEVICE.search(name) is not None


def is_host_communication(name: str) -> bool:
    """Whether an annotation on a thread is a collective of a host library (``gloo:all_reduce``)."""
    return _HOST.match(name) is not None


Groups = tuple[list[str], npt.NDArray[np.int32], Times]
"""The process groups that there are, and of each call which of them it is of and its number there; -1: not known."""
_Kind = tuple[str, "str | None"]
"""The name of a collective, and its process group where the trace says it."""
_Columns = tuple[Times, Times, npt.NDArray[np.int64]]


class Calls(msgspec.Struct, frozen=True):
    """The collectives of one source that synchronise, by start; times in nanoseconds, packed."""

    names: list[str] = []
    name: bytes = b""
    start: bytes = b""
    duration: bytes = b""
    groups: list[str] = []
    group: bytes = b""
    """The process group of each, -1: the trace does not say; empty: of none it does."""
    seq: bytes = b""
    """Which call of its group each is, -1: the trace does not say."""
    left_out: int = 0
    """How many there are, where there are too many."""

    @classmethod
    def collect(
        cls,
        names: list[str],
        name: npt.NDArray[np.int32],
        start: Times,
        duration: Times,
        told: Groups | None = None,
    ) -> Calls:
        """Of the communication of a source, what synchronises; `told` is what the trace says of their groups."""
        synchronises = np.array([_SYNCHRONISES.search(text) is not None for text in names], bool)
        chosen = np.flatnonzero(synchronises[name]) if len(name) else np.zeros(0, np.intp)
        if len(chosen) > MOST_CALLS:
            return cls(left_out=len(chosen))
        chosen = chosen[np.argsort(start[chosen], kind="stable")]
        used, where = np.unique(name[chosen], return_inverse=True)
        groups, group, seq = told if told is not None and told[0] else ([], None, None)
        return cls(
            names=[names[at] for at in used.tolist()],
            name=where.astype("<i4").tobytes(),
            start=start[chosen].astype("<i8").tobytes(),
            duration=duration[chosen].astype("<i8").tobytes(),
            groups=groups,
            group=b"" if group is None else group[chosen].astype("<i4").tobytes(),
            seq=b"" if seq is None else seq[chosen].astype("<i8").tobytes(),
        )

    def by_kind(self) -> dict[_Kind, _Columns]:
        """Starts, durations and numbers of the calls of each name and group, in order."""
        name = np.frombuffer(self.name, "<i4")
        start, duration = (
            np.frombuffer(data, "<i8").astype(np.int64) for data in (self.start, self.duration)
        )
        group = np.frombuffer(self.group, "<i4") if self.group else np.full(len(name), -1)
        seq = np.frombuffer(self.seq, "<i8") if self.seq else np.full(len(name), -1, np.int64)
        kinds: dict[_Kind, _Columns] = {}
        for at, text in enumerate(self.names):
            for number in np.unique(group[name == at]).tolist():
                which = (name == at) & (group == number)
                told = None if number < 0 else self.groups[number]
                kinds[text, told] = (start[which], duration[which], seq[which])
        return kinds


@dataclass(frozen=True, slots=True)
class Peer:
    """One process among those that may be in one group; `error_ns` is None where nobody knows how wrong its clock is."""

    label: str
    calls: Calls
    error_ns: int | None = 0
    machine: str | None = None
    """Clocks of one machine agree."""


_Entry = tuple[Peer, Times, Times]
"""A process, and start and duration of its calls of one name."""


@dataclass(slots=True)
class Waiting:
    """What one process waited inside collectives for the last one to come, and what it made others wait."""

    matched: int = 0
    waited_ns: int = 0
    caused_ns: int = 0
    """The longest wait of each call that it came last to."""
    when: Intervals = field(default_factory=lambda: EMPTY)


def match(peers: Sequence[Peer]) -> dict[str, Waiting]:
    """Who waited for whom, by label; empty where the calls cannot be matched.

    Args:
        peers: the processes that may be in one group: those of one role.
    """
    waiting: dict[str, Waiting] = defaultdict(Waiting)
    calls: dict[_Kind, list[tuple[Peer, _Columns]]] = defaultdict(list)
    for peer in peers:
        for kind, columns in peer.calls.by_kind().items():
            calls[kind].append((peer, columns))
    for (name, group), members in calls.items():
        numbered = group is not None and all((seq >= 0).all() for _, (_, _, seq) in members)
        entries = [(peer, start, duration) for peer, (start, duration, _) in members]
        for each in [_by_number(members)] if numbered else _groups(entries):
            if len(each) > 1:
                _settle(each, waiting, on_host=is_host_communication(name))
    return dict(waiting)


def _by_number(members: Sequence[tuple[Peer, _Columns]]) -> list[_Entry]:
    """The calls that all members of a group have, by their numbers: one that was captured for longer has more. Without those whose clock nobody compared."""
    first = members[0][0]
    comparable = [each for each in members if _error_ns(first, each[0]) is not None]
    common = comparable[0][1][2] if comparable else np.zeros(0, np.int64)
    for _, (_, _, seq) in comparable:
        common = np.intersect1d(common, seq)
    entries: list[_Entry] = []
    for peer, (start, duration, seq) in comparable:
        known, at = np.unique(seq, return_index=True)
        at = at[np.isin(known, common)]
        entries.append((peer, start[at], duration[at]))
    return entries if len(common) else []


def _groups(entries: list[_Entry]) -> list[list[_Entry]]:
    """The entries, parted into those whose calls overlap one by one."""
    groups: list[list[_Entry]] = []
    for entry in entries:
        for group in groups:
            if _together(group[0], entry):
                group.append(entry)
                break
        else:
            groups.append([entry])
    return [group for group in groups if len(group) > 1]


def _together(one: _Entry, other: _Entry) -> bool:
    """Whether the calls of two processes overlap one by one."""
    (peer, start, duration), (peer2, start2, duration2) = one, other
    error = _error_ns(peer, peer2)
    if error is None or len(start) != len(start2):
        return False
    overlap = np.minimum(start + duration, start2 + duration2) - np.maximum(start, start2)
    return bool((overlap >= -TOLERANCE_NS - error).mean() >= CONFIRMED)


def _error_ns(one: Peer, other: Peer) -> int | None:
    """How wrong a comparison of their times may be; None: nobody knows."""
    if one.machine is not None and one.machine == other.machine:
        return 0
    if one.error_ns is None or other.error_ns is None:
        return None
    return one.error_ns + other.error_ns


def _settle(group: list[_Entry], waiting: dict[str, Waiting], *, on_host: bool) -> None:
    """Add up who waited for whom."""
    first = group[0][0]
    errors = sorted(_error_ns(first, peer) or 0 for peer, _, _ in group)
    error = errors[-1] + errors[-2]  # of any two, by way of the first one
    for at in range(0, len(group[0][1]), _AT_ONCE):  # of thousands of ranks, some calls at a time
        part = slice(at, at + _AT_ONCE)
        start = np.stack([each[part] for _, each, _ in group])
        took = np.stack([each[part] for _, _, each in group])
        by_arrival = np.minimum(start.max(axis=0) - start + error, took)
        waits = by_arrival if on_host and not error else np.minimum(took - took.min(axis=0), by_arrival)
        last = took.argmin(axis=0) if error else start.argmax(axis=0)
        longest = waits.max(axis=0)
        for row, (peer, _, _) in enumerate(group):
            of = waiting[peer.label]
            of.matched += took.shape[1]
            of.waited_ns += int(waits[row].sum())
            of.caused_ns += int(longest[last == row].sum())
            of.when = of.when | Intervals.union(start[row], start[row] + waits[row])

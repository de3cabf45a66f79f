"""Recognise collectives by the names of slices, and pack the calls of one source.

Only this module knows the names that NCCL, HCCL, gloo and similar libraries use. `matching` finds
the calls of several ranks that are one collective, and `waiting` the waits in them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.intervals import Moments, Times

MOST_CALLS = 50_000
"""The largest number of calls of a source that a digest contains. A source with more contributes
none.
"""

_DEVICE = re.compile(
    r"nccl|\brccl|hccl|hcom_|msccl|nvshmem|deep_?ep|cross_device_reduce|(one|two)_shot_all|multimem_all"
    r"|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all",
    re.IGNORECASE,
)
_HOST = re.compile(r"(gloo|mpi|ucc|xccl|oneccl|hccl|nccl):", re.IGNORECASE)

Kind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier",
    "broadcast", "reduce", "gather", "scatter", "point_to_point",
]  # fmt: skip
"""The kind of a collective. In the first five no rank leaves before the last one has entered; the
next four have a root; the last one is a transfer between two ranks.
"""

_SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
_KINDS: dict[Kind, re.Pattern[str]] = {
    "barrier": re.compile(r"barrier", re.IGNORECASE),
    "reduce_scatter": re.compile(r"reduce_?scatter", re.IGNORECASE),
    "all_gather": re.compile(r"all_?gather", re.IGNORECASE),
    "all_to_all": re.compile(r"all_?to_?all", re.IGNORECASE),
    "all_reduce": re.compile(
        r"all_?reduce|cross_device_reduce|(one|two)_shot_all|multimem_all", re.IGNORECASE
    ),
    "broadcast": re.compile(r"broadcast", re.IGNORECASE),
    "gather": re.compile(r"gather", re.IGNORECASE),
    "scatter": re.compile(r"scatter", re.IGNORECASE),
    "reduce": re.compile(r"reduce", re.IGNORECASE),
}
"""The first match counts."""


def is_device_communication(name: str) -> bool:
    """Return whether a kernel moves data between ranks, by its name.

    >>> is_device_communication("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    True
    >>> is_device_communication("void at::native::reduce_kernel<512, 1>(...)")
    False
    """
    return _DEVICE.search(name) is not None


def is_host_communication(name: str) -> bool:
    """Return whether an annotation on a thread is a collective of a host library (``gloo:all_reduce``)."""
    return _HOST.match(name) is not None


def kind_of(name: str) -> Kind:
    """Return the kind of a communication, by its name.

    >>> kind_of("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"), kind_of("gloo:broadcast"), kind_of("gloo:send")
    ('reduce_scatter', 'broadcast', 'point_to_point')
    """
    return next((kind for kind, words in _KINDS.items() if words.search(name)), "point_to_point")


def synchronises(kind: Kind) -> bool:
    """Return whether no rank leaves before the last one has entered."""
    return kind in _SYNCHRONISING


def ranks_text(ranks: Sequence[int]) -> str:
    """Format ranks as short text that is equal for equal sets.

    >>> ranks_text([3, 0, 1, 2, 8])
    '0-3,8'
    """
    parts: list[str] = []
    ordered = sorted(set(ranks))
    first = 0
    for at, rank in enumerate(ordered):
        if at + 1 == len(ordered) or ordered[at + 1] != rank + 1:
            parts.append(f"{ordered[first]}-{rank}" if first < at else f"{rank}")
            first = at + 1
    return ",".join(parts)


_Key = TypeVar("_Key", str, "Group")


class Group(msgspec.Struct, frozen=True):
    """A process group, as far as a trace describes it."""

    name: str
    """Identifies it among the groups of the job; equal on each of its ranks."""
    ranks: str = ""
    """Its global ranks, by `ranks_text`; empty: not known."""
    size: int = 0
    """How many ranks it has; 0: not known."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The arguments of calls: a row per call.

    Attributes:
        groups: the process groups.
        group: index into `groups`; -1: not stated.
        seq: the number of the call in its group; -1: not said.
        collective: the kind, if the kernel's name does not show it (an all-to-all consists of sends); None: not
            stated.
        unfinished: whether the call was still running when the profiler stopped.
    """

    groups: list[Group]
    group: npt.NDArray[np.int32]
    seq: Times
    collective: list[str | None]
    unfinished: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Columns:
    """The calls of one process, unpacked: one row per call, by start.

    Attributes:
        kind: index into `kinds`.
        start: nanoseconds on the common clock.
        duration: nanoseconds.
        group: index into `groups`; -1: not stated.
        seq: the number of the call in its group; -1: not stated.
        region: index into `regions`; -1: in none.
        role: index into `roles`: the role that the capture was made for.
        on_host: whether a thread made the call.
        finished: whether it had ended when the capture did; its duration is a lower bound otherwise.
    """

    kinds: list[Kind]
    groups: list[Group]
    regions: list[str]
    roles: list[str | None]
    kind: npt.NDArray[np.int64]
    start: Times
    duration: Times
    group: npt.NDArray[np.int64]
    seq: npt.NDArray[np.int64]
    region: npt.NDArray[np.int64]
    role: npt.NDArray[np.int64]
    on_host: npt.NDArray[np.bool_]
    finished: npt.NDArray[np.bool_]


class Calls(msgspec.Struct, frozen=True):
    """The communication of one source, by start; times in nanoseconds, packed."""

    names: list[str] = []
    name: bytes = b""
    start: Moments = b""
    duration: bytes = b""
    groups: list[Group] = []
    group: bytes = b""
    """The process group of each, -1: not stated; empty if none is stated."""
    seq: bytes = b""
    """The number of each call in its group, -1: not stated."""
    regions: list[str] = []
    region: bytes = b""
    """The innermost region around each, -1: none; empty if no call has one."""
    unfinished: list[int] = []
    """Calls that were still running when the capture ended."""
    world: int = 0
    """Ranks of the job, by the trace; 0: not stated."""
    rank: int = -1
    """The rank of the process in that world, by the trace; -1: not stated."""
    configured: list[str] = []
    """The ranks of each process group that the process is in, by the trace, as `ranks_text`."""
    left_out: int = 0
    """The number of calls, if there are too many to pack."""

    @classmethod
    def collect(
        cls,
        names: list[str],
        name: npt.NDArray[np.int32],
        start: Times,
        duration: Times,
        *,
        reported: CallArguments,
        region: npt.NDArray[np.int64],
        world: int,
        rank: int,
        configured: list[str],
    ) -> Calls:
        """Pack the communication of a source.

        Args:
            names: of all slices of the source.
            name: of each call, into `names`.
            start: of each call [ns].
            duration: of each call [ns].
            reported: the arguments of the calls, from `groups_of`.
            region: the name of the innermost region that holds each call, into `names`; -1: none does.
            world: ranks of the job; 0: not known.
            rank: of the process; -1: not known.
            configured: the ranks of each process group of the process.
        """
        if len(name) > MOST_CALLS:
            return cls(world=world, rank=rank, configured=configured, left_out=len(name))
        order = np.argsort(start, kind="stable")
        texts: dict[str, int] = {}
        where = [
            texts.setdefault(reported.collective[at] or names[number], len(texts))
            for at, number in zip(order.tolist(), name[order].tolist(), strict=True)
        ]
        kept = sorted(set(region[region >= 0].tolist()))
        places = {number: at for at, number in enumerate(kept)}
        inside = [places.get(number, -1) for number in region[order].tolist()]
        return cls(
            names=list(texts),
            name=np.array(where, "<i4").tobytes(),
            start=start[order].astype("<i8").tobytes(),
            duration=duration[order].astype("<i8").tobytes(),
            groups=reported.groups,
            group=reported.group[order].astype("<i4").tobytes() if reported.groups else b"",
            seq=reported.seq[order].astype("<i8").tobytes() if reported.groups else b"",
            regions=[names[number] for number in kept],
            region=np.array(inside, "<i4").tobytes(),
            unfinished=np.flatnonzero(reported.unfinished[order]).tolist(),
            world=world,
            rank=rank,
            configured=configured,
        )

    def __len__(self) -> int:
        return len(self.start) // 8


def columns_of(parts: Sequence[tuple[str | None, Calls]]) -> Columns:
    """Unpack the calls of a process.

    Args:
        parts: the role of each of its captures, and the calls in it.
    """
    kinds: dict[Kind, int] = {}
    groups: dict[Group, int] = {}
    regions: dict[str, int] = {}
    roles: dict[str | None, int] = {}
    columns: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(9)]
    for role, calls in parts:
        name = np.frombuffer(calls.name, "<i4").astype(np.int64)
        none = np.full(len(name), -1, np.int64)
        ended = np.ones(len(name), np.int64)
        ended[calls.unfinished] = 0
        by_name = [kinds.setdefault(kind_of(text), len(kinds)) for text in calls.names]
        each = (
            np.array(by_name, np.int64)[name],
            np.frombuffer(calls.start, "<i8").astype(np.int64),
            np.frombuffer(calls.duration, "<i8").astype(np.int64),
            _renumbered(calls.group, calls.groups, groups) if calls.group else none,
            np.frombuffer(calls.seq, "<i8").astype(np.int64) if calls.seq else none,
            _renumbered(calls.region, calls.regions, regions) if calls.region else none,
            np.full(len(name), roles.setdefault(role, len(roles)), np.int64),
            np.array([is_host_communication(text) for text in calls.names], np.int64)[name],
            ended,
        )
        for column, values in zip(columns, each, strict=True):
            column.append(values)
    whole = [np.concatenate(column) if column else np.zeros(0, np.int64) for column in columns]
    order = np.argsort(whole[1], kind="stable")
    kind, start, duration, group, seq, region, role_of, on_host, finished = (
        column[order] for column in whole
    )
    return Columns(
        list(kinds), list(groups), list(regions), list(roles),
        kind, start, duration, group, seq, region, role_of, on_host.astype(bool), finished.astype(bool),
    )  # fmt: skip


def _renumbered(packed: bytes, names: Sequence[_Key], numbers: dict[_Key, int]) -> npt.NDArray[np.int64]:
    """Translate indices into `names` to indices into the names of all parts; -1 stays."""
    table = np.array([*(numbers.setdefault(name, len(numbers)) for name in names), -1], np.int64)
    return table[np.frombuffer(packed, "<i4").astype(np.int64)]

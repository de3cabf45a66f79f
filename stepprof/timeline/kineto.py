"""From the events of a Chrome trace (torch's, an engine's, our own export) to a Source.

Every event is looked at once, in columns. What only this module knows: what the phases and categories of Kineto mean, that engines write their forward steps as annotations, and
that what ``stepprof`` wrote into a trace are pairs of asynchronous events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import msgspec
import numpy as np

from stepprof.timeline.columns import CounterColumns, FlowColumns, InstantColumns, Interned, SliceColumns
from stepprof.timeline.iterations import Iterations
from stepprof.timeline.model import Alignment, Origin, Source
from stepprof.timeline.pairs import Pairs
from stepprof.timeline.raw import Event, RawTrace, TraceStream
from stepprof.timeline.times import nanoseconds
from stepprof.timeline.tracks import Rows

__all__ = ["anchor_of", "empty", "read"]

_DURATIONS = frozenset("BE")
_ASYNC = frozenset("bneSTpF")
_INSTANTS = frozenset("iIR")
_FLOWS = {"s": FlowColumns.BEGIN, "t": FlowColumns.STEP, "f": FlowColumns.END}
MEMORY = "[memory]"
ABSOLUTE_NS = (1_262_304_000 * 10**9, 4_102_444_800 * 10**9)
"""2010 to 2100: times in a file without a base that lie here are Unix times themselves, as torch wrote them before 2.3 and torch_npu does."""
_GROUP = re.compile(r"\[[^\]]*\]")


class _MemoryArgs(
    msgspec.Struct,
    rename={
        "total": "Total Allocated",
        "reserved": "Total Reserved",
        "type": "Device Type",
        "id": "Device Id",
    },
):
    total: float | None = None
    reserved: float | None = None
    type: int = -1
    id: int = -1


_memory = msgspec.json.Decoder(_MemoryArgs)
_values = msgspec.json.Decoder(dict[str, Any])


def anchor_of(header: dict[str, object]) -> int | None:
    """The Unix time [ns] that the times of a file are relative to, as it states itself; None where it does not."""
    base = header.get("baseTimeNanoseconds")
    if isinstance(base, bool) or not isinstance(base, int | float) or not 0 < base < 2**62:
        return None
    return int(base)


def read(
    raw: RawTrace | TraceStream,
    origin: Origin,
    alignment: Alignment,
    *,
    args: bool,
    base_ns: int | None = None,
) -> Source:
    """Read a trace.

    Args:
        raw: its events, at once or in batches.
        origin: whose it is.
        alignment: how its host's clock is brought onto the common one.
        args: keep the arguments of slices and instants.
        base_ns: the Unix time that its times are relative to, where it does not state that itself.

    Returns:
        The source; without events and with a finding where the file has no anchor.
    """
    reader = _Reader(args)
    for batch in [raw.events] if isinstance(raw, RawTrace) else raw:
        reader.take(batch)
    return reader.source(origin, alignment, raw.header, raw.findings, base_ns)


@dataclass(slots=True)
class _Reader:
    args: bool
    names: Interned[str] = field(default_factory=Interned)
    categories: Interned[str] = field(default_factory=Interned)
    rows: Rows = field(default_factory=Rows)
    arrows: Interned[tuple[object, ...]] = field(default_factory=Interned)
    flows: FlowColumns = field(default_factory=FlowColumns)
    counters: CounterColumns = field(default_factory=CounterColumns)
    slices: SliceColumns = field(init=False)
    instants: InstantColumns = field(init=False)
    pairs: Pairs = field(init=False)
    iterations: Iterations = field(init=False)
    untimed: int = 0
    negative: int = 0
    unknown: dict[str, int] = field(default_factory=dict)
    earliest: int | None = None

    def __post_init__(self) -> None:
        self.slices = SliceColumns(self.args)
        self.instants = InstantColumns(self.args)
        self.pairs = Pairs(self.names, self.categories, self.rows, self.slices, self.instants)
        self.iterations = Iterations(self.names, self.categories, self.rows)

    def take(self, batch: list[Event]) -> None:
        """Sort a batch by phase, and each phase into its columns."""
        complete = [event for event in batch if event.ph == "X"]
        if complete:
            self._complete(complete)
        if len(complete) == len(batch):
            return
        rest: dict[str, list[Event]] = {}
        others = [event for event in batch if event.ph != "X"]
        for event in others:
            rest.setdefault(event.ph, []).append(event)
        for event in rest.pop("M", ()):
            self.rows.name(event)
        self._flow([event for phase in "stf" for event in rest.pop(phase, ())])
        self._counter(rest.pop("C", []))
        self._instant([event for phase in "iIR" for event in rest.pop(phase, ())])
        paired = {phase for phase in rest if phase in _DURATIONS or phase in _ASYNC}
        if paired:
            self._paired([event for event in others if event.ph in paired])
        for phase in rest.keys() - paired:
            self.unknown[phase] = self.unknown.get(phase, 0) + len(rest[phase])

    def _timed(self, events: list[Event]) -> tuple[list[Event], Any]:
        times, usable = nanoseconds([event.ts for event in events])
        if not usable.all():
            self.untimed += int(len(events) - np.count_nonzero(usable))
            events, times = list(compress(events, usable)), times[usable]
        if len(times):
            first = int(times.min())
            self.earliest = first if self.earliest is None else min(first, self.earliest)
        return events, times

    def _complete(self, events: list[Event]) -> None:
        events, start = self._timed(events)
        duration, usable = nanoseconds([event.dur for event in events])
        self.untimed += int(len(events) - np.count_nonzero(usable))
        if len(duration) and duration.min() < 0:
            self.negative += int(np.count_nonzero(duration < 0))
            duration = np.maximum(duration, 0)
        names, categories, places = self.names, self.categories, self.rows.places
        name = np.array([names[event.name] for event in events], dtype=np.int32)
        category = np.array([categories[event.cat] for event in events], dtype=np.int32)
        place = np.array([places[event.pid, event.tid] for event in events], dtype=np.int32)
        track = self.rows.of_places(place, category, self.categories)
        self.slices.add(start, duration, name, category, track, args=self._kept(events))
        self.iterations.take(np.array(name, dtype=np.int32), np.array(track, dtype=np.int32), start, duration)

    def _kept(self, events: list[Event]) -> list[bytes | None] | None:
        return [bytes(event.args) or None for event in events] if self.args else None

    def _flow(self, events: list[Event]) -> None:
        if not events:
            return
        events, time = self._timed(events)
        keys, arrows, categories = self.rows.keys, self.arrows, self.categories
        self.flows.add(
            time,
            [keys["thread", event.pid, event.tid] for event in events],
            # a merger leaves the ids of several ranks as they were, and puts the rank before the process
            [arrows[event.cat, event.id, _group(event.pid)] for event in events],
            [categories[event.cat] for event in events],
            [_FLOWS[event.ph] for event in events],
        )

    def _counter(self, events: list[Event]) -> None:
        if not events:
            return
        events, time = self._timed(events)
        for event, at in zip(events, time.tolist(), strict=True):
            try:
                values = _values.decode(event.args)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self.untimed += 1
                continue
            for series, value in values.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    name = (
                        event.name
                        if len(values) == 1 and series in ("value", event.name)
                        else f"{event.name} {series}"
                    )
                    self._value(event, name, at, float(value))

    def _value(self, event: Event, name: str, at: int, value: float) -> None:
        track = self.rows.keys["counter", event.pid, name]
        self.counters.add(np.array([at], dtype=np.int64), np.array([value]), [track])

    def _instant(self, events: list[Event]) -> None:
        if not events:
            return
        events, time = self._timed(events)
        if any(event.name == MEMORY for event in events):
            self._allocations(
                [(event, at) for event, at in zip(events, time.tolist(), strict=True) if event.name == MEMORY]
            )
            others = np.array([event.name != MEMORY for event in events])
            events, time = list(compress(events, others)), time[others]
        self.instants.add(
            time,
            [self.names[event.name] for event in events],
            [self.categories[event.cat] for event in events],
            [self.rows.keys["thread", event.pid, event.tid] for event in events],
            args=self._kept(events),
        )

    def _allocations(self, events: Sequence[tuple[Event, int]]) -> None:
        """Each allocation states the sum so far: a counter per device says the same, and is drawn."""
        times: list[int] = []
        values: list[float] = []
        tracks: list[int] = []
        for event, at in events:
            try:
                told = _memory.decode(event.args)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self.untimed += 1
                continue
            device = (
                "CPU"
                if told.type == 0
                else f"GPU {told.id}"
                if told.type == 1
                else f"device {told.type}:{told.id}"
            )
            for what, value in (("allocated", told.total), ("reserved", told.reserved)):
                if value is not None and not (what == "reserved" and told.type == 0):
                    times.append(at)
                    values.append(value)
                    tracks.append(self.rows.keys["counter", event.pid, f"memory {what} {device}"])
        self.counters.add(np.array(times, dtype=np.int64), np.array(values, dtype=np.float64), tracks)

    def _paired(self, events: list[Event]) -> None:
        events, time = self._timed(events)
        self.pairs.take(events, time.tolist())

    def source(
        self,
        origin: Origin,
        alignment: Alignment,
        header: dict[str, object],
        findings: list[str],
        base_ns: int | None,
    ) -> Source:
        """Put it together, on the common clock."""
        findings = list(findings)
        self.pairs.finish()
        base = anchor_of(header)
        if base is None and self.earliest is not None and ABSOLUTE_NS[0] < self.earliest < ABSOLUTE_NS[1]:
            base = 0
        if base is None and base_ns is not None:
            base, alignment = base_ns, Alignment("assumed", 0, None)
        if self.untimed:
            findings.append(f"{self.untimed} events with a time or a value that is none passed over")
        if self.negative:
            findings.append(f"{self.negative} events end before they begin: they are shown without a length")
        if self.unknown:
            kinds = ", ".join(
                f"{count} of phase {phase!r}" for phase, count in sorted(self.unknown.items())[:8]
            )
            findings.append(f"events of unknown phases passed over: {kinds}")
        findings += self.pairs.findings()
        if base is None:
            if self.earliest is not None:
                findings.append(
                    "has no anchor: it states no baseTimeNanoseconds and its times are no Unix times, so that it cannot be placed; "
                    f'say when its time 0 was with --assume-offset "{origin.path}=SECONDS"'
                )
            return empty(origin, alignment, findings, header)
        shift = base - alignment.offset_ns
        self.iterations.finish(self.slices, self.counters)
        flows = self.flows.built(shift)
        source = Source(
            origin,
            alignment,
            list(self.names),
            list(self.categories),
            [],
            self.slices.built(shift),
            self.instants.built(shift),
            self.counters.built(shift),
            flows,
            findings,
            small(header),
        )
        source.tracks = self.rows.tracks()
        if self.flows.unpaired:
            source.metadata["unpaired_flows"] = self.flows.unpaired
        return source


def empty(
    origin: Origin,
    alignment: Alignment,
    findings: Iterable[str],
    header: dict[str, object] | None = None,
) -> Source:
    """A source without events: what is wrong with it stands in its findings."""
    return Source(
        origin,
        alignment,
        [],
        [],
        [],
        SliceColumns(False).built(0),
        InstantColumns(False).built(0),
        CounterColumns().built(0),
        FlowColumns().built(0),
        list(findings),
        small(header or {}),
    )


def small(header: dict[str, object]) -> dict[str, object]:
    """What a file states about itself, without what is large."""
    return {key: value for key, value in header.items() if len(repr(value)) <= 4096}


def _group(pid: int | str) -> str:
    if isinstance(pid, int):
        return ""
    match = _GROUP.match(pid)
    return match[0] if match else ""

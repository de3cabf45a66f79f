"""Convert the events of a Chrome trace (of torch, an engine or stepprof's own export) to a Source.

Events are processed by phase, in columns. Only this module knows the meaning of each phase and how
the parts of a trace are combined.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from stepprof.analysis.timeline.columns import (
    CounterColumns,
    FlowColumns,
    InstantColumns,
    Interned,
    SliceColumns,
)
from stepprof.analysis.timeline.counters import MEMORY, Counted, series, sums
from stepprof.analysis.timeline.event import Event, nanoseconds
from stepprof.analysis.timeline.event_kinds import COMPLETE, OTHER, Kinds
from stepprof.analysis.timeline.event_lines import EventLines
from stepprof.analysis.timeline.event_pairs import PAIRED, Pairs
from stepprof.analysis.timeline.header import anchor_of
from stepprof.analysis.timeline.inflate import Limits
from stepprof.analysis.timeline.iterations import Iterations
from stepprof.analysis.timeline.model import Alignment, Args, Indices, Origin, Source, Times
from stepprof.analysis.timeline.npu import adapt, is_npu
from stepprof.analysis.timeline.open_slices import end_open_slices
from stepprof.analysis.timeline.raw import TraceStream
from stepprof.analysis.timeline.tracks import Rows
from stepprof.formatting import number, size

if TYPE_CHECKING:
    from stepprof.analysis.timeline.npu_database import DatabaseStream

Keep = Callable[[Sequence[Event], Indices, Interned[str]], "Sequence[Args] | None"]
"""Returns the arguments to keep, from the name of each event and the list of names; None: it keeps none of them."""

_INSTANTS = ("i", "I", "R")
_LARGEST_METADATA = 4096


def read(
    raw: TraceStream | DatabaseStream,
    origin: Origin,
    alignment: Alignment,
    *,
    args: bool | Keep,
    base_ns: int | None = None,
    flows: bool | Collection[str] = True,
    unanchored: Alignment | None = None,
) -> Source:
    """Read a trace.

    Args:
        raw: its events, in batches.
        origin: origin of the trace.
        alignment: alignment of its host's clock with the common one.
        args: whether to keep the arguments of slices and instants, or a function that selects them.
        base_ns: the Unix time that its times are relative to, for a file that does not state it.
        flows: whether to read its arrows, or the categories of those to read.
        unanchored: alignment of a file whose times are relative to an unknown one; None: it is refused.

    Returns:
        The source; without events and with a finding if the zero of its times is not known.
    """
    limit = (raw.limits or Limits()).memory_bytes
    reader = _Reader(args, arrows_wanted=flows)
    taken = total = held = 0
    for batch in raw:
        total += len(batch)
        if held < limit:
            reader.take(batch)
            taken, held = total, reader.held
        elif reader.held < held + limit // 16:  # the file has the names of threads after their events
            reader.name(batch)
    source = reader.source(origin, alignment, raw.header, raw.findings, base_ns, unanchored=unanchored)
    source.whole = raw.whole and taken == total
    source.sound = raw.whole and not raw.findings and not reader.untimed
    if taken < total:
        source.findings.append(
            f"the first {number(taken)} of its {number(total)} events are read: a source takes at most {size(limit)} of memory"
        )
    return source


@dataclass(slots=True)
class _Reader:
    args: bool | Keep
    arrows_wanted: bool | Collection[str]
    names: Interned[str] = field(default_factory=Interned)
    categories: Interned[str] = field(default_factory=Interned)
    rows: Rows = field(default_factory=Rows)
    kinds: Kinds = field(init=False)
    flows: FlowColumns = field(default_factory=FlowColumns)
    counters: CounterColumns = field(default_factory=CounterColumns)
    slices: SliceColumns = field(init=False)
    instants: InstantColumns = field(init=False)
    pairs: Pairs = field(init=False)
    counted: Counted = field(init=False)
    iterations: Iterations = field(init=False)
    untimed: int = 0
    lengthless: int = 0
    negative: int = 0
    unknown: dict[str, int] = field(default_factory=dict)
    earliest: int | None = None

    def __post_init__(self) -> None:
        self.slices = SliceColumns(bool(self.args), shared=callable(self.args))
        self.instants = InstantColumns(bool(self.args), shared=callable(self.args))
        self.pairs = Pairs(self.names, self.categories, self.rows, self.slices, self.instants)
        arrows = None if isinstance(self.arrows_wanted, bool) else self.arrows_wanted
        self.kinds = Kinds(self.names, self.categories, self.rows, arrows)
        self.counted = Counted(self.rows, self.counters)
        self.iterations = Iterations(self.names, self.categories, self.rows)

    def take(self, batch: Sequence[Event]) -> None:
        """Sort a batch by phase, and each phase into its columns."""
        if isinstance(batch, EventLines):
            self._add(batch, self.kinds.of_lines(batch), self._seen(batch.start), batch.duration)
            return
        kind, phase = self.kinds.of(batch)
        complete = phase == COMPLETE
        if complete.all():
            self._complete([*batch], kind)
            return
        self._complete([*compress(batch, complete.tolist())], kind[complete])
        arrows = phase >= 0
        if self.arrows_wanted and arrows.any():
            self._flow([*compress(batch, arrows.tolist())], kind[arrows])
        others = phase == OTHER
        if others.any():
            self._others([*compress(batch, others.tolist())])

    @property
    def held(self) -> int:
        """The most bytes of memory that the parts take until they are drawn or summed up."""
        parts = (self.names, self.categories, self.rows, self.kinds, self.flows, self.counters, self.slices, self.instants, self.pairs, self.iterations)  # fmt: skip
        return sum(part.held for part in parts)

    def name(self, batch: Sequence[Event]) -> None:
        """Read only the events that describe processes and threads."""
        if isinstance(batch, EventLines):
            return
        for event in batch:
            if event.ph == "M":
                self.rows.name(event)

    def _others(self, events: list[Event]) -> None:
        rest: dict[str, list[Event]] = {}
        for event in events:
            rest.setdefault(event.ph, []).append(event)
        self.name(rest.pop("M", []))
        self._counter(rest.pop("C", []))
        self._instant([event for phase in _INSTANTS for event in rest.pop(phase, ())])
        if not PAIRED.isdisjoint(rest):
            paired, time, _ = self._timed([event for event in events if event.ph in PAIRED])
            self.pairs.take(paired, time.tolist())
        for phase in rest.keys() - PAIRED:
            self.unknown[phase] = self.unknown.get(phase, 0) + len(rest[phase])

    def _timed(self, events: list[Event], kind: Indices | None = None) -> tuple[list[Event], Times, Indices]:
        """Return the events with a valid time, their times, and the matching part of another
        column.
        """
        times, usable = nanoseconds([event.ts for event in events])
        kind = np.zeros(len(events), np.int32) if kind is None else kind
        if not usable.all():
            self.untimed += int(np.count_nonzero(~usable))
            events, times, kind = list(compress(events, usable)), times[usable], kind[usable]
        return events, self._seen(times), kind

    def _seen(self, times: Times) -> Times:
        if len(times):
            first = int(times.min())
            self.earliest = first if self.earliest is None else min(first, self.earliest)
        return times

    def _complete(self, events: list[Event], kind: Indices) -> None:
        events, start, kind = self._timed(events, kind)
        duration, usable = nanoseconds([event.dur for event in events])
        if not usable.all():
            lengthless = sum(event.dur == "" for event in events)
            self.lengthless += lengthless
            self.untimed += int(np.count_nonzero(~usable)) - lengthless
        if len(duration) and duration.min() < 0:
            self.negative += int(np.count_nonzero(duration < 0))
            duration = np.maximum(duration, 0)
        self._add(events, kind, start, duration)

    def _add(self, events: Sequence[Event], kind: Indices, start: Times, duration: Times) -> None:
        name, category, track = self.kinds.complete(kind)
        memory = name == self.names.get(MEMORY, -1)
        if (
            memory.any()
        ):  # torch's Python exporter draws an allocation as a slice that lasts until the end of the capture
            at = np.flatnonzero(memory)
            self.counted.add((events[each] for each in at.tolist()), start[at].tolist(), sums)
            rest = np.flatnonzero(~memory)
            events = [events[each] for each in rest.tolist()]
            start, duration = start[rest], duration[rest]
            name, category, track = name[rest], category[rest], track[rest]
        self.slices.add(start, duration, name, category, track, args=self._kept(events, name))
        self.iterations.take(name, track, start, duration)

    def _kept(self, events: Sequence[Event], name: Indices) -> Sequence[Args] | None:
        if not self.args:
            return None
        if callable(self.args):
            return self.args(events, name, self.names)
        return [bytes(event.args) or None for event in events]

    def _flow(self, events: list[Event], kind: Indices) -> None:
        events, time, kind = self._timed(events, kind)
        self.flows.add(time, *self.kinds.arrows(kind, events))

    def _counter(self, events: list[Event]) -> None:
        events, time, _ = self._timed(events)
        self.counted.add(events, time.tolist(), series)

    def _instant(self, events: list[Event]) -> None:
        events, time, _ = self._timed(events)
        memory = np.array([event.name == MEMORY for event in events], dtype=np.bool_)
        if memory.any():
            self.counted.add(compress(events, memory), time[memory].tolist(), sums)
            events, time = list(compress(events, ~memory)), time[~memory]
        name = np.array([self.names[event.name] for event in events], np.int32)
        self.instants.add(
            time,
            name,
            [self.categories[event.cat] for event in events],
            [self.rows.of_thread(event.pid, event.tid) for event in events],
            args=self._kept(events, name),
        )

    def source(
        self,
        origin: Origin,
        alignment: Alignment,
        header: dict[str, object],
        findings: Sequence[str],
        base_ns: int | None,
        *,
        unanchored: Alignment | None = None,
    ) -> Source:
        """Build the source on the common clock."""
        self.pairs.finish()
        self.iterations.finish(self.slices, self.counters)
        base = anchor_of(header, self.earliest)
        if base is None and base_ns is not None:
            base = base_ns
            if base or alignment.method != "reference":  # a source alone is by its own clock
                alignment = Alignment("assumed", 0, None)
        if base is None and unanchored is not None:
            base, alignment = 0, unanchored
        refused = base is None
        shift = (base or 0) - alignment.offset_ns
        slices = self.slices.built(shift)
        flows = self.flows.built(
            shift,
            lambda place, time, ends: self.rows.of_ends(place, time, ends, slices),
            lambda track: np.array([key[0] == "stream" for key in self.rows.keys], bool)[track],
        )
        source = Source(
            origin,
            alignment,
            list(self.names),
            list(self.categories),
            self.rows.tracks(),
            slices,
            self.instants.built(shift),
            self.counters.built(shift),
            flows,
            [*findings, *self._findings()],
            anchor_ns=base,
            metadata={
                key: value
                for key, value in header.items()
                if key == "distributedInfo" or len(repr(value)) <= _LARGEST_METADATA
            },
        )
        if self.flows.unpaired:
            source.metadata["unpaired_flows"] = self.flows.unpaired
        if "schemaVersion" in header:
            source.findings += self.rows.unrecognised(slices, source.categories)
        if is_npu(self.rows.processes()):
            adapt(source, self.rows.processes())
        end_open_slices(source)
        return _refused(source) if refused and self.earliest is not None else source

    def _findings(self) -> list[str]:
        findings = self.pairs.findings()
        if self.counted.unreadable:
            findings.append(f"{self.counted.unreadable} counters or allocations without a number ignored")
        if self.untimed:
            findings.append(f"{self.untimed} times are invalid: such an event is ignored, or has no length")
        if self.lengthless:
            findings.append(
                f"{self.lengthless} events have no `dur` that is a number: they are shown without a length"
            )
        if self.negative:
            findings.append(f"{self.negative} events end before they start: they are shown without a length")
        if self.unknown:
            kinds = [f"{count} of phase {phase!r}" for phase, count in sorted(self.unknown.items())[:8]]
            findings.append(f"events of unknown phases ignored: {', '.join(kinds)}")
        return findings


def _refused(source: Source) -> Source:
    """Return the source without its events: the zero of its times is not known."""
    nothing = _Reader(False, arrows_wanted=False).source(
        source.origin, source.alignment, {}, source.findings, None
    )
    nothing.findings.append(
        "refused: it has no baseTimeNanoseconds and its times are not Unix times, so it cannot be placed on the common clock; "
        f'if you know the time of its zero, pass --assume-offset "{source.origin.path}=SECONDS"'
    )
    nothing.metadata = source.metadata
    return nothing

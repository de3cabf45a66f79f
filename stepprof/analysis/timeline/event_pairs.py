"""Pair starts and ends: of asynchronous events by their id, and of the B and E events of threads by
nesting.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw

from stepprof.analysis.timeline.columns import InstantColumns, Interned, SliceColumns
from stepprof.analysis.timeline.event import NOTHING, Event
from stepprof.analysis.timeline.salvage import DECODE_ERRORS
from stepprof.analysis.timeline.tracks import OUR_ATTRIBUTES, OURS, Rows

PAIRED = frozenset("BEbneSTpFP")
"""The phases of events that start or end an interval."""

_OPEN = 800
"""Bytes of memory of an event that has not ended."""
_AT_ONCE = 1 << 16
_Open = tuple[Event, int]


class _Args(msgspec.Struct):
    """Fields of stepprof's own events that state their owner."""

    sample: Any = None


class _Id(msgspec.Struct):
    local: str | int | None = None
    global_: str | int | None = msgspec.field(default=None, name="global")


_args = msgspec.json.Decoder(_Args)
_id = msgspec.json.Decoder(_Id)


class Pairs:
    """An event that has not ended, and the action at its end."""

    def __init__(
        self,
        names: Interned[str],
        categories: Interned[str],
        rows: Rows,
        slices: SliceColumns,
        instants: InstantColumns,
    ) -> None:
        self._names, self._categories, self._rows = names, categories, rows
        self._slices, self._instants = slices, instants
        self._open: dict[tuple[object, ...], list[_Open]] = {}
        self._ended = 0
        self._unended = 0
        self._latest = 0
        self._rows_done: list[tuple[int, int, int, int, int, bytes | None]] = []
        self._moments: list[tuple[int, int, int, int, bytes | None]] = []
        self.held = 0
        """Approximate bytes of memory of the events that have not ended."""

    def take(self, events: list[Event], times: list[int]) -> None:
        """Add events with their times, in the order of the file."""
        if times:
            self._latest = max(self._latest, *times) if self._latest else max(times)
        # a file need not be sorted; events of one time keep the order of the file
        for number in sorted(range(len(events)), key=times.__getitem__):
            event, at = events[number], times[number]
            phase = event.ph
            if phase == "n":
                self._moments.append(
                    (
                        at,
                        self._names[event.name],
                        self._categories[event.cat],
                        self._rows.keys["async", event.pid, event.cat or "async"],
                        bytes(event.args) or None,
                    )
                )
            elif phase in "TpP":  # a step of an asynchronous event; no viewer shows it
                continue
            elif phase in "bSB":
                opened = self._open.setdefault(_key(event), [])
                # a copy of its arguments: a view would keep the text of the whole batch in memory
                event.args, event.id2 = Raw(bytes(event.args)), NOTHING
                opened.append((event, at))
                self.held += _OPEN + len(event.args) + len(event.name)
            else:
                begun = self._open.get(_key(event))
                # in another batch than its start, an end may have an earlier time: it ends nothing
                if begun and begun[-1][1] <= at:
                    event, start = begun.pop()
                    self.held -= _OPEN + len(event.args) + len(event.name)
                    self._done(event, start, at)
                else:
                    self._ended += 1
        self._flush()

    def finish(self) -> None:
        """Let events without an end last until the last known time."""
        for begun in self._open.values():
            for event, at in begun:
                self._unended += 1
                self._done(event, at, max(at, self._latest))
                if len(self._rows_done) >= _AT_ONCE:
                    self._flush()
        self._open.clear()
        self._flush()

    def findings(self) -> list[str]:
        """Return findings about events that could not be paired."""
        findings = []
        if self._unended:
            findings.append(f"{self._unended} events have no end: they are shown up to the last known time")
        if self._ended:
            findings.append(f"{self._ended} ends without a beginning ignored")
        return findings

    def _done(self, event: Event, start: int, end: int) -> None:
        args = bytes(event.args)
        name, category = self._names[event.name], self._categories[event.cat]
        for track in self._tracks(event, args):
            self._rows_done.append((start, end - start, name, category, track, args or None))

    def _flush(self) -> None:
        for columns, rows in ((self._instants, self._moments), (self._slices, self._rows_done)):
            if rows:
                *values, args = zip(*rows, strict=True)
                columns.add(*values, args=args)
                rows.clear()

    def _tracks(self, event: Event, args: bytes) -> Iterator[int]:
        """Yield the tracks of an event. An event of stepprof's that is bound to a sample is also on
        the track of the sample.
        """
        if event.ph == "B":
            yield self._rows.keys["thread", event.pid, event.tid]
            return
        ours = event.cat in (OURS, OUR_ATTRIBUTES)
        yield self._rows.keys["async", event.pid, OURS if ours else event.cat or "async"]
        if ours and b'"sample"' in args:
            try:
                sample = _args.decode(args).sample
            except DECODE_ERRORS:
                return
            if isinstance(sample, str | int | float):
                yield self._rows.keys["sample", event.pid, str(sample)]


def _key(event: Event) -> tuple[object, ...]:
    if event.ph in "BE":
        return ("thread", event.pid, event.tid)
    number: object = event.id
    where: object = None
    if number is None:
        try:
            ids = _id.decode(event.id2)
        except DECODE_ERRORS:
            ids = _Id()
        number = ids.local if ids.global_ is None else ids.global_
        where = event.pid if ids.global_ is None else None
    return (event.cat, number, where, event.scope)

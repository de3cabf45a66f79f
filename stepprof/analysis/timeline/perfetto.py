"""Write a source as a Perfetto trace: compact, with exact nanoseconds, and valid to concatenate
with others.

What only this module knows:

* The start and the end of a slice are packets of their own. Perfetto sorts packets by time, and keeps
  the order of equal times. So all ends are before all starts, and the starts of the longest slices
  are first: no slice opens before its neighbour has closed.
* Times are relative to the first event of the source, on a clock of its own, which a snapshot relates
  to the trace's clock. They take five or six bytes instead of nine.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from stepprof.analysis.timeline.arguments import Arguments
from stepprof.analysis.timeline.descriptors import ABOUT, FIRST_OWN, ROOT, own_clock, packet, track_descriptor
from stepprof.analysis.timeline.lanes import Layout, bind_flows, lay_out
from stepprof.analysis.timeline.model import Args, Flags, Source, Times
from stepprof.analysis.timeline.ordering import order_of_tracks
from stepprof.analysis.timeline.placement import Place, clock_text, process_name
from stepprof.analysis.timeline.protobuf import (
    Bytes,
    Extras,
    bytes_field,
    columns,
    scatter,
    varint,
    varint_field,
    varints,
    width_of,
    widths,
)

_BLOCK = 1 << 18
_BEGIN, _END, _INSTANT, _COUNTER = (bytes((0x48, kind)) for kind in (1, 2, 3, 4))
_COUNTER_VALUE = varint(44 << 3 | 1)
_FLOW, _FLOW_ENDS = varint(47 << 3 | 1), varint(48 << 3 | 1)


def encode(source: Source, place: Place) -> Iterator[bytes]:
    """Yield the packets of one source, in pieces."""
    writer = _Writer(source, place)
    yield writer.descriptors()
    yield writer.about()
    yield from writer.slices()
    yield from writer.instants()
    yield from writer.counters()


class _Writer:
    def __init__(self, source: Source, place: Place) -> None:
        self.source, self.place = source, place
        self.layout: Layout = lay_out(source)
        self.sequence = place.index + 2
        self.arguments = Arguments()
        times = [
            column
            for column in (self.layout.nesting.start, source.instants.time, source.counters.time)
            if len(column)
        ]
        ends = [
            column
            for column in (self.layout.nesting.end, source.instants.time, source.counters.time)
            if len(column)
        ]
        self.base = min((int(column.min()) for column in times), default=0)
        self.time_width = width_of(max((int(column.max()) for column in ends), default=0) - self.base)
        self.row_uuid = self._uuid(np.arange(len(self.layout.rows) + 1, dtype=np.int64) + 1)

    def _uuid(self, number: Times) -> Times:
        # interleaved with those of the other sources: small numbers without knowing how many the others have
        return FIRST_OWN + number * self.place.count + self.place.index

    def descriptors(self) -> bytes:
        source, place, rows = self.source, self.place, self.layout.rows
        group, samples = FIRST_OWN + place.index, int(self.row_uuid[-1])
        parts = [
            self._packet(own_clock(self.base)),
            self._packet(
                track_descriptor(
                    group,
                    process_name(source, place),
                    parent=ROOT,
                    order=place.row,
                    ordered=True,
                    description=self._description(),
                )
            ),
        ]
        order = order_of_tracks(source)
        if any(track.kind == "sample" for track in source.tracks):
            parts.append(
                self._packet(
                    track_descriptor(samples, "samples", parent=group, order=len(order) + 1, ordered=True)
                )
            )
        used = self._used_rows()
        for number, row in enumerate(rows):
            if not used[number]:
                continue
            track = source.tracks[row.track]
            parent = samples if track.kind == "sample" else group
            parts.append(
                self._packet(
                    track_descriptor(
                        int(self.row_uuid[number]),
                        track.name,
                        parent=parent,
                        order=order[row.track],
                        counter=track.kind == "counter",
                        lanes_of=row.track + 1,
                    )
                )
            )
        names = b"".join(
            bytes_field(2, varint_field(1, number) + bytes_field(2, name))
            for number, name in enumerate(source.names, 1)
        )
        categories = b"".join(
            bytes_field(1, varint_field(1, number) + bytes_field(2, name))
            for number, name in enumerate(source.categories, 1)
        )
        parts.append(self._packet(bytes_field(12, names + categories)))
        return b"".join(parts)

    def about(self) -> bytes:
        """Return a mark on the row of sources, with the owner of the trace, its file, clock and
        problems.
        """
        source = self.source
        origin, alignment = source.origin, source.alignment
        facts = {
            "file": origin.path,
            "host": origin.host,
            "pid": origin.pid,
            "clock": clock_text(alignment),
            "clock offset ns": alignment.offset_ns,
            "clock error ns": alignment.error_ns,
            **{f"finding {number}": text for number, text in enumerate(source.findings, 1)},
        }
        fields = b"".join(
            self.arguments.field(name, value) for name, value in facts.items() if value is not None
        )
        event = (
            _INSTANT + varint_field(11, ABOUT) + bytes_field(23, process_name(source, self.place)) + fields
        )
        return self._interned() + self._packet(varint_field(8, 0) + bytes_field(11, event))

    def slices(self) -> Iterator[bytes]:
        nesting, slices = self.layout.nesting, self.source.slices
        flowing, flows = self._flows()
        codes = self._codes(slices.args, len(slices))
        yield self._interned()
        for block in _blocks(len(slices)):
            uuid = varints(self.row_uuid[nesting.row[block]])
            yield self._events(nesting.end[block], [_END, b"\x58", uuid])
        for block in _blocks(len(slices)):
            order = nesting.order[block]
            extras = Extras(len(order))
            extras.add_texts(codes[order], self.arguments.table)
            here = slice(*np.searchsorted(flowing, (block.start, block.stop)))
            extras.add_rows(flowing[here] - block.start, flows[here])
            uuid = varints(self.row_uuid[nesting.row[block]])
            event = [_BEGIN, b"\x58", uuid, *self._names(slices.name[order], slices.category[order])]
            yield self._events(nesting.start[block], event, extras)

    def instants(self) -> Iterator[bytes]:
        instants = self.source.instants
        codes = self._codes(instants.args, len(instants))
        yield self._interned()
        for block in _blocks(len(instants)):
            extras = Extras(block.stop - block.start)
            extras.add_texts(codes[block], self.arguments.table)
            uuid = varints(self.row_uuid[self.layout.track_row[instants.track[block]]])
            event = [_INSTANT, b"\x58", uuid, *self._names(instants.name[block], instants.category[block])]
            yield self._events(instants.time[block], event, extras)

    def counters(self) -> Iterator[bytes]:
        counters = self.source.counters
        for block in _blocks(len(counters)):
            uuid = varints(self.row_uuid[self.layout.track_row[counters.track[block]]])
            value = np.ascontiguousarray(counters.value[block], "<f8").view(np.uint8).reshape(-1, 8)
            yield self._events(counters.time[block], [_COUNTER, b"\x58", uuid, _COUNTER_VALUE, value])

    def _names(self, name: npt.NDArray[np.int32], category: npt.NDArray[np.int32]) -> list[bytes | Bytes]:
        return [b"\x50", varints(name + 1), b"\x18", varints(category + 1)]

    def _codes(self, args: list[Args] | None, count: int) -> Times:
        """Return the index of each event's arguments in the table of `arguments`."""
        return np.zeros(count, np.int64) if args is None else self.arguments.codes(args)

    def _interned(self) -> bytes:
        interned = self.arguments.interned()
        return self._packet(bytes_field(12, interned)) if interned else b""

    def _events(self, time: Times, event: list[bytes | Bytes], extras: Extras | None = None) -> bytes:
        """Return packets of one track event each; `extras` are further fields of the events."""
        count = len(time)
        lengths = np.zeros(count, np.int64) if extras is None else extras.lengths
        body = varints(lengths + widths(event))
        stem: list[bytes | Bytes] = [
            b"\x40",
            varints(time - self.base, self.time_width),
            b"\x50" + varint(self.sequence) + b"\x5a",
            body,
        ]
        whole = varints(lengths + widths([*stem, *event]))
        packets = columns(count, [b"\x0a", whole, *stem, *event])
        if extras is None or not lengths.any():
            return packets.tobytes()
        ends = np.cumsum(lengths + packets.shape[1])
        buffer = np.empty(int(ends[-1]), np.uint8)
        scatter(buffer, ends - lengths - packets.shape[1], packets)
        extras.write(buffer, ends - lengths)
        return buffer.tobytes()

    def _flows(self) -> tuple[Times, Bytes]:
        """Return the fields by which flows connect the starts of slices: the index of each in the
        nesting, in order, and the field.
        """
        bound = bind_flows(self.source.flows, self.layout)
        start = self.layout.nesting.start
        # an arrow is drawn from the slice that started first, whatever the arguments state
        late = start[bound.last] < start[bound.first]
        first, last = np.where(late, bound.last, bound.first), np.where(late, bound.first, bound.last)
        count = len(first)
        number = (
            (np.arange(1, count + 1) + (self.place.index << 40)).astype("<u8").view(np.uint8).reshape(-1, 8)
        )
        fields = np.concatenate((columns(count, [_FLOW, number]), columns(count, [_FLOW_ENDS, number])))
        where = np.concatenate((first, last))
        order = np.argsort(where, kind="stable")
        return where[order], fields[order]

    def _used_rows(self) -> Flags:
        used = np.zeros(len(self.layout.rows), np.bool_)
        for rows in (self.layout.nesting.row, self.source.instants.track, self.source.counters.track):
            used[rows] = True
        return used

    def _description(self) -> str:
        return f"{self.source.origin.path}\nclock: {clock_text(self.source.alignment)}" + "".join(
            f"\n{finding}" for finding in self.source.findings
        )

    def _packet(self, fields: bytes) -> bytes:
        return packet(self.sequence, fields)


def _blocks(count: int) -> Iterator[slice]:
    for at in range(0, count, _BLOCK):
        yield slice(at, min(at + _BLOCK, count))

"""Write a source as Chrome JSON: every event with all arguments of its file.

Only this module knows how viewers treat JSON. They drop slices that cross on one thread, so these
are on threads of their own (`lanes`). Ids of flows and processes are global, so they depend on the
index of the source. A float of absolute microseconds is wrong by a quarter of one, so times are
relative. A string that ends in a backslash makes the whole file unreadable, so a space is added.

JSON allows spaces before a number. So times are columns of equal width, and a million of them are
written at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.analysis.timeline.distinct import distinct
from stepprof.analysis.timeline.lanes import Layout, Nesting, bind_flows, lay_out
from stepprof.analysis.timeline.model import Args, Indices, Source
from stepprof.analysis.timeline.ordering import order_of_tracks
from stepprof.analysis.timeline.own_metadata import SOURCE, StatedSource
from stepprof.analysis.timeline.placement import Place, clock_text, process_name
from stepprof.analysis.timeline.protobuf import Bytes, columns

Positions = npt.NDArray[np.int64]
_Rows = TypeVar("_Rows", int, Positions)

_BLOCK = 1 << 13
_WRITTEN = 1 << 10
_DEEPEST = 64
_BETWEEN = b"},\n"


def head(base_ns: int, about: Mapping[str, object]) -> bytes:
    """Return the head of a file: the zero of its times, and facts about the file."""
    return b'{"baseTimeNanoseconds":%d,"stepprof":%b,"traceEvents":[\n' % (base_ns, text(about))


def tail(facts: Mapping[str, object]) -> bytes:
    """Return the end of a file: `facts` about the whole timeline, which viewers show as its metadata."""
    last = b'{"ph":"M","name":"process_sort_index","pid":0,"args":{"sort_index":0}}\n'
    return last + b'],"displayTimeUnit":"ms","otherData":' + text(facts) + b"}\n"


def encode(source: Source, place: Place, stated: StatedSource | None = None) -> Iterator[bytes]:
    """Yield the events of one source, each followed by a comma, in pieces of at most some MB.

    `stated` is stored for programs that read the timeline again.
    """
    writer = _Writer(source, place)
    yield writer.names()
    if stated is not None:
        yield writer.stated(stated)
    yield from writer.slices()
    yield from writer.instants()
    yield from writer.counters()
    yield from writer.flows()


def text(value: object) -> bytes:
    """Return a value as JSON in UTF-8. No string ends in a backslash, and characters are escaped
    only if necessary.

    >>> text({"path": "C:\\\\", "name": "é"}).decode()
    '{"path":"C:\\\\\\\\ ","name":"é"}'
    """
    return msgspec.json.encode(_sound(value))


def _sound(value: object, depth: int = 0) -> object:
    if isinstance(value, str):
        whole = value.encode("utf-8", "replace").decode()
        return f"{whole} " if whole.endswith("\\") else whole
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping) and depth < _DEEPEST:
        return {_sound(str(key)): _sound(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        return [_sound(item, depth + 1) for item in value]
    return value


class _Writer:
    def __init__(self, source: Source, place: Place) -> None:
        self.source, self.place = source, place
        self.layout: Layout = lay_out(source)
        self.name_texts = [text(name) for name in source.names]
        self.category_texts = [text(name) for name in source.categories]
        self.pid = place.index + 1

    def _tid(self, row: _Rows) -> _Rows:
        return (row + 1) * self.place.count + self.place.index + 1

    def names(self) -> bytes:
        """Return events that name the process and its rows and state their order."""
        source = self.source
        order = order_of_tracks(source)
        labels = ", ".join([clock_text(source.alignment), source.origin.path, *source.findings])
        events = [
            self._metadata("process_name", 0, {"name": process_name(source, self.place)}),
            self._metadata("process_labels", 0, {"labels": f"clock: {labels}"}),
            self._metadata("process_sort_index", 0, {"sort_index": self.place.row}),
        ]
        lanes = len(self.layout.rows)
        for number, row in enumerate(self.layout.rows):
            track = source.tracks[row.track]
            if track.kind == "counter":
                continue
            name = f"sample {track.name}" if track.kind == "sample" else track.name
            name = f"{name} ({row.lane + 1})" if row.lane else name
            stated = (track.kind, row.track, track.name, order[row.track])
            events.append(
                self._metadata("thread_name", self._tid(number), {"name": name, "stepprof": stated})
            )
            events.append(
                self._metadata(
                    "thread_sort_index",
                    self._tid(number),
                    {"sort_index": order[row.track] * lanes + row.lane},
                )
            )
        return b"".join(events)

    def stated(self, stated: StatedSource) -> bytes:
        """Return an event that contains the facts about the source."""
        return self._metadata(SOURCE, 0, msgspec.structs.asdict(stated))

    def _metadata(self, kind: str, tid: int, args: Mapping[str, object]) -> bytes:
        return b'{"ph":"M","name":"%b","pid":%d,"tid":%d,"args":%b},\n' % (
            kind.encode(),
            self.pid,
            tid,
            text(args),
        )

    def slices(self) -> Iterator[bytes]:
        slices, nesting = self.source.slices, self.layout.nesting
        order = _as_they_came(nesting)
        row = np.empty(len(slices), np.int32)
        row[nesting.order] = nesting.row
        stems = _Stems(self, b'"ph":"X"')
        for at in range(0, len(slices), _BLOCK):
            block: slice | Positions = slice(at, at + _BLOCK) if order is None else order[at : at + _BLOCK]
            times: list[bytes | Bytes] = [
                b',"ts":',
                self._times(slices.start[block]),
                b',"dur":',
                _microseconds(np.maximum(slices.duration[block], 0)),
            ]
            yield from _joined(
                stems.of(slices.name[block], slices.category[block], row[block]),
                times,
                _arguments(slices.args, block),
            )

    def instants(self) -> Iterator[bytes]:
        instants = self.source.instants
        stems = _Stems(self, b'"ph":"i","s":"t"')
        for at in range(0, len(instants), _BLOCK):
            block = slice(at, at + _BLOCK)
            row = self.layout.track_row[instants.track[block]]
            times: list[bytes | Bytes] = [b',"ts":', self._times(instants.time[block])]
            yield from _joined(
                stems.of(instants.name[block], instants.category[block], row),
                times,
                _arguments(instants.args, block),
            )

    def counters(self) -> Iterator[bytes]:
        counters = self.source.counters
        names = _distinguished([track.name for track in self.source.tracks])
        stems = [b'},\n{"ph":"C","pid":%d,"name":%b' % (self.pid, text(name)) for name in names]
        for at in range(0, len(counters), _BLOCK):
            block = slice(at, at + _BLOCK)
            value = counters.value[block]
            yield from _joined(
                [stems[track] for track in counters.track[block].tolist()],
                [b',"ts":', self._times(counters.time[block])],
                [b'{"value":%b}' % text(each) for each in value.tolist()],
            )

    def flows(self) -> Iterator[bytes]:
        flows = self.source.flows
        bound = bind_flows(flows, self.layout)
        category = flows.category[bound.drawn]
        # the ids of each source differ in their high digits
        number = np.arange(len(category), dtype=np.int64) + (self.place.index << 32)
        row = self.layout.nesting.row.astype(np.int64)
        for kind in distinct(category).tolist():
            of = np.flatnonzero(category == kind)
            name = self.category_texts[kind]
            for phase, slices, time in (
                (b'{"ph":"s"', bound.first, flows.start),
                (b'{"ph":"f","bp":"e"', bound.last, flows.end),
            ):
                stem = b'%b,"cat":%b,"name":%b,"pid":%d,"id":' % (phase, name, name, self.pid)
                for at in range(0, len(of), _BLOCK):
                    some = of[at : at + _BLOCK]
                    parts: list[bytes | Bytes] = [
                        stem,
                        _whole(number[some]),
                        b',"tid":',
                        _whole(self._tid(row[slices[some]])),
                        b',"ts":',
                        self._times(time[bound.drawn[some]]),
                        _BETWEEN,
                    ]
                    yield columns(len(some), parts).tobytes()

    def _times(self, time: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        return _microseconds(time - self.place.base_ns)


def _microseconds(value: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return nanoseconds (not negative) as microseconds with three decimals: a row of text each,
    padded with spaces.
    """
    digits = max(4, len(str(int(value.max())))) if len(value) else 4
    out = np.empty((len(value), digits + 1), np.uint8)
    out[:, digits - 3] = ord(".")
    high = value
    for place in range(digits):
        if place % 9 == 0:  # numbers of 32 bits are divided many at a time
            high, low = np.divmod(high, 10**9)
            left = low.astype(np.uint32)
        rest = left // 10
        digit = (left - 10 * rest + 48).astype(np.uint8)
        if place > 3:
            digit[(left == 0) & (high == 0)] = 32
        out[:, digits - place - (place > 2)] = digit
        left = rest
    return out


def _whole(value: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return integers (not negative) as text: a row each, padded with spaces."""
    return _microseconds(value * 1000)[:, :-4]


class _Stems(dict[int, bytes]):
    """Return the text between two events: the end of the first and the start of the second.

    Events of one name on one row share it, so it is written once.
    """

    def __init__(self, writer: _Writer, phase: bytes) -> None:
        super().__init__()
        self._writer, self._phase = writer, phase
        self._categories, self._rows = len(writer.category_texts), len(writer.layout.rows)

    def of(self, name: Indices, category: Indices, row: Indices) -> list[bytes]:
        kinds = (name.astype(np.int64) * self._categories + category) * self._rows + row
        return [self[kind] for kind in kinds.tolist()]

    def __missing__(self, kind: int) -> bytes:
        kinds, row = divmod(kind, self._rows)
        name, category = divmod(kinds, self._categories)
        stem = self[kind] = b'},\n{%b,"name":%b,"cat":%b,"pid":%d,"tid":%d' % (
            self._phase,
            self._writer.name_texts[name],
            self._writer.category_texts[category],
            self._writer.pid,
            self._writer._tid(row),
        )
        return stem


def _as_they_came(nesting: Nesting) -> Positions | None:
    """Return the order in which slices are written; None: unchanged. A slice that contains another
    one of the same start must be written first.
    """
    order, row, start = nesting.order, nesting.row, nesting.start
    tied = (start[1:] == start[:-1]) & (row[1:] == row[:-1])
    return order if (tied & (order[1:] < order[:-1])).any() else None


def _arguments(args: list[Args] | None, which: slice | Positions) -> list[Args] | None:
    if args is None:
        return None
    return args[which] if isinstance(which, slice) else [args[number] for number in which.tolist()]


def _joined(stems: list[bytes], times: list[bytes | Bytes], args: Sequence[Args] | None) -> Iterator[bytes]:
    """Yield events, each with the end of the one before it. The text before the first event comes
    after the last.
    """
    matrix = columns(len(stems), times if args is None else [*times, b',"args":'])
    step = 2 if args is None else 3
    pieces: list[bytes] = [b""] * (step * len(stems))
    pieces[0::step] = stems
    pieces[1::step] = matrix.view(f"V{matrix.shape[1]}").ravel().tolist()
    if args is not None:
        pieces[2::step] = [b"{}" if each is None else each for each in args]
    # as many at a time as fit into the caches of a core
    for at in range(0, len(pieces), step * _WRITTEN):
        some = pieces[at : at + step * _WRITTEN]
        some[0] = some[0].removeprefix(_BETWEEN)
        some.append(_BETWEEN)
        joined = b"".join(some)
        # a string that ends in a backslash is rare, so all are searched at once
        if args is not None and b"\\" in joined and b'\\\\"' in joined:
            some[2::step] = [_without_backslash(each) for each in some[2::step]]
            joined = b"".join(some)
        yield joined


def _without_backslash(args: bytes) -> bytes:
    return text(msgspec.json.decode(args)) if b'\\\\"' in args else args


def _distinguished(names: list[str]) -> list[str]:
    """Number repeated names: viewers merge counters of one process that have the same name."""
    seen: dict[str, int] = {}
    apart = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        apart.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return apart

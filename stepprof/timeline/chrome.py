"""A source as Chrome JSON, complete: every event with all of its arguments as they stand in its file.

What only this module knows is what viewers make of JSON: slices that cross on one thread are dropped, so they lie on threads of their own (`lanes`); ids of flows and processes are global, so they
follow from the place of the source; a float of absolute microseconds is wrong by a quarter of one, so times are relative; a string that ends in a backslash loses the whole file, so it gets a space.
A number may have spaces before it: times are columns of equal width, and a million of them are written at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.timeline.lanes import Layout, bind_flows, lay_out
from stepprof.timeline.model import Source
from stepprof.timeline.order import order_of_tracks
from stepprof.timeline.place import Place, clock_text, process_name
from stepprof.timeline.protobuf import Bytes, columns

__all__ = ["HEAD", "encode", "tail", "text"]

HEAD = b'{"traceEvents":[\n'
_BLOCK = 1 << 13
_DEEPEST = 64
_BETWEEN = b"},\n"


def tail(facts: Mapping[str, object]) -> bytes:
    """What a file ends with: `facts` about the whole timeline, which viewers show as its metadata."""
    last = b'{"ph":"M","name":"process_sort_index","pid":0,"args":{"sort_index":0}}\n'
    return last + b'],"displayTimeUnit":"ms","otherData":' + text(facts) + b"}\n"


def encode(source: Source, place: Place) -> Iterator[bytes]:
    """The events of one source, each followed by a comma, in pieces of some MB at most."""
    writer = _Writer(source, place)
    yield writer.names()
    yield from writer.slices()
    yield from writer.instants()
    yield from writer.counters()
    yield from writer.flows()


def text(value: object) -> bytes:
    """A value as JSON in UTF-8, in which no string ends in a backslash and no character is written as a number where it need not be.

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

    def _tid(self, row: int) -> int:
        return (row + 1) * self.place.count + self.place.index + 1

    def names(self) -> bytes:
        """What the process and its rows are called, and their order."""
        source = self.source
        order = order_of_tracks(source)
        labels = ", ".join([clock_text(source.alignment), source.origin.path, *source.findings])
        events = [
            self._metadata("process_name", 0, {"name": process_name(source, self.place)}),
            self._metadata("process_labels", 0, {"labels": f"clock: {labels}"}),
            self._metadata("process_sort_index", 0, {"sort_index": self.place.index}),
        ]
        lanes = len(self.layout.rows)
        for number, row in enumerate(self.layout.rows):
            track = source.tracks[row.track]
            if track.kind == "counter":
                continue
            name = f"sample {track.name}" if track.kind == "sample" else track.name
            name = f"{name} ({row.lane + 1})" if row.lane else name
            events.append(self._metadata("thread_name", self._tid(number), {"name": name}))
            events.append(
                self._metadata(
                    "thread_sort_index",
                    self._tid(number),
                    {"sort_index": order[row.track] * lanes + row.lane},
                )
            )
        return b"".join(events)

    def _metadata(self, kind: str, tid: int, args: Mapping[str, object]) -> bytes:
        return b'{"ph":"M","name":"%b","pid":%d,"tid":%d,"args":%b},\n' % (
            kind.encode(),
            self.pid,
            tid,
            text(args),
        )

    def slices(self) -> Iterator[bytes]:
        slices, nesting = self.source.slices, self.layout.nesting
        for at in range(0, len(slices), _BLOCK):
            block = slice(at, at + _BLOCK)
            order = nesting.order[block]
            stems = self._stems(b'"ph":"X"', slices.name[order], slices.category[order], nesting.row[block])
            times: list[bytes | Bytes] = [
                b',"ts":',
                self._times(nesting.start[block]),
                b',"dur":',
                _microseconds(slices.duration[order]),
            ]
            yield _joined(stems, times, _arguments(slices.args, order.tolist()))

    def instants(self) -> Iterator[bytes]:
        instants = self.source.instants
        for at in range(0, len(instants), _BLOCK):
            block = slice(at, at + _BLOCK)
            row = self.layout.track_row[instants.track[block]]
            stems = self._stems(b'"ph":"i","s":"t"', instants.name[block], instants.category[block], row)
            times: list[bytes | Bytes] = [b',"ts":', self._times(instants.time[block])]
            yield _joined(stems, times, _arguments(instants.args, range(at, at + len(row))))

    def counters(self) -> Iterator[bytes]:
        counters = self.source.counters
        names = _told_apart([track.name for track in self.source.tracks])
        stems = [b'},\n{"ph":"C","pid":%d,"name":%b' % (self.pid, text(name)) for name in names]
        for at in range(0, len(counters), _BLOCK):
            block = slice(at, at + _BLOCK)
            value = counters.value[block]
            yield _joined(
                [stems[track] for track in counters.track[block].tolist()],
                [b',"ts":', self._times(counters.time[block])],
                [b'{"value":%b}' % text(each) for each in value.tolist()],
            )

    def flows(self) -> Iterator[bytes]:
        flows = self.source.flows
        bound = bind_flows(flows, self.layout)
        category = flows.category[bound.drawn]
        for at in range(0, len(category), _BLOCK):
            block = slice(at, at + _BLOCK)
            number = [self.place.index << 32 | each for each in range(at, at + len(category[block]))]
            name = [self.category_texts[each] for each in category[block].tolist()]
            for phase, slices, time in (
                (b'"ph":"s"', bound.first, flows.start),
                (b'"ph":"f","bp":"e"', bound.last, flows.end),
            ):
                tid = (self._tid(row) for row in self.layout.nesting.row[slices[block]].tolist())
                stems = [
                    b'},\n{%b,"id":%d,"cat":%b,"name":%b,"pid":%d,"tid":%d'
                    % (phase, id_, each, each, self.pid, its)
                    for id_, each, its in zip(number, name, tid, strict=True)
                ]
                yield _joined(stems, [b',"ts":', self._times(time[bound.drawn][block])], None)

    def _stems(
        self,
        phase: bytes,
        name: npt.NDArray[np.int32],
        category: npt.NDArray[np.int32],
        row: npt.NDArray[np.int32],
    ) -> list[bytes]:
        """The end of the event before each, and its own beginning: what it shares with others of its name on its row is written once."""
        kinds = (name.astype(np.int64) * len(self.category_texts) + category) * len(self.layout.rows) + row
        _, example, which = np.unique(kinds, return_index=True, return_inverse=True)
        texts = [
            b'},\n{%b,"name":%b,"cat":%b,"pid":%d,"tid":%d'
            % (phase, self.name_texts[a], self.category_texts[b], self.pid, self._tid(c))
            for a, b, c in zip(
                name[example].tolist(), category[example].tolist(), row[example].tolist(), strict=True
            )
        ]
        return [texts[number] for number in which.tolist()]

    def _times(self, time: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        return _microseconds(time - self.place.base_ns)


def _microseconds(value: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Nanoseconds, none negative, as microseconds with three decimals: a row of text each, padded with spaces."""
    digits = max(4, len(str(int(value.max())))) if len(value) else 4
    out = np.empty((len(value), digits + 1), np.uint8)
    out[:, digits - 3] = ord(".")
    high = value
    for place in range(digits):
        if place % 9 == 0:  # numbers of 32 bits are divided many at once
            high, low = np.divmod(high, 10**9)
            left = low.astype(np.uint32)
        rest = left // 10
        digit = (left - 10 * rest + 48).astype(np.uint8)
        if place > 3:
            digit[(left == 0) & (high == 0)] = 32
        out[:, digits - place - (place > 2)] = digit
        left = rest
    return out


def _arguments(args: list[bytes | None] | None, order: Sequence[int]) -> list[bytes] | None:
    if args is None:
        return None
    chosen = [args[number] or b"{}" for number in order]
    # a string that ends in a backslash: rare, so that it is looked for in all of them at once
    whole = b"".join(chosen)
    if b"\\" in whole and b'\\\\"' in whole:
        chosen = [text(msgspec.json.decode(each)) if b'\\\\"' in each else each for each in chosen]
    return chosen


def _joined(stems: list[bytes], times: list[bytes | Bytes], args: list[bytes] | None) -> bytes:
    """Events, each with the end of the one before it: what the first has before itself comes after the last."""
    matrix = columns(len(stems), times if args is None else [*times, b',"args":'])
    step = 2 if args is None else 3
    pieces = [b""] * (step * len(stems))
    pieces[0::step] = stems
    pieces[1::step] = matrix.view(f"V{matrix.shape[1]}").ravel().tolist()
    if args is not None:
        pieces[2::step] = args
    pieces[0] = stems[0].removeprefix(_BETWEEN)
    pieces.append(_BETWEEN)
    return b"".join(pieces)


def _told_apart(names: list[str]) -> list[str]:
    """Counters of one process are the same one if they have the same name."""
    seen: dict[str, int] = {}
    apart = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        apart.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return apart

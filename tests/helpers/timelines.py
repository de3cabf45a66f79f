"""Build timelines for tests: sources of any shape, and a simple reader that reads as Perfetto does."""

from __future__ import annotations

import json
import struct
from collections import defaultdict

import numpy as np
from hypothesis import strategies as st

from stepprof.analysis.timeline.model import (
    Alignment,
    Counters,
    Flows,
    Instants,
    Origin,
    Slices,
    Source,
    Track,
)

T0 = 1_795_182_684_740_183_604


class Interned(dict):
    def __missing__(self, key):
        self[key] = len(self)
        return self[key]


def make_source(
    slices=(),
    *,
    instants=(),
    counters=(),
    flows=(),
    tracks=None,
    origin=None,
    alignment=None,
    findings=(),
    at=T0,
):
    """Return a source of rows: slices (track, start, duration, name[, category[, args]]), instants
    (track, time, name[, args]), counters (track, time, value), flows (track, time, track, time).

    Tracks are indices into `tracks`, by default one thread for each index. Times count from `at`.
    """
    names, categories = Interned(), Interned()
    rows = [(*row, *("cpu_op", None)[len(row) - 4 :]) for row in slices]
    marks = [(*row, None)[:4] for row in instants]
    most = max([0, *(row[0] for row in (*rows, *marks, *counters))])
    tracks = tracks or [Track("thread", f"thread {n}", ("1", str(n)), n) for n in range(most + 1)]
    times = lambda values: np.array([at + value for value in values], np.int64)  # noqa: E731
    numbers = lambda values: np.array(list(values), np.int32)  # noqa: E731
    return Source(
        origin or Origin("rank", "actor/rank-3.trace.json.gz", "actor", 3, None, "node-1", 77),
        alignment or Alignment("same-host"),
        slices=Slices(
            times(row[1] for row in rows),
            np.array([row[2] for row in rows], np.int64),
            numbers(names[row[3]] for row in rows),
            numbers(categories[row[4]] for row in rows),
            numbers(row[0] for row in rows),
            [row[5] for row in rows],
        ),
        instants=Instants(
            times(row[1] for row in marks),
            numbers(names[row[2]] for row in marks),
            numbers(categories["mark"] for _ in marks),
            numbers(row[0] for row in marks),
            [row[3] for row in marks],
        ),
        counters=Counters(
            times(row[1] for row in counters),
            np.array([row[2] for row in counters], np.float64),
            numbers(row[0] for row in counters),
        ),
        flows=Flows(
            times(row[1] for row in flows),
            numbers(row[0] for row in flows),
            times(row[3] for row in flows),
            numbers(row[2] for row in flows),
            numbers(categories["flow"] for _ in flows),
        ),
        names=list(names),
        categories=list(categories),
        tracks=tracks,
        findings=list(findings),
    )


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8) | st.sampled_from(
    ["aten::mul", "</script><script>", "C:\\", "日本語 🙂", '"quoted"']
)
ARGS = st.none() | st.dictionaries(
    st.sampled_from(["External id", "Input Dims", "note", "é\\"]),
    st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | NAMES
    | st.booleans()
    | st.lists(st.integers(0, 9)),
    max_size=3,
).map(lambda args: json.dumps(args, ensure_ascii=False).encode())


@st.composite
def sources(draw):
    """Draw any source: crossing, empty and simultaneous slices, on tracks of all kinds, at any
    distance from each other.
    """
    kinds = draw(
        st.lists(
            st.sampled_from(["thread", "stream", "async", "sample", "iterations"]), min_size=1, max_size=4
        )
    )
    tracks = [Track(kind, draw(NAMES) or "x", (kind, str(n)), n) for n, kind in enumerate(kinds)]
    counter = len(tracks)
    tracks.append(Track("counter", "queue", ("c",), counter))
    on = st.integers(0, len(kinds) - 1)
    time = st.integers(0, 30) | st.integers(-(10**15), 10**12)
    return make_source(
        draw(st.lists(st.tuples(on, time, st.integers(0, 20), NAMES, NAMES, ARGS), max_size=30)),
        instants=draw(st.lists(st.tuples(on, time, NAMES, ARGS), max_size=5)),
        counters=draw(
            st.lists(
                st.tuples(st.just(counter), time, st.floats(allow_nan=False, allow_infinity=False)),
                max_size=5,
            )
        ),
        flows=draw(st.lists(st.tuples(on, time, on, time), max_size=8)),
        tracks=tracks,
    )


def drawn(source):
    """Return the slices that a viewer must show: (track, name, category, start, duration), sorted.
    An empty slice is one nanosecond long.
    """
    slices = source.slices
    return sorted(
        (source.tracks[track].name, source.names[name], source.categories[category], start, max(duration, 1))
        for track, name, category, start, duration in zip(
            slices.track.tolist(),
            slices.name.tolist(),
            slices.category.tolist(),
            slices.start.tolist(),
            slices.duration.tolist(),
            strict=True,
        )
    )


# -- Perfetto -----------------------------------------------------------------------------------------------


def fields(data):
    """Yield (number, value) of each field of a message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        elif tag & 7 == 1:
            yield tag >> 3, data[at : at + 8]
            at += 8
        elif tag & 7 == 2:
            size = varint()
            assert at + size <= len(data), "a field is longer than its message"
            yield tag >> 3, data[at : at + size]
            at += size
        else:
            raise AssertionError(f"wire type {tag & 7}")


def table(data):
    content = defaultdict(list)
    for number, value in fields(data):
        content[number].append(value)
    return content


class Timeline:
    """A Perfetto trace, read packet by packet. Tracks are found by uuid, and slices by matching
    ends to begins in the order of their times.
    """

    def __init__(self, data):
        self.tracks, self.slices, self.instants, self.counters, self.flows = {}, [], [], [], defaultdict(list)
        interned, base, events = defaultdict(dict), {}, []
        for _, packet in fields(data):
            content = table(packet)
            sequence = content[10][0]
            for snapshot in content[6]:
                clocks = {table(clock)[1][0]: table(clock)[2][0] for clock in table(snapshot)[1]}
                base[sequence] = clocks[6]
            for descriptor in content[60]:
                reported = table(descriptor)
                self.tracks[reported[1][0]] = {
                    "name": reported[2][0].decode(),
                    "parent": reported[5][0] if reported[5] else None,
                    "order": reported[12][0],
                    "ordered": reported[11] == [3],
                    "counter": bool(reported[8]),
                    "lanes_of": reported[17][0] if reported[17] else None,
                    "description": reported[14][0].decode() if reported[14] else "",
                }
            for entries in content[12]:
                for kind, values in table(entries).items():
                    for value in values:
                        reported = table(value)
                        interned[sequence, kind][reported[1][0]] = reported[2][0].decode()
            for event in content[11]:
                events.append((base[sequence] + content[8][0], sequence, table(event)))
        stacks = defaultdict(list)
        for time, sequence, event in sorted(events, key=lambda each: each[0]):
            kind, uuid = event[9][0], event[11][0]
            if kind == 2:
                stacks[uuid].pop()["end"] = time
                continue
            if kind == 4:
                self.counters.append((uuid, time, struct.unpack("<d", event[44][0])[0]))
                continue
            name = interned[sequence, 2][event[10][0]] if event[10] else event[23][0].decode()
            category = interned[sequence, 1][event[3][0]] if event[3] else ""
            args = dict(self._argument(argument, interned, sequence) for argument in event[4])
            reported = {
                "uuid": uuid,
                "name": name,
                "category": category,
                "start": time,
                "args": args,
                "depth": len(stacks[uuid]),
            }
            if kind == 3:
                self.instants.append(reported)
                continue
            assert kind == 1
            stacks[uuid].append(reported)
            self.slices.append(reported)
            for number in (47, 48):
                for flow in event[number]:
                    self.flows[int.from_bytes(flow, "little")].append((number, reported))
        assert not any(stacks.values()), "a slice does not end"

    @staticmethod
    def _argument(data, interned, sequence):
        reported = table(data)
        name = interned[sequence, 3][reported[1][0]]
        if reported[17]:
            return name, interned[sequence, 29][reported[17][0]]
        if reported[5]:
            return name, struct.unpack("<d", reported[5][0])[0]
        if reported[2]:
            return name, bool(reported[2][0])
        value = reported[4][0]
        return name, value - 2**64 if value >= 2**63 else value

    def path(self, uuid):
        """Return the names from the root to a track."""
        names = []
        while uuid is not None:
            names.append(self.tracks[uuid]["name"])
            uuid = self.tracks[uuid]["parent"]
        return tuple(reversed(names))

    def drawn(self):
        return sorted(
            (
                self.tracks[each["uuid"]]["name"],
                each["name"],
                each["category"],
                each["start"],
                each["end"] - each["start"],
            )
            for each in self.slices
        )

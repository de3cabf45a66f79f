"""Read span files: the regions, windows, marks and counters of every step, from rolling files to a
Source per process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw

from stepprof.analysis.timeline.columns import (
    CounterColumns,
    FlowColumns,
    InstantColumns,
    Interned,
    SliceColumns,
)
from stepprof.analysis.timeline.model import Alignment, Origin, Source, Track, TrackKind
from stepprof.analysis.timeline.salvage import DECODE_ERRORS
from stepprof.analysis.timeline.utf8 import Utf8
from stepprof.host.clock import Anchor
from stepprof.host.plain_files import open_plain, readable
from stepprof.host.plain_json import parse_json
from stepprof.instrument.attributes import short_name
from stepprof.run.fields import is_rank
from stepprof.run.occurrence_spans import Portion, SpanWindow, other_windows, unclear, visits_of
from stepprof.run.span_lines import span_lines
from stepprof.run.spans import EVIDENCE, named_in, spans_in

_OWN_TRACKS = {"gc": "garbage collections", "stack": "stacks of thread {}"}
"""The tracks of evidence by its kind: it crosses the regions of its thread."""
_TASKS = "tasks of thread "
"""The start of the name of a thread's row of coroutines. That of the thread that opened the windows is `OWN_TASKS`."""
OWN_TASKS = "tasks"
LARGEST_NS = 2**62
HEADER_BYTES = 1 << 16


class _Header(msgspec.Struct):
    kind: str = ""
    rank: int | str | None = None
    host: str | None = None
    pid: int | None = None
    boot_id: str | None = None
    pid_namespace: str | None = None
    anchor: Any = None


class _Span(msgspec.Struct, gc=False):
    name: str
    kind: str
    start: int
    dur: int
    thread: int = 0
    task: int | None = None
    step: int | None = None
    role: str | None = None
    value: float | str | None = None
    attrs: Raw = Raw(b"")
    error: bool = False


class _Bound(msgspec.Struct):
    sample: Any = None


class _Collected(msgspec.Struct):
    busy: int


_header = msgspec.json.Decoder(_Header)
_collected = msgspec.json.Decoder(_Collected)
_span = msgspec.json.Decoder(_Span)
_bound = msgspec.json.Decoder(_Bound)


_Writer = tuple["int | str", "str | None", "int | None", "str | None", "str | None", "Anchor | None"]
"""Rank, host, process id, boot id, namespace of process ids, and anchor."""


@dataclass(frozen=True, slots=True)
class SpanFiles:
    """The rolling files of one process, in order."""

    rank: int | str
    host: str | None
    pid: int | None
    boot_id: str | None
    pid_namespace: str | None
    anchor: Anchor | None
    files: tuple[Path, ...]


def span_files(folder: Path) -> list[SpanFiles]:
    """Return the span files in a folder, those of one process together, by rank, a driver first.

    Raise OSError if the folder cannot be read.
    """
    groups: dict[_Writer, list[tuple[int, Path]]] = {}
    try:
        found = spans_in(folder)
    except FileNotFoundError:
        return []
    for file in found:
        rank, number = named_in(file)
        reported = _Header()
        try:
            with open_plain(file) as lines:
                reported = _header.decode(lines.read(HEADER_BYTES).partition(b"\n")[0])
        except (OSError, *DECODE_ERRORS):
            pass
        rank = reported.rank if is_rank(reported.rank) and reported.rank is not None else rank
        anchor = Anchor.of(reported.anchor)
        writer = (rank, reported.host, reported.pid, reported.boot_id, reported.pid_namespace, anchor)
        groups.setdefault(writer, []).append((number, file))
    ordered = sorted(
        groups.items(),
        key=lambda group: (isinstance(group[0][0], int), *_natural(group[0][0]), min(group[1])),
    )
    return [SpanFiles(*writer, files=tuple(file for _, file in sorted(files))) for writer, files in ordered]


def _natural(rank: int | str) -> tuple[int, str]:
    return (rank, "") if isinstance(rank, int) else (0, rank)


def read_spans_of(
    paths: Sequence[str],
    step: int | None,
    origin: Origin,
    alignment: Alignment,
    *,
    args: bool,
    roles: Collection[str] | None = None,
    portion: Portion | None = None,
    evidence: bool = True,
) -> Source:
    """Read the spans of one process.

    A span is on the track of its thread. Spans of a thread's coroutines may overlap and have a track of
    their own. A span that is bound to a sample is also on the track of that sample.

    Args:
        paths: the files of one process.
        step: only spans of this step; None: all.
        origin: of the spans.
        alignment: alignment of its host's clock with the common one.
        roles: spans of these roles, and those without a role; None: all.
        portion: the selected occurrence of the step; None: all of them.
        args: whether to keep attributes (with the step, the role and the kind) as arguments.
        evidence: whether to keep garbage collections and stacks.
    """
    reader = _Reader(args, roles, leave_out=EVIDENCE - ({*_OWN_TRACKS} if evidence else set()))
    for path in paths:
        reader.read(Path(path), step)
    if portion is not None and step is not None:
        others = partial(other_windows, [Path(path) for path in paths], step)
        visits = visits_of(reader.windows, others)
        bounds = portion.bounds(visits)
        if bounds is None and reader.slices:
            reader.findings.append(unclear(step, len(visits), len(portion.spans)))
        reader.keep_within(bounds or (0, 0))
    return reader.source(origin, alignment)


class _Reader:
    def __init__(self, args: bool, roles: Collection[str] | None, leave_out: Collection[str]) -> None:
        self.args = args
        self.roles = roles
        self.leave_out = leave_out
        self.names: Interned[str] = Interned()
        self.categories: Interned[str] = Interned()
        self.tracks: Interned[tuple[TrackKind, str]] = Interned()
        self.slices: list[tuple[int, int, int, int, int, bytes | None, int]] = []
        self.tasks: Interned[tuple[int, int]] = Interned()
        self.instants: list[tuple[int, int, int, int, bytes | None]] = []
        self.counters: list[tuple[int, float, int]] = []
        self.findings: list[str] = []
        self.main: int | None = None
        self.windows: list[SpanWindow] = []

    def keep_within(self, bounds: tuple[int, int]) -> None:
        """Leave out spans that start outside of the bounds."""
        begin, end = bounds
        self.slices = [each for each in self.slices if begin <= each[0] < end]
        self.instants = [each for each in self.instants if begin <= each[0] < end]
        self.counters = [each for each in self.counters if begin <= each[0] < end]

    def read(self, path: Path, step: int | None) -> None:
        damaged, utf8 = 0, Utf8()
        try:
            for number, line in enumerate(map(utf8.valid, span_lines(path, step))):
                if number == 0 and b'"kind": "spans"' in line:
                    continue
                span = _decoded(line)
                if span is None:
                    # an incomplete last line: its process was writing it, or was killed
                    damaged += line.endswith(b"\n")
                    continue
                if step is not None and span.step == step and span.kind == "window":
                    self.windows.append((span.role, span.start, span.start + span.dur))
                if self._is_wanted(span, step):
                    span.name = short_name(span.name)
                    damaged += not self._take(span)
        except OSError as error:
            self.findings.append(f"{readable(path.name)} cannot be read: {error.strerror or error}")
        if damaged:
            self.findings.append(
                f"{damaged} damaged line{'s' * (damaged > 1)} of {readable(path.name)} ignored"
            )
        self.findings += [f"{readable(path.name)}: {finding}" for finding in utf8.finding()]

    def _is_wanted(self, span: _Span, step: int | None) -> bool:
        return (step is None or span.step == step) and (
            self.roles is None or span.role is None or span.role in self.roles
        )

    def _take(self, span: _Span) -> bool:
        if not 0 <= span.start < LARGEST_NS or not 0 <= span.dur < LARGEST_NS:
            return False
        if span.kind == "counter":
            if isinstance(span.value, float):
                self.counters.append((span.start, span.value, self.tracks["counter", span.name]))
            return True
        if span.kind in self.leave_out:
            return True
        name, category = self.names[span.name], self.categories[span.kind]
        place: tuple[TrackKind, str] = (
            ("thread", str(span.thread)) if span.task is None else ("async", f"{_TASKS}{span.thread}")
        )
        if span.kind in _OWN_TRACKS:
            place = "async", _OWN_TRACKS[span.kind].format(span.thread)
        task = -1 if span.task is None else self.tasks[span.thread, span.task]
        args = self._args(span) if self.args else None
        tracks = [self.tracks[place]]
        if b'"sample"' in (attributes := bytes(span.attrs)):
            try:
                sample = _bound.decode(attributes).sample
            except DECODE_ERRORS:
                sample = None
            if isinstance(sample, str | int | float) and not isinstance(sample, bool):
                tracks.append(self.tracks["sample", str(sample)])
        if span.kind == "gc":  # a run of short collections is as long as its pauses
            span.dur = min(span.dur, _pause(attributes, span.dur))
        for track in tracks:
            if span.kind == "mark":
                self.instants.append((span.start, name, category, track, args))
            else:
                self.slices.append((span.start, span.dur, name, category, track, args, task))
        if self.main is None and span.kind == "window":
            self.main = span.thread
        return True

    @staticmethod
    def _args(span: _Span) -> bytes:
        """Return the attributes after the owner of the span; an attribute of the same name is the user's and replaces it."""
        attributes = bytes(span.attrs).strip()
        fields: dict[str, object] = {"step": span.step, "role": span.role, "kind": span.kind}
        if span.error:
            fields["error"] = True
        common = {
            key: value
            for key, value in fields.items()
            if value is not None and f'"{key}"'.encode() not in attributes
        }
        text = msgspec.json.encode(common)
        if len(attributes) <= 2:
            return text
        return attributes if text == b"{}" else text[:-1] + b", " + attributes[1:]

    def source(self, origin: Origin, alignment: Alignment) -> Source:
        shift = -alignment.offset_ns
        slices, instants, counters = SliceColumns(self.args), InstantColumns(self.args), CounterColumns()
        tasks = np.zeros(0, np.int32)
        if self.slices:
            *columns, args, task = zip(*self.slices, strict=True)
            slices.add(*columns, args=args)
            tasks = np.array(task, np.int32)
        if self.instants:
            *columns, args = zip(*self.instants, strict=True)
            instants.add(*columns, args=args)
        if self.counters:
            counters.add(*zip(*self.counters, strict=True))
        return Source(
            origin,
            alignment,
            list(self.names),
            list(self.categories),
            list(self._tracks()),
            replace(slices.built(shift), task=tasks),
            instants.built(shift),
            counters.built(shift),
            FlowColumns().built(shift, lambda place, *_: place),
            self.findings,
        )

    def _tracks(self) -> Iterable[Track]:
        rows = [key for kind, key in self.tracks if kind == "async" and key.startswith(_TASKS)]
        alone = rows[0] if self.main is None and len(rows) == 1 else None
        for number, (kind, key) in enumerate(self.tracks):
            if kind == "thread":
                main = key == str(self.main)
                yield Track(
                    kind,
                    "main thread" if main else f"thread {key}",
                    (kind, key),
                    0 if main else 1000 + number,
                )
            else:
                own = kind == "async" and key in (f"{_TASKS}{self.main}", alone)
                name = OWN_TASKS if own else key
                yield Track(kind, name, (name,) if kind == "sample" else (kind, name), 1_000_000 + number)


def _pause(attributes: bytes, length: int) -> int:
    """Return the nanoseconds in the pauses of a run of garbage collections; its length if they are not stated."""
    try:
        return max(_collected.decode(attributes).busy, 0)
    except DECODE_ERRORS:
        return length


def _decoded(line: bytes) -> _Span | None:
    """Return the span of a line; None if it is damaged."""
    try:
        return _span.decode(line)
    except DECODE_ERRORS:
        try:  # NaN, and halves of surrogate pairs, are the user's own values
            return _span.decode(msgspec.json.encode(parse_json(line)))
        except (ValueError, RecursionError):
            return None

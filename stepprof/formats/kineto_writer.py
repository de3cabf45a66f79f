"""Convert the file that torch exports to the artifact of a run.

Kineto (the library below torch.profiler) writes large uncompressed JSON, knows nothing of steps,
and reports no error if it cannot write. torch compresses that file at 10 MB/s. So this module
checks that the file is complete. Then one pass adds the annotations that a thread's stack cannot
hold (coroutines, attributes, windows), repairs invalid names, counts the events and compresses.
Facts of the format:

* torch's ``add_metadata_json`` is not safe: Kineto turns every backslash of the value into a slash, so one quotation mark in a value makes the whole file invalid JSON (torch 2.13). So our metadata is written here.
* Kineto writes the names of ``record_function`` unescaped too, and ``unknown`` for any that is not plain ASCII. `escaped` makes a name survive that; the pass restores it.
* ``ts`` is in microseconds relative to ``baseTimeNanoseconds``, which differs from file to file.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stepprof.formats.chrome_events import encoded, events
from stepprof.formats.kineto_text import (
    EVENT,
    blocks,
    new_compressor,
    sound_head,
    whole_lines,
    with_sound_names,
)
from stepprof.run.model import Annotation

_HEAD_LIMIT = (
    1 << 26
)  # metadata before the events: deviceProperties and the process groups of thousands of ranks are far smaller
_TAIL = 1 << 16
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')
# only plain values follow the events: the trace's name, in older versions also the base time
_END = re.compile(rb'\]\s*(?P<rest>(?:,\s*"\w+"\s*:\s*(?:"[^\n]*"|-?[\d.]+)\s*)+)\}\s*\Z')
_TRACE_NAME = re.compile(rb'"traceName"\s*:\s*"[^\n]*?"(?=\s*(?:\}|,\s*"\w+"\s*:|\Z))')
_MARK_PREFIX = "stepprof::"
_MARK = re.compile(rb'"cpu_op"(,\s*"name":\s*")stepprof::(?=[^"])')
_ESCAPE = re.compile(rb"&#(\d{1,7});")
_UNSAFE = re.compile(r'[^\x20-\x7e]|["\\]|&(?=#\d)')


class TraceFileError(Exception):
    """The file contains no trace: it is missing, empty, or not Kineto's JSON."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """The positions of the parts of an exported trace.

    `problem` describes an invalid file; it is kept, but nothing is added.
    """

    size: int
    events_at: int = 0
    """Offset of the first byte after the bracket that opens the events."""
    key_at: int = 0
    """Offset of the ``"traceEvents"`` key."""
    empty: bool = False
    """The array of events is empty."""
    end_at: int = 0
    """Offset of the bracket that closes the events."""
    base_unix_ns: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of a pass: entries of ``traceEvents``, compressed bytes, and the problem (None: there
    was none).
    """

    events: int
    bytes: int
    problem: str | None


def escaped(name: str) -> str:
    r"""Return `name` as plain ASCII without quotes or backslashes; `finish` restores the original
    name.

    >>> escaped('say "hé"'), escaped("aten::add_")
    ('say &#34;h&#233;&#34;', 'aten::add_')
    """
    if name.endswith("\\"):  # Perfetto loses a whole file over one string that ends so
        name += " "
    return _UNSAFE.sub(lambda match: f"&#{ord(match[0])};", name)


def marked(name: str) -> str:
    """Return the name of a range that torch records like an op; `finish` makes it an annotation of the
    original name.

    This is torch's cheap way to mark a range: 0.6 us, against 4.6 of ``record_function``.

    >>> marked("update")
    'stepprof::update'
    """
    return _MARK_PREFIX + escaped(name)


def inspect(path: Path) -> TraceFile:
    """Find the parts of an exported trace by its first and last bytes.

    Raises:
        TraceFileError: it is empty, or not the JSON of a trace.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size == 0:
            raise TraceFileError("the trace is empty")
        head, opening = _head(file)
        if not head.lstrip().startswith(b"{"):
            raise TraceFileError(f"not a trace: it begins with {head[:20]!r}")
        if opening is None:
            return TraceFile(size=size, problem="the trace has no traceEvents")
        start = max(opening.end(), size - _TAIL)
        file.seek(start)
        tail = file.read()
        ending = _END.search(tail)
        if ending is None:
            return TraceFile(size=size, problem=f"the trace is incomplete: it breaks off after {size} bytes")
        bases = _BASE.findall(head, 0, opening.start()) or _BASE.findall(ending["rest"])
        if not bases:
            return TraceFile(
                size=size, problem="the trace has no baseTimeNanoseconds: its times cannot be placed"
            )
        end_at = start + ending.start()
        file.seek(opening.end())
        return TraceFile(
            size=size,
            events_at=opening.end(),
            key_at=opening.start(),
            empty=not file.read(min(end_at - opening.end(), 4096)).strip(),
            end_at=end_at,
            base_unix_ns=int(bases[-1]),
        )


def _head(file: BinaryIO) -> tuple[bytes, re.Match[bytes] | None]:
    head = b""
    for block in blocks(file, 0, _HEAD_LIMIT):
        head += block
        opening = _EVENTS.search(head)
        if opening is not None:
            return head, opening
    return head, None


def finish(
    raw: Path,
    final: Path,
    *,
    name: str,
    pid: int,
    metadata: Mapping[str, object],
    annotations: Iterable[Annotation] = (),
    marks: bool = False,
) -> Finished:
    """Write the exported trace `raw` to the new file `final`: stamped, annotated, repaired, compressed.

    A file of an unexpected shape is compressed unchanged, and `Finished.problem` says so. `name`
    becomes its ``traceName``, `metadata` its top-level key ``stepprof``; `pid` is the process whose
    threads the annotations name; `marks` says that some names are `escaped` or `marked`. Memory: a
    few blocks of 4 MiB, and the annotations. Time, of one core: 0.3 s for the 129 MB of 100,000
    small ops (a third of it the compression, with isal; with zlib 0.9 s).

    Raises:
        TraceFileError: there is no trace in `raw`.
        OSError: one of the files cannot be read or written; `final` may be left incomplete.
    """
    shape = inspect(raw)
    total = 0
    with raw.open("rb") as source, final.open("xb") as target:
        compressor = new_compressor()
        for block, count in _rewritten(
            source,
            shape,
            name=name,
            pid=pid,
            metadata=metadata,
            annotations=annotations,
            marks=marks,
        ):
            total += count
            target.write(compressor.compress(block))
        target.write(compressor.flush())
        size = target.tell()
    return Finished(events=total, bytes=size, problem=shape.problem)


def _rewritten(
    source: BinaryIO,
    shape: TraceFile,
    *,
    name: str,
    pid: int,
    metadata: Mapping[str, object],
    annotations: Iterable[Annotation],
    marks: bool,
) -> Iterator[tuple[bytes, int]]:
    """Yield the new file in blocks, each with its number of events."""
    if shape.problem is not None:
        for block in whole_lines(blocks(source, 0, shape.size)):
            yield block, block.count(EVENT)
        return
    source.seek(0)
    yield sound_head(source.read(shape.key_at)), 0
    yield b'"stepprof": ' + encoded(metadata) + b",\n    ", 0
    yield source.read(shape.events_at - shape.key_at), 0
    written = 0
    for event in events(annotations, shape.base_unix_ns, pid, metadata):
        yield (b",\n  " if written else b"\n  ") + event, 1
        written += 1
    if written and not shape.empty:
        yield b",", 0
    for block in whole_lines(blocks(source, shape.events_at, shape.end_at)):
        repaired = with_sound_names(block)
        if marks:
            repaired = _ESCAPE.sub(_unescape, _MARK.sub(rb'"user_annotation"\1', repaired))
        yield repaired, repaired.count(EVENT)
    source.seek(shape.end_at)
    trace_name = b'"traceName": ' + encoded(name)
    yield _TRACE_NAME.sub(lambda _: trace_name, source.read()), 0


def _unescape(match: re.Match[bytes]) -> bytes:
    code = int(match[1])
    if code > sys.maxunicode:
        return match[0]
    return json.dumps(chr(code), ensure_ascii=False)[1:-1].encode("utf-8", "replace")

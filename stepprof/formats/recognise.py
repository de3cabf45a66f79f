"""Recognise files that are no trace by their first bytes, so that a command can name what it was given."""

from __future__ import annotations

import enum
import json
import re
import zlib
from pathlib import Path
from typing import NamedTuple

from stepprof.formats.npu_folder import is_database
from stepprof.host.plain_files import open_plain, resolved

TAKEN = "a trace is .json or .json.gz of torch.profiler, vLLM or SGLang, or .db of torch_npu"
_LOOKED_AT = 1 << 16
_TEXT = 0.95
"""Share of printable bytes in a text."""
_OWN_TIMELINE = re.compile(rb"\x0a.\x50\x01\x68\x01\x32", re.DOTALL)
"""The start of a timeline that `stepprof merge` writes: a packet of sequence 1 with the clocks."""
_OLD_TIMELINE = re.compile(rb'\{"baseTimeNanoseconds":\s*\d+,\s*"stepprof":\s*\{"timeline":')
"""The start of a timeline in JSON, which older versions wrote."""
_MERGED = "is a {}: give the run or the traces that it was merged from; `stepprof open` shows the timeline"
_UTF16 = re.compile(rb"(?:\xff\xfe)?(?:\s\0)*[{\[]\0[^\0]\0|(?:\xfe\xff)?(?:\0\s)*\0[{\[]\0[^\0]")
"""The start of an object or a list, in either order of bytes."""
_SIGN = re.compile(
    rb'"(?:traceEvents|baseTimeNanoseconds|deviceProperties|distributedInfo)"\s*:|\A\s*\[\s*\{[^{}]*"ph"\s*:'
)
"""A key of a trace, or the first event of a list."""
_PHASE = re.compile(rb'"ph"\s*:')
"""The key that every event has."""
_ARRAY = re.compile(rb"\[\s*(?:[{\]]|$)")
"""The start of a list of objects, of an empty list, or of one that breaks off."""
_PACKED = (
    (b"\x28\xb5\x2f\xfd", "Zstandard", "zstd -d"),
    (b"\xfd7zXZ\0", "xz", "xz -dk"),
    (b"BZh", "bzip2", "bzip2 -dk"),
    (b"\x04\x22\x4d\x18", "LZ4", "lz4 -d"),
)
"""The first bytes of compressed files that are not read, and what decompresses them."""
_PACKED_NAMES = re.compile(
    r".+\.json\.(?:zst|zstd|xz|bz2|lz4|zip)|.+\.jsonl(?:\.gz)?|.+\.nsys-rep|.+\.tar(?:\.\w+)?|.+\.tgz"
)
_NSIGHT = re.compile(
    rb'"(?:CudaEvent|NvtxEvent|TraceProcessEvent|GlobalTid|globalTid|NameId|ProcessEvent)"\s*:'
)
"""Keys in the lines that `nsys export --type json` writes."""
_OTHER_NAMES = re.compile(
    r"(?:(?:.+\.)?(?:report|timeline[^/]*)|run|config|profiler_info\S*|profiler_metadata|tokenizer\S*)\.json(?:\.gz)?"
)
_EXECUTION = re.compile(r'\{\s*"schema"\s*:\s*"[^"]*chakra')
"""The start of a file of torch.profiler.ExecutionTraceObserver."""
_OWN = (
    (
        re.compile(r'\{\s*"run_id": .*"schema_version": .*"findings": ', re.DOTALL),
        "a report of stepprof, and no trace",
    ),
    (
        re.compile(r'\{\s*"a": .*"schema_version": .*"changes": ', re.DOTALL),
        "a comparison of stepprof, and no trace",
    ),
    (re.compile(r'\{.*"schema_version": .*"kind": "spans"'), "a file of spans: give the folder of its run"),
    (
        re.compile(r'\{.*"schema_version": .*"windows": ', re.DOTALL),
        "a manifest of a step: give the folder of its run",
    ),
    (re.compile(r'\{.*"run_id_from": ', re.DOTALL), "the description of a run: give the folder of the run"),
)


class Kind(enum.Enum):
    """The kind of a file that is no trace."""

    EMPTY = enum.auto()
    BINARY = enum.auto()
    """Of no known format."""
    OURS = enum.auto()
    """Written by stepprof."""
    TIMELINE = enum.auto()
    """Merged by stepprof."""
    FOREIGN = enum.auto()
    """Of another format, which Perfetto may show."""
    OTHER = enum.auto()
    """Of another format, which Perfetto does not show."""


class What(NamedTuple):
    """What a file is that is no trace."""

    kind: Kind
    text: str


def not_a_trace(path: Path) -> What | None:
    """Return what a file is; None: it may be a trace, maybe a damaged one, or cannot be read.

    >>> not_a_trace(Path("no-such-file.json"))
    """
    what = _what(path)
    damaged = what is not None and what.kind in (Kind.EMPTY, Kind.BINARY) and has_trace_suffix(path.name)
    return None if damaged else what


def may_be_damaged(path: Path) -> bool:
    """Return whether a file that cannot be read as a trace may be a damaged one, and is no other JSON.

    Of an object of which only the start is looked at, that start must show events.
    """
    try:
        start = _start(path)
    except (OSError, zlib.error):
        return True
    is_long = len(start) == _LOOKED_AT and start.lstrip()[:1] == b"{"
    return not_a_trace(path) is None and (not is_long or _SIGN.search(start) is not None)


def not_for_perfetto(path: Path) -> What | None:
    """Return what a file is that Perfetto cannot show; None: it may show it, as it shows many formats."""
    what = _what(path)
    return what if what is not None and what.kind in (Kind.EMPTY, Kind.OURS, Kind.OTHER) else None


def has_trace_suffix(name: str) -> bool:
    """Return whether a name ends as the names of traces do."""
    return name.endswith((".json", ".json.gz")) or is_database(name)


def is_trace_name(name: str) -> bool:
    """Return whether a JSON file in a folder may be a trace."""
    return not name.startswith(".") and _OTHER_NAMES.fullmatch(name) is None


def is_packed_name(name: str) -> bool:
    """Return whether a file in a folder may hold a trace in a form that is not read.

    >>> is_packed_name("rank0.pt.trace.json.zst"), is_packed_name("rank0.json.gz")
    (True, False)
    """
    return _PACKED_NAMES.fullmatch(name) is not None


def shows_events(path: Path) -> bool:
    """Return whether the start of a file shows that it is a trace."""
    try:
        start = _start(path)
    except (OSError, zlib.error):
        return False
    return start.startswith(b"SQLite format 3\0") or _SIGN.search(start) is not None


def _what(path: Path) -> What | None:
    try:
        start = _start(path)
    except (OSError, zlib.error):
        return None
    if not start:
        return What(Kind.EMPTY, "is empty")
    if start[:1] == b"\x0a" and not _is_text(
        start[:64]
    ):  # the first field of Perfetto's binary format is a packet
        if _OWN_TIMELINE.match(start):
            return What(Kind.TIMELINE, _MERGED.format("merged timeline of stepprof"))
        return What(Kind.FOREIGN, _MERGED.format("timeline of Perfetto"))
    if _OLD_TIMELINE.match(start):
        return What(Kind.TIMELINE, _MERGED.format("merged timeline of stepprof"))
    if start.startswith(b"SQLite format 3\0") and is_database(path.name):
        return None
    return _binary(path, start) or _text(start.removeprefix(b"\xef\xbb\xbf").lstrip())


def _start(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed."""
    with open_plain(resolved(path)) as file:
        start = file.read(_LOOKED_AT)
    return zlib.decompressobj(31).decompress(start, _LOOKED_AT) if start[:2] == b"\x1f\x8b" else start


def _binary(path: Path, start: bytes) -> What | None:
    if start.startswith(b"SQLite format 3\0"):
        return What(Kind.FOREIGN, f"is a SQLite database of another tool: {TAKEN}")
    if path.name.endswith(".nsys-rep"):
        return What(Kind.OTHER, "is a report of Nsight Systems: nsys-ui opens it")
    for first, name, command in _PACKED:
        if start.startswith(first):
            return What(Kind.OTHER, f"is compressed with {name}, which is not read: `{command} FILE` first")
    if start[257:262] == b"ustar":
        return What(Kind.OTHER, "is a tar archive: extract the traces in it first")
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return What(
            Kind.OTHER,
            "is a pickle, such as a memory snapshot of torch: https://docs.pytorch.org/memory_viz shows it",
        )
    if start.startswith(b"PK\x03\x04"):
        return What(Kind.FOREIGN, f"is a ZIP archive: {TAKEN}")
    if _UTF16.match(start):
        return What(Kind.OTHER, "is JSON in UTF-16: convert it to UTF-8")
    return None


def _text(text: bytes) -> What | None:
    """Return what text is; None if it may be the start of a trace."""
    if text[:1] == b"[":
        is_whole = text[1:].strip() != b"]" and text.rstrip().endswith(b"]")
        is_other = not _ARRAY.match(text) or (is_whole and _PHASE.search(text) is None)
        return What(Kind.OTHER, "is a JSON list without events, and no trace") if is_other else None
    if text[:1] == b"{":
        return _object(text)
    if text[:9].lower() == b"<!doctype" or text[:5].lower() == b"<html":
        if b"<title>stepprof" in text:
            return What(Kind.OURS, "is a report of stepprof, for a browser, and no trace")
        return What(Kind.FOREIGN, f"is a web page and no trace: {TAKEN}")
    if _is_text(text):
        return What(Kind.FOREIGN, f"is text and no trace: {TAKEN}")
    return What(Kind.BINARY, f"is a binary file and no trace: {TAKEN}")


def _object(text: bytes) -> What | None:
    """Return what a JSON object is; None if it may be a trace, or if its start does not tell."""
    if b'"traceEvents"' in text:
        return None
    words = text.decode("utf-8", "replace")
    if _EXECUTION.match(words):
        return What(Kind.OTHER, "is an execution trace of torch, whose nodes have no times, and no trace")
    for own, what in _OWN:
        if own.match(words):
            return What(Kind.OURS, f"is {what}")
    try:
        json.loads(words)
    except (ValueError, RecursionError):
        return _lines(text)
    return What(Kind.OTHER, "is JSON without traceEvents, and no trace")


def _lines(text: bytes) -> What | None:
    """Return what a file with a JSON object on each line is; None: it has none on the first one, and something else on the next one."""
    first, _, rest = text.partition(b"\n")
    try:
        is_object = isinstance(json.loads(first.decode("utf-8", "replace")), dict)
    except (ValueError, RecursionError):
        return None
    if not is_object or rest.lstrip()[:1] != b"{":
        return None
    if _NSIGHT.search(text):
        return What(
            Kind.OTHER, "is an export of Nsight Systems as JSON, and no trace: nsys-ui opens its .nsys-rep"
        )
    if _PHASE.search(first):
        return What(
            Kind.OTHER, "has an event on each line: `jq -s . FILE` makes a list of them, which is a trace"
        )
    return What(Kind.OTHER, "is JSON with an object on each line, and no trace")


def _is_text(start: bytes) -> bool:
    shown = sum(byte >= 0x20 or byte in b"\t\r\n\f" for byte in start)
    return shown >= _TEXT * len(start) and b"\0" not in start

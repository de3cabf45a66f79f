"""Recognise files that are no trace by their first bytes, so that a command can name what it was given."""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from pathlib import Path

from stepprof.formats.npu_folder import is_database
from stepprof.host.plain_files import resolved

TAKEN = "a trace is .json or .json.gz of torch.profiler, vLLM or SGLang, or .db of torch_npu"
_LOOKED_AT = 1 << 16
_TEXT = 0.95
"""Share of printable bytes in a text."""
_OWN_TIMELINE = re.compile(rb"\x0a.\x50\x01\x68\x01\x32", re.DOTALL)
"""The start of a timeline that `stepprof merge` writes: a packet of sequence 1 with the clocks."""
_OWN = (
    (re.compile(r'\{\s*"run_id": .*"schema_version": .*"findings": ', re.DOTALL), "a report of stepprof"),
    (re.compile(r'\{\s*"a": .*"schema_version": .*"changes": ', re.DOTALL), "a comparison of stepprof"),
    (re.compile(r'\{.*"schema_version": .*"kind": "spans"'), "a file of spans: give the folder of its run"),
    (
        re.compile(r'\{.*"schema_version": .*"windows": ', re.DOTALL),
        "a manifest of a step: give the folder of its run",
    ),
    (re.compile(r'\{.*"run_id_from": ', re.DOTALL), "the description of a run: give the folder of the run"),
)


def not_a_trace(path: Path) -> str | None:
    """Return what a file is; None: it may be a trace, or cannot be read.

    >>> not_a_trace(Path("no-such-file.json"))
    """
    try:
        start = _start(path)
    except OSError:
        return None
    if not start:
        return "is empty"
    if start[:2] == b"\x1f\x8b":
        with contextlib.suppress(zlib.error):
            start = zlib.decompressobj(31).decompress(start, _LOOKED_AT)
    if _is_perfetto(start):
        return f"{_perfetto(start)}: give the run or the traces that it was merged from; `stepprof open` shows the timeline"
    return _binary(path, start) or _text(start.removeprefix(b"\xef\xbb\xbf").lstrip())


def not_for_perfetto(path: Path) -> str | None:
    """Return what a file is that Perfetto cannot show; None: it may show it, as it shows many formats."""
    what = not_a_trace(path)
    return None if what is None or what.endswith(TAKEN) or _is_perfetto(_start(path)) else what


def _start(path: Path) -> bytes:
    with resolved(path).open("rb") as file:
        return file.read(_LOOKED_AT)


def _is_perfetto(start: bytes) -> bool:
    """Return whether a file is in Perfetto's binary format: its first field is a packet, and it is no text."""
    return start[:1] == b"\x0a" and not _is_text(start[:64])


def _perfetto(start: bytes) -> str:
    return "is a merged timeline of stepprof" if _OWN_TIMELINE.match(start) else "is a timeline of Perfetto"


def _binary(path: Path, start: bytes) -> str | None:
    if start.startswith(b"SQLite format 3\0"):
        return None if is_database(path.name) else f"is a SQLite database of another tool: {TAKEN}"
    if path.name.endswith(".nsys-rep"):
        return "is a report of Nsight Systems: nsys-ui opens it"
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "is a pickle, such as a memory snapshot of torch: https://docs.pytorch.org/memory_viz shows it"
    if start.startswith(b"PK\x03\x04"):
        return f"is a ZIP archive: {TAKEN}"
    return None


def _text(text: bytes) -> str | None:
    """Return what text is; None if it may be the start of a trace."""
    if text[:1] == b"[":
        return None
    if text[:1] == b"{":
        return _object(text)
    if text[:9].lower() == b"<!doctype" or text[:5].lower() == b"<html":
        if b"<title>stepprof" in text:
            return "is a report of stepprof, for a browser, and no trace"
        return f"is a web page and no trace: {TAKEN}"
    return f"is {'text' if _is_text(text) else 'a binary file'} and no trace: {TAKEN}"


def _object(text: bytes) -> str | None:
    """Return what a JSON object is; None if it may be a trace, or if its start does not tell."""
    if b'"traceEvents"' in text:
        return None
    words = text.decode("utf-8", "replace")
    for own, what in _OWN:
        if own.match(words):
            return f"is {what}" if ":" in what else f"is {what}, and no trace"
    try:
        json.loads(words)
    except (ValueError, RecursionError):
        return None
    return "is JSON without traceEvents, and no trace"


def _is_text(start: bytes) -> bool:
    shown = sum(byte >= 0x20 or byte in b"\t\r\n\f" for byte in start)
    return shown >= _TEXT * len(start) and b"\0" not in start

"""The lines of a span file: all of them, or only those that can be of one step, in bounded memory.

A long job has gigabytes of spans, and one step of them is wanted as a rule. So lines of other steps are never made into objects: the bytes are searched for the step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

try:
    from msgspec.json import decode as _decode
except ImportError:  # the base installation: four times as slow
    _decode: Callable[[bytes], Any] = json.loads  # type: ignore[no-redef]

__all__ = ["LONGEST_LINE", "parse_span", "span_lines"]

BLOCK_BYTES = 1 << 20
LONGEST_LINE = 16 << 20
"""Bytes of a line that is read as one; spans are far shorter."""


_WINDOW = re.compile(rb'"kind":\s*"window"')


def span_lines(path: Path, step: int | None = None, *, windows: bool = False) -> Iterator[bytes]:
    """Yield the lines of a span file, each with its line break; a last one that has none was not written to its end.

    A line of more than 16 MiB comes in pieces.

    Args:
        path: the file.
        step: yield the first line, and of the others those that hold this step's number as a `step`: all of that step, and few of others.
        windows: yield the first line, and of the others those of windows, in every step.

    Raises:
        OSError: it cannot be read.
    """
    mark = _WINDOW if windows else None if step is None else re.compile(rb'"step":\s*%d(?!\d)' % step)
    at_start, rest = True, b""
    with path.open("rb", buffering=0) as file:
        while read := file.read(BLOCK_BYTES):
            block = rest + read
            end = block.rfind(b"\n") + 1
            if not end and len(block) < LONGEST_LINE:
                rest = block
                continue
            end = end or len(block)
            rest = block[end:]
            begin = 0
            if at_start:
                begin, at_start = block.find(b"\n", 0, end) + 1 or end, False
                yield block[:begin]
            yield from _whole_lines(block[begin:end]) if mark is None else _marked(block, begin, end, mark)
    if rest and (at_start or mark is None or mark.search(rest)):
        yield rest


def parse_span(line: bytes) -> dict[str, Any] | None:
    """Return what a line of a span file says; None where it is damaged."""
    try:
        content = _decode(line)
    except (ValueError, RecursionError):
        try:
            content = json.loads(line)  # takes what msgspec refuses: NaN, and halves of surrogate pairs
        except (ValueError, RecursionError):
            return None
    return content if isinstance(content, dict) else None


def _whole_lines(block: bytes) -> Iterator[bytes]:
    lines = block.split(b"\n")
    last = lines.pop()
    for line in lines:
        yield line + b"\n"
    if last:
        yield last


def _marked(block: bytes, begin: int, end: int, mark: re.Pattern[bytes]) -> Iterator[bytes]:
    """Yield each line that has the mark, once."""
    for found in mark.finditer(block, begin, end):
        if found.start() >= begin:
            start = block.rfind(b"\n", begin, found.start()) + 1 or begin
            begin = block.find(b"\n", found.end(), end) + 1 or end
            yield block[start:begin]

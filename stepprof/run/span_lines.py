"""Read the lines of a span file, all or those of one step, in bounded memory.

A long job has gigabytes of spans, and usually one step is wanted. Lines of other steps are not
parsed: the bytes are searched for the step number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

from stepprof.host.plain_files import data_bytes, open_plain
from stepprof.host.plain_json import parse_json
from stepprof.instrument.attributes import short_name
from stepprof.instrument.scope import LARGEST_STEP, LONGEST_NAME

BLOCK_BYTES = 1 << 20
LARGEST_NS = 1 << 62
LONGEST_LINE = 16 << 20
"""Maximum bytes of a line; spans are far shorter."""


_WINDOW = re.compile(rb'"kind":\s*"window"')


def span_lines(
    path: Path, step: int | Collection[int] | None = None, *, windows: bool = False
) -> Iterator[bytes]:
    """Yield the lines of a span file with their line breaks. An incomplete last line has none.

    A line of more than 16 MiB is yielded in pieces.

    Args:
        path: the file.
        step: a step number, or several. Yield the first line, then the lines of these steps, and few
            others.
        windows: yield the first line, then only lines of windows, of every step.

    Raises:
        OSError: it cannot be read.
    """
    mark = _WINDOW if windows else None
    if step is not None:
        numbers = b"|".join(b"%d" % each for each in ([step] if isinstance(step, int) else sorted(step)))
        mark = re.compile(rb'"step":\s*(?:%s)(?!\d)' % numbers)
    at_start, rest = True, b""
    with open_plain(path) as file:
        left = data_bytes(file)
        while read := file.raw.read(min(BLOCK_BYTES, left)):
            left -= len(read)
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
    """Return the span of a line, its name shortened if it is too long; None if the line is damaged."""
    try:
        span = _decode(line)
    except (ValueError, RecursionError):
        try:
            span = parse_json(line)  # accepts what msgspec refuses: NaN, and halves of surrogate pairs
        except ValueError:
            return None
        if not _is_sound(span):
            return None
    if len(name := span.get("name", "")) > LONGEST_NAME:
        span["name"] = short_name(name)
    return span


def _is_sound(span: Any) -> bool:
    """Return whether each field of a span, or of a file's first line, is valid."""
    if type(span) is not dict:
        return False
    get = span.get
    step, role, start, duration, cpu = get("step"), get("role"), get("start", 0), get("dur", 0), get("cpu", 0)
    return (
        (step is None or (type(step) is int and 0 <= step <= LARGEST_STEP))
        and (role is None or type(role) is str)
        and type(start) is int
        and 0 <= start < LARGEST_NS
        and type(duration) is int
        and 0 <= duration < LARGEST_NS
        and type(cpu) is int
        and 0 <= cpu < LARGEST_NS
        and type(get("name", "")) is str
        and type(get("kind", "")) is str
        and isinstance(get("thread"), int | None)
        and isinstance(get("task"), int | None)
    )


def _decoder() -> Callable[[bytes], dict[str, Any]]:
    """Return a parser of lines that `_is_sound` accepts; it raises ValueError or RecursionError for others."""
    try:
        import msgspec
    except ImportError:  # the base installation: ten times as slow

        def refuse(line: bytes) -> dict[str, Any]:
            raise ValueError

        return refuse
    nanoseconds = Annotated[int, msgspec.Meta(ge=0, lt=LARGEST_NS)]
    step = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_STEP)]
    fields = {
        **dict.fromkeys(("start", "dur", "cpu"), nanoseconds),
        **dict.fromkeys(("name", "kind"), str),
        **dict.fromkeys(("thread", "task", "rank", "host", "pid"), int | str | None),
        **dict.fromkeys(("attrs", "value", "error", "anchor", "boot_id", "pid_namespace"), Any),
        "step": step | None,
        "role": str | None,
    }
    return msgspec.json.Decoder(TypedDict("Line", fields, total=False)).decode  # type: ignore[operator]


_decode = _decoder()


def _whole_lines(block: bytes) -> Iterator[bytes]:
    lines = block.split(b"\n")
    last = lines.pop()
    for line in lines:
        yield line + b"\n"
    if last:
        yield last


def _marked(block: bytes, begin: int, end: int, mark: re.Pattern[bytes]) -> Iterator[bytes]:
    """Yield each line with the mark, once."""
    for found in mark.finditer(block, begin, end):
        if found.start() >= begin:
            start = block.rfind(b"\n", begin, found.start()) + 1 or begin
            begin = block.find(b"\n", found.end(), end) + 1 or end
            yield block[start:begin]

"""Read the JSON that Kineto writes: split it into blocks, repair invalid names, compress it.

All passes over a trace use this module, for traces of this process and of engines. None holds more
than a few blocks in memory.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from stepprof.formats.chrome_events import encoded

_BLOCK = 1 << 22
_LONGEST_LINE = 1 << 24
EVENT = b'"ph":'
"""Each event has this once; inside a string its quotation marks would be escaped."""
_METADATA = re.compile(rb'\s*"[^"\n]+": .+,\r?\n')
# a name that ends before its line does, or holds a backslash; nothing is changed if other keys follow on the line, as in older Kinetos
_BROKEN_NAME = re.compile(rb'"name": "(?=[^"\\\n]*(?:\\|"(?!,?\r?\n|, "\w+": |\s+\})))')
_LINE_END = re.compile(rb'",?\r?\Z')


def blocks(source: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a file from `start` to `end`, in blocks."""
    source.seek(start)
    left = end - start
    while left > 0:
        block = source.read(min(_BLOCK, left))
        if not block:
            break
        left -= len(block)
        yield block


def whole_lines(source: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in blocks that end at the end of an event, or at least of a line, so
    that no name is split.
    """
    rest = b""
    for block in source:
        cut = (block.rfind(b"\n  {\n") if b"\n  {\n" in block else block.rfind(b"\n")) + 1
        if cut == 0 and len(rest) + len(block) > _LONGEST_LINE:  # all on one line: no Kineto wrote this
            cut = block.rfind(b"}") + 1 or len(block)
        if cut == 0:
            rest += block
            continue
        yield rest + block[:cut]
        rest = block[cut:]
    if rest:
        yield rest


def sound_head(head: bytes) -> bytes:
    """Return the header before the events as valid JSON: lines of metadata that cannot be parsed are left out.

    Kineto does not escape a quotation mark in a value.
    """

    if _is_json(head + b'"":0}'):
        return head
    lines = head.splitlines(keepends=True)
    kept = [line for line in lines if not _METADATA.fullmatch(line) or _is_json(b"{%b}" % line.strip()[:-1])]
    return b"".join(kept)


def with_sound_names(block: bytes) -> bytes:
    """Return whole lines of events; names that Kineto wrote unescaped are escaped."""
    return _escaped(block, lambda name: True)[0]


def repaired_names(block: bytes) -> tuple[bytes, int]:
    """Return whole lines of events in which invalid names are escaped, and the number of these
    names.
    """
    return _escaped(block, lambda name: not _is_json(b'"%b"' % name))


def _escaped(block: bytes, is_chosen: Callable[[bytes], bool]) -> tuple[bytes, int]:
    parts, count, at = [], 0, 0
    for begin, end in _broken_names(block):
        name = block[begin:end]
        if is_chosen(name):
            parts += [block[at : begin - 1], encoded(name.decode("utf-8", "replace"))]
            count, at = count + 1, end + 1
    return b"".join([*parts, block[at:]]), count


def _broken_names(block: bytes) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each broken name. It ends with its line, so each line is read once."""
    at = 0
    while (found := _BROKEN_NAME.search(block, at)) and (at := block.find(b"\n", found.end())) >= 0:
        ending = _LINE_END.search(block, max(found.end(), at - 3), at)
        if ending:
            yield found.end(), ending.start()


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def new_compressor() -> Any:
    """Return the fastest installed gzip compressor."""
    # level 1 of isal: 1.6 GB/s; zlib: 0.18 to 0.45 GB/s; torch's own way (level 9, line by line): 0.01
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.compressobj(1, zlib.DEFLATED, 31)
    return isal_zlib.compressobj(1, isal_zlib.DEFLATED, 31)


new_compressor()  # imports isal here: in a thread that exports, it could be inside a profile of the user (see stepprof.untraced)

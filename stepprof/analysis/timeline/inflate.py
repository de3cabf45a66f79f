"""Read the bytes of a trace file in blocks, compressed or not, as far as possible and up to a
limit.

Only this module knows that a gzip file may have several members, may break off, may be a bomb, and
may be called ``.json``. Data before the damage is kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from isal import isal_zlib

from stepprof.host.plain_files import data_bytes, open_plain

BLOCK = 1 << 19
"""A size that fits into the caches of a core together with its events."""
_FEED = 1 << 14
"""The most bytes that are decompressed at once. If they are damaged, `_closely` decompresses them
byte by byte.
"""
_GZIP = b"\x1f\x8b"
_WHOLE_MEMBER = 31  # window bits: gzip, with its checksum
_DAMAGED: Any = isal_zlib.error


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for reading a file, so that no file can use up the machine. Data beyond them is left
    out with a finding.
    """

    inflated_bytes: int = 32 << 30
    """Of text, uncompressed."""
    event_bytes: int = 64 << 20
    """Bytes of one event. A larger one is skipped."""
    memory_bytes: int = 4 << 30
    """Bytes of memory of a source, from its first event until it is drawn or summed up. Later
    events are left out.
    """


def blocks(
    path: Path, limit: int, findings: list[str], block: int = BLOCK, part: tuple[int, int] | None = None
) -> Iterator[bytes]:
    """Yield the uncompressed content of a file, in blocks of at most `block` bytes.

    Args:
        path: the file.
        limit: the most uncompressed bytes to read.
        findings: receives one sentence for each problem; nothing is raised.
        block: the largest size of a block.
        part: start and end of the part to read; None: all of it.
    """
    total = 0
    for piece in _pieces(path, findings, block, part):
        if total + len(piece) > limit:
            yield piece[: limit - total]
            findings.append(f"holds more than {limit} bytes uncompressed: the rest is ignored")
            return
        total += len(piece)
        yield piece


def last_bytes(path: Path, count: int) -> bytes:
    """Return the end of the uncompressed content of a file. A compressed one is decompressed as a whole."""
    if not is_compressed(path):
        size = path.stat().st_size
        return b"".join(blocks(path, count, [], part=(max(0, size - count), size)))
    last = bytearray()
    for block in blocks(path, Limits().inflated_bytes, []):
        last += block
        if len(last) > 4 * count:
            del last[:-count]
    return bytes(last[-count:])


def is_compressed(path: Path) -> bool:
    """Return whether a file is gzip, whatever its name is."""
    try:
        with open_plain(path) as file:
            return file.read(2) == _GZIP
    except OSError:
        return False  # the reader of the file reports it


class _Part:
    """A part of a file that reads like a whole file. Its offsets are those of the whole file."""

    def __init__(self, file: BinaryIO, start: int, end: int) -> None:
        self._file, self._end = file, end
        self.tell, self.seek = file.tell, file.seek
        file.seek(start)

    def read(self, count: int) -> bytes:
        return self._file.read(max(0, min(count, self._end - self.tell())))


def _pieces(path: Path, findings: list[str], block: int, part: tuple[int, int] | None) -> Iterator[bytes]:
    try:
        with open_plain(path) as whole:
            written = data_bytes(whole)
            if written < os.fstat(whole.fileno()).st_size:
                findings.append(f"has a hole at byte {written}: the rest is ignored")
            start, end = part or (0, written)
            file = _Part(whole, start, min(end, written))
            compressed = file.read(2) == _GZIP
            file.seek(start)
            if compressed:
                yield from _gunzip(file, findings, block)
            else:
                while piece := file.read(block):
                    yield piece
    except OSError as error:
        findings.append(f"cannot be read: {error.strerror or error}")


def _gunzip(file: _Part, findings: list[str], block: int) -> Iterator[bytes]:
    stream: Any = None
    member = 0
    while feed := file.read(_FEED):
        at = file.tell() - len(feed)
        while feed:
            if stream is None or stream.eof:
                feed = feed.lstrip(b"\0") if stream is not None else feed
                if not feed:
                    break
                stream = isal_zlib.decompressobj(_WHOLE_MEMBER)
                member = at = file.tell() - len(feed)
            try:
                yield from _fed(stream, feed, block)
            except _DAMAGED as error:
                yield from _closely(file, member, at, block)
                findings.append(f"is damaged as gzip ({error}): the part before the damage is used")
                return
            feed = stream.unused_data if stream.eof else b""
    if stream is not None and not stream.eof:
        findings.append("is truncated gzip: the part before the end is used")


def _fed(stream: Any, feed: bytes, block: int) -> Iterator[bytes]:
    """Yield the content of some compressed bytes, in pieces of at most `block`.

    After a full piece there may be more without further input.
    """
    while True:
        piece = stream.decompress(feed, block)
        yield piece
        feed = stream.unconsumed_tail
        if stream.eof or (not feed and len(piece) < block):
            return


def _closely(file: _Part, member: int, damaged: int, block: int) -> Iterator[bytes]:
    """Yield what damaged input decompresses to, byte by byte. Perhaps only the checksum at its end
    is wrong.
    """
    stream: Any = isal_zlib.decompressobj(_WHOLE_MEMBER)
    file.seek(member)
    while file.tell() < damaged:
        for _ in _fed(stream, file.read(min(_FEED, damaged - file.tell())), block):
            pass
    for byte in iter(lambda: file.read(1), b""):
        try:
            yield from _fed(stream, byte, block)
        except _DAMAGED:
            return

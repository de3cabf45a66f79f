"""The bytes of a trace file, compressed or not, in blocks: as far as they can be had, and no further than a bound.

What only this module knows: a gzip file may have several members, may break off, may be a bomb, and may be called ``.json``. What came before the damage is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isal import isal_zlib

__all__ = ["blocks"]

BLOCK = 2 << 20
_READ = 1 << 20
_GZIP = b"\x1f\x8b"
_WHOLE_MEMBER = 31  # window bits: gzip, with its checksum
_DAMAGED: Any = isal_zlib.error


def blocks(path: Path, limit: int, findings: list[str], block: int = BLOCK) -> Iterator[bytes]:
    """Yield what a file holds, uncompressed, in blocks of about `block` bytes.

    Args:
        path: the file.
        limit: after so many uncompressed bytes it ends.
        findings: gets one sentence for what is wrong; nothing is raised.
        block: no block is larger.
    """
    total = 0
    for piece in _pieces(path, findings, block):
        if total + len(piece) > limit:
            yield piece[: limit - total]
            findings.append(f"holds more than {limit} bytes uncompressed: what follows is left out")
            return
        total += len(piece)
        yield piece


def _pieces(path: Path, findings: list[str], block: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            if file.read(2) == _GZIP:
                file.seek(0)
                yield from _gunzip(iter(lambda: file.read(_READ), b""), findings, block)
                return
            file.seek(0)
            while piece := file.read(block):
                yield piece
    except OSError as error:
        findings.append(f"cannot be read: {error.strerror or error}")


def _gunzip(source: Iterator[bytes], findings: list[str], block: int) -> Iterator[bytes]:
    stream: Any = isal_zlib.decompressobj(_WHOLE_MEMBER)
    held, parts = 0, list[bytes]()
    began = False
    for read in source:
        data = read
        while data:
            if stream.eof:
                stream = isal_zlib.decompressobj(_WHOLE_MEMBER)
                began = False
            try:
                piece = stream.decompress(data, block - held)
            except _DAMAGED as error:
                if parts:
                    yield b"".join(parts)
                findings.append(f"is damaged as gzip ({error}): what comes before the damage is kept")
                return
            began = True
            parts.append(piece)
            held += len(piece)
            if held >= block:
                yield b"".join(parts)
                held, parts = 0, []
            data = stream.unused_data.lstrip(b"\0") if stream.eof else stream.unconsumed_tail
    if parts:
        yield b"".join(parts)
    if began and not stream.eof:
        findings.append("breaks off as gzip: what comes before is kept")

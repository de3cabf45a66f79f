"""Open and read the files of a run: plain files only, without blocking, and up to a size limit.

A run directory may come from anywhere, and other users may write to it. Every file of a run is
opened here:

* Links are never followed: they may lead to any file of the reader's, or to a device. stepprof
creates no links in a run. Folders may be links (a step that was moved to another disk).

* Pipes, devices and sockets are refused without blocking.

* Whole-file reads have a size limit. Streamed reads end at the first hole of a sparse file.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepprof.host.plain_json import parse_json
from stepprof.interrupts import ignored, ours

MOST_BYTES = 1 << 25
"""Maximum size of a JSON object (`run.json`, a manifest, a status file): a manifest of 4,096
engines has 3 MB.
"""
_FLAGS = (
    os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
)


def open_plain(path: Path | str) -> io.BufferedReader:
    """Open a plain file for reading.

    Raises:
        OSError: it is a link, a pipe, a device or a folder, or it cannot be opened; `strerror` says which.
    """
    return os.fdopen(_descriptor(path)[0], "rb")


def _descriptor(path: Path | str) -> tuple[int, int]:
    """Return the descriptor of a plain file, and its size in bytes."""
    try:
        descriptor = os.open(path, _FLAGS)
    except ours(ValueError) as error:  # a NUL, or half a surrogate pair
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from error
    except ours(OSError) as error:
        if error.errno == errno.ELOOP and Path(path).is_symlink():
            raise OSError(errno.ELOOP, "a link, and links in a run are not followed", str(path)) from None
        raise
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.ENXIO, "not a plain file", str(path))
        return descriptor, status.st_size
    except BaseException:
        os.close(descriptor)
        raise


def data_bytes(file: io.BufferedReader) -> int:
    """Return the number of bytes before the first hole of an open file; its size if it has none.

    A hole is neither text nor gzip. A sparse file of terabytes is read only as far as it was
    written.
    """
    size = os.fstat(file.fileno()).st_size
    if not hasattr(os, "SEEK_HOLE"):
        return size
    at = os.lseek(file.fileno(), 0, os.SEEK_CUR)
    try:
        return min(size, os.lseek(file.fileno(), 0, os.SEEK_HOLE))
    except ours(OSError):  # empty, or a file system that does not report holes
        return size
    finally:
        os.lseek(file.fileno(), at, os.SEEK_SET)


def data_chunks(file: io.BufferedReader, chunk: int = 1 << 20) -> Iterator[bytes]:
    """Yield the content of an open file up to its first hole. Raise OSError if it cannot be read."""
    at, end = 0, os.fstat(file.fileno()).st_size
    while at < end:
        with ignored(AttributeError):  # a system without SEEK_DATA
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except ours(OSError) as error:
                if error.errno == errno.ENXIO:
                    return
        file.raw.seek(at, os.SEEK_SET)
        read = file.raw.read(chunk)
        if not read:
            return
        at += len(read)
        yield read


def read_plain(path: Path | str, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a plain file.

    Raises:
        OSError: it is not a plain file (`open_plain`), has more than `most_bytes`, or cannot be read.
    """
    descriptor, size = _descriptor(path)
    try:
        if size > most_bytes:
            raise OSError(errno.EFBIG, f"too large: {size} bytes (at most {most_bytes} are read)", str(path))
        data = os.read(descriptor, size)  # data appended meanwhile is not read
        while len(data) < size and (more := os.read(descriptor, size - len(data))):
            data += more
        return data
    finally:
        os.close(descriptor)


def json_files(folder: Path) -> list[Path]:
    """Return the JSON files of a folder by name, without hidden ones, which are being written. Raise OSError."""
    found = (file for file in folder.iterdir() if file.suffix == ".json" and file.name[0] != ".")
    return sorted(found, key=lambda file: file.name)  # to compare paths takes much longer


def resolved(path: Path | str) -> Path:
    """Return a path without links. A loop of links, and what is no path, stay as they are, for their reader to report."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a NUL character
        return Path(path)


def readable(name: str) -> str:
    """Return the name of a file as printable text: bytes that are not UTF-8 become question marks."""
    return name.encode(errors="replace").decode()


def read_table(path: Path | str, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """Return the JSON object in a file, within the limits of `stepprof.host.plain_json`.

    Raises:
        OSError: it is no plain file, too large, or cannot be read.
        ValueError: it is no object; the message follows the file's name.
    """
    data = read_plain(path, most_bytes)
    if not data.strip():
        raise ValueError("damaged: empty")
    try:
        content = parse_json(data)
    except ours(ValueError) as error:
        raise ValueError(f"damaged: {error}") from None
    if not isinstance(content, dict):
        raise ValueError("damaged: not a JSON object")
    return content

"""Read files on the node where they are: the work of an agent there."""

from __future__ import annotations

import time
from pathlib import Path

from stepprof.host.plain_files import open_plain, read_plain
from stepprof.host.plain_json import parse_json
from stepprof.host.process_identity import is_alive
from stepprof.run.reasons import is_pending


def read_piece(path: str, offset: int, size: int) -> bytes:
    """Return a piece of a file. Raises OSError."""
    with open_plain(path) as file:
        file.seek(offset)
        return file.read(size)


def size_of(path: str) -> int | None:
    """Return the size of a file; None if it does not exist."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return None


def settled_fragment(path: str, timeout: float) -> bytes:
    """Return a fragment once no export of its windows is pending, its writer is dead, or the
    timeout has passed. Raises OSError.
    """
    deadline = time.monotonic() + timeout
    while True:
        data = read_plain(path)
        content = parse_json(data)
        awaited = any(map(is_pending, content["windows"]))
        if not awaited or time.monotonic() > deadline:
            return data
        if is_alive(content["writer"]) is False:
            return read_plain(path)
        time.sleep(0.1)

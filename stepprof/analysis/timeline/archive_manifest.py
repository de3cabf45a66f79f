"""Write Perfetto's manifest of an archive, and recognise an archive that has one.

The manifest states how the times of each file become times of one clock
(https://perfetto.dev/docs/reference/perfetto-manifest, version 1).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from stepprof.host.plain_files import open_plain

PERFETTO = 58
"""The first version of Perfetto that reads the manifest."""
MANIFEST = "perfetto_manifest.json"
_MEMBER = b"PK\x03\x04"
_CONTENTS_BYTES = 1 << 22
"""How much of the end of an archive is read: an entry of its table of contents has some hundred bytes."""


class Entry(TypedDict):
    """The placement of one file."""

    path: str
    machine: dict[str, str]
    offset_ns: int


def entry(path: str, name: str, offset_ns: int) -> Entry:
    """Return the placement of a file.

    Args:
        path: its name in the archive.
        name: the name of its process. Each file is a machine of its own, because process ids of
            containers and numbers of GPUs repeat.
        offset_ns: what is added to the times in the file to get Unix times of the common clock.
    """
    return {"path": path, "machine": {"name": utf8(name)}, "offset_ns": offset_ns}


def manifest(files: Sequence[Entry], attributes: Mapping[str, object]) -> str:
    """Return the text of the manifest.

    Args:
        files: at least one. The real-time clock of the first is the common clock.
        attributes: facts about the archive; None leaves one out.
    """
    clock = {"file": files[0]["path"], "clock": "REALTIME"}
    content = {
        "version": 1,
        "trace_time": clock,
        "files": [
            {
                "path": each["path"],
                "machine": each["machine"],
                "clocks": {"sync_to": clock, "offset_ns": each["offset_ns"]},
            }
            for each in files
        ],
        "attributes": {key: value for key, value in attributes.items() if isinstance(value, str | int)},
    }
    # Perfetto recognises the file by its first key
    return json.dumps({"perfetto_manifest": content}, indent=1, ensure_ascii=False)


def is_archive(path: Path) -> bool:
    """Return whether a file is an archive with a manifest, by its beginning and its table of contents."""
    try:
        with open_plain(path) as file:
            begins = file.read(len(_MEMBER)) == _MEMBER
            file.seek(max(0, file.seek(0, os.SEEK_END) - _CONTENTS_BYTES))
            return begins and MANIFEST.encode() in file.read(_CONTENTS_BYTES)
    except OSError:
        return False


def utf8(name: str) -> str:
    """Return a name without halves of surrogate pairs, which no UTF-8 can hold."""
    return name.encode("utf-8", "replace").decode()

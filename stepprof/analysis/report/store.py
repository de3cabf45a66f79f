"""Read and write reports: the page, and JSON with a schema. Each file is written completely or not
at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from stepprof.analysis.report.schema import SCHEMA_VERSION, Comparison, Report
from stepprof.errors import ConfigError
from stepprof.host.atomic_files import write_atomically
from stepprof.host.plain_files import read_plain, resolved

_Content = TypeVar("_Content", Report, Comparison)
_MOST_BYTES = 1 << 30


def dump(content: Report | Comparison) -> bytes:
    """Return JSON for programs, indented so that two reports can be compared line by line."""
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def read(path: Path, kind: type[_Content]) -> _Content:
    """Read a report or a comparison from a file.

    Raises:
        ConfigError: there is no such file, it has other content, or this stepprof does not know its schema.
    """
    try:
        data = read_plain(resolved(path), _MOST_BYTES)
    except OSError as error:
        raise ConfigError(f'report "{path}": cannot be read: {error.strerror or error}') from error
    try:
        version = msgspec.json.decode(data, type=_Versioned).schema_version
        if version != SCHEMA_VERSION:
            raise ConfigError(
                f'report "{path}": written with schema_version {version}; this stepprof reads {SCHEMA_VERSION}: make it again with "stepprof report"'
            )
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            f'report "{path}": not a {kind.__name__.lower()} of stepprof: {error}; make it again with "stepprof report"'
        ) from error


def write(path: Path, data: bytes) -> None:
    """Write `data` to `path`, and replace an earlier report there.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        raise ConfigError(
            f'"{path}": cannot be written: {error.strerror or error}; name another file with --html or --json'
        ) from error


class _Versioned(msgspec.Struct):
    schema_version: int

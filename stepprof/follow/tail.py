"""Read the lines that the processes of a run add to their span files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepprof.host.own_files import is_foreign
from stepprof.host.plain_files import data_bytes, open_plain
from stepprof.host.plain_json import parse_json
from stepprof.run.fields import is_rank
from stepprof.run.layout import SPANS
from stepprof.run.span_lines import BLOCK_BYTES, LONGEST_LINE, parse_span

OLD_BYTES = 4 << 20
"""Of a file that is there at the first look, this much is read at most: the histories need no more."""

_WANTED = re.compile(rb'"kind": "(?:window|region|mark)"')


@dataclass(frozen=True, slots=True)
class Line:
    """A window, a region or a mark of a span file."""

    file: str
    """The file's name."""
    at: int
    """Where the line begins."""
    header: Mapping[str, Any]
    """The first line of the file: the process."""
    span: Mapping[str, Any]
    is_old: bool
    """It was there at the first look."""


class Tail:
    """The span files of a run, each from where the last look ended.

    Args:
        run: the run directory.
        positions: where to begin, by file name; None: at the end of what is there, less OLD_BYTES.
    """

    def __init__(self, run: Path, positions: Mapping[str, int] | None = None) -> None:
        self._folder = run / SPANS
        self._reads_all = positions is not None
        self.positions: dict[str, int] = dict(positions or {})
        self._headers: dict[str, Mapping[str, Any]] = {}
        self._is_first = True

    def read(self) -> Iterator[Line]:
        """Yield the new lines, file by file. Files of other users, and damaged lines, are left out."""
        for path in sorted(self._folder.glob("rank-*.jsonl")):
            try:
                size = path.lstat().st_size
                if size > self.positions.get(path.name, 0) and not is_foreign(path):
                    yield from self._read(path, size)
            except OSError:  # removed meanwhile
                continue
        self._is_first = False

    def _read(self, path: Path, size: int) -> Iterator[Line]:
        name = path.name
        with open_plain(path) as file:
            if name not in self._headers:
                first = file.readline(BLOCK_BYTES)
                header = _header(first)
                if header is None:
                    return  # its process is just writing it
                self._headers[name] = header
                self.positions.setdefault(name, len(first))
                if self._is_first and not self._reads_all and size - len(first) > OLD_BYTES:
                    file.seek(size - OLD_BYTES)
                    self.positions[name] = size - OLD_BYTES + len(file.readline())
            file.seek(self.positions[name])
            end = data_bytes(file)
            while (at := self.positions[name]) < end and (line := file.readline(LONGEST_LINE)):
                if not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                    return  # its process is just writing it
                self.positions[name] += len(line)
                span = parse_span(line) if _WANTED.search(line) else None
                if span is not None and span.keys() >= {"name", "kind", "start", "dur"}:
                    yield Line(name, at, self._headers[name], span, self._is_first)


def _header(line: bytes) -> dict[str, Any] | None:
    try:
        header = parse_json(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    if not isinstance(header, dict) or header.get("kind") != "spans" or not is_rank(header.get("rank")):
        return None
    return header

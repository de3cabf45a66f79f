"""Tell `stepprof run` into which runs the processes of its job record: their `output_dir` and working directory may be others than its own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from stepprof.interrupts import ignored

VARIABLE = "STEPPROF_ANNOUNCE"
"""The file of `stepprof run`, in the environment of its job. Each process adds a line with the path of its run, or why it has none."""
_OFF = "off"


def announce(run: Path, environ: Mapping[str, str]) -> None:
    """Add a run to the file, if there is one: not on another machine, nor after `stepprof run` has ended."""
    _add(str(run), environ)


def announce_off(reason: str, environ: Mapping[str, str]) -> None:
    """Add why a process that called `init` has no run, as `announce` adds a run."""
    _add({_OFF: reason}, environ)


def announced(file: Path) -> list[Path]:
    """Return the runs in the file, each once."""
    return list(dict.fromkeys(Path(each) for each in _lines(file) if isinstance(each, str)))


def announced_off(file: Path) -> list[str]:
    """Return why processes that called `init` have no run, each reason once."""
    return list(dict.fromkeys(str(each[_OFF]) for each in _lines(file) if isinstance(each, dict)))


def _add(content: object, environ: Mapping[str, str]) -> None:
    file = environ.get(VARIABLE)
    if file:
        with ignored(OSError):
            descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
            try:
                os.write(descriptor, f"{json.dumps(content)}\n".encode())
            finally:
                os.close(descriptor)


def _lines(file: Path) -> Iterator[object]:
    for line in file.read_text(errors="replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # the disk was full
            continue

"""Tell `stepprof run` into which runs the processes of its job record: their `output_dir` and working directory may be others than its own."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from stepprof.interrupts import ignored

VARIABLE = "STEPPROF_ANNOUNCE"
"""The file of `stepprof run`, in the environment of its job. Each process adds a line with the path of its run."""


def announce(run: Path, environ: Mapping[str, str]) -> None:
    """Add a run to the file, if there is one: not on another machine, nor after `stepprof run` has ended."""
    file = environ.get(VARIABLE)
    if file:
        with ignored(OSError):
            descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
            try:
                os.write(descriptor, f"{json.dumps(str(run))}\n".encode())
            finally:
                os.close(descriptor)


def announced(file: Path) -> list[Path]:
    """Return the runs in the file, each once."""
    found: dict[Path, None] = {}
    for line in file.read_text(errors="replace").splitlines():
        try:
            found[Path(str(json.loads(line)))] = None
        except ValueError:  # the disk was full
            continue
    return list(found)

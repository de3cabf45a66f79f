"""Find the folder of the runs of a process, even if Ray deletes its working directory."""

from __future__ import annotations

import os
import re
from pathlib import Path

_TEMPORARY = re.compile(r"/session_[^/]+/runtime_resources/")
"""Part of the path of a working directory that Ray has unpacked for a job, and removes afterwards."""


def output_root(output_dir: str | os.PathLike[str]) -> Path:
    """Return an ``output_dir`` as an absolute path.

    A relative one is below the working directory, or below the home directory if Ray deletes the
    working directory.

    >>> output_root("/scratch/runs").as_posix()
    '/scratch/runs'
    """
    # not resolve(): it would ask the file system about links
    path = Path(output_dir)
    return Path(os.path.abspath(path if path.is_absolute() else Path(_base(), path)))  # noqa: PTH100


def _base() -> str:
    here = os.getcwd()  # noqa: PTH109
    home = os.path.expanduser("~")  # noqa: PTH111
    return home if _TEMPORARY.search(f"{here}/") and os.access(home, os.W_OK) else here

"""The packages that start worker processes as `multiprocessing` does: `multiprocess` (of `datasets`) and `billiard` are copies of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

_PACKAGES = ("multiprocessing", "multiprocess", "billiard")


def is_importing_main() -> bool:
    """Return whether one of the packages imports the main module for a worker now."""
    return any(getattr(process.current_process(), "_inheriting", False) for process in _loaded("process"))


def parents() -> Iterator[Any]:
    """Return the module `util` of each package that has started this process.

    >>> list(parents())
    []
    """
    for process in _loaded("process"):
        if type(process.current_process()).__name__ != "_MainProcess":
            yield from _loaded("util", process.__name__.partition(".")[0])


def _loaded(module: str, *packages: str) -> Iterator[Any]:
    for package in packages or _PACKAGES:
        found = sys.modules.get(f"{package}.{module}")
        if found is not None:
            yield found

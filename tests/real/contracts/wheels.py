"""Find the wheels that `nox -s contracts` has unpacked, and read names in them."""

from __future__ import annotations

import ast
import os
from pathlib import Path


def wheel(framework: str, which: int = -1) -> Path:
    """Return the folder of an unpacked wheel of a framework: the oldest is 0, the latest -1."""
    return Path(os.environ[f"{framework.upper()}_WHEEL"].split(os.pathsep)[which])


def packages(framework: str, which: int = -1) -> Path:
    """Return the folder of the wheel that contains its packages."""
    folder = wheel(framework, which)
    return next(iter(folder.glob("*.data/purelib")), folder)


def assigns(file: Path, owner: str) -> set[str]:
    """Return the attributes that the methods of a class assign to their instance."""
    (found,) = (
        each
        for each in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(each, ast.ClassDef) and each.name == owner
    )
    targets = (
        node
        for node in ast.walk(found)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    )
    return {node.attr for node in targets if isinstance(node.value, ast.Name) and node.value.id == "self"}


def timers(file: Path) -> set[str]:
    """Return the names of the timers that a file enters: the first argument of each `Timer(…)` or
    `….timed_phase(…)`.
    """
    calls = (each for each in ast.walk(ast.parse(file.read_bytes())) if isinstance(each, ast.Call))
    entered = (
        each
        for each in calls
        if getattr(each.func, "id", None) == "Timer" or getattr(each.func, "attr", None) == "timed_phase"
    )
    return {each.args[0].value for each in entered if isinstance(each.args[0], ast.Constant)}

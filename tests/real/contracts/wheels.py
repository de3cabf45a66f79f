"""The wheels that `nox -s contracts` has unpacked, and what can be read in them."""

from __future__ import annotations

import ast
import os
from pathlib import Path


def wheel(framework: str) -> Path:
    """Return the folder of the unpacked wheel of a framework."""
    return Path(os.environ[f"{framework.upper()}_WHEEL"])


def packages(framework: str) -> Path:
    """Return the folder of the wheel in which its packages are."""
    return next(iter(wheel(framework).glob("*.data/purelib")), wheel(framework))


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
    """Return the names of the timers that a file enters: the first argument of each `Timer(…)`."""
    calls = (each for each in ast.walk(ast.parse(file.read_bytes())) if isinstance(each, ast.Call))
    entered = (each for each in calls if isinstance(each.func, ast.Name) and each.func.id == "Timer")
    return {each.args[0].value for each in entered if isinstance(each.args[0], ast.Constant)}

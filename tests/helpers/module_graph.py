"""Find which modules of the package import which, and which of them can be reached from one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import stepprof

PACKAGE = Path(stepprof.__file__).parent

Imports = dict[str, set[str]]


@cache
def modules() -> dict[str, Path]:
    """Return the files of the package by the dotted names of their modules, without the examples
    that an installation contains.
    """
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] != "examples":
            found[".".join(("stepprof", *parts)).removesuffix(".__init__")] = path
    return found


def imports() -> Imports:
    """Return the modules of the package that each module imports: at its top, inside functions and
    for types.
    """
    files = modules()
    return {
        name: {each for each in imported(path) if each != name and each in files}
        for name, path in files.items()
    }


@cache
def imported(path: Path) -> frozenset[str]:
    """Return the names of the modules that a file imports."""
    return frozenset(names_in(ast.parse(path.read_text(encoding="utf-8")), modules()))


def names_in(tree: ast.Module, files: dict[str, Path]) -> Iterator[str]:
    """Yield the names of the modules that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in files else node.module


def finished(graph: Imports, start: str, seen: set[str]) -> list[str]:
    """Return the modules that are reached and were not seen before, in the order in which a
    depth-first search leaves them.
    """
    if start in seen:
        return []
    seen.add(start)
    left, stack = [], [(start, iter(graph[start]))]
    while stack:
        rest = stack[-1][1]
        new = next((each for each in rest if each not in seen), None)
        if new is None:
            left.append(stack.pop()[0])
        else:
            seen.add(new)
            stack.append((new, iter(graph[new])))
    return left

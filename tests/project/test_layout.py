"""The layout of the package: no import cycle between its modules.

The direction of the imports is in pyproject.toml, as contracts of import-linter.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepprof

PACKAGE = Path(stepprof.__file__).parent

Imports = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """Return the files of the package by the dotted names of their modules; an installation has the examples too."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] != "examples":
            found[".".join(("stepprof", *parts)).removesuffix(".__init__")] = path
    return found


def imports() -> Imports:
    """Return what each module imports of the package, at its top, inside functions and for types."""
    files = modules()
    return {
        name: {each for each in imported(path, files) if each != name and each in files}
        for name, path in files.items()
    }


def imported(path: Path, files: dict[str, Path]) -> Iterator[str]:
    """Yield the names of the modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in files else node.module


def cycles(graph: Imports) -> list[list[str]]:
    """Return the groups of modules that reach each other: the strongly connected components (Kosaraju's algorithm)."""
    reverse: Imports = {module: set() for module in graph}
    for module, targets in graph.items():
        for each in targets:
            reverse[each].add(module)
    seen: set[str] = set()
    order = [each for module in graph for each in finished(graph, module, seen)]
    seen = set()
    groups = [finished(reverse, module, seen) for module in reversed(order)]
    return sorted(sorted(group) for group in groups if len(group) > 1)


def finished(graph: Imports, start: str, seen: set[str]) -> list[str]:
    """Return the modules that are reached and were not seen before, in the order in which a depth-first search leaves them."""
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


class TestCycles:
    @pytest.mark.parametrize(
        ("graph", "found"),
        [
            ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
            ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, [["a", "b"]]),
            (
                {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}},
                [["a", "b", "c"], ["d", "e"]],
            ),
        ],
    )
    def test_groups_are_found(self, graph, found) -> None:
        """Modules that reach each other form one group."""
        assert cycles(graph) == found

    def test_there_is_none(self) -> None:
        """No two modules import each other, directly or through others: not for types and not inside functions either."""
        graph = imports()
        assert len(graph) > 300
        assert "stepprof.instrument.context" in graph["stepprof.instrument.step"]
        assert cycles(graph) == []

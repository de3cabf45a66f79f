"""Check an adapter against an installed framework without importing it: `stepprof doctor` reads its source.

Importing a framework takes seconds and may start a device. A name is found where its module defines
it, or where the module imports it from another one of the same framework.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import NamedTuple

from stepprof.integrations.adapter import Adapter, is_tested
from stepprof.interrupts import ours

DEEPEST = 8
"""The maximum number of modules through which a name is followed."""


class AdapterLine(NamedTuple):
    """What an adapter would do in this environment.

    Args:
        name: of the adapter.
        version: of the framework; None: it is not installed.
        status: ``attaches``, ``untested``, ``name_missing`` or ``not_installed``.
        reason: why it is not ``attaches``.
    """

    name: str
    version: str | None
    status: str
    reason: str | None


def check(adapter: Adapter) -> AdapterLine:
    """Return what an adapter would do with the framework that is installed here."""
    version = adapter.version()
    if version is None or _source(adapter.module) is None:
        return AdapterLine(adapter.name, version, "not_installed", None)
    missing = missing_in_source(adapter)
    if missing:
        return AdapterLine(adapter.name, version, "name_missing", f"not found: {', '.join(missing)}")
    if not is_tested(adapter, version):
        return AdapterLine(adapter.name, version, "untested", f"tested with {adapter.tested}")
    return AdapterLine(adapter.name, version, "attaches", None)


def missing_in_source(adapter: Adapter) -> list[str]:
    """Return the names and parameters that the framework's source lacks, in words; [] if none."""
    missing = []
    for need, parameters in adapter.needs.items():
        module, _, name = need.partition(":")
        found = _find(module, name.split("."), DEEPEST)
        if found is None:
            missing.append(need)
        else:
            missing += [f"{need}({each})" for each in parameters if each not in _accepted(found)]
    return missing


def _source(module: str) -> Path | None:
    """Return the file of a module; its packages are not imported."""
    top, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ours(ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        place = Path(folder, *parts)
        for path in (place.with_suffix(".py"), place / "__init__.py") if parts else (place / "__init__.py",):
            if path.is_file():
                return path
    return None


def _find(module: str, names: list[str], depth: int) -> ast.AST | None:
    path = _source(module)
    if path is None or not depth:
        return None
    scope: ast.AST = ast.parse(path.read_bytes())
    for position, name in enumerate(names):
        found = _member(scope, name)
        if isinstance(found, ast.ImportFrom):
            origin = _imported_from(module, found, is_package=path.name == "__init__.py")
            original = next(each.name for each in found.names if name in (each.asname, each.name))
            return _find(origin, [original, *names[position + 1 :]], depth - 1)
        if found is None:
            return scope if name == "__init__" and isinstance(scope, ast.ClassDef) else None
        scope = found
    return scope


def _member(scope: ast.AST, name: str) -> ast.AST | None:
    for node in ast.walk(scope) if isinstance(scope, ast.Module) else ast.iter_child_nodes(scope):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(each, ast.Name) and each.id == name for each in targets):
            return node
        if isinstance(node, ast.ImportFrom) and any(
            (each.asname or each.name) == name for each in node.names
        ):
            return node
    return None


def _imported_from(module: str, node: ast.ImportFrom, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


def _accepted(found: ast.AST) -> set[str]:
    """Return the parameters of a function; of a class, those of `__init__` and the fields of a dataclass."""
    if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
        given = found.args
        return {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    names: set[str] = set()
    for node in ast.iter_child_nodes(found):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            names |= _accepted(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names

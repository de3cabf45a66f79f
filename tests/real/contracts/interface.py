"""Extract the interface of a framework without a wheel: the names and parameters of the modules
that an adapter uses.

It is made from a clone. The last commit is read, not the files:

    python -m tests.real.contracts.interface CLONE owner/name module … > tests/real/contracts/interfaces/NAME.json
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepprof.integrations.adapter import Adapter

TIMERS = ("Timer", "timer", "time", "inverse_timer", "start", "end", "stop", "marked_timer", "simple_timer")
"""Functions and methods whose first argument, or whose argument `name`, is the name of a timer."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def interface(clone: str, source: str, modules: list[str]) -> dict[str, Any]:
    """Return the interface of modules at the last commit of a clone.

    ``modules`` has the parameters of each function, method and class of a module. A class also
    lists its attributes, and a constant has no entries. ``timers`` has the names of the timers that
    a module starts.
    """
    commit, date = git(clone, "log", "-1", "--format=%H %cs").split()
    trees = {module: ast.parse(_text(clone, module)) for module in modules}
    return {
        "source": source,
        "commit": commit,
        "date": date,
        "modules": {module: dict(_definitions(tree)) for module, tree in trees.items()},
        "timers": {module: found for module, tree in trees.items() if (found := _timers(tree))},
    }


def load(name: str) -> dict[str, Any]:
    """Return a committed interface."""
    found: dict[str, Any] = json.loads(
        Path(__file__).with_name("interfaces").joinpath(f"{name}.json").read_text()
    )
    return found


def missing_in_interface(adapter: Adapter, found: dict[str, Any]) -> list[str]:
    """Return the names and parameters that an adapter needs and an interface lacks; [] if none."""
    missing = []
    for need, parameters in adapter.needs.items():
        module, _, name = need.partition(":")
        names = found["modules"].get(module, {})
        if name not in names:
            missing.append(need)
        else:
            missing += [f"{need}({each})" for each in parameters if each not in names[name]]
    return missing


def git(clone: str, *arguments: str) -> str:
    """Return what git prints."""
    return subprocess.run(
        ["git", "-C", clone, *arguments], stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def _text(clone: str, module: str) -> str:
    path = module.replace(".", "/")
    known = git(clone, "ls-tree", "--name-only", "HEAD", f"{path}.py", f"{path}/__init__.py").split()
    if not known:
        raise SystemExit(f"module = {module}: must be one of the clone's")
    return git(clone, "show", f"HEAD:{known[0]}")


def _definitions(scope: ast.AST, prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, Function):
            yield prefix + node.name, _parameters(node)
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name, _of_class(node)
            yield from _definitions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign) and not prefix:
            yield from ((each.id, []) for each in node.targets if isinstance(each, ast.Name))
        elif isinstance(node, ast.If | ast.Try | ast.ExceptHandler):
            yield from _definitions(node, prefix)


def _parameters(node: Function) -> list[str]:
    given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    return [each.arg for each in given if each.arg not in ("self", "cls")]


def _of_class(node: ast.ClassDef) -> list[str]:
    """Return the arguments, fields and instance attributes of a class, in this order and once each."""
    built = [each for each in node.body if isinstance(each, Function) and each.name == "__init__"]
    fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
    fields += [each for assign in node.body if isinstance(assign, ast.Assign) for each in assign.targets]
    assigned = [
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
        if isinstance(each.value, ast.Name) and each.value.id == "self"
    ]
    names = [each.id for each in fields if isinstance(each, ast.Name)]
    return list(dict.fromkeys([*(each for one in built for each in _parameters(one)), *names, *assigned]))


def _timers(tree: ast.AST) -> list[str]:
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    timed = [each for each in calls if getattr(each.func, "attr", getattr(each.func, "id", None)) in TIMERS]
    named = [keyword.value for each in timed for keyword in each.keywords if keyword.arg == "name"]
    first = [*named, *(each.args[0] for each in timed if each.args)]
    return sorted(
        {each.value for each in first if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    )


if __name__ == "__main__":
    print(json.dumps(interface(sys.argv[1], sys.argv[2], sys.argv[3:]), indent=1))

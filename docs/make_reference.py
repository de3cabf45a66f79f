"""Write docs/reference.md from the docstrings of the public names.

python docs/make_reference.py
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stepprof

PAGE = Path(__file__).with_name("reference.md")
HEAD = """# Python API

Written by `python docs/make_reference.py` from the docstrings; a test holds that it is current. Keys of the configuration are in [configuration.md](configuration.md).
"""
MODULES = {
    "stepprof": (
        "What a training loop and a script import.",
        tuple(name for name in stepprof.__all__ if name != "errors"),
    ),
    "stepprof.analysis.data.run": ("A run as `stepprof.open_run` returns it.", ("Run", "RecordedStep")),
    "stepprof.analysis.data.table": ("A table of a run, and its columns.", ("Table",)),
    "stepprof.analysis.data.schema": ("", ("Column",)),
    "stepprof.errors": ("Every exception that stepprof raises.", ()),
    "stepprof.run.runs": (
        "Find the runs of a folder and the steps of a run.",
        ("find_run", "list_runs", "read_run", "steps"),
    ),
    "stepprof.run.manifest": ("Read what was recorded in a step.", ("read_step",)),
    "stepprof.run.spans": ("Read the spans of a run.", ("read_spans",)),
    "stepprof.remote.vllm": (
        "Build a vLLM engine that can be recorded.",
        ("engine_args", "serve_args", "environment"),
    ),
    "stepprof.backends.nsys": ("Start a process under Nsight Systems.", ("nsys_command", "ray_runtime_env")),
    "stepprof.backends.base": (
        "For authors of a backend.",
        ("Backend", "Export", "Busy", "ExportError", "Incomplete"),
    ),
    "stepprof.remote.base": ("For authors of a driver for another kind of engine.", ()),
    "stepprof.remote.attach": ("", ("check_options",)),
    "stepprof.remote.artifacts": ("", ("adopt",)),
    "stepprof.remote.loop": ("", ("in_thread", "on_loop")),
}
"""For each module what it is for, and its names on the page; none: all of its `__all__`."""
MEMBERS = {
    "Engine": ("name", "status"),
    "Run": ("id", "path", "info", "steps", "spans", "recorded", "step"),
    "Session": ("rank", "shutdown"),
}
"""Classes of which a caller needs only some members."""
OPTIONS = {
    "Config": "top-level",
    "EngineOptions": "engine",
    "MemoryOptions": "memory",
    "NpuOptions": "npu",
    "NsysOptions": "nsys",
    "OtelOptions": "otel",
    "RolePolicy": "roles",
    "Schedule": "schedule",
    "TorchOptions": "torch",
    "WatchOptions": "watch",
}
"""Classes whose fields are keys of the configuration, with the heading of configuration.md that lists them."""
_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
ONE_LINE = 100
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields):$")
_ITEM = re.compile(r"^(\*{0,2}\w[\w, *]*): (.*)$")


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for module, (purpose, names) in MODULES.items():
        parts.append(f"## `{module}`\n" + (f"\n{purpose}\n" if purpose else ""))
        found = importlib.import_module(module)
        parts += [entry(name, getattr(found, name)) for name in names or found.__all__]
    return "\n".join(parts)


def entry(name: str, value: Any) -> str:
    """Return the heading, the signature and the docstring of one public name."""
    heading = f"### `{name}`\n\n"
    if not callable(value) or isinstance(value, str) or not hasattr(value, "__module__"):
        return heading
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return f"{heading}```python\n{name} = {_plain(value)}\n```\n"
    node = _node(value)
    text = f"{heading}```python\n{_signature(name, node)}\n```\n\n{prose(inspect.getdoc(value) or '')}"
    if name in OPTIONS:
        return f"{text}\nFields: [configuration.md](configuration.md#{OPTIONS[name]}).\n"
    return text + "".join(_members(node)) if isinstance(node, ast.ClassDef) else text


def prose(docstring: str) -> str:
    """Return a docstring as Markdown: sections as lists, examples as blocks."""
    lines: list[str] = []
    section = example = False
    for line in docstring.replace("``", "`").splitlines():
        if line.startswith(">>>") and not example:
            lines.append("```pycon")
            example = True
        if example and not line.strip():
            lines.append("```")
            example = False
        if _SECTION.match(line):
            section = True
            lines += [f"**{line[:-1]}**", ""]
        elif section and line.startswith("    ") and not example:
            item = textwrap.dedent(line) if line[4:5] != " " else f"  {line.strip()}"
            lines.append(_ITEM.sub(r"- `\1`: \2", item) if item[0] != " " else item)
        else:
            section = section and not line.strip()
            lines.append(line)
    return "\n".join([*lines, "```"] if example else lines) + "\n"


def _node(value: Any) -> _Definition:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    assert isinstance(node, _Definition)
    return node


def _signature(name: str, node: _Definition) -> str:
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, node.bases))
        return f"class {name}({bases}): ..." if bases else f"class {name}: ..."
    arguments = ast.unparse(node.args)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    keyword = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    whole = f"{keyword} {name}({arguments}){returns}: ..."
    if len(whole) <= ONE_LINE:
        return whole
    rows = "".join(f"    {each},\n" for each in _arguments(node.args))
    return f"{keyword} {name}(\n{rows}){returns}: ..."


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    """Each argument with its default, as one line of a signature."""
    text = ast.unparse(arguments)
    depth, start = 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
    yield text[start:].strip()


def _members(node: ast.ClassDef) -> Iterator[str]:
    """The public attributes and documented methods of a class: attributes first."""
    fields, methods = [], []
    for each, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(each, ast.AnnAssign) and not ast.unparse(each.target).startswith("_"):
            fields.append(f"- `{ast.unparse(each)}`{_remark(following)}\n")
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and _is_public(node, each):
            decorators = "".join(f"@{ast.unparse(decorator)}\n" for decorator in each.decorator_list)
            methods.append(f"\n#### `{node.name}.{each.name}`\n\n")
            methods.append(f"```python\n{decorators}{_signature(each.name, each)}\n```\n\n")
            methods.append(prose(ast.get_docstring(each) or ""))
    if fields and node.name not in MEMBERS:
        yield "\n"
        yield from fields
    yield from methods


def _is_public(owner: ast.ClassDef, method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    documented = ast.get_docstring(method) is not None and not method.name.startswith("_")
    return documented and method.name in MEMBERS.get(owner.name, (method.name,))


def _remark(node: ast.stmt | None) -> str:
    """The string below an attribute."""
    value = getattr(getattr(node, "value", None), "value", None)
    if not isinstance(node, ast.Expr) or not isinstance(value, str):
        return ""
    return f": {' '.join(inspect.cleandoc(value).replace('``', '`').split())}"


def _plain(value: object) -> str:
    return str(value).replace("typing.", "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

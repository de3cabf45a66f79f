"""Write the fields of report.json into docs/agents.md.

python docs/make_agents.py
"""

from __future__ import annotations

import ast
import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path

from stepprof.analysis.report import schema

PAGE = Path(__file__).with_name("agents.md")
_FIELDS = re.compile(r"(?<=<!-- fields -->\n).*?(?=<!-- end -->)", re.DOTALL)
_JSON = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_UNITS = {
    "share": "0 to 1",
    "busy_share": "0 to 1",
    "below_half": "0 to 1",
    "limit": "share of A",
    "peak_batch": "sequences",
    "mean_batch": "sequences",
    "curve": "s, sequences",
    "estimates": "iterations, s",
    "bytes": "bytes",
    "peak_bytes": "bytes",
    "start": "s, point in time",
    "end": "s, point in time",
    "at": "s, point in time",
    "Overhead.start": "s",
    **dict.fromkeys(
        (f"SampleSeconds.{each}" for each in ("mean", "median", "p95", "longest")), "s, or tokens"
    ),
}
"""Units that do not follow from a field's name and type."""


def tables() -> str:
    """Return a section for each struct of a report, then of a comparison, in Markdown."""
    kinds = list(dict.fromkeys([*reached(schema.Report), *reached(schema.Comparison)]))
    return "\n".join(map(section, kinds))


def reached(kind: type) -> Iterator[type]:
    """Return a struct and those in its fields, in order."""
    yield kind
    for hint in typing.get_type_hints(kind).values():
        for inner in _structs(hint):
            yield from reached(inner)


def section(kind: type) -> str:
    """Return the heading, the meaning and the fields of a struct."""
    about = documented(kind)
    rows = ["| field | type | unit | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{name}` | {written(hint)} | {unit(kind, name, hint)} | {about[name]} |"
        for name, hint in typing.get_type_hints(kind).items()
    ]
    return "\n".join([f"### `{kind.__name__}`\n", f"{_line(kind.__doc__ or '')}\n", *rows, ""])


def documented(kind: type) -> dict[str, str]:
    """Return the docstring of each field."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: _line(text.value.value)
        for field, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def written(hint: object) -> str:
    """Return a type in the words of JSON."""
    if hint in _JSON:
        return _JSON[typing.cast(type, hint)]
    inner = [each for each in typing.get_args(hint) if each is not ...]
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        return " or ".join(map(written, inner))
    if origin is list:
        return f"list of {written(inner[0])}"
    if origin is tuple:
        return f"[{', '.join(map(written, inner))}]"
    if origin is dict:
        return f"object of {written(inner[1])}"
    name = typing.cast(type, hint).__name__
    return f"[{name}](#{name.lower()})"


def unit(kind: type, name: str, hint: object) -> str:
    """Return the unit of a field: from its name, or seconds for a number."""
    for known in (f"{kind.__name__}.{name}", name):
        if known in _UNITS:
            return _UNITS[known]
    if name.endswith("_ns"):
        return "ns"
    return "s" if "number" in written(hint) else ""


def _structs(hint: object) -> Iterator[type]:
    for each in typing.get_args(hint):
        yield from _structs(each)
    if isinstance(hint, type) and hint.__module__.startswith("stepprof."):
        yield hint


def _line(text: str) -> str:
    """Return a docstring as one line of Markdown, with the words of JSON."""
    line = " ".join(text.split()).replace("``", "`").replace("|", r"\|")
    return re.sub(r"\bNone\b", "null", line).replace("False:", "false:")


def updated(page: str) -> str:
    """Return the page with the fields as they are now."""
    return _FIELDS.sub(lambda _: tables(), page)


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

"""The table of log events, the logger's calls, and the page that shows the table."""

from __future__ import annotations

import ast
import re
import runpy
import string
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import stepprof
from stepprof.log.events import BOUND, EVENTS

PACKAGE = Path(stepprof.__file__).parent


class Call(NamedTuple):
    """A call of the logger."""

    where: str
    level: str
    event: str | None
    fields: set[str]


def calls_in(path: Path) -> Iterator[Call]:
    """Yield each call of the logger in a module."""
    text = path.read_text()
    if "logger" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of, level = ast.unparse(node.func.value), node.func.attr
            if of == "logger" and level in ("debug", "info", "warning", "notice"):
                event = getattr(node.args[0], "value", None) if node.args else None
                names = {keyword.arg for keyword in node.keywords if keyword.arg not in (None, "loud")}
                yield Call(
                    f"{path.relative_to(PACKAGE)}:{node.lineno}",
                    "info" if level == "notice" else level,
                    event,
                    names,
                )


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    """Return each call of the logger in the package."""
    return [call for path in sorted(PACKAGE.rglob("*.py")) for call in calls_in(path)]


class TestTable:
    def test_each_call_names_an_event_at_its_level_with_its_fields(self, calls):
        """Each call has an event of the table as a literal, at the level of the
        event and with its fields only.
        """
        assert len(calls) > 100
        for call in calls:
            assert call.event in EVENTS, call
            event = EVENTS[call.event]
            assert call.level == event.level, call
            assert call.fields <= {*event.fields.split(), *BOUND}, call

    def test_every_event_is_used(self, calls):
        """Each event in the table is used by a call."""
        assert {call.event for call in calls} == set(EVENTS)

    @pytest.mark.parametrize("name", EVENTS)
    def test_an_event(self, name):
        """The name of an event is `area.verb`, and its sentence contains only fields that it has."""
        event = EVENTS[name]
        assert re.fullmatch(r"[a-z_]+\.[a-z_]+", name)
        named = {field for _, field, _, _ in string.Formatter().parse(event.sentence) if field}
        assert named <= {*event.fields.split(), *BOUND}
        assert not event.sentence.endswith(".")

    def test_no_module_keeps_the_logger_under_another_name(self):
        """No module uses the logger under another name, because such calls would not be checked."""
        for path in PACKAGE.rglob("*.py"):
            text = path.read_text()
            assert not re.search(
                r"logger as |= logger\b|logger\.(debug|info|warning|notice)\b(?!\()", text
            ), path


class TestPage:
    def test_the_page_is_current(self):
        """The page equals the table. `python docs/make_events.py` updates it."""
        made = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "make_events.py"))
        page = made["PAGE"].read_text()
        assert page == made["updated"](page)

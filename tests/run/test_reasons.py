"""Codes decide how an entry is read. Messages are for people, so that rewording one changes nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import ended_writer

import stepprof
from stepprof.host.process_identity import writer_identity
from stepprof.run.fragments import read_engine, read_window
from stepprof.run.reasons import ReasonCode, is_pending
from stepprof.run.summary import without_references

PACKAGE = Path(stepprof.__file__).parent
ENGINE = {"role": "rollout", "replica": 0, "name": "e", "status": "joined"}


class TestIsPending:
    def test_an_entry_of_an_older_version(self) -> None:
        """Without `pending`, an entry with the status `lost` is pending, and one
        with another status is final.
        """
        assert is_pending({"status": "lost"})
        assert not is_pending({"status": "failed"})

    def test_the_pending_field_decides_for_any_outcome(self) -> None:
        """If an entry has `pending`, its status does not matter."""
        assert is_pending({"status": "failed", "pending": True})
        assert not is_pending({"status": "lost", "pending": False})


@pytest.mark.parametrize("read", [read_window, read_engine])
@pytest.mark.parametrize("text", ["the process ended", "export: nothing", "any words", None])
class TestReading:
    def test_a_pending_entry_of_a_living_writer_is_being_recorded(self, read, text) -> None:
        """While the writer lives, a pending entry is recording and a final one is
        lost, whatever the message says.
        """
        entry = {"rank": 0, "status": "lost", "error": text, "stop_seconds": 1.0}
        found, _ = read({**entry, "pending": True, "reason_code": "recording"}, writer_identity())
        assert (found["status"], found["error"], found["reason_code"]) == ("recording", None, None)
        found, _ = read({**entry, "pending": False, "reason_code": "export_failed"}, writer_identity())
        assert (found["status"], found["error"], found["reason_code"]) == ("lost", text, "export_failed")

    def test_once_it_has_ended(self, read, text) -> None:
        """After the writer's end, the entry is lost and no longer pending."""
        found, _ = read({"rank": 0, "status": "lost", "error": text, "pending": True}, ended_writer())
        assert (found["status"], found["pending"]) == ("lost", False)

    def test_damaged_fields(self, read, text) -> None:
        """A damaged field is a problem, and the entry is read as if the field were missing."""
        entry = {"rank": 0, "status": "lost", "error": text, "pending": "no", "reason_code": 5}
        found, problems = read(entry, ended_writer())
        assert (found["pending"], found["reason_code"], len(problems)) == (False, None, 2)


class TestDrivenElsewhere:
    @pytest.mark.parametrize("text", ["driven by another process", "any words", None])
    def test_an_engine_is_counted_once(self, text) -> None:
        """If several processes attached an engine, the entry of the process that drives it
        counts, whatever the messages say.
        """
        mine, _ = read_engine({**ENGINE, "status": "complete"}, None)
        theirs, _ = read_engine({**ENGINE, "reason_code": "driven_elsewhere", "error": text}, None)
        assert without_references([mine, theirs]) == [mine]


class TestDocs:
    def test_every_code_is_explained(self) -> None:
        """`docs/manifest.md` explains every reason code."""
        page = Path(__file__).parents[2] / "docs" / "manifest.md"
        text = page.read_text(encoding="utf-8")
        assert [code.value for code in ReasonCode if f"| `{code.value}` |" not in text] == []


THEIRS = {
    "backend extension": "torch",
    "not in progress": "SGLang",
}
"""Messages of other programs, which have no codes."""
FIELDS = {"error", "reason", "note", "status", "problem", "detail", "message", "outcome", "last_error"}
"""Names of fields and variables that hold messages for people."""
TESTS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition"}


def named(node: ast.AST) -> Iterator[str]:
    """Yield the names of variables and attributes and the strings in a node."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def sentences(node: ast.AST, constants: dict[str, str]) -> set[str]:
    """Return the strings of several words in a node, constants included."""
    texts = {constants.get(name, name) for name in named(node)}
    return {text for text in texts if " " in text} - set(THEIRS)


def compared(tree: ast.AST, constants: dict[str, str]) -> Iterator[tuple[int, set[str]]]:
    """Yield the lines that compare a field for people with a string of several words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            asked = any(isinstance(each, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for each in node.ops)
        else:
            asked = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in TESTS
            )
        if asked and FIELDS.intersection(named(node)) and (texts := sentences(node, constants)):
            yield node.lineno, texts


def constants_of(tree: ast.Module) -> dict[str, str]:
    """Return the string constants of a module by name."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            found.update({t.id: node.value.value for t in node.targets if isinstance(t, ast.Name)})
    return {name: value for name, value in found.items() if isinstance(value, str)}


class TestSources:
    def test_the_code_compares_no_messages(self) -> None:
        """No code compares a message with a sentence, given as a literal or as a constant."""
        trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
        constants = {name: text for tree in trees.values() for name, text in constants_of(tree).items()}
        found = [
            f"{path.relative_to(PACKAGE)}:{line}: {sorted(texts)}"
            for path, tree in trees.items()
            for line, texts in compared(tree, constants)
        ]
        assert found == []

    @pytest.mark.parametrize(
        "line",
        [
            'if entry["error"] == "the process ended": pass',
            'if entry.get("error") in (LOST, None): pass',
            'if str(outcome["error"]).startswith("another file"): pass',
            'if "not here" in finding.detail: pass',
        ],
    )
    def test_comparisons_of_messages_are_found(self, line) -> None:
        """Comparisons of this kind, which the code once contained, are found."""
        assert len(list(compared(ast.parse(line), {"LOST": "the process ended"}))) == 1

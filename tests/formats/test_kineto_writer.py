"""The pass over an exported trace, for the three layouts that torch's exporters write."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stepprof.formats import kineto_text, kineto_writer
from stepprof.formats.chrome_events import encoded
from stepprof.formats.kineto_writer import TraceFileError, escaped, finish, inspect, marked
from stepprof.run.model import Annotation

BASE = 1_790_857_026_000_000_000


def classic(*names: str, metadata: str = "", tail: str = '],"traceName": "/tmp/x.json" }') -> str:
    """Return a trace as Kineto writes it, with names that are not escaped."""
    events = ",".join(
        f'\n  {{\n    "ph": "X",\n    "cat": "cpu_op",\n    "name": "{name}",\n    "pid": 7,\n    "tid": 7,\n'
        f'    "ts": {number}.000,\n    "dur": 0.340\n    ,\n    "args": {{\n      "External id": {number}\n    }}\n  }}'
        for number, name in enumerate(names)
    )
    return (
        f'{{\n    "schemaVersion": 1,\n    "deviceProperties": [],\n{metadata}    "displayTimeUnit": "ms",\n'
        f'    "baseTimeNanoseconds": {BASE},\n    "traceEvents": [{events}\n  {tail}'
    )


COMPACT = (
    f'{{\n"schemaVersion": 1,\n"baseTimeNanoseconds": {BASE},\n"traceEvents": [\n'
    '{"ph":"X","cat":"cpu_op","name":"a \\"quoted\\" op","pid":7,"tid":7,"ts":1.000,"dur":2.000}\n],\n"traceName": "/tmp/x.json"\n}\n'
)
OLD = (
    '{\n  "schemaVersion": 1,\n  "traceEvents": [\n  {\n    "ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 7,\n'
    '    "ts": 1, "dur": 2\n  }\n  ],\n  "traceName": "/tmp/x.json",\n  "displayTimeUnit": "ms",\n'
    f'  "baseTimeNanoseconds": {BASE}\n}}\n'
)


def note(name: str = "reward", kind: str = "region", **fields: Any) -> Annotation:
    values: dict[str, Any] = {
        "start_unix_ns": BASE + 1_500,
        "end_unix_ns": BASE + 2_501,
        "thread": 7,
        "attributes": {},
    }
    return Annotation(name=name, kind=kind, **(values | fields))


def finished(
    folder: Path,
    text: str,
    *annotations: Annotation,
    metadata: Mapping[str, object] | None = None,
    marks: bool = False,
) -> tuple[kineto_writer.Finished, str]:
    raw, final = folder / "raw.json", folder / "out.gz"
    raw.write_text(text)
    done = finish(
        raw,
        final,
        name="step-000002/actor/rank-0.trace.json.gz",
        pid=7,
        metadata=metadata or {"step": 2, "role": "actor"},
        annotations=annotations,
        marks=marks,
    )
    assert done.bytes == final.stat().st_size
    return done, gzip.decompress(final.read_bytes()).decode()


class TestFinish:
    @pytest.mark.parametrize(
        "text", [classic("aten::add", "aten::mul"), COMPACT, OLD], ids=["classic", "compact", "old"]
    )
    def test_stamps_and_annotates_every_shape(self, tmp_path: Path, text: str) -> None:
        """The file gets the metadata, the annotations and the artifact's name. The result counts
        its events.
        """
        done, written = finished(tmp_path, text, note(), note("synced", "mark"), note("q", "counter"))
        trace = json.loads(written)
        assert done.problem is None
        assert done.events == len(trace["traceEvents"])
        assert trace["stepprof"] == {"step": 2, "role": "actor"}
        assert trace["traceName"] == "step-000002/actor/rank-0.trace.json.gz"
        assert trace["baseTimeNanoseconds"] == BASE
        assert [event["ph"] for event in trace["traceEvents"]][:4] == ["b", "e", "i", "C"]

    def test_an_interval_is_an_async_pair_at_its_absolute_time(self, tmp_path: Path) -> None:
        """Begin and end share an id of their own. `ts` is relative to the base, in microseconds."""
        _, written = finished(
            tmp_path, classic("op"), note(attributes={"batch": 64}, error=True), note("other", "window")
        )
        first, end, second, _ = json.loads(written)["traceEvents"][:4]
        assert (first["ts"], end["ts"]) == (1.5, 2.501)
        assert (first["ph"], end["ph"], first["cat"]) == ("b", "e", "stepprof")
        assert first["id2"] == end["id2"] != second["id2"]
        assert first["args"] == {
            "step": 2,
            "role": "actor",
            "batch": 64,
            "error": True,
            "kind": "region",
        }
        assert second["args"]["kind"] == "window"

    def test_attributes_of_a_region_on_the_stack_have_their_own_category(self, tmp_path: Path) -> None:
        """The category `stepprof.attributes` prevents them from being counted as a second region."""
        _, written = finished(tmp_path, classic("op"), note(kind="attributes", attributes={"batch": 64}))
        begin, end = json.loads(written)["traceEvents"][:2]
        assert begin["cat"] == end["cat"] == "stepprof.attributes"
        assert begin["args"] == {"step": 2, "role": "actor", "batch": 64, "kind": "region"}

    def test_an_annotations_own_step_and_role_are_kept(self, tmp_path: Path) -> None:
        """The annotation of a joined window has its own step and role, not those of the capture."""
        _, written = finished(tmp_path, classic("op"), note(attributes={"step": 3, "role": "critic"}))
        args = json.loads(written)["traceEvents"][0]["args"]
        assert (args["step"], args["role"]) == (3, "critic")

    def test_a_counter_draws_its_value(self, tmp_path: Path) -> None:
        """A counter has its value only, or each of its finite numbers."""
        _, written = finished(
            tmp_path,
            classic("op"),
            note("queue", "counter", attributes={"value": 17, "step": 2, "text": "x"}),
            note("both", "counter", attributes={"a": 1.5, "b": 2, "c": True, "d": float("inf")}),
        )
        one, two = json.loads(written)["traceEvents"][:2]
        assert (one["args"], two["args"]) == ({"value": 17}, {"a": 1.5, "b": 2})

    def test_times_before_the_base_are_at_zero(self, tmp_path: Path) -> None:
        """Viewers drop an event with a negative `ts`, and an end before its begin breaks the pair.
        Both times become zero.
        """
        _, written = finished(tmp_path, classic("op"), note(start_unix_ns=BASE - 5, end_unix_ns=BASE - 9))
        assert [event["ts"] for event in json.loads(written)["traceEvents"][:2]] == [0, 0]

    def test_an_empty_capture(self, tmp_path: Path) -> None:
        """In a trace without events, annotations are inserted without a stray comma."""
        done, written = finished(tmp_path, classic(), note())
        assert len(json.loads(written)["traceEvents"]) == done.events == 2

    @pytest.mark.parametrize(
        "name",
        ['q"uote', '"', 'a", b', "back\\slash", "end\\", 'x"},{"ph":"X', 'é漢"'],
    )
    def test_repairs_names_that_kineto_did_not_escape(self, tmp_path: Path, name: str) -> None:
        """A quotation mark in a range's name makes torch's file invalid JSON. The pass repairs it
        and keeps the name.
        """
        done, written = finished(tmp_path, classic("before", name, "after"))
        events = json.loads(written)["traceEvents"]
        assert [event["name"].rstrip() for event in events] == ["before", name, "after"]
        assert done.events == 3

    @pytest.mark.parametrize(
        "name",
        ['q"uote', "back\\slash", "end\\", "new\nline", "tab\t", "\x01", "uni é 漢 😀", "nul\x00", "&#34;"],
    )
    def test_hostile_names_survive(self, tmp_path: Path, name: str) -> None:
        """Names that Kineto would damage are restored, on the stack as well as in annotations."""
        _, written = finished(
            tmp_path,
            classic(escaped(name), marked(name)),
            note(name, attributes={name: name}),
            metadata={"step": 2, "host": name},
            marks=True,
        )
        trace = json.loads(written)
        expected = (
            f"{name} " if name.endswith("\\") else name
        )  # viewers reject a file with a backslash at the end of a string
        assert [event["name"] for event in trace["traceEvents"]] == [expected] * 4
        assert trace["traceEvents"][3]["cat"] == "user_annotation"
        assert trace["traceEvents"][2]["cat"] == "cpu_op"
        assert trace["stepprof"]["host"] == expected
        assert trace["traceEvents"][0]["args"][expected] == expected
        assert "\\u00e9" not in written

    def test_an_escape_beyond_unicode_stays(self, tmp_path: Path) -> None:
        """Text that only looks like one of stepprof's escapes is unchanged."""
        _, written = finished(tmp_path, classic("&#9999999;"), marks=True)
        assert json.loads(written)["traceEvents"][0]["name"] == "&#9999999;"

    def test_invalid_metadata_is_dropped(self, tmp_path: Path) -> None:
        """Kineto breaks a metadata value that contains a quotation mark. This value is dropped;
        other metadata and the events are kept.
        """
        bad = '      "good": {"a": 1},\n      "bad": {"b": "q/"x"},\n'
        _, written = finished(tmp_path, classic("op", metadata=bad))
        trace = json.loads(written)
        assert (trace["good"], "bad" in trace) == ({"a": 1}, False)

    def test_large_files_are_cut_between_events(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No event, name or count is lost at the edges of blocks, however small they are."""
        monkeypatch.setattr(kineto_text, "_BLOCK", 301)
        names = [f'n"{i}' if i % 3 else marked(f"m{i}") for i in range(200)]
        done, written = finished(tmp_path, classic(*names), note(), marks=True)
        events = json.loads(written)["traceEvents"]
        assert [event["name"] for event in events[2:]] == [f'n"{i}' if i % 3 else f"m{i}" for i in range(200)]
        assert done.events == 202

    def test_a_line_longer_than_a_block(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file without line breaks is copied completely."""
        monkeypatch.setattr(kineto_text, "_BLOCK", 64)
        _, written = finished(tmp_path, COMPACT.replace("\n", ""))
        assert len(json.loads(written)["traceEvents"]) == 1

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            (classic("aten::add", "aten::mul")[:-200], "incomplete"),
            (classic("op", tail="] }"), "incomplete"),
            ('{"a": 1}', "no traceEvents"),
            (classic("op").replace(f'"baseTimeNanoseconds": {BASE},', ""), "no baseTimeNanoseconds"),
        ],
    )
    def test_an_unexpected_file_is_kept_unchanged(self, tmp_path: Path, text: str, problem: str) -> None:
        """A file with an unknown structure is compressed unchanged, and the result names the problem."""
        done, written = finished(tmp_path, text, note())
        assert written == text
        assert problem in str(done.problem)

    @pytest.mark.parametrize(
        ("text", "problem"), [("", "empty"), ("[]", "not a trace"), ("hello", "begins with")]
    )
    def test_files_without_a_trace_are_refused(self, tmp_path: Path, text: str, problem: str) -> None:
        """If the file contains no trace, the pass raises an error."""
        with pytest.raises(TraceFileError, match=problem):
            finished(tmp_path, text)

    def test_never_overwrites(self, tmp_path: Path) -> None:
        """The pass creates its output exclusively and raises an error if the file exists."""
        finished(tmp_path, classic("op"))
        with pytest.raises(FileExistsError):
            finished(tmp_path, classic("op"))

    def test_without_isal_the_file_is_the_same(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without isal, the pass uses the standard library to compress."""
        monkeypatch.setitem(sys.modules, "isal", None)
        _, written = finished(tmp_path, classic("op"))
        assert len(json.loads(written)["traceEvents"]) == 1


class TestInspect:
    def test_finds_the_parts(self, tmp_path: Path) -> None:
        """The offsets are those of the array's brackets, and the base is read from the file."""
        path = tmp_path / "x.json"
        path.write_text(classic("op"))
        shape, data = inspect(path), path.read_bytes()
        assert data[shape.events_at - 1 : shape.events_at] == b"["
        assert data[shape.end_at : shape.end_at + 1] == b"]"
        assert data[shape.key_at :].startswith(b'"traceEvents"')
        assert (shape.base_unix_ns, shape.problem, shape.empty) == (BASE, None, False)


class TestEncoded:
    def test_values_without_json_become_text(self) -> None:
        """Attributes are arbitrary objects of the user. None of them makes the file invalid."""

        class Rude:
            def __str__(self) -> str:
                raise ValueError("no")

        loop: list[object] = []
        loop.append(loop)
        value = {
            "nan": float("nan"),
            1: {"s": {2}},
            "x": Rude(),
            "loop": loop,
            "sur": "\ud800",
            "f": 1.5,
            "n": None,
        }
        result = json.loads(encoded(value))
        assert (result["nan"], result["1"], result["f"], result["n"]) == ("nan", {"s": [2]}, 1.5, None)
        assert result["x"] == "<Rude: ValueError>"
        assert result["sur"] == "?"

"""Span files become sources: one for each process, with the spans of one step."""

from __future__ import annotations

import json

from runs import make_run

from stepprof.analysis.timeline.find import find
from stepprof.analysis.timeline.load import load
from stepprof.analysis.timeline.model import Alignment, Origin
from stepprof.analysis.timeline.span_sources import read_spans_of, span_files
from stepprof.run.span_lines import parse_span

BASE = 1_700_000_000_000_000_000
HEADER = {"schema_version": 1, "kind": "spans", "rank": 0, "host": "h", "pid": 7}


def span(name="r", kind="region", start=0, dur=10, **more):
    return {
        "name": name,
        "kind": kind,
        "thread": 7,
        "task": None,
        "step": 2,
        "role": "actor",
        "start": BASE + start,
        "dur": dur,
        **more,
    }


def source_of(tmp_path, *spans, step=2, args=True, **options):
    file = tmp_path / "rank-0.000001.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in (HEADER, *spans)))
    return read_spans_of(
        [str(file)], step, Origin("spans", "s"), Alignment("ping-pong", 100, 1), args=args, **options
    )


def placed(source):
    return [
        (
            source.tracks[track].kind,
            source.tracks[track].name,
            source.names[name],
            int(start) - BASE,
            int(dur),
        )
        for track, name, start, dur in zip(
            source.slices.track, source.slices.name, source.slices.start, source.slices.duration, strict=True
        )
    ]


class TestSource:
    def test_invalid_utf8_is_replaced_and_reported(self, tmp_path):
        """Invalid UTF-8 in names and attributes, which a timeline copies, is replaced and counted."""
        file = tmp_path / "rank-0.000001.jsonl"
        lines = [json.dumps(line) for line in (HEADER, span("A"), span("b", attrs={"who": "B"}))]
        data = "\n".join([*lines, ""]).encode()
        file.write_bytes(data.replace(b'"A"', b'"\xff"').replace(b'"B"', b'"\xc3("'))
        source = read_spans_of([str(file)], 2, Origin("spans", "s"), Alignment("reference"), args=True)
        assert sorted(source.names) == ["b", "\ufffd"]
        assert any(json.loads(args)["who"] == "\ufffd(" for args in source.slices.args if b"who" in args)
        assert source.findings == ["rank-0.000001.jsonl: 2 bytes are not UTF-8: replaced by U+FFFD"]

    def test_threads_tasks_and_samples(self, tmp_path):
        """Spans of a thread are on its track, and coroutines, which overlap, on another. Spans of a
        sample are on the sample's track too.
        """
        source = source_of(
            tmp_path,
            span("w", "window", 0, 100),
            span("a", start=5),
            span("b", start=6, thread=8),
            span("c", start=7, task=99, attrs={"sample": "s1", "n": 3}),
            span("d", start=8, attrs={"sample": 4}),
            span("e", start=9, attrs={"of": "sample", "sample": ["no", "name"]}),
            span("f", start=10, attrs=["sample"]),
        )
        assert placed(source) == [
            ("thread", "main thread", "w", -100, 100),
            ("thread", "main thread", "a", -95, 10),
            ("thread", "thread 8", "b", -94, 10),
            ("async", "tasks", "c", -93, 10),
            ("sample", "s1", "c", -93, 10),
            ("thread", "main thread", "d", -92, 10),
            ("sample", "4", "d", -92, 10),
            ("thread", "main thread", "e", -91, 10),
            ("thread", "main thread", "f", -90, 10),
        ]

    def test_tasks_of_threads(self, tmp_path):
        """The coroutines of each thread have a track. The track of the window's thread has the
        plain name, whichever comes first.
        """
        spans = [
            span("a", start=5, thread=8, task=1),
            span("b", start=6, task=2),
            span("w", "window", 0, 100),
        ]
        rows = [place[:3] for place in placed(source_of(tmp_path, *spans))]
        assert rows == [
            ("async", "tasks of thread 8", "a"),
            ("async", "tasks", "b"),
            ("thread", "main thread", "w"),
        ]

    def test_evidence(self, tmp_path):
        """Garbage collections and the stacks of each thread have their own tracks, because they
        cross regions. The CPU time of a thread has none.
        """
        source = source_of(
            tmp_path,
            span("w", "window", 0, 100),
            span("gc", "gc", 3, 20, attrs={"generation": 2}),
            span("time.sleep", "stack", 5, 30, attrs={"frames": [["f", "a.py", 1]]}),
            span("lock.acquire", "stack", 5, 30, thread=8),
            span("thread", "usage", 0, 100, attrs={"samples": 4}),
        )
        assert placed(source) == [
            ("thread", "main thread", "w", -100, 100),
            ("async", "garbage collections", "gc", -97, 20),
            ("async", "stacks of thread 7", "time.sleep", -95, 30),
            ("async", "stacks of thread 8", "lock.acquire", -95, 30),
        ]
        run = source_of(tmp_path, span("gc", "gc", 3, 20, attrs={"count": 9, "busy": 2}))
        assert placed(run)[0][-1] == 2, "a run of short collections is as long as its pauses"
        assert json.loads(source.slices.args[2])["frames"] == [["f", "a.py", 1]]

    def test_arguments(self, tmp_path):
        """Step, role and kind come before the attributes. An attribute with one of these names
        replaces it.
        """
        source = source_of(
            tmp_path,
            span(attrs={"n": 3, "kind": "mine"}),
            span(error=True, role=None),
            span(attrs={"step": 1, "role": 2, "kind": 3}),
        )
        assert [json.loads(raw) for raw in source.slices.args] == [
            {"step": 2, "role": "actor", "n": 3, "kind": "mine"},
            {"step": 2, "kind": "region", "error": True},
            {"step": 1, "role": 2, "kind": 3},
        ]
        assert source_of(tmp_path, span(), args=False).slices.args is None

    def test_marks_and_counters(self, tmp_path):
        source = source_of(
            tmp_path,
            span("m", "mark", 3, 0),
            span("q", "counter", 4, 0, value=17),
            span("none", "counter", 4, 0, value=None),
        )
        assert [source.names[name] for name in source.instants.name] == ["m"]
        assert (source.instants.time - BASE).tolist() == [-97]
        assert source.counters.value.tolist() == [17.0]
        assert source.tracks[source.counters.track[0]].name == "q"

    def test_only_spans_of_the_step_and_roles_are_read(self, tmp_path):
        spans = [
            span("a"),
            span("b", step=22),
            span("c", step=None),
            span("d", role="critic"),
            span("e", role=None),
        ]
        assert [name for *_, name, _, _ in placed(source_of(tmp_path, *spans))] == ["a", "d", "e"]
        assert [name for *_, name, _, _ in placed(source_of(tmp_path, *spans, step=None))] == [
            "a",
            "b",
            "c",
            "d",
            "e",
        ]
        assert [name for *_, name, _, _ in placed(source_of(tmp_path, *spans, roles=("actor",)))] == [
            "a",
            "e",
        ]

    def test_values_without_json(self, tmp_path):
        """U+FFFD replaces a lone surrogate, and NaN becomes a string. `check` accepts such lines too."""
        spans = [
            span("caf\udce9", attrs={"loss": float("nan")}),
            span("q", "counter", 4, 0, value=float("inf")),
        ]
        source = source_of(tmp_path, *spans)
        assert placed(source) == [("thread", "thread 7", "caf\ufffd", -100, 10)]
        assert json.loads(source.slices.args[0])["loss"] == "NaN"
        assert (len(source.counters), source.findings) == (0, [])
        lines = (tmp_path / "rank-0.000001.jsonl").read_bytes().splitlines()
        assert [parse_span(line)["name"] for line in lines[1:]] == ["caf\ufffd", "q"]

    def test_damage(self, tmp_path):
        """Damaged lines are counted, except for an incomplete last line, which was being written."""
        file = tmp_path / "rank-0.000001.jsonl"
        lines = [
            json.dumps(HEADER),
            json.dumps(span("a")),
            '{"step": 2, oops',
            json.dumps(span(start=-(2**63))),
            json.dumps({"step": 2}),
            json.dumps(span("b")),
            '{"step": 2, "na',
        ]
        file.write_text("\n".join(lines))
        source = read_spans_of(
            [str(file), str(tmp_path / "no.jsonl")],
            2,
            Origin("spans", "s"),
            Alignment("reference"),
            args=True,
        )
        assert [name for *_, name, _, _ in placed(source)] == ["a", "b"]
        assert source.findings == [
            "3 damaged lines of rank-0.000001.jsonl ignored",
            "no.jsonl cannot be read: No such file or directory",
        ]


class TestFiles:
    def test_files_are_grouped_by_process(self, tmp_path):
        """The rolling files of one process form a group. Another process of the same rank is a
        separate group. The driver comes first.
        """

        def write(name, header):
            (tmp_path / name).write_text(json.dumps(header) + "\n" if header else "\n")

        write("rank-0.000001.jsonl", HEADER)
        write("rank-0.000002.jsonl", {**HEADER, "pid": 8})
        write("rank-0.000003.jsonl", HEADER)
        write("rank-10.000001.jsonl", {**HEADER, "rank": 10})
        write("rank-2.000001.jsonl", None)
        write("rank-driver.000001.jsonl", {**HEADER, "rank": "driver"})
        write("notes.txt", None)
        groups = span_files(tmp_path)
        assert [(group.rank, group.pid, [file.name for file in group.files]) for group in groups] == [
            ("driver", 7, ["rank-driver.000001.jsonl"]),
            (0, 7, ["rank-0.000001.jsonl", "rank-0.000003.jsonl"]),
            (0, 8, ["rank-0.000002.jsonl"]),
            (2, None, ["rank-2.000001.jsonl"]),
            (10, 7, ["rank-10.000001.jsonl"]),
        ]
        assert span_files(tmp_path / "none") == []

    def test_through_find_and_load(self, tmp_path):
        """The spans of a run are found next to its traces, and loaded."""
        from runs import record, region, write_spans

        run = make_run(tmp_path)
        record(run)
        write_spans(run, 0, region("update", 0.5))
        found = find([run.path], output_dir=tmp_path)
        spans = [each for each in found.inputs if each.origin.kind == "spans"]
        assert [placed(load(each, args=False)) for each in spans] == [
            [("thread", "thread 0", "update", 0, 500_000_000)]
        ]

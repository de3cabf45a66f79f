"""Reading the evidence of a step from span files, damaged ones included."""

from __future__ import annotations

import json

import pytest

from stepprof.run import evidence as module
from stepprof.run.evidence import Call, Frame, read_evidence
from stepprof.run.spans import read_spans

BEGIN = 1_700_000_000_000_000_000
SECOND = 10**9
HEADER = {"kind": "spans", "rank": 1, "host": "h", "pid": 7}
GC = {"generation": 2, "count": 1, "busy": SECOND, "collected": 5}
STACK = {"frames": [["f", "a.py", 3, True], ["g", "b.py", 4]], "call": "time.sleep", "calls": [["json.loads", "__init__.py"], [None, ""]], "samples": 4, "cpu": SECOND // 2, "run_queue": 0}  # fmt: skip
THREAD = {"samples": 40, "dropped": 1, "cpu": SECOND, "run_queue": SECOND}
PROCESS = {"read_bytes": 5, "write_bytes": 6, "collections_dropped": 0}


def line(kind, name="x", attrs=None, **more) -> dict:
    fields = {"thread": 9, "task": None, "step": 2, "role": "actor", "start": BEGIN, "dur": SECOND}
    return {"name": name, "kind": kind, **fields, "attrs": attrs, **more}


@pytest.fixture
def run(tmp_path):
    """Return a function that writes lines into a span file."""
    (tmp_path / "spans").mkdir()

    def write(*lines: object):
        texts = [each if isinstance(each, str) else json.dumps(each) for each in (HEADER, *lines)]
        (tmp_path / "spans" / "rank-1.000001.jsonl").write_text("\n".join(texts) + "\n")
        return tmp_path

    return write


ALL = (
    line("gc", attrs=GC),
    line("stack", attrs=STACK),
    line("usage", "thread", attrs=THREAD),
    line("usage", "process", attrs=PROCESS),
    line("region", "forward", attrs={"frames": 3}, cpu=SECOND // 4),
    line("region", "unrecorded"),
    line("window", "actor"),
)


class TestReading:
    def test_every_kind_of_evidence_is_read(self, run) -> None:
        """Each kind of evidence is read with its fields, with times in seconds."""
        findings: list = []
        [found] = read_evidence(run(*ALL), 2, findings=findings)
        assert findings == []
        assert (found.rank, found.host, found.pid) == (1, "h", 7)
        [pause], [stretch], [region], [thread], [capture] = (
            found.collections,
            found.stretches,
            found.regions,
            found.threads,
            found.captures,
        )
        assert (pause.seconds, pause.generation, pause.count, pause.collected) == (1.0, 2, 1, 5)
        assert stretch.frames == (Frame("f", "a.py", 3, own=True), Frame("g", "b.py", 4))
        assert stretch.calls == (Call("json.loads", "__init__.py"), Call(None, ""))
        assert (stretch.label, stretch.cpu_seconds, stretch.run_queue_seconds) == ("time.sleep", 0.5, 0.0)
        assert (region.name, region.cpu_seconds, region.thread) == ("forward", 0.25, 9)
        assert (thread.cpu_seconds, thread.run_queue_seconds, thread.dropped) == (1.0, 1.0, 1)
        assert (capture.read_bytes, capture.write_bytes) == (5, 6)

    def test_spans_are_without_it(self, run) -> None:
        """`read_spans` yields regions and windows, and no lines of evidence."""
        names = {span["name"] for span in read_spans(run(*ALL))}
        assert names == {"forward", "unrecorded", "actor"}

    def test_another_step_has_no_evidence(self, run) -> None:
        """No evidence is read for a step that has none."""
        assert read_evidence(run(*ALL), 3) == []

    def test_values_that_the_system_lacks_are_none(self, run) -> None:
        """A value that the system does not provide is None."""
        stack = {key: value for key, value in STACK.items() if key not in ("cpu", "run_queue")} | {
            "call": None
        }
        [found] = read_evidence(
            run(line("stack", attrs=stack), line("usage", "process", attrs={"collections_dropped": 0})), 2
        )
        assert (found.stretches[0].cpu_seconds, found.stretches[0].label) == (None, "f")
        assert found.captures[0].read_bytes is None


def without(attrs, key) -> dict:
    return {name: value for name, value in attrs.items() if name != key}


class TestDamage:
    @pytest.mark.parametrize(
        "damaged",
        [
            line("gc"),
            line("gc", attrs=[]),
            line("gc", attrs=[["generation", 1]]),
            line("gc", attrs="x"),
            line("gc", attrs={**GC, "busy": -1}),
            line("gc", attrs={**GC, "busy": 10**30}),
            line("gc", attrs={**GC, "count": True}),
            line("gc", attrs=without(GC, "generation")),
            line("gc", attrs=GC, thread=None),
            line("stack", attrs={**STACK, "calls": [["json.loads"]]}),
            line("stack", attrs={**STACK, "calls": [["json.loads", None]]}),
            line("stack", attrs={**STACK, "calls": 7}),
            line("stack", attrs={**STACK, "frames": []}),
            line("stack", attrs={**STACK, "frames": {}}),
            line("stack", attrs={**STACK, "frames": 7}),
            line("stack", attrs={**STACK, "frames": [["f", "a.py"]]}),
            line("stack", attrs={**STACK, "frames": [["f", None, 1]]}),
            line("stack", attrs={**STACK, "frames": [["f", "a.py", -1]]}),
            line("stack", attrs={**STACK, "frames": [["f", "a.py", 1, "own"]]}),
            line("stack", attrs={**STACK, "call": 5}),
            line("stack", attrs=without(STACK, "run_queue")),
            line("usage", "thread", attrs=without(THREAD, "samples")),
            line("usage", "process", attrs={**PROCESS, "read_bytes": "5"}),
            line("region", "forward", cpu=1, thread=None),
        ],
    )
    def test_a_line_is_left_out(self, run, damaged) -> None:
        """The damaged line is counted; the others are read."""
        findings: list = []
        [found] = read_evidence(run(damaged, *ALL), 2, findings=findings)
        assert [len(found.collections), len(found.stretches), len(found.regions)] == [1, 1, 1]
        assert findings == [{"file": "spans", "problem": "1 damaged line of evidence ignored"}]

    @pytest.mark.parametrize("cpu", [-1, 1.5, "1", None, 1 << 62])
    def test_a_wrong_cpu_time(self, run, cpu) -> None:
        """A region with an invalid CPU time is a damaged line."""
        findings: list = []
        [found] = read_evidence(run(line("region", "a", cpu=cpu), *ALL), 2, findings=findings)
        assert len(found.regions) == 1
        assert "1 damaged line ignored" in findings[0]["problem"]

    def test_large_content_is_bounded(self, run, monkeypatch) -> None:
        """The number of lines and of frames, and the length of strings, are limited."""
        monkeypatch.setattr(module, "MOST_LINES", 10)
        attrs = {**STACK, "frames": [["f" * 1000, "a" * 1000, 1]] * 100, "call": "c" * 10_000}
        [found] = read_evidence(run(*[line("stack", attrs=attrs)] * 20), 2)
        assert len(found.stretches) == 10
        assert len(found.stretches[0].frames) == module.DEEPEST
        assert len(found.stretches[0].label) == len(found.stretches[0].frames[0].function) == 255

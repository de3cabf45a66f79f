"""Merge and report of a real GPU trace: a small training step that torch 2.11 and CUDA 13.0
recorded on an H100 (`data/h100.trace.json.gz`).
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from timelines import Timeline

from stepprof.analysis.timeline.capture_window import CaptureWindow
from stepprof.analysis.timeline.cutting import cut
from stepprof.analysis.timeline.find import Input
from stepprof.analysis.timeline.lanes import bind_flows, lay_out
from stepprof.analysis.timeline.load import load
from stepprof.analysis.timeline.model import Origin, Source
from stepprof.cli.main import main

RECORDED = Path(__file__).parents[1] / "data" / "h100.trace.json.gz"
ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return Path(shutil.copy(RECORDED, tmp_path))


@pytest.fixture(scope="module")
def recorded() -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(RECORDED.read_bytes()), parse_float=Decimal)[
        "traceEvents"
    ]
    return events


def slices(events: list[dict[str, Any]], categories: set[str]) -> Counter[tuple[str, Decimal]]:
    """Return the names of slices with their durations in microseconds."""
    return Counter(
        (event["name"], Decimal(event["dur"]))
        for event in events
        if event["ph"] == "X" and event.get("cat") in categories
    )


def test_the_device_s_lanes(trace: Path, recorded: list[dict[str, Any]]) -> None:
    """Each kernel, copy and range of the device is in the timeline with its duration, on one lane
    for each of two streams. Each launch has its arrow.
    """
    output = trace.with_name("timeline.pftrace")
    assert main(["merge", str(trace), "--output", str(output)]) == 0
    merged = Timeline(output.read_bytes())
    for categories in (ON_DEVICE, {"gpu_user_annotation"}):
        assert Counter(
            (each["name"], Decimal(each["end"] - each["start"]) / 1000)
            for each in merged.slices
            if each["category"] in categories
        ) == slices(recorded, categories)
    assert len(slices(recorded, ON_DEVICE)) > 20
    lanes = {each["uuid"] for each in merged.slices if each["category"] in ON_DEVICE}
    assert len(lanes) == len({event["tid"] for event in recorded if event.get("cat") in ON_DEVICE}) == 2
    # torch wrote six ends of arrows at calls of CUDA that start nothing; each remaining arrow leads
    # from a launch to its kernel or copy
    ends = [{number: each["category"] for number, each in ends} for ends in merged.flows.values()]
    assert sum(end[48] in ON_DEVICE for end in ends) == 24
    assert slices(recorded, ON_DEVICE).total() == 24


def test_a_process_numbered_like_its_device(trace: Path, recorded: list[dict[str, Any]]) -> None:
    """In a container the process, thread, GPU and stream may all have the number 7. Each launch
    keeps its arrow, and the rows are unchanged.
    """
    whole = json.loads(gzip.decompress(trace.read_bytes()), parse_float=Decimal)
    for event in whole["traceEvents"]:
        if event["pid"] in (417, 0):
            event["pid"] = 7
        if event["tid"] == 417:
            event["tid"] = 7
    same = trace.with_name("same.trace.json")
    same.write_text(json.dumps(whole, default=float))
    sources = [load(Input(Origin("trace", path.name), (str(path),), 1), args=False) for path in (trace, same)]
    plain, renumbered = (arrows_of(source) for source in sources)
    assert plain == renumbered
    assert sum(plain.values()) == 24 + 7
    kinds = [sorted(track.kind for track in source.tracks) for source in sources]
    assert kinds[0] == kinds[1]


def arrows_of(source: Source) -> Counter[tuple[str, str]]:
    """Return the names of the slices at both ends of each drawn arrow."""
    layout = lay_out(source)
    bound = bind_flows(source.flows, layout)
    names = [source.names[name] for name in source.slices.name[layout.nesting.order].tolist()]
    return Counter((names[a], names[b]) for a, b in zip(bound.first, bound.last, strict=True))


def test_the_report(trace: Path, recorded: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """The report counts the calls of each kernel. The busy time of the device is the sum of its
    kernels and copies, since none of them overlap.
    """
    assert main(["report", str(trace), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (source,) = report["sources"]
    assert (source["role"], source["rank"], report["step"]) == ("actor", 0, 3)
    reported = {row["name"]: row["calls"] for row in report["kernels"]}
    named = Counter(event["name"] for event in recorded if event.get("cat") in ON_DEVICE)
    assert reported
    assert reported.items() <= named.items()
    (busy,) = (sum(seconds for _, seconds in each["busy"]) for each in report["gantt"])
    assert busy == pytest.approx(
        float(sum(Decimal(event["dur"]) for event in recorded if event.get("cat") in ON_DEVICE)) / 1e6,
        rel=1e-3,
    )


def test_the_kernels_of_a_window_are_those_that_its_forward_steps_launched(
    trace: Path, recorded: list[dict[str, Any]]
) -> None:
    """Forward pass and optimizer stand for two forward steps of an engine. The window ends during
    the first; its kernels begin when the host is already in the second.
    """
    steps = {"forward": "step[EXTEND bs=1 toks=3]", "Optimizer.step#SGD.step": "step[DECODE bs=1]"}
    content = json.loads(gzip.decompress(RECORDED.read_bytes()))
    for event in content["traceEvents"]:
        if event.get("cat") in ("user_annotation", "gpu_user_annotation"):
            event["name"] = steps.get(event["name"], event["name"])
    trace.write_bytes(gzip.compress(json.dumps(content).encode()))
    origin = Origin("engine", trace.name, "rollout", 0, 0, "h")
    source = load(Input(origin, (str(trace),), 1), args=False)
    began = {event["name"]: event["ts"] for event in recorded if event.get("cat") == "user_annotation"}
    base = content["baseTimeNanoseconds"]
    start, end = (base + int(time * 1000) for time in (began["update_actor"], began["forward"] + 5))
    made = cut(source, CaptureWindow(start, end, start, unsure=0)).source
    launched = {
        event["args"]["correlation"]: event["ts"]
        for event in recorded
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    expected = Counter(
        event["name"]
        for event in recorded
        if event.get("cat") in ON_DEVICE
        and launched[event["args"]["correlation"]] < began["Optimizer.step#SGD.step"]
    )
    on_device = {number for number, track in enumerate(made.tracks) if track.kind == "stream"}
    kept = [
        made.names[name]
        for name, track in zip(made.slices.name.tolist(), made.slices.track.tolist(), strict=True)
        if track in on_device
    ]
    assert Counter(kept) == expected

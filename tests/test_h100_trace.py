"""A trace of a small training step that torch 2.11 and CUDA 13.0 recorded on an H100 (`data/h100.trace.json.gz`): what merge and report make of a real GPU's file."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from timelines import chrome_events

from stepprof.cli import main

RECORDED = Path(__file__).parent / "data" / "h100.trace.json.gz"
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
    """Names with their durations in microseconds."""
    return Counter(
        (event["name"], Decimal(event["dur"]))
        for event in events
        if event["ph"] == "X" and event.get("cat") in categories
    )


def test_the_device_s_lanes(trace: Path, recorded: list[dict[str, Any]]) -> None:
    """Each kernel, copy and range of the device is in the timeline as long as it was, on a lane for each of the two streams; each launch has its arrow."""
    output = trace.with_name("timeline.json.gz")
    assert main(["merge", str(trace), "--format", "json", "--output", str(output)]) == 0
    merged = chrome_events(output.read_bytes())["traceEvents"]
    for categories in (ON_DEVICE, {"gpu_user_annotation"}):
        assert slices(merged, categories) == slices(recorded, categories)
    assert len(slices(recorded, ON_DEVICE)) > 20
    lanes = {(event["pid"], event["tid"]) for event in merged if event.get("cat") in ON_DEVICE}
    assert len(lanes) == len({event["tid"] for event in recorded if event.get("cat") in ON_DEVICE}) == 2
    # torch wrote six ends of arrows at calls of CUDA that start nothing: each arrow that is left is one from a launch to what it launched
    arrows = Counter(event["ph"] for event in merged if event.get("cat") == "ac2g")
    assert arrows == {"s": 24, "f": 24}
    assert slices(recorded, ON_DEVICE).total() == 24


def test_the_report(trace: Path, recorded: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """Kernels by their own time, and how long the device was busy: what they took, since none overlaps another here."""
    assert main(["report", str(trace), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (source,) = report["sources"]
    assert (source["role"], source["rank"], report["step"]) == ("actor", 0, 3)
    told = {row["name"]: row["calls"] for row in report["kernels"]}
    named = Counter(event["name"] for event in recorded if event.get("cat") in ON_DEVICE)
    assert told
    assert told.items() <= named.items()
    (busy,) = (sum(seconds for _, seconds in each["busy"]) for each in report["gantt"])
    assert busy == pytest.approx(
        float(sum(Decimal(event["dur"]) for event in recorded if event.get("cat") in ON_DEVICE)) / 1e6,
        rel=1e-3,
    )

"""Slices that were open when torch's profiler stopped."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from stepprof.analysis.timeline.find import find
from stepprof.analysis.timeline.load import load
from stepprof.analysis.timeline.model import Source

BASE = 1_700_000_000_000_000_000
STOP, PROCESSED = 100_000.0, 900_000.5
"""When the profiler stopped, and when it had processed its events [us]."""


def slice_(name: str, cat: str, ts: float, end: float, pid: Any = 1, tid: Any = 1) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": end - ts, "pid": pid, "tid": tid}


SPAN = slice_("PyTorch Profiler (0)", "Trace", 0, STOP, "Spans", "PyTorch Profiler")
MARK = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": PROCESSED}


def read(path: Path) -> Source:
    (wanted,) = find([path], output_dir=path.parent).inputs
    return load(wanted, args=False)


def ends(source: Source) -> dict[str, float]:
    """Return the end of each slice in microseconds of the trace."""
    slices = source.slices
    end = (slices.start + slices.duration - BASE) / 1e3
    return {source.names[name]: at for name, at in zip(slices.name.tolist(), end.tolist(), strict=True)}


@pytest.mark.parametrize(
    ("around", "expected"),
    [([SPAN, MARK], STOP), ([SPAN], PROCESSED), ([MARK], PROCESSED), ([], PROCESSED)],
    ids=["both", "span", "mark", "neither"],
)
def test_a_slice_that_was_open_ends_with_the_capture(
    around: list[dict[str, Any]], expected: float, tmp_path: Path
) -> None:
    """torch ends it when it has processed its events. Kernels may run after the stop, and slices end in it. Without torch's span or its
    mark, nothing is known of the stop.
    """
    slices = [
        slice_("open", "user_annotation", 50_000, PROCESSED - 0.001),
        slice_("after", "cpu_op", STOP + 10, PROCESSED),
        slice_("ended", "cpu_op", 60_000, STOP + 500),
        slice_("kernel", "kernel", 60_000, PROCESSED, 0, 7),
    ]
    content = {"schemaVersion": 1, "baseTimeNanoseconds": BASE, "traceEvents": [*slices, *around]}
    path = tmp_path / "a.pt.trace.json"
    path.write_text(json.dumps(content))
    found = ends(read(path))
    found.pop("PyTorch Profiler (0)", None)
    is_known = expected == STOP
    assert found == pytest.approx(
        {
            "open": expected if is_known else PROCESSED - 0.001,
            "after": STOP + 10 if is_known else PROCESSED,
            "ended": STOP + 500,
            "kernel": PROCESSED,
        },
        abs=0.01,
    )


def test_an_open_forward_step(tmp_path: Path) -> None:
    """The batch size ends with the capture too."""
    events = [
        slice_("step[DECODE bs=4]", "user_annotation", 1_000, 40_000),
        slice_("step[DECODE bs=4]", "user_annotation", 50_000, PROCESSED),
    ]
    content = {"schemaVersion": 1, "baseTimeNanoseconds": BASE, "traceEvents": [SPAN, *events, MARK]}
    path = tmp_path / "a.pt.trace.json"
    path.write_text(json.dumps(content))
    source = read(path)
    assert source.extent == (BASE, BASE + int(STOP * 1e3))
    assert source.counters.value.tolist()[-1] == 0


@pytest.mark.torch
def test_torch(tmp_path: Path) -> None:
    """An annotation around the stop of the profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    profiler = profile(activities=[ProfilerActivity.CPU])
    profiler.start()
    torch.ones(8).sum()
    with record_function("around the stop"):
        time.sleep(0.01)
        profiler.stop()
    path = tmp_path / "a.pt.trace.json"
    profiler.export_chrome_trace(str(path))
    source = read(path)
    at = source.names.index("around the stop")
    (length,) = source.slices.duration[source.slices.name == at].tolist()
    span = next(number for number, name in enumerate(source.names) if name.startswith("PyTorch Profiler ("))
    of_span = source.slices.name == span
    stop = int((source.slices.start + source.slices.duration)[of_span].max())
    extent = source.extent
    assert extent is not None
    assert extent[1] == stop
    assert length >= 0.009 * 1e9

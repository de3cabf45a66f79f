"""HolisticTraceAnalysis as a second opinion: on random CUDA-shaped traces its figures and those of a report are equal."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hta.trace_analysis import TraceAnalysis

from stepprof.cli.main import main

LENGTH = 100_000
"""Microseconds."""
KERNELS = ("gemm", "softmax", "flash_fwd")
Event = dict[str, Any]


def trace(rank: int, draw: random.Random) -> dict[str, Any]:
    """Return the trace of a rank: kernels on two streams, and collectives on a third one; each stream runs one after the other."""
    events: list[Event] = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "ts": 0, "args": {"labels": "GPU 0"}},
    ]
    correlation = 0
    for stream in (7, 9, 20):
        at = draw.randrange(100, 2000)
        while at < LENGTH:
            duration = draw.randrange(50, 3000)
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL" if stream == 20 else draw.choice(KERNELS)
            correlation += 1
            arguments = {"device": 0, "context": 1, "stream": stream, "correlation": correlation}
            launch = {"correlation": correlation, "cbid": 211}
            events += [
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7,
                 "ts": at - 20, "dur": 5, "args": launch},
                {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": at,
                 "dur": duration, "args": arguments},
            ]  # fmt: skip
            at += duration + draw.randrange(1, 4000)
    events.append(
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 0, "dur": LENGTH,
         "args": {"External id": 1}}
    )  # fmt: skip
    return {
        "schemaVersion": 1,
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
        "traceEvents": events,
    }


# HolisticTraceAnalysis warns about pandas and about traces without steps
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(params=range(5))
def files(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    """Return the traces of two ranks."""
    draw = random.Random(request.param)
    paths = [tmp_path / f"rank{rank}.json" for rank in (0, 1)]
    for rank, path in enumerate(paths):
        path.write_text(json.dumps(trace(rank, draw)))
    return paths


def test_figures_are_equal(files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The overlap of communication, the time of computation, the idle time, and the sum of each kernel."""
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    theirs = TraceAnalysis(trace_files={rank: str(path) for rank, path in enumerate(files)}, trace_dir="/")
    overlap = theirs.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].to_list()
    temporal = theirs.get_temporal_breakdown(visualize=False).to_dict("list")
    _, kernels = theirs.get_gpu_kernel_breakdown(visualize=False, num_kernels=10)
    for rank, path in enumerate(files):
        out = tmp_path / f"report-{rank}.json"
        assert main(["report", str(path), "--json", str(out)]) == 0
        ours = json.loads(out.read_bytes())
        (row,) = ours["overlap"]
        assert 100 * row["overlapped"] / row["communication"] == pytest.approx(overlap[rank], abs=0.01)
        assert row["compute"] * 1e6 == pytest.approx(temporal["compute_time(us)"][rank])
        busy = temporal["kernel_time(us)"][rank] - temporal["idle_time(us)"][rank]
        assert (row["compute"] + row["exposed"]) * 1e6 == pytest.approx(busy)
        sums = kernels[kernels["rank"] == rank].set_index("name")["sum (us)"].to_dict()
        assert {each["name"]: each["seconds"] * 1e6 for each in ours["kernels"]} == pytest.approx(sums)

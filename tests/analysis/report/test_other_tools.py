"""Reports of traces that stepprof did not record speak of annotations, and their advice is for a loop under torch.profiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from reports import make_report

from stepprof.analysis.report.other_tools import UNNAMED, in_words_of_torch
from stepprof.analysis.report.schema import Finding, Report
from stepprof.analysis.report.store import read
from stepprof.cli.main import main

Event = dict[str, Any]


def slice_(name: str, ts: float, dur: float, cat: str = "cpu_op") -> Event:
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "pid": 7, "tid": 7}


def steps(*annotated: Event, marked: bool = False) -> list[Event]:
    """Return 100 ms, of which `aten::mm` has 60."""
    marks = [slice_(f"ProfilerStep#{at}", at * 50_000, 50_000, "user_annotation") for at in (0, 1)]
    return [
        slice_("aten::mm", 0, 60_000),
        slice_("aten::add", 60_000, 40_000),
        *annotated,
        *(marks if marked else []),
    ]


def report_of(folder: Path, events: list[Event]) -> Report:
    (folder / "a.json").write_text(json.dumps({"baseTimeNanoseconds": 10**18, "traceEvents": events}))
    assert main(["report", str(folder / "a.json"), "--json", str(folder / "out.json")]) == 0
    return read(folder / "out.json", Report)


def test_the_longest_kernels_of_several_ranks(tmp_path: Path) -> None:
    """Their time is that of one rank: the sum over ranks is longer than the step."""
    for rank, long in enumerate((50_000, 60_000, 70_000)):
        content = {
            "baseTimeNanoseconds": 10**18,
            "distributedInfo": {"rank": rank, "world_size": 3},
            "traceEvents": [slice_("gemm", 0, long, "kernel"), slice_("mul", 90_000, 10_000, "kernel")],
        }
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(content))
    out = tmp_path / "out.json"
    assert main(["report", str(tmp_path), "--one-clock", "--json", str(out)]) == 0
    why = read(out, Report).findings[0].why
    assert why == "the longest kernels, median of the processes that have them: `gemm` 60.0 ms, `mul` 10.0 ms"


NAME = 'name the parts of the loop: `with torch.profiler.record_function("forward"):`'
STEP = "call `profiler.step()` after each iteration: then the report is about one of them"


@pytest.mark.parametrize(
    ("events", "text", "why", "advice"),
    [
        (
            steps(),
            "the trace covers 100 ms, and no annotation divides it",
            "the longest operators: `aten::mm` 60.0 ms, `aten::add` 40.0 ms",
            f"{NAME}, and {STEP}",
        ),
        (
            steps(slice_("optimizer", 70_000, 30_000, "user_annotation")),
            "the trace covers 100 ms: in no annotation 70%, `optimizer` 30%",
            "the longest operators in no annotation: `aten::mm` 60.0 ms, `aten::add` 10.0 ms",
            f"{NAME}, and {STEP}",
        ),
        (
            [slice_("fusion.1", 0, 60_000, ""), slice_("Task", 60_000, 40_000, "toplevel")],
            "the trace covers 100 ms: none of its 2 events is an operator, an annotation or a kernel as torch writes them, so no table has them",
            None,
            "`stepprof open` shows them in a browser",
        ),
        (
            steps(slice_("forward", 0, 90_000, "user_annotation")),
            "the trace covers 100 ms: `forward` 90%, in no annotation 10%",
            None,
            None,
        ),
    ],
)
def test_the_first_sentence(
    tmp_path: Path, events: list[Event], text: str, why: str | None, advice: str | None
) -> None:
    """It names what has no annotation, the longest operators in it, and how to name it."""
    first = report_of(tmp_path, events).findings[0]
    assert (first.text, first.why, first.advice) == (text, why, advice)


def test_marked_steps_need_no_step(tmp_path: Path) -> None:
    """A loop that calls `profiler.step()` is not asked to."""
    report = report_of(tmp_path, steps(marked=True))
    assert report.findings[0].advice == NAME
    assert report.step == 0


def test_advice() -> None:
    """Regions, `[watch]` and stacks are of stepprof; a trace of torch has annotations, and stacks by an option."""
    ours = "look at what it does there: its stacks and its operators; a region around it shows whether the other ranks do it too"
    (made,) = in_words_of_torch([Finding("rank 1 was slow", "straggler", advice=ours)])
    assert made.advice == (
        "look at what it does there: its operators, and with `with_stack=True` its Python frames; "
        "`record_function` around it shows whether the other ranks do it too"
    )


def test_runs_keep_their_words() -> None:
    """A step that stepprof recorded has windows."""
    assert all(part.name != UNNAMED for part in make_report(3, 1).parts)

"""The region tree over all processes, and the tree of a real trace compared with torch's own averages."""

from __future__ import annotations

import json

import pytest
from digested import spans, trace

from stepprof.analysis.report import region_calls, region_rows
from stepprof.analysis.report.analyse import analyse
from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest
from stepprof.analysis.report.region_rows import OTHERS, costliest, row_text
from stepprof.analysis.timeline.find import find

WINDOW = ("async", "stepprof", "step", 0, 100, {"kind": "window", "step": 2})


def tree(*sources):
    return combine([digest(each) for each in sources], step=2, run_id="r").tree


def by_path(rows):
    return {row_text(rows, row): row for row in rows}


class TestRanks:
    def test_median_and_extremes(self):
        """A row has the median, least and most seconds of the processes, and the calls of all. Its
        share is of the step.
        """
        rows = by_path(
            tree(*(spans(rank, ("window", "step", 0, 100, None), ("region", "update", 10, length, None)) for rank, length in enumerate((20, 30, 60))))
        )  # fmt: skip
        update = rows["update"]
        assert (update.seconds, update.least, update.most, update.slowest) == (0.03, 0.02, 0.06, "rank 2")
        assert (update.calls, update.processes, update.share) == (3, 3, pytest.approx(0.3))
        assert [(each.label, each.seconds, each.self_seconds, each.calls) for each in update.per_process] == [
            ("rank 0", 0.02, 0.02, 1),
            ("rank 1", 0.03, 0.03, 1),
            ("rank 2", 0.06, 0.06, 1),
        ]
        assert (rows["step"].seconds, rows["step"].self_seconds) == (0.1, pytest.approx(0.07))

    def test_a_region_of_some(self):
        """The median is taken over the processes that have the region."""
        rows = by_path(
            tree(
                spans(0, ("window", "step", 0, 100, None), ("region", "save", 10, 20, None)),
                spans(1, ("window", "step", 0, 100, None)),
            )
        )
        assert (rows["save"].seconds, rows["save"].processes, rows["step"].processes) == (0.02, 1, 2)


class TestSources:
    def test_spans_have_the_regions_and_traces_the_operators(self):
        """An annotation that only the trace has counts as part of the region around it."""
        rows = tree(
            spans(0, ("window", "step", 0, 100, None), ("region", "update", 10, 50, None)),
            trace(
                0,
                WINDOW,
                ("thread", "user_annotation", "update", 10, 50),
                ("thread", "user_annotation", "Optimizer.step#SGD.step", 20, 10),
                ("thread", "cpu_op", "aten::add", 21, 3),
                role=None,
            ),
        )
        assert [(row.kind, row_text(rows, row), row.seconds) for row in rows] == [
            ("step", "step", 0.1),
            ("region", "update", 0.05),
            ("op", "aten::add in update", 0.003),
        ]

    def test_a_trace_without_regions(self):
        """The trace has no regions, so the region that called its operators is unknown."""
        rows = tree(
            spans(0, ("window", "step", 0, 100, None), ("region", "update", 10, 50, None)),
            trace(0, WINDOW, ("thread", "cpu_op", "aten::add", 21, 3), role=None),
        )
        assert row_text(rows, rows[-1]) == "aten::add in region not known"

    def test_no_windows(self):
        """A process whose windows have no known end has no rows."""
        assert tree(spans(0, ("region", "update", 10, 50, None))) == []


class TestLimits:
    def test_shorter_regions_are_summed_up(self, monkeypatch):
        """Omitted regions are in a row of their own, so that the sum is still the step."""
        monkeypatch.setattr(region_rows, "MOST_REGIONS", 5)
        many = [("region", f"r{n}", 10 * n, n + 1, None) for n in range(8)]
        rows = tree(spans(0, ("window", "step", 0, 100, None), *many))
        assert [(row.kind, row.name, round(row.seconds, 6)) for row in rows] == [
            ("step", "step", 0.1),
            ("region", "r7", 0.008),
            ("region", "r6", 0.007),
            ("region", "r5", 0.006),
            ("regions", OTHERS, 0.015),
        ]

    def test_the_costliest_operators_are_named(self):
        """The costliest operators of a region are named, and the others share one row."""
        ops = [("thread", "cpu_op", f"op{n}", 2 * n, (n + 1) / 20) for n in range(20)]
        rows = tree(trace(0, WINDOW, ("thread", "user_annotation", "all", 0, 90), *ops, role=None))
        called = [row for row in rows if row.kind == "op"]
        assert [row.name for row in called] == [*(f"op{n}" for n in range(19, 11, -1)), OTHERS]
        assert sum(row.calls for row in called) == 20

    def test_a_short_table_includes_the_rows_around(self):
        """A short table of the costliest rows includes the rows around them."""
        rows = tree(
            spans(0, ("window", "step", 0, 100, None), ("region", "a", 0, 60, None), ("region", "b", 5, 40, None), ("region", "c", 70, 1, None))
        )  # fmt: skip
        assert [rows[at].name for at in costliest(rows, 3)] == ["step", "a", "b"]
        assert [rows[at].name for at in costliest(rows, 20)] == ["step", "a", "b", "c"]


JOB = """
import json, threading, time, torch
from torch.profiler import ProfilerActivity, profile, record_function

x = torch.randn(200, 200, requires_grad=True)

def forward():
    with record_function("forward"):
        y = torch.mm(x, x)
        with record_function("head"):
            y = torch.mm(y, x).flatten()
            y = torch.dot(y, y)
    return y

def walk(depth):
    with record_function("walk"):
        torch.mm(x, x)
        if depth:
            walk(depth - 1)

forward().backward()
with profile(activities=[ProfilerActivity.CPU]) as run:
    with record_function("update"):
        for _ in range(3):
            loss = forward()
            with record_function("backward"):
                loss.backward()
        walk(2)
    torch.mm(x, x)
run.export_chrome_trace("real.pt.trace.json")

def path(event):
    names = []
    while event is not None:
        if event.is_user_annotation:
            names.append(event.name)
        event = event.cpu_parent
    return "/".join(reversed(names))

events = [event for event in run.events() if event.device_type == torch.autograd.DeviceType.CPU]
print(json.dumps({
    "averages": {each.key: [each.count, each.self_cpu_time_total, each.cpu_time_total, each.is_user_annotation] for each in run.key_averages()},
    "ops": [[path(event), event.name, event.self_cpu_time_total] for event in events if not event.is_user_annotation],
    "regions": [[path(event), event.cpu_time_total] for event in events if event.is_user_annotation],
}))
"""

HIDDEN = ("profiler::_record_function_enter_new", "profiler::_record_function_exit", "aten::is_leaf", "aten::_version", "aten::output_nr")  # fmt: skip
"""Operators that the trace has and torch's averages omit."""


@pytest.mark.torch
def test_the_averages_of_torch(run_script, tmp_path, monkeypatch):
    """Calls and self time of each operator in each region, and calls and time of each region, equal those
    of torch.profiler.
    """
    for module in (region_calls, region_rows):
        monkeypatch.setattr(module, "MOST_CALLED", 100)
    ran = run_script(JOB)
    assert ran.returncode == 0, ran.stderr
    torch = json.loads(ran.stdout)
    rows = analyse(find([tmp_path / "real.pt.trace.json"], output_dir=tmp_path), workers=1).tree
    ops: dict[tuple[str, str], list[float]] = {}
    for around, name, own in torch["ops"]:
        sums = ops.setdefault((around, name), [0, 0.0])
        sums[0] += 1
        sums[1] += own
    mine = {(_around(rows, row), row.name): (row.calls, row.self_seconds) for row in rows if row.kind == "op"}
    mine = {key: value for key, value in mine.items() if key[1] not in HIDDEN}
    assert {("update/forward", "aten::mm"), ("update/forward/head", "aten::mm"), ("", "aten::mm")} <= set(
        mine
    )
    assert {key: calls for key, (calls, _) in mine.items()} == {key: calls for key, (calls, _) in ops.items()}
    for key, (_, own) in ops.items():
        assert mine[key][1] * 1e6 == pytest.approx(own, abs=1), key
    regions: dict[str, list[float]] = {}
    for around, total in torch["regions"]:
        sums = regions.setdefault(around, [0, 0.0])
        sums[0] += 1
        sums[1] += total
    shown = {row_text(rows, row): row for row in rows if row.kind == "region"}
    assert set(shown) == set(regions)
    assert "update/walk/walk/walk" in shown
    for around, (calls, total) in regions.items():
        assert shown[around].calls == calls
        assert shown[around].seconds * 1e6 == pytest.approx(total, abs=1)
    averages = torch["averages"]
    mm = [row for row in rows if row.name == "aten::mm"]
    assert sum(row.calls for row in mm) == averages["aten::mm"][0]
    assert sum(row.self_seconds for row in mm) * 1e6 == pytest.approx(averages["aten::mm"][1], abs=len(mm))
    assert shown["update/forward"].calls == averages["forward"][0]
    assert shown["update/forward"].seconds * 1e6 == pytest.approx(averages["forward"][2], abs=1)


def _around(rows, row):
    path = row_text(rows, row).partition(" in ")[2]
    return "" if path == "step" else path


WITH_ATTRIBUTES = """
import asyncio, sys, torch, stepprof
from stepprof import profile_step, region

x = torch.randn(50, 50)

async def score():
    with region("score", sample=1):
        await asyncio.sleep(0)
        torch.mm(x, x)

stepprof.init({"steps": "1", "backend": "torch", "output_dir": "runs", "spans": sys.argv[1] == "spans"})
with profile_step(1), region("update", epoch=1):
    for number in range(3):
        with region("mini_batch", rows=50):
            torch.mm(x, x)
    asyncio.run(score())
stepprof.shutdown()
"""


@pytest.mark.torch
@pytest.mark.parametrize("spans", ["spans", "trace alone"])
def test_regions_with_attributes(run_script, tmp_path, spans):
    """The trace has the attributes of a region next to the range of its thread, so operators are
    listed under it. Attributes of coroutines are unknown.
    """
    ran = run_script(WITH_ATTRIBUTES, spans)
    assert ran.returncode == 0, ran.stderr
    rows = by_path(analyse(find([], output_dir=tmp_path / "runs"), workers=1).tree)
    assert rows["update/mini_batch"].calls == rows["aten::mm in update/mini_batch"].calls == 3
    assert rows["aten::mm in region not known"].calls == 1

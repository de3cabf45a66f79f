"""Regions that outlast the window in which they began."""

from __future__ import annotations

import numpy as np
import pytest
from digested import MS, T0, source, spans, trace

from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest
from stepprof.analysis.report.outlasting import within_windows
from stepprof.analysis.report.slice_kinds import Chosen
from stepprof.analysis.timeline.model import Origin


def lasted(made) -> list[tuple[float, float]]:
    """Return begin and end of each slice in milliseconds."""
    slices = within_windows(made, Chosen(made)).slices
    begin = (slices.start - T0) / MS
    return list(zip(begin.tolist(), (begin + slices.duration / MS).tolist(), strict=True))


class TestWithinWindows:
    def test_a_region_ends_with_its_window(self) -> None:
        """A region that ends later ends with the innermost window that was open when it began. One that began in no window is unchanged."""
        made = spans(
            0,
            ("window", "step", 0, 100, None),
            ("window", "actor", 10, 20, "actor"),
            ("region", "late", 25, 30, "actor"),
            ("region", "between", 40, 90, None),
            ("region", "inside", 12, 3, "actor"),
            ("region", "apart", 110, 50, None),
        )
        assert lasted(made) == [(0, 100), (10, 30), (25, 30), (40, 100), (12, 15), (110, 160)]

    def test_of_its_own_thread_and_coroutine(self) -> None:
        """The windows of other threads and coroutines end no region."""
        rows = [
            (("thread", "a"), "window", "actor", 0, 20, "actor"),
            (("thread", "b"), "region", "load", 5, 40, "actor"),
        ]
        made = source(Origin("spans", "spans/rank-0.000001.jsonl", None, 0, None, "h", 100), *rows)
        assert lasted(made) == [(0, 20), (5, 45)]
        with_tasks = source(made.origin, *[(("async", "tasks"), *row[1:]) for row in rows])
        with_tasks.slices.task = np.array([0, 1], np.int32)
        assert lasted(with_tasks) == [(0, 20), (5, 45)]
        with_tasks.slices.task = np.array([1, 1], np.int32)
        assert lasted(with_tasks) == [(0, 20), (5, 20)]

    def test_a_trace_is_unchanged(self) -> None:
        """A trace has its windows on a row of their own, and shows ranges as far as it recorded them."""
        made = trace(0, ("thread", "user_annotation", "update", 10, 50))
        assert within_windows(made, Chosen(made)) is made


def test_the_region_has_a_row_and_the_rest_is_in_no_window() -> None:
    """Its row is inside its window, whose children add up. After the window the path is in no window, as far as no other one is open."""
    made = spans(
        0,
        ("window", "actor", 0, 40, "actor"),
        ("region", "late", 30, 50, "actor"),
        ("window", "critic", 60, 40, "critic"),
    )
    report = combine([digest(made)], step=2, run_id="r")
    rows = {row.name: (row.parent, row.seconds, row.self_seconds) for row in report.tree}
    assert rows["late"] == (1, 0.01, 0.01)
    assert rows["actor"] == (0, 0.04, pytest.approx(0.03))
    assert {part.name: part.seconds for part in report.parts} == pytest.approx(
        {"actor": 0.04, "critic": 0.04, "in no window": 0.02}
    )
    assert [(time.region, time.seconds) for time in report.regions] == [("late", 0.05)]

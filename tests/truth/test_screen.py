"""The figures of the first screen agree: title, bars, tables and tree of random programs with any names, and of changed reports none."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from digested import spans
from msgspec.structs import replace

from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest
from stepprof.analysis.report.schema import Report
from truth.programs import Slice, reported
from truth.screen import disagreements

STEPS = int(os.environ.get("TRUTH_STEPS", "100"))
SEED = int(os.environ.get("TRUTH_SEED", "0"))


@pytest.mark.slow
@pytest.mark.timeout(0)  # the number of steps is configurable
def test_all_figures_agree() -> None:
    """Every figure of title, parts, path, findings, tree, terminal and Markdown agrees with the others."""

    for number in range(2 * STEPS):
        rng = random.Random(f"{SEED} {number}")
        found = disagreements(reported(rng, late=number % 2 == 1))
        assert not found, "\n".join([f"{SEED} {number}", *found])


def changed_title(report: Report) -> Report:
    first = report.findings[0]
    return replace(
        report, findings=[replace(first, text=first.text.replace("%", "1%", 1)), *report.findings[1:]]
    )


def changed_part(report: Report) -> Report:
    part = report.parts[0]
    return replace(report, parts=[replace(part, seconds=(part.seconds or 0.0) + 0.001), *report.parts[1:]])


def changed_wall(report: Report) -> Report:
    part = report.parts[0]
    return replace(
        report, parts=[replace(part, wall_seconds=(part.wall_seconds or 0.0) / 2), *report.parts[1:]]
    )


def changed_path(report: Report) -> Report:
    return replace(report, path=report.path[1:])


def changed_tree(report: Report) -> Report:
    rows = [
        replace(
            row,
            per_process=[replace(each, self_seconds=each.self_seconds + 0.001) for each in row.per_process],
        )
        for row in report.tree
    ]
    return replace(report, tree=rows)


def without_row(report: Report) -> Report:
    return replace(report, tree=report.tree[:-1])


@pytest.mark.parametrize(
    "change", [changed_title, changed_part, changed_wall, changed_path, changed_tree, without_row]
)
def test_a_contradiction_is_found(change: Callable[[Report], Report]) -> None:
    """A report in which one figure was changed is found."""
    slices: list[Slice] = [("window", "actor", 0, 60, "actor"), ("region", "load", 0, 20, "actor"), ("window", "critic", 60, 40, "critic")]  # fmt: skip
    report = combine([digest(spans(0, *slices))], step=2, run_id="r")
    assert disagreements(report) == []
    assert disagreements(change(report)) != []

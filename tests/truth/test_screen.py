"""The figures of the first screen agree: title, bars, tables and tree of random programs with any names, and of changed reports none.

A program opens windows with and without roles, one inside the other, and regions in them: recursive ones, ones of one name at several depths, ones that end after
their window.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator

import pytest
from digested import spans
from msgspec.structs import replace

from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest
from stepprof.analysis.report.schema import Report
from stepprof.analysis.timeline.model import Alignment
from truth.screen import disagreements

NAMES = (
    "load",
    "loss",
    "loss/kl",
    "kl",
    "a|b",
    "`c`",
    "<d>",
    "e;f",
    "g\nh",
    "x" * 200,
    "back\\slash",
    "no role",
    "actor",
)
ROLES = ("actor", "critic", "rollout")
STEPS = int(os.environ.get("TRUTH_STEPS", "100"))
SEED = int(os.environ.get("TRUTH_SEED", "0"))

Slice = tuple[str, str, float, float, "str | None"]


def program(rng: random.Random, late: bool) -> list[Slice]:
    """Return the spans of one process: windows after each other, and regions inside them."""
    found: list[Slice] = []
    now = float(rng.randrange(5))
    for _ in range(rng.randint(1, 4)):
        role = rng.choice((None, *ROLES))
        length = float(rng.randint(20, 60))
        found.append(("window", role or "step", now, length, role))
        inner = rng.choice(ROLES) if role is None and rng.random() < 0.5 else None
        if inner is not None:  # a window of a role inside that of the step
            found.append(("window", inner, now + 5, length - 10, inner))
            found += regions(rng, now + 5, now + length - 5, inner, 0)
        else:
            found += regions(rng, now, now + length - 3, role, 0)
        if late and rng.random() < 0.5:
            begin = now + length - 2
            found.append(("region", rng.choice(NAMES), begin, float(rng.randint(3, 9)), role))
        now += length + rng.choice((0.0, 3.0, 15.0))
    return found


def regions(rng: random.Random, start: float, end: float, role: str | None, depth: int) -> Iterator[Slice]:
    """Yield regions between two times: one after the other, with others inside."""
    at = start + rng.choice((0.0, 0.5))
    while at + 1 < end and rng.random() < 0.8 and depth < 4:
        length = min(rng.randint(2, 80) / 4, end - at)
        yield "region", rng.choice(NAMES), at, length, role
        yield from regions(rng, at, at + length, role, depth + 1)
        at += length + rng.choice((0.0, 1.0))


def reported(rng: random.Random, *, late: bool = False) -> Report:
    """Return the report of a random step of one to four processes, sometimes with clocks that were never compared."""
    ranks = [*range(rng.randint(1, 4)), *(["driver"] if rng.random() < 0.2 else [])]
    apart = rng.random() < 0.15
    sources = [
        spans(
            rank,
            *program(rng, late),
            **(
                {"host": f"h{number}", "alignment": Alignment("unmeasured", island=f"h{number}")}
                if apart
                else {}
            ),
        )
        for number, rank in enumerate(ranks)
    ]
    return combine([digest(each) for each in sources], step=2, run_id="r")


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

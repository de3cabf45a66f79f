"""Random programs of windows and regions, as spans, and their reports.

A program opens windows with and without roles, one inside the other, and regions in them: recursive ones, ones of one name at several depths, ones that end after
their window.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from digested import spans

from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest
from stepprof.analysis.report.schema import Report
from stepprof.analysis.timeline.model import Alignment

__all__ = ["Slice", "reported"]

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

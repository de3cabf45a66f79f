"""A digest on another clock is the digest of the same source, read with that clock."""

from __future__ import annotations

import msgspec
from digested import MS, source

from stepprof.analysis.report.digest import digest
from stepprof.analysis.report.shift import moved
from stepprof.analysis.timeline.model import Alignment, Origin

SPANS = Origin("spans", "spans/rank-0.000001.jsonl", None, 0, None, "h", 100)
CLOCK = Alignment("collectives", 7 * MS, 10)


def at(later: int):
    """A source whose times are later by so many milliseconds."""
    return source(
        SPANS,
        ("thread", "window", "actor", 10 + later, 50, "actor"),
        ("thread", "region", "load", 20 + later, 30, "actor"),
        (("sample", "3"), "region", "generate", 25 + later, 5, "actor"),
        (("thread", "other"), "region", "reward", 22 + later, 6, "actor"),
        counters=[("memory allocated GPU 0", 30 + later, 5.0), ("memory allocated GPU 0", 40 + later, 2.0)],
    )


def test_every_time_is_moved():
    there = moved(digest(at(0)), 7 * MS, CLOCK)
    assert there == msgspec.structs.replace(digest(at(-7)), alignment=CLOCK)
    assert there.nest is not None
    assert len(there.nest.beside) > 0

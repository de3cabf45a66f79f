"""Tests of the waits that samples show in regions without a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepprof.analysis.report.activities import Activity
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.meetings import Visit
from stepprof.analysis.report.processes import Process
from stepprof.analysis.report.sampled_meetings import SampledWait, sampled_waits
from stepprof.analysis.timeline.model import Origin

MS = 1_000_000


def _process(rank: int) -> Process:
    return Process(f"rank {rank}", "rank", 1, [], [], Origin(Path(), "spans", rank=rank))


def _found(**activities: Activity) -> dict[str, dict[int, SampledWait]]:
    """Return the waits of ranks that enter a region at 0, 1, … ms and leave it at 1,000 ms."""
    visits = [Visit(_process(rank), [(rank * MS, 1000 * MS)], [False]) for rank in range(len(activities))]
    return sampled_waits(
        {("actor", ("backward",)): visits}, {name.replace("_", " "): of for name, of in activities.items()}
    )


def _activity(computes: int, *, blocked: Intervals = EMPTY) -> Activity:
    """Return what samples show of a rank that computes for some milliseconds and then waits."""
    until = computes * MS
    return Activity(Intervals.one(0, until), Intervals.one(until, 1000 * MS), blocked=blocked)


def test_a_rank_waits_for_the_one_that_still_computes() -> None:
    """Also for one that entered earlier; the other one does not wait."""
    assert _found(rank_0=_activity(990), rank_1=_activity(600)) == {
        "rank 1": {MS: SampledWait(600 * MS, 990 * MS, "rank 0")}
    }


def test_a_rank_whose_samples_end_early_may_have_been_the_last() -> None:
    """Its capture ended at 500 ms: the two others may both have waited for it."""
    assert (
        _found(
            rank_0=_activity(800),
            rank_1=_activity(600),
            rank_2=Activity(Intervals.one(0, 500 * MS)),
        )
        == {}
    )


def test_a_rank_that_waits_for_something_else_is_left_alone() -> None:
    """Its samples show a lock, say, and no collective."""
    slow = _activity(600, blocked=Intervals.one(600 * MS, 1000 * MS))
    assert _found(rank_0=_activity(990), rank_1=slow) == {}


@pytest.mark.parametrize("computes", [600, 800])
def test_where_none_computes_when_the_wait_ends_it_is_for_no_rank(computes: int) -> None:
    """Both wait at the end: for a device, or for a third one."""
    blocked = Intervals.one(computes * MS, 1000 * MS)
    assert _found(rank_0=_activity(computes, blocked=blocked), rank_1=_activity(600)) == {}


def test_too_many_pairs_are_left_out() -> None:
    """Of very many ranks and calls, each wait would be compared with each rank."""
    times = [(call * 1000 * MS, (call * 1000 + 1000) * MS) for call in range(4000)]
    visits = [Visit(_process(rank), times, [False] * len(times)) for rank in range(8)]
    activities = {f"rank {rank}": _activity(600 if rank else 990) for rank in range(8)}
    few = [Visit(each.process, each.times[:10], each.matched[:10]) for each in visits]
    assert sampled_waits({("actor", ("backward",)): visits}, activities) == {}
    assert len(sampled_waits({("actor", ("backward",)): few}, activities)) == 7

"""Tests of what samples show of a process."""

from __future__ import annotations

from stepprof.analysis.report.activities import Activity
from stepprof.analysis.report.intervals import Intervals


def test_what_only_a_sample_before_a_time_shows_is_not_certain() -> None:
    """The last of equal samples lasts until the next one: in between the thread may have done something else."""
    computing = Intervals.of([(0, 40), (60, 80)])
    activity = Activity(computing, spills=[(15, 40), (70, 80)])
    assert activity.certain(computing, 20, 100).pairs() == [(60, 80)]
    assert activity.certain(computing, 10, 100).pairs() == [(10, 40), (60, 80)]
    assert activity.certain(computing, 20, 30).pairs() == []


def test_waits_in_collectives_are_those_for_nothing_else() -> None:
    """A wait that samples show to be for a lock, say, is in no collective."""
    activity = Activity(waiting=Intervals.one(0, 100), blocked=Intervals.one(50, 100))
    assert activity.in_collectives(10, 80) == 40

"""Recognise a step that did not end, because a process was killed in it or is still in it, and how long it lasted at least."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from stepprof.analysis.report.processes import Process
from stepprof.analysis.report.timelines import DRIVER
from stepprof.run.status import read_statuses

Signs = Mapping[tuple[object, object], int]
"""When each process, by its host and id, was last known to be in the step; nanoseconds on its own clock."""


def unfinished(processes: Iterable[Process]) -> list[Process]:
    """Return the processes that are not known to have left the step; [] if another process shows when the step ended.

    That is the driver, whose window contains the step, or a later process of the same rank that did the work again.
    """
    known = [each for each in processes if each.kind == "rank"]
    if any(each.origin.rank == DRIVER and each.windows and not each.open_ended() for each in known):
        return []
    return [each for each in known if each.open_ended() and not any(_follows(other, each) for other in known)]


def _follows(other: Process, lost: Process) -> bool:
    """Return whether a process of the same rank did the work of one that did not finish it."""
    return (
        other is not lost
        and other.origin.rank == lost.origin.rank
        and not other.open_ended()
        and bool(other.roles & lost.roles)
    )


def last_signs(runs: Sequence[Path], step: int | None) -> Signs:
    """Return the last signs of life in a step, from the files in which processes publish their status."""
    return {
        (status["host"], status["pid"]): status["published_unix_ns"]
        for run in runs
        for status in read_statuses(run)
        if step in (status["step"], status["recording_step"])
        and None not in (step, status["published_unix_ns"])
        and not status["ended"]
    }


def known_until(processes: Iterable[Process], signs: Signs) -> int:
    """Return the last time at which one of some processes was known to be in the step, on their common clock; 0: not known."""
    return max(
        (
            signs[each.host, each.origin.pid] - each.offset_ns
            for each in processes
            if (each.host, each.origin.pid) in signs
        ),
        default=0,
    )

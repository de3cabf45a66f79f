"""Calls of regions in coroutines: how many were open at once, and when the last one was alone.
Times are in milliseconds.
"""

from __future__ import annotations

import numpy as np
from digested import MS, T0, source

from stepprof.analysis.report.coroutines import concurrent_calls
from stepprof.analysis.report.digest import digest
from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.slice_kinds import Chosen
from stepprof.analysis.timeline.model import Origin


def made(*calls, track="tasks"):
    """Return the spans of a thread with coroutines. Calls are (name, start, length, coroutine)."""
    rows = [(("async", track), "region", name, start, length, None) for name, start, length, _ in calls]
    source_ = source(
        Origin("spans", "s", None, 0, None, "h", 100), ("thread", "window", "step", 0, 100, None), *rows
    )
    source_.slices.task = np.array([-1, *(task for *_, task in calls)], np.int32)
    return source_


def found(*calls, **more):
    """Return (name, calls, coroutines, peak) of each region, and when its last call was alone."""
    nest = digest(made(*calls, **more)).nest
    return [
        (each.name, each.calls, each.tasks, each.peak, last(each))
        for each in (nest.coroutines if nest is not None else [])
    ]


def last(each):
    ((start, end),) = Intervals.unpack(each.last).pairs() or [(T0, T0)]
    return (start - T0) / MS, (end - T0) / MS


def test_the_last_of_three():
    assert found(("sample", 0, 30, 0), ("sample", 1, 40, 1), ("sample", 2, 80, 2)) == [
        ("sample", 3, 3, 3, (41.0, 82.0))
    ]


def test_calls_that_follow_each_other_do_not_overlap():
    """A call that begins when another one ends does not overlap it."""
    assert [each[:4] for each in found(("tool", 0, 30, 0), ("tool", 30, 40, 1))] == [("tool", 2, 2, 1)]


def test_calls_inside_a_call_are_not_counted():
    assert [each[:2] for each in found(("sample", 0, 30, 0), ("generate", 1, 10, 0))] == [("sample", 1)]


def test_coroutines_of_another_thread():
    """The coroutines run in the event loop of another thread, for which the window's thread does not wait."""
    assert found(("sample", 0, 30, 0), track="tasks of thread 7") == []


def test_a_trace_states_no_coroutines():
    of = made(("sample", 0, 30, 0))
    of.slices.task = None
    assert concurrent_calls(of, Chosen(of)) == []

"""Steps that a report once got wrong: each stands for a situation of its own."""

from __future__ import annotations

import pytest

from truth.model import Shape
from truth.test_truth import compared

FOUND = {
    "a process group of one member: calls without a group may be of it": Shape(
        seed=628300094,
        ranks=3,
        groups="both",
        kinds=("reduce",),
        rounds=1,
        profiler="differing",
        spans=False,
        driver="waits",
        nested=True,
    ),
    "engines are placed by the clock of a driver that has no window in the manifest": Shape(
        seed=1328308102,
        ranks=3,
        machines=3,
        device="cuda",
        compared="none",
        clock_error=True,
        phases=("actor", "actor"),
        kinds=("all_to_all", "broadcast", "all_reduce"),
        rounds=3,
        local="sleep",
        profiler="equal",
        driver="waits",
        engines=((3, 2), (3, 1)),
    ),
    "a capped window is no region of the length of its capture": Shape(
        seed=3375349089,
        ranks=1,
        device="cuda",
        fates=((0, "capped"),),
        kinds=("reduce_scatter",),
        rounds=0,
        local="python",
        profiler="equal",
        driver="manifest",
    ),
    "a host of which only a lost window is known has no length": Shape(
        seed=1162036991,
        ranks=3,
        machines=3,
        device="cuda",
        compared="none",
        groups="halves",
        kinds=("all_to_all", "reduce_scatter"),
        rounds=1,
        fates=((1, "killed"),),
        profiler="differing",
        driver="manifest",
    ),
    "a receiver of a broadcast waits for its root and not for who came later": Shape(
        seed=2147510913,
        ranks=5,
        machines=2,
        clock_error=True,
        phases=("ref", "actor"),
        kinds=("all_to_all", "scatter", "barrier", "all_reduce"),
        rounds=1,
        local="mixed",
    ),
    "waiting that computation hides is work": Shape(
        seed=3490890622,
        ranks=4,
        device="cuda",
        phases=("actor", "actor"),
        kinds=("reduce_scatter",),
        rounds=1,
        local="mixed",
        profiler="equal",
        spans=False,
    ),
    "a truncated trace with a device has lost all kernels": Shape(
        seed=7, ranks=4, device="cuda", fates=((1, "truncated"),), kinds=("all_reduce",), profiler="differing"
    ),
    "calls after the cap of a member are matched within no smaller group": Shape(
        seed=2774429360,
        ranks=3,
        machines=3,
        phases=("critic", "ref", "actor"),
        groups="both",
        kinds=("all_to_all", "scatter", "all_reduce", "barrier"),
        rounds=4,
        local="mixed",
        fates=((0, "capped"),),
        profiler="differing",
        spans=False,
    ),
    "a device that is in one of two traces is one device": Shape(
        seed=1640081204,
        device="cuda",
        devices=2,
        phases=("ref", "actor"),
        rounds=0,
        local="mixed",
        profiler="differing",
    ),
    "a clock that may be wrong puts no one before a receiver left who came later": Shape(
        seed=415,
        ranks=8,
        machines=2,
        clock_error=True,
        phases=("critic", "ref", "actor"),
        kinds=("broadcast",),
        rounds=3,
        local="mixed",
        fates=((0, "truncated"), (2, "truncated")),
    ),
    "regions of killed ranks, whose role is in no span, have no known end": Shape(
        seed=0,
        ranks=4,
        phases=("ref", "actor"),
        kinds=("broadcast",),
        fates=((1, "killed"), (2, "killed")),
        profiler="equal",
    ),
    "calls of a rank alone place no clocks": Shape(
        ranks=2, machines=2, compared="some", phases=("ref", "actor"), groups="halves", rounds=1
    ),
    "hosts of which only lost windows are known have no length": Shape(
        ranks=3,
        machines=3,
        compared="some",
        rounds=1,
        fates=((0, "lost"), (2, "lost")),
        spans=False,
    ),
    "a thread that leaves late has not waited for one that came just before": Shape(
        seed=252209314, ranks=12, kinds=("broadcast",), rounds=4, jitter=True
    ),
    "a bar that begins at half a microsecond is rounded either way": Shape(
        seed=195,
        ranks=4,
        machines=4,
        device="cuda",
        devices=2,
        compared="all",
        clock_error=True,
        phases=("actor", "critic"),
        layout="disjoint",
        kinds=("all_reduce",),
        rounds=2,
        local="ops",
        fates=((0, "capped"), (3, "unselected")),
        profiler="equal",
        spans=False,
        engines=((2, 1), (2, 1), (1, 1)),
    ),
    "collectives come in the order of the ranks and not of clocks that may be wrong": Shape(
        seed=2240,
        ranks=6,
        machines=3,
        device="cuda",
        clock_error=True,
        groups="both",
        profiler="differing",
        engines=((3, 1), (2, 1)),
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_what_was_wrong_once_is_right(what):
    assert compared(FOUND[what]) == []

"""Replays of steps that were made by hand: when the step would end without a cause."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from stepprof.analysis.report.digest import Window
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.processes import Process
from stepprof.analysis.report.step_graph import StepGraph
from stepprof.analysis.report.timelines import Timeline
from stepprof.analysis.timeline.model import Alignment, Origin

US = 1000
ENGINES = frozenset({"rollout"})


def process(label, *stretches, waits=(), maybe=(), generating=(), held=(), role=None):
    """Return a process with stretches (start, end, role), waits (start, end, label) and generation
    (start, end), in microseconds.

    Its rank is the digit at the end of its label.
    """
    rank = int(label[-1]) if label[-1].isdigit() else "driver"
    made = Process(
        label, "rank", Origin("rank", label, role=role, rank=rank, host="h"), Alignment("reference", 0, 0), [],
        [Window(of, a * US, b * US) for a, b, of in stretches],
    )  # fmt: skip
    when, held = (
        Intervals.union([a * US for a, _ in times], [b * US for _, b in times])
        for times in (generating, held)
    )
    return Timeline(
        made,
        [(a * US, b * US, of, ()) for a, b, of in stretches],
        [(a * US, b * US, whom) for a, b, whom in waits],
        EMPTY, EMPTY, EMPTY, held, when,
        maybe=[(a * US, b * US, whom) for a, b, whom in maybe],
    )  # fmt: skip


def graph(*known):
    return StepGraph(known, 0, ENGINES)


def gain(made, **without):
    """Return the gain in microseconds; `rank_1=[(start, end)]` removes that time from `rank_1`."""
    found = made.gain(
        {
            label: Intervals.union([a * US for a, _ in when], [b * US for _, b in when])
            for label, when in without.items()
        }
    )
    return None if found is None else found / US


def late_rank():
    """Return a graph in which rank 1 enters a collective 40 µs after rank 0 and 10 µs after rank 2."""
    return graph(
        process("rank_0", (0, 100, "actor"), waits=[(50, 90, "rank_1")]),
        process("rank_1", (0, 100, "actor")),
        process("rank_2", (0, 100, "actor"), waits=[(80, 90, "rank_1")]),
    )


def test_without_a_change_the_step_is_as_recorded():
    assert late_rank().replay({}) == {"rank_0": 100 * US, "rank_1": 100 * US, "rank_2": 100 * US}


def test_work_of_a_single_process():
    assert gain(graph(process("rank_0", (0, 100, "actor"))), rank_0=[(10, 30)]) == 20


def test_the_next_rank_bounds_what_a_straggler_costs():
    assert gain(late_rank(), rank_1=[(0, 5)]) == 5
    assert gain(late_rank(), rank_1=[(0, 40)]) == 10
    assert gain(late_rank(), rank_1=[(0, 40)], rank_2=[(0, 30)]) == 40


def test_removing_work_that_others_do_not_wait_for_saves_nothing():
    assert gain(late_rank(), rank_0=[(0, 50)]) == 0


def test_time_in_which_a_process_waits_cannot_be_taken_out():
    assert gain(late_rank(), rank_0=[(50, 90)]) == 0


def test_a_rank_that_is_earlier_in_one_collective_is_bounded_in_each():
    """Rank 1 is 20 µs late twice. Without 40 µs of its second part, rank 0 would be the later one there."""
    made = graph(
        process("rank_0", (0, 100, "actor"), waits=[(30, 50, "rank_1"), (80, 100, "rank_1")]),
        process("rank_1", (0, 100, "actor")),
    )
    assert gain(made, rank_1=[(60, 100)]) == 20
    assert gain(made, rank_1=[(30, 50), (80, 100)]) == 40


def test_a_process_of_which_no_wait_is_known_leaves_the_gain_open():
    made = graph(process("rank_0", (0, 95, "actor")), process("rank_1", (0, 100, "actor")))
    assert gain(made, rank_1=[(0, 4)]) == 4
    assert gain(made, rank_1=[(0, 50)]) is None


@pytest.mark.parametrize(("held", "saves"), [([(0, 20)], 30), ([(0, 19)], 29), ([], None)])
def test_a_process_that_computed_bounds_the_gain_if_the_profiler_held_both_up_alike(held, saves):
    """Rank 1 computes until 70 µs, and no wait of it is known. If the profiler held rank 0 alone up, rank 1 may have waited for that."""
    begin = sum(end for _, end in held)
    other = process("rank_1", (begin, 70, "actor"), held=held)
    computing = Intervals.one(begin * US, 70 * US)
    made = graph(process("rank_0", (20, 100, "actor"), held=[(0, 20)]), replace(other, computing=computing))
    assert gain(made, rank_0=[(60, 100)]) == saves


def test_a_rank_that_the_profiler_held_up_would_not_have_been_late():
    """The profiler delays rank 0 by 40 µs, so that it enters last. Without the profiler, rank 1
    would enter last.
    """
    made = graph(
        process("rank_0", (40, 100, "actor"), held=[(0, 40)]),
        process("rank_1", (0, 100, "actor"), waits=[(80, 90, "rank_0")]),
    )
    assert gain(made, rank_1=[(0, 30)]) == 30


def rollout():
    """Return a graph of a driver and two engines. The driver prepares for 20 µs; the engines
    generate until 60 and 70; the driver checks them at 80.
    """
    return graph(
        process("driver", (0, 20, None), (20, 80, "rollout"), (80, 100, None)),
        process("engine_8", generating=[(22, 60)], role="rollout"),
        process("engine_9", generating=[(22, 70)], role="rollout"),
    )


def test_a_driver_waits_for_its_engines():
    assert gain(rollout(), driver=[(70, 80)]) == 10
    assert gain(rollout(), engine_9=[(50, 70)]) == 10  # then engine 8 is the last
    assert gain(rollout(), engine_8=[(50, 60)], engine_9=[(50, 70)]) == 20


def test_an_engine_begins_when_its_driver_has_sent_it_work():
    assert gain(rollout(), driver=[(0, 20)]) == 20


def test_a_driver_waits_for_its_ranks():
    """Rank 0 is in the actor's window until 50 µs, rank 1 until 70 µs. Both begin when the driver does."""
    made = graph(
        process("driver", (0, 10, None), (10, 75, "actor"), (75, 100, None)),
        process("rank_0", (12, 50, "actor")),
        process("rank_1", (12, 70, "actor")),
    )
    assert gain(made, rank_1=[(20, 60)]) == 20
    assert gain(made, driver=[(0, 10)]) == 10
    assert gain(made, driver=[(70, 75), (90, 100)]) == 15


def test_a_window_begins_after_another_one():
    """One process trains after another one has generated."""
    made = graph(process("rank_0", (0, 40, "rollout")), process("rank_1", (45, 100, "actor")))
    assert gain(made, rank_0=[(10, 30)]) == 20


@pytest.mark.parametrize("seed", range(20))
def test_a_gain_is_between_zero_and_the_removed_time(seed):
    draw = random.Random(seed)
    times = dict.fromkeys(("rank_0", "rank_1", "rank_2"), 0)
    waits = {label: [] for label in times}
    for _ in range(10):
        times = {label: time + draw.randrange(1, 50) for label, time in times.items()}
        last = max(times, key=times.__getitem__)
        waits_now = {label: time for label, time in times.items() if time < times[last]}
        for label, time in waits_now.items():
            waits[label].append((time, times[last], last))
        times = dict.fromkeys(times, times[last])
    end = max(times.values())
    made = graph(*(process(label, (0, end, "actor"), waits=waits[label]) for label in times))
    assert set(made.replay({}).values()) == {end * US}
    without = {label: [(low := draw.randrange(end), low + draw.randrange(1, 80))] for label in times}
    found = gain(made, **without)
    assert found is not None
    assert 0 <= found <= sum(high - low for ((low, high),) in without.values())


def spare(known):
    return {(each.process, each.role): round(each.seconds * 1e9) / US for each in graph(*known).spare(known)}


def test_how_much_longer_a_rank_could_take():
    """Rank 0 waits 40 µs and 5 µs for rank 1, so it could take 45 µs longer."""
    known = [
        process("rank_0", (0, 100, "actor"), waits=[(50, 90, "rank_1"), (95, 100, "rank_1")]),
        process("rank_1", (0, 100, "actor")),
    ]
    assert spare(known) == {("rank_0", "actor"): 45, ("rank_1", "actor"): 0}


def test_how_much_longer_an_engine_could_generate():
    known = [
        process("driver", (0, 20, None), (20, 70, "rollout"), (70, 100, None)),
        process("engine_8", generating=[(22, 60)], role="rollout"),
        process("engine_9", generating=[(22, 70)], role="rollout"),
    ]
    found = spare(known)
    assert found["engine_8", "rollout"] == 10
    assert found["engine_9", "rollout"] == 0


def test_a_process_without_known_waits_is_left_out():
    assert spare([process("rank_0", (0, 60, "actor")), process("rank_1", (0, 100, "actor"))]) == {}


def test_a_gain_that_depends_on_a_possible_wait_is_not_known():
    """Rank 0 may have waited from 50 to 90 µs. If it did not, rank 2 decides when the step ends."""
    made = graph(
        process("rank_0", (0, 100, "actor"), maybe=[(50, 90, "rank_1")], waits=[(96, 100, "rank_2")]),
        process("rank_1", (0, 100, "actor"), waits=[(95, 100, "rank_2")]),
        process("rank_2", (0, 100, "actor")),
    )
    assert gain(made, rank_1=[(0, 40)]) == 0
    several = [
        process("rank_0", (0, 100_000, "actor"), maybe=[(50_000, 90_000, "rank_1")]),
        process("rank_1", (0, 100_000, "actor")),
    ]
    assert gain(graph(*several), rank_1=[(0, 40_000)]) is None
    assert spare(several) == {}


def test_a_wait_that_may_have_been_longer():
    """Rank 0 waited for rank 1 from 60 ms on, or from 20 ms on: without 60 ms of rank 1, the step ends 30 or 60 ms earlier."""
    known = [
        process(
            "rank_0",
            (0, 100_000, "actor"),
            waits=[(60_000, 90_000, "rank_1")],
            maybe=[(20_000, 90_000, "rank_1")],
        ),
        process("rank_1", (0, 100_000, "actor")),
    ]
    assert gain(graph(*known), rank_1=[(0, 60_000)]) is None
    assert gain(graph(*known), rank_1=[(0, 20_000)]) == 20_000

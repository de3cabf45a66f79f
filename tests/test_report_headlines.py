"""What is worth a sentence, what is not, and which comes first."""

from __future__ import annotations

import pytest

from stepprof.report.headlines import ALL_ENGINES, headlines
from stepprof.report.schema import (
    Idle,
    Memory,
    Overhead,
    Overlap,
    PhaseSkew,
    ProcessTime,
    Report,
    Rollout,
    Sample,
    SourceInfo,
    TimeOf,
)


def texts(**parts):
    return [headline.text for headline in headlines(Report("r", 2, 0, 10.0, "one host", 0, **parts))]


def skew(straggler="actor rank 3", late=1.8, *, role="actor", region="update_actor", others=3, **more):
    waited = [ProcessTime(f"actor rank {number}", late) for number in range(others)]
    more = {"significant": True, "began_later": 0.0, **more}
    return PhaseSkew(role, region, straggler, late, late, waited, **more)


def rollout(label="rollout/0", below=0.41, tail=0.0, iterations=9, seconds=5.0, samples=()):
    return Rollout(label, iterations, seconds, 8.0, 4.0, below, tail, [], list(samples))


def idle(label="rank 0", **causes):
    return Idle(label, 10.0, 10.0 - sum(causes.values()), causes)


def test_nothing_stands_out():
    assert texts() == []


def test_where_the_step_went_comes_first():
    roles = [
        TimeOf(None, None, 10.0, 1.0, []),
        TimeOf("actor", None, 3.0, 0.3, []),
        TimeOf("rollout", None, 6.1, 0.61, []),
    ]
    assert texts(roles=roles, skew=[skew()])[0] == "the step took 10.0 s: rollout 61%, actor 30%"


class TestStragglers:
    def test_a_rank_that_finishes_after_the_others(self):
        assert texts(skew=[skew()]) == [
            "actor rank 3 finished 1.8 s after the others in update_actor (actor)"
        ]
        assert texts(skew=[skew(region=None, others=1)]) == [
            "actor rank 3 finished 1.8 s after actor rank 0 in actor"
        ]

    def test_who_waited_inside_collectives(self):
        row = skew("actor rank 1", 0.5, region=None, basis="collectives", began_later=None)
        assert texts(skew=[row]) == [
            "inside the collectives of actor, actor rank 0 waited 500 ms, mostly for actor rank 1"
        ]
        row = skew("rank 1", 0.5, role=None, region=None, others=1, basis="collectives")
        assert texts(skew=[row]) == [
            "inside the collectives of the step, actor rank 0 waited 500 ms for rank 1"
        ]

    def test_what_it_was_late_by_already_is_not_counted_again(self):
        rows = [skew(region="forward", late=2.0), skew(region="backward", late=2.5, began_later=2.0)]
        assert texts(skew=rows) == ["actor rank 3 finished 2.0 s after the others in forward (actor)"]
        own = skew(region=None, late=2.5, began_later=1.0, straggler="actor rank 4")
        assert texts(skew=[own]) == [
            "actor rank 4 finished 2.5 s after the others in actor, having begun 1.0 s later"
        ]

    @pytest.mark.parametrize("row", [skew(late=0.09), skew(significant=False), skew(began_later=1.79)])
    def test_too_little_or_within_the_clocks_error_is_not_said(self, row):
        assert texts(skew=[row]) == []

    def test_three_at_most_the_worst_first(self):
        rows = [skew(f"rank {n}", late=float(n), region=None) for n in range(1, 6)]
        assert [text.split(" finished")[0] for text in texts(skew=rows)] == ["rank 5", "rank 4", "rank 3"]


class TestRollout:
    def test_one_engine(self):
        assert texts(rollout=[rollout()]) == [
            "generation ran below half of its peak batch for 41% of the rollout"
        ]

    def test_all_engines_speak_for_each(self):
        rows = [
            rollout(below=0.9),
            rollout("rollout/1", below=0.9),
            rollout(ALL_ENGINES, below=0.5, tail=1.2),
        ]
        assert texts(rollout=rows) == [
            "generation ran below half of its peak batch for 50% of the rollout, the last 1.2 s without a break"
        ]

    def test_samples_where_there_is_no_engine(self):
        sample = Sample("3/7", 0.0, 4.0, {"generate": 1.0, "tool_call": 3.0})
        assert texts(rollout=[rollout("samples of rank 0", iterations=0, samples=[sample])]) == [
            "for 41% of the rollout fewer than half of its 8 samples were in flight",
            "the longest sample, 3/7, took 4.0 s, 75% of it in tool_call",
        ]

    def test_a_full_or_a_short_rollout_is_not_said(self):
        assert texts(rollout=[rollout(below=0.2)]) == []
        assert texts(rollout=[rollout(seconds=0.01)]) == []


def test_idleness_is_a_mean_over_the_processes_by_cause():
    rows = [idle(rollout=6.0, unknown=3.0), idle("rank 1", rollout=4.0, host=0.1)]
    assert texts(idle=rows) == [
        "2 processes stood idle for 50% of the step on average, waiting for the rollout"
    ]
    assert texts(idle=rows[:1]) == ["rank 0 stood idle for 60% of the step, waiting for the rollout"]


class TestOverlap:
    def test_what_nothing_overlaps_and_how_much_of_it_is_waiting(self):
        rows = [
            Overlap("rank 0", "cpu", 5.0, 2.0, 0.5, 1.5, 0.7),
            Overlap("rank 1", "cpu", 5.0, 2.0, 1.5, 0.5, 0.7),
        ]
        assert texts(overlap=rows) == [
            "50% of the communication is not overlapped by computation: 1.0 s per process"
        ]
        assert texts(overlap=rows, idle=[idle(collective=0.5)]) == [
            "50% of the communication is not overlapped by computation: 1.0 s per process, 25% of it waiting for a straggler"
        ]

    def test_how_busy_the_devices_were(self):
        rows = [Overlap(f"rank {n}", "gpu", 1.0, 0.0, 0.0, 0.0, share) for n, share in enumerate((0.4, 0.6))]
        assert texts(overlap=rows) == ["the GPUs were busy for 50% of what was captured"]


def test_the_recording_itself():
    assert texts(overhead=[Overhead("rank 0", 0.5, 0.2, 9.0), Overhead("rank 1", None, None, 1.0)]) == [
        "the recording itself held rank 0 up for 700 ms"
    ]
    assert texts(overhead=[Overhead("rank 0", 0.05, None, 9.0)]) == []


def test_roles_that_overlap_are_said_to_and_a_tiny_one_is_left_out():
    roles = [
        TimeOf(name, None, 10 * share, share, []) for name, share in (("a", 0.8), ("b", 0.3), ("c", 0.004))
    ]
    assert texts(roles=roles)[0] == "the step took 10.0 s: a 80%, b 30% (they overlap)"


def test_the_highest_peak_of_a_device_rather_than_of_the_host():
    rows = [
        Memory("rank 0", "CPU, allocated", 9 * 2**30, 1.0),
        Memory("rank 1", "GPU 0, reserved", 2**30, 1.0),
    ]
    assert texts(memory=rows) == ["rank 1 reached 1.0 GiB (GPU 0, reserved)"]
    assert texts(memory=rows[:1]) == ["rank 0 reached 9.0 GiB (CPU, allocated)"]


def test_what_is_missing_comes_last():
    def info(label, events, status="failed"):
        return SourceInfo(label, "rank", None, None, 0, None, None, status, events, None, "", 0, None)

    sources = [info(f"rank {n}", 0) for n in range(4)] + [info("rank 9", 5), info("spans", 0, None)]
    assert (
        texts(sources=sources, skew=[skew()])[-1]
        == "4 of 6 sources have no events: rank 0, rank 1, rank 2, …"
    )


def test_the_costliest_comes_first():
    said = texts(skew=[skew()], overhead=[Overhead("rank 0", 3.0, None, None)], rollout=[rollout(below=0.5)])
    assert [text.split()[0] for text in said] == ["the", "generation", "actor"]

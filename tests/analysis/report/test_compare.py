"""Comparisons of two reports, and the noise that they state."""

from __future__ import annotations

import msgspec
import pytest

from stepprof.analysis.report.compare import compare
from stepprof.analysis.report.schema import Op, Problem, ProcessTime, Report, Rollout, Spread, TimeOf


def time_of(region, *seconds, role="actor", share=0.5):
    processes = [ProcessTime(f"rank {rank}", each) for rank, each in enumerate(seconds)]
    return TimeOf(role, region, max(seconds), share, processes)


def op(name, *own, kind="op"):
    processes = [ProcessTime(f"rank {rank}", each) for rank, each in enumerate(own)]
    return Op(name, kind, len(own), sum(own), sum(own), 0.5, processes)


def report(seconds=10.0, step=2, **more):
    return Report("r", step, 0, seconds, "one host", 0, **more)


def change(comparison, what):
    return next(each for each in comparison.changes if each.what == what)


class TestChanges:
    def test_beyond_the_noise_is_significant_and_within_is_not(self):
        before = report(roles=[time_of(None, 3.0, 3.2), time_of(None, 1.0, 1.5, role="ref")])
        after = report(11.0, step=3, roles=[time_of(None, 4.0, 4.2), time_of(None, 1.0, 1.6, role="ref")])
        compared = compare(before, after)
        assert (compared.a, compared.b) == ("r step 2", "r step 3")
        slower = change(compared, "actor")
        assert (slower.topic, slower.a, slower.b, slower.significant) == ("role", 3.2, 4.2, True)
        assert slower.noise == pytest.approx(2 * 0.1 * 2**0.5)
        assert not change(compared, "ref").significant

    def test_the_largest_change_comes_first(self):
        compared = compare(
            report(10.0, regions=[time_of("a", 1.0), time_of("b", 5.0)]),
            report(10.5, regions=[time_of("a", 1.2), time_of("b", 2.0)]),
        )
        assert [each.what for each in compared.changes] == ["actor: b", "step", "actor: a"]

    def test_the_noise_of_one_process_is_unknown(self):
        compared = compare(report(roles=[time_of(None, 3.0)]), report(roles=[time_of(None, 5.0)]))
        assert (change(compared, "actor").noise, change(compared, "actor").significant) == (None, False)
        assert [finding.text for finding in compared.findings] == [
            "the step took 10 s, as long as before",
            "actor took 67% longer: 3.0 s before, 5.0 s now; the noise is unknown: there is one process, and too few other steps have spans",
        ]

    def test_variation_between_steps_is_not_significant(self):
        """The larger of the two noises counts: between processes or from step to step. The sentence
        says which.
        """
        before = report(10.0, roles=[time_of(None, 3.0, 3.0)], regions=[time_of("load", 1.0, 1.0)])
        after = report(11.0, step=3, roles=[time_of(None, 3.5, 3.5)], regions=[time_of("load", 2.0, 2.0)])
        spreads = [
            [Spread(None, None, 8, 10.0, 0.6), Spread("actor", None, 8, 3.0, 0.1)],
            [Spread("actor", None, 12, 3.0, 0.3)],
        ]
        compared = compare(before, after, spreads)
        actor = change(compared, "actor")
        assert (actor.noise, actor.noise_processes, actor.noise_steps, actor.steps) == (0.6, 0.0, 0.6, 12)
        assert not actor.significant
        assert change(compared, "actor: load").significant
        assert change(compared, "actor: load").noise_steps is None
        assert [finding.text for finding in compared.findings] == [
            "the step took 10% longer: 10 s before, 11 s now; the noise is 1.2 s, from step to step (8 steps): within noise",
            "actor: load took 100% longer: 1.0 s before, 2.0 s now; the noise is 0 us, between processes",
        ]

    def test_operators_are_compared_per_process(self):
        """Report A has one rank and B has four. The sums of their operators differ, but the work of
        a process does not.
        """
        compared = compare(report(ops=[op("mm", 1.0)]), report(ops=[op("mm", 1.0, 1.1, 0.9, 1.0)]))
        assert (change(compared, "mm").a, change(compared, "mm").b) == (1.0, 1.0)

    def test_rollouts_and_their_tails(self):
        row = Rollout("rollout/0", 10, 4.0, 8, 4, 0.5, 1.0, [])
        other = msgspec.structs.replace(row, label="rollout/1", seconds=4.4, tail=1.2)
        slower = msgspec.structs.replace(row, seconds=6.0, tail=3.0)
        compared = compare(report(rollout=[row, other]), report(rollout=[slower]))
        assert change(compared, "rollout/0").significant
        assert change(compared, "rollout/0: tail").b == 3.0
        assert "rollout/1" not in [each.what for each in compared.changes]

    def test_samples_have_the_noise_of_other_processes_samples(self):
        rows = [Rollout(f"samples of rank {n}", 0, 4.0 + n, 8, 4, 0.5, 1.0, []) for n in range(2)]
        whole = Rollout("all samples", 0, 50.0, 8, 4, 0.5, 1.0, [])
        engine = Rollout("rollout/0", 5, 90.0, 8, 4, 0.5, 1.0, [])
        compared = compare(report(rollout=[*rows, whole, engine]), report(rollout=[*rows, whole, engine]))
        assert change(compared, "samples of rank 0").noise == pytest.approx(2 * 0.5 * 2**0.5)
        assert change(compared, "rollout/0").noise is None

    def test_a_shorter_step_is_reported(self):
        compared = compare(
            report(10.0, kernels=[op("gemm", 2.0, 2.0, kind="kernel")]),
            report(7.5, kernels=[op("gemm", 1.0, 1.0, kind="kernel")]),
        )
        assert [finding.text for finding in compared.findings] == [
            "the step took 25% shorter: 10 s before, 7.5 s now; the noise is unknown: fewer than three other steps have spans",
            "gemm took 50% shorter: 2.0 s before, 1.0 s now; the noise is 0 us, between processes",
        ]

    def test_a_step_with_nothing_in_it(self):
        compared = compare(report(0.0), report(1.0))
        assert compared.findings[0].text.startswith("the step took longer: 0 us before, 1.0 s now; ")


class TestProblems:
    def test_parts_of_only_one_report_are_problems(self):
        compared = compare(
            report(regions=[time_of("old", 2.0), time_of("tiny", 0.01, share=0.001)]),
            report(step=3, regions=[time_of("new", 3.0)]),
        )
        assert compared.problems == [
            Problem("r step 2", "actor: old took 2.0 s and does not occur in r step 3"),
            Problem("r step 3", "actor: new took 3.0 s and does not occur in r step 2"),
        ]

    def test_different_numbers_of_processes_and_reports_with_problems(self):
        compared = compare(
            report(roles=[time_of(None, 1.0)]),
            report(step=3, roles=[time_of(None, 1.0, 1.0)], problems=[Problem("x", "breaks off")]),
        )
        assert compared.problems == [
            Problem(None, "actor: 1 processes in A, 2 in B"),
            Problem("r step 3", "its report has 1 notes: it may be incomplete"),
        ]

"""Two reports compared, with noise stated; how long a time reads in a sentence; and whether B is a regression: planted ones are found, and noise is none."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest

from stepprof.analysis.report.compare import compare, gate
from stepprof.analysis.report.schema import Op, Problem, ProcessTime, Report, Rollout, Spread, TimeOf
from stepprof.analysis.report.step_noise import _interval, _spread


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


LIMIT = 0.05


def run_of(seconds):
    return [_spread(None, None, seconds)] if len(seconds) >= 3 else []


def judged(a, b, limit=LIMIT):
    return gate((0.0, 0.0), [run_of(a), run_of(b)], limit)


def drawn(rng, steps, mean, noise):
    return [rng.gauss(mean, noise * mean) for _ in range(steps)]


class TestTwoRuns:
    @pytest.mark.parametrize("noise", [0.005, 0.02, 0.05, 0.2])
    def test_pure_noise_is_not_a_regression(self, noise):
        """Of 400 pairs of equal runs, fewer than 2.5 % are called a regression, at any level of noise."""
        rng = random.Random(7)
        verdicts = [
            judged(drawn(rng, 20, 1.0, noise), drawn(rng, 20, 1.0, noise)).verdict for _ in range(400)
        ]
        assert verdicts.count("regression") <= 10
        if noise <= 0.02:
            assert verdicts.count("none") >= 390

    @pytest.mark.parametrize(("planted", "noise"), [(1.08, 0.005), (1.10, 0.02), (1.3, 0.05), (2.0, 0.2)])
    def test_planted_regressions_are_found(self, planted, noise):
        """At least 95 of 100 pairs with a planted regression are found, and none gets the verdict `none`."""
        rng = random.Random(11)
        verdicts = [
            judged(drawn(rng, 20, 1.0, noise), drawn(rng, 20, planted, noise)).verdict for _ in range(100)
        ]
        assert verdicts.count("regression") >= 95
        assert "none" not in verdicts

    def test_a_change_below_the_limit_is_not_a_regression(self):
        """The change exceeds the noise, but not the limit."""
        rng = random.Random(3)
        found = judged(drawn(rng, 40, 1.0, 0.005), drawn(rng, 40, 1.03, 0.005))
        assert found.verdict == "none"
        assert found.text.startswith("no regression above 5%: 999 ms before, 1.03 s now (+3.0%, noise 0.3%; ")

    def test_noise_that_hides_the_limit_cannot_be_judged(self):
        rng = random.Random(5)
        found = judged(drawn(rng, 8, 1.0, 0.3), drawn(rng, 8, 1.0, 0.3))
        assert found.verdict == "unknown"
        assert found.text.startswith("cannot be judged: the noise hides a change of 5%: ")
        assert found.noise > LIMIT

    def test_an_improvement_is_not_a_regression(self):
        """The noise is above the limit, but too small to hide a regression."""
        rng = random.Random(5)
        assert judged(drawn(rng, 20, 2.0, 0.2), drawn(rng, 20, 1.0, 0.2)).verdict == "none"

    def test_occasional_checkpoints_do_not_add_noise(self):
        """In both runs a tenth of the steps take three times as long. The deviation is 60 %, but
        the medians agree.
        """
        rng = random.Random(2)

        def with_checkpoints(mean):
            return [
                each * (3 if step % 10 == 0 else 1) for step, each in enumerate(drawn(rng, 40, mean, 0.01))
            ]

        assert judged(with_checkpoints(1.0), with_checkpoints(1.0)).verdict == "none"
        assert judged(with_checkpoints(1.0), with_checkpoints(1.1)).verdict == "regression"

    @pytest.mark.parametrize(
        ("a", "b", "text"),
        [
            (20, 2, "run B has the spans of fewer than 3 steps that can be compared and needs 6"),
            (5, 20, "run A has the spans of 5 steps that can be compared and needs 6"),
        ],
    )
    def test_too_few_steps(self, a, b, text):
        found = judged([1.0] * a, [2.0] * b)
        assert (found.verdict, found.a, found.noise) == ("unknown", None, None)
        assert text in found.text

    def test_steps_without_duration(self):
        assert judged([0.0] * 8, [1.0] * 8).verdict == "unknown"


class TestTwoSteps:
    """Two steps of one run are compared. The noise is twice the deviation between its other steps."""

    @pytest.mark.parametrize(
        ("times", "deviation", "verdict"),
        [
            ((10.0, 10.1), 0.1, "none"),
            ((10.0, 11.0), 0.1, "regression"),
            ((10.0, 11.0), 0.6, "unknown"),
            ((10.0, 11.5), 0.6, "regression"),
            ((10.0, 5.0), 0.6, "none"),
            ((10.0, 10.4), 0.24, "none"),
        ],
    )
    def test_verdicts(self, times, deviation, verdict):
        found = gate(times, [[Spread(None, None, 8, 10.0, deviation)]], LIMIT)
        assert (found.verdict, found.a, found.b) == (verdict, *times)
        assert "two steps of one run, noise from 8 other steps" in found.text

    def test_without_other_steps(self):
        for apart in ([[]], []):
            found = gate((1.0, 9.0), apart, LIMIT)
            assert found.verdict == "unknown"
            assert "fewer than three steps" in found.text


class TestInterval:
    @pytest.mark.parametrize("count", [6, 7, 10, 20, 99, 100, 101, 400])
    def test_the_interval_covers_the_true_median(self, count):
        """The interval covers the median in at least 93 % of 2,000 samples: 95 %, less a margin for
        chance.
        """
        rng = random.Random(count)
        covered = 0
        for _ in range(2000):
            low, high = _interval(sorted(rng.expovariate(1.0) for _ in range(count)))
            covered += low <= 0.6931471805599453 <= high
        assert covered >= 0.93 * 2000

    def test_the_interval_narrows_with_more_steps(self):
        widths = [high - low for low, high in (_interval(list(range(n))) for n in (100, 101, 102))]
        assert all(abs(b - a) <= 3 for a, b in pairwise(widths))
        assert _interval([1.0] * 5) is None
        assert _interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == (1.0, 6.0)

"""Whether run B is a regression: the gate finds planted regressions, and does not report noise as one."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from stepprof.analysis.report.gate import gate
from stepprof.analysis.report.schema import Spread
from stepprof.analysis.report.step_noise import _interval, _spread

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

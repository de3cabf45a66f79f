"""The noise of seconds that were measured in several steps or processes."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from stepprof.analysis.report.step_noise import median_interval, noise_of_difference, noise_of_processes


class TestDifference:
    @pytest.mark.parametrize("count", [3, 5, 20])
    def test_two_equal_steps_differ_by_more_in_one_of_twenty_pairs(self, count):
        """The noise comes from few other steps, and still at most 5 % of the pairs differ by more."""
        rng = random.Random(count)
        beyond = 0
        for _ in range(4000):
            a, b, *others = (rng.gauss(10, 1) for _ in range(count + 2))
            beyond += abs(a - b) > noise_of_difference(others, others)
        assert beyond <= 0.055 * 4000

    def test_the_noise_is_at_least_the_range(self):
        """One of ten steps has a checkpoint, so that a step that is longer by its time is nothing new."""
        assert noise_of_difference([1.0] * 9 + [2.0], [1.0] * 30) >= 1.0

    def test_few_values_have_no_noise(self):
        assert noise_of_difference([1.0, 2.0], [1.0, 2.0, 3.0]) is None


class TestProcesses:
    def test_a_slow_process_is_no_noise(self):
        """The spread of the side with a slow rank is left out; without another side nothing is known."""
        slow, equal = [1.87, 0.0076, 0.0075, 0.0077], [0.0076, 0.0075, 0.0077, 0.0076]
        assert noise_of_processes(slow, equal) < 0.001
        assert noise_of_processes(slow, slow) is None

    def test_one_process_has_no_noise(self):
        assert noise_of_processes([1.0], [2.0]) is None


class TestInterval:
    @pytest.mark.parametrize("count", [6, 7, 10, 20, 99, 100, 101, 400])
    def test_the_interval_covers_the_true_median(self, count):
        """The interval covers the median in at least 93 % of 2,000 samples: 95 %, less a margin for
        chance.
        """
        rng = random.Random(count)
        covered = 0
        for _ in range(2000):
            low, high = median_interval([rng.expovariate(1.0) for _ in range(count)])
            covered += low <= 0.6931471805599453 <= high
        assert covered >= 0.93 * 2000

    def test_the_interval_narrows_with_more_steps(self):
        widths = [high - low for low, high in (median_interval(list(range(n))) for n in (100, 101, 102))]
        assert all(abs(b - a) <= 3 for a, b in pairwise(widths))
        assert median_interval([1.0] * 5) is None
        assert median_interval([6.0, 2.0, 3.0, 1.0, 5.0, 4.0]) == (1.0, 6.0)

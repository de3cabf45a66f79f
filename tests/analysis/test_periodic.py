"""The period of steps that are alike, and the steps that warm a run up."""

from __future__ import annotations

import random

import pytest

from stepprof.analysis.periodic import period, tolerance, warm_up


class TestPeriod:
    @pytest.mark.parametrize("length", [2, 3, 5, 7, 10])
    @pytest.mark.parametrize("phase", [0, 1])
    def test_steps_at_equal_distances(self, length, phase) -> None:
        """The period is found, whatever its first step is."""
        known = range(1, 40)
        alike = [step for step in known if step % length == phase]
        this = alike[len(alike) // 2]
        assert period(this, [step for step in alike if step != this], known) == length

    def test_a_step_on_the_period_that_is_usual(self) -> None:
        """Step 28 is on the period and like the others: the period is none."""
        assert period(14, [7, 21, 35], range(1, 40)) is None

    def test_too_few_steps_show_it(self) -> None:
        """Two steps at a distance are no period."""
        assert period(14, [7], range(1, 20)) is None

    def test_steps_of_another_cause(self) -> None:
        """A single other step does not hide the period; as many others do."""
        assert period(14, [7, 21, 28, 30], range(1, 32)) == 7
        assert period(14, [7, 21, 28, 3, 9, 17, 30], range(1, 32)) is None

    def test_random_steps_have_no_period(self) -> None:
        """Of steps that are late by chance, few appear to have a period."""
        chance = random.Random(5)
        found = [
            period(15, [step for step in range(1, 31) if step != 15 and chance.random() < 0.15], range(1, 31))
            for _ in range(400)
        ]
        assert sum(each is not None for each in found) < 40


class TestTolerance:
    def test_one_extreme_value(self) -> None:
        """One long step makes no other long step usual."""
        assert tolerance([1.0, 1.02, 0.98, 1.01, 30.0]) < 0.1


class TestWarmUp:
    def test_the_first_values(self) -> None:
        """Only values before the usual ones are those of a warm-up."""
        assert warm_up([20.0, 8.0, 1.0, 1.1, 0.9, 1.0, 9.0]) == 2
        assert warm_up([1.0, 1.1, 0.9, 1.0, 9.0]) == 0

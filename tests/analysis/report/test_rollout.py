"""Distributions of durations, of one source and of several."""

from __future__ import annotations

import numpy as np

from stepprof.analysis.report.rollout import (
    MOST_VALUES,
    Distribution,
    distribution_of,
    packed,
    seconds_of,
)


class TestSecondsOf:
    def test_seconds_of_one_and_of_several_sources(self):
        """The count includes all durations, also where only their quantiles are stored."""
        one = distribution_of([3, 10, 1, 2, None])
        many = Distribution(400, packed(np.array([5_000_000_000])))
        reported = seconds_of([one])
        assert (reported.count, reported.mean, reported.median, reported.p95, reported.longest) == (
            4,
            4e-9,
            2e-9,
            10e-9,
            10e-9,
        )
        assert seconds_of([one, many]).median == 5.0
        assert seconds_of([one, many]).count == 404

    def test_an_empty_part_changes_nothing(self):
        one = distribution_of([7])
        assert seconds_of([one, Distribution()]) == seconds_of([one])

    def test_nothing_is_known(self):
        """Distributions without durations, as older digests have them, make the result unknown."""
        assert seconds_of([Distribution(4), distribution_of([7])]) is None
        assert seconds_of([Distribution()]) is None
        assert seconds_of([]) is None


class TestPacked:
    def test_more_values_are_as_many_quantiles(self):
        many = np.arange(10 * MOST_VALUES)[::-1]
        reported = seconds_of([Distribution(len(many), packed(many))])
        assert len(packed(many)) == 8 * MOST_VALUES
        assert abs(reported.median * 1e9 - len(many) / 2) <= 10

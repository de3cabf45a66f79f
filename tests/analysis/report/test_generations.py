"""What the engines and the bound samples of each role generated, of hand-made steps."""

from __future__ import annotations

from combined import report
from digested import engine


class TestGenerationsOf:
    def test_engines_of_different_roles_are_not_added_up(self):
        """Two engines of the rollout have a sum; the engine of the reward model is no part of it."""
        made = report(engine(0, (0, 50, 8)), engine(1, (0, 40, 8)), engine(0, (50, 40, 3), role="reward"))
        assert [(row.label, row.seconds, row.peak_batch) for row in made.rollout] == [
            ("reward/0 worker 0", 0.04, 3),
            ("rollout/0 worker 0", 0.05, 8),
            ("rollout/1 worker 0", 0.04, 8),
            ("all engines of rollout", 0.05, 16),
        ]

    def test_one_role_needs_no_name_in_the_sum(self):
        made = report(engine(0, (0, 50, 8)), engine(1, (0, 40, 8)))
        assert made.rollout[-1].label == "all engines"

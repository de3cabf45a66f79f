"""Test which optimizer counts; tests/real/integrations has the real frameworks."""

from __future__ import annotations

import pytest

from stepprof.integrations.optimizer_steps import LeadingOptimizer


class Optimizer:
    """An optimizer that is compared by identity, as torch's are."""


class TestLeadingOptimizer:
    @pytest.mark.parametrize(
        ("steps", "counted"),
        [
            ("aaa", "xxx"),
            ("ababab", "x.x.x."),
            ("aaabaaab", "xxx.xxx."),
            ("aaabbbb", "xxx.xxx"),
            ("abbbabbb", "x.xx.xxx"),
        ],
    )
    def test_steps(self, steps: str, counted: str) -> None:
        """The first optimizer counts, until another one steps more often: a phase of its own, or a critic."""
        leading = LeadingOptimizer()
        optimizers = {name: Optimizer() for name in "ab"}
        assert "".join("x" if leading.counts(optimizers[name]) else "." for name in steps) == counted

    def test_an_optimizer_that_is_gone(self) -> None:
        """If the leading optimizer no longer exists, the next one that steps leads."""
        leading = LeadingOptimizer()
        first = Optimizer()
        assert leading.counts(first)
        del first
        assert leading.counts(Optimizer())

"""Expensive combinations cause a warning with an estimate, and cheap ones do not."""

from __future__ import annotations

from typing import Any

import pytest

from stepprof.config.config import Config

STACKS = (
    'torch.with_stack with ranks = "all": each rank writes up to 430 MB per step before compression, and holds 390 MB of host memory until the export '
    '(assuming 100,000 ops per rank and step); set ranks = "0", or leave torch.with_stack out'
)


class TestHeavyCombinations:
    @pytest.mark.parametrize(
        ("mapping", "parts"),
        [
            ({"ranks": "all", "torch": {"with_stack": True}}, [STACKS]),
            (
                {"ranks": "all", "torch": {"with_modules": True}},
                ['torch.with_modules with ranks = "all"', "430 MB"],
            ),
            (
                {"ranks": "all", "steps": "all"},
                ['steps = "all" with ranks = "all"', "130 MB per step", '"every 100"'],
            ),
            ({"ranks": "all", "steps": "every 1"}, ['steps = "every 1" with ranks = "all"']),
            ({"steps": "1-50", "join_steps": True}, ["one capture over 50 steps", "19.5 GB", "390 MB"]),
            ({"steps": "1-10000", "join_steps": True}, ["one capture over 10,000 steps", "3.9 TB"]),
            ({"steps": "all", "join_steps": True}, ["one capture over all steps"]),
            (
                {"engine": {"with_stack": True, "max_iterations": "none"}},
                ['engine.with_stack with engine.max_iterations = "none"', "the engine records", "9.8 GB"],
            ),
            (
                {"ranks": "all", "engine": {"with_stack": True, "max_iterations": "none"}},
                ["every replica records with stacks", "max_iterations = 32"],
            ),
        ],
    )
    def test_expensive_combinations_are_warned_about_with_an_estimate(
        self, mapping: dict[str, Any], parts: list[str]
    ) -> None:
        """The warning names the keys, the cost, the assumption and the change to make."""
        (warning,) = Config(**{"steps": "2", **mapping}).warnings()
        for part in parts:
            assert part in warning

    @pytest.mark.parametrize(
        "mapping",
        [
            {"torch": {"with_stack": True, "record_shapes": True, "profile_memory": True}},
            {"ranks": "all"},
            {"ranks": "all", "torch": {"record_shapes": True}},
            {"steps": "all"},
            {"steps": "1-10", "join_steps": True},
            {"engine": {"with_stack": True, "max_iterations": 32}},
            {"steps": "none", "ranks": "all", "torch": {"with_stack": True}},
            {"ranks": "all", "backend": "null", "torch": {"with_stack": True}},
            {"roles": {"ref": {"enabled": False, "ranks": "all", "torch": {"with_stack": True}}}},
        ],
    )
    def test_cheap_combinations_are_not_warned_about(self, mapping: dict[str, Any]) -> None:
        """Combinations that are cheap, or that record nothing, cause no warning."""
        assert Config(**{"steps": "2", **mapping}).warnings() == ()

    def test_a_role_is_named(self) -> None:
        """The warning about a combination that only a role has names the role."""
        config = Config(steps="2", torch={"with_stack": True}, roles={"actor": {"ranks": "all"}})
        assert config.warnings() == (f"roles.actor: {STACKS}",)

    def test_inherited_combinations_are_warned_about_once(self) -> None:
        """Roles that inherit an expensive combination do not repeat the warning."""
        config = Config(steps="2", ranks="all", torch={"with_stack": True}, roles={"a": {}, "b": {}})
        assert config.warnings() == (STACKS,)

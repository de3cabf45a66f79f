"""Attributes that state how much work was done."""

from __future__ import annotations

import pytest

from stepprof.run.amounts import amounts


@pytest.mark.parametrize("value", [-1, -0.5, float("nan"), float("inf"), 10**400, True, "8", None, [1], {}])
def test_invalid_amounts_are_left_out(value) -> None:
    """An invalid amount is left out, and the others stay."""
    assert amounts({"tokens": value, "samples": 3, "batch_size": 2.5, "loss": 1}) == {
        "samples": 3.0,
        "batch_size": 2.5,
    }


@pytest.mark.parametrize("attributes", [None, [], "tokens", 5, {}])
def test_no_attributes(attributes) -> None:
    """Attributes that are no mapping, as in a damaged line, contain no amounts."""
    assert amounts(attributes) == {}

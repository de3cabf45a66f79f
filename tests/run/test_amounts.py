"""Attributes that state how much work was done."""

from __future__ import annotations

import pytest

from stepprof.run.amounts import amounts, empty_share


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


@pytest.mark.parametrize(
    ("calls", "share"),
    [
        ([(100, 8, 8)], 0.0),
        ([(100, 0, 8)], 1.0),
        ([(100, 12, 8), (100, 4, 8)], 0.25),
        ([(100, 4, 8), (300, 16, 16)], 0.125),
        ([(30, 2, 4), (50, 4, 4)], 0.0625),
        ([(0, 2, 4)], 0.0),
        ([(10, 0, 0)], 0.0),
    ],
    ids=["full", "empty", "too full", "other room", "fuller is longer", "no time", "no room"],
)
def test_time_on_empty_places(calls, share) -> None:
    """Each call counts by its own time, as far as that does not depend on its samples."""
    assert empty_share(calls) == share

"""Run the complete benchmark suite once with real libraries. Every measurement runs to its end, and
no time is asserted.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from project.test_benchmarks import LIMITED, REPOSITORY, trial

from benchmarks.ranks import COMMANDS, GROUP, GROWTH
from benchmarks.run import MEASUREMENTS


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run a trial of all benchmarks."""
    return trial(tmp_path_factory.mktemp("bench"))


@pytest.mark.variant
@pytest.mark.timeout(600)
class TestWhole:
    def test_every_row_has_a_value_and_every_limit_a_verdict(self, whole: dict[str, Any]) -> None:
        """Every limit in the documentation has a verdict, and every value in the table is a number."""
        rows = whole["rows"]
        assert {(row["group"], row["name"]) for row in rows if row["within"] is not None} >= LIMITED
        assert all(isinstance(row["value"], int | float) for row in rows)
        assert all((row["within"] is None) == (row["limit"] is None) for row in rows)

    def test_every_measurement_has_rows_or_a_reason(self, whole: dict[str, Any]) -> None:
        """There are at least as many groups as measurements, except those for which this machine
        lacks something.
        """
        groups = {row["group"] for row in whole["rows"]}
        assert len(groups) >= len(MEASUREMENTS) - len(whole["absent"])

    def test_peers_that_are_not_installed_are_named(self, whole: dict[str, Any]) -> None:
        """Every measurement that was not possible is printed with its name."""
        assert (find_spec("verl") is None) == ("verl" in whole["absent"])
        for name in whole["absent"]:
            assert f"not measured: {name}" in whole["printed"]

    def test_window_compares_with_torch(self, whole: dict[str, Any]) -> None:
        """If torch is installed, the recorded window is compared with torch's own on every clock."""
        rows = [row for row in whole["rows"] if row["name"] == "stepprof as a share of torch"]
        expected = 0 if find_spec("torch") is None else 3
        assert expected == len(rows)

    def test_each_command_is_measured_over_the_number_of_ranks(self, whole: dict[str, Any]) -> None:
        """Each reading command has its seconds for three numbers of ranks, and their growth."""
        rows = whole["rows"]
        assert len([row for row in rows if row["group"] == GROUP]) == 3 * len(COMMANDS)
        growth = [row for row in rows if row["group"] == GROWTH]
        assert len(growth) == 2 * len(COMMANDS)
        assert all(row["limit"] == 1.1 for row in growth)


def test_versions_are_compared_side_by_side(tmp_path: Path) -> None:
    """Each row of this version has its ratio to the row of the other work tree, which here is the
    same one.
    """
    rows = trial(tmp_path, "versions", against=REPOSITORY)["rows"]
    assert {row["name"] for row in rows} == {
        f"in {REPOSITORY.name}",
        "this version",
        "this version, evidence off",
    }
    assert all(row["ratio"] > 0 for row in rows)
    assert {row["ratio"] for row in rows if row["name"].startswith("in ")} == {1.0}

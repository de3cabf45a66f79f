"""The judge of comparisons itself: it detects a false exit status, and false changes."""

from __future__ import annotations

import pytest

from truth.judging_pairs import (
    PASSED,
    REGRESSION,
    UNKNOWN,
    Compared,
    compared,
    false_comparison,
    false_status,
)
from truth.test_pairs import pair_of


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """Return a pair whose B is slower, and what the command says about it, which is true."""
    pair = pair_of(1)
    assert pair.kind == "slower"
    made = compared(pair.a, pair.b, tmp_path_factory.mktemp("pair"))
    assert false_status(made, complete=True) == []
    assert false_comparison(made) == []
    return made


class TestFalseStatus:
    @pytest.mark.parametrize("status", [PASSED, UNKNOWN, 1])
    def test_a_regression_that_passes_is_detected(self, slower: Compared, status: int) -> None:
        """A run that is clearly slower is a regression, and nothing else."""
        assert slower.status == REGRESSION
        assert false_status(slower._replace(status=status), complete=True) != []

    def test_a_verdict_without_all_spans_is_detected(self, slower: Compared) -> None:
        """A run that lacks the spans of a rank cannot be judged."""
        assert false_status(slower, complete=False) != []
        assert false_status(slower._replace(status=UNKNOWN), complete=False) == []


class TestFalseComparison:
    def test_a_change_the_other_way_round_is_detected(self, slower: Compared) -> None:
        """A part that became slower is not faster."""
        turned = [{**each, "a": each["b"], "b": each["a"]} for each in slower.content["changes"]]
        assert false_comparison(slower._replace(content={"changes": turned})) != []

    def test_a_change_of_equal_work_is_detected(self, slower: Compared) -> None:
        """A part that takes as long as before is not slower."""
        changed = {"what": "optimizer_step", "topic": "region", "a": 1.0, "b": 2.0, "significant": True}
        assert false_comparison(slower._replace(content={"changes": [changed]})) != []

    def test_a_missing_change_is_detected(self, slower: Compared) -> None:
        """A part that became slower in every process is significant."""
        within = [{**each, "significant": False} for each in slower.content["changes"]]
        assert false_comparison(slower._replace(content={"changes": within})) != []

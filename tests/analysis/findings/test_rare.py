"""Work that most neighbouring steps do not have. Times are in milliseconds."""

from __future__ import annotations

import pytest
from digested import spans

from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest


class Around:
    """Neighbouring steps with the seconds that each spent in `probe`. Each step has `update`."""

    def __init__(self, *probe):
        self.probe = probe

    def seconds(self, origin, role, region):
        return {step: 0.05 if region == "update" else spent for step, spent in enumerate(self.probe)}


def found(neighbours):
    made = spans(
        0,
        ("window", "step", 0, 100, None),
        ("region", "update", 0, 50, None),
        ("region", "probe", 50, 50, None),
        ("region", "update", 60, 20, None),
    )
    report = combine([digest(made)], step=2, run_id="r", neighbours=neighbours)
    return [each for each in report.findings if each.topic == "rare"]


def test_a_region_of_one_step_in_four():
    """Three of four neighbouring steps do not have `probe`. The finding includes the regions inside it."""
    (rare,) = found(Around(0.0, 0.0, 0.05, 0.0))
    assert rare.text == "rank 0 spent 50 ms in `probe`, which 3 of the 4 steps around it do not have"
    assert (rare.process, rare.region, rare.saves) == ("rank 0", "probe", 0.05)


@pytest.mark.parametrize(
    "neighbours",
    [None, Around(0.0, 0.0), Around(0.0, 0.05, 0.05)],
    ids=["no spans", "few steps", "most have it"],
)
def test_no_finding_without_comparable_steps(neighbours):
    assert found(neighbours) == []

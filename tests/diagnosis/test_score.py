"""The scorer: which finding it accepts as the planted fault, and which it counts as a false alarm."""

from __future__ import annotations

from typing import Any

import pytest

from .score import Outcome, false_alarms, misses

TRUTH = {
    "topic": "straggler",
    "process": "rank 1",
    "region": "forward",
    "seconds": 0.5,
    "why": "tokens",
    "step": 2,
    "step_seconds": 1.0,
    "noise_seconds": 0.0,
    "true": [],
}
FOUND = {
    "topic": "straggler",
    "process": "rank 1",
    "region": "update/forward",
    "seconds": 0.52,
    "text": "rank 1 has twice the tokens",
}
STEP = {"topic": "step", "text": "the step took 1 s", "seconds": 1.0}


def outcome(*findings: dict[str, Any], **truth: object) -> Outcome:
    return Outcome({**TRUTH, **truth}, {"seconds": 1.0, "findings": [STEP, *findings]})


class TestFirstFinding:
    def test_the_planted_fault(self) -> None:
        """The first finding with seconds has the right kind, process, innermost region, seconds and
        reason.
        """
        assert misses(outcome({"topic": "memory", "text": "8 GiB"}, FOUND)) == []

    @pytest.mark.parametrize(
        ("change", "missed"),
        [
            ({"topic": "idle"}, "topic idle, not straggler"),
            ({"process": "rank 0"}, "process rank 0, not rank 1"),
            ({"region": "forward/update"}, "region update, not forward"),
            ({"seconds": 0.56}, "0.560 s, not 0.500 s"),
            ({"text": "rank 1 is slow"}, 'no "tokens"'),
        ],
    )
    def test_each_difference_makes_it_wrong(self, change: dict[str, object], missed: str) -> None:
        """A difference in any of these fields is a miss."""
        assert misses(outcome({**FOUND, **change})) == [missed]

    def test_noise_is_allowed_for(self) -> None:
        """Seconds may differ by as much more as the machine has disturbed the job."""
        assert misses(outcome({**FOUND, "seconds": 0.56}, noise_seconds=0.02)) == []

    def test_a_second_finding_does_not_count(self) -> None:
        """Only the first finding is compared."""
        assert misses(outcome({"topic": "idle", "text": "idle", "seconds": 0.1}, FOUND)) != []

    def test_a_fault_of_the_recording(self) -> None:
        """A fault of the recording must be the very first finding, with or without seconds."""
        lost = {"topic": "coverage", "text": "rank 1 was lost", "process": "rank 1"}
        planted = {"topic": "coverage", "region": None, "seconds": None, "why": None}
        assert misses(outcome(lost, FOUND, **planted)) == []
        assert misses(outcome(FOUND, lost, **planted)) != []

    def test_a_report_without_a_finding_is_a_miss(self) -> None:
        """A report without a finding is a miss."""
        assert misses(outcome()) == ["no finding"]


class TestFalseAlarms:
    def test_above_five_percent(self) -> None:
        """A finding above 5 % of the step is a false alarm; a smaller one is not."""
        assert len(false_alarms(outcome(FOUND))) == 1
        assert false_alarms(outcome({**FOUND, "seconds": 0.04})) == []

    def test_true_findings_are_not_false_alarms(self) -> None:
        """A finding that the job declares as true is not a false alarm, nor is one below the
        disturbance by the machine.
        """
        assert false_alarms(outcome(FOUND, true=[["straggler", "forward"]])) == []
        assert false_alarms(outcome(FOUND, true=[["straggler", None]])) == []
        assert len(false_alarms(outcome(FOUND, true=[["straggler", "backward"]]))) == 1
        assert false_alarms(outcome(FOUND, noise_seconds=0.5)) == []

"""Real jobs with one planted fault each: the first finding of the report names the fault. Without
the fault, there is no such finding.

Two of the jobs run here. All of them run with `DIAGNOSIS=all`, as in `nox -s diagnosis`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from .score import FAULTY, NAMES, WITHOUT_SECONDS, Outcome, false_alarms, misses, run

CHEAP = ("loader_inline", "serial_reward")
NOT_YET: tuple[str, ...] = ()
"""Jobs whose fault the first finding does not name yet, with the reason."""
ALARMED_YET: tuple[str, ...] = ()
"""Jobs that have a false alarm without their fault, with the reason."""

pytestmark = pytest.mark.timeout(600)
Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a function that runs a job once, with its fault or `fixed`, for all tests."""
    folder: Path = tmp_path_factory.mktemp("jobs")
    known: dict[tuple[str, bool], Outcome] = {}

    def outcome(name: str, *, fixed: bool = False) -> Outcome:
        if (name, fixed) not in known:
            known[name, fixed] = run(name, folder, fixed=fixed)
        return known[name, fixed]

    return outcome


CHOSEN = NAMES if os.environ.get("DIAGNOSIS") == "all" else CHEAP
chosen = pytest.mark.parametrize("name", CHOSEN)
with_fault = pytest.mark.parametrize("name", [name for name in CHOSEN if name in FAULTY])


class TestJob:
    @with_fault
    def test_the_fault_costs_the_planted_time(self, name: str, outcome: Run) -> None:
        """The planted part is at least a quarter of the step. Without the fault the step is shorter
        by that part.
        """
        faulty, fixed = outcome(name).truth, outcome(name, fixed=True).truth
        if faulty["seconds"] is None:  # a fault of the recording
            assert faulty["topic"] in WITHOUT_SECONDS
            return
        assert faulty["seconds"] >= 0.25 * faulty["step_seconds"]
        gain = faulty["step_seconds"] - fixed["step_seconds"]
        noise = faulty["noise_seconds"] + fixed["noise_seconds"]
        planted = faulty["costs"] or faulty["seconds"] - fixed["seconds"]
        assert gain == pytest.approx(planted, abs=0.1 * faulty["step_seconds"] + noise)

    @with_fault
    def test_the_first_finding_names_the_planted_fault(self, name: str, outcome: Run) -> None:
        """The first finding has the fault's kind, process and innermost region, and its seconds
        within 10 %.
        """
        missed = misses(outcome(name))
        assert bool(missed) == (name in NOT_YET), missed

    @with_fault
    def test_the_predicted_gain_matches_the_fixed_run(self, name: str, outcome: Run) -> None:
        """The predicted gain equals the real gain without the fault, within 10 % of the step and
        the noise of the machine.
        """
        if name in NOT_YET:
            return
        faulty, fixed = outcome(name), outcome(name, fixed=True)
        saves = (faulty.first or {}).get("saves")
        assert (saves is None) == (faulty.truth["topic"] in WITHOUT_SECONDS)
        if saves is not None:
            gain = faulty.truth["step_seconds"] - fixed.truth["step_seconds"]
            noise = faulty.truth["noise_seconds"] + fixed.truth["noise_seconds"]
            assert saves == pytest.approx(gain, abs=0.1 * faulty.truth["step_seconds"] + noise)

    @chosen
    def test_without_the_fault(self, name: str, outcome: Run) -> None:
        """Without the fault, no finding above 5 % of the step is untrue."""
        alarms = false_alarms(outcome(name, fixed=True))
        assert bool(alarms) == (name in ALARMED_YET), alarms


def test_the_lists_are_current() -> None:
    """The lists of known misses and known false alarms contain only existing jobs."""
    assert set(NOT_YET) <= set(FAULTY)
    assert set(ALARMED_YET) <= set(NAMES)

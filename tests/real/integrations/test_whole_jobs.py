"""The reports of whole jobs of TRL and Lightning that do not mention stepprof: without a fault no finding is of 5 % of the step
or more; with one, the first finding is the fault.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepprof.run.runs import list_runs

pytestmark = pytest.mark.timeout(500)

FOLDER = Path(__file__).parent
STEP = 5
WORTH = 0.05
"""The share of the step above which a finding must be true."""
TRL = {
    "model": {"width": 512, "layers": 4},
    "max_steps": 8,
    "max_completion_length": 16,
    "per_device_train_batch_size": 8,
    "num_generations": 8,
}


@pytest.fixture
def report(tmp_path):
    """Return a function that runs a job with `stepprof run` and returns the report of its step."""

    def report(script: str, *arguments: str, **variables: str) -> dict[str, Any]:
        stepprof = [sys.executable, "-m", "stepprof"]
        job = [sys.executable, str(FOLDER / script), *arguments]
        offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        command = [*stepprof, "run", "--steps", str(STEP), "--", *job]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, **offline, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        (run,) = list_runs(tmp_path / "stepprof-runs")
        shown = [*stepprof, "report", str(run), "--step", str(STEP), "--json"]
        printed = subprocess.run(shown, capture_output=True, text=True, check=True)
        return json.loads(printed.stdout)

    return report


def causes(made: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the findings with seconds, and without the sentence about the step as a whole."""
    return [each for each in made["findings"] if each["topic"] != "step" and each.get("seconds")]


def loud(made: dict[str, Any]) -> list[str]:
    """Return the findings above 5 % of the step."""
    return [each["text"] for each in causes(made) if each["seconds"] > WORTH * made["seconds"]]


class TestLightning:
    def test_without_a_fault(self, report) -> None:
        """Regions that only the recorded step has are no findings: the other steps do the same."""
        made = report("lightning_job.py")
        assert made["seconds"] >= 0.5
        assert loud(made) == []

    def test_slow_data(self, report) -> None:
        """Each of the two batches of a step is loaded in 0.4 s more."""
        made = report("lightning_job.py", "slow_data")
        first = causes(made)[0]
        assert (first["topic"], first["region"].split("/")[-1]) == ("data", "fetch_data")
        assert first["seconds"] == pytest.approx(0.8, abs=0.1 + WORTH * made["seconds"])
        assert set(loud(made)) <= {first["text"]}

    def test_a_callback_that_sleeps_in_one_step(self, report) -> None:
        """The first finding names the sleep and its line; it is in no region that other steps have."""
        made = report("lightning_job.py", "slow_callback")
        first = causes(made)[0]
        assert first["topic"] == "sleep"
        assert "lightning_job.py" in first["why"]
        assert first["seconds"] == pytest.approx(1, abs=0.1)
        assert set(loud(made)) <= {first["text"]}


class TestTRL:
    def test_without_a_fault(self, report) -> None:
        """A region around the window of the rollout is in each step, so it is no finding."""
        made = report("grpo_job.py", JOB_SETTINGS=json.dumps(TRL))
        assert made["seconds"] >= 0.5
        assert loud(made) == []

    def test_a_slow_reward(self, report) -> None:
        """The function that scores the samples waits for 1.5 s, as for a service."""
        made = report("grpo_job.py", JOB_SETTINGS=json.dumps(TRL), REWARD_SECONDS="1.5")
        first = causes(made)[0]
        assert (first["topic"], first["role"]) == ("sleep", "reward")
        assert first["seconds"] == pytest.approx(1.5, abs=0.1)
        assert set(loud(made)) <= {first["text"]}

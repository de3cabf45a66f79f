"""Test a real version of TRL that lacks a name that the adapter needs. The adapter does not attach
and reports the reason, and the job trains.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs, read_run

pytestmark = [pytest.mark.oldest, pytest.mark.timeout(300)]

JOB = Path(__file__).parents[1] / "integrations" / "grpo_job.py"
BEFORE = os.environ["TRL_BEFORE"]
"""The folder of TRL 0.26.2, whose timer is a function."""


class TestTrl:
    def test_the_steps_are_recorded_without_its_timers(self, tmp_path: Path) -> None:
        """Transformers' adapter opens the windows. A log line and `run.json` name what TRL lacks."""
        path = os.pathsep.join([BEFORE, os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-m", "stepprof", "run", "--steps", "2", "--", sys.executable, str(JOB)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "result-0.json").exists()
        (run,) = list_runs(tmp_path / "stepprof-runs")
        adapters = read_run(run)["adapters"]
        assert adapters["transformers"]["status"] == "attached"
        assert (adapters["trl"]["status"], adapters["trl"]["version"]) == ("name_missing", "0.26.2")
        assert "trl.extras.profiling:ProfilingContext" in adapters["trl"]["reason"]
        assert "stepprof: trl 0.26.2: name_missing: not found: trl.extras.profiling" in done.stderr
        (window,) = read_step(run, 2)["windows"]
        assert (window["role"], window["status"]) == (None, "complete")

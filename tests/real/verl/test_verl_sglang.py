"""verl's replica of SGLang is attached and recorded on a processor: verl's own manager, servers and client, without its trainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import verl_job

from stepprof.analysis.report.analyse import analyse
from stepprof.analysis.timeline.find import find
from stepprof.analysis.verify import verify_run
from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs, steps

pytestmark = pytest.mark.timeout(600)

JOB = Path(__file__).with_name("sglang_servers_job.py")
STUBS = Path(__file__).parents[1] / "sglang" / "stubs"


def test_a_step_of_its_engine_is_recorded(tmp_path) -> None:
    """The second step has the engine's trace with its forward steps, and both steps have the same answers."""
    verl_job.prepare(tmp_path)
    given = verl_job.environment(
        tmp_path, SGLANG_USE_CPU_ENGINE="1", STEPPROF_STEPS="2", STEPPROF_RANKS="all"
    )
    given["PYTHONPATH"] = os.pathsep.join([str(STUBS), given["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, str(JOB), "answers.json"],
        cwd=tmp_path,
        env=given,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert answers["1"] == answers["2"]
    (run,) = list_runs(tmp_path / "stepprof-runs")
    assert steps(run) == [2]
    (entry,) = read_step(run, 2)["engines"]
    assert (entry["kind"], entry["role"], entry["status"]) == ("sglang", "rollout", "complete")
    assert entry["name"].startswith("SGLangHttpServer:")
    assert verify_run(run).problems == []
    (rollout,) = analyse(find([run], output_dir=tmp_path, step=2), workers=1).rollout
    assert rollout.iterations >= max(map(len, answers["2"]))
    assert "adapter.refused" not in done.stdout + done.stderr

"""A sweep of Hydra: several jobs in one process, each with a configuration of its own, as without stepprof."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs, steps

CONFIGURATION = """
which: 2
fails: false
stepprof:
  steps: "${which}"
  output_dir: ${oc.env:FOLDER}
  backend: "null"
hydra:
  job: {chdir: CHDIR}
"""
JOB = """
import os, sys
import hydra

@hydra.main(config_path=".", config_name="conf", version_base=None)
def main(cfg):
    from contextlib import nullcontext
    step = lambda _: nullcontext()
    if os.environ.get("RECORDED"):
        import stepprof
        stepprof.init(cfg.stepprof)
        step = stepprof.profile_step
    for number in (1, 2, 3):
        with step(number):
            print("job", cfg.which, "step", number, flush=True)
            if cfg.fails and number == 3:
                raise ValueError("out of luck")
    return cfg.which

main()
"""


@pytest.mark.parametrize(("chdir", "fails", "status"), [("false", "false", 0), ("true", "true", 1)])
def test_each_job_of_a_sweep_has_a_run(tmp_path, chdir, fails, status) -> None:
    """The next `init` ends the session of the job before, which has called no `shutdown`. Output and exit status are the same,
    also if the jobs fail, in folders of their own.
    """
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "conf.yaml").write_text(CONFIGURATION.replace("CHDIR", chdir))
    ended = []
    for variables in ({}, {"RECORDED": "1"}):
        done = subprocess.run(
            [sys.executable, "job.py", "-m", "which=1,2", f"fails={fails}"],
            cwd=tmp_path,
            env={**os.environ, **variables, "FOLDER": str(tmp_path / "runs"), "HYDRA_FULL_ERROR": "0"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        ended.append((done.returncode, [line for line in done.stdout.splitlines() if line.startswith("job")]))
        assert ("ValueError: out of luck" in done.stderr) is (fails == "true"), done.stderr
    assert ended[0] == ended[1]
    assert ended[0][0] == status
    found = [
        [(number, window["status"]) for number in steps(run) for window in read_step(run, number)["windows"]]
        for run in list_runs(tmp_path / "runs")
    ]
    assert sorted(found) == [[(1, "complete")], [(2, "complete")]]

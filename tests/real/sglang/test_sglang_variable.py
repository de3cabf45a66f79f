"""Test that an engine which the job builds without arguments of stepprof can be recorded. SGLang
needs no plug-in for that.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import sglang_tiny
from sglang_driven import Trace, forward_steps

from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs

JOB = """
import sys
import stepprof
from sglang_tiny import ENGINE

def main():
    from sglang import Engine

    stepprof.init()
    engine = Engine(model_path=sys.argv[1], **ENGINE)
    stepprof.attach(engine, role="rollout")
    for step in (1, 2):
        with stepprof.profile_step(step, role="rollout"):
            engine.generate("abc", {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True})
    stepprof.shutdown()
    engine.shutdown()

if __name__ == "__main__":
    main()
"""


class TestVariable:
    def test_an_engine_without_arguments_of_stepprof(self, model: str, tmp_path: Path) -> None:
        """With only the variables set, step 2 has its trace with each forward step."""
        (tmp_path / "job.py").write_text(JOB)
        given = sglang_tiny.variables()
        path = os.pathsep.join([str(Path(__file__).parent), given["PYTHONPATH"]])
        switched = {
            "STEPPROF_STEPS": "2",
            "STEPPROF_RANKS": "all",
            "STEPPROF_OUTPUT_DIR": str(tmp_path / "runs"),
        }
        done = subprocess.run(
            [sys.executable, "job.py", model],
            cwd=tmp_path,
            env={**os.environ, **given, **switched, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=220,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        (run,) = list_runs(tmp_path / "runs")
        (entry,) = read_step(run, 2)["engines"]
        assert (entry["kind"], entry["status"], entry["error"]) == ("sglang", "complete", None)
        (artifact,) = entry["artifacts"]
        assert Trace.read(run / "step-000002" / artifact["path"]).forward == forward_steps(3)

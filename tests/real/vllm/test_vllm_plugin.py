"""vLLM loads stepprof's plug-in by itself: an engine that the job builds without a line of stepprof can be recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import environment

from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs

JOB = """
import sys
import stepprof
from vllm_tiny import arguments

def main():
    from vllm import LLM, SamplingParams

    stepprof.init()
    engine = LLM(**arguments(sys.argv[1]))
    print("adapter", stepprof.state().adapters.get("vllm", {}).get("status"))
    stepprof.attach(engine, role="rollout")
    for step in (1, 2):
        with stepprof.profile_step(step, role="rollout"):
            engine.generate(["abc"], SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
    stepprof.shutdown()

if __name__ == "__main__":
    main()
"""


class TestPlugin:
    def test_an_engine_without_engine_args(self, model: str, tmp_path: Path) -> None:
        """The variable is all: the engine is built with a profiler, and step 2 has its trace."""
        (tmp_path / "job.py").write_text(JOB)
        switched = {
            "STEPPROF_STEPS": "2",
            "STEPPROF_RANKS": "all",
            "STEPPROF_OUTPUT_DIR": str(tmp_path / "runs"),
        }
        done = subprocess.run(
            [sys.executable, "job.py", model],
            cwd=tmp_path,
            env=environment({**switched, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}),
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "adapter attached" in done.stdout
        (run,) = list_runs(tmp_path / "runs")
        (entry,) = read_step(run, 2)["engines"]
        assert (entry["status"], entry["error"]) == ("complete", None)
        assert len(entry["artifacts"]) == 1

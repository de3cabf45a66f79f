"""Test that vLLM loads stepprof's plug-in itself. An engine that the job builds without arguments
of stepprof can be recorded.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import environment
from driven import begin, read_entries
from test_vllm_server import Serving
from vllm_driven import Trace

import stepprof
from stepprof.integrations.vllm import FOLDER
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


def _switched(folder: Path) -> dict[str, str]:
    """Return the variables that record step 2 below a folder."""
    return {"STEPPROF_STEPS": "2", "STEPPROF_RANKS": "all", "STEPPROF_OUTPUT_DIR": str(folder / "runs")}


class TestPlugin:
    @pytest.mark.variant
    def test_an_engine_without_engine_args(self, model: str, tmp_path: Path) -> None:
        """With only the variables set, the engine is built with a profiler, and step 2 has its
        trace.
        """
        (tmp_path / "job.py").write_text(JOB)
        done = subprocess.run(
            [sys.executable, "job.py", model],
            cwd=tmp_path,
            env=environment({**_switched(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}),
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

    def test_a_server_without_serve_args(self, model: str, tmp_path: Path) -> None:
        """With only the variables set, `vllm serve` has the routes of a profiler. The step
        continues while the server writes its trace, and is complete after that.
        """
        server = Serving(model, tmp_path / "log", env=_switched(tmp_path))
        try:
            server.wait()
            begin(tmp_path, steps="2")
            folder = tmp_path / "runs" / FOLDER / "engine-1"
            stepprof.attach(server.url, role="rollout", trace_dir=folder)
            with stepprof.profile_step(2):
                with stepprof.profile_step(2, role="rollout"):
                    server.generate(3)
                (pending,) = read_entries(tmp_path)
            is_there = (tmp_path / "run" / "step-000002" / "rollout/replica-0/rank-0.trace.json.gz").is_file()
        finally:
            stepprof.shutdown()
            server.close()
        (entry,) = read_entries(tmp_path)
        assert (pending["pending"], is_there) == (True, True)
        assert (entry["status"], entry["error"], entry["pending"]) == ("complete", None, False)
        assert len(Trace.named(tmp_path, entry["artifacts"][0]).forward) == 3

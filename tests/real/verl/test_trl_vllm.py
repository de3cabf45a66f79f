"""Test the real TRL with the real vLLM in the trainer's process and in a server. The job contains
no line of stepprof.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from engineserver import EngineServer

from stepprof.analysis.report.analyse import analyse
from stepprof.analysis.timeline.find import find
from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs, read_run

pytestmark = pytest.mark.timeout(500)

JOB = Path(__file__).with_name("grpo_vllm_job.py")
ALONE = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
}


def environment() -> dict[str, str]:
    """Return the variables of a job. TRL is in its own folder, because verl fails with a new TRL."""
    paths = [os.environ["TRL"], os.environ.get("PYTHONPATH", "")]
    return {**os.environ, **ALONE, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


SERVED = (
    *("--model", "model", "--dtype", "float32", "--max-model-len", "64", "--enforce-eager"),
    *("--gpu-memory-utilization", "0.1", "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"),
)


def recorded(folder: Path, *arguments: str) -> dict:
    """Run the job with its second step recorded, and return the manifest of that step."""
    command = [sys.executable, "-m", "stepprof", "run", "--steps", "2", "--", sys.executable, str(JOB)]
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return read_step(run_of(folder), 2)


def run_of(folder: Path) -> Path:
    (run,) = list_runs(folder / "stepprof-runs")
    return run


def windows(manifest: dict) -> list[tuple[int, str, str]]:
    """Return rank, role and status of each window."""
    return sorted((each["rank"], each["role"] or "step", each["status"]) for each in manifest["windows"])


WINDOWS = [
    (0, "actor", "joined"),
    (0, "actor", "joined"),
    (0, "reward", "joined"),
    (0, "rollout", "joined"),
    (0, "step", "complete"),
    (0, "weight_sync", "joined"),
]


class TestColocated:
    def test_the_engine_is_part_of_the_rank(self, tmp_path) -> None:
        """vLLM runs in the process that trains. The capture of that process contains its work, and
        no second one starts.
        """
        manifest = recorded(tmp_path)
        assert windows(manifest) == WINDOWS
        assert manifest["engines"] == []
        adapters = read_run(run_of(tmp_path))["adapters"]
        assert {name: adapters[name]["status"] for name in ("trl", "trl.vllm", "vllm")} == dict.fromkeys(
            ("trl", "trl.vllm", "vllm"), "attached"
        )
        report = analyse(find([run_of(tmp_path)], output_dir=tmp_path, step=2), workers=1)
        assert {"rollout", "weight_sync", "actor"} <= {time.role for time in report.roles}


@pytest.mark.variant
class TestServer:
    def test_the_server_is_recorded(self, tmp_path) -> None:
        """A `vllm serve` with the variable set is attached. The report of the rollout has its
        forward steps.
        """
        subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(JOB.parent)!r}); from grpo_vllm_job import write_model; write_model('model')"],
            cwd=tmp_path, env=environment(), check=True, capture_output=True,
        )  # fmt: skip
        variables = {"STEPPROF_STEPS": "2", "STEPPROF_OUTPUT_DIR": str(tmp_path / "stepprof-runs")}
        server = EngineServer(
            "vllm.entrypoints.openai.api_server",
            [*SERVED[:1], str(tmp_path / "model"), *SERVED[2:]],
            tmp_path / "server.log",
            env={**ALONE, **variables, "VLLM_SERVER_DEV_MODE": "1"},
        )
        try:
            server.wait()
            manifest = recorded(tmp_path, server.url)
        finally:
            server.close()
        assert windows(manifest) == WINDOWS
        (engine,) = manifest["engines"]
        assert (engine["role"], engine["kind"], engine["status"]) == ("rollout", "vllm", "complete")
        (rollout,) = analyse(find([run_of(tmp_path)], output_dir=tmp_path, step=2), workers=1).rollout
        assert rollout.iterations
        assert rollout.peak_batch == 8

"""Test the real vLLM as an engine under nsys, on a CPU. Its `cuda` profiler runs in its own
processes; the two calls go to libcudart without a GPU, and an executable replaces nsys. vLLM
refuses that profiler on a CPU. A plug-in (`vllm.general_plugins`), which vLLM loads in each of its
processes, removes this check, and also the NVTX ranges, which need a GPU.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from nsys.tools import build
from ran import Ran

from stepprof.backends.nsys import nsys_command

PLUGIN = """
import contextlib
import ctypes

def lift():
    import torch.cuda.profiler
    from vllm.profiler import wrapper

    wrapper._SUPPORTED_PROFILER_KINDS["cpu"] = frozenset(("torch", "cuda"))
    wrapper.CudaProfilerWrapper.annotate_context_manager = lambda self, name: contextlib.nullcontext()
    torch.cuda.profiler.start, torch.cuda.profiler.stop = start, stop

def start():
    ctypes.CDLL(None).cudaProfilerStart()

def stop():
    ctypes.CDLL(None).cudaProfilerStop()
"""
METADATA = "Metadata-Version: 2.1\nName: lifted\nVersion: 1.0\n"
ENTRY_POINTS = "[vllm.general_plugins]\nlifted = lifted:lift\n"

JOB = """
import json, os, sys
import stepprof

if __name__ == "__main__":
    from driven import unmeasured
    from vllm import LLM, SamplingParams
    from vllm_tiny import arguments

    # what engine_args says where there is CUDA
    with unmeasured():
        engine = LLM(**arguments(sys.argv[1], profiler_config={"profiler": "cuda", "ignore_frontend": True}))
    stepprof.init(json.loads(os.environ["CONFIG"]), rank=0, world_size=1, run_id="job")
    stepprof.attach(engine, role="rollout")
    for step in (1, 2, 3):
        with stepprof.profile_step(step, role="rollout"):
            engine.generate(["abc"], SamplingParams(max_tokens=8, ignore_eos=True), use_tqdm=False)
    stepprof.shutdown(60)
"""

OUTER = """
import subprocess, sys

sys.exit(subprocess.run(sys.argv[2:]).returncode)
"""


def test_reports_are_moved_to_the_step(run_vllm: Callable[..., Ran], model: str, tmp_path: Path) -> None:
    """Two windows are two ranges with two reports, each in the folder of its step. The limit of
    forward steps ends each capture before its window.
    """
    tools = build(tmp_path)
    plugin = tmp_path / "plugin"
    (plugin / "lifted-1.0.dist-info").mkdir(parents=True)
    (plugin / "lifted.py").write_text(PLUGIN)
    (plugin / "lifted-1.0.dist-info" / "METADATA").write_text(METADATA)
    (plugin / "lifted-1.0.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    engine = {"backend": "nsys", "max_iterations": 3}
    config = {
        "output_dir": str(tmp_path / "runs"),
        "steps": "1, 3",
        "backend": "null",
        "engine_start_timeout_seconds": 60,
        "roles": {"rollout": {"engine": engine}},
    }
    job = tmp_path / "job.py"
    job.write_text(JOB)
    command = nsys_command(
        config, command=[sys.executable, str(job), model], roles=["rollout"], engine=True, nsys=tools.nsys
    )
    env = {"PYTHONPATH": str(plugin), "CONFIG": json.dumps(config), "NSYS_STAND_IN_LOG": os.devnull}
    run_vllm(OUTER, *command, env=env).check()
    entries = {
        content["step"]: entry
        for path in sorted((tmp_path / "runs" / "job").glob("step-*/manifest/*.json"))
        for content in [json.loads(path.read_text())]
        for entry in content["engines"]
    }
    assert {step: entry["status"] for step, entry in entries.items()} == {1: "complete", 3: "complete"}, (
        entries
    )
    for number, step in enumerate((1, 3), 1):
        report = tmp_path / "runs" / "job" / f"step-{step:06d}" / "rollout" / "replica-0" / "engine.nsys-rep"
        assert json.loads(report.read_text())["range"] == number

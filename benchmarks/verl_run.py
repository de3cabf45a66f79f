"""Measure a whole training job of verl with one recorded step: by stepprof, and by verl's own
profiler.

The job is that of ``nox -s verl`` (FSDP2, vLLM, REINFORCE++, on CPUs). Seconds are verl's own
``timing_s/step``. The first step of each job contains imports; the other steps are those after the
second.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from benchmarks.child import REPOSITORY
from benchmarks.figures import Figure, Row

__all__ = ["measure_verl_run"]

JOB = REPOSITORY / "tests" / "real" / "verl" / "verl_job.py"
ROLES = "actor_rollout_ref"
RECORDED = 3


@dataclass(frozen=True)
class Profiler:
    """One way to record a step.

    Args:
        name: the name in the table.
        output: the folder below the job's in which it writes.
        options: Hydra's options that switch it on.
        variables: variables of the environment that switch it on.
    """

    name: str
    output: str = ""
    options: Sequence[str] = ()
    variables: dict[str, str] = field(default_factory=dict)


PROFILERS = (
    Profiler("no profiler"),
    Profiler(
        "stepprof",
        output="stepprof-runs",
        variables={"STEPPROF_STEPS": str(RECORDED), "STEPPROF_RANKS": "all"},
    ),
    Profiler(
        "verl's own profiler",
        output="verl-profile",
        options=(
            "global_profiler.tool=torch",
            f"global_profiler.steps=[{RECORDED}]",
            "global_profiler.save_path=verl-profile",
            f"{ROLES}.actor.profiler.enable=True",
            f"{ROLES}.actor.profiler.all_ranks=True",
            f"{ROLES}.rollout.profiler.tool_config.torch.discrete=True",
        ),
    ),
)


def measure_verl_run(*, quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Return rows of a job without a profiler, with stepprof, and with verl's own."""
    if find_spec("verl") is None or find_spec("vllm") is None:
        return [], {"a whole job of verl": "verl and vLLM are not both installed; nox -s bench_verl_run"}
    ranks, steps = (1, RECORDED + 1) if quick else (2, 8)
    version = importlib.metadata.version("verl")
    group = (
        f"a job of verl {version}: {ranks} ranks, {ranks} vLLM replicas, step {RECORDED} of {steps} recorded"
    )
    rows = []
    with tempfile.TemporaryDirectory(prefix="stepprof-bench-") as folder:
        for profiler in PROFILERS:
            rows += _rows(group, profiler, Path(folder) / profiler.name.replace(" ", "-"), ranks, steps)
    return rows, {}


def _rows(group: str, profiler: Profiler, folder: Path, ranks: int, steps: int) -> list[Row]:
    seconds = _run(profiler, folder, ranks, steps)
    others = Figure.of([taken for step, taken in seconds.items() if step > 2 and step != RECORDED])
    recorded = seconds[RECORDED]
    rows = [
        Row(group, f"{profiler.name}: other steps", "s", others.minimum, others.median, others.spread),
        Row(group, f"{profiler.name}: step {RECORDED}", "s", recorded, added=recorded - others.median),
    ]
    if profiler.output:
        left = [path for path in (folder / profiler.output).rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in left) / 2**20
        rows += [
            Row(group, f"{profiler.name}: files", "files", len(left)),
            Row(group, f"{profiler.name}: size of the files", "MiB", size),
        ]
    return rows


def _run(profiler: Profiler, folder: Path, ranks: int, steps: int) -> dict[int, float]:
    """Run the job in its folder, and return the seconds of each step."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STEPPROF")}
    options = (f"trainer.n_gpus_per_node={ranks}", f"trainer.total_training_steps={steps}", *profiler.options)
    done = subprocess.run(
        [sys.executable, str(JOB), str(folder), *options], env={**kept, **profiler.variables}, check=False
    )
    if done.returncode:
        raise RuntimeError((folder / "job.log").read_text(errors="replace")[-4000:])
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["data"]["timing_s/step"] for line in lines}

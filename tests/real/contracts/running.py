"""Run the job of a framework's skeleton under `stepprof run`, and read its spans."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from stepprof.run.runs import list_runs
from stepprof.run.spans import read_spans

SECOND_STEP = ("--steps", "2", "--backend", "null")


def run_job(
    folder: Path,
    job: str,
    *arguments: str,
    options: Sequence[str] = SECOND_STEP,
    output: str = "stepprof-runs",
    trained: str = "trained 3",
    **environment: str,
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Run a job, check that it succeeds, and return its run and its process.

    Args:
        folder: the folder with the skeleton, in which the job runs.
        job: the name of its file, next to this module.
        arguments: the arguments of the job.
        options: the options of `stepprof run`.
        output: the folder of the runs.
        trained: the text that the job prints at its end.
        environment: the variables of the job.
    """
    shutil.copy(Path(__file__).with_name(job), folder / "job.py")
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "stepprof", "run", *options, "--output-dir", output, "--", sys.executable, "job.py", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )  # fmt: skip
    assert trained in done.stdout, done.stdout + done.stderr
    (found,) = list_runs(folder / output)
    return found, done


def spans(run: Path, step: int, kind: str) -> Counter[str]:
    """Return the number of windows (by role) or regions (by name) of a step."""
    key = "role" if kind == "window" else "name"
    return Counter(each[key] for each in read_spans(run, step=step) if each["kind"] == kind)

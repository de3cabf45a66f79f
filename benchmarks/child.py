"""Run fresh Python processes, and measure their cost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["REPOSITORY", "cpu_seconds", "environment", "run_python"]

REPOSITORY = Path(__file__).resolve().parent.parent


def environment(tree: Path = REPOSITORY) -> dict[str, str]:
    """Return the caller's environment, without its stepprof settings and with one thread for torch.

    Python writes byte code there, as it does for an installed package. Otherwise each process would
    compile the sources.

    Args:
        tree: the work tree from which stepprof is imported.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("STEPPROF") and name != "PYTHONDONTWRITEBYTECODE"
    }
    path = os.pathsep.join(filter(None, [str(tree), kept.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def run_python(*arguments: str) -> str:
    """Run Python in the repository's folder and return its output."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=REPOSITORY,
        env=environment(),
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{arguments} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def cpu_seconds(*arguments: str, tree: Path = REPOSITORY) -> float:
    """Return the processor seconds, user and system, of a process that runs Python with these arguments."""
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=tree, env=environment(tree), stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{arguments} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime

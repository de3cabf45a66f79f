"""Run torch_npu's analysis of a recording, in a process of its own.

The analysis sets the start method of multiprocessing for the whole process, forks a pool, and
refuses to run in a daemon: a training process cannot run it. It prints failures, continues, and
writes its mark of success anyway; this module detects whether it worked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from stepprof.formats.npu_folder import OUTPUT, is_analysed
from stepprof.host.own_python import own_python

_PROGRAM = """
from torch_npu.profiler.profiler import analyse
analyse(sys.argv[1], max_process_number=int(sys.argv[2]))
"""


def analyse(folder: Path, *, timeout_seconds: float, workers: int = 1) -> str | None:
    """Analyse one folder ``…_ascend_pt`` in place. Return the problem, or None.

    Args:
        timeout_seconds: after this, the analysis is killed with all its processes.
        workers: maximum number of its processes.
    """
    folder = folder.absolute()
    environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    with tempfile.TemporaryFile() as said, tempfile.TemporaryDirectory() as empty:
        try:
            process = subprocess.Popen(  # noqa: S603 - this Python, with a program of ours
                own_python(_PROGRAM, str(folder), str(workers)),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=environ,
                cwd=empty,  # processes that the analysis spawns search it for modules
                start_new_session=True,
            )
        except OSError as error:
            return f"the analysis did not start: {error.strerror or error}"
        try:
            status = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            return f"the analysis of {folder.name} did not end within {timeout_seconds:g} s"
        except BaseException:
            _end(process)
            raise
        said.seek(0)
        lines = said.read().decode(errors="replace").splitlines()
    if status != 0:
        if any("No module named 'torch_npu'" in line for line in lines):
            return "torch_npu is not installed here: analyse on a machine that has it"
        return f"the analysis of {folder.name} failed (exit status {status}): {_last(lines)}"
    failures = [line for line in lines if "[ERROR]" in line or ("Call " in line and " failed" in line)]
    if not is_analysed(folder) or len(list((folder / OUTPUT).iterdir())) < 2:
        return f"the analysis of {folder.name} wrote nothing: {_last(failures or lines)}"
    if failures:
        return f"the analysis of {folder.name} is incomplete: {_text(failures[0])}"
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the analysis with its child processes: they are in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last(lines: list[str]) -> str:
    reported = [line for line in lines if line.strip()]
    return _text(reported[-1]) if reported else "it says nothing"


def _text(line: str) -> str:
    """Return a line of torch_npu's output without its time and process."""
    return line.rpartition("profiler.py: ")[2].strip()[:500]

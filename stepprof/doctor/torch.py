"""Run the torch probe in a separate process, under a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepprof.doctor import torch_child
from stepprof.doctor.finding import Finding
from stepprof.doctor.torch_stages import CANN, STAGES, stage_findings

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


@dataclass(frozen=True, slots=True)
class _Run:
    stages: Mapping[str, Mapping[str, Any]]
    begun: str | None
    ending: str | None
    last_line: str


def torch_findings(environ: Mapping[str, str], timeout: float) -> list[Finding]:
    """Try torch for at most `timeout` seconds (twice that if it must be tried again without
    extensions).
    """
    run = _probe(environ, timeout)
    error = str(run.stages.get("torch", {}).get("error", ""))
    if "backend extension" not in error:
        return list(_described(run))
    broken = _extension(error)
    rest = _described(_probe({**environ, _AUTOLOAD: "0"}, timeout))
    return [broken, *(finding for finding in rest if finding.name != broken.name)]


def _probe(environ: Mapping[str, str], timeout: float) -> _Run:
    """Run the probe's source outside the current folder, whose files could be mistaken for modules."""
    text = Path(torch_child.__file__).read_text(encoding="utf-8")
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        process = subprocess.Popen(  # noqa: S603 - this Python, with a program of ours
            [sys.executable, "-c", text],
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout)
            ending = None if status == 0 else _describe_status(status)
        except subprocess.TimeoutExpired:
            _kill(process)
            ending = f"did not end within {timeout:g} s"
        out.seek(0)
        err.seek(0)
        lines = out.read().decode(errors="replace").splitlines()
        words = err.read().decode(errors="replace").strip().splitlines()
    stages: dict[str, Mapping[str, Any]] = {}
    begun = None
    for line in lines:
        try:
            content = json.loads(line)
        except ValueError:  # output of the imported modules
            continue
        if isinstance(content, dict):
            begun = content.get("begin", begun)
            if "stage" in content:
                stages[content["stage"]] = content
    return _Run(stages, begun, ending, words[-1][:300] if words else "")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Stop the probe and all processes that it has started."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def _describe_status(status: int) -> str:
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"ended with exit status {status}"


def _described(run: _Run) -> Iterator[Finding]:
    if run.ending is not None:
        words = f": {run.last_line}" if run.last_line else ""
        doing = STAGES[run.begun].doing if run.begun in STAGES else "starting"
        yield Finding(
            "torch",
            "problem",
            f"a process that was {doing} {run.ending}{words}",
            "try the same in a Python shell, or raise --timeout",
        )
    yield from stage_findings(run.stages)


def _extension(error: str) -> Finding:
    if "torch_npu" in error:
        return Finding("torch_npu", "problem", f"import torch fails: {error}", CANN)
    return Finding(
        "torch extension",
        "problem",
        f"import torch fails: {error}",
        f"repair or uninstall the extension; {_AUTOLOAD}=0 imports torch without it",
    )

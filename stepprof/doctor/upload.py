"""Test uploads to a URL: upload a small file with the real upload program, then remove it."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from stepprof.config.post_step_validators import upload_url
from stepprof.doctor.finding import Finding
from stepprof.recording.post_step.upload.program import Program
from stepprof.recording.post_step.upload.uploads import missing

NAME = "upload"


def upload_findings(url: str, seconds: float) -> Iterator[Finding]:
    """Run the test. Raise ConfigError if the URL is not a valid upload target."""
    url = upload_url(url, NAME)
    problem = missing(url)
    if problem is not None:
        yield Finding(NAME, "problem", problem)
        return
    with (
        tempfile.TemporaryDirectory(prefix="stepprof-") as folder,
        Program(url, threading.Event(), 1) as program,
    ):
        file = Path(folder, f".stepprof-doctor-{time.time_ns()}")
        file.write_text("test file of stepprof doctor; it can be removed\n")
        outcome = program.upload(file, file.name, time.monotonic() + seconds, remove=True)
    if outcome["status"] != "uploaded":
        remedy = "credentials and addresses are the store's own variables and files: see docs/after.md"
        yield Finding(NAME, "problem", f"{url}: {outcome['error']}", remedy)
    elif outcome["error"]:
        yield Finding(NAME, "warning", f"{url}: written, but {outcome['error']}", f"remove {file.name} there")
    else:
        yield Finding(
            NAME,
            "ok",
            f"{url}: written and removed in {outcome['seconds']:.2f} s, verified by its {outcome['verified']}",
        )

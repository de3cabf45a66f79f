"""Provide a plug-in for the tests' jobs, as an installed package does: a backend that leaves a file."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from stepprof.backends.base import Backend
from stepprof.run.model import Artifact

METADATA = "Metadata-Version: 2.1\nName: stepprof-filing\nVersion: 1.0\n"
ENTRY_POINTS = "[stepprof.backends]\nfiling = filing:FilingBackend\n"


def install(folder: Path) -> Path:
    """Install the plug-in into a folder for processes that have it on their PYTHONPATH."""
    info = folder / "stepprof_filing-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "filing.py").write_text(Path(__file__).read_text())
    return folder


class FilingBackend(Backend):
    """A backend that leaves a trace of $FILING_BYTES bytes. Its export takes $FILING_SECONDS."""

    name = "filing"

    def __init__(self, options) -> None:
        self.options = options

    def probe(self):
        return None

    def arm(self) -> None:
        pass

    def start(self, capture) -> None:
        pass

    def stop(self, capture, annotations):
        return lambda: self._export(capture)

    def _export(self, capture):
        time.sleep(float(os.environ.get("FILING_SECONDS", "0")))
        path = capture.folder / f"{capture.stem}.trace.json"
        events = [{"name": "x", "ph": "X", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]
        content = {"traceEvents": events, "baseTimeNanoseconds": 10**18, "step": capture.window.step}
        text = json.dumps(content)
        path.write_text(text + " " * (int(os.environ.get("FILING_BYTES", "1000")) - len(text)))
        artifact = Artifact(
            path.relative_to(capture.folder).as_posix(), "torch-trace", path.stat().st_size, 1
        )
        return (artifact,)

    def export_mode(self) -> str:
        return os.environ.get("FILING_MODE", "thread")

    def abort(self) -> None:
        pass

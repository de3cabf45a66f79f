"""Provide plug-ins for the tests' jobs, as an installed package does: a backend that leaves a file,
and a file system that fails on request.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from stepprof.backends.base import Backend
from stepprof.run.model import Artifact

METADATA = "Metadata-Version: 2.1\nName: stepprof-filing\nVersion: 1.0\n"
ENTRY_POINTS = (
    "[stepprof.backends]\nfiling = filing:FilingBackend\n\n[fsspec.specs]\nflaky = flakyfs:FlakyFileSystem\n"
)
FLAKY = '''
import os, time
from pathlib import Path
from fsspec.implementations.local import LocalFileSystem

class FlakyFileSystem(LocalFileSystem):
    """Local files; fails by the words in $FLAKY, each for so many calls: "refuse=2 lose=1 half=1 hang=1 die=1"."""

    protocol = "flaky"
    cachable = False

    def _next(self, word):
        wanted = dict(each.split("=") for each in os.environ.get("FLAKY", "").split()).get(word)
        if wanted is None:
            return False
        done = Path(os.environ["FLAKY_COUNTS"], word)
        count = len(done.read_text()) if done.exists() else 0
        done.write_text("x" * (count + 1))
        return count < int(wanted)

    def put_file(self, lpath, rpath, **options):
        only = os.environ.get("FLAKY_ON", "")
        if only in str(rpath):
            if self._next("hang"):
                time.sleep(600)
            if self._next("refuse"):
                raise PermissionError("the store says no")
            if self._next("lose"):
                return
            if self._next("half"):
                data = Path(lpath).read_bytes()
                Path(self._strip_protocol(rpath)).write_bytes(data[: len(data) // 2])
                return
            if self._next("die"):
                print("the store's client crashed", flush=True)
                os._exit(3)
        super().put_file(lpath, self._strip_protocol(rpath), **options)

    @classmethod
    def _strip_protocol(cls, path):
        return LocalFileSystem._strip_protocol(str(path).removeprefix("flaky://"))
'''


def install(folder: Path) -> Path:
    """Install both plug-ins into a folder for processes that have it on their PYTHONPATH."""
    info = folder / "stepprof_filing-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "filing.py").write_text(Path(__file__).read_text())
    (folder / "flakyfs.py").write_text(FLAKY)
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

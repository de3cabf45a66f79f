"""Measure the cost of a region under the nsys backend, compared with nvtx's own bare calls. The
modes are off, in a recorded window without a tool, and with one attached. NVTX loads a tool once
per process, so each mode is a separate process. The tool is that of the tests
(``tests/helpers/nsys/injection.c``), set to store nothing: its cost is the same for all subjects.
Spans are off (`calls` measures them).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from benchmarks.apart import ask, call_rows
from benchmarks.figures import Row
from benchmarks.timing import Effort, Subject, time_subjects

__all__ = ["measure_nsys_regions"]

MODES = {
    "off": "never selected",
    "idle": "recorded, no tool attached",
    "recording": "recorded, a tool attached",
}
OURS = "with region(name)"


def measure_nsys_regions(*, quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Return rows for each mode, and the reasons for missing ones."""
    if find_spec("nvtx") is None:
        return [], {"a region under nsys": "nvtx is not installed"}
    rows: list[Row] = []
    absent: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="stepprof-bench-") as folder:
        for mode in MODES:
            environ = {"NVTX_QUIET": "1", "NVTX_LOG": os.devnull}
            if mode == "recording":
                library = _tool(Path(folder))
                if library is None:
                    absent["a region under nsys with a tool"] = "no C compiler"
                    continue
                environ["NVTX_INJECTION64_PATH"] = library
            rows += ask("benchmarks.nsys_regions", mode, str(int(quick)), timeout=120, environ=environ)[0]
    return rows, absent


def _tool(folder: Path) -> str | None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    source = Path(__file__).parent.parent / "tests" / "helpers" / "nsys" / "injection.c"
    if compiler is None or not source.exists():
        return None
    made = folder / "injection.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", made, source], check=True)
    return str(made)


def _measured(mode: str, *, quick: bool) -> list[Row]:
    import nvtx

    import stepprof

    domain = nvtx.get_domain("bench")
    attributes = domain.get_event_attributes(message="bench", color=0xFF0000)
    names = {
        "stepprof": stepprof,
        "domain": domain,
        "attributes": attributes,
        "nvtx": nvtx,
        "call": stepprof.region("bench")(lambda: None),
        "bare": lambda: None,
        "annotated": nvtx.annotate("bench")(lambda: None),
    }
    subjects = [
        Subject(OURS, 'with stepprof.region("bench"):\n    pass', names, ours=True),
        Subject(
            "async with region(name)", 'async with stepprof.region("bench"):\n    pass', names, ours=True
        ),
        Subject("empty call", "bare()", names),
        Subject("@region", "call()", names, base="empty call", ours=True),
        Subject("nvtx @annotate", "annotated()", names, base="empty call"),
        Subject(
            "nvtx domain.push_range, pop_range", "domain.push_range(attributes)\ndomain.pop_range()", names
        ),
        Subject(
            "nvtx domain.start_range, end_range", "domain.end_range(domain.start_range(attributes))", names
        ),
        Subject("nvtx with annotate(name)", 'with nvtx.annotate("bench"):\n    pass', names),
    ]
    with tempfile.TemporaryDirectory(prefix="stepprof-bench-") as folder:
        steps = "1000000" if mode == "off" else "2"
        stepprof.init(
            {"output_dir": folder, "steps": steps, "backend": "nsys", "spans": False}, rank=0, world_size=1
        )
        with stepprof.profile_step(2):
            timed = time_subjects(subjects, Effort.quick() if quick else Effort.usual())
        stepprof.shutdown()
    return call_rows(f"region under nsys, {MODES[mode]}", subjects, timed, OURS)


if __name__ == "__main__":
    rows = _measured(sys.argv[1], quick=sys.argv[2] == "1")
    print(json.dumps({"rows": [asdict(row) for row in rows]}))

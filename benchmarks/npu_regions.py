"""Measure the cost of a region under the npu backend, compared with torch_npu's own bare mstx
calls: off, and in a recorded window. The real torch_npu runs with the tests' stand-in for CANN
(``tests/real/npu/acl.py``), which does nothing in each range: CANN's own cost is not in the
figures. Spans are off (`calls` measures them). torch_npu needs its own environment: `nox -s npu`
makes one, in `.nox/npu`.
"""

from __future__ import annotations

import json
import runpy
import shutil
import sys
import tempfile
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from benchmarks.apart import ask, call_rows
from benchmarks.figures import Row
from benchmarks.timing import Effort, Subject, time_subjects

__all__ = ["measure_npu_regions"]

MODES = {"off": "never selected", "idle": "warm for a later step", "recording": "recorded"}
OURS = "with region(name)"


def measure_npu_regions(*, quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Return rows for each mode, and the reason if nothing can be measured."""
    what = "a region under torch_npu"
    builder = Path(__file__).parent.parent / "tests" / "real" / "npu" / "acl.py"
    if find_spec("torch_npu") is None:
        return [], {what: "torch_npu is not installed (nox -s npu installs it in .nox/npu)"}
    if shutil.which("gcc") is None or not builder.exists():
        return [], {what: "no C compiler"}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="stepprof-bench-") as folder:
        cann = runpy.run_path(str(builder))["build"](Path(folder) / "cann")
        for mode in MODES:
            rows += ask("benchmarks.npu_regions", mode, str(int(quick)), folder, timeout=240, environ=cann)[0]
    return rows, {}


def _measured(mode: str, folder: str, *, quick: bool) -> list[Row]:
    import torch
    import torch_npu

    import stepprof

    names = {
        "stepprof": stepprof,
        "mstx": torch_npu.npu.mstx,
        "call": stepprof.region("bench")(lambda: None),
        "bare": lambda: None,
    }
    subjects = [
        Subject(OURS, 'with stepprof.region("bench"):\n    pass', names, ours=True),
        Subject("empty call", "bare()", names),
        Subject("@region", "call()", names, base="empty call", ours=True),
        Subject(
            "mstx range_start, range_end",
            'mstx.range_end(mstx.range_start("bench", None, "stepprof"), "stepprof")',
            names,
        ),
        Subject(
            "mstx with annotate(name)", 'with mstx.annotate("bench", domain="stepprof"):\n    pass', names
        ),
    ]
    torch.npu.set_device(0)
    steps = {"off": "1000000", "idle": "3", "recording": "2"}[mode]
    config = {
        "output_dir": folder,
        "steps": steps,
        "backend": "npu",
        "spans": False,
        "npu": {"lease_dir": folder},
    }
    stepprof.init(config, rank=0, world_size=1)
    if mode == "idle":
        with stepprof.profile_step(2):
            pass
    with stepprof.profile_step(2):
        assert stepprof.state().status == {"off": "idle", "idle": "armed", "recording": "recording"}[mode]
        timed = time_subjects(subjects, Effort.quick() if quick else Effort.usual())
    stepprof.shutdown()
    return call_rows(f"region under torch_npu, {MODES[mode]}", subjects, timed, OURS)


if __name__ == "__main__":
    rows = _measured(sys.argv[1], sys.argv[3], quick=sys.argv[2] == "1")
    print(json.dumps({"rows": [asdict(row) for row in rows]}))

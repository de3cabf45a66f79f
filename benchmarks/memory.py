"""Measure the memory that the spans of a million regions take in a fresh process, and the size of
their files. The recorder has a limit, and a background thread writes its spans to files. So the
growth must not follow the number of regions. A loop that only runs regions is the worst case: a
training step between them would give the writer time.
"""

from __future__ import annotations

import json

from benchmarks.child import run_python
from benchmarks.figures import Row

__all__ = ["BOUND_MIB", "measure_memory"]

BOUND_MIB = 64
GROUP = "memory: spans of {regions:,} regions"

_SCRIPT = """
import json, os, pathlib, sys, tempfile, time
import stepprof

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

regions = int(sys.argv[1])
with tempfile.TemporaryDirectory() as folder:
    stepprof.init({"output_dir": folder, "steps": "none", "backend": "null"}, rank=0, world_size=1)
    region = stepprof.region("bench")(lambda: None)
    for _ in range(1000):
        region()
    time.sleep(0.5)
    before = peak = resident()
    wall, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
    for _ in range(regions // 1000):
        for _ in range(1000):
            region()
        peak = max(peak, resident())
    thread, loop = time.thread_time() - thread, time.perf_counter() - wall
    stepprof.shutdown()
    whole, process = time.perf_counter() - wall, time.process_time() - process
    after = resident()
    files = list(pathlib.Path(folder).rglob("spans/*.jsonl"))
    written = sum(line.count(b'"bench"') for path in files for line in path.open("rb"))
    size = sum(path.stat().st_size for path in files)
print(json.dumps({"peak": peak - before, "after": after - before, "written": written, "bytes": size, "thread": thread,
                  "loop": loop, "whole": whole, "process": process}))
"""


def measure_memory(*, quick: bool) -> list[Row]:
    """Return rows of the growth in resident memory, and of the files of the writer."""
    regions = 20_000 if quick else 1_000_000
    found = json.loads(run_python("-c", _SCRIPT, str(regions)).splitlines()[-1])
    group = GROUP.format(regions=regions)
    growth = found["peak"] / 2**20
    expected = regions // 1000 * 1000 + 1000
    return [
        Row(
            group,
            "growth of resident memory, peak",
            "MiB",
            growth,
            limit=BOUND_MIB,
            limit_on="value",
            judged=growth,
        ),
        Row(group, "growth after shutdown", "MiB", found["after"] / 2**20),
        Row(group, "spans in the files", "", found["written"], note=_lost(found["written"], expected)),
        Row(group, "size of the files", "MiB", found["bytes"] / 2**20),
        Row(group, "main thread, per region", "ns", found["thread"] / regions * 1e9),
        Row(group, "whole process with the writer, per region", "ns", found["process"] / regions * 1e9),
        Row(group, "wall, loop", "s", found["loop"]),
        Row(group, "wall, loop and shutdown", "s", found["whole"]),
    ]


def _lost(written: int, expected: int) -> str:
    return "" if written == expected else f"{expected - written:,} of {expected:,} spans were dropped"

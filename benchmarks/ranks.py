"""Measure what the reading commands cost for an increasing number of ranks, and whether the cost
grows faster than the ranks. The runs are fabricated (`make_ranks`). Each command is a separate
process; its processor time includes its workers. Growth is the cost per rank of many ranks over
that of few, each without the cost of a run of eight ranks. A growth of 1 is linear.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.child import cpu_seconds
from benchmarks.figures import Row
from benchmarks.make_ranks import make_ranks
from benchmarks.make_traces import traces_folder

__all__ = ["COMMANDS", "GROUP", "GROWTH", "measure_ranks"]

GROUP = "reading a run of many ranks, processor time"
GROWTH = "what a rank takes, of many over few"
LIMIT = 1.1

COMMANDS = {
    "ls": (),
    "show": (),
    "spans": (),
    "status": (),
    "check": ("--workers", "1"),
    "merge": ("--workers", "1", "--output", "timeline.pftrace"),
    "report": ("--workers", "1", "--html", "report.html", "--json", "report.json"),
}


def measure_ranks(*, quick: bool) -> list[Row]:
    """Return rows of each command over the number of ranks, and rows of its growth."""
    sizes = (8, 16, 32, 64) if quick else (8, 256, 1024, 4096)
    runs = [make_ranks(traces_folder(), ranks).resolve() for ranks in sizes]
    rows, growth = [], []
    with tempfile.TemporaryDirectory(prefix="stepprof-bench-") as work:
        for name, options in COMMANDS.items():
            arguments = [str(Path(work) / part) if "." in part else part for part in options]
            rounds = [
                # alternately: a slow phase of the machine affects all sizes
                [cpu_seconds("-m", "stepprof", name, str(run), *arguments) for run in runs]
                for _ in range(1 if quick else 2)
            ]
            base, *seconds = (min(each) for each in zip(*rounds, strict=True))
            rows += [
                Row(GROUP, f"stepprof {name}, {ranks:,} ranks", "s", each)
                for ranks, each in zip(sizes[1:], seconds, strict=True)
            ]
            per_rank = [
                max(each - base, 0.001) / (ranks - sizes[0])
                for ranks, each in zip(sizes[1:], seconds, strict=True)
            ]
            for few, many in ((0, 1), (1, 2)):
                value = per_rank[many] / per_rank[few]
                between = f"stepprof {name}, {sizes[1 + few]:,} to {sizes[1 + many]:,} ranks"
                growth.append(Row(GROWTH, between, "x", value, limit=LIMIT, limit_on="value", judged=value))
    return rows + growth

"""Provide the command line: measure, print the table, write the JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.arming import measure_arming
from benchmarks.calls import measure_calls
from benchmarks.devices import measure_regions
from benchmarks.engine_windows import measure_engine_windows
from benchmarks.fanout import measure_actors, measure_fanout
from benchmarks.figures import Row
from benchmarks.following import measure_following
from benchmarks.gpu import measure_gpu
from benchmarks.living import measure_living
from benchmarks.memory import measure_memory
from benchmarks.merging import measure_merging
from benchmarks.npu_regions import measure_npu_regions
from benchmarks.nsys_regions import measure_nsys_regions
from benchmarks.ranks import measure_ranks
from benchmarks.report import document, table
from benchmarks.reporting import measure_reporting
from benchmarks.starting import measure_starting
from benchmarks.training import measure_training
from benchmarks.verl_run import measure_verl_run
from benchmarks.versions import measure_versions
from benchmarks.window import measure_window

__all__ = ["MEASUREMENTS", "main"]

Measured = tuple[list[Row], dict[str, str]]

MEASUREMENTS: dict[str, Callable[[argparse.Namespace], Measured]] = {
    "calls": lambda given: measure_calls(quick=given.quick),
    "starting": lambda given: (measure_starting(quick=given.quick), {}),
    "arming": lambda given: measure_arming(quick=given.quick),
    "memory": lambda given: (measure_memory(quick=given.quick), {}),
    "fanout": lambda given: (measure_fanout(quick=given.quick), {}),
    "actors": lambda given: measure_actors(quick=given.quick),
    "engines": lambda given: measure_engine_windows(quick=given.quick),
    "following": lambda given: (measure_following(quick=given.quick), {}),
    "gpu": lambda given: measure_gpu(quick=given.quick),
    "live": lambda given: (measure_living(quick=given.quick), {}),
    "merge": lambda given: measure_merging(quick=given.quick),
    "npu": lambda given: measure_npu_regions(quick=given.quick),
    "nsys": lambda given: measure_nsys_regions(quick=given.quick),
    "ranks": lambda given: (measure_ranks(quick=given.quick), {}),
    "regions": lambda given: measure_regions(quick=given.quick),
    "report": lambda given: measure_reporting(quick=given.quick),
    "training": lambda given: measure_training(quick=given.quick),
    "verl_run": lambda given: measure_verl_run(quick=given.quick),
    "versions": lambda given: measure_versions(given.against, quick=given.quick),
    "window": lambda given: measure_window(quick=given.quick, rounds=given.rounds),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected benchmarks. Return 1 if a limit is exceeded and ``--check`` was given, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="What stepprof costs, beside its peers."
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every figure with the versions to FILE"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=sorted(MEASUREMENTS),
        metavar="NAME",
        help=f"one of {', '.join(MEASUREMENTS)}; may be repeated",
    )
    parser.add_argument(
        "--against", type=Path, metavar="FOLDER", help="a work tree of another version, for `versions`"
    )
    parser.add_argument("--rounds", type=int, help="rounds of the recorded window (default 7)")
    parser.add_argument(
        "--quick", action="store_true", help="a trial run of a few seconds; its figures mean nothing"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 where a limit is missed")
    given = parser.parse_args(arguments)
    rows: list[Row] = []
    absent: dict[str, str] = {}
    for name, measure in MEASUREMENTS.items():
        if given.only and name not in given.only:
            continue
        more, missing = measure(given)
        rows += more
        absent |= missing
    whole = document(rows, absent, quick=given.quick)
    print(_heading(whole))
    print(table(rows))
    for name, reason in absent.items():
        print(f"not measured: {name} ({reason})")
    if given.json:
        given.json.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    missed = [row for row in rows if row.within is False]
    return 1 if missed and given.check else 0


def _heading(whole: dict[str, Any]) -> str:
    versions = whole["versions"]
    listed = ", ".join(f"{name} {number}" for name, number in versions.items() if number)
    return f"Python {whole['python']} on {whole['processor']} ({whole['cores']} cores); {listed}"

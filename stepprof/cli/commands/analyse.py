"""`stepprof analyse`: run torch_npu's analysis after the job, on a machine that has torch_npu."""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stepprof.cli.common import add_json, add_run, chosen_run, print_json
from stepprof.cli.output import print_lines
from stepprof.config.validators import more_than
from stepprof.errors import ConfigError
from stepprof.formats import npu_folder
from stepprof.formats.npu_analysis import analyse
from stepprof.run.layout import step_folder
from stepprof.run.manifest import find_step, read_step
from stepprof.run.runs import steps


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `analyse`."""
    parser.description = "Run torch_npu's analysis of captures from Ascend devices, each in a separate process; `merge` and `report` read the result. Needs torch_npu, and CANN's msprof for the device's part."
    parser.epilog = (
        "exit status: 0 every capture is analysed, 1 an analysis failed, 2 the run has no torch_npu capture"
    )
    add_run(parser)
    parser.add_argument("--step", type=int, metavar="N", help="only this step (default: all)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="timeout of the analysis of one capture (default 600)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="number of concurrent analyses (default 1)",
    )
    parser.add_argument("--again", action="store_true", help="repeat captures that are already analysed")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run the analysis. Return 1 if a capture could not be analysed, else 0."""
    path = chosen_run(args)
    if args.workers < 1:
        raise ConfigError.at("--workers", args.workers, "must be >= 1")
    timeout = more_than(0, 600)(args.timeout, "--timeout")
    wanted = [find_step([path], args.step)] if args.step is not None else steps(path)
    found = [folder for step in wanted for folder in _recorded(path, step)]
    if not found:
        where = f"step {args.step}" if args.step is not None else "the run"
        raise ConfigError(f"{where} of {path} has no torch_npu capture")
    todo = [folder for folder in found if args.again or not npu_folder.is_analysed(folder)]
    results: list[dict[str, object]] = []
    with ThreadPoolExecutor(min(args.workers, os.cpu_count() or 1)) as pool:
        for folder, (problem, seconds) in zip(
            todo, pool.map(lambda folder: _analyse(folder, timeout), todo), strict=True
        ):
            name = folder.relative_to(path).as_posix()
            results.append({"path": name, "problem": problem, "seconds": round(seconds, 1)})
            if not args.json:
                print_lines(f"{name}: {problem or f'analysed in {seconds:.1f} s'}")
    failed = sum(result["problem"] is not None for result in results)
    if args.json:
        print_json({"path": str(path), "analysed": results, "done_before": len(found) - len(todo)})
    else:
        before = (
            f", {len(found) - len(todo)} were analysed before (--again repeats them)"
            if len(found) > len(todo)
            else ""
        )
        print_lines(f"{len(todo) - failed} of {len(todo)} captures analysed{before}")
    return 1 if failed else 0


def _analyse(folder: Path, timeout: float) -> tuple[str | None, float]:
    began = time.monotonic()
    problem = analyse(folder, timeout_seconds=timeout)
    return problem, time.monotonic() - began


def _recorded(path: Path, step: int) -> list[Path]:
    """Return torch_npu's capture folders that a step's manifest names."""
    manifest = read_step(path, step)
    return npu_folder.recorded_folders(path / step_folder(step), [*manifest["windows"], *manifest["engines"]])

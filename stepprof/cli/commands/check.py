"""`stepprof check`: artifacts against manifests. For the end of a job script, for CI, and for whoever has copied a run to another machine."""

from __future__ import annotations

import argparse
import dataclasses

from stepprof.analysis.verify import Problem, verify_run
from stepprof.cli.common import add_json, add_run, chosen_run, print_json
from stepprof.cli.output import say
from stepprof.cli.trace_options import progress_bar
from stepprof.errors import ConfigError
from stepprof.formatting import counted, size

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Say what `check` takes."""
    parser.description = "Check a run: nothing that was selected is missing, and every artifact that a manifest names exists, has its size and can be read to its end. Traces are read as merge reads them; what merge would refuse or could not read is a problem here."
    parser.epilog = "exit status: 0 everything is there and whole, 1 something is missing or damaged, 2 there is no such run"
    add_run(parser)
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes at most; by default as many as processors"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Check one run: 1 where anything is missing or damaged, else 0."""
    path = chosen_run(args)
    if args.workers is not None and args.workers < 1:
        raise ConfigError.at("--workers", args.workers, "must be >= 1")
    with progress_bar("reading artifacts") as progress:
        result = verify_run(path, workers=args.workers, progress=progress)
    if args.json:
        print_json(
            {
                "path": str(path),
                "ok": result.ok,
                "checked": {
                    "steps": result.steps,
                    "windows": result.windows,
                    "engines": result.engines,
                    "artifacts": result.artifacts,
                    "bytes": result.bytes,
                },
                "problems": [dataclasses.asdict(problem) for problem in result.problems],
                "notes": [dataclasses.asdict(note) for note in result.notes],
            }
        )
        return 0 if result.ok else 1
    for note in result.notes:
        say(f"note     {_line(note)}")
    for problem in result.problems:
        say(f"PROBLEM  {_line(problem)}")
    counts = [counted(result.steps, "step"), counted(result.windows, "window")]
    counts += [counted(result.engines, "engine")] if result.engines else []
    counts += [counted(result.artifacts, "artifact"), size(result.bytes)]
    verdict = "ok" if result.ok else counted(len(result.problems), "problem")
    say(f"{verdict}: {', '.join(counts)} in {path}")
    return 0 if result.ok else 1


def _line(problem: Problem) -> str:
    return f"{problem.where}: {problem.problem}" if problem.where else problem.problem

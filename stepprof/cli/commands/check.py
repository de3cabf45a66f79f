"""`stepprof check`: check artifacts against manifests, or traces that have none.

Use it at the end of a job script, in CI, and after copying a run to another machine.
"""

from __future__ import annotations

import argparse
import dataclasses

from stepprof.analysis.verify import Problem, verify_run
from stepprof.cli.common import (
    Given,
    add_json,
    add_run_or_traces,
    chosen_run,
    given_traces,
    output_dir,
    print_json,
)
from stepprof.cli.output import print_lines
from stepprof.cli.trace_options import progress_bar, require_extra
from stepprof.errors import ConfigError
from stepprof.formatting import counted, size


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `check`."""
    parser.description = "Check a run: every selected window is recorded, and every artifact in a manifest exists, has the recorded size and is readable. Traces are read the way merge reads them. Of traces that stepprof did not record: each is readable to its end."
    parser.epilog = "exit status: 0 complete, 1 something is missing or damaged, 2 no such run"
    add_run_or_traces(parser)
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="maximum number of processes (default: the number of processors)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Check one run, or traces. Return 1 if something is missing or damaged, else 0."""
    if args.workers is not None and args.workers < 1:
        raise ConfigError.at("--workers", args.workers, "must be >= 1")
    traces = given_traces(args)
    if traces.paths:
        return _check_traces(traces, args)
    path = chosen_run(args)
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
        print_lines(f"note     {_line(note)}")
    for problem in result.problems:
        print_lines(f"PROBLEM  {_line(problem)}")
    counts = [counted(result.steps, "step"), counted(result.windows, "window")]
    counts += [counted(result.engines, "engine")] if result.engines else []
    counts += [counted(result.artifacts, "artifact"), size(result.bytes)]
    verdict = "ok" if result.ok else counted(len(result.problems), "problem")
    print_lines(f"{verdict}: {', '.join(counts)} in {path}")
    return 0 if result.ok else 1


def _check_traces(traces: Given, args: argparse.Namespace) -> int:
    require_extra()
    from stepprof.analysis.timeline.find import find
    from stepprof.analysis.trace_check import check_traces

    found = find(traces.paths, output_dir=output_dir(args))
    with progress_bar("reading traces") as progress:
        checked = check_traces(found, workers=args.workers, progress=progress)
    problems = [Problem(None, each.path, each.checked.problem) for each in checked if each.checked.problem]
    problems += [Problem(None, path, what) for path, what in traces.left_out]
    notes = [Problem(None, each.path, note) for each in checked for note in each.checked.notes]
    notes += [Problem(None, source or "", problem) for source, problem in found.findings]
    events, read = sum(each.events for each in checked), sum(each.bytes for each in checked)
    if args.json:
        print_json(
            {
                "paths": traces.paths,
                "ok": not problems,
                "checked": {"traces": len(checked), "events": events, "bytes": read},
                "problems": [dataclasses.asdict(problem) for problem in problems],
                "notes": [dataclasses.asdict(note) for note in notes],
            }
        )
    else:
        lines = [f"note     {_line(note)}" for note in notes]
        lines += [f"PROBLEM  {_line(problem)}" for problem in problems]
        verdict = "ok" if not problems else counted(len(problems), "problem")
        counts = f"{counted(len(checked), 'trace')}, {counted(events, 'event')}, {size(read)}"
        print_lines(*lines, f"{verdict}: {counts} in {', '.join(traces.paths)}")
    return 1 if problems else 0


def _line(problem: Problem) -> str:
    return f"{problem.where}: {problem.problem}" if problem.where else problem.problem

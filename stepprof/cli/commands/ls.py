"""`stepprof ls`: list the runs of the output folder. `stepprof ls RUN`: list the steps of a run."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stepprof.cli.common import add_json, add_run, chosen_run, output_dir, print_json
from stepprof.cli.output import print_lines, print_text
from stepprof.formatting import size, table
from stepprof.run.runs import list_runs, read_run, run_id_of, steps
from stepprof.run.summary import StepSummary, summarize_step

RUN_COLUMNS = ("run", "world", "steps", "windows", "engines", "bytes", "path")
STEP_COLUMNS = ("step", "version", "windows", "engines", "roles", "ranks", "artifacts", "bytes", "findings")


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ls`."""
    parser.description = "List the runs, or the steps of a run."
    add_run(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """List runs or steps. Always return 0."""
    if args.run is not None:
        return _list_steps(chosen_run(args), as_json=args.json)
    folder = output_dir(args)
    runs = [_describe(path) for path in list_runs(folder)]
    if args.json:
        print_json({"output_dir": str(folder.absolute()), "runs": runs})
    elif runs:
        print_text(
            table(
                RUN_COLUMNS,
                [
                    [
                        r["run_id"],
                        r["world_size"],
                        _shown(r["steps"]),
                        _counts(r["statuses"]),
                        _counts(r["engines"]),
                        size(r["bytes"]),
                        r["path"],
                    ]
                    for r in runs
                ],
                "lrlllr",
            )
        )
    else:
        print_lines(f"no runs in {folder}")
    return 0


def _list_steps(path: Path, *, as_json: bool) -> int:
    summaries = [summary for step in steps(path) for summary in summarize_step(path, step)]
    if as_json:
        print_json({"run_id": run_id_of(path), "path": str(path), "steps": [s.to_dict() for s in summaries]})
        return 0
    print_lines(f"run {run_id_of(path)}  {path}")
    if summaries:
        print_text(
            table(
                STEP_COLUMNS,
                [
                    [
                        s.step if s.occurrences == 1 else f"{s.step} ({s.occurrence} of {s.occurrences})",
                        s.version,
                        _counts(s.statuses),
                        _counts(s.engines),
                        ", ".join(s.roles) or None,
                        _shown(s.ranks),
                        _artifacts(s),
                        size(s.bytes),
                        s.findings or None,
                    ]
                    for s in summaries
                ],
                "rlllllrrr",
            )
        )
    else:
        print_lines("no step is recorded")
    return 0


def _describe(path: Path) -> dict[str, Any]:
    summaries = [summary for step in steps(path) for summary in summarize_step(path, step)]
    content = read_run(path)
    return {
        "run_id": run_id_of(path),
        "path": str(path.absolute()),
        "world_size": content.get("world_size"),
        "steps": list(dict.fromkeys(summary.step for summary in summaries)),
        "statuses": _total(summary.statuses for summary in summaries),
        "engines": _total(summary.engines for summary in summaries),
        "bytes": sum(summary.bytes for summary in summaries),
    }


def _total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(total)


def _counts(statuses: Any) -> str | None:
    return ", ".join(f"{count} {status}" for status, count in sorted(statuses.items())) or None


def _artifacts(summary: StepSummary) -> str:
    notes = [f"{summary.pruned} pruned"] if summary.pruned else []
    notes += [f"{summary.not_uploaded} not uploaded"] if summary.not_uploaded else []
    shown = f" ({', '.join(notes)})" if notes else ""
    return f"{summary.artifacts}{shown}"


def _shown(items: Any) -> str | None:
    """Return the first few of many items."""
    texts = [str(item) for item in items]
    return ", ".join(texts if len(texts) <= 6 else [*texts[:3], "…", texts[-1], f"({len(texts)})"]) or None

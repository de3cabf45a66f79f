"""`stepprof export`: write the tables of a run as Parquet files."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from stepprof.cli.common import add_json, add_run_or_traces, chosen_run, given_traces, output_dir, print_json
from stepprof.cli.output import print_lines
from stepprof.cli.trace_options import require_extra, short_files, warn_incomplete, warn_unread
from stepprof.formatting import counted, size


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `export`."""
    parser.description = "Write the steps, spans, slices, engine iterations and findings of a run, or of traces that stepprof did not record, as Parquet files, for DuckDB, Polars, pandas, Spark. stepprof.open_run gives the same tables in Python."
    add_run_or_traces(parser)
    parser.add_argument(
        "--parquet", type=Path, required=True, metavar="DIR", help="the folder for the files, one per table"
    )
    parser.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="write the slices, iterations and findings of this recorded step only (default: of all recorded steps; of traces, everything)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Export; damage that was found is printed. Return 1 if the findings lack a source, or the tables lack a file of RUN…, or a part of it, else 0."""
    require_extra()
    from stepprof.analysis.data.export import export
    from stepprof.analysis.data.run import Run

    given = given_traces(args)
    traces = given.paths
    opened = Run.of(*traces, output_dir=output_dir(args)) if traces else Run.of(chosen_run(args))
    exported = opened.exported(args.step)
    written = export(opened, args.parquet, exported)
    if args.json:
        files = [
            {"path": str(each.path.absolute()), "rows": each.rows, "bytes": each.bytes} for each in written
        ]
        print_json({"run_id": opened.id, "files": files, "problems": opened.problems})
    else:
        print_lines(*(f"{each.path}  {counted(each.rows, 'row')}, {size(each.bytes)}" for each in written))
        if opened.problems:
            print_lines("notes:", *(f"  {problem}" for problem in opened.problems))
    incomplete = [_incomplete(step.report, step.unlisted) for step in exported if traces]
    return warn_unread(opened.unread, "the findings") or int(any(incomplete) or bool(given.left_out))


def _incomplete(report: Mapping[str, Any], unlisted: Collection[str | None]) -> int:
    """Print which traces that no manifest lists were not read to their end, or have no event. Return the exit status."""
    empty = [each["path"] for each in report["sources"] if each["kind"] == "trace" and not each["events"]]
    cut = short_files(
        ((each["label"], each["path"]) for each in report["sources"]),
        ((each["label"], each["status"]) for each in report["shortfalls"]),
        unlisted,
    )
    return warn_incomplete(empty, cut, "the tables")

"""`stepprof export`: write the tables of a run as Parquet files."""

from __future__ import annotations

import argparse
from pathlib import Path

from stepprof.cli.common import add_json, add_run_or_traces, chosen_run, given_traces, output_dir, print_json
from stepprof.cli.output import print_lines
from stepprof.cli.trace_options import require_extra, warn_unread
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
    """Export; damage that was found is printed. Return 1 if the findings lack a source, or the tables a file of RUN…, else 0."""
    require_extra()
    from stepprof.analysis.data.export import export
    from stepprof.analysis.data.run import Run

    given = given_traces(args)
    traces = given.paths
    opened = Run.of(*traces, output_dir=output_dir(args)) if traces else Run.of(chosen_run(args))
    written = export(opened, args.parquet, opened.exported(args.step))
    if args.json:
        files = [
            {"path": str(each.path.absolute()), "rows": each.rows, "bytes": each.bytes} for each in written
        ]
        print_json({"run_id": opened.id, "files": files, "problems": opened.problems})
    else:
        print_lines(*(f"{each.path}  {counted(each.rows, 'row')}, {size(each.bytes)}" for each in written))
        if opened.problems:
            print_lines("notes:", *(f"  {problem}" for problem in opened.problems))
    return warn_unread(opened.unread, "the findings") or int(bool(given.left_out))

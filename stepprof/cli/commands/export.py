"""`stepprof export`: write the tables of a run as Parquet files."""

from __future__ import annotations

import argparse
from pathlib import Path

from stepprof.cli.common import add_json, add_run, chosen_run, print_json
from stepprof.cli.output import print_lines
from stepprof.cli.trace_options import require_extra, warn_unread
from stepprof.formatting import counted, size


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `export`."""
    parser.description = "Write the steps, spans, slices, engine iterations and findings of a run as Parquet files, for DuckDB, Polars, pandas, Spark. stepprof.open_run gives the same tables in Python."
    add_run(parser)
    parser.add_argument(
        "--parquet", type=Path, required=True, metavar="DIR", help="the folder for the files, one per table"
    )
    parser.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="write the slices, iterations and findings of this recorded step only (default: of all recorded steps)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Export; damage that was found is printed. Return 1 if the findings lack a source, else 0."""
    require_extra()
    from stepprof.analysis.data.export import export
    from stepprof.analysis.data.run import Run

    opened = Run.of(chosen_run(args))
    steps = opened.recorded if args.step is None else [opened.step(args.step).number]
    written = export(opened, args.parquet, steps)
    if args.json:
        files = [
            {"path": str(each.path.absolute()), "rows": each.rows, "bytes": each.bytes} for each in written
        ]
        print_json({"run_id": opened.id, "files": files, "problems": opened.problems})
    else:
        print_lines(*(f"{each.path}  {counted(each.rows, 'row')}, {size(each.bytes)}" for each in written))
        if opened.problems:
            print_lines("notes:", *(f"  {problem}" for problem in opened.problems))
    return warn_unread(opened.unread, "the findings")

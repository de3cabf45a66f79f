"""`stepprof spans`: sums of the spans of every step, as a table, as JSON, or the spans as a
timeline.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepprof.analysis.span_stats import SpanTable, SpanTime, Wanted, span_times
from stepprof.cli.common import add_json, add_occurrence, add_run, chosen_run, print_json
from stepprof.cli.output import print_lines, print_text
from stepprof.cli.trace_options import require_extra
from stepprof.config.selection import Ranks
from stepprof.errors import ConfigError
from stepprof.formatting import duration, number, printable, size, table
from stepprof.host.atomic_files import write_atomically
from stepprof.run.manifest import read_clocks
from stepprof.run.occurrence_spans import Portions, read_occurrence
from stepprof.run.runs import has_spans, run_id_of, steps

if TYPE_CHECKING:
    from stepprof.analysis.timeline.manifest_sources import Input
    from stepprof.analysis.timeline.model import Source

_RANKS_APART = 6  # beyond this: one row for all of them


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `spans`."""
    parser.description = (
        "Show the time of windows and regions in every step, recorded or not; works while the job runs."
    )
    add_run(parser)
    parser.add_argument("--step", type=int, metavar="N", help="only this step (default: all)")
    add_occurrence(parser)
    parser.add_argument("--role", metavar="ROLE", help="only this role")
    parser.add_argument("--region", metavar="NAME", help="only spans of this name")
    parser.add_argument("--ranks", metavar="RANKS", help='only these ranks, such as "0-3,8"')
    parser.add_argument(
        "--perfetto",
        type=Path,
        metavar="FILE",
        help="also write the spans as a timeline for https://ui.perfetto.dev",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Show the spans. Return 1 if there are none."""
    path = chosen_run(args, has_spans)
    ranks = None if args.ranks is None else Ranks.parse(args.ranks, "--ranks")
    wanted = Wanted(args.step, args.role, args.region, ranks)
    if args.occurrence is not None and args.step is None:
        raise ConfigError("--occurrence: requires --step")
    read = None if args.step is None else read_occurrence(path, args.step, args.occurrence)
    portions = None if read is None else read.portions
    found = span_times(path, wanted, portions)
    written = None
    if args.perfetto is not None and found.times:
        written = _write(path, wanted, portions, args.perfetto)
    if args.json:
        print_json(
            {
                "run_id": run_id_of(path),
                "path": str(path),
                **({} if read is None else {"occurrence": read.number, "occurrences": read.count}),
                "spans": [time.to_dict() for time in found.times],
                "findings": found.findings,
                "timeline": None if written is None else str(written.absolute()),
            }
        )
    else:
        print_text(_rendered(path, found))
        if read is not None and read.notes:
            print_lines(*read.notes)
        if written is not None:
            print_lines(size(written.stat().st_size), written)
    return 0 if found.times else 1


def _rendered(path: Path, found: SpanTable) -> str:
    lines = [printable(f"run {run_id_of(path)}  {path}")]
    apart = len(found.ranks) <= _RANKS_APART
    if found.times:
        headers = [
            "kind",
            "name",
            "role",
            "rank",
            "count",
            "seconds",
            "median",
            "longest",
            "in step",
            "errors",
        ]
        rows = [_row(time, apart=apart) for time in (found.times if apart else found.together())]
        lines.append(table(headers, rows, "llllrrrrlr"))
    else:
        lines.append("no spans")
    lines += [printable(f"{finding['file']}: {finding['problem']}") for finding in found.findings]
    return "\n".join(lines)


def _row(time: SpanTime, *, apart: bool) -> list[object]:
    facts = time.to_dict()
    where = facts.get("longest_step")
    if not apart and where is not None:
        where = f"{where}, rank {time.longest_rank}"
    seconds = [duration(facts.get(key)) for key in ("seconds", "median_seconds", "longest_seconds")]
    rank = time.rank if apart else f"{time.ranks} ranks"
    return [
        time.kind,
        time.name,
        time.role,
        rank,
        number(facts["count"]),
        *seconds,
        where,
        time.errors or None,
    ]


# -- as a timeline


def _write(path: Path, wanted: Wanted, portions: Portions | None, output: Path) -> Path:
    """Write the selected spans for Perfetto."""
    require_extra()
    from stepprof.analysis.timeline import descriptors, perfetto
    from stepprof.analysis.timeline.clocks import describe, never_compared
    from stepprof.analysis.timeline.load import load
    from stepprof.analysis.timeline.merge import places

    inputs = _inputs(path, wanted, portions)
    placed = [(_of_name(load(each, args=True), wanted.region), place) for each, place in places(inputs, {})]
    for source, _ in placed:
        source.findings += never_compared(source.origin, source.alignment)
    extents = [extent for source, _ in placed if (extent := source.extent) is not None]
    start = min((first for first, _ in extents), default=0)
    title = f"spans of {run_id_of(path)}" + (f", step {wanted.step}" if wanted.step is not None else "")
    data = [descriptors.head(title, describe(source.alignment for source, _ in placed), start)]
    for source, place in placed:
        data += perfetto.encode(source, place)
    try:
        write_atomically(output, b"".join(data))
    except OSError as error:
        raise ConfigError(f'--perfetto = "{output}": cannot be written: {error.strerror or error}') from error
    return output


def _inputs(path: Path, wanted: Wanted, portions: Portions | None) -> list[Input]:
    """Return the span files, placed on one clock as far as the steps' manifests compare their
    hosts.
    """
    from stepprof.analysis.timeline.clocks import Clocks
    from stepprof.analysis.timeline.manifest_sources import span_inputs

    found = [
        replace(
            each,
            step=wanted.step,
            roles=None if wanted.role is None else (wanted.role,),
            portion=None
            if portions is None
            else portions.of(each.origin.host, each.origin.pid, each.origin.rank, each.origin.host),
        )
        for each in span_inputs(path, wanted.step or 0)
        if wanted.includes_rank(each.origin.rank)
    ]
    recorded = steps(path)
    clocks = Clocks.of(read_clocks(path, recorded[-1]) if recorded else [], [each.origin for each in found])
    return [replace(each, alignment=clocks.alignment(each.origin)) for each in found]


def _of_name(source: Source, name: str | None) -> Source:
    """Return the source with only the spans of this name; None selects all."""
    if name is None:
        return source
    import numpy as np

    names = [index for index, each in enumerate(source.names) if each == name]
    tracks = [index for index, track in enumerate(source.tracks) if track.name == name]
    return source.parts(
        np.isin(source.slices.name, names),
        np.isin(source.instants.name, names),
        np.isin(source.counters.track, tracks),
    )

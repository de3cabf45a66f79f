"""`stepprof merge`: write one timeline of everything that was recorded in a step."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.cli.common import only_traces, output_dir, print_json
from stepprof.cli.merge_options import check_options
from stepprof.cli.output import print_lines
from stepprof.cli.trace_options import (
    add_sources,
    add_work,
    begin_reading,
    chosen_cluster,
    progress_bar,
    warn_incomplete,
)
from stepprof.config.selection import Ranks
from stepprof.errors import ConfigError
from stepprof.formatting import counted, size
from stepprof.host.plain_files import resolved

if TYPE_CHECKING:
    from stepprof.analysis.timeline.filters import Filters
    from stepprof.analysis.timeline.find import Found
    from stepprof.analysis.timeline.manifest_sources import Input
    from stepprof.analysis.timeline.merge import Merged
    from stepprof.analysis.timeline.model import Source
    from stepprof.analysis.timeline.ray_workers import Cluster


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `merge`."""
    parser.description = 'Write one timeline of a step: all ranks, engines and spans on one clock. View it with "stepprof open" or https://ui.perfetto.dev.'
    add_sources(parser)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the file to write (default: timeline.pftrace in the step's folder)",
    )
    parser.add_argument(
        "--per-replica",
        action="store_true",
        help="write one timeline per engine replica, with its workers only, into the folder of the replica",
    )
    parser.add_argument("--roles", metavar="ROLE,…", help="only these roles, plus the spans")
    parser.add_argument(
        "--ranks", metavar="RANKS", help='only these ranks, such as "0-3,8", plus the engines'
    )
    parser.add_argument(
        "--min-us",
        type=float,
        metavar="US",
        help="omit slices shorter than this, in microseconds",
    )
    parser.add_argument("--no-cpu-ops", action="store_true", help="omit host operators and Python calls")
    parser.add_argument(
        "--from",
        type=float,
        dest="from_seconds",
        metavar="S",
        help="omit events that end before this time, in seconds since the start of the step",
    )
    parser.add_argument(
        "--to",
        type=float,
        dest="to_seconds",
        metavar="S",
        help="omit events that start after this time, in seconds since the start of the step",
    )
    parser.add_argument(
        "--critical-path",
        action="store_true",
        help="add tracks for the critical path and for the role of each process; reads every source twice",
    )
    add_work(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a summary as JSON (schema_version 1) instead of text",
    )


def run(args: argparse.Namespace) -> int:
    """Merge. Return 1 if a source, or a file of RUN…, contributed nothing to the timeline, or a file that no manifest lists was read only in part; else 0."""
    assume = begin_reading(args)
    check_options(args)
    from stepprof.analysis.report.analyse import placed
    from stepprof.analysis.timeline.extent import role_starts, start_of
    from stepprof.analysis.timeline.find import find
    from stepprof.analysis.timeline.merge import DEFAULT_NAME, merge
    from stepprof.analysis.timeline.parts import estimate, too_large

    given = only_traces(args.runs, output_dir(args))
    with chosen_cluster(args) as cluster:
        found = find(
            given.paths,
            output_dir=output_dir(args),
            step=args.step,
            occurrence=args.occurrence,
            roles=_roles(args.roles),
            ranks=None if args.ranks is None else Ranks.parse(args.ranks, "--ranks"),
            elsewhere=None if cluster is None else cluster.elsewhere,
        )
        found.findings += given.left_out
        with progress_bar("comparing clocks") as progress:
            found = placed(found, workers=args.workers, progress=progress, assume=assume, cluster=cluster)
        begin = start_of(found, assume) if (args.from_seconds, args.to_seconds) != (None, None) else 0
        groups = _groups(args, found, Path(found.named(DEFAULT_NAME)))
        if not args.json:
            inputs = [each for group in groups.values() for each in group]
            guess = size(sum(estimate(group) for group in groups.values()))
            what = "the timeline" if len(groups) == 1 else f"{len(groups)} timelines"
            print_lines(
                f"{counted(len(inputs), 'source')}, {size(sum(each.bytes for each in inputs))}: {what} will have about {guess} or less"
            )
        added = _added(args, found, assume, cluster)
        timelines = []
        for output, inputs in groups.items():
            with progress_bar("merging") as progress:
                merged = merge(
                    inputs,
                    output,
                    filters=_filters(args, begin),
                    title=_title(found),
                    workers=args.workers,
                    progress=progress,
                    assume=assume,
                    cluster=cluster,
                    added=added,
                    roles=role_starts(found),
                    left_out=found.findings,
                )
            timelines.append((merged, too_large(merged.bytes)))
    if args.json:
        described = [_described(found, *each) for each in timelines]
        print_json({"timelines": described} if args.per_replica else described[0])
    else:
        print_lines(*(line for each in timelines for line in _rendered(found, *each)))
    parts = [part for merged, _ in timelines for part in merged.parts]
    empty = [part.path for part in parts if part.events == 0 and part.findings]
    cut = [part.path for part in parts if not part.whole and part.path in found.unlisted]
    return warn_incomplete(empty, cut, "the timeline") or int(bool(given.left_out))


def _added(
    args: argparse.Namespace, found: Found, assume: Mapping[str, int] | None, cluster: Cluster | None
) -> list[Source]:
    """Return the tracks that --critical-path adds."""
    if not args.critical_path:
        return []
    from stepprof.analysis.report.analyse import analyse
    from stepprof.analysis.report.step_tracks import step_tracks

    with progress_bar("following the critical path") as progress:
        report = analyse(found, workers=args.workers, progress=progress, assume=assume, cluster=cluster)
    return [step_tracks(report)]


def _groups(args: argparse.Namespace, found: Found, name: Path) -> dict[Path, list[Input]]:
    """Return the sources of each timeline, keyed by its output file."""
    folder = found.folder or Path()
    if not args.per_replica:
        return {args.output or folder / name: found.inputs}
    if args.output is not None:
        raise ConfigError(
            "--output: cannot be combined with --per-replica, which writes one file per replica into its folder"
        )
    groups: dict[Path, list[Input]] = {}
    for each in found.inputs:
        origin = each.origin
        if origin.kind == "engine" and origin.role is not None and origin.replica is not None:
            groups.setdefault(folder / origin.role / f"replica-{origin.replica}" / name, []).append(each)
    if not groups:
        raise ConfigError("--per-replica: no trace of an engine's replica was found")
    return groups


def _filters(args: argparse.Namespace, begin: int) -> Filters:
    from stepprof.analysis.timeline.filters import Filters

    def moment(seconds: float | None) -> int | None:
        return None if seconds is None else begin + round(seconds * 1e9)

    return Filters(
        min_ns=round((args.min_us or 0) * 1000),
        cpu_ops=not args.no_cpu_ops,
        from_ns=moment(args.from_seconds),
        to_ns=moment(args.to_seconds),
    )


def _roles(text: str | None) -> list[str] | None:
    return None if text is None else [role.strip() for role in text.split(",") if role.strip()]


def _title(found: Found) -> str:
    if found.step is not None:
        which = f" (occurrence {found.occurrence} of {found.occurrences})" if found.occurrences > 1 else ""
        return f"step {found.step}{which} of {found.run_id}"
    return "timeline" if found.folder is None else resolved(found.folder).name


def _described(found: Found, merged: Merged, warning: str | None) -> dict[str, Any]:
    return {
        "path": str(merged.path),
        "bytes": merged.bytes,
        "run_id": found.run_id,
        "step": found.step,
        "occurrence": found.occurrence,
        "occurrences": found.occurrences,
        "clock": merged.clock,
        "clock_error_ns": merged.clock_error_ns,
        "warning": warning,
        "sources": [
            {
                "name": part.label,
                "path": part.path,
                "slices": part.slices,
                "instants": part.instants,
                "counters": part.counters,
                "flows": part.flows,
                "first_unix_ns": part.first_ns,
                "last_unix_ns": part.last_ns,
                "alignment": part.alignment.method,
                "offset_ns": part.alignment.offset_ns,
                "error_ns": part.alignment.error_ns,
            }
            for part in merged.parts
        ],
        "findings": [
            {"source": source, "problem": problem} for source, problem in [*found.findings, *merged.findings]
        ],
    }


def _rendered(found: Found, merged: Merged, warning: str | None) -> list[str]:
    """Return the lines that describe the written file."""
    events = sum(part.events for part in merged.parts)
    lines = [
        f"{counted(events, 'event')} of {counted(len(merged.parts), 'source')}, {size(merged.bytes)}",
        f"clock: {merged.clock}",
    ]
    notes = [
        problem if source is None else f"{source}: {problem}"
        for source, problem in [*found.findings, *merged.findings]
    ]
    if warning:
        notes.append(f"{merged.path.name} is {warning}")
    if notes:
        lines += ["notes:", *(f"  {note}" for note in notes)]
    return [*lines, str(merged.path)]

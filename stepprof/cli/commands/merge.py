"""`stepprof merge`: one timeline of all that was recorded of a step."""

from __future__ import annotations

import argparse
import difflib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.cli.common import output_dir, print_json
from stepprof.cli.output import say
from stepprof.cli.trace_options import (
    add_sources,
    add_work,
    begin_reading,
    chosen_cluster,
    progress_bar,
)
from stepprof.config.selection import Ranks
from stepprof.errors import ConfigError
from stepprof.formatting import counted, size

if TYPE_CHECKING:
    from stepprof.analysis.timeline.filters import Filters
    from stepprof.analysis.timeline.find import Found
    from stepprof.analysis.timeline.manifest_sources import Input
    from stepprof.analysis.timeline.merge import Merged
    from stepprof.analysis.timeline.parts import Format

__all__ = ["add", "run"]

_LARGEST = 1e9  # seconds, and microseconds: decades, and hours


def add(parser: argparse.ArgumentParser) -> None:
    """Say what `merge` takes."""
    parser.description = 'Write one timeline of all that was recorded of a step: ranks, engines, spans, on one clock. "stepprof open" shows it, and so does https://ui.perfetto.dev.'
    add_sources(parser)
    parser.add_argument(
        "--format",
        default="perfetto",
        metavar="FORMAT",
        help="perfetto (the default): compact, with the arguments that people look at; json: complete, Chrome's JSON, compressed",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="by default timeline.pftrace or timeline.json.gz in the step's folder",
    )
    parser.add_argument(
        "--per-replica",
        action="store_true",
        help="one timeline per engine replica instead, of its workers alone, each in the folder of its replica",
    )
    parser.add_argument("--roles", metavar="ROLE,…", help="only these roles, and the spans")
    parser.add_argument("--ranks", metavar="RANKS", help='only these ranks, like "0-3,8", and the engines')
    parser.add_argument(
        "--min-us",
        type=float,
        metavar="US",
        help="leave out slices that are shorter than this, in microseconds",
    )
    parser.add_argument(
        "--no-cpu-ops", action="store_true", help="leave out operators and Python calls of the host"
    )
    parser.add_argument(
        "--from",
        type=float,
        dest="from_seconds",
        metavar="S",
        help="leave out what ends before this, in seconds since the step began",
    )
    parser.add_argument(
        "--to",
        type=float,
        dest="to_seconds",
        metavar="S",
        help="leave out what begins after this, in seconds since the step began",
    )
    add_work(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print what was written as JSON (schema_version 1) instead of text",
    )


def run(args: argparse.Namespace) -> int:
    """Merge; 0, or 1 where nothing of a source came into the timeline."""
    assume = begin_reading(args)
    format_ = _format(args.format)
    _check_range(args)
    from stepprof.analysis.report.merge_placement import placed
    from stepprof.analysis.timeline.extent import role_starts, start_of
    from stepprof.analysis.timeline.find import find
    from stepprof.analysis.timeline.merge import default_output, merge
    from stepprof.analysis.timeline.timeline_size import estimate, too_large

    with chosen_cluster(args) as cluster:
        found = find(
            args.runs,
            output_dir=output_dir(args),
            step=args.step,
            occurrence=args.occurrence,
            roles=_roles(args.roles),
            ranks=None if args.ranks is None else Ranks.parse(args.ranks, "--ranks"),
            elsewhere=None if cluster is None else cluster.elsewhere,
        )
        with progress_bar("comparing clocks") as progress:
            found = placed(found, workers=args.workers, progress=progress, assume=assume, cluster=cluster)
        begin = start_of(found, assume) if (args.from_seconds, args.to_seconds) != (None, None) else 0
        groups = _groups(args, found, Path(found.named(default_output(Path(), format_).name)))
        if not args.json:
            inputs = [each for group in groups.values() for each in group]
            guess = size(sum(estimate(group, format_) for group in groups.values()))
            what = "the timeline" if len(groups) == 1 else f"{len(groups)} timelines"
            say(
                f"{counted(len(inputs), 'source')}, {size(sum(each.bytes for each in inputs))}: {what} will have at most about {guess}"
            )
        timelines = []
        for output, inputs in groups.items():
            with progress_bar("merging") as progress:
                merged = merge(
                    inputs,
                    output,
                    format=format_,
                    title=_title(found),
                    filters=_filters(args, begin),
                    workers=args.workers,
                    progress=progress,
                    assume=assume,
                    roles=role_starts(found),
                    cluster=cluster,
                    left_out=found.findings,
                    about=_about(args, found),
                )
            timelines.append((merged, too_large(merged.bytes, format_)))
    if args.json:
        described = [_described(found, *each) for each in timelines]
        print_json({"timelines": described} if args.per_replica else described[0])
    else:
        say(*(line for each in timelines for line in _rendered(found, *each)))
    parts = [part for merged, _ in timelines for part in merged.parts]
    return 1 if any(part.events == 0 and part.findings for part in parts) else 0


def _groups(args: argparse.Namespace, found: Found, name: Path) -> dict[Path, list[Input]]:
    """The sources of each timeline, by the file that it becomes."""
    folder = found.folder or Path()
    if not args.per_replica:
        return {args.output or folder / name: found.inputs}
    if args.output is not None:
        raise ConfigError(
            "--output: --per-replica writes one file for each replica, in its folder; leave one of the two out"
        )
    groups: dict[Path, list[Input]] = {}
    for each in found.inputs:
        origin = each.origin
        if origin.kind == "engine" and origin.role is not None and origin.replica is not None:
            groups.setdefault(folder / origin.role / f"replica-{origin.replica}" / name, []).append(each)
    if not groups:
        raise ConfigError("--per-replica: no trace of an engine's replica was found")
    return groups


def _format(text: str) -> Format:
    from stepprof.analysis.timeline.parts import FORMATS

    for known in FORMATS:
        if text == known:
            return known
    near = difflib.get_close_matches(text, FORMATS, 1, 0)
    raise ConfigError(
        f'--format "{text}": no format; the nearest: {near[0] if near else next(iter(FORMATS))}'
    )


def _check_range(args: argparse.Namespace) -> None:
    for option, value in (
        ("--from", args.from_seconds),
        ("--to", args.to_seconds),
        ("--min-us", args.min_us),
    ):
        if value is not None and not abs(value) < _LARGEST:
            raise ConfigError(
                f"{option} = {value}: no such time; the nearest: {0 if math.isnan(value) else math.copysign(_LARGEST, value):g}"
            )
    if args.min_us is not None and args.min_us < 0:
        raise ConfigError(f"--min-us = {args.min_us:g}: no length; the nearest: 0")
    if args.from_seconds is not None and args.to_seconds is not None and args.from_seconds >= args.to_seconds:
        raise ConfigError(f"--from = {args.from_seconds:g}: not before --to = {args.to_seconds:g}")


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


def _about(args: argparse.Namespace, found: Found) -> dict[str, object]:
    """What a timeline in JSON says of the step, so that it can be reported on; of a part of the step no manifests, which tell of all of it."""
    options = {"--from": args.from_seconds, "--to": args.to_seconds, "--min-us": args.min_us}
    filters = [f"{option} {value:g}" for option, value in options.items() if value is not None]
    filters += ["--no-cpu-ops"] if args.no_cpu_ops else []
    filters += [left_out for _, left_out in found.filtered]
    whole = args.roles is None and args.ranks is None and not args.per_replica
    return {
        "run_id": found.run_id,
        "step": found.step,
        "left_out": ", ".join(filters),
        "manifests": found.manifests if whole else [],
    }


def _roles(text: str | None) -> list[str] | None:
    return None if text is None else [role.strip() for role in text.split(",") if role.strip()]


def _title(found: Found) -> str:
    if found.step is not None:
        which = f" (occurrence {found.occurrence} of {found.occurrences})" if found.occurrences > 1 else ""
        return f"step {found.step}{which} of {found.run_id}"
    return "timeline" if found.folder is None else found.folder.resolve().name


def _described(found: Found, merged: Merged, warning: str | None) -> dict[str, Any]:
    return {
        "path": str(merged.path),
        "format": merged.format,
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
    """Return the lines that say what was written."""
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

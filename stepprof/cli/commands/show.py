"""`stepprof show --step N`: what was recorded in a step, per rank and role.

It lists the files, the recording overhead, and the time per region.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepprof.analysis.post_step_notes import after_notes
from stepprof.analysis.recording_cost import cost_sentences, recording_cost
from stepprof.cli.common import (
    add_all,
    add_json,
    add_occurrence,
    add_run,
    add_step,
    chosen_run,
    print_json,
)
from stepprof.cli.engine_table import clocks_table, engine_notes, engines_table
from stepprof.cli.memory_tables import describe_memory, memory_tables
from stepprof.cli.output import print_text
from stepprof.cli.row_grouping import FULL_ROWS, bounded
from stepprof.cli.window_table import artifacts_table, window_notes, windows_table
from stepprof.formats import npu_folder
from stepprof.formatting import duration, number, printable, table
from stepprof.run.layout import step_folder
from stepprof.run.manifest import find_step
from stepprof.run.occurrence_spans import read_occurrence
from stepprof.run.status import missed_requests
from stepprof.run.summary import RegionTime, absent_ranks, ordered_ranks, region_times

REGION_COLUMNS = ("role", "region", "calls", "raised")
RANK_COLUMNS = ("ranks", "min s", "mean s", "max s", "slowest")

_RANKS_SIDE_BY_SIDE = 6  # beyond this: the spread over the ranks instead of a column for each


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `show`."""
    parser.description = "Show what was recorded in a step."
    add_run(parser)
    add_step(parser)
    add_occurrence(parser)
    parser.add_argument(
        "--snapshots",
        type=int,
        default=4,
        metavar="N",
        help="number of memory snapshots to read for the largest allocations (default 4; a snapshot of 100,000 entries takes a second)",
    )
    add_all(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Show one step. Always return 0."""
    path = chosen_run(args)
    step = find_step([path], args.step)
    if args.json:
        print_json(describe_step(path, step, snapshots=args.snapshots, occurrence=args.occurrence))
    else:
        print_text(
            render_step(path, step, snapshots=args.snapshots, show_all=args.all, occurrence=args.occurrence)
        )
    return 0


def describe_step(
    path: Path, step: int, *, snapshots: int = 4, occurrence: int | None = None
) -> dict[str, Any]:
    """Return everything known about a step, JSON-able.

    Keys: the combined `manifest`, `regions` with their seconds, `missing` windows,
    `missed_requests`, the step's `folder`, a summary of its `memory` snapshots, and the analysis
    state of its `npu` captures.
    """
    read = read_occurrence(path, step, occurrence)
    manifest, regions = read.manifest, region_times(path, step, read.portions)
    cost = recording_cost(path, step, manifest["windows"], manifest["engines"])
    return {
        "run_id": manifest["run_id"],
        "occurrence": read.number,
        "occurrences": read.count,
        "path": str(path),
        "folder": str(path / step_folder(step)),
        "manifest": manifest,
        "regions": [dataclasses.asdict(time) for time in regions.times],
        "cost": None if cost is None else dataclasses.asdict(cost),
        "missing": absent_ranks(path, manifest),
        "missed_requests": missed_requests(path, step),
        "span_findings": regions.findings,
        "memory": describe_memory(
            path / step_folder(step), [*manifest["windows"], *manifest["engines"]], max(snapshots, 0)
        ),
        "npu": _describe_npu(path, step, [*manifest["windows"], *manifest["engines"]]),
    }


def render_step(
    run_path: Path,
    step: int,
    *,
    snapshots: int = 4,
    show_all: bool = False,
    occurrence: int | None = None,
) -> str:
    """Return a step as text, per rank, role and engine.

    The text lists files, bytes, recording overhead in seconds, missing windows with reasons, and
    seconds per region. Similar entries share a line if there are many, unless `show_all`.
    """
    path = Path(run_path)
    read = read_occurrence(path, step, occurrence)
    manifest, regions = read.manifest, region_times(path, step, read.portions)
    windows, engines = manifest["windows"], manifest["engines"]
    version = "" if manifest["version"] is None else f"  version {manifest['version']}"
    which = f"  occurrence {read.number} of {read.count}" if read.count > 1 else ""
    parts = [printable(f"run {manifest['run_id']}  step {step}{which}{version}")]
    parts.append(windows_table(windows, show_all=show_all) if windows else "no window is recorded")
    if engines:
        parts.append(engines_table(engines, show_all=show_all))
    artifacts = artifacts_table([*windows, *engines], show_all=show_all)
    if artifacts:
        parts.append(printable(f"in {path / step_folder(step)}:") + f"\n{artifacts}")
    tables, memory_notes = memory_tables(
        path / step_folder(step), [*windows, *engines], max(snapshots, 0), show_all=show_all
    )
    parts += tables
    clocks = clocks_table(manifest["clocks"], show_all=show_all)
    if clocks:
        parts.append(clocks)
    kinds = [
        read.notes,
        window_notes(windows),
        engine_notes(engines),
        memory_notes,
        _npu_notes(path, step, [*windows, *engines]),
        _nsys_notes([*windows, *engines]),
        after_notes(manifest),
        absent_ranks(path, manifest),
        missed_requests(path, step),
        [f"{finding['fragment'] or 'manifest'}: {finding['problem']}" for finding in manifest["findings"]],
        [f"{finding['file']}: {finding['problem']}" for finding in regions.findings],
    ]
    notes = bounded(kinds, show_all=show_all)
    if notes:
        parts.append("notes:\n" + "\n".join(f"  {printable(note)}" for note in notes))
    cost = cost_sentences(recording_cost(path, step, windows, engines))
    if cost:
        parts.append("cost of recording:\n" + "\n".join(f"  {sentence}" for sentence in cost))
    if regions.times:
        parts.append(_regions_table(regions.times, show_all=show_all))
    return "\n\n".join(parts)


def _regions_table(times: Sequence[RegionTime], *, show_all: bool) -> str:
    ranks = ordered_ranks(times)
    by_region: dict[tuple[str | None, str], dict[int | str, RegionTime]] = {}
    for time in times:
        by_region.setdefault((time.role, time.name), {})[time.rank] = time
    side_by_side = len(ranks) <= _RANKS_SIDE_BY_SIDE
    shown = by_region.items()
    left_out = 0 if show_all else max(len(by_region) - FULL_ROWS, 0)
    if left_out:
        longest = sorted(shown, key=lambda item: -sum(time.seconds for time in item[1].values()))
        kept = {key for key, _ in longest[:FULL_ROWS]}
        by_region = {key: on for key, on in shown if key in kept}
    rows = []
    for (role, name), on in by_region.items():
        seconds = {rank: time.seconds for rank, time in on.items()}
        calls = sum(time.count for time in on.values())
        errors = sum(time.errors for time in on.values())
        if side_by_side:
            spread = [duration(seconds.get(rank)) for rank in ranks]
        else:
            slowest = max(seconds, key=seconds.__getitem__)
            values = list(seconds.values())
            spread = [
                str(len(values)),
                duration(min(values)),
                duration(sum(values) / len(values)),
                duration(max(values)),
                str(slowest),
            ]
        rows.append([role or "step", name, number(calls), number(errors) if errors else None, *spread])
    columns = [f"rank {rank} s" for rank in ranks] if side_by_side else RANK_COLUMNS
    text = table([*REGION_COLUMNS, *columns], rows, "llrr" + "r" * len(columns))
    return f"{text}\n({left_out} shorter regions omitted; --all shows them)" if left_out else text


def _describe_npu(path: Path, step: int, entries: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return each torch_npu capture folder with the state of its analysis."""
    folder = path / step_folder(step)
    return [
        {"path": found.relative_to(folder).as_posix(), "analysis": npu_folder.analysis_of(found)}
        for found in npu_folder.recorded_folders(folder, entries)
    ]


def _nsys_notes(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a hint on how to open a report of Nsight Systems."""
    if any(artifact["kind"] == "nsys" for entry in entries for artifact in entry["artifacts"]):
        return [
            '.nsys-rep is an Nsight Systems report: open it with nsys-ui, or summarise it with "nsys stats FILE"'
        ]
    return []


def _npu_notes(path: Path, step: int, entries: Sequence[Mapping[str, Any]]) -> list[str]:
    hint = f': "stepprof analyse {path.name} --step {step}" creates its trace'
    return [
        f"{found['path']}: {found['analysis']}{hint if found['analysis'] == npu_folder.NOT_YET else ''}"
        for found in _describe_npu(path, step, entries)
    ]

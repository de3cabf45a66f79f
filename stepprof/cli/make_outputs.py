"""Write the timeline and the report of a recorded step to their default places, or say why not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepprof.cli.output import print_lines
from stepprof.cli.trace_options import progress_bar, require_extra
from stepprof.errors import ConfigError
from stepprof.host.plain_files import resolved

if TYPE_CHECKING:
    from stepprof.analysis.report.schema import Report


def make_timeline(
    paths: Sequence[str | Path], output_dir: Path, step: int | None, folder: Path | None = None
) -> Path:
    """Merge a step or traces into `timeline.pftrace` in their folder, or in another one, and return the file.

    Sources that are not in it are printed. Raise ConfigError if the extra `report` is not installed, there is nothing to merge, or the file
    cannot be written.
    """
    require_extra()
    from stepprof.analysis.report.analyse import placed
    from stepprof.analysis.timeline.extent import role_starts
    from stepprof.analysis.timeline.find import find
    from stepprof.analysis.timeline.merge import DEFAULT_NAME, merge

    found = placed(find(paths, output_dir=output_dir, step=step))
    place = folder or found.folder or Path()
    with progress_bar("merging") as progress:
        merged = merge(
            found.inputs,
            place / found.named(DEFAULT_NAME),
            title=resolved(place).name if found.step is None else f"step {found.step} of {found.run_id}",
            progress=progress,
            roles=role_starts(found),
            left_out=found.findings,
        )
    for part in merged.parts:
        if not part.events:
            print_lines(*(f"{part.path}: {finding}" for finding in part.findings), file=sys.stderr)
    return merged.path


def make_report(run: Path, step: int) -> tuple[Report, list[Path]]:
    """Write `report.html` and `report.json` of a step into its folder; return the report and the
    written files.

    Raise ConfigError if the extra `report` is not installed.
    """
    require_extra()
    from stepprof.analysis.report.analyse import analyse
    from stepprof.analysis.report.page import render
    from stepprof.analysis.report.store import dump
    from stepprof.analysis.timeline.find import find

    found = find([run], output_dir=run.parent, step=step)
    with progress_bar("reading traces") as progress:
        report = analyse(found, progress=progress)
    folder = found.folder or run
    files = {folder / "report.html": render(report).encode(), folder / "report.json": dump(report)}
    return report, [path for path, data in files.items() if is_written(path, data)]


def is_written(path: Path, data: bytes) -> bool:
    """Write a file of a report. Return False, and print why, if that fails."""
    from stepprof.analysis.report.store import write

    try:
        write(path, data)
    except ConfigError as error:
        print_lines(error, file=sys.stderr)
        return False
    return True

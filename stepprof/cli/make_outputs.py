"""Write the timeline and the report of a recorded step to their default places."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepprof.cli.trace_options import progress_bar, require_extra

if TYPE_CHECKING:
    from stepprof.analysis.report.schema import Report


def make_timeline(run: Path, step: int) -> Path:
    """Merge a step into `timeline.pftrace` in its folder and return the file.

    Raise ConfigError if the extra `report` is not installed, there is nothing to merge, or the file
    cannot be written.
    """
    require_extra()
    from stepprof.analysis.report.analyse import placed
    from stepprof.analysis.timeline.extent import role_starts
    from stepprof.analysis.timeline.find import find
    from stepprof.analysis.timeline.merge import default_output, merge

    found = placed(find([run], output_dir=run.parent, step=step))
    with progress_bar("merging") as progress:
        return merge(
            found.inputs,
            default_output(found.folder or run, "perfetto"),
            title=f"step {step} of {found.run_id}",
            progress=progress,
            roles=role_starts(found),
            left_out=found.findings,
        ).path


def make_report(run: Path, step: int) -> tuple[Report, list[Path]]:
    """Write `report.html` and `report.json` of a step into its folder; return the report and the
    files.

    Raise ConfigError if the extra `report` is not installed or a file cannot be written.
    """
    require_extra()
    from stepprof.analysis.report.analyse import analyse
    from stepprof.analysis.report.page import render
    from stepprof.analysis.report.store import dump, write
    from stepprof.analysis.timeline.find import find

    found = find([run], output_dir=run.parent, step=step)
    with progress_bar("reading traces") as progress:
        report = analyse(found, progress=progress)
    folder = found.folder or run
    page, data = folder / "report.html", folder / "report.json"
    write(page, render(report).encode())
    write(data, dump(report))
    return report, [page, data]

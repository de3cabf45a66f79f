"""Say so if a step has no rollout although other steps of the run have one: it trained on earlier samples."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from stepprof.analysis.findings.neighbours import files_of
from stepprof.analysis.report.schema import Finding
from stepprof.analysis.timeline.span_sources import SpanFiles
from stepprof.run.span_lines import parse_span, span_lines

ROLE = "rollout"
MOST_PROCESSES = 3
"""The number of processes of a run in which other steps are searched: the driver first, then ranks in order."""

Window = tuple[int, str | None]
"""The step and the role of a window."""


def no_rollout(runs: Sequence[Path], step: int | None, roles: Collection[str | None]) -> list[Finding]:
    """Return the finding about a step without a rollout; [] if it has one, or if the spans do not show that it has none.

    They show it in a process that finished the step and had rollouts in other steps, if no process had one in this step.

    Args:
        runs: folders of the run.
        step: the recorded step; None: it is not known.
        roles: those that the step has in manifests and traces.
    """
    if step is None or ROLE in roles:
        return []
    files = [files for run in runs for files in files_of(run)]
    seen = [windows for windows in map(_windows, files[:MOST_PROCESSES]) if _is_over(windows, step)]
    generating = {number for windows in seen for number, role in windows if role == ROLE}
    if not generating or any((step, ROLE) in _windows(each, step) for each in files):
        return []
    nearest = min(generating, key=lambda number: (abs(number - step), -number))
    text = f"no process recorded a rollout in this step; the nearest step with one is step {nearest}"
    advice = f"record that step if generation matters: `--steps {nearest}`"
    return [Finding(text, "no_rollout", advice=advice)]


def _is_over(windows: set[Window], step: int) -> bool:
    """Return whether a process has finished a step: its window without a role, or windows of it and of a later one."""
    if (step, None) in windows:
        return True
    numbers = {number for number, _ in windows}
    return step in numbers and max(numbers) > step


def _windows(process: SpanFiles, step: int | None = None) -> set[Window]:
    """Return the windows of a process that its spans show; `step`: those of one step at least."""
    found: set[Window] = set()
    for file in process.files:
        try:
            for line in span_lines(file, step, windows=step is None):
                span = parse_span(line)
                if span and span.get("kind") == "window" and span.get("step") is not None:
                    found.add((span["step"], span.get("role")))
        except OSError:
            continue
    return found

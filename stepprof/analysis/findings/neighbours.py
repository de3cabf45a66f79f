"""Read the steps around the recorded one from the spans of a run: how long their regions took, and whether they have a
rollout that the recorded one lacks. Then it trained on earlier samples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path

from stepprof.analysis.report.schema import Finding
from stepprof.analysis.timeline.model import Origin
from stepprof.analysis.timeline.span_sources import SpanFiles, span_files
from stepprof.run.layout import SPANS
from stepprof.run.span_lines import parse_span, span_lines

AROUND = 4
"""Number of steps to read before and after the recorded one."""
MOST_BYTES = 256 << 20
"""Spans of one process with more bytes than this are not read."""

Times = dict[tuple["str | None", str], float]
ROLE = "rollout"
MOST_PROCESSES = 3
"""The number of processes of a run in which other steps are searched: the driver first, then ranks in order."""

Window = tuple[int, str | None]
"""The step and the role of a window."""


class Neighbours:
    """The steps around a step of a run.

    Args:
        runs: folders of the run.
        step: the recorded step.
    """

    def __init__(self, runs: Sequence[Path], step: int) -> None:
        self._files = [files for run in runs for files in files_of(run)]
        self._steps = {number for number in range(step - AROUND, step + AROUND + 1) if number != step}
        self._of = lru_cache(maxsize=64)(self._read)

    def seconds(self, origin: Origin, role: str | None, region: str) -> dict[int, float]:
        """Return how long a process was in a region in each of these steps that it had."""
        times = self._of(origin.rank, origin.host, origin.pid)
        return {step: of.get((role, region), 0.0) for step, of in times.items()}

    def _read(self, rank: int | str | None, host: str | None, pid: int | None) -> dict[int, Times]:
        found: dict[int, Times] = defaultdict(lambda: defaultdict(float))
        for files in self._files:
            if (files.rank, files.host, files.pid) != (rank, host, pid):
                continue
            if sum(file.stat().st_size for file in files.files) > MOST_BYTES:
                continue
            for file in files.files:
                for line in span_lines(file, self._steps):
                    span = parse_span(line)
                    if span and span.get("step") in self._steps and span.get("kind") in ("region", "window"):
                        name = (span.get("role"), str(span.get("name")))
                        found[span["step"]][name] += span.get("dur", 0) / 1e9
        return {step: dict(times) for step, times in found.items()}


def files_of(run: Path) -> list[SpanFiles]:
    """Return the span files of a run; [] if they cannot be read."""
    try:
        return span_files(run / SPANS)
    except OSError:
        return []


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

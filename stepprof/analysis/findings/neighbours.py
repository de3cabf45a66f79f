"""Read the steps around the recorded one from the spans of a run: how long their regions took, and whether they have a
rollout that the recorded one lacks. Then it trained on earlier samples.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from stepprof.analysis.findings.step_times import StepTimes, adds_work, kind_of, step_times
from stepprof.analysis.periodic import every, period
from stepprof.analysis.report.schema import Finding
from stepprof.analysis.timeline.model import Origin
from stepprof.analysis.timeline.span_sources import SpanFiles, span_files
from stepprof.formatting import ranges
from stepprof.run.layout import SPANS
from stepprof.run.span_lines import parse_span, span_lines

AROUND = 4
"""Number of steps before and after the recorded one whose names are compared. They are the nearest that the process has: a loop may
count in tens.
"""
FAR = 40
"""Number of steps to read before and after the recorded one: a period needs several of its steps."""
FEWEST = 2
"""Fewer steps are not counted in a sentence."""
MOST_BYTES = 256 << 20
"""Spans of one process with more bytes than this are not read."""

ROLE = "rollout"
MOST_PROCESSES = 3
"""The number of processes of a run in which other steps are searched: the driver first, then ranks in order."""

Window = tuple[int, str | None]
"""The step and the role of a window."""


class Having(NamedTuple):
    """Which of the steps around have work of one name."""

    have: list[int]
    lack: list[int]
    period: int | None = None
    """The steps that have it are a multiple of so many steps away; None: none is seen."""

    def phrase(self) -> str:
        """Return the end of a sentence about the work; empty if all of these steps have it."""
        if not self.lack or len(self.have) + len(self.lack) < FEWEST:
            return ""
        if self.period is not None:
            return f", which {every(self.period)} has"
        do = "does" if len(self.lack) == 1 else "do"
        return (
            f", which {len(self.lack)} of the {len(self.have) + len(self.lack)} steps around it {do} not have"
        )

    def evidence(self) -> str | None:
        """Return which of the steps have it; None if that is clear from the sentence."""
        if not self.have or not self.lack:
            return None
        return f"{'step' if len(self.have) == 1 else 'steps'} {ranges(self.have)} {'has' if len(self.have) == 1 else 'have'} it too"


class Neighbours:
    """The steps around a step of a run.

    Args:
        runs: folders of the run.
        step: the recorded step.
    """

    def __init__(self, runs: Sequence[Path], step: int) -> None:
        self._files = [files for run in runs for files in files_of(run)]
        self.step = step
        self._of = lru_cache(maxsize=64)(self._read)
        self._having = lru_cache(maxsize=4096)(self._compared)

    def seconds(self, origin: Origin, role: str | None, region: str) -> dict[int, float]:
        """Return how long a process was in a region in each of these steps that it had."""
        others = self._of(origin.rank, origin.host, origin.pid)
        return {step: of.total[role, region] / 1e9 for step, of in others.items() if step != self.step}

    def having(self, origin: Origin, name: str) -> Having | None:
        """Return which of these steps of a process have regions or windows of a name, whatever number is in it.

        Returns:
            None: not known, since steps without the name have the work under another one, or under none.
        """
        return self._having((origin.rank, origin.host, origin.pid), kind_of(name))

    def _compared(self, process: tuple[int | str | None, str | None, int | None], kind: str) -> Having | None:
        steps = self._of(*process)
        this = steps.get(self.step)
        others = sorted(steps.keys() - {self.step})
        having = [step for step in others if kind in steps[step].kinds]
        near = _nearest(others, self.step, AROUND)
        found = Having(
            [step for step in near if step in having],
            [step for step in near if step not in having],
            period(self.step, having, others),
        )
        if (
            this is None
            or kind not in this.kinds
            or (found.lack and not adds_work(this, [steps[step] for step in found.lack], kind))
        ):
            return None
        return found

    def _read(self, rank: int | str | None, host: str | None, pid: int | None) -> dict[int, StepTimes]:
        """Return the steps of a process, also the recorded one; {} if its number was used for several steps."""
        own = [each for each in self._files if (each.rank, each.host, each.pid) == (rank, host, pid)]
        try:
            few = [each for each in own if sum(file.stat().st_size for file in each.files) <= MOST_BYTES]
            numbers = {number for each in few for number, _ in _windows(each)}
            if self.step not in numbers:  # it has regions alone
                numbers = {*range(max(self.step - FAR, 0), self.step + FAR + 1)}
            wanted = {self.step, *_nearest(sorted(numbers), self.step, FAR)}
            found = step_times((file for each in few for file in each.files), wanted)
        except OSError:
            return {}
        return found if self.step in found else {}


def _nearest(steps: Sequence[int], step: int, most: int) -> Sequence[int]:
    """Return the nearest of some steps before and after one, in order.

    >>> _nearest([10, 20, 40, 50], 30, 1)
    [20, 40]
    """
    before, after = bisect_left(steps, step), bisect_right(steps, step)
    return [*steps[max(before - most, 0) : before], *steps[after : after + most]]


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

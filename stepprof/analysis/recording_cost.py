"""Compare a recorded step with the steps around it that were not recorded, and list the known costs of recording.

A step counts from its begin to the begin of the next one, so that it contains what recording costs before and after its windows.
The difference has other causes too: whatever else only this step did.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from stepprof.analysis.report.wording import seconds
from stepprof.analysis.run_windows import RunWindow, own_windows, process_files
from stepprof.formatting import ranges
from stepprof.run.runs import steps

AROUND = 4
"""Number of steps before and after the recorded one to compare it with."""

FEWEST = 2
"""Fewer say nothing."""

MOST_PROCESSES = 3
"""The number of processes in which the steps are searched; each has those of the whole job."""


@dataclass(frozen=True)
class RecordingCost:
    """How long a recorded step was, compared with steps around it that were not recorded. Seconds."""

    seconds: float
    """From its begin to the begin of the next step."""
    others: list[int]
    """The numbers of the other steps."""
    median: float
    """The median of the other steps."""
    shortest: float
    """The shortest of the other steps."""
    longest: float
    """The longest of the other steps."""
    held: float = 0.0
    """The most that profilers delayed the training thread of one process."""
    engines_start: float = 0.0
    """The longest start call of an engine."""
    engines_stop: float = 0.0
    """The longest stop call of an engine."""
    export: float = 0.0
    """The longest export next to training."""


def recording_cost(
    path: Path,
    step: int,
    windows: Sequence[Mapping[str, Any]],
    engines: Sequence[Mapping[str, Any]],
) -> RecordingCost | None:
    """Compare a recorded step with its neighbours in the same process: a rank may have been started again.

    Args:
        path: the run's folder.
        step: the step's number.
        windows: of the occurrence of the step, in the manifest.
        engines: of the occurrence of the step, in the manifest.

    Returns:
        None: it is the last step, the process used its number again, or fewer than two steps around it were not recorded.
    """
    recorded = set(steps(path))
    processes = {f"{window.get('host')} {window.get('pid')}" for window in windows}
    for _, files in process_files(path)[:MOST_PROCESSES]:
        begins = _begins(own_windows(files, step, processes))
        times = Counter(number for _, number in begins)
        lasted = [
            (number, (following - start) / 1e9)
            for (start, number), (following, _) in itertools.pairwise(begins)
        ]
        at = next((at for at, (number, _) in enumerate(lasted) if number == step), None)
        if at is None or times[step] > 1:
            continue
        # the first step of a process compiles, allocates and opens connections
        around = [
            each
            for each in lasted[max(at - AROUND, 1) : at + AROUND + 1]
            if each[0] not in recorded and times[each[0]] == 1
        ]
        if len(around) < FEWEST:
            continue
        others = [length for _, length in around]
        return RecordingCost(
            seconds=lasted[at][1],
            others=[number for number, _ in around],
            median=median(others),
            shortest=min(others),
            longest=max(others),
            held=_most_held(windows),
            engines_start=_most(engines, "start_seconds"),
            engines_stop=_most(engines, "stop_seconds"),
            export=_most(windows, "export_seconds"),
        )
    return None


def cost_sentences(cost: RecordingCost | None) -> list[str]:
    """Return the comparison and the known costs as sentences."""
    if cost is None:
        return []
    spread = f"{seconds(cost.shortest)} to {seconds(cost.longest)}"
    took = (
        f"from its begin to that of the next step it took {seconds(cost.seconds)}; steps {ranges(cost.others)}, "
        f"which were not recorded, took {seconds(cost.median)} ({spread})"
    )
    added = cost.seconds - cost.median
    longer = (
        f"it was {seconds(added)} longer than their median, which the recording or anything else in this step can have caused"
        if cost.seconds > cost.longest
        else "no longer than these"
    )
    parts = {
        "profilers of a process": cost.held,
        "starts of engines": cost.engines_start,
        "stops of engines": cost.engines_stop,
        "exports next to training": cost.export,
    }
    known = ", ".join(f"{what} {seconds(value)}" for what, value in parts.items() if value)
    return [
        f"{took}: {longer}",
        *([f"known costs of recording, the most of any process or engine: {known}"] if known else []),
    ]


def _begins(windows: Iterable[RunWindow]) -> list[tuple[int, int]]:
    """Return when each step of a process began, in order, with its number."""
    begins: list[tuple[int, int]] = []
    for start, step in sorted((window.start, window.step) for window in windows):
        if not begins or begins[-1][1] != step:
            begins.append((start, step))
    return begins


def _most_held(windows: Iterable[Mapping[str, Any]]) -> float:
    """Return the most seconds for which recording delayed the training thread of one process."""
    held: dict[object, float] = defaultdict(float)
    for window in windows:
        for key in ("arm_seconds", "start_seconds", "wait_seconds", "stall_seconds"):
            held[window["rank"]] += window.get(key) or 0.0
    return max(held.values(), default=0.0)


def _most(entries: Sequence[Mapping[str, Any]], key: str) -> float:
    return max((entry.get(key) or 0.0 for entry in entries), default=0.0)

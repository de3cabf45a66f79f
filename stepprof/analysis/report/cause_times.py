"""Measure how long the place of a cause took in each step of the run: its region, or the windows of its role, in its own process."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from stepprof.analysis.findings.step_times import kind_of
from stepprof.analysis.report.schema import CauseTimes
from stepprof.analysis.report.unrecorded import Unrecorded
from stepprof.analysis.run_windows import RunRegion, calls_of, process_files
from stepprof.analysis.timeline.model import Origin

MOST_PLACES = 3
Place = tuple[str, "str | None", "str | None"]
"""The label of a process, a role, and a region; None: the windows of the role."""


def cause_times(
    runs: Sequence[Path],
    step: int,
    around: Collection[int],
    places: Sequence[Place],
    *,
    origins: Mapping[str, Origin],
    unrecorded: Unrecorded,
) -> Iterator[CauseTimes]:
    """Yield the times of the first few places of causes, in this step and in others that have them.

    Args:
        runs: the folders of the run.
        step: the number of the step.
        around: the numbers of all steps to measure, with this one.
        places: those of the most important finding first.
        origins: of the processes, by label.
        unrecorded: what the recording of the step took.
    """
    files: dict[object, list[Path]] = (
        {rank: of for run in runs for rank, of in process_files(run)} if places else {}
    )
    for label, role, region in places[:MOST_PLACES]:
        origin = origins[label]
        process = f"{origin.host} {origin.pid}"
        spent: dict[int, int] = {}
        for call in _calls(files.get(origin.rank, ()), step, around, region, role):
            if call.process == process:
                length = unrecorded.length(process, call.start, call.end)
                spent[call.step] = spent.get(call.step, 0) + length
        if step in spent:
            yield CauseTimes(label, role, region, {number: spent[number] / 1e9 for number in sorted(spent)})


def _calls(
    files: Sequence[Path], step: int, around: Collection[int], region: str | None, role: str | None
) -> list[RunRegion]:
    """Return the calls of a region; if a number in its name counts the steps, such as in `rollout_5`, of those that differ in it."""
    calls = calls_of(files, around, region, role)
    if region is not None and kind_of(region) != region and all(call.step == step for call in calls):
        alike = calls_of(files, around, region, role, counting=True)
        if {call.name for call in alike if call.step == step} == {region}:
            return alike
    return calls

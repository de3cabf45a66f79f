"""Make the changes of a comparison: the seconds of a part in A and in B, with their noise."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from stepprof.analysis.report.schema import Change
from stepprof.analysis.report.step_noise import FEWEST, noise_of_difference, noise_of_processes
from stepprof.analysis.report.step_times import STEP, Part, RunSteps
from stepprof.analysis.report.wording import seconds_text

SAME_CHANGE = 0.5
"""Share of a change from which the change of the other steps is the same one."""


def noise_between_steps(part: Part, runs: Sequence[RunSteps]) -> tuple[float | None, int]:
    """Return the noise between the steps of the runs, and the number of steps that show it."""
    known = [of for run in runs if len(of := run.values(part)) >= FEWEST]
    if not known:
        return None, 0
    count = len(known[0]) if runs[0] is runs[1] else sum(map(len, known))
    return noise_of_difference(known[0], known[-1]), count


def change_of_steps(
    what: str, topic: str, times: tuple[float, float], noise: tuple[float | None, int], more: float = 0.0
) -> Change:
    """Return a change whose noise is between steps.

    Args:
        what: the part.
        topic: its kind.
        times: in A and in B.
        noise: by `noise_between_steps`.
        more: seconds by which the measurement itself may be wrong.
    """
    size = None if noise[0] is None else noise[0] + more
    return Change(what, topic, *times, size, _exceeds(times, size), None, size, noise[1])


def change_of_processes(
    what: str,
    topic: str,
    times: tuple[float, float],
    sides: Sequence[Sequence[float]],
    runs: Sequence[RunSteps],
) -> Change:
    """Return a change of what is known in recorded steps only.

    Args:
        what: the part.
        topic: its kind.
        times: in A and in B.
        sides: the seconds of each process in A and in B.
        runs: whose steps differ by more than a part of them.
    """
    processes, steps = noise_of_processes(*sides), noise_between_steps(STEP, runs)[0]
    if processes is None or (_exceeds(times, processes) and not _exceeds(times, steps)):
        return Change(what, topic, *times, None, False, processes)
    is_significant = _exceeds(times, processes)
    noise = max(processes, steps or 0.0) if is_significant else processes
    return Change(what, topic, *times, noise, is_significant, processes)


def _exceeds(times: tuple[float, float], noise: float | None) -> bool:
    return noise is not None and abs(times[1] - times[0]) > noise


def in_other_steps(part: Part, runs: tuple[RunSteps, RunSteps], times: tuple[float, float]) -> str:
    """Return how long a part takes in the steps of two runs that were not recorded, if that is another change."""
    values = [run.values(part) for run in runs]
    if runs[0] is runs[1] or min(map(len, values)) < FEWEST:
        return ""
    before, after = map(median, values)
    change = times[1] - times[0]
    if change == 0 or (after - before) / change >= SAME_CHANGE:
        return ""
    usual = f"{seconds_text(before)} before and {seconds_text(after)} now"
    which = "all marked steps" if runs[0].marked else "steps that were not recorded"
    return f"; but {which} took {usual} (medians)"

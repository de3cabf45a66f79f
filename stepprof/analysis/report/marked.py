"""Choose and describe the steps that torch's profiler marked in traces that stepprof did not record."""

from __future__ import annotations

from collections.abc import Sequence

from stepprof.analysis.report.digest import Digest
from stepprof.analysis.report.schema import Finding, MarkedLength
from stepprof.analysis.report.wording import seconds as seconds_text
from stepprof.analysis.timeline.find import Found
from stepprof.analysis.timeline.profiler_steps import MarkedStep, median_step
from stepprof.errors import ConfigError
from stepprof.formatting import ranges


def marked_step(found: Found, digests: Sequence[Digest]) -> int | None:
    """Return which of the steps that torch's profiler marked the report is about: the one of median length; None: none is marked.

    Raises:
        ConfigError: no trace has the selected step.
    """
    longest: dict[int, MarkedStep] = {}
    for step in (step for made in digests for step in made.marked):
        if step.number not in longest or step.length > longest[step.number].length:
            longest[step.number] = step
    wanted = next((each.marked_step for each in found.inputs if each.marked_step is not None), None)
    if wanted is None:
        return median_step(list(longest.values())) if longest else None
    if wanted not in longest:
        there = f"it has {ranges(sorted(longest))}" if longest else "torch's profiler marked none in it"
        raise ConfigError.at("--step", wanted, f"no such step is in the trace: {there}")
    return wanted


def marked_lengths(digests: Sequence[Digest]) -> list[MarkedLength]:
    """Return the length of each marked step: that of the slowest process."""
    longest: dict[int, int] = {}
    for step in (step for made in digests for step in made.marked):
        longest[step.number] = max(step.length, longest.get(step.number, 0))
    return [MarkedLength(number, length / 1e9) for number, length in sorted(longest.items())]


def of_marked_steps(digests: Sequence[Digest]) -> list[Finding]:
    """Return how many steps the traces have, and which one the report is about."""
    of = [made for made in digests if made.marked_step is not None and len(made.marked) > 1]
    if not of:
        return []
    steps = max((made.marked for made in of), key=len)
    this = of[0].marked_step
    slowest = max(steps, key=lambda step: step.length)
    median = next(step for step in steps if step.number == median_step(steps))
    longest, shortest = (seconds_text(pick(step.length for step in steps) / 1e9) for pick in (max, min))
    each = f"torch's profiler marked {len(steps)} steps ({ranges(sorted(step.number for step in steps))}): this is step {this}; "
    if longest == shortest:
        return [Finding(f"{each}all of them took {longest}", "steps")]
    middle = "" if len(steps) < 3 else f"the median is {seconds_text(median.length / 1e9)}, "
    text = f"{each}{middle}the slowest is step {slowest.number} with {longest}"
    return [Finding(text, "steps", advice=f"`--step {slowest.number}` reports on the slowest one")]

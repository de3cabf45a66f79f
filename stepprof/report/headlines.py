"""The findings as sentences, the costliest first: what a manager reads, and what an engineer looks at next.

A sentence is only made of what stands out; each has a bound below which nobody would act on it. Seconds are those of the step that would be won if the cause went away, as far as that can be said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepprof.report.schema import (
    Headline,
    Idle,
    Memory,
    Overhead,
    Overlap,
    PhaseSkew,
    Report,
    Rollout,
)
from stepprof.report.words import seconds as three_digits

__all__ = ["headlines", "seconds_text"]

WORTH_SAYING = 0.01
"""Of the step's wall time."""
LONG_TAIL = 0.25
"""Share of the rollout below half of its peak batch."""
MOST_STRAGGLERS = 3
_CAUSES = {
    "rollout": "waiting for the rollout",
    "collective": "waiting inside collectives",
    "host": "with the device waiting for its host",
    "flush": "held up by the profiler",
    "peers": "waiting for other ranks of their role",
    "other_role": "while other roles worked",
    "unknown": "for no cause that was recorded",
}


def headlines(report: Report) -> list[Headline]:
    """What stands out in a report, but for its own headlines."""
    least = report.seconds * WORTH_SAYING
    found = [
        *_stragglers(report.skew, least),
        *_tails(report.rollout, least),
        *_idleness(report.idle, least),
        *_exposed(report.overlap, report.idle, least),
        *_overheads(report.overhead, least),
        *_handovers(report.overhead, report.idle, least),
        *_memory(report.memory),
        *_coverage(report),
    ]
    found.sort(key=lambda headline: -(headline.seconds or 0.0))
    return [*_where(report), *found]


def seconds_text(seconds: float) -> str:
    """A length of time for a sentence.

    >>> [seconds_text(value) for value in (83.4, 1.84, 0.0421, 0.0000034)]
    ['83 s', '1.8 s', '42 ms', '3 us']
    """
    if seconds >= 10:
        return f"{seconds:.0f} s"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f} us"


def _where(report: Report) -> list[Headline]:
    """Where the step went, by role."""
    roles = sorted((time for time in report.roles if time.role is not None), key=lambda time: -time.seconds)
    if not roles or not report.seconds:
        return []
    worth = [time for time in roles[:5] if time.share >= WORTH_SAYING] or roles[:1]
    parts = ", ".join(f"{time.role} {time.share:.0%}" for time in worth)
    # ranks are not in a role at the same time: a role lasts from where any of them is in it
    overlap = " (they overlap)" if sum(time.share for time in worth) > 1 + WORTH_SAYING else ""
    text = f"the step took {three_digits(report.seconds)}: {parts}{overlap}"
    return [Headline(text, "step", report.seconds)]


def _phase(role: str | None, region: str | None) -> str:
    if region is None:
        return role or "the step"
    return region if role is None or role == region else f"{region} ({role})"


def _stragglers(rows: Iterable[PhaseSkew], least: float) -> list[Headline]:
    """Of each process and role the phase in which it fell behind most: what it was late by already, when that began, is not counted again."""
    found: dict[tuple[str, str | None, str], Headline] = {}
    for row in rows:
        seconds = row.behind_median - max(row.began_later or 0.0, 0.0)
        if not row.significant or seconds < least:
            continue
        phase = _phase(row.role, row.region)
        if row.basis == "collectives":
            most = row.waited[0]
            mostly = ", mostly" if len(row.waited) > 1 else ""
            text = f"inside the collectives of {phase}, {most.label} waited {seconds_text(most.seconds)}{mostly} for {row.straggler}"
        else:
            others = row.waited[0].label if len(row.waited) == 1 else "the others"
            text = f"{row.straggler} finished {seconds_text(row.behind_median)} after {others} in {phase}"
            if row.began_later is not None and row.began_later > seconds / 4:
                text += f", having begun {seconds_text(row.began_later)} later"
        key = (row.straggler, row.role, row.basis)
        if key not in found or seconds > (found[key].seconds or 0.0):
            found[key] = Headline(text, "straggler", seconds)
    return sorted(found.values(), key=lambda headline: -(headline.seconds or 0.0))[:MOST_STRAGGLERS]


def _tails(rollouts: Sequence[Rollout], least: float) -> list[Headline]:
    """Of all engines together, or of the one there is; without engines, of the samples."""
    found = []
    engines = [row for row in rollouts if row.iterations]
    samples_of = [row for row in rollouts if not row.iterations]
    for row in (engines or samples_of)[-1:]:  # the sum, where there is one, comes last
        below = row.below_half * row.seconds
        if row.below_half < LONG_TAIL or below < least:
            continue
        if row.iterations:
            text = f"generation ran below half of its peak batch for {row.below_half:.0%} of the rollout"
        else:
            text = f"for {row.below_half:.0%} of the rollout fewer than half of its {row.peak_batch:.0f} samples were in flight"
        if row.tail > 0:
            text += f", the last {seconds_text(row.tail)} without a break"
        found.append(Headline(text, "tail", below))
    samples = [(sample.end - sample.start, sample, row) for row in rollouts for sample in row.samples]
    if samples:
        took, sample, row = max(samples, key=lambda each: each[0])
        if took >= max(0.5 * row.seconds, least) and sample.seconds and row.below_half >= LONG_TAIL:
            name = max(sample.seconds, key=lambda name: sample.seconds[name])
            text = f"the longest sample, {sample.sample}, took {seconds_text(took)}, {sample.seconds[name] / took:.0%} of it in {name}"
            found.append(Headline(text, "tail", None))
    return found


ALL_ENGINES = "all engines"
"""What the sum of several engines' batches is called."""
ALL_SAMPLES = "all samples"
"""And that of several processes' samples."""


def _idleness(rows: Sequence[Idle], least: float) -> list[Headline]:
    """The largest known cause over all processes, and the process that is idle most."""
    if not rows:
        return []
    found = []
    causes = {
        cause for row in rows for cause in row.causes if cause not in ("flush", "unknown", "collective")
    }
    for cause in sorted(causes):
        seconds = sum(row.causes.get(cause, 0.0) for row in rows) / len(rows)
        wall = sum(row.wall for row in rows) / len(rows)
        if seconds >= 10 * least:
            who = rows[0].label if len(rows) == 1 else f"{len(rows)} processes"
            mean = "" if len(rows) == 1 else " on average"
            text = f"{who} stood idle for {seconds / wall:.0%} of the step{mean}, {_CAUSES[cause]}"
            found.append(Headline(text, "idle", seconds))
    return found


def _exposed(rows: Sequence[Overlap], idle: Sequence[Idle], least: float) -> list[Headline]:
    found = []
    exposed = sum(row.exposed for row in rows)
    communication = sum(row.communication for row in rows)
    if rows and exposed / len(rows) >= least:
        text = f"{exposed / communication:.0%} of the communication is not overlapped by computation: {seconds_text(exposed / len(rows))} per process"
        waited = sum(row.causes.get("collective", 0.0) for row in idle)
        if waited >= exposed / 10:
            text += f", {min(waited / exposed, 1.0):.0%} of it waiting for a straggler"
        found.append(Headline(text, "overlap", exposed / len(rows)))
    devices = [row for row in rows if row.device != "cpu" and row.busy_share is not None]
    if devices:
        share = sum(row.busy_share or 0.0 for row in devices) / len(devices)
        text = f"the {devices[0].device.upper()}s were busy for {share:.0%} of what was captured"
        found.append(Headline(text, "busy", None))
    return found


def _handovers(rows: Sequence[Overhead], idle: Sequence[Idle], least: float) -> list[Headline]:
    """What the job waited for engines to begin and to hand over their recordings."""
    slowest = max(rows, key=lambda row: row.stop or 0.0, default=None)
    waited = sum(row.causes.get("flush", 0.0) for row in idle) / len(idle) if idle else 0.0
    if slowest is None or not slowest.stop or waited < least:
        return []
    text = f"{seconds_text(waited)} per process were spent on handing recordings over; {slowest.label} took {seconds_text(slowest.stop)}"
    return [Headline(text, "overhead", waited)]


def _overheads(rows: Sequence[Overhead], least: float) -> list[Headline]:
    held = [((row.stall or 0.0) + (row.wait or 0.0), row.label) for row in rows]
    seconds, label = max(held, default=(0.0, ""))
    if seconds < least or not seconds:
        return []
    return [
        Headline(f"the recording itself held {label} up for {seconds_text(seconds)}", "overhead", seconds)
    ]


def _memory(rows: Sequence[Memory]) -> list[Headline]:
    devices = [row for row in rows if not row.device.startswith("CPU")] or list(rows)
    if not devices:
        return []
    top = max(devices, key=lambda row: row.peak_bytes)
    return [Headline(f"{top.label} reached {top.peak_bytes / 2**30:.1f} GiB ({top.device})", "memory")]


def _coverage(report: Report) -> list[Headline]:
    """What is missing from the report: a table does not show what is not there."""
    without = [source for source in report.sources if source.status is not None and not source.events]
    if not without:
        return []
    names = ", ".join(source.label for source in without[:3]) + (", …" if len(without) > 3 else "")
    return [Headline(f"{len(without)} of {len(report.sources)} sources have no events: {names}", "coverage")]

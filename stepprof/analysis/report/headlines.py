"""State the findings in sentences, the costliest first.

A sentence states only what stands out: each has a threshold below which the finding is not worth
acting on. Its seconds are those that the step would save without the cause, as far as the data
shows that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepprof.analysis.report.schema import (
    Headline,
    Idle,
    Island,
    Memory,
    Overhead,
    Overlap,
    PhaseSkew,
    Report,
    Rollout,
    Shortfall,
    UnmatchedTime,
)
from stepprof.analysis.report.wording import seconds as three_digits

__all__ = ["headlines", "seconds_text"]

WORTH_SAYING = 0.01
"""Share of the step's wall time."""
LONG_TAIL = 0.25
"""Share of the rollout below half of its peak batch."""
MOST_STRAGGLERS = 3
MOST_SHORTFALLS = 3
MOST_NAMES = 3
_CAUSES = {
    "host": "the device was idle for {share}{mean} in recorded windows: the host launched no work",
    "rollout": "no work was recorded for {share}{mean} while the rollout ran",
    "peers": "no work was recorded for {share}{mean} while other ranks were in the same role",
    "other_role": "no work was recorded for {share}{mean} while other roles ran",
    "not_recorded": "{share}{mean} was not recorded",
    "unknown": "no recorded work or cause explains {share}{mean}",
}


def headlines(report: Report) -> list[Headline]:
    """Return the headlines of a report."""
    least = report.seconds * WORTH_SAYING
    found = [
        *_stragglers(report.skew, least),
        *_unmatched(report.unmatched, least),
        *_tails(report.rollout, least),
        *_idleness(report.idle, least),
        *_exposed(report.overlap, report.idle, least),
        *_overheads(report.overhead, least),
        *_handovers(report.overhead, report.idle, least),
        *_memory(report.memory),
    ]
    found.sort(key=lambda headline: -(headline.seconds or 0.0))
    return [
        *_where(report),
        *_clocks(report.islands),
        *_shortfalls(report.shortfalls),
        *_coverage(report),
        *found,
    ]


def seconds_text(seconds: float) -> str:
    """Return a duration for a sentence.

    >>> [seconds_text(value) for value in (83.4, 1.84, 0.0421, 0.0000034)]
    ['83 s', '1.8 s', '42 ms', '3 us']
    """
    if seconds >= 10:
        return f"{seconds:.0f} s"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f} us"


def _where(report: Report) -> list[Headline]:
    """Return the time of the step by role; on clocks that were never compared, the time on each."""
    if not report.seconds:
        return []
    if len(report.islands) > 1:
        known = [
            each for each in report.islands if each.seconds
        ]  # a window without a known end is not counted
        shown = [f"{seconds_text(each.seconds)} on {_names(each.hosts)}" for each in known[: MOST_NAMES + 1]]
        more = f", and {len(known) - len(shown)} more" if len(known) > len(shown) else ""
        text = f"the step took {', '.join(shown)}{more}, each by its own clock"
        return [Headline(text, "step", report.seconds)]
    roles = sorted((time for time in report.roles if time.role is not None), key=lambda time: -time.seconds)
    if not roles:
        return []
    worth = [time for time in roles[:5] if time.share >= WORTH_SAYING] or roles[:1]
    parts = ", ".join(f"{time.role} {time.share:.0%}" for time in worth)
    # ranks enter a role at different times: the role lasts while any of them is in it
    overlap = " (they overlap)" if sum(time.share for time in worth) > 1 + WORTH_SAYING else ""
    text = f"the step took {three_digits(report.seconds)}: {parts}{overlap}"
    return [Headline(text, "step", report.seconds)]


def _names(names: Sequence[str]) -> str:
    """Return the first few names."""
    left = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {left} more" if left > 0 else "")


def _clocks(islands: Sequence[Island]) -> list[Headline]:
    if len(islands) < 2:
        return []
    text = f"the clocks of {len(islands)} groups of hosts were never compared: every figure covers one group only"
    return [Headline(text, "coverage")]


def _shortfalls(rows: Sequence[Shortfall]) -> list[Headline]:
    """Return incomplete captures; similar ones share a sentence."""
    groups: dict[tuple[str, str | None], list[Shortfall]] = {}
    for row in rows:
        groups.setdefault((row.status, row.capped_by), []).append(row)
    found = []
    for (status, capped), those in groups.items():
        first, who = those[0], _names(list(dict.fromkeys(row.label for row in those)))
        if capped is not None and status not in ("lost", "failed", "skipped"):
            text = f"the capture of {who} ended before the window ({capped})"
            if first.iterations is not None:
                text = _bounded(those)
            elif len(those) == 1 and first.recorded is not None:
                of = "" if first.window is None else f" of {seconds_text(first.window)}"
                text = f"the capture of {who} ended after {seconds_text(first.recorded)}{of} ({capped})"
        else:
            what = _SHORTFALLS.get(status, f"is {status}")
            text = f"the capture of {who} {what}"
            if len(those) == 1 and first.reason:
                text += f": {first.reason}"
        found.append(Headline(text, "coverage"))
    left = len(found) - MOST_SHORTFALLS
    if left > 0:
        found[MOST_SHORTFALLS:] = [
            Headline(f"captures were incomplete in {left} more ways: report.json lists them", "coverage")
        ]
    return found


def _bounded(rows: Sequence[Shortfall]) -> str:
    """Return the sentence about engines that ended their captures after a number of forward steps."""
    counts = sorted({row.iterations for row in rows if row.iterations is not None})
    steps = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    text = f"only the first {steps} forward steps of {_names([row.label for row in rows])} were recorded (max_iterations)"
    if len(rows) == 1 and rows[0].window is not None:
        text += f"; the window lasted {seconds_text(rows[0].window)}"
    return text


_SHORTFALLS = {
    "lost": "was lost",
    "failed": "failed",
    "skipped": "was skipped",
    "partial": "is partial",
    "damaged": "is damaged: only part of its file could be read",
}


def _phase(role: str | None, region: str | None) -> str:
    if region is None:
        return role or "the step"
    return region if role is None or role == region else f"{region} ({role})"


def _stragglers(rows: Iterable[PhaseSkew], least: float) -> list[Headline]:
    """Return, for each process and role, the phase with its largest own delay.

    A delay that existed before the phase began is not counted again.
    """
    found: dict[tuple[str, str | None, str], Headline] = {}
    for row in rows:
        seconds = row.behind_median - max(row.began_later or 0.0, row.by_profiler, 0.0) - row.by_waiting
        if not row.significant or seconds < least:
            continue
        phase = _phase(row.role, row.region)
        if row.basis == "collectives":
            most = row.waited[0]
            text = f"{most.label} waited {seconds_text(most.seconds)} for {row.straggler} in the collectives of {phase}"
        else:
            others = row.waited[0].label if len(row.waited) == 1 else "the median of the others"
            text = f"{row.straggler} was the last to finish {phase}: {seconds_text(row.behind_median)} behind {others}"
            if row.began_later is not None and row.began_later > seconds / 4:
                text += f", having started {seconds_text(row.began_later)} later"
            if row.by_profiler > seconds / 4:
                text += f", {seconds_text(row.by_profiler)} of it due to the profiler"
        key = (row.straggler, row.role, row.basis)
        if key not in found or seconds > (found[key].seconds or 0.0):
            found[key] = Headline(text, "straggler", seconds)
    return sorted(found.values(), key=lambda headline: -(headline.seconds or 0.0))[:MOST_STRAGGLERS]


def _unmatched(rows: Sequence[UnmatchedTime], least: float) -> list[Headline]:
    """Return time in collectives whose waits cannot be attributed."""
    found = []
    for row in rows[:MOST_STRAGGLERS]:
        most = row.spent[0]
        if most.seconds < least:
            continue
        text = f"{most.label} spent {seconds_text(most.seconds)} in collectives of {_phase(row.role, row.region)}"
        if row.recorded and row.members and row.recorded < row.members:
            text += f"; {row.recorded} of {row.members} members were recorded, so the rank it waited for is unknown"
        else:
            text += " that could not be matched across ranks, so the rank it waited for is unknown"
        found.append(Headline(text, "collectives", most.seconds))
    return found


def _tails(rollouts: Sequence[Rollout], least: float) -> list[Headline]:
    """Return the tail of all engines, or of the only one; without engines, of the samples."""
    found = []
    engines = [row for row in rollouts if row.iterations]
    samples_of = [row for row in rollouts if not row.iterations]
    of_all = [row for row in engines or samples_of if row.label in (ALL_ENGINES, ALL_SAMPLES)]
    row = max(of_all or engines or samples_of, key=lambda row: row.seconds, default=None)
    if row is not None and row.below_half >= LONG_TAIL and (below := row.below_half * row.seconds) >= least:
        phase = "the rollout" if row.whole else "the recorded part of the rollout"
        if row.iterations:
            text = f"generation ran below half of its peak batch for {row.below_half:.0%} of {phase}"
        else:
            text = f"for {row.below_half:.0%} of {phase} fewer than half of its {row.peak_batch:.0f} samples were in flight"
        if row.tail > 0:
            text += f", without a break for the last {seconds_text(row.tail)}"
        found.append(Headline(text, "tail", below))
    samples = [(sample.end - sample.start, sample, row) for row in rollouts for sample in row.samples]
    if samples:
        took, sample, of = max(samples, key=lambda each: each[0])
        if took >= max(0.5 * of.seconds, least) and sample.seconds and of.below_half >= LONG_TAIL:
            name = max(sample.seconds, key=lambda name: sample.seconds[name])
            text = f"the longest sample, {sample.sample}, took {seconds_text(took)}, {sample.seconds[name] / took:.0%} of it in {name}"
            found.append(Headline(text, "tail", None))
    return found


ALL_ENGINES = "all engines"
"""Label of the sum of several engines' batches."""
ALL_SAMPLES = "all samples"
"""Label of the sum of several processes' samples."""


def _idleness(rows: Sequence[Idle], least: float) -> list[Headline]:
    """Return each cause that took a large part of the step, over all affected processes."""
    found = []
    for cause, sentence in _CAUSES.items():
        those = [row for row in rows if row.causes.get(cause, 0.0) > 0]
        if not those:
            continue
        seconds = sum(row.causes[cause] for row in those) / len(those)
        wall = sum(row.wall for row in those) / len(those)
        if seconds < 10 * least:
            continue
        who = those[0].label if len(those) == 1 else f"{len(those)} of {len(rows)} processes"
        mean = "" if len(those) == 1 else " on average"
        text = sentence.format(share=f"{seconds / wall:.0%} of the step", mean=mean)
        found.append(Headline(f"{who}: {text}", "coverage" if cause == "not_recorded" else "idle", seconds))
    return found


def _exposed(rows: Sequence[Overlap], idle: Sequence[Idle], least: float) -> list[Headline]:
    found = []
    exposed = sum(row.exposed for row in rows)
    communication = sum(row.communication for row in rows)
    if rows and exposed / len(rows) >= least:
        text = f"{exposed / communication:.0%} of the communication is not overlapped by computation: {seconds_text(exposed / len(rows))} on average"
        waited = sum(row.causes.get("collective", 0.0) for row in idle)
        if waited >= exposed / 10:
            text += f", {min(waited / exposed, 1.0):.0%} of it waiting for other ranks"
        found.append(Headline(text, "overlap", exposed / len(rows)))
    devices = [row for row in rows if row.device != "cpu" and row.busy_share is not None]
    if devices:
        share = sum(row.busy_share or 0.0 for row in devices) / len(devices)
        kind = devices[0].device.split()[0].upper()
        text = f"the {kind}s were busy for {share:.0%} of the captured time"
        found.append(Headline(text, "busy", None))
    return found


def _handovers(rows: Sequence[Overhead], idle: Sequence[Idle], least: float) -> list[Headline]:
    """Return the time that processes waited for engines to start and stop their recordings."""
    slowest = max(rows, key=lambda row: row.stop or 0.0, default=None)
    waited = sum(row.causes.get("profiler", 0.0) for row in idle) / len(idle) if idle else 0.0
    if slowest is None or not slowest.stop or waited < least:
        return []
    text = f"starting and stopping profilers took {seconds_text(waited)} per process on average; {slowest.label} took {seconds_text(slowest.stop)} to stop"
    return [Headline(text, "overhead", waited)]


def _overheads(rows: Sequence[Overhead], least: float) -> list[Headline]:
    held = [(row.held, row.label) for row in rows if row.stop is None]
    seconds, label = max(held, default=(0.0, ""))
    if seconds < least or not seconds:
        return []
    return [Headline(f"recording delayed {label} by {seconds_text(seconds)}", "overhead", seconds)]


def _memory(rows: Sequence[Memory]) -> list[Headline]:
    devices = [row for row in rows if not row.device.startswith("CPU")] or list(rows)
    if not devices:
        return []
    top = max(devices, key=lambda row: row.peak_bytes)
    return [Headline(f"{top.label} reached {top.peak_bytes / 2**30:.1f} GiB ({top.device})", "memory")]


def _coverage(report: Report) -> list[Headline]:
    """Return the sources without events. Incomplete captures have their own headlines."""
    short = {each.label for each in report.shortfalls}
    without = [
        source
        for source in report.sources
        if source.status is not None
        and not source.events
        and source.kind != "spans"
        and source.label not in short
    ]
    if not without:
        return []
    names = _names([source.label for source in without])
    return [Headline(f"{len(without)} of {len(report.sources)} sources have no events: {names}", "coverage")]

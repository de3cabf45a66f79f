"""State the findings in sentences.

A sentence states only what stands out: each has a threshold below which the finding is not worth
acting on. Its seconds are those that the step would save without the cause, as far as the data
shows that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from stepprof.analysis.report.division import FORWARD_STEPS, WORTH_SAYING, stated
from stepprof.analysis.report.other_tools import (
    in_words_of_torch,
    is_of_others,
    length_of_others,
    lengths_of_others,
)
from stepprof.analysis.report.schema import (
    Allocator,
    EngineWork,
    Finding,
    Island,
    Memory,
    Overlap,
    PhaseSkew,
    Report,
    Shortfall,
    UnmatchedTime,
)
from stepprof.analysis.report.wording import quoted, seconds_text
from stepprof.analysis.report.wording import seconds as three_digits
from stepprof.analysis.report.wording import share as percent
from stepprof.formatting import counted, size

MOST_STRAGGLERS = 3
MOST_SHORTFALLS = 3
MOST_NAMES = 3
OUTSTANDING = 0.05
"""If each finding is below this share of the step, nothing stands out."""
QUIET = "quiet"
"""The topic of the sentence that says so."""
MOST_STATED = 5
"""Parts of the step in its first sentence."""


def sentences(
    report: Report,
    causes: Sequence[Finding],
    notices: Sequence[Finding] = (),
    blameless: Collection[str] = (),
) -> list[Finding]:
    """Return the findings of a report: how long the step took, what is missing, the causes, and then their
    consequences.

    Args:
        report: with all of its tables.
        causes: the findings on the critical path, the largest gain first.
        notices: findings about the step as a whole, without seconds.
        blameless: drivers, which end after the ranks that they call, and processes that were late while the others computed until a
            common time.
    """
    least = report.seconds * WORTH_SAYING
    explained: dict[str | None, float] = defaultdict(float)
    for cause in causes:
        if cause.topic == "straggler":
            for process in (cause.process, *cause.also):
                explained[process] += cause.seconds or 0.0
    consequences = [
        *_stragglers(report, blameless, explained, least),
        *_unmatched(report.unmatched, least),
        *_busy(report.overlap),
        *_preempted([] if any(cause.topic == "preemption" for cause in causes) else report.engines),
        *_memory(report.memory),
        *_allocators(report.allocators),
    ]
    consequences.sort(key=lambda finding: -(finding.seconds or 0.0))
    if is_of_others(report):
        causes, consequences = in_words_of_torch(causes), in_words_of_torch(consequences)
    return [
        *_where(report),
        *_clocks(report.islands),
        *_shortfalls(report.shortfalls),
        *_coverage(report),
        *notices,
        *_quiet(report, [*causes, *consequences]),
        *causes,
        *consequences,
    ]


def shown_first(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings without those that do not stand out, if none does."""
    if not any(each.topic == QUIET for each in findings):
        return [*findings]
    return [
        each for each in findings if each.start is None and (each.topic == "step" or each.seconds is None)
    ]


def _quiet(report: Report, findings: Sequence[Finding]) -> list[Finding]:
    """Return that nothing stands out, if there are findings with seconds and each is short: small ones are noise of a busy machine.
    Of a step without a known end, that is not known.
    """
    lengths = [each.seconds for each in findings if each.seconds is not None]
    if not report.ended or not lengths or max(lengths) >= OUTSTANDING * report.seconds:
        return []
    whose = "the only finding is" if len(lengths) == 1 else f"the longest of {len(lengths)} findings is"
    text = f"nothing stands out: {whose} {seconds_text(max(lengths))}, {percent(max(lengths) / report.seconds)} of the step"
    return [Finding(text, QUIET)]


_DIVIDE = 'put `with stepprof.region("…"):` around its parts, or `role="…"` on its windows'


def _where(report: Report) -> list[Finding]:
    """Return the length of the step with the parts that it waited for longest; on clocks that were never compared, its length on each."""
    if not report.ended:
        return [_at_least(report)]
    if not report.seconds:
        return []
    is_divided = any(part.role is not None or part.region is not None for part in report.parts)
    if len(report.islands) > 1:
        # a window without a known end is not counted
        known = [each for each in report.islands if each.seconds and each.ended]
        shown = [f"{seconds_text(each.seconds)} on {_names(each.hosts)}" for each in known[: MOST_NAMES + 1]]
        more = f", and {len(known) - len(shown)} more" if len(known) > len(shown) else ""
        by_clock = f"{', '.join(shown)}{more}, each by its own clock"
        if len(known) == 1:  # on another clock, only processes that were lost, or empty traces
            rest = (
                "the others have no length"
                if is_of_others(report)
                else "by other clocks its end is not known"
            )
            by_clock = f"{shown[0]}; {rest}"
        if is_of_others(report):
            return [lengths_of_others(report, by_clock, is_divided)]
        advice = None if is_divided else _DIVIDE
        return [Finding(f"the step took {by_clock}", "step", report.seconds, advice=advice)]
    shown = [
        f"{part.name if part.region is None else quoted(part.name)} {percent(part.share or 0.0)}"
        for part in stated(report.parts, MOST_STATED)
    ]
    if is_of_others(report):
        is_divided |= any(part.name == FORWARD_STEPS for part in report.parts)
        return [length_of_others(report, shown if is_divided else ())]
    if not report.path:
        return []
    took = f"the step took {three_digits(report.seconds)}"
    if not is_divided:
        text = f"{took}, and no role or region divides it"
        return [Finding(text, "step", report.seconds, advice=_DIVIDE)]
    return [Finding(": ".join([took, *([", ".join(shown)] if shown else [])]), "step", report.seconds)]


def _at_least(report: Report) -> Finding:
    """Return what is known of the length of a step whose end is not known."""
    if not report.seconds:
        return Finding("how long the step lasted is not known: its end is missing", "step")
    length = seconds_text(report.seconds)
    text = f"the step lasted at least {length}: its end is not known"
    return Finding(text, "step")


def _names(names: Sequence[str]) -> str:
    """Return the first few names."""
    left = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {left} more" if left > 0 else "")


def _clocks(islands: Sequence[Island]) -> list[Finding]:
    if len(islands) < 2:
        return []
    text = f"the clocks of {len(islands)} groups of processes were never compared: every figure covers one group only"
    return [Finding(text, "coverage")]


def _shortfalls(rows: Sequence[Shortfall]) -> list[Finding]:
    """Return incomplete captures; similar ones share a sentence."""
    groups: dict[tuple[str, str | None], list[Shortfall]] = {}
    for row in rows:
        groups.setdefault((row.status, row.capped_by), []).append(row)
    found = []
    for (status, capped), those in groups.items():
        first, owners = those[0], _names(list(dict.fromkeys(row.label for row in those)))
        if capped is not None and status not in ("lost", "failed", "skipped"):
            text = f"the capture of {owners} ended before the window ({capped})"
            if first.iterations is not None:
                text = _bounded(those)
            elif len(those) == 1 and first.recorded is not None:
                of = "" if first.window is None else f" of {seconds_text(first.window)}"
                text = f"the capture of {owners} ended after {seconds_text(first.recorded)}{of} ({capped})"
            if first.iterations is None:
                text += _missing(those)
        else:
            what = _SHORTFALLS.get(status, f"is {status}")
            text = f"the capture of {owners} {what}"
            if len(those) == 1 and first.reason:
                text += f": {first.reason}"
            text += _missing(those) or _after(those)
        found.append(Finding(text, "coverage", process=first.label if len(those) == 1 else None))
    left = len(found) - MOST_SHORTFALLS
    if left > 0:
        found[MOST_SHORTFALLS:] = [
            Finding(f"captures were incomplete in {left} more ways: report.json lists them", "coverage")
        ]
    return found


def _after(rows: Sequence[Shortfall]) -> str:
    """Return that captures ended with their windows, which something ended early."""
    if any(row.recorded is None or not row.early for row in rows):
        return ""
    if len(rows) > 1:
        return "; what their windows would have had after that is not recorded"
    return f"; what its window would have had after {seconds_text(rows[0].recorded or 0.0)} is not recorded"


def _missing(rows: Sequence[Shortfall]) -> str:
    """Return which share of the windows has no capture; empty: not known for all of them."""
    shares = []
    for row in rows:
        recorded = 0.0 if row.status in _NOTHING else row.recorded
        if not row.window or recorded is None:
            return ""
        shares.append(1 - min(recorded / row.window, 1.0))
    low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
    if high == "0%":
        return ""
    of = "its window was" if len(rows) == 1 else "their windows were"
    return f"; {low if low == high else f'{low} to {high}'} of {of} not recorded{_rest(rows)}"


def _rest(rows: Sequence[Shortfall]) -> str:
    """Return the longest regions in which processes were after their captures had ended; empty: their spans show none."""
    longest: dict[str, float] = {}
    for row in rows:
        for name, seconds in row.regions.items():
            longest[name] = max(seconds, longest.get(name, 0.0))
    whole = max(((row.window or 0.0) - (row.recorded or 0.0) for row in rows), default=0.0)
    names = sorted(
        (name for name in longest if longest[name] >= WORTH_SAYING * whole), key=lambda name: -longest[name]
    )
    up_to = "" if len(rows) == 1 else "up to "
    shown = [f"{quoted(name)} {up_to}{seconds_text(longest[name])}" for name in names[:MOST_NAMES]]
    return f": {', '.join(shown)}" if shown else ""


_NOTHING = ("lost", "failed", "skipped")
"""Outcomes of captures of which nothing is left."""


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
    "cut": "was read only in part, and the notes give the reason: no figure has the rest",
    "damaged": "is damaged: only part of its file could be read",
    "unreadable": "is damaged: no event of its file could be used",
    "unread": "was not read: the process that read it died",
}


def _phase(role: str | None, region: str | None) -> str:
    if region is None:
        return role or "the step"
    return region if role is None or role == region else f"{region} ({role})"


def _begins(report: Report) -> dict[tuple[str, str | None], float]:
    """Return when each process began each role; {} if their clocks cannot be compared."""
    begins: dict[tuple[str, str | None], float] = {}
    if len(report.islands) > 1 or report.clock_error_ns is None:
        return begins
    for row in report.gantt:
        for bar in row.bars:
            if bar.name == (bar.role or "step"):
                begins.setdefault((row.label, bar.role), bar.start)
    return begins


def _later(
    begins: Mapping[tuple[str, str | None], float], one: tuple[str, str | None], other: tuple[str, str | None]
) -> float:
    """Return how much later one process began a role than another one; 0.0: not known."""
    return begins[one] - begins[other] if one in begins and other in begins else 0.0


IN_TURNS = 0.5
"""Ranks are late in turns if the last one waits for others for at least this share of the time that
they wait for it.
"""
BALANCE_EACH = "let the ranks meet less often (one collective for several micro-batches), or balance each micro-batch and not only their sum"


def _is_on_path(report: Report, row: PhaseSkew) -> bool:
    """Return whether the step waited for the last process of a phase there. Without a path, that is not known."""
    return not report.path or any(
        each.process == row.straggler
        and each.role == row.role
        and (row.region is None or row.region in each.region)
        for each in report.path
    )


def _stragglers(
    report: Report,
    blameless: Collection[str],
    explained: Mapping[str | None, float],
    least: float,
) -> list[Finding]:
    """Return, for each process and role, the phase with its largest own delay.

    A delay that existed before the phase began is not counted again, nor one of which causes explain at
    least half. Being the last to finish is worth a sentence only if the step waited for that.

    Args:
        report: with the phases and the path.
        blameless: processes that kept no other one waiting.
        explained: seconds of each process that causes explain.
        least: shorter delays are left out.
    """
    begins, unsure = _begins(report), 2e-9 * (report.clock_error_ns or 0)
    found: dict[tuple[str, str | None, str], Finding] = {}
    for row in report.skew:
        if row.basis == "end" and (row.straggler in blameless or not _is_on_path(report, row)):
            continue
        seconds = row.behind_median - max(row.began_later or 0.0, row.by_profiler, 0.0) - row.by_waiting
        own = row.waited[0].seconds - row.spread if row.basis == "collectives" else 0.0
        in_turns = own >= max(least, IN_TURNS * row.waited[0].seconds)
        if in_turns:
            seconds = max(seconds, own)
        if not row.significant or seconds < least or 2 * explained[row.straggler] >= seconds:
            continue
        phase = _phase(row.role, row.region)
        if row.basis == "collectives":
            most = row.waited[0]
            text = f"{most.label} waited {seconds_text(most.seconds)} for {row.straggler} in the collectives of {phase}"
            too = sum(each.seconds >= most.seconds / 2 for each in row.waited[1:])
            if too and is_of_others(report):
                text += f", and {counted(too, 'other rank')} at least half as long"
            later = _later(begins, (row.straggler, row.role), (most.label, row.role))
            if in_turns:
                text += f", and {row.straggler} waited {seconds_text(own)} for others: they are late in turns"
            elif later > max(seconds / 4, unsure):
                text += f"; {row.straggler} began {row.role or 'the step'} {seconds_text(later)} later"
        else:
            others = row.waited[0].label if len(row.waited) == 1 else "the median of the others"
            behind = text = (
                f"{row.straggler} was the last to finish {phase}: {seconds_text(row.behind_median)} behind {others}"
            )
            if row.began_later is not None and row.began_later > seconds / 4:
                text += f", having started {seconds_text(row.began_later)} later"
            if row.by_profiler > seconds / 4:
                text += f", {seconds_text(row.by_profiler)} of it due to the profiler"
            if text == behind and seconds_text(seconds) != seconds_text(row.behind_median):
                text += f", {seconds_text(seconds)} of it lost in this phase"
        key = (row.straggler, row.role, row.basis)
        if key not in found or seconds > (found[key].seconds or 0.0):
            advice = BALANCE_EACH if in_turns else None
            found[key] = Finding(text, "straggler", seconds, advice=advice)
    return sorted(found.values(), key=lambda finding: -(finding.seconds or 0.0))[:MOST_STRAGGLERS]


def _unmatched(rows: Sequence[UnmatchedTime], least: float) -> list[Finding]:
    """Return time in collectives whose waits cannot be attributed."""
    found = []
    for row in rows[:MOST_STRAGGLERS]:
        most = row.spent[0]
        if most.seconds < least:
            continue
        text = f"{most.label} spent {seconds_text(most.seconds)} in nothing but collectives of {_phase(row.role, row.region)}"
        if row.recorded and row.members and row.recorded < row.members:
            text += f"; {row.recorded} of {row.members} members were recorded, so the rank it waited for is unknown"
        else:
            text += " that could not be matched across ranks, so the rank it waited for is unknown"
        found.append(Finding(text, "collectives", most.seconds))
    return found


def _busy(rows: Sequence[Overlap]) -> list[Finding]:
    """Return the mean share of the captured time in which devices worked."""
    devices = [row for row in rows if row.device != "cpu" and row.busy_share is not None]
    if not devices:
        return []
    share = sum(row.busy_share or 0.0 for row in devices) / len(devices)
    kind = devices[0].device.split()[0].upper()
    return [Finding(f"the {kind}s were busy for {share:.0%} of the captured time", "busy")]


def _preempted(rows: Sequence[EngineWork]) -> list[Finding]:
    """Return the engine that preempted most, if no finding has the time of it."""
    most = max(rows, key=lambda row: row.preemptions or 0, default=None)
    if most is None or not most.preemptions:
        return []
    text = (
        f"{most.label} took sequences out of its batch {counted(most.preemptions, 'time')} for lack of memory"
    )
    if most.recomputed_tokens:
        text += f", and computed {counted(most.recomputed_tokens, 'token')} again"
    return [Finding(f"{text}; how long that took is not known", "preemption")]


def _memory(rows: Sequence[Memory]) -> list[Finding]:
    devices = [row for row in rows if not row.device.startswith("CPU")] or list(rows)
    if not devices:
        return []
    top = max(devices, key=lambda row: row.peak_bytes)
    return [Finding(f"{top.label} reached {size(top.peak_bytes)} ({top.device})", "memory")]


def _allocators(rows: Sequence[Allocator]) -> list[Finding]:
    """Return the allocator that found no memory most often."""
    if not rows:
        return []
    most = rows[0]
    text = f"the allocator of {most.label} (device {most.device}) found no memory {counted(most.retries, 'time')} since its process began, and freed its cache"
    if most.failed:
        text += f"; {counted(most.failed, 'request')} failed"
    advice = "leave more memory free: smaller micro-batches, a smaller KV cache, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    return [Finding(text, "memory", process=most.label, advice=advice)]


def _coverage(report: Report) -> list[Finding]:
    """Return the sources without events. Incomplete captures have their own findings."""
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
    return [Finding(f"{len(without)} of {len(report.sources)} sources have no events: {names}", "coverage")]

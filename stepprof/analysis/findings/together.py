"""Claim the time of one cause in all processes and regions together: a trace that stepprof did not record has many of both.

One sentence for each rank and region would hide what they have in common.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from stepprof.analysis.findings.facts import Facts, Part
from stepprof.analysis.findings.ledger import Ledger
from stepprof.analysis.findings.wording import NO_ANNOTATION, inside
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.schema import Finding
from stepprof.analysis.report.wording import MOST_NAMES, names, seconds_text

When = Callable[[Part], Intervals]
"""Returns the time of a part that has the cause."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause, and what to say about it."""

    topic: str
    text: str
    """``{processes}``, ``{places}`` and ``{seconds}`` stand for those."""
    why: str
    advice: str
    assumption: str | None


def parts_of_others(ledger: Ledger, *kinds: str) -> list[Part]:
    """Return the parts of the path that are of traces of others, also short ones."""
    found = ledger.merged(lambda part: (part.process, part.region), *kinds)
    return [part for part in found if len(part.when) and part.of_others]


def forward_steps_of_others(ledger: Ledger) -> list[Part]:
    """Return the forward steps of engines on the path that are of traces of others."""
    return [dataclasses.replace(part, of_engine=True) for part in parts_of_others(ledger, "engine")]


def claim_together(
    ledger: Ledger,
    parts: Sequence[Part],
    when: When,
    cause: Cause,
    *,
    without: When | None = None,
    shared: bool = False,
) -> bool:
    """Claim the time of a cause in some parts as one finding.

    Args:
        ledger: of the step.
        parts: where it may be.
        when: returns its time in one of them.
        cause: what to say.
        without: returns what a process would not spend in the region of a part without the cause; None: what is claimed.
        shared: whether all processes have the cause, also if each part is of one.
    """
    found = [(part, free) for part in parts if len(free := when(part) & ledger.free)]
    if not found:
        return False
    found.sort(key=lambda each: -each[1].total)
    spent: dict[str, Intervals] = {}
    for part, free in found:
        spent[part.process] = spent.get(part.process, EMPTY) | free
    saved = spent if without is None else _everywhere(ledger.facts, [part for part, _ in found], without)
    first, places = found[0][0], _places(found)
    text = cause.text.replace("{processes}", names(list(spent)))
    if places == NO_ANNOTATION and not any(
        stretch[3] for each in ledger.facts.timelines.values() for stretch in each.stretches
    ):
        text = text.replace(" in {places}", "")  # there are no annotations at all
    return ledger.claim(
        first,
        Intervals.all_of(free for _, free in found),
        cause.topic,
        text.replace("{places}", places),
        why=cause.why,
        advice=cause.advice,
        assumption=cause.assumption,
        without=saved,
        shared=shared or len(spent) > 1,
    )


def _everywhere(facts: Facts, parts: Sequence[Part], without: When) -> dict[str, Intervals]:
    """Return what each process would not spend: a change of the code changes all of them."""
    regions = {(part.role, part.region): part for part in parts}
    saved: dict[str, Intervals] = {}
    for part in regions.values():
        for each in facts.alike(part):
            saved[each.process] = saved.get(each.process, EMPTY) | without(each)
    return saved


def _places(found: Sequence[tuple[Part, Intervals]]) -> str:
    """Return the places, each with its time if there are several."""
    times: Counter[str] = Counter()
    for part, free in found:
        times[inside(part)] += free.total
    if len(times) == 1:
        return next(iter(times))
    shown = [f"{place} ({seconds_text(time / 1e9)})" for place, time in times.most_common(MOST_NAMES)]
    return names([*shown, *[""] * (len(times) - len(shown))])


def folded(findings: Sequence[Finding]) -> list[Finding]:
    """Return the longest finding of each kind with the same advice, with the number of the others of other processes. On several
    clocks each process has findings of its own. Another one of the same process, or of several processes, stays as it is.
    """
    alike: dict[tuple[str, str | None], list[Finding]] = {}
    for each in findings:
        alike.setdefault((each.topic, each.advice), []).append(each)
    return [made for those in alike.values() for made in _folded(those)]


def _folded(alike: Sequence[Finding]) -> list[Finding]:
    first, *others = sorted(alike, key=lambda each: -(each.seconds or 0.0))
    known = first.process is not None
    similar = [each for each in others if known and each.process not in (first.process, None)]
    if not similar:
        return [first, *others]
    low, high = (seconds_text(each.seconds or 0.0) for each in (similar[-1], similar[0]))
    number = len({each.process for each in similar})
    more = "another process" if number == 1 else f"{number} other processes"
    text = f"{first.text}; similar in {more}, {low if low == high else f'{low} to {high}'}"
    return [replace(first, text=text), *(each for each in others if each not in similar)]

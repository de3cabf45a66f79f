"""Find the rank that spends longer in a region than the others, and holds the step up with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from stepprof.analysis.findings.facts import Facts, Part, place_of
from stepprof.analysis.findings.ledger import Ledger, share_of
from stepprof.analysis.findings.other_steps import Elsewhere, in_other_steps, meets_in
from stepprof.analysis.findings.own_numbers import Key, counterpart, is_numbered
from stepprof.analysis.findings.peers import (
    in_calls,
    is_comparable,
    measured_by,
    own_work,
    peers_of,
    than_whom,
)
from stepprof.analysis.findings.signs import SHORTEST_NS
from stepprof.analysis.findings.wording import SHARE_CPUS, doing, having_of, inside, lacks_cpu
from stepprof.analysis.report.intervals import Intervals, Times
from stepprof.analysis.report.timelines import Timeline
from stepprof.analysis.report.wording import seconds_text

BALANCE = "balance the work over the ranks: sort or pack sequences by length"
COMPARE = "compare its machine with the others: other processes on its cores, clock rates, thermal limits"
LOOK = "look at what it does there: its stacks and its operators; a region around it shows whether the other ranks do it too"
OWN = "do it concurrently with the next phase, or share it among the ranks"
WAITS = "the rank waits there, it does not compute: see what its stacks wait for"
ONCE = "look at what it did there in this step: its stacks, its operators, other processes at that time; `[watch]` records the step after a slow one"
EVERY = (
    "look at what it does there in these steps: a log, a checkpoint, an evaluation, a batch of another size"
)
TELL = "find out whether the rank that left the region earlier works or waits afterwards: if it works, a shorter time here saves nothing"
LITTLE = 0.05
"""If the others need at most this share of the rank's time, only this rank does the work."""
MORE = 0.1
"""A rank has more tokens if it has this share more than the median of the others."""
EXPLAINS = 0.5
"""More work is the reason if it explains this share of the excess. The time may grow with the square of the tokens, as attention does."""


def straggler(ledger: Ledger, *, shared: bool = True) -> None:
    """Claim the time by which a rank exceeds the median of the others in one region.

    Args:
        ledger: of the step.
        shared: only regions that the other ranks have too; otherwise those that only one rank has.
    """
    own, most = own_work(ledger), own_work(ledger, possible=True)
    named_together: set[tuple[str, Key]] = set()
    for part in ledger.parts("work"):
        key = (part.role, part.region)
        if (part.process, key) in named_together:
            continue
        peers = peers_of(ledger.facts, part.process, part.role)
        peers = [label for label in peers if is_comparable(ledger, part, label)]
        others = {label: most[label][key].total for label in peers if key in most[label]}
        numbered = not others and any(is_numbered(key, most[label]) for label in peers)
        if numbered:
            others = _of_own_numbers(ledger, most, part, peers)
            if not others:
                continue  # which of them is the same work is not known
        if not peers or bool(others) != shared or part.process not in own:
            continue
        mine = own[part.process][key].total
        middle, measure = measured_by(mine, others)
        excess = mine - middle - _absorbed(ledger.facts, part)
        if excess < ledger.least * 1e9 or _is_in_collectives(ledger.facts, part):
            continue
        spent = share_of(part.when, excess / part.when.total)
        # some visits may be off the path
        without = {
            part.process: share_of(own[part.process][key] | part.when, excess / max(mine, part.when.total))
        }
        also: list[str] = []
        waited = _waited(ledger, part)
        maybe = None if waited else _others_may_have_waited(ledger.facts, part)
        gain = ledger.facts.graph.gain(without)
        if gain is None or gain < ledger.least * 1e9:
            also = [label for label, time in others.items() if time - middle >= excess / 2]
            if also and not numbered:
                slow = {part.process: own[part.process][key], **{label: most[label][key] for label in also}}
                without = {
                    label: share_of(time, (time.total - middle) / time.total) for label, time in slow.items()
                }
                spent = _on_path(ledger, part, without)
            rest = others.keys() - {*also}
            even = gain is None and not maybe and _takes_as_long(ledger, own, part.process, key, rest)
            if numbered or (gain is not None and not also) or even or _saves_nothing(ledger, without):
                continue  # another rank takes as long by other work
        more, equal = _more(ledger.facts, part, measure, (mine - middle) / max(middle, 1))
        alone = middle <= LITTLE * mine
        named = part.name is not None and not any(meets_in(ledger.facts, each, part) for each in others)
        idle = ledger.facts.signs[part.process].are_idle(part.when)  # then its machine is not the cause
        elsewhere = in_other_steps(ledger.facts, part, [] if numbered else measure, excess / 1e9)
        steps = elsewhere.text
        if elsewhere.often and not (more or alone or idle):
            steps += ": the rank is slow" if equal else ": the rank is slow, or has more to do"
        calls = [in_calls(ledger.facts.timelines[label]) for label in (part.process, *others)]
        apart = ", collectives not counted" if any(map(len, calls)) else ""
        having = None
        than = than_whom(measure, others)
        if not others:
            having = having_of(ledger.facts, part, part.name) if part.name else None
            lack = having.phrase() if having else ""
            text = f"{part.process} spent {{seconds}} in {inside(part)}{lack}{apart}, and no other rank did"
        elif also:
            who = also[0] if len(also) == 1 else f"{len(also)} other ranks"
            text = f"{part.process} and {who} took longer than {than} in {inside(part)}{apart}: together {{seconds}} on the path"
        elif numbered:
            text = f"{part.process} spent {{seconds}} longer in {inside(part)} than {than} in regions with other numbers in their names{apart}"
        else:
            text = f"{part.process} spent {{seconds}} longer than {than} in {inside(part)}{apart}"
        named_together |= {(label, key) for label in also}
        ledger.claim(
            part,
            spent,
            "straggler",
            text,
            why="; ".join(
                filter(
                    None,
                    [
                        more or f"{seconds_text(mine / 1e9)} against {seconds_text(middle / 1e9)}",
                        steps,
                        having.evidence() if having else None,
                        waited or maybe,
                        doing(ledger.facts, part),
                    ],
                )
            ),
            advice=SHARE_CPUS
            if not more and lacks_cpu(ledger.facts, part, excess / 1e9)
            else _advice(
                more,
                elsewhere,
                equal=equal,
                alone=alone,
                named=named,
                idle=idle,
                met=not maybe,
                others=others,
            ),
            assumption=None if _may_have_waited(ledger.facts, part) else _assumption(than, also, others),
            without=without,
            also=also,
        )


def _of_own_numbers(
    ledger: Ledger,
    own: Mapping[str, Mapping[Key, Intervals]],
    part: Part,
    peers: Iterable[str],
) -> dict[str, int]:
    """Return how long others are in the regions in which they do the work of a part: their names have other numbers."""
    timelines = ledger.facts.timelines
    mine, place = timelines[part.process].process.origin.rank, (part.role, part.region)
    found = {}
    for label in peers:
        other = timelines[label].process.origin.rank
        if isinstance(mine, int) and isinstance(other, int):
            key = counterpart(place, mine, own.get(part.process, {}), other, own[label])
            if key is not None:
                found[label] = own[label][key].total
    return found


def _on_path(ledger: Ledger, part: Part, without: Mapping[str, Intervals]) -> Intervals:
    """Return what is on the path of some time that several processes would not spend in the place of a part."""
    place = (part.role, part.region)
    return Intervals.all_of(
        each.when & without[each.process]
        for each in ledger.parts("work")
        if (each.role, each.region) == place and each.process in without
    )


def _takes_as_long(
    ledger: Ledger,
    own: Mapping[str, Mapping[Key, Intervals]],
    process: str,
    place: Key,
    others: Iterable[str],
) -> bool:
    """Return whether one of some ranks works as long as a process in a place and the regions that both have in its role.

    Ranks may meet where a role ends. Those that repeat a call until a common time end up to a call apart, and make different numbers of calls.
    """
    mine = own[process]
    for label in others:
        theirs = own[label]
        both = [key for key in mine.keys() & theirs.keys() if key[0] == place[0] and (key[1] or key == place)]
        least = max([ledger.least * 1e9, *(_one_call(ledger.facts, process, label, key) for key in both)])
        if sum(mine[key].total - theirs[key].total for key in both) < least:
            return True
    return False


def _one_call(facts: Facts, process: str, other: str, place: Key) -> float:
    """Return how long a call takes in a place in which two processes make different numbers of calls [ns]; 0: they do not."""
    mine, theirs = (place_of(facts, label, *place) for label in (process, other))
    if mine is None or theirs is None or theirs.calls == mine.calls:
        return 0.0
    return max(mine.longest, theirs.longest) * 1e9


def _saves_nothing(ledger: Ledger, without: Mapping[str, Intervals]) -> bool:
    """Return whether the step is known to take as long without some time."""
    gain = ledger.facts.graph.gain(without)
    return gain is not None and gain < ledger.least * 1e9


def _absorbed(facts: Facts, part: Part) -> int:
    """Return the nanoseconds of a part in which other ranks computed until an end that they had in common with it.

    Such a rank did not keep them waiting: they all ended at a time, whenever it came.
    """
    others = facts.timelines.values()
    met, apart = (
        Intervals.of((start, end) for each in links for start, end, last in each if last == part.process)
        for links in ([each.waits for each in others], [each.apart for each in others])
    )
    return ((apart - met) & part.when).total


def _others_may_have_waited(facts: Facts, part: Part) -> str | None:
    """Return what is not known of ranks that left a region together with this one, which entered last."""
    links = [link for each in facts.timelines.values() for link in each.maybe if link[2] == part.process]
    if not any(len(part.when.clip(start, end)) for start, end, _ in links):
        return None
    return "whether another rank waited for it is not known"


def _may_have_waited(facts: Facts, part: Part) -> bool:
    """Return whether the rank may have waited in a visit of the region: then it is not known how its work is spread over the visits."""
    maybe = Intervals.of(link[:2] for link in facts.timelines[part.process].maybe)
    return len(maybe & facts.inside(part.process, part).when) > 0


def _assumption(than: str, also: Sequence[str], others: Collection[str]) -> str:
    """Return what would be so in the step that the gain is about."""
    if not others:
        return "no rank spends this time"
    return ("the ranks take" if also else "the rank takes") + f" as long as {than}"


def _is_in_collectives(facts: Facts, part: Part) -> bool:
    """Return whether the stacks show that the rank was in calls of collectives for most of a part.

    On a busy machine a thread leaves such a call long after its transfer: that is no work of the region.
    """
    inside = facts.signs[part.process].in_collectives(part.when).total
    return part.when.total >= SHORTEST_NS and inside >= part.when.total / 2


def _advice(
    more: str | None,
    elsewhere: Elsewhere,
    *,
    equal: bool,
    alone: bool,
    named: bool,
    idle: bool,
    met: bool,
    others: Collection[str],
) -> str:
    """Return what to try.

    A rank needs no other machine if it was late once, if it waits, or if no other one does what it does.

    Args:
        more: what it had more of than the others.
        elsewhere: whether it was late in the steps around.
        equal: whether it is known that it has no more tokens, or too few more to take so long.
        alone: whether the others spend next to no time there.
        named: whether a region shows what the rank does there, and the others do not only wait in it.
        idle: whether it waits.
        met: whether it is known which ranks waited for it.
        others: the other ranks that were there too.
    """
    if more:
        return BALANCE
    if alone and named:
        return f"{'the other ranks do next to nothing there' if others else 'only this rank does it'}: {OWN}"
    if idle:
        return WAITS
    if elsewhere.length is not None:
        return EVERY
    if elsewhere.alone:
        return ONCE
    if alone:
        return LOOK
    rest = (
        COMPARE
        if equal
        else f"{COMPARE}; with `tokens` on its regions, the report shows whether it has more to do"
    )
    return rest if met else f"{TELL}; if it waits, {rest}"


def _waited(ledger: Ledger, part: Part) -> str | None:
    """Return which process waited longest for the rank because of its time in the region of a part.

    That is the wait in the next collective after the region, at most for the time by which the rank was longer in the region
    since the two met before, and for that of the whole step. No other finding has named the wait, and the profiler did not hold the rank up meanwhile.
    """
    late, mine = ledger.facts.timelines[part.process], _stretches(ledger.facts, part)
    waits: Counter[str] = Counter()
    for label, each in ledger.facts.timelines.items():
        waited = Intervals.of((start, end) for start, end, last in each.waits if last == part.process)
        when = (waited & each.waiting) - late.held
        if not len(when):
            continue
        theirs = _stretches(ledger.facts, replace(part, process=label))
        longer = mine.within(_last_ends(in_calls(late) | waited, when.end), when.end)
        longer = longer - theirs.within(_last_ends(in_calls(each) | waited, when.start), when.start)
        left = mine.total - theirs.total
        for end, cost, length in zip(when.end, longer, when.end - when.start, strict=True):
            named = ledger.named_waits.get((label, int(end)), 0)
            caused = int(min(cost, length - named, left))
            if caused > 0:
                left -= caused
                ledger.named_waits[label, int(end)] = named + caused
                waits[label] += caused
    if not waits:
        return None
    ((longest, nanoseconds),) = waits.most_common(1)
    return f"{longest} waited {seconds_text(nanoseconds / 1e9)} for it"


def _last_ends(meetings: Intervals, times: Times) -> Times:
    """Return for each time the end of the last interval that ended before it; 0: there is none."""
    return np.concatenate([[0], meetings.end])[np.searchsorted(meetings.end, times)]


def _more(facts: Facts, part: Part, others: Iterable[str], excess: float) -> tuple[str | None, bool]:
    """Return by how much a rank has more tokens, samples or calls than the others, and whether more of them are known not to be the reason.

    Args:
        facts: of the step.
        part: the place in which it exceeds the others.
        others: those that it exceeds.
        excess: by how much, as a share of their time.
    """
    equal = False
    mine, *theirs = (_amounts(facts.timelines[label], part) for label in (part.process, *others))
    for key in ("tokens", "samples", "batch_size"):
        known = [each[key] for each in theirs if key in each]
        if key not in mine or not known:
            continue
        usual = median(known)
        if mine[key] > (1 + MORE) * usual and mine[key] ** 2 >= (1 + EXPLAINS * excess) * usual**2:
            return f"it had {mine[key]:,.0f} {key.replace('_', ' ')}, the others {usual:,.0f}", False
        equal |= key == "tokens"
    places = [place_of(facts, label, part.role, part.region) for label in (part.process, *others)]
    own, *rest = [0 if place is None else place.calls for place in places]
    usual = median(rest) if rest else 0
    if usual and own > (1 + MORE) * usual and own >= (1 + EXPLAINS * excess) * usual:
        return f"it made {own:,} calls, the others {usual:g}", False
    return None, equal


def _amounts(timeline: Timeline, part: Part) -> dict[str, float]:
    """Return the amounts of the innermost region around a part that has some."""
    for depth in range(len(part.region), -1, -1):
        for nest in timeline.nests:
            for at, place in enumerate(nest.places):
                if place.amounts and place.role == part.role and nest.path(at) == part.region[:depth]:
                    return place.amounts
    return {}


def _stretches(facts: Facts, part: Part) -> Intervals:
    """Return when a process was in a place, outside of collectives."""
    timeline = facts.timelines[part.process]
    when = Intervals.of(
        (start, end)
        for start, end, role, region in timeline.stretches
        if (role, region) == (part.role, part.region)
    )
    return when - in_calls(timeline)

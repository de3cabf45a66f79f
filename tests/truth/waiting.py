"""Compare the report's statements about waiting: how each process spent the step, which rank was
last, and which rank waited for which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from stepprof.analysis.report.schema import PhaseSkew, UnmatchedTime
from truth.known import Known, clipped, merged, minus, total
from truth.matching import Sides, alone, matchable, replayed, sides_of
from truth.model import Call, Stretch
from truth.noting import CLOSE, Notes, key_of
from truth.partition import Around, Partition, between, generating, handing, partitions, recording

__all__ = ["Waited", "compare_collectives", "compare_waiting", "is_partial"]

LEAST_TO_SAY = 0.02
"""Share of the step: the report must have waits that are longer than this in one phase."""
Phase = tuple[str | None, str | None]


class Waited:
    """The truth about waiting on one island, for the tables and the sentences that are made from them."""

    def __init__(
        self, notes: Notes, known: Sequence[Known], everyone: Sequence[Known], bounds: Stretch
    ) -> None:
        truth = notes.truth
        self.known = list(known)
        self.everyone = list(everyone)
        self.bounds = bounds
        self.must, self.may = matchable(truth, everyone)
        self.calls: dict[int, Call] = {id(call): call for each in everyone for call in each.calls}
        self.errors = {each.rank: each.place.error for each in everyone}
        self.decided = replayed(truth, everyone, self.must)
        self.cases: dict[int | str, list[Partition]] = {}
        here = [engine for engine in truth.engines if notes.engine_island(engine) == known[0].place.island]
        driver = next((each for each in everyone if each.rank == truth.first.rank), None)
        running = [part for engine in here for part in generating([engine], notes.shifts[engine.replica])]
        self.around = Around(
            bounds,
            self.known,
            {engine.role for engine in truth.engines},
            running,
            handing(truth.engines, driver.place.shift)
            if driver is not None and driver.place.island == known[0].place.island
            else (),
            self.must,
            self.may,
        )
        for each in self.known:
            self.cases[each.rank] = partitions(each, self.around)

    def sides(self) -> dict[tuple[str, str], dict[int | str, Sides]]:
        """Return which rank waited for which in calls that are, or may be, matched."""
        calls = {number: self.calls[number] for number in self.must | self.may}
        return sides_of(calls, self.everyone, self.must, decided=self.decided)


def compare_waiting(notes: Notes, waited: Waited) -> None:
    """Compare the tables of one island."""
    _idle(notes, waited)
    _ends(notes, waited)


def _idle(notes: Notes, waited: Waited) -> None:
    rows = {key_of(row.label): row for row in notes.report.idle}
    for each in waited.known:
        cases, row = waited.cases[each.rank], rows.get(each.rank)
        if row is None:
            # a process without a capture and without a window in the manifest recorded nothing
            if each.traced or each.process.windows_in_manifest(notes.truth):
                notes.say(f"how {each.rank} spent the step", "nothing", cases[0])
            continue
        notes.same(f"wall of {each.rank}", row.wall, cases[0].wall)
        allowed = CLOSE * (5 + len(each.calls) + len(each.work)) // 5
        for cause in sorted({"busy", *row.causes, *(cause for case in cases for cause in case.causes)}):
            reported = row.busy if cause == "busy" else row.causes.get(cause, 0.0)
            low, high = between(cases, cause)
            blurred = _blur(each, waited) if cause in ("busy", "collective", "profiler") else 0
            if not waited.decided and cause in ("collective", "profiler"):
                blurred += sum(call.waited[each.rank] for call in each.calls)
            if not low - allowed - blurred <= reported * 1e9 <= high + allowed + blurred:
                notes.say(f"{cause} of {each.rank}", reported, (low / 1e9, high / 1e9))
        whole = row.busy + sum(row.causes.values())
        notes.same(f"sum of the causes of {each.rank}", whole, round(row.wall * 1e9), allowed)


def _blur(known: Known, waited: Waited) -> int:
    """Return how much the errors of clocks may shift between a wait and the transfer after it."""
    found = 0
    for call in known.calls:
        if id(call) in waited.must or id(call) in waited.may:
            found += waited.errors[known.rank] + max(waited.errors.get(each, 0) for each in call.arrive)
            found += call.blur
            if alone(call, known):
                found += call.leave[known.rank] - call.arrive[known.rank]
    return found


# -- which rank was last -------------------------------------------------------------------------


def _ends(notes: Notes, waited: Waited) -> None:
    true: dict[Phase, dict[int | str, list[Stretch]]] = {}
    for each in waited.known:
        for role, start, end in each.windows:
            true.setdefault((role, None), {}).setdefault(each.rank, []).append((start, end))
        for region in each.regions:
            if is_partial(each, region.role):
                continue
            stretch = (each.at(region.start), each.at(region.end))
            true.setdefault((region.role, region.name), {}).setdefault(each.rank, []).append(stretch)
    mine = {each.rank for each in waited.known}
    for row in notes.report.skew:
        if row.basis != "end" or key_of(row.straggler) not in mine:
            continue
        parts = true.get((row.role, None if row.region == row.role else row.region), {})
        named = {key_of(row.straggler), *(key_of(time.label) for time in row.waited)}
        blind = {each.rank for each in waited.known if is_partial(each, row.role)}
        if row.region is None:  # a process with a window without a known end has no end
            unended = {
                each.rank for each in waited.known if any(window.role == row.role for window in each.open)
            }
            parts = {rank: stretches for rank, stretches in parts.items() if rank not in unended}
        # windows that come from traces omit those of partial captures
        if set(parts) - blind <= named <= set(parts) and row.region is not None:
            parts = {rank: stretches for rank, stretches in parts.items() if rank in named}
        if named != set(parts):
            notes.say(
                f"who went through {(row.role, row.region)}", sorted(map(str, named)), sorted(map(str, parts))
            )
            continue
        _end(notes, row, parts, waited)


def is_partial(each: Known, role: str | None) -> bool:
    """Return whether some regions of a role are unknown. Either the process has only captures and
    some are incomplete, or it was killed before the end of its spans.
    """
    windows = [window for window in each.process.windows if window.role == role]
    if each.spans:
        return any(each.process.ended(window.end) for window in windows)
    return any(window.captured != window.end or window.truncated for window in windows)


def _end(notes: Notes, row: PhaseSkew, parts: Mapping[int | str, Sequence[Stretch]], waited: Waited) -> None:
    what = f"end of {(row.role, row.region)}"
    last = {rank: max(end for _, end in stretches) for rank, stretches in parts.items()}
    first = {rank: min(start for start, _ in stretches) for rank, stretches in parts.items()}
    straggler = key_of(row.straggler)
    if straggler is None or len(parts) < 2:
        notes.say(f"who is named in {what}", row.straggler, parts)
        return
    if last[straggler] < max(last.values()):
        notes.say(f"last in {what}", row.straggler, max(last, key=lambda rank: last[rank]))
        return
    others = [rank for rank in parts if rank != straggler]
    behind = last[straggler] - median(last[rank] for rank in others)
    notes.same(f"spread at the {what}", row.spread, last[straggler] - min(last.values()))
    notes.same(f"behind the median at the {what}", row.behind_median, behind)
    began = first[straggler] - median(first[rank] for rank in others)
    notes.same(f"began later in {what}", row.began_later, began)
    for time in row.waited:
        rank = key_of(time.label)
        assert rank is not None
        notes.same(f"{rank} was done before the {what}", time.seconds, last[straggler] - last[rank])
    places = {each.rank: each for each in waited.known}
    held = {rank: total(clipped(recording(places[rank]), 0, last[rank])) for rank in parts}
    by_profiler = held[straggler] - median(held[rank] for rank in others)
    notes.same(f"by the profiler at the {what}", row.by_profiler, min(max(by_profiler, 0), max(behind, 0)))
    if row.significant:
        truly = {rank: last[rank] - places[rank].place.shift for rank in parts}
        if truly[straggler] <= median(truly[rank] for rank in others):
            notes.say(f"significant at the {what}", row.straggler, truly)


# -- which rank waited for which -----------------------------------------------------------------


def compare_collectives(notes: Notes, everyone: Sequence[Known], waited: Sequence[Waited]) -> None:
    """Compare the waits in collectives of the whole job, which need no common clock."""
    sides = waited[0].sides()
    seconds = notes.report.seconds * 1e9
    reported: set[Phase] = set()
    for row in notes.report.skew:
        if row.basis == "collectives":
            region = "" if row.region in (None, row.role) else row.region
            reported.add((row.role, region))
            _collective(notes, row, sides.get((row.role or "", region or ""), {}))
    calls = waited[0].calls
    must = {number: calls[number] for number in waited[0].must if calls[number].synchronises}
    sure = sides_of(must, everyone, waited[0].must, decided=waited[0].decided)
    for (role, region), by_rank in sure.items():
        # a wait without a straggler that can be named has no row
        most = max(sum(each.at_least.values()) for each in by_rank.values())
        if most > LEAST_TO_SAY * seconds and (role, region) not in reported:
            notes.say(f"waits in {(role, region)}", "nothing", most / 1e9)
    for spare in notes.report.slack:
        if not -CLOSE <= spare.seconds * 1e9 <= seconds + CLOSE:
            notes.say(f"slack of {(spare.process, spare.role)}", spare.seconds, (0.0, notes.report.seconds))
    for unmatched in notes.report.unmatched:
        _unmatched(notes, unmatched, everyone, waited[0])


def _collective(notes: Notes, row: PhaseSkew, sides: Mapping[int | str, Sides]) -> None:
    what = f"collectives of {(row.role, row.region)}"
    straggler = key_of(row.straggler)
    named = {member for each in sides.values() for member in each.at_most}
    if straggler not in named | set(sides):
        notes.say(f"straggler in {what}", row.straggler, sorted(map(str, sides)))
        return
    assert isinstance(straggler, int)
    caused: dict[int, tuple[int, int]] = {}
    for member in sorted(named | {int(rank) for rank in sides}):
        others = [each for rank, each in sides.items() if rank != member]
        low = sum(each.at_least[member] for each in others)
        caused[member] = (low, sum(each.at_most[member] for each in others))
    if caused[straggler][1] < max(low for low, _ in caused.values()):
        notes.say(f"whom the others waited for most in {what}", row.straggler, caused)
    for time in row.waited:
        rank = key_of(time.label)
        assert rank is not None
        if rank not in sides:
            notes.say(f"who waited in {what}", time.label, sorted(map(str, sides)))
            continue
        low, high = sides[rank].at_least[straggler], sides[rank].at_most[straggler]
        if not low - CLOSE * sides[rank].calls <= time.seconds * 1e9 <= high + CLOSE * sides[rank].calls:
            notes.say(f"wait of {rank} for {straggler} in {what}", time.seconds, (low / 1e9, high / 1e9))
        if time.calls > sides[rank].calls:
            notes.say(f"calls of {rank} in {what}", time.calls, sides[rank].calls)


def _unmatched(notes: Notes, row: UnmatchedTime, everyone: Sequence[Known], waited: Waited) -> None:
    what = f"unmatched in {(row.role, row.region)}"
    region = "" if row.region in (None, row.role) else row.region
    by_rank = {each.rank: each for each in everyone}
    holders: set[tuple[int, int]] = set()
    for time in row.spent:
        rank = key_of(time.label)
        known = by_rank.get(rank if rank is not None else "")
        calls = (
            []
            if known is None
            else [
                call
                for call in known.calls
                if known.around[id(call)] == (region, row.role) and id(call) not in waited.must
            ]
        )
        if known is None or not calls:
            notes.say(f"{what} on {time.label}", time.seconds, "no such calls")
            continue
        hidden = merged(known.stretches(known.computing))
        most = total(minus(map(known.call, calls), hidden))
        least = total(minus((known.call(call) for call in calls if id(call) not in waited.may), hidden))
        if not least - CLOSE <= time.seconds * 1e9 <= most + CLOSE:
            notes.say(f"{what} on {rank}", time.seconds, (least / 1e9, most / 1e9))
        if time.calls > len(calls):
            notes.say(f"calls {what} on {rank}", time.calls, len(calls))
        for call in calls:
            there = sum(member in by_rank and bool(by_rank[member].traced) for member in call.group.ranks)
            holders.add((there, len(call.group.ranks)))
    if row.members is not None and row.members not in {members for _, members in holders}:
        notes.say(f"members of the group {what}", row.members, holders)
    if row.recorded is not None and row.recorded > max((there for there, _ in holders), default=0):
        notes.say(f"recorded members {what}", row.recorded, holders)

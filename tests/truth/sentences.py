"""Parse every finding and check its statements: named processes against the truth, and sums against
tables that were compared with it.

A sentence that no pattern here matches is a difference, so that new sentences are checked too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from statistics import median

from stepprof.analysis.report.meetings import leaves_within
from truth.known import Known, merged, minus, total
from truth.model import Process
from truth.noting import Notes, key_of
from truth.waiting import Waited, is_partial

__all__ = ["compare_sentences"]

TIME = r"(\d+(?:[.,]\d+)*) (s|ms|us)"
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_SENTENCES: list[tuple[re.Pattern[str], Callable[[_Sentences, re.Match[str]], None]]] = []


def _reads(pattern: str) -> Callable[[Callable[[_Sentences, re.Match[str]], None]], None]:
    """Register a check for sentences that match a pattern."""

    def register(check: Callable[[_Sentences, re.Match[str]], None]) -> None:
        _SENTENCES.append((re.compile(pattern), check))

    return register


def compare_sentences(notes: Notes, everyone: Sequence[Known], waited: Sequence[Waited]) -> None:
    """Check every finding, and that the required findings exist."""
    sentences = _Sentences(notes, everyone, waited)
    for finding in notes.report.findings:
        for pattern, check in _SENTENCES:
            if match := pattern.fullmatch(finding.text):
                sentences.text = finding.text
                check(sentences, match)
                break
        else:
            notes.say("a sentence", finding.text, "not understood")
    sentences.missing()


def seconds_of(text: str) -> tuple[float, float]:
    """Return the smallest and the largest duration that a rounded one may mean."""
    match = re.fullmatch(TIME, text)
    assert match is not None, text
    digits = match[1].replace(",", "")
    unit = _UNITS[match[2]]
    _, _, decimals = digits.partition(".")
    half = 0.5 * 10 ** -len(decimals) * unit
    value = float(digits) * unit
    # the table has three digits for a long time
    return value - half - 1e-9 - 0.005 * value, value + half + 1e-9 + 0.005 * value


class _Sentences:
    def __init__(self, notes: Notes, everyone: Sequence[Known], waited: Sequence[Waited]) -> None:
        self.notes = notes
        self.report = notes.report
        self.everyone = {each.rank: each for each in everyone}
        self.waited = waited
        self.text = ""

    def about(self, text: str, least: float, most: float | None = None) -> None:
        """Check that a duration lies between two others."""
        low, high = seconds_of(text)
        if most is None:
            most = least
        if high < least - 1e-6 or low > most + 1e-6:
            self.notes.say(f'"{self.text}"', text, (least, most))

    def share(self, text: str, true: float) -> None:
        """Check a whole percentage."""
        if abs(int(text) - 100 * true) > 0.5 + 1e-6:
            self.notes.say(f'"{self.text}"', f"{text} %", true)

    def wrong(self, true: object) -> None:
        """Note that the sentence is wrong."""
        self.notes.say("sentence", self.text, true)

    def process(self, label: str) -> Process | None:
        """Return the process that a label names."""
        rank = key_of(label)
        return None if rank is None else self.notes.truth.process(rank)

    def phase(self, text: str) -> tuple[str | None, str | None]:
        """Return (role, region) of the text for a phase."""
        if match := re.fullmatch(r"(.+) \((.+)\)", text):
            return match[2], match[1]
        roles = {window.role for process in self.notes.truth.processes for window in process.windows}
        return (text, None) if text in roles else (None, None)

    def missing(self) -> None:
        """Check the required findings: incomplete captures, and clocks that were never compared."""
        said = [finding.text for finding in self.report.findings if finding.topic == "coverage"]
        kinds = {
            "capped": "max_seconds",
            "lost": "was lost",
            "killed": "was lost",
            "truncated": "is damaged",
        }
        for process in self.notes.truth.processes:
            words = kinds.get(process.fate)
            if (
                words
                and process.windows
                and not any(words in text or "were incomplete" in text for text in said)
            ):
                self.notes.say(f"finding of the {process.fate} capture of {process.rank}", said, words)
        if len({each.place.island for each in self.everyone.values()}) > 1 and not any(
            "never compared" in text for text in said
        ):
            self.notes.say("finding of clocks", said, "never compared")


@_reads(r"the step took (?P<seconds>[\d.,]+ \w+): (?P<parts>.+)")
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    sentences.about(match["seconds"], sentences.report.seconds)
    # the shares of the parts are compared with the path, and their times in any process with the truth
    shares = {each.name: each.share or 0.0 for each in sentences.report.parts}
    for part in match["parts"].split(", "):
        name, _, share = part.replace("`", "").rpartition(" ")
        sentences.share(share[:-1], shares.get(name, -1.0))


@_reads(r"the step took (?P<seconds>[\d.,]+ \w+), and no role or region divides it")
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    sentences.about(match["seconds"], sentences.report.seconds)


_WITHOUT_END = ("killed", "lost", "capped")


@_reads(r"the step lasted at least (?P<seconds>[\d.,]+ \w+): its end is not known")
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    sentences.about(match["seconds"], sentences.report.seconds)
    if not any(process.fate in _WITHOUT_END for process in sentences.notes.truth.processes):
        sentences.wrong("all ends are known")


@_reads(r"how long the step lasted is not known: its end is missing")
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    if not any(process.fate in _WITHOUT_END for process in sentences.notes.truth.processes):
        sentences.wrong("all ends are known")


@_reads(
    r"(?P<who>.+?) (?:has no end of its window|have no ends of their windows): .+ could not write (?:its manifest|their manifests)"
)
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    for name in _names(match["who"]):
        process = sentences.process(name)
        if process is None or process.fate not in ("killed", "lost"):
            sentences.wrong(process)


@_reads(r"the step took (?P<parts>.+?)(?:, and \d+ more)?, each by its own clock")
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    lengths = [(waited.bounds[1] - waited.bounds[0]) / 1e9 for waited in sentences.waited]
    for island in set(sentences.notes.islands.values()):  # an island may have only engines
        lengths.append(sentences.notes.generated(island) / 1e9)
    for part in re.findall(rf"({TIME}) on ", match["parts"]):
        low, high = seconds_of(part[0])
        if not any(low <= length <= high for length in lengths):
            sentences.wrong(lengths)


@_reads(r"the step took (?P<seconds>[\d.,]+ \w+) on (?P<hosts>.+); by other clocks its end is not known")
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    low, high = seconds_of(match["seconds"])
    of_length, without_end = set(), set()
    for waited in sentences.waited:
        fates = {each.process.fate for each in waited.known if each.process.windows}
        if low <= (waited.bounds[1] - waited.bounds[0]) / 1e9 <= high and fates - {*_WITHOUT_END}:
            of_length.add(id(waited))
        if fates & {*_WITHOUT_END}:
            without_end.add(id(waited))
    everywhere = {id(waited) for waited in sentences.waited}
    if not any(everywhere - {one} <= without_end for one in of_length):
        sentences.wrong([each.bounds for each in sentences.waited])


@_reads(r"the clocks of (?P<count>\d+) groups of processes were never compared: .+")
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    islands = {each.place.island for each in sentences.everyone.values()} | set(
        sentences.notes.islands.values()
    )
    if int(match["count"]) < 2 or len(islands) < 2:
        sentences.wrong(islands)


def _names(text: str) -> list[str]:
    return re.sub(r" and \d+ more$", "", text).split(", ")


def _after_caps(process: Process, name: str) -> int:
    """Return how long a process was in a region, or in one inside it, after the ends of its captures."""
    return sum(
        max(0, each.end - max(each.start, window.captured or each.end))
        for window in process.windows
        for each in process.regions
        if each.name == name and window.start <= each.start < window.end and window.capped_by
    )


def _after_the_end(sentences: _Sentences, text: str | None, processes: Sequence[Process | None]) -> None:
    """Compare the regions after the ends of captures: at most the time of the longest one is stated."""
    for match in re.finditer(rf"`(?P<name>.+?)` (?:up to )?(?P<seconds>{TIME})", text or ""):
        spent = [_after_caps(process, match["name"]) for process in processes if process is not None]
        sentences.about(match["seconds"], 0.0, max(spent, default=0) / 1e9)


@_reads(
    rf"the capture of (?P<who>.+?) ended after (?P<recorded>{TIME})(?: of (?P<window>{TIME}))? \(max_seconds\)(?:; (?P<missing>\d+)% of its window was not recorded(?:: (?P<rest>`.+))?)?"
)
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    process = sentences.process(match["who"])
    windows = [] if process is None else [each for each in process.windows if each.capped_by]
    for window in windows:
        low, high = seconds_of(match["recorded"])
        if low <= ((window.captured or 0) - window.start) / 1e9 <= high:
            if match["window"] is not None:
                sentences.about(match["window"], (window.end - window.start) / 1e9)
            _after_the_end(sentences, match["rest"], [process])
            if match["missing"] is not None:
                length = window.end - window.start
                sentences.share(match["missing"], (window.end - (window.captured or 0)) / length)
            return
    sentences.wrong(windows)


@_reads(
    r"the capture of (?P<who>.+?) (?P<what>ended before the window \(max_seconds\)|was lost.*?|is damaged.*?)"
    r"(?:; (?P<low>\d+)%(?: to (?P<high>\d+)%)? of (?:its window was|their windows were) not recorded(?:: (?P<rest>`.+))?)?"
)
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    fate = {"ended": "capped", "was": "lost", "is": "truncated"}[match["what"].split()[0]]
    if fate == "capped":
        _after_the_end(sentences, match["rest"], [sentences.process(name) for name in _names(match["who"])])
    for name in _names(match["who"]):
        process = sentences.process(name)
        if process is None or process.fate.replace("killed", "lost") != fate:
            sentences.wrong(process)
        elif match["low"] is not None and fate != "truncated":
            for window in process.windows:
                if fate == "lost" or window.capped_by:
                    reached = 0 if fate == "lost" else (window.captured or window.start) - window.start
                    missing = 100 * (1 - reached / (window.end - window.start))
                    if not int(match["low"]) - 1 <= missing <= int(match["high"] or match["low"]) + 1:
                        sentences.wrong(missing)


@_reads(r"captures were incomplete in \d+ more ways: report.json lists them")
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    if len({process.fate for process in sentences.notes.truth.processes}) < 4:
        sentences.wrong("fewer kinds")


@_reads(
    rf"(?P<who>.+) was the last to finish (?P<phase>.+?): (?P<seconds>{TIME}) behind (?P<others>.+?)"
    rf"(?:, having started (?P<later>{TIME}) later)?(?:, (?P<held>{TIME}) of it due to the profiler)?(?:, {TIME} of it lost in this phase)?"
)
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    role, region = sentences.phase(match["phase"])
    who = key_of(match["who"])
    ends = {}
    for rank, known in sentences.everyone.items():
        if who in sentences.everyone and known.place.island != sentences.everyone[who].place.island:
            continue
        mine = (
            [end - known.place.shift for each, _, end in known.windows if each == role]
            if region is None
            else [each.end for each in known.regions if (each.role, each.name) == (role, region)]
        )
        unended = (
            any(window.role == role for window in known.open) if region is None else is_partial(known, role)
        )
        if mine and not unended:
            ends[rank] = max(mine)
    if who not in ends or len(ends) < 2 or ends[who] + _doubt(sentences, ends) < max(ends.values()):
        sentences.wrong(ends)
        return
    doubt = _doubt(sentences, ends) / 1e9
    blind = {rank for rank in ends if is_partial(sentences.everyone[rank], role)}
    behind = []
    for left_out in (set(), blind):  # a window that comes from traces alone omits partial captures
        others = [end for rank, end in ends.items() if rank != who and rank not in left_out]
        if others:
            behind.append((ends[who] - median(others)) / 1e9)
    others = [rank for rank in ends if rank != who]
    sentences.about(match["seconds"], min(behind) - doubt, max(behind) + doubt)
    if key_of(match["others"]) is not None and (
        len(set(others) - blind) > 1 or key_of(match["others"]) not in ends
    ):
        sentences.wrong(ends)


def _doubt(sentences: _Sentences, ranks: object) -> int:
    assert isinstance(ranks, dict)
    errors = sorted(sentences.everyone[rank].place.error for rank in ranks)
    return sum(errors[-2:])


@_reads(
    rf"(?P<who>.+?) waited (?P<seconds>{TIME}) for (?P<whom>.+) in the collectives of (?P<phase>.+?)"
    rf"(?:, and (?P<again>.+) waited (?P<own>{TIME}) for others: they are late in turns)?"
    rf"(?:; (?P<last>.+) began (?P<role>.+) (?P<later>{TIME}) later)?"
)
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    role, region = sentences.phase(match["phase"])
    sides = sentences.waited[0].sides().get((role or "", region or ""), {})
    who, whom = key_of(match["who"]), key_of(match["whom"])
    if who not in sides or whom not in sides[who].at_most or who == whom:
        sentences.wrong((role, region, sorted(map(str, sides))))
        return
    assert isinstance(whom, int)
    side = sides[who]
    sentences.about(match["seconds"], side.at_least[whom] / 1e9, side.at_most[whom] / 1e9)
    if match["own"] is not None:
        own = sides.get(whom)
        if own is None or key_of(match["again"]) != whom:
            sentences.wrong((role, region, sorted(map(str, sides))))
            return
        sentences.about(match["own"], sum(own.at_least.values()) / 1e9, sum(own.at_most.values()) / 1e9)
    if match["later"] is not None:
        begins = {
            rank: min(start - known.place.shift for each, start, _ in known.windows if each == role)
            for rank, known in sentences.everyone.items()
            if rank in (who, whom) and known.windows
        }
        if len(begins) < 2:  # only the manifest states the begin of a capped capture
            return
        doubt = _doubt(sentences, begins) / 1e9
        later = (begins[whom] - begins[who]) / 1e9
        sentences.about(match["later"], later - doubt, later + doubt)
        if key_of(match["last"]) != whom or match["role"] != (role or "the step"):
            sentences.wrong(begins)


@_reads(
    rf"(?P<who>.+) spent (?P<seconds>{TIME}) in nothing but collectives of (?P<phase>.+?)(?:; (?P<there>\d+) of (?P<all>\d+) members were recorded| that could not be matched across ranks), so the rank it waited for is unknown"
)
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    known = sentences.everyone.get(key_of(match["who"]) or 0)
    sizes = set() if known is None else {len(call.group.ranks) for call in known.calls}
    if known is None or (match["all"] is not None and int(match["all"]) not in sizes):
        sentences.wrong(sizes)
        return
    sentences.about(
        match["seconds"],
        0,
        sum(call.leave[known.rank] - call.arrive[known.rank] for call in known.calls) / 1e9,
    )


@_reads(r"the (?P<kind>GPU|NPU)s were busy for (?P<share>\d+)% of the captured time")
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    shares = [
        row.busy_share
        for row in sentences.report.overlap
        if row.device != "cpu" and row.busy_share is not None
    ]
    sentences.share(match["share"], sum(shares) / len(shares))


PLACE = r"(?:`(?P<region>[^`]+)`(?: \((?:in )?(?:`(?P<around>[^`]+)`)?(?:, )?(?:role (?P<role>[^)]+))?\))?|the window of (?P<window>[^,]+)|the window)"


def _seem_to_meet(sentences: _Sentences, match: re.Match[str], who: int | str | None) -> bool:
    """Return whether another process leaves a place, without a call there, just after a process enters it, as if they had met."""
    mine = _pieces(sentences, who or 0, match)
    return any(
        begin < last < end
        and end - last <= leaves_within(last - begin)
        and not any(begin < high and low < end for low, high in map(other.call, other.calls))
        for rank, other in sentences.everyone.items()
        if rank != who and isinstance(rank, int)
        for begin, end in _pieces(sentences, rank, match)
        for last, _ in mine
    )


def _own(sentences: _Sentences, rank: int | str, match: re.Match[str], *, calls: bool) -> int | None:
    """Return how long a process was in a place and in no region inside it [ns]; None: it never was."""
    known = sentences.everyone[rank]
    pieces = _pieces(sentences, rank, match)
    met = minus(merged(map(known.call, known.calls)), merged(known.stretches(known.computing)))
    return total(minus(pieces, merged(met if calls else ()))) if pieces else None


def _pieces(sentences: _Sentences, rank: int | str, match: re.Match[str]) -> list[tuple[int, int]]:
    """Return when a process was in a place and in no region inside it."""
    known = sentences.everyone[rank]
    role = match["role"] or match["window"]
    regions = [(each.name, each.role, known.at(each.start), known.at(each.end)) for each in known.regions]
    mine = [(start, end) for each, start, end in known.windows if each == role]
    if match["region"] is None:  # regions, and windows in a window around them, are inside it
        inner = [(start, end) for _, _, start, end in regions]
        inner += [(start, end) for each, start, end in known.windows if role is None and each is not None]
    else:
        here = [
            each
            for each in regions
            if each[0] == match["region"]
            and role in (None, each[1])
            and _around(regions, each) == match["around"]
        ]
        mine = [each[2:] for each in here]
        inner = [
            (start, end)
            for name, _, start, end in regions
            if name != match["region"] and any(low <= start and end <= high for low, high in mine)
        ]
    return minus(merged(mine), merged(inner))


def _around(
    regions: list[tuple[str, str | None, int, int]], inner: tuple[str, str | None, int, int]
) -> str | None:
    """Return the innermost region of another name around a region."""
    name, _, start, end = inner
    outer = [each for each in regions if each[0] != name and each[2] <= start and end <= each[3]]
    return min(outer, key=lambda each: each[3] - each[2])[0] if outer else None


@_reads(
    rf"(?P<who>.+?) spent (?P<seconds>{TIME}) longer than (?P<others>.+?) in {PLACE}(?P<calls>, collectives not counted)?"
)
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    who = key_of(match["who"])
    times = _times(sentences, match, who)
    if times is None:
        return
    mine = times.pop(who, None)
    others = [time for time in times.values() if time is not None]
    low, _ = seconds_of(match["seconds"])
    if (
        mine is None
        or not others
        or low > (mine - min(others)) / 1e9 + LATE * len(sentences.everyone[who].calls)
    ) and not _seem_to_meet(sentences, match, who):
        sentences.wrong((mine, times))


@_reads(
    rf"(?P<who>.+?) and (?P<also>.+?) took longer than (?P<others>.+?) in {PLACE}(?P<calls>, collectives not counted)?: together (?P<seconds>{TIME}) on the path"
)
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    who = key_of(match["who"])
    times = _times(sentences, match, who)
    if times is None:
        return
    known = sorted(time for time in times.values() if time is not None)
    low, _ = seconds_of(match["seconds"])
    slack = LATE * sum(len(each.calls) for each in sentences.everyone.values())
    if not known or times[who] == known[0] or low > sum(time - known[0] for time in known) / 1e9 + slack:
        sentences.wrong(times)


def _times(
    sentences: _Sentences, match: re.Match[str], who: int | str | None
) -> dict[int | str, int | None] | None:
    """Return the own time of each rank on the clock of one process in the place of a sentence; None: there is no such process."""
    if who not in sentences.everyone:
        sentences.wrong("no such process")
        return None
    island = sentences.everyone[who].place.island
    calls = match["calls"] is not None
    return {
        rank: _own(sentences, rank, match, calls=calls)
        for rank, known in sentences.everyone.items()
        if known.place.island == island and isinstance(rank, int)
    }


LATE = 0.0006
"""Threads leave collectives up to this many seconds apart."""


@_reads(
    rf"(?P<who>.+?) spent (?P<seconds>{TIME}) in {PLACE}(?:, which [^`]+ ha(?:s|ve))?(?:, collectives not counted)?, and no other rank did"
)
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    who = key_of(match["who"])
    here = {
        rank
        for rank in sentences.everyone
        if isinstance(rank, int) and _own(sentences, rank, match, calls=False)
    }
    if who not in here:
        sentences.wrong(here)


@_reads(rf"collectives took (?P<seconds>{TIME}) in {PLACE} while nothing was computed")
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    calls = {id(call): call for known in sentences.everyone.values() for call in known.calls}.values()
    transfer = sum(
        max(call.leave[rank] - (max(call.arrive.values()) if call.synchronises else call.arrive[rank]) for rank in call.leave)
        for call in calls
    )  # fmt: skip
    error = max((known.place.error for known in sentences.everyone.values()), default=0)
    errors = sum(call.blur for call in calls) + 2 * len(calls) * error
    sentences.about(match["seconds"], 0, (transfer + errors) / 1e9 + LATE * len(calls))


@_reads(
    rf"the device of (?P<who>.+) had no work for (?P<seconds>{TIME}) in {PLACE}(?:, although kernels were launched)?"
)
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    (row,) = [row for row in sentences.report.idle if row.label == match["who"]]
    sentences.about(match["seconds"], 0, row.wall - row.busy)


@_reads(
    rf"(?P<who>.+) stayed in {PLACE} for (?P<seconds>{TIME}) after the recorded (?P<what>engines|ranks) had finished"
)
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    who = key_of(match["who"])
    known = sentences.everyone.get(who) if who is not None else None
    if known is None:
        sentences.wrong("no such process")
        return
    role = match["role"] or match["window"]
    ends = [end for each, _, end in known.windows if role is None or each == role]
    low, _ = seconds_of(match["seconds"])
    longest = max(
        (end - start for each, start, end in known.windows if role is None or each == role), default=0
    )
    if not ends or low > longest / 1e9:
        sentences.wrong(longest)


@_reads(
    rf"the rollout's tail took (?P<seconds>{TIME}): of \d+ sequences at most \d+ (?:was|were) still generated"
)
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    sentences.about(match["seconds"], 0, max(row.tail for row in sentences.report.rollout))


@_reads(rf"(?P<who>.+) computed preempted sequences again for (?P<seconds>{TIME})")
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    sentences.wrong("no simulated engine has preemptions")


@_reads(
    rf"the step is too short to be judged: recording it held (?P<who>.+) up for (?P<held>{TIME}), the step itself took (?P<own>{TIME})"
)
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    sentences.about(match["own"], 0, sentences.report.seconds)
    process = sentences.process(match["who"])
    if process is None:
        sentences.wrong("no such process")
        return
    windows = process.windows_in_manifest(sentences.notes.truth)
    sentences.about(match["held"], sum(each.arm + each.begin + each.stall for each in windows) / 1e9)


@_reads(r"(?P<count>\d+) of (?P<all>\d+) sources have no events: .+")
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    without = [source for source in sentences.report.sources if not source.events]
    if int(match["count"]) > len(without):
        sentences.wrong(len(without))


@_reads(r"no process recorded a rollout in this step; the nearest step with one is step (?P<nearest>\d+)")
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    roles = {window.role for process in sentences.notes.truth.processes for window in process.windows}
    if "rollout" in roles or int(match["nearest"]) == sentences.report.step:
        sentences.wrong(roles)


@_reads(r"(?P<who>.+) reached (?P<size>[\d.]+) GiB \((?P<device>GPU 0|CPU), allocated\)")
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    process = sentences.process(match["who"])
    if process is None or match["device"] != ("GPU 0" if process.devices else "CPU"):
        sentences.wrong(process)
        return
    whole = [
        each
        for each in sentences.notes.truth.processes
        if each.fate == "complete" and bool(each.devices) == bool(process.devices) and each.windows
    ]
    size, true = float(match["size"]), process.peak_bytes / 2**30
    if abs(size - true) > 0.05 + 1e-6 or any(each.peak_bytes > process.peak_bytes for each in whole):
        sentences.wrong({each.rank: each.peak_bytes / 2**30 for each in whole})


@_reads(
    rf"the allocator of .+ found no memory .+ since its process began, and freed its cache(?:; .+ failed)?"
    rf"|.+ took memory from its device's driver, or gave it back, for {TIME} in {PLACE}"
)
def _(sentences: _Sentences, match: re.Match[str]) -> None:
    sentences.wrong("no simulated process runs out of memory")


@_reads(
    rf"nothing stands out: (?:the only finding is|the longest of (\d+) findings is) {TIME}, .*% of the step"
)
def _nothing(sentences: _Sentences, match: re.Match[str]) -> None:
    """Each finding with seconds is below 5 % of the step, and there are as many as the sentence says."""
    lengths = [
        each.seconds
        for each in sentences.report.findings
        if each.seconds is not None and each.topic not in ("step", "quiet")
    ]
    if len(lengths) != int(match[1] or 1) or max(lengths) >= 0.05 * sentences.report.seconds:
        sentences.notes.say(f'"{sentences.text}"', match[1], lengths)
    sentences.about(f"{match[2]} {match[3]}", max(lengths))

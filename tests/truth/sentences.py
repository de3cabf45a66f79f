"""Read every headline back and check what it says: sentences that name a process against the truth, sums against the tables that were compared with it.

A sentence that is not understood here is a difference: a new one has to be checked as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from statistics import median

from truth.known import Known
from truth.model import Process
from truth.noting import Notes, key_of
from truth.waiting import Waited, is_partial

__all__ = ["compare_sentences"]

TIME = r"(\d+(?:[.,]\d+)*) (s|ms|us)"
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_SENTENCES: list[tuple[re.Pattern[str], Callable[[_Sentences, re.Match[str]], None]]] = []


def _reads(pattern: str) -> Callable[[Callable[[_Sentences, re.Match[str]], None]], None]:
    """Register what checks sentences of a pattern."""

    def register(check: Callable[[_Sentences, re.Match[str]], None]) -> None:
        _SENTENCES.append((re.compile(pattern), check))

    return register


def compare_sentences(notes: Notes, everyone: Sequence[Known], waited: Sequence[Waited]) -> None:
    """Check every headline, and that those are there which have to be."""
    sentences = _Sentences(notes, everyone, waited)
    for headline in notes.report.headlines:
        for pattern, check in _SENTENCES:
            if match := pattern.fullmatch(headline.text):
                sentences.text = headline.text
                check(sentences, match)
                break
        else:
            notes.say("a sentence", headline.text, "not understood")
    sentences.missing()


def seconds_of(text: str) -> tuple[float, float]:
    """The least and the most that a rounded length of time may stand for."""
    match = re.fullmatch(TIME, text)
    assert match is not None, text
    digits = match[1].replace(",", "")
    unit = _UNITS[match[2]]
    _, _, decimals = digits.partition(".")
    half = 0.5 * 10 ** -len(decimals) * unit
    value = float(digits) * unit
    # the table says three digits of a long time
    return value - half - 1e-9 - 0.005 * value, value + half + 1e-9 + 0.005 * value


class _Sentences:
    def __init__(self, notes: Notes, everyone: Sequence[Known], waited: Sequence[Waited]) -> None:
        self.notes = notes
        self.report = notes.report
        self.everyone = {each.rank: each for each in everyone}
        self.waited = waited
        self.text = ""

    def about(self, text: str, least: float, most: float | None = None) -> None:
        """A length of time must stand for one between two."""
        low, high = seconds_of(text)
        if most is None:
            most = least
        if high < least - 1e-6 or low > most + 1e-6:
            self.notes.say(f'"{self.text}"', text, (least, most))

    def share(self, text: str, true: float) -> None:
        """A whole percentage."""
        if abs(int(text) - 100 * true) > 0.5 + 1e-6:
            self.notes.say(f'"{self.text}"', f"{text} %", true)

    def wrong(self, true: object) -> None:
        """The whole sentence."""
        self.notes.say("sentence", self.text, true)

    def process(self, label: str) -> Process | None:
        """Who is named."""
        rank = key_of(label)
        return None if rank is None else self.notes.truth.process(rank)

    def phase(self, text: str) -> tuple[str | None, str | None]:
        """(role, region) of the words for a phase."""
        if match := re.fullmatch(r"(.+) \((.+)\)", text):
            return match[2], match[1]
        roles = {window.role for process in self.notes.truth.processes for window in process.windows}
        return (text, None) if text in roles else (None, None)

    def missing(self) -> None:
        """What has to be said: captures that fell short, and clocks that were never compared."""
        said = [headline.text for headline in self.report.headlines if headline.topic == "coverage"]
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
                self.notes.say(f"headline of the {process.fate} capture of {process.rank}", said, words)
        if len({each.place.island for each in self.everyone.values()}) > 1 and not any(
            "never compared" in text for text in said
        ):
            self.notes.say("headline of clocks", said, "never compared")


@_reads(r"the step took (?P<seconds>[\d.,]+ \w+): (?P<parts>.+?)(?: \(they overlap\))?")
def _(told: _Sentences, match: re.Match[str]) -> None:
    told.about(match["seconds"], told.report.seconds)
    shares = {row.role: row.share for row in told.report.roles}
    for part in match["parts"].split(", "):
        role, _, share = part.rpartition(" ")
        told.share(share[:-1], shares.get(role, -1.0))


@_reads(r"the step took (?P<parts>.+?)(?:, and \d+ more)?, each by its own clock")
def _(told: _Sentences, match: re.Match[str]) -> None:
    lengths = [(waited.bounds[1] - waited.bounds[0]) / 1e9 for waited in told.waited]
    for island in set(told.notes.islands.values()):  # one may have engines alone
        lengths.append(told.notes.generated(island) / 1e9)
    for part in re.findall(rf"({TIME}) on ", match["parts"]):
        low, high = seconds_of(part[0])
        if not any(low <= length <= high for length in lengths):
            told.wrong(lengths)


@_reads(r"the clocks of (?P<count>\d+) groups of hosts were never compared: .+")
def _(told: _Sentences, match: re.Match[str]) -> None:
    islands = {each.place.island for each in told.everyone.values()} | set(told.notes.islands.values())
    if int(match["count"]) < 2 or len(islands) < 2:
        told.wrong(islands)


def _names(text: str) -> list[str]:
    return re.sub(r" and \d+ more$", "", text).split(", ")


@_reads(
    rf"the capture of (?P<who>.+?) ended after (?P<recorded>{TIME})(?: of (?P<window>{TIME}))? \(max_seconds\)"
)
def _(told: _Sentences, match: re.Match[str]) -> None:
    process = told.process(match["who"])
    windows = [] if process is None else [each for each in process.windows if each.capped_by]
    for window in windows:
        low, high = seconds_of(match["recorded"])
        if low <= ((window.captured or 0) - window.start) / 1e9 <= high:
            if match["window"] is not None:
                told.about(match["window"], (window.end - window.start) / 1e9)
            return
    told.wrong(windows)


@_reads(
    r"the capture of (?P<who>.+?) (?P<what>ended before the window \(max_seconds\)|was lost.*|is damaged.*)"
)
def _(told: _Sentences, match: re.Match[str]) -> None:
    fate = {"ended": "capped", "was": "lost", "is": "truncated"}[match["what"].split()[0]]
    for name in _names(match["who"]):
        process = told.process(name)
        if process is None or process.fate.replace("killed", "lost") != fate:
            told.wrong(process)


@_reads(r"captures were incomplete in \d+ more ways: report.json lists them")
def _(told: _Sentences, match: re.Match[str]) -> None:
    if len({process.fate for process in told.notes.truth.processes}) < 4:
        told.wrong("fewer kinds")


@_reads(
    rf"(?P<who>.+) was the last to finish (?P<phase>.+?): (?P<seconds>{TIME}) behind (?P<others>.+?)"
    rf"(?:, having started (?P<later>{TIME}) later)?(?:, (?P<held>{TIME}) of it due to the profiler)?"
)
def _(told: _Sentences, match: re.Match[str]) -> None:
    role, region = told.phase(match["phase"])
    who = key_of(match["who"])
    ends = {}
    for rank, known in told.everyone.items():
        if who in told.everyone and known.place.island != told.everyone[who].place.island:
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
    if who not in ends or len(ends) < 2 or ends[who] + _doubt(told, ends) < max(ends.values()):
        told.wrong(ends)
        return
    doubt = _doubt(told, ends) / 1e9
    blind = {rank for rank in ends if is_partial(told.everyone[rank], role)}
    behind = []
    for left_out in (set(), blind):  # a window of traces alone leaves out those of partial captures
        others = [end for rank, end in ends.items() if rank != who and rank not in left_out]
        if others:
            behind.append((ends[who] - median(others)) / 1e9)
    others = [rank for rank in ends if rank != who]
    told.about(match["seconds"], min(behind) - doubt, max(behind) + doubt)
    if key_of(match["others"]) is not None and (
        len(set(others) - blind) > 1 or key_of(match["others"]) not in ends
    ):
        told.wrong(ends)


def _doubt(told: _Sentences, ranks: object) -> int:
    assert isinstance(ranks, dict)
    errors = sorted(told.everyone[rank].place.error for rank in ranks)
    return sum(errors[-2:])


@_reads(rf"(?P<who>.+) waited (?P<seconds>{TIME}) for (?P<whom>.+) in the collectives of (?P<phase>.+)")
def _(told: _Sentences, match: re.Match[str]) -> None:
    role, region = told.phase(match["phase"])
    sides = told.waited[0].sides().get((role or "", region or ""), {})
    who, whom = key_of(match["who"]), key_of(match["whom"])
    if who not in sides or whom not in sides[who].at_most or who == whom:
        told.wrong((role, region, sorted(map(str, sides))))
        return
    assert isinstance(whom, int)
    side = sides[who]
    told.about(match["seconds"], side.at_least[whom] / 1e9, side.at_most[whom] / 1e9)


@_reads(
    rf"(?P<who>.+) spent (?P<seconds>{TIME}) in collectives of (?P<phase>.+?)(?:; (?P<there>\d+) of (?P<all>\d+) members were recorded| that could not be matched across ranks), so the rank it waited for is unknown"
)
def _(told: _Sentences, match: re.Match[str]) -> None:
    known = told.everyone.get(key_of(match["who"]) or 0)
    sizes = set() if known is None else {len(call.group.ranks) for call in known.calls}
    if known is None or (match["all"] is not None and int(match["all"]) not in sizes):
        told.wrong(sizes)
        return
    told.about(
        match["seconds"],
        0,
        sum(call.leave[known.rank] - call.arrive[known.rank] for call in known.calls) / 1e9,
    )


@_reads(
    rf"generation ran below half of its peak batch for (?P<share>\d+)% of .*?(?:, without a break for the last (?P<tail>{TIME}))?"
)
def _(told: _Sentences, match: re.Match[str]) -> None:
    rows = [row for row in told.report.rollout if round(100 * row.below_half) == int(match["share"])]
    if not rows:
        told.wrong(told.report.rollout)
    elif match["tail"] is not None:
        low, high = seconds_of(match["tail"])
        if not any(low <= row.tail <= high for row in rows):
            told.wrong(rows)


_CAUSES = {
    "the device was idle": "host",
    "while the rollout ran": "rollout",
    "while other ranks were in the same role": "peers",
    "while other roles ran": "other_role",
    "was not recorded": "not_recorded",
    "no recorded work or cause explains": "unknown",
}


@_reads(r"(?P<who>.+?): (?P<what>.*?(?P<share>\d+)% of the step.*)")
def _(told: _Sentences, match: re.Match[str]) -> None:
    cause = next((cause for words, cause in _CAUSES.items() if words in match["what"]), None)
    rows = [row for row in told.report.idle if row.causes.get(cause or "", 0.0) > 0]
    if cause is None or not rows:
        told.wrong(cause)
        return
    count = re.fullmatch(r"(\d+) of (\d+) processes", match["who"])
    if (int(count[1]) if count else 1) != len(rows) or (not count and match["who"] != rows[0].label):
        told.wrong([row.label for row in rows])
    told.share(match["share"], sum(row.causes[cause] for row in rows) / sum(row.wall for row in rows))


@_reads(
    rf"(?P<share>\d+)% of the communication is not overlapped by computation: (?P<seconds>{TIME}) on average(?:, (?P<waited>\d+)% of it waiting for other ranks)?"
)
def _(told: _Sentences, match: re.Match[str]) -> None:
    rows = told.report.overlap
    exposed = sum(row.exposed for row in rows)
    told.share(match["share"], exposed / sum(row.communication for row in rows))
    told.about(match["seconds"], exposed / len(rows))
    if match["waited"] is not None:
        waited = sum(row.causes.get("collective", 0.0) for row in told.report.idle)
        told.share(match["waited"], min(waited / exposed, 1.0))


@_reads(r"the (?P<kind>GPU|NPU)s were busy for (?P<share>\d+)% of the captured time")
def _(told: _Sentences, match: re.Match[str]) -> None:
    shares = [
        row.busy_share for row in told.report.overlap if row.device != "cpu" and row.busy_share is not None
    ]
    told.share(match["share"], sum(shares) / len(shares))


@_reads(
    rf"starting and stopping profilers took (?P<seconds>{TIME}) per process on average; (?P<who>\S+) took (?P<stop>{TIME}) to stop"
)
def _(told: _Sentences, match: re.Match[str]) -> None:
    rows = told.report.idle
    told.about(match["seconds"], sum(row.causes.get("profiler", 0.0) for row in rows) / len(rows))
    slowest = max(told.notes.truth.engines, key=lambda engine: engine.stop)
    told.about(match["stop"], slowest.stop / 1e9)


@_reads(rf"recording delayed (?P<who>.+) by (?P<seconds>{TIME})")
def _(told: _Sentences, match: re.Match[str]) -> None:
    process = told.process(match["who"])
    if process is None:
        told.wrong("no such process")
        return
    windows = process.told(told.notes.truth)
    told.about(match["seconds"], sum(each.arm + each.begin + each.stall for each in windows) / 1e9)


@_reads(r"(?P<count>\d+) of (?P<all>\d+) sources have no events: .+")
def _(told: _Sentences, match: re.Match[str]) -> None:
    without = [source for source in told.report.sources if not source.events]
    if int(match["count"]) > len(without):
        told.wrong(len(without))

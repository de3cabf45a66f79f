"""Share the step out among the findings: each moment of its critical path belongs to one at most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from stepprof.analysis.findings.facts import Facts, Part
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.schema import Finding
from stepprof.analysis.report.wording import seconds_text

MOST_STRETCHES = 200
"""The number of stretches of a finding to state."""


class Ledger:
    """Gives each moment of the step to one finding at most.

    Args:
        facts: of the step.
        least: seconds below which nothing is claimed.
    """

    def __init__(self, facts: Facts, least: float) -> None:
        self.facts = facts
        self.least = least
        self.free = Intervals.one(facts.start, facts.end)
        self.found: list[Finding] = []
        self.named_waits: dict[tuple[str, int], int] = {}
        """The nanoseconds of waits, by (process, end), that findings about awaited ranks have named."""
        self.explained: dict[str, Intervals] = {}
        """The time of each process that the causes of findings take, also outside of the path."""
        self._whole: dict[tuple[str, ...], list[Part]] = {}

    def claim(
        self,
        part: Part,
        when: Intervals,
        topic: str,
        text: str,
        *,
        why: str,
        advice: str,
        assumption: str | None,
        without: Mapping[str, Intervals] | Callable[[Part], Intervals] | None = None,
        shared: bool = False,
        also: Sequence[str] = (),
        of_host: bool = False,
    ) -> bool:
        """Add a finding for the unclaimed part of some time; return whether that is long enough.

        Args:
            part: the place of the finding.
            when: the time that it explains.
            topic: its kind.
            text: its sentence; ``{seconds}`` stands for its seconds.
            why: its evidence.
            advice: what to try.
            assumption: what the estimate of the gain assumes; None: no gain is computed.
            without: by process, the time that it would not spend without the cause; as a function: of what each process did
                in the region of the part and below, because a change of the code changes all of them; None: that of the finding.
            shared: whether the cause lies in no single process.
            also: other processes in which it lies.
            of_host: the cause keeps nothing waiting while the device of its process works.
        """
        if of_host and part.process:
            when = when - self.facts.device_works(part.process)
        free = self.free & when
        seconds = free.total / 1e9
        if not len(free) or seconds < self.least:
            return False
        self.free -= free
        longest = max(free.pairs(), key=lambda pair: pair[1] - pair[0])
        if callable(without):
            if self.facts.lacks_regions(part):
                assumption = None
            without = {each.process: without(each) for each in self.facts.alike(part)}
        if without and of_host:
            without = {label: of - self.facts.device_works(label) for label, of in without.items()}
        without = without or {part.process: free}
        for label, of in without.items():
            self.explained[label] = self.explained.get(label, EMPTY) | of
        saves = None if assumption is None else self._gain(without, seconds)
        self.found.append(
            Finding(
                text.replace("{seconds}", seconds_text(seconds)),
                topic,
                seconds,
                process=None if shared else part.process,
                role=part.role,
                region=part.name,
                start=self.facts.at(longest[0]),
                end=self.facts.at(longest[1]),
                stretches=self._stretches(free),
                why=why,
                advice=advice,
                saves=saves,
                assumption=None if saves is None else assumption,
                also=[*also],
            )
        )
        return True

    def _stretches(self, when: Intervals) -> list[tuple[float, float]]:
        """Return the longest intervals as (start, seconds), in order."""
        longest = sorted(when.pairs(), key=lambda pair: pair[0] - pair[1])[:MOST_STRETCHES]
        return [(self.facts.at(begin), (end - begin) / 1e9) for begin, end in sorted(longest)]

    def _gain(self, without: Mapping[str, Intervals], seconds: float) -> float | None:
        """Return how much shorter the step would be, at most the seconds of the finding; None: not known."""
        gain = self.facts.graph.gain(without)
        return None if gain is None else min(max(gain / 1e9, 0.0), seconds)

    def short(self, process: str, text: str, *, advice: str) -> None:
        """Say that the step is too short to be judged; nothing is claimed any more."""
        self.free = EMPTY
        self.found.append(Finding(text, "short", process=process, advice=advice))

    def book(self, when: Intervals) -> None:
        """Reserve time of the recording itself, so that no finding claims it."""
        self.free -= when

    def merged(self, key: Callable[[Part], tuple[str, tuple[str, ...]] | None], *kinds: str) -> list[Part]:
        """Return parts that have one place together, the longest first.

        Args:
            key: returns the process and the region that a part belongs to; None: it is left out.
            kinds: of the path.
        """
        found: dict[tuple[str, str | None, tuple[str, ...]], Intervals] = {}
        for part in self._parts(kinds):
            place = key(part)
            if place is not None:
                whole = (place[0], part.role, place[1])
                found[whole] = found.get(whole, EMPTY) | part.when
        parts = (
            Part(*each, when & self.free, when - self.free, self._is_of_others(each[0]))
            for each, when in found.items()
        )
        return sorted(parts, key=lambda part: -part.when.total)

    def parts(self, *kinds: str) -> Iterator[Part]:
        """Yield the parts of the path of some kinds, the longest first, with their unclaimed time."""
        for part in self._parts(kinds):
            free = part.when & self.free
            if free.total >= self.least * 1e9:
                yield replace(part, when=free, claimed=part.when - free)

    def _is_of_others(self, process: str) -> bool:
        """Return whether stepprof did not record a process; False also for the parts of several."""
        timeline = self.facts.timelines.get(process)
        return timeline is not None and timeline.process.origin.kind == "trace"

    def _parts(self, kinds: tuple[str, ...]) -> list[Part]:
        """Return the parts of the path of some kinds, the longest first."""
        if kinds not in self._whole:
            found = defaultdict[tuple[str, "str | None", tuple[str, ...]], list[tuple[int, int]]](list)
            for each in self.facts.path:
                if each.kind in kinds:
                    found[each.process, each.role, each.region].append((each.start, each.end))
            parts = [
                Part(*key, Intervals.of(of), of_others=self._is_of_others(key[0]))
                for key, of in found.items()
            ]
            self._whole[kinds] = sorted(parts, key=lambda part: -part.when.total)
        return self._whole[kinds]


def share_of(when: Intervals, share: float) -> Intervals:
    """Return the last part of each interval, as a share of its length.

    >>> share_of(Intervals.union([0, 10], [4, 20]), 0.5).pairs()
    [(2, 4), (15, 20)]
    """
    length = ((when.end - when.start) * min(max(share, 0.0), 1.0)).astype(np.int64)
    return Intervals.union(when.end - length, when.end)


def last_part(when: Intervals, nanoseconds: int) -> Intervals:
    """Return the last nanoseconds of some intervals."""
    kept = EMPTY
    for low, high in reversed(when.pairs()):
        if nanoseconds <= 0:
            break
        begin = max(low, high - nanoseconds)
        kept |= Intervals.one(begin, high)
        nanoseconds -= high - begin
    return kept

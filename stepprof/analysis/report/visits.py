"""Number the visits of each step over all processes of a run.

A step number may be used again, in each epoch or by a restarted job. Then it is another step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from stepprof.run.occurrences import Span
from stepprof.run.summary import Rank

StepWindow = tuple[int, int, int, "str | None"]
"""Start, end, step and role of a window."""


@dataclass(slots=True)
class _Rank:
    """The visits of a rank's processes so far, and the last time at which its last process is known
    to have lived.
    """

    end: int
    before: Counter[int] = field(default_factory=Counter)
    """For each step, the visits by processes that ended before the last one started."""
    last: Counter[int] = field(default_factory=Counter)


class Numbering:
    """Numbers visits process by process. The processes of a rank are numbered in the order in which
    they lived.
    """

    def __init__(self) -> None:
        self._ranks: dict[Rank, _Rank] = {}
        self._later: dict[int, list[int]] = {}
        self._before: Counter[int] = Counter()

    def begin(self, rank: Rank, windows: Iterable[StepWindow]) -> None:
        """Continue with a process that has these windows."""
        ordered = sorted(windows, key=lambda window: window[:2])
        self._later = later_visits(ordered)
        visits = Counter(dict.fromkeys((step for _, _, step, _ in ordered), 1))
        visits.update({step: len(begins) for step, begins in self._later.items()})
        life: Span = (ordered[0][0], max(end for _, end, _, _ in ordered)) if ordered else (0, 0)
        known = self._ranks.get(rank)
        if known is None:
            known = self._ranks[rank] = _Rank(life[1])
        elif ordered and life[0] > known.end:  # it started after the process before: the job was restarted
            known.before += known.last
            known.last = Counter()
        known.end = max(known.end, life[1])
        known.last |= visits
        self._before = known.before

    def number(self, step: int, start: int) -> int:
        """Return the number of the visit of a step that starts at a time, from 0."""
        later = self._later.get(step)
        return self._before[step] + (bisect_right(later, start) if later else 0)

    def unequal(self) -> set[int]:
        """Return the steps that some ranks visited more often than others. Their visits cannot be
        distinguished by number.
        """
        counts: dict[int, set[int]] = defaultdict(set)
        for rank in self._ranks.values():
            for step, count in (rank.before + rank.last).items():
                counts[step].add(count)
        return {step for step, of in counts.items() if len(of) > 1}


def later_visits(ordered: Iterable[StepWindow]) -> dict[int, list[int]]:
    """Return the start of each visit but the first, for the steps that one process visited several
    times.

    A role visits a step again when it enters it again after another step of the role, and none of these windows overlap.
    """
    later: dict[int, list[int]] = {}
    ends: dict[int, dict[str | None, int]] = {}
    before: dict[str | None, StepWindow] = {}
    for window in ordered:
        begin, end, step, role = window
        of = ends.setdefault(step, {})
        other = before.get(role, window)
        if role in of and other[2] != step and other[0] >= of[role] and other[1] <= begin:
            later.setdefault(step, []).append(begin)
            of.clear()
        of[role] = max(of.get(role, end), end)
        before[role] = window
    return later

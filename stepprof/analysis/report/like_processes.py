"""Find the processes of two steps that can be compared: the same process with the same windows.

A process is the same in both steps if its rank is, or its engine and its worker in it. Its label is not
enough: that has its role, if it has only one. Processes that each run names anew are paired if there are
equally many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from stepprof.analysis.report.schema import Problem, ProcessTime, RecordedProcess, Report
from stepprof.formatting import ranges

MOST_REASONS = 4
_Key = object
_Sides = tuple[Mapping[_Key, RecordedProcess], Mapping[_Key, RecordedProcess]]


class Likes:
    """The processes that two steps have in common.

    Args:
        a: the report of the step before.
        b: the report of the step after.
    """

    def __init__(self, a: Report, b: Report) -> None:
        sides = _paired(_by_key(a), _by_key(b))
        self._keys = tuple({each.label: key for key, each in of.items()} for of in sides)
        self._unlike: set[_Key] = {*(sides[0].keys() ^ sides[1].keys())}
        self._unfollowed = {*self._unlike}
        self.problems = [*_absent(*sides)]
        """What keeps processes from being compared."""
        self.is_whole = not self._unlike
        """Whether both steps have the same processes, with all of their windows."""
        self.unfollowed_ranks: set[int | str | None] = set()
        """The ranks of which a part is missing in A or B."""
        reasons, without = [], []
        unknown = False
        for key in sides[0].keys() & sides[1].keys():
            one, other = sides[0][key], sides[1][key]
            early = [name for name, each in (("A", one), ("B", other)) if not each.ended]
            if early:
                self._unlike.add(key)
                self.problems.append(
                    Problem(
                        None,
                        f"{one.label} is not compared: the end of a window came early, or is not known, in {' and '.join(early)}",
                    )
                )
            if early or any(each.whole is False and not each.spans for each in (one, other)):
                self._unfollowed.add(key)
                self.is_whole = False
                self.unfollowed_ranks.add(one.rank)
            elif one.spans != other.spans:  # a trace does not state the roles of its regions
                self._unfollowed.add(key)
                without.append(one.label)
            reason = _why_not(one, other)
            if reason is not None:
                self._unlike.add(key)
                reasons.append(f"{one.label}: {reason}")
            unknown = unknown or any(each.captures and each.whole is None for each in (one, other))
        if reasons:
            more = f", and {len(reasons) - MOST_REASONS} more" if len(reasons) > MOST_REASONS else ""
            shown = "; ".join(sorted(reasons)[:MOST_REASONS])
            self.problems.append(Problem(None, f"operators and kernels are not compared: {shown}{more}"))
        if without:
            shown = ranges(without, MOST_REASONS)
            problem = f"roles and regions of {shown} are not compared: A or B alone has its spans"
            self.problems.append(Problem(None, problem))
        if unknown:
            problem = (
                "stepprof did not record these traces: whether both sides did the same work is not known"
            )
            self.problems.append(Problem(None, problem))

    def followed(self, a: Sequence[ProcessTime], b: Sequence[ProcessTime]) -> list[list[ProcessTime]]:
        """Return the times of windows or regions in the processes whose times are known in both steps."""
        return self._among((a, b), self._unfollowed)

    def captured(self, a: Sequence[ProcessTime], b: Sequence[ProcessTime]) -> list[list[ProcessTime]]:
        """Return the times of operators or kernels in the processes whose captures cover the same windows."""
        return self._among((a, b), self._unlike)

    def _among(
        self, sides: Sequence[Sequence[ProcessTime]], left_out: Collection[_Key]
    ) -> list[list[ProcessTime]]:
        return [
            [each for each in of if keys.get(each.label) not in left_out]
            for of, keys in zip(sides, self._keys, strict=True)
        ]


def _by_key(report: Report) -> dict[_Key, RecordedProcess]:
    """Return the processes by what identifies them in another step too."""
    found: dict[_Key, RecordedProcess] = {}
    times: Counter[_Key] = Counter()
    for process in report.processes:
        if process.kind == "engine":
            key: _Key = ("engine", process.role, process.replica, process.rank)
        elif isinstance(process.rank, int) or process.rank == "driver":
            key = ("rank", process.rank)
        else:
            key = ("name", process.label)
        times[key] += 1
        found[key, times[key]] = process
    return found


def _paired(a: Mapping[_Key, RecordedProcess], b: Mapping[_Key, RecordedProcess]) -> _Sides:
    """Return the processes with common keys for those that only one side has by name."""
    rest = [
        [key for key, each in one.items() if key not in other and _is_named(each)]
        for one, other in ((a, b), (b, a))
    ]
    if len(rest[0]) != len(rest[1]):
        return a, b
    places = [{key: ("pair", place) for place, key in enumerate(of)} for of in rest]
    first, second = (
        {of.get(key, key): each for key, each in side.items()}
        for side, of in zip((a, b), places, strict=True)
    )
    return first, second


def _is_named(process: RecordedProcess) -> bool:
    return process.kind != "engine" and not isinstance(process.rank, int) and process.rank != "driver"


def _absent(a: Mapping[_Key, RecordedProcess], b: Mapping[_Key, RecordedProcess]) -> Iterator[Problem]:
    """Yield the processes that one step lacks."""
    for name, mine, others in (("A", a, b), ("B", b, a)):
        lacking = [others[key] for key in others if key not in mine]
        ranks = [each.rank for each in lacking if isinstance(each.rank, int) and each.kind != "engine"]
        names = [each.label for each in lacking if not isinstance(each.rank, int) or each.kind == "engine"]
        if lacking and mine:
            texts = [f"rank{'s' * (len(ranks) > 1)} {ranges(ranks)}"] * bool(ranks) + names[:MOST_REASONS]
            more = f" and {len(names) - MOST_REASONS} more" if len(names) > MOST_REASONS else ""
            yield Problem(None, f"{name} has no {', '.join(texts)}{more}: what these did is not compared")


def _why_not(a: RecordedProcess, b: RecordedProcess) -> str | None:
    """Return why the captures of a process cannot be compared; None: they can, or there are none."""
    if not a.captures and not b.captures:
        return None
    if a.captures != b.captures:
        windows = [", ".join(each.captures) or "nothing" for each in (a, b)]
        return f"A recorded {windows[0]}, and B {windows[1]}"
    if a.options is not None and b.options is not None and a.options != b.options:
        own = [
            ", ".join(option for option in one.options or () if option not in (other.options or ()))
            for one, other in ((a, b), (b, a))
        ]
        if all(own):
            text = f"A was recorded with {own[0]}, and B with {own[1]}"
        else:
            with_it, without = ("A", "B") if own[0] else ("B", "A")
            text = f"{with_it} was recorded with {own[0] or own[1]}, and {without} without"
        return f"{text}, which can also change how long the step takes"
    short = [name for name, each in (("A", a), ("B", b)) if each.whole is False]
    return f"its capture does not cover its window in {' and '.join(short)}" if short else None

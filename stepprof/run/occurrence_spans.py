"""Find the spans of one occurrence of a step, in the files of one process.

All spans of a step have its number, whichever visit they are of. The windows of a process show when
it visited the step, and the recorded windows show which visit is meant.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from stepprof.formatting import counted
from stepprof.run.manifest import read_step
from stepprof.run.occurrences import Span, choose, gap, occurrence_note, split
from stepprof.run.span_lines import parse_span, span_lines
from stepprof.run.spans import files_by_rank

SpanWindow = tuple["str | None", int, int]
"""The role of a window, its start and its end."""
ALWAYS = (-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class Portion:
    """The recorded occurrences of a step on the clock of one process, and the selected one. Small, to
    be sent to other processes.
    """

    spans: tuple[Span | None, ...]
    """The times of each occurrence; None: this process took no part."""
    index: int
    is_own: bool = False
    """Whether the process itself recorded a window in the selected one."""
    comparable: bool = True
    """Whether the times are on the clock of the process. If not, visits are matched by their order."""

    def bounds(self, visits: Sequence[Span]) -> Span | None:
        """Return the interval in which spans of the occurrence begin; None: unknown.

        Args:
            visits: the visits of the process to the step.
        """
        if not visits and self.comparable and self.spans[self.index] is not None:
            return self._between()
        if not self.comparable and not self._is_in_order(visits):
            return None
        chosen = self.chosen(visits)
        if chosen is None:
            return (0, 0)
        return (
            visits[chosen][0] if chosen else ALWAYS[0],
            visits[chosen + 1][0] if chosen + 1 < len(visits) else ALWAYS[1],
        )

    def chosen(self, visits: Sequence[Span]) -> int | None:
        """Return the index of the visit in which the occurrence was recorded; None: none, or unknown."""
        if not self.comparable:
            return self.index if self._is_in_order(visits) else None
        wanted = self.spans[self.index]
        if wanted is None:
            return None
        mine = [number for number, visit in enumerate(visits) if self._nearest(visit) == self.index]
        return min(mine, key=lambda number: gap(wanted, visits[number]), default=None)

    def since(self, time: int, visit: Span) -> int:
        """Convert a time in a visit to the time since the start of its occurrence."""
        wanted = self.spans[self.index]
        return time - (visit if wanted is None or not self.comparable else wanted)[0]

    def distance(self, visit: Span) -> int:
        """Return the distance of a visit from the recorded times; 0 if no clock is comparable."""
        wanted = self.spans[self.index]
        return gap(wanted, visit) if self.comparable and wanted is not None else 0

    def _is_in_order(self, visits: Sequence[Span]) -> bool:
        """Return whether the process visited the step as often as it was recorded, with the same pauses."""
        if len(visits) != len(self.spans):
            return False
        pairs = [(span, visit) for span, visit in zip(self.spans, visits, strict=True) if span is not None]
        if len(pairs) < 2:
            return True
        shifts = [visit[0] - span[0] for span, visit in pairs]
        pauses = [later[0] - one[1] for times in zip(*pairs, strict=True) for one, later in pairwise(times)]
        return bool(max(shifts) - min(shifts) <= min(pauses))

    def _nearest(self, visit: Span) -> int:
        known = [(gap(span, visit), number) for number, span in enumerate(self.spans) if span is not None]
        return min(known)[1]

    def _between(self) -> Span:
        """Return the interval from half-way after the previous occurrence to half-way before the next one."""
        edges = [span for span in self.spans if span is not None]
        at = edges.index(self.spans[self.index])  # type: ignore[arg-type]
        begin = ALWAYS[0] if at == 0 else (edges[at - 1][1] + edges[at][0]) // 2
        end = ALWAYS[1] if at + 1 == len(edges) else (edges[at][1] + edges[at + 1][0]) // 2
        return begin, end


def own_clock(window: Mapping[str, Any]) -> tuple[object, int]:
    """Return the clock of a window's host, for a window whose clock was compared with no other."""
    return window["host"], 0


class Portions:
    """Gives each process its portion.

    Args:
        occurrences: the windows of each occurrence.
        index: the selected one.
        clock_of: returns the common clock of a window, and how far its own clock is ahead of it.
    """

    def __init__(
        self,
        occurrences: Sequence[Iterable[Mapping[str, Any]]],
        index: int,
        clock_of: Callable[[Mapping[str, Any]], tuple[object, int]] = own_clock,
    ) -> None:
        def none() -> list[Span | None]:
            return [None] * len(occurrences)

        self._index = index
        self._own: dict[object, list[Span | None]] = defaultdict(none)
        self._by_clock: dict[object, list[Span | None]] = defaultdict(none)
        for number, windows in enumerate(occurrences):
            for window in windows:
                begin, end = window["start_unix_ns"], window["end_unix_ns"]
                if begin is None:
                    continue
                span = (int(begin), int(begin if end is None else end))
                own = self._own[_process(window)]
                own[number] = _hull(own[number], span)
                clock, offset = clock_of(window)
                common = self._by_clock[clock]
                common[number] = _hull(common[number], (span[0] - offset, span[1] - offset))

    def of(
        self, host: object, pid: object, rank: object, clock: object, offset_ns: int = 0
    ) -> Portion | None:
        """Return the portion of a process; None: no window has a time.

        Args:
            host: its host.
            pid: its process id there.
            rank: its rank.
            clock: the common clock of its host; the host itself if its clock was compared with no other.
            offset_ns: how far its clock is ahead of the common one.
        """
        if not self._own:
            return None
        if (own := self._own.get((host, pid, rank))) is not None:
            return Portion(tuple(own), self._index, is_own=own[self._index] is not None)
        common = self._by_clock.get(clock)
        if common is not None and None not in common:
            moved = [(begin + offset_ns, end + offset_ns) for begin, end in filter(None, common)]
            return Portion(tuple(moved), self._index)
        whole = [spans for spans in self._by_clock.values() if None not in spans]
        spans = whole[0] if whole else [None] * len(self._own[next(iter(self._own))])
        return Portion(tuple(spans), self._index, comparable=False)


@dataclass(frozen=True, slots=True)
class ReadStep:
    """One occurrence of a step."""

    manifest: dict[str, Any]
    portions: Portions
    """Which spans belong to it."""
    number: int
    count: int
    """Number of recorded occurrences."""
    notes: list[str]
    """Notes that there are others."""


def read_occurrence(path: Path, step: int, wanted: int | None) -> ReadStep:
    """Read one occurrence of a step; None: the last one. Raise ConfigError if it is not recorded."""
    manifests = split(read_step(path, step))
    number = choose(len(manifests), wanted, step)
    portions = Portions([manifest["windows"] for manifest in manifests], number - 1)
    return ReadStep(
        manifests[number - 1], portions, number, len(manifests), occurrence_note(len(manifests), number, step)
    )


def visits_of(windows: Iterable[SpanWindow], others: Callable[[], Iterable[SpanWindow]]) -> list[Span]:
    """Return the visits of a process to a step, each from the start of its first window to the end of
    its last.

    Args:
        windows: the windows of the step.
        others: returns the windows of all other steps; called only if a role has several windows of this one.
    """
    ordered = sorted(windows, key=lambda window: window[1])
    if max(Counter(role for role, _, _ in ordered).values(), default=1) == 1:
        return [(ordered[0][1], max(end for _, _, end in ordered))] if ordered else []
    between: dict[str | None, list[Span]] = defaultdict(list)
    for role, begin, end in others():
        between[role].append((begin, end))
    for spans in between.values():
        spans.sort()
    return list(_visits(ordered, between))


def within(
    spans: Iterable[dict[str, Any]],
    portions: Portions,
    folder: Path,
    step: int,
    findings: list[dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Yield the spans of the selected occurrence of a step.

    Args:
        spans: the spans of the step, those of one process together.
        portions: the portions of its occurrences.
        folder: the folder of the span files.
        step: the step.
        findings: receives {file, problem} for each process whose spans are omitted, because they may be of another occurrence.
    """
    files: dict[int | str, list[Path]] = {}

    def others(rank: Any) -> Iterator[SpanWindow]:
        files.update(files or files_by_rank(folder))
        return other_windows(files.get(rank, ()), step)

    for rank, of_rank in groupby(spans, lambda span: span["rank"]):
        each = []
        for process, group in groupby(of_rank, _process):
            of = list(group)
            portion = portions.of(*process, clock=process[0])
            if portion is None:
                yield from of
            else:
                windows = [window for span in of if (window := window_of(span)) is not None]
                each.append((of, windows, partial(others, rank), portion))
        left_out = (
            superseded([(windows, others_of, portion) for _, windows, others_of, portion in each])
            if len(each) > 1
            else ()
        )
        for number, (of, windows, others_of, portion) in enumerate(each):
            visits = visits_of(windows, others_of)
            bounds = portion.bounds(visits)
            if bounds is None:
                described = f"{folder.name}/rank-{rank} (pid {of[0]['pid']} on {of[0]['host']})"
                findings.append(
                    {"file": described, "problem": unclear(step, len(visits), len(portion.spans))}
                )
            elif number not in left_out:
                begin, end = bounds
                yield from (span for span in of if type(at := span.get("start")) is int and begin <= at < end)


def superseded(
    processes: Sequence[tuple[Sequence[SpanWindow], Callable[[], Iterable[SpanWindow]], Portion]],
) -> set[int]:
    """Return the processes of one rank that visited the step at another time, such as those of a job
    before its restart. A process that recorded a window in the selected occurrence did not.

    Of several processes with a window of the same role, one after another, the one nearest in time
    to the recorded times is selected.

    Args:
        processes: for each its windows in the step, a function that returns those of other steps, and its portion.
    """
    meant: list[tuple[set[str | None], Span]] = []
    found: list[tuple[int, int, set[str | None], Span]] = []
    for number, (windows, others_of, portion) in enumerate(processes):
        visits = visits_of(windows, others_of)
        chosen = portion.chosen(visits)
        if chosen is not None:
            visit = visits[chosen]
            roles = {role for role, begin, _ in windows if visit[0] <= begin <= visit[1]}
            since = portion.since(visit[0], visit), portion.since(visit[1], visit)
            found.append((portion.distance(visit), number, roles, since))
    left_out = set()
    for _, number, roles, visit in sorted(found, key=lambda each: each[:2]):
        is_own = processes[number][2].is_own
        if not is_own and any(roles & others and gap(visit, other) > 0 for others, other in meant):
            left_out.add(number)
        else:
            meant.append((roles, visit))
    return left_out


def unclear(step: int, visits: int, recorded: int) -> str:
    """Return the finding about a process whose spans may be of any occurrence.

    Args:
        step: the step.
        visits: number of visits of the process.
        recorded: number of recorded occurrences.
    """
    often = {0: "has no window of it", 1: "visited it once"}.get(visits, f"visited it {visits} times")
    were = "was" if recorded == 1 else "were"
    return (
        f"spans of step {step} left out: the process {often}, {counted(recorded, 'occurrence')} of it {were} recorded, "
        "and no clock comparison shows which visit belongs to which"
    )


def windows_in(paths: Iterable[Path], step: int) -> Iterator[SpanWindow]:
    """Yield the windows of a step."""
    return _windows(paths, partial(span_lines, step=step), lambda number: number == step)


def other_windows(paths: Iterable[Path], step: int) -> Iterator[SpanWindow]:
    """Yield the windows of all other steps in the span files of a process, without damaged lines."""
    return _windows(paths, partial(span_lines, windows=True), lambda number: number != step)


def _windows(
    paths: Iterable[Path], lines: Callable[[Path], Iterator[bytes]], is_wanted: Callable[[object], bool]
) -> Iterator[SpanWindow]:
    for path in paths:
        with contextlib.suppress(OSError):
            for span in filter(None, map(parse_span, lines(path))):
                window = window_of(span)
                if window is not None and is_wanted(span.get("step")):
                    yield window


def window_of(span: Mapping[str, Any]) -> SpanWindow | None:
    """Return the role and the times of a window's span; None for any other span."""
    role, begin, duration = span.get("role"), span.get("start"), span.get("dur")
    if span.get("kind") != "window" or type(begin) is not int or type(duration) is not int:
        return None
    return role if isinstance(role, str) else None, begin, begin + duration


def _visits(ordered: Iterable[SpanWindow], between: Mapping[str | None, Sequence[Span]]) -> Iterator[Span]:
    visit: Span | None = None
    last: dict[str | None, int] = {}
    for role, begin, end in ordered:
        if role in last:
            others = between.get(role, ())
            at = bisect_left(others, (last[role], 0))
            if visit is not None and at < len(others) and others[at][1] <= begin:
                yield visit
                visit, last = None, {}
        last[role] = max(last.get(role, end), end)
        visit = _hull(visit, (begin, end))
    if visit is not None:
        yield visit


def _hull(one: Span | None, other: Span) -> Span:
    return other if one is None else (min(one[0], other[0]), max(one[1], other[1]))


def _process(entry: Mapping[str, Any]) -> tuple[object, object, object]:
    return entry["host"], entry["pid"], entry["rank"]

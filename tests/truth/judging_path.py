"""Judge the critical path and the slack of a report by the waits of the world that it is about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from stepprof.analysis.report.schema import PathSegment, Report, Slack
from truth.judging import name_of
from truth.scheduling import Piece, Ran, run
from truth.worlds import COMPUTING, HELD, Action, Close, Name, Programs, Signal, Spend, World

__all__ = ["false_path", "false_slack"]

UNSURE = 0.02
"""How much of the step the path may assign to other processes."""
LATE = 0.002
"""How far slack may be off [s], as clocks are."""
SHARE = 0.01
"""The same, as a share of the step."""
NEARLY = 1_000_000
"""A process that came less than this earlier than the last one may be taken for it [ns]."""

Stretch = tuple[int, int]


def false_path(ran: Ran, report: Report) -> list[str]:
    """Return the processes that a path names and that were not on it."""
    true = _path(ran)
    wrong: dict[str, float] = defaultdict(float)
    for each in report.path:
        name = name_of(each.process)
        if each.kind in ("work", "engine", "handover", "outside") and name is not None:
            wrong[each.process] += each.seconds - _inside(each, ran.start, [*true[name], *true[HELD]])
    gaps = report.seconds - sum(each.seconds for each in report.path)
    found = [
        f"the path has {of} for {seconds:.3f} s too long"
        for of, seconds in wrong.items()
        if seconds > UNSURE * report.seconds
    ]
    return [*found, *([f"the path lacks {gaps} s of the step"] if abs(gaps) > LATE else [])]


def _inside(segment: PathSegment, start: int, true: Sequence[Stretch]) -> float:
    low = start + round(segment.start * 1e9)
    high = low + round(segment.seconds * 1e9)
    return sum(max(0, min(high, end) - max(low, begin)) for begin, end in true) / 1e9


def _path(ran: Ran) -> dict[Name, list[Stretch]]:
    """Return when each process was on a path that is nearly as long as the longest."""
    pieces: dict[Name, list[tuple[int, int, frozenset[Name]]]] = {
        name: sorted(
            [(each.start, each.end, _near(each)) for each in line.pieces]
            + [(each.start, each.end, frozenset()) for each in line.forwards]
        )
        for name, line in ran.lines.items()
    }
    found: dict[Name, list[Stretch]] = defaultdict(list)
    last = max(ran.lines, key=lambda name: max((w.end for w in ran.lines[name].windows), default=0))
    open_ones: list[tuple[Name, int]] = [(last, ran.end)]
    seen: set[tuple[Name, int]] = set()
    while open_ones:
        name, time = open_ones.pop()
        if (name, time) in seen:
            continue
        seen.add((name, time))
        before = [each for each in pieces[name] if each[0] < time]
        if not before:
            found[name].append((ran.start, time))
            continue
        start, end, awaited = before[-1]
        if end < time:  # the recording takes its time, and others wait for that
            found[HELD].append((end, time))
        if awaited:
            open_ones += [(other, min(end, time)) for other in awaited if other != name]
        if not awaited or name in awaited:
            found[name].append((start, min(end, time)))
            open_ones.append((name, start))
    return found


def _near(piece: Piece) -> frozenset[Name]:
    """Return the processes that came last, or nearly so, in a wait."""
    return frozenset(name for name, before in piece.awaited.items() if before < NEARLY)


def false_slack(world: World, ran: Ran, report: Report) -> list[str]:
    """Return the processes that could have worked for more or less time than the report says."""
    programs = world.steps[world.recorded]
    found = []
    for each in report.slack:
        name = name_of(each.process)
        if name is None:
            continue
        within = LATE + SHARE * report.seconds + _held(ran)
        less = _later(programs, ran, name, each, each.seconds - within)
        more = _later(programs, ran, name, each, each.seconds + within)
        if less > 0 or more <= 0:
            found.append(f"slack: {each} is too {'long' if less > 0 else 'short'}")
    return found


def _held(ran: Ran) -> float:
    """Return the longest time that the recording took around a window [s]: others may wait for that."""
    windows = (window for line in ran.lines.values() for window in line.windows)
    return max(window.arm + window.begin + window.stall for window in windows) / 1e9


def _later(programs: Programs, ran: Ran, name: Name, slack: Slack, seconds: float) -> int:
    """Return how much later the step would end if a process worked longer in a role: first where it waits, then at the end."""
    left = round(seconds * 1e9)
    if left <= 0:
        return 0
    program = programs[name]
    added: dict[int, int] = {}
    for at, waited, role in ran.lines[name].waited:
        if role == slack.role:
            added[at] = min(waited, left)
            left -= added[at]
    ends = Signal if isinstance(name, str) and name.startswith("engine") else Close
    added[
        max(at for at, each in enumerate(program) if isinstance(each, ends) and _in(program, at, slack.role))
    ] = left
    longer: list[Action] = []
    for at, action in enumerate(program):
        longer += [*([Spend(added[at], COMPUTING)] if at in added else []), action]
    return run({**programs, name: longer}, ran.begun).end - ran.end


def _in(program: Sequence[Action], at: int, role: str | None) -> bool:
    """Return whether an action ends a window of a role; the signal of an engine ends its role."""
    opened = [each for each in program[:at] if hasattr(each, "role")]
    return not opened or opened[-1].role == role

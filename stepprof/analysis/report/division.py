"""Divide the step into parts: its roles, with the outermost regions of the time in no role; or those regions alone where no role divides it.

The title, the bars, the legends and the tables of the parts take their figures from here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stepprof.analysis.report.critical_path import Segment
from stepprof.analysis.report.digest import Window
from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.other_tools import UNNAMED
from stepprof.analysis.report.processes import Process, union
from stepprof.analysis.report.schema import Part
from stepprof.analysis.report.timelines import Stretch

NEARLY_ALL = 0.95
"""A single role with at least this share of the step does not divide it."""
WORTH_SAYING = 0.01
"""A part with a smaller share of the step is not stated, and a region not made a part."""
MOST_PARTS = 8
MOST_STRETCHES = 200
LEAST_REST = 0.2
"""Regions of the time in no role are parts if it has at least this share of the critical path."""
FORWARD_STEPS = "forward steps"
"""The part of a trace of an engine that they cover."""
NO_FORWARD_STEP = "no forward step"
"""The rest of such a trace."""
NO_WORK = {"recording": "held up by the profiler", "outside": "in no window"}
"""The kinds of the path in which no process works, and the names of these parts."""

_Key = tuple["str | None", "str | None"]
"""Role and outermost region; the second None: the role as a whole."""


@dataclass(frozen=True, slots=True)
class Division:
    """The parts of a step in the order in which they begin, and the number of the part of each segment of the path."""

    parts: list[Part]
    of_path: list[int]


def divide(
    path: Sequence[Segment],
    processes: Sequence[Process],
    stretches: Iterable[Sequence[Stretch]],
    bounds: tuple[int, int],
) -> Division:
    """Divide a step.

    Args:
        path: its critical path.
        processes: of one clock.
        stretches: the innermost window or region at each moment, of each process.
        bounds: the start and the end of the step [ns].
    """
    total = bounds[1] - bounds[0]
    if total <= 0:
        return Division([], [0] * len(path))
    all_roles = roles_of(processes)
    roles: dict[_Key, Intervals] = {
        (role, None): when for role, when in all_roles.items() if role is not None
    }
    alone = len(roles) == 1 and all(when.total >= NEARLY_ALL * total for when in roles.values())
    apart = [each for each in path if each.role is None and each.kind not in NO_WORK]
    chosen: dict[_Key, Intervals] = {}
    if alone or not roles:
        chosen = _outermost(path, stretches, bounds)
    by_region = bool(chosen)
    if not chosen and roles:
        has_regions = not alone and _total(apart) >= LEAST_REST * total
        chosen = roles | (_outermost(apart, stretches, bounds) if has_regions else {})
    elif not chosen and len(whole := Intervals.all_of(all_roles.values())):
        chosen = {(None, None): whole}
    names = _names(chosen)
    of_others = all(process.origin.kind == "trace" for process in processes)
    numbers: dict[tuple[_Key | None, str], int] = {(key, names[key]): at for at, key in enumerate(chosen)}
    without_steps = NO_FORWARD_STEP if any(each.kind == "engine" for each in path) else UNNAMED
    spent: dict[int, int] = defaultdict(int)
    of_path = []
    for segment in path:
        part = _part_of(segment, names, by_region)
        if of_others and segment.kind == "engine":
            part = None, FORWARD_STEPS
        elif of_others and part[1] in (NO_WORK["outside"], "no region", "no role"):
            part = None, without_steps
        number = numbers.setdefault(part, len(numbers))
        spent[number] += segment.end - segment.start
        of_path.append(number)
    parts = [
        _made(key, name, spent[number], None if key is None else chosen.get(key), bounds)
        for (key, name), number in numbers.items()
    ]
    return Division(parts, of_path)


def stated(parts: Sequence[Part], most: int) -> list[Part]:
    """Return the parts that the step waited for longest, without short ones."""
    worth = [part for part in parts if (part.share or 0.0) >= WORTH_SAYING]
    return sorted(worth, key=lambda part: -(part.seconds or 0.0))[:most]


def roles_of(processes: Sequence[Process]) -> dict[str | None, Intervals]:
    """Return when any process was in each role, in the order in which they begin.

    A window without a known end counts as far as its capture or its regions show it, if the role has one with a known end.
    """
    found: dict[str | None, list[Window]] = defaultdict(list)
    windows = [window for process in processes for window in process.windows]
    windows += [window for process in processes if process.open_ended() for window in _of_regions(process)]
    for window in sorted(windows, key=lambda window: window.start):
        found[window.role].append(window)
    return {role: union(of) for role, of in found.items() if any(window.ends for window in of)}


def _of_regions(process: Process) -> Iterator[Window]:
    """Yield the time in which regions show the role of a process."""
    for nest in (digest.nest for digest in process.digests):
        for start, end, place in () if nest is None else nest.stretches():
            if nest is not None:
                yield Window(nest.places[place].role, start, end, ends=False)


def _total(path: Iterable[Segment]) -> int:
    return sum(each.end - each.start for each in path)


def _outermost(
    path: Sequence[Segment], stretches: Iterable[Sequence[Stretch]], bounds: tuple[int, int]
) -> dict[_Key, Intervals]:
    """Return the longest outermost regions of some segments, and when any process was in them."""
    spent: dict[_Key, int] = defaultdict(int)
    for segment in path:
        if segment.region:
            spent[segment.role, segment.region[0]] += segment.end - segment.start
    times: dict[_Key, list[tuple[int, int]]] = {key: [] for key in spent}
    for of in stretches if times else ():
        for begin, end, role, region in of:
            if region and (role, region[0]) in times:
                times[role, region[0]].append((begin, end))
    least = WORTH_SAYING * (bounds[1] - bounds[0])
    found = {key: Intervals.of(each).clip(*bounds) for key, each in times.items()}
    worth = [key for key, when in found.items() if when.total >= least]
    longest = sorted(worth, key=lambda key: -spent[key])[:MOST_PARTS]
    return {key: found[key] for key in worth if key in longest}


def _names(keys: Iterable[_Key]) -> dict[_Key, str]:
    """Return the name of each part. A region of several roles is named with its role."""
    names = {key: key[1] or key[0] or "step" for key in keys}
    several = Counter(names.values())
    return {
        key: f"{name} ({key[0]})" if several[name] > 1 and None not in key else name
        for key, name in names.items()
    }


def _part_of(segment: Segment, chosen: Mapping[_Key, str], by_region: bool) -> tuple[_Key | None, str]:
    """Return the role or region that a segment belongs to, and its name; without one, what it is instead."""
    outer = segment.region[0] if segment.region else None
    no_work = NO_WORK.get(segment.kind)
    if no_work is None or segment.role is not None or by_region:
        for key in ((segment.role, None), (segment.role, outer)):
            if key in chosen:
                return key, chosen[key]
    if no_work is not None:
        return None, no_work
    if segment.role is not None and not by_region:
        return (segment.role, None), segment.role
    of_regions = any(region is not None for _, region in chosen)
    if outer is not None and of_regions:
        return None, "other regions"
    return None, "no region" if by_region else "no role or region" if of_regions else "no role"


def _made(key: _Key | None, name: str, spent: int, when: Intervals | None, bounds: tuple[int, int]) -> Part:
    start, total = bounds[0], bounds[1] - bounds[0]
    shown = [] if when is None else when.coarse(MOST_STRETCHES)[0].pairs()
    role, region = key or (None, None)
    return Part(
        name=name,
        role=role,
        region=region,
        seconds=spent / 1e9,
        share=spent / total,
        wall_seconds=None if when is None else when.total / 1e9,
        wall_share=None if when is None else when.total / total,
        when=[((begin - start) / 1e9, (end - begin) / 1e9) for begin, end in shown],
    )

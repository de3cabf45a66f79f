"""Choose one capture of each process, if a folder has several: torch's `schedule(repeat=2)`, or a folder for each profiled iteration."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from stepprof.analysis.report.digest import Digest

MOST_NAMED = 3
_ITERATION = re.compile(r"(?:^|[^a-z])(?:iteration|iter|step|epoch)[-_]?(\d{1,18})(?!\d)", re.IGNORECASE)
"""What frameworks call the folder or the file of one profiled iteration: `iteration_20/rank0_trace.json` of torchtitan."""
_OTHER_NUMBERS = re.compile(r"\d{9,}(?:\.\d+)?")
"""The time in a file's name."""


def last_captures(digests: Sequence[Digest], step: int | None = None) -> tuple[list[bool], str | None]:
    """Return which traces to keep, and what was left out; all of them if no process has two captures.

    Captures belong together if their names have the same iteration or, without one, if they overlap. Only traces that stepprof did not
    record are looked at.

    Args:
        digests: of all traces.
        step: a step that torch's profiler marked: keep the last capture that has it, if one has it.
    """
    groups, why = _by_name(digests), " by their names"
    if not groups:
        groups, why = _by_time(digests), ""
    if len(groups) < 2:
        return [True] * len(digests), None
    having = [number for number, group in enumerate(groups) if any(_has(digests[at], step) for at in group)]
    chosen = having[-1] if having else len(groups) - 1
    left = {at for number, group in enumerate(groups) if number != chosen for at in group}
    names = [digests[at].origin.path for at in sorted(left)]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    which = f"the last one with step {step}" if having else "the last one"
    note = (
        f"{len(groups)} captures, one after the other{why}, are of one process: this is {which}; "
        f"name another one, or two to compare (left out: {', '.join(names[:MOST_NAMED])}{more})"
    )
    return [at not in left for at in range(len(digests))], note


def _has(made: Digest, step: int | None) -> bool:
    return any(marked.number == step for marked in made.marked)


def _by_name(digests: Sequence[Digest]) -> list[list[int]]:
    """Return the captures of each iteration in the names, in order; none if no process has two iterations.

    The other parts of the name, host and rank are then those of one process.
    """
    groups: dict[int, list[int]] = defaultdict(list)
    iterations: dict[tuple[object, ...], set[int]] = defaultdict(set)
    for at, made in enumerate(digests):
        origin = made.origin
        found = _ITERATION.search(origin.path) if origin.kind == "trace" else None
        if found is None:
            continue
        rest = origin.path[: found.start(1)] + origin.path[found.end(1) :]
        groups[int(found[1])].append(at)
        iterations[_OTHER_NUMBERS.sub("", rest), origin.host, origin.rank].add(int(found[1]))
    if all(len(numbers) < 2 for numbers in iterations.values()):
        return []
    return [groups[number] for number in sorted(groups)]


def _by_time(digests: Sequence[Digest]) -> list[list[int]]:
    """Return the captures that overlap, in order; none if no process that states its rank or process id has two."""
    groups: list[list[int]] = []
    reach = None
    for at in sorted(
        (at for at, made in enumerate(digests) if made.origin.kind == "trace" and made.start is not None),
        key=lambda at: digests[at].start or 0,
    ):
        start, end = digests[at].start or 0, digests[at].end or 0
        if reach is None or start > reach:
            groups.append([])
        groups[-1].append(at)
        reach = max(end, reach or end)
    seen: dict[tuple[object, ...], set[int]] = defaultdict(set)
    for number, group in enumerate(groups):
        for at in group:
            origin = digests[at].origin
            if origin.rank is not None or origin.pid is not None:
                seen[origin.host, origin.pid, origin.rank].add(number)
    return [] if all(len(numbers) < 2 for numbers in seen.values()) else groups

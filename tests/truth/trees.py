"""Compare the region tree with the truth: total, self time and calls of each region in each
process, and the sum with the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from stepprof.analysis.report.region_rows import MOST_PROCESSES
from truth.known import Known, clipped, merged, minus, total
from truth.model import Stretch
from truth.noting import CLOSE, Notes, key_of

__all__ = ["compare_trees"]

_Path = tuple[str, ...]
_Times = dict[_Path, tuple[int, int, int]]


def compare_trees(notes: Notes, everyone: Sequence[Known]) -> None:
    """Compare the tree of each process whose regions are completely known."""
    reported = _reported(notes)
    whole = all(row.processes == len(row.per_process) for row in notes.report.tree if row.kind == "step")
    for each in everyone:
        if not whole and each.rank not in reported:
            continue  # a row lists at most 64 processes and the number of all
        rows = reported.get(each.rank, {})
        if not each.spans and (each.open or not each.traced or any(one.truncated for one in each.traced)):
            continue
        true = _tree(each)
        if not rows and (not each.windows or not each.regions):
            continue  # a trace without regions and a process without windows have no tree
        notes.equal(f"tree of {each.rank}", set(rows), set(true))
        for path in rows.keys() & true.keys():
            what = f"{'/'.join(path)} in the tree of {each.rank}"
            for name, seconds, nanoseconds in zip(("total", "self"), rows[path], true[path], strict=False):
                notes.same(f"{name} of {what}", seconds, nanoseconds, CLOSE * max(true[path][2], 1))
            notes.equal(f"calls of {what}", rows[path][2], true[path][2])


def _reported(notes: Notes) -> dict[object, dict[_Path, tuple[float, float, int]]]:
    """Return the rows of each process by path. Check that the self times of its rows add up to its step."""
    tree = notes.report.tree
    paths: list[_Path] = []
    found: dict[object, dict[_Path, tuple[float, float, int]]] = defaultdict(dict)
    for row in tree:
        paths.append((*(() if row.parent is None else paths[row.parent]), row.name))
        if paths[-1][0] != "step" or row.kind not in ("step", "role", "region"):
            continue
        for time in row.per_process:
            found[key_of(time.label)][paths[-1]] = (time.seconds, time.self_seconds, time.calls)
    found = {rank: rows for rank, rows in found.items() if ("step",) in rows or len(found) <= MOST_PROCESSES}
    for rank, rows in found.items():
        notes.same(f"self times of {rank}", sum(own for _, own, _ in rows.values()), rows["step",][0] * 1e9)
    return found


def _tree(known: Known) -> _Times:
    """Return the tree of the recorded windows and regions: by containment, without code of stepprof."""
    windows = [(start, end) for _, start, end in known.windows]
    step = merged(windows)
    items: list[tuple[int, int, str]] = [(start, end, role) for role, start, end in known.windows if role]
    items += [(known.at(each.start), known.at(each.end), each.name) for each in known.regions]
    items = [
        item for item in items if any(low <= item[0] and item[1] <= high for low, high in step) and item[2]
    ]
    items.sort(key=lambda item: (item[0], -item[1]))
    stretches: dict[_Path, list[Stretch]] = defaultdict(list)
    calls: dict[_Path, int] = defaultdict(int)
    children: dict[_Path, list[Stretch]] = defaultdict(list)
    paths: list[_Path] = []
    for at, (start, end, name) in enumerate(items):
        around = [
            number for number, other in enumerate(items[:at]) if other[0] <= start and end <= other[1] and other[1] > start
        ]  # fmt: skip
        parent: _Path = paths[around[-1]] if around else ("step",)
        path = (*parent, name)
        paths.append(path)
        stretches[path].append((start, end))
        children[parent].append((start, end))
        calls[path] += 1
    plain = sum(role is None for role, _, _ in known.windows)
    found: _Times = {
        ("step",): (total(step), total(minus(step, children["step",])), plain),
    }
    for path, each in stretches.items():
        own = total(minus(each, [part for child in children[path] for part in clipped([child], *child)]))
        found[path] = (total(each), own, calls[path])
    return found

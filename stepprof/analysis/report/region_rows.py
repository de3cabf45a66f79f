"""Combine the region trees of all processes into the rows of the report.

The spans of a process show its regions. Its traces add the operators and kernels that they called,
matched by the path of a region. Without spans, the traces show the regions too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from stepprof.analysis.report.processes import Process
from stepprof.analysis.report.region_calls import REST, STEP, UNCLEAR
from stepprof.analysis.report.region_tree import RegionTree
from stepprof.analysis.report.schema import RegionRow, RegionTime
from stepprof.analysis.report.wording import path_text

MOST_REGIONS = 300
MOST_CALLED = 8
MOST_PROCESSES = 64
_LEAST_SHARE = 0.005
OTHERS = "others"
_Key = tuple[str, str]
"""Kind and name."""
_ROOTS = ("step", "threads", "unclear")
_ORDER = {"role": 0, "region": 0, "regions": 1, "op": 2, "kernel": 3}
_CALLED = ("op", "kernel")
_REGIONS = (*_ROOTS, "role", "region")


@dataclass(slots=True)
class _Times:
    """Nanoseconds of one row in one process."""

    calls: int = 0
    total: int = 0
    own: int = 0

    def add(self, calls: int, total: int, own: int) -> None:
        self.calls += calls
        self.total += total
        self.own += own


@dataclass(slots=True)
class _Row:
    """One row with the rows inside it."""

    by_process: dict[str, _Times] = field(default_factory=dict)
    children: dict[_Key, _Row] = field(default_factory=dict)

    def child(self, kind: str, name: str) -> _Row:
        return self.children.setdefault((kind, name), _Row())

    def add(self, label: str, calls: int, total: int, own: int) -> None:
        self.by_process.setdefault(label, _Times()).add(calls, total, own)

    def typical(self, kind: str) -> float:
        """Return the nanoseconds that it is sorted by."""
        called = kind in _CALLED
        return median([each.own if called else each.total for each in self.by_process.values()] or [0])


def region_rows(processes: Sequence[Process], step_seconds: float) -> list[RegionRow]:
    """Return the tree over all processes, a parent before its children, the longest first."""
    root = _Row()
    for process in processes:
        _add(root, process)
    kept = _longest(root)
    rows: list[RegionRow] = []

    def write(row: _Row, key: _Key, parent: int | None) -> None:
        number = len(rows)
        rows.append(_made(row, *key, parent, step_seconds))
        for own, child in _ordered(row, kept):
            write(child, own, number)

    for key, row in sorted(root.children.items(), key=lambda item: _ROOTS.index(item[0][0])):
        if row.by_process:
            write(row, key, None)
    return rows


def _longest(root: _Row) -> set[int]:
    """Return the identities of the longest regions. A region counts as long as the longest one inside it."""
    found: list[tuple[float, int]] = []

    def visit(row: _Row) -> float:
        inside = [visit(child) for (kind, _), child in row.children.items() if kind in _REGIONS]
        length = max([row.typical("region"), *inside]) if row.by_process else max(inside, default=0.0)
        found.append((length, id(row)))
        return length

    visit(root)
    found.sort(key=lambda each: -each[0])
    return {row for _, row in found[:MOST_REGIONS]}


def _add(root: _Row, process: Process) -> None:
    """Add the tree of one process."""
    trees = [(digest.origin.kind, digest.tree) for digest in process.digests if digest.tree is not None]
    spans = [tree for kind, tree in trees if kind == "spans" and tree.windows]
    if not spans and (process.kind == "engine" or not process.is_followed):
        return
    shown = spans or [tree for kind, tree in trees if tree.windows or kind == "trace"]
    known: set[tuple[_Key, ...]] = set()
    for tree in shown:
        known |= _add_regions(root, tree, process.label)
    if known:
        for _, tree in trees:
            _add_calls(root, tree, process.label, known)


def _add_regions(root: _Row, tree: RegionTree, label: str) -> set[tuple[_Key, ...]]:
    paths: list[tuple[_Key, ...]] = []
    for number, node in enumerate(tree.nodes):
        paths.append(((*paths[node.parent],) if number > UNCLEAR else ()) + ((node.kind, node.name),))
        if number > UNCLEAR or number == STEP or node.total:
            _at(root, paths[-1]).add(label, node.calls, node.total, node.own)
    return set(paths)


def _add_calls(root: _Row, tree: RegionTree, label: str, known: set[tuple[_Key, ...]]) -> None:
    """Add what the regions of a tree called. A region that the spans do not have counts as part of the one around it.

    A trace without any of their regions does not show which one called an operator.
    """
    roots: list[tuple[_Key, ...]] = [((node.kind, node.name),) for node in tree.nodes[: UNCLEAR + 1]]
    if any(path[-1][0] == "region" for path in known) and all(node.kind != "region" for node in tree.nodes):
        roots[STEP] = roots[UNCLEAR]
    paths: list[tuple[_Key, ...]] = []
    for number, node in enumerate(tree.nodes):
        if number <= UNCLEAR:
            path = roots[number]
        else:
            inner = (*paths[node.parent], (node.kind, node.name))
            path = inner if inner in known else paths[node.parent]
        paths.append(path)
        for kind, calls in (("op", node.ops), ("kernel", node.kernels)):
            for call in calls:
                row = _at(root, path)
                if path[-1][0] == "unclear":
                    row.add(label, call.calls, call.own if kind == "op" else 0, 0)
                if path[-1][0] == "threads":
                    row.add(label, 0, 0, 0)
                name = OTHERS if call.name == REST else tree.names[call.name]
                row.child(kind, name).add(label, call.calls, call.total, call.own)


def _at(root: _Row, path: tuple[_Key, ...]) -> _Row:
    for kind, name in path:
        root = root.child(kind, name)
    return root


def _ordered(row: _Row, kept: set[int]) -> Iterator[tuple[_Key, _Row]]:
    """Yield the children: regions, then operators, then kernels, the costliest first. The others of each kind are summed up."""
    some: dict[str, int] = {}
    others: dict[str, _Row] = {}
    shown: list[tuple[_Key, _Row]] = []
    by_cost = sorted(row.children.items(), key=lambda item: (-item[1].typical(item[0][0]), item[0]))
    for (kind, name), child in by_cost:
        some[kind] = some.get(kind, 0) + (name != OTHERS)
        fits = some[kind] <= MOST_CALLED and name != OTHERS if kind in _CALLED else id(child) in kept
        if fits:
            shown.append(((kind, name), child))
            continue
        rest = others.setdefault(kind if kind in _CALLED else "regions", _Row())
        for label, times in child.by_process.items():
            rest.add(label, times.calls, times.total, times.own if kind in _CALLED else times.total)
    shown += [((kind, OTHERS), rest) for kind, rest in others.items()]
    yield from sorted(shown, key=lambda item: _ORDER[item[0][0]])


def _made(row: _Row, kind: str, name: str, parent: int | None, step_seconds: float) -> RegionRow:
    times = row.by_process
    called = kind in _CALLED
    seconds = [each.total / 1e9 for each in times.values()]
    own = median(each.own for each in times.values()) / 1e9
    share = own if called else median(seconds)
    return RegionRow(
        parent=parent,
        kind=kind,
        name=name,
        calls=sum(each.calls for each in times.values()),
        seconds=median(seconds),
        self_seconds=own,
        share=share / step_seconds if step_seconds > 0 else 0.0,
        least=min(seconds),
        most=max(seconds),
        slowest=max(times, key=lambda label: times[label].total),
        processes=len(row.by_process),
        per_process=[]
        if called
        else [
            RegionTime(label, each.total / 1e9, each.own / 1e9, each.calls)
            for label, each in [*times.items()][:MOST_PROCESSES]
        ],
    )


def costliest(rows: Sequence[RegionRow], top: int) -> list[int]:
    """Return the rows with the largest shares and the rows around them, in order. Of a step without a known end the longest row counts as the whole."""
    weights = [each.self_seconds if each.kind in _CALLED else each.seconds for each in rows]
    if all(each.share is None for each in rows):
        whole = max(weights, default=0.0) or 1.0
        shares = [weight / whole for weight in weights]
    else:
        shares = [each.share or 0.0 for each in rows]
    shown: set[int] = set()
    for at in sorted(range(len(rows)), key=lambda at: -shares[at]):
        chain: list[int] = []
        around: int | None = at
        while around is not None and around not in shown:
            chain.append(around)
            around = rows[around].parent
        if shares[at] < _LEAST_SHARE or len(shown) + len(chain) > top:
            break
        shown.update(chain)
    return sorted(shown)


def row_text(rows: Sequence[RegionRow], row: RegionRow) -> str:
    """Return a row with the regions around it: ``update_policy/forward``, ``aten::mm in update_policy/forward``."""
    is_region = row.kind in (*_REGIONS, "regions") or row.parent is None
    around = row if is_region else rows[row.parent or 0]
    names = [around.name]
    while around.parent is not None:
        around = rows[around.parent]
        if around.kind != "step":
            names.append(around.name)
    path = path_text(names[::-1])
    return path if is_region else f"{row.name} in {path}"

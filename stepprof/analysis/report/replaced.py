"""State which processes were lost in the step and started again: a rank then has two processes, one after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from stepprof.analysis.report.processes import Process
from stepprof.analysis.report.schema import Finding
from stepprof.analysis.report.wording import seconds_text


def replaced(processes: Iterable[Process]) -> list[Finding]:
    """Return a notice about each process that another one of its rank followed in a role."""
    ranks: dict[object, list[tuple[int, int, Process]]] = defaultdict(list)
    for process in processes:
        edges = _edges(process)
        if process.kind == "rank" and process.origin.rank is not None and edges:
            ranks[process.origin.rank, process.island].append((min(edges), max(edges), process))
    found = []
    for of in ranks.values():
        for (begin, end, lost), (again, _, process) in pairwise(sorted(of, key=lambda each: each[:2])):
            if end <= again and lost.roles & process.roles:
                ended = "did not finish its window" if lost.open_ended() else "ended within this step"
                text = f"{lost.label} {ended}; {process.label} began again as the same rank, {seconds_text((again - begin) / 1e9)} after {lost.label} had begun"
                found.append(Finding(text, "coverage", process=lost.label))
    return found


def _edges(process: Process) -> list[int]:
    """Return the begins and the known ends of its windows."""
    known = [edge for window in process.windows for edge in (window.start, window.end)]
    return [*known, *(start for _, start in process.open_ended())]

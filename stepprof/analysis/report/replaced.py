"""State which processes were lost in the step, and which of them were started again: a rank then has two processes, one after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations, pairwise

from stepprof.analysis.report.processes import Process
from stepprof.analysis.report.schema import Finding
from stepprof.analysis.report.wording import seconds_text

MOST_NAMES = 3


def replaced(
    processes: Sequence[Process], lost: Iterable[Process] = (), told: Collection[str] = ()
) -> list[Finding]:
    """Return a notice about each process that another one of its rank followed in a role, one about those that none followed,
    and one about those that ended in a window.

    Args:
        processes: of the step.
        lost: those that are not known to have left it, and that none followed.
        told: those whose incomplete captures are reported anyway.
    """
    ranks: dict[object, list[Process]] = defaultdict(list)
    for process in processes:
        if process.kind == "rank" and process.origin.rank is not None and _edges(process):
            ranks[process.origin.rank].append(process)
    found = []
    for of in ranks.values():
        clocks: dict[str, list[Process]] = defaultdict(list)
        for process in of:
            clocks[process.island].append(process)
        texts = [each for same in clocks.values() for each in _on_one_clock(same)]
        if len(clocks) > 1:
            texts += _on_several_clocks(of)
        found += [Finding(text, "coverage", process=label) for label, text in texts]
    followed = {each.process for each in found}
    return [*found, *_lost(lost), *_ended(each for each in processes if each.label not in {*told, *followed})]


def _on_one_clock(processes: Iterable[Process]) -> Iterator[tuple[str, str]]:
    ordered = sorted(
        ((min(_edges(each)), max(_edges(each)), each) for each in processes), key=lambda each: each[:2]
    )
    for (begin, end, lost), (again, _, process) in pairwise(ordered):
        if end <= again and lost.roles & process.roles:
            ended = "did not finish its window" if lost.open_ended() else "ended within this step"
            yield (
                lost.label,
                f"{lost.label} {ended}; {process.label} began again as the same rank, {seconds_text((again - begin) / 1e9)} after {lost.label} had begun",
            )


def _on_several_clocks(processes: Sequence[Process]) -> Iterator[tuple[str, str]]:
    """Yield those that did not finish although another process of the rank did, elsewhere: which one began first is not known."""
    for one, other in combinations(processes, 2):
        for lost, process in ((one, other), (other, one)):
            is_lost = lost.open_ended() and not process.open_ended() and lost.roles & process.roles
            if is_lost and lost.island != process.island:
                yield (
                    lost.label,
                    f"{lost.label} did not finish its window; {process.label} did, as the same rank, by a clock that was never compared",
                )


def _lost(processes: Iterable[Process]) -> list[Finding]:
    """Return the notice about processes whose windows have no end in the manifest: those of a capped capture have one."""
    labels = [
        each.label
        for each in processes
        if any(
            window["start_unix_ns"] is not None and window["end_unix_ns"] is None
            for window in each.manifest_windows
        )
    ]
    if not labels:
        return []
    more = f" and {len(labels) - MOST_NAMES} more" if len(labels) > MOST_NAMES else ""
    names = f"{', '.join(labels[:MOST_NAMES])}{more}"
    if len(labels) == 1:
        text = f"{names} has no end of its window: it was killed, is still in it, or could not write its manifest"
    else:
        text = f"{names} have no ends of their windows: they were killed, are still in them, or could not write their manifests"
    return [Finding(text, "coverage", process=labels[0] if len(labels) == 1 else None)]


def _ended(processes: Iterable[Process]) -> list[Finding]:
    """Return the notice about processes that ended in a window, whose spans say so. An exception is reported elsewhere."""
    labels = [
        each.label
        for each in processes
        if any(window.early for window in each.windows)
        and not any(window.get("body_error") for window in each.manifest_windows)
    ]
    if not labels:
        return []
    more = f" and {len(labels) - MOST_NAMES} more" if len(labels) > MOST_NAMES else ""
    text = f"{', '.join(labels[:MOST_NAMES])}{more} left a window before its end: what it would have had after that is not known"
    return [Finding(text, "coverage", process=labels[0] if len(labels) == 1 else None)]


def _edges(process: Process) -> list[int]:
    """Return the begins and the known ends of its windows."""
    known = [edge for window in process.windows for edge in (window.start, window.end)]
    return [*known, *(start for _, start in process.open_ended())]

"""Find the window or region around each other one. Regions of two coroutines that are open at the same time are not inside each other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

NOWHERE = -1
"""Nothing is around it."""


def containers(
    start: Sequence[int], end: Sequence[int], name: Sequence[object], task: Sequence[int | None]
) -> list[int]:
    """Return for each slice the innermost slice around it; `NOWHERE`: nothing is around it.

    A region of a coroutine can be inside slices of its thread and of the same coroutine. A region of another
    coroutine that is open at the same time is not around it, with one exception: if every outermost region of
    one name lies within regions of a second name, those regions are around it.

    Args:
        start: in order. Of two that start together, the longer one comes first.
        end: of each.
        name: of each.
        task: the number of its coroutine; None: it is in none.
    """
    around = _Around(start, end)
    found: list[int] = []
    outermost: list[int] = []
    for at, own in enumerate(task):
        inner = NOWHERE if own is None else around.innermost((own,), at)
        if own is not None and inner == NOWHERE:
            outermost.append(at)
        found.append(max(inner, around.innermost((None,), at)))
        around.begin((own,), at)
    if outermost:
        _start_in_others(around, outermost, found, name, task)
    return found


def _start_in_others(
    around: _Around,
    outermost: list[int],
    found: list[int],
    name: Sequence[object],
    task: Sequence[int | None],
) -> None:
    """Find the regions of other coroutines around the outermost regions of each coroutine."""
    inside: dict[object, set[object]] = {}
    last: dict[object, int] = {}
    pending = iter([*outermost, len(name)])
    following = next(pending)
    for at in range(len(name)):
        if at == following:
            of = {other for other, ends in last.items() if ends >= around.end[at]}
            inside[name[at]] = inside[name[at]] & of if name[at] in inside else of
            following = next(pending)
        if task[at] is not None:
            last[name[at]] = max(last.get(name[at], 0), around.end[at])
    if not any(inside.values()):
        return
    wanted = set(outermost)
    for at in range(len(name)):
        if at in wanted:
            found[at] = max([found[at], *(around.innermost(("of", other), at) for other in inside[name[at]])])
        if task[at] is not None:
            around.begin(("of", name[at]), at)


class _Around:
    """The slices of each kind that are still open."""

    def __init__(self, start: Sequence[int], end: Sequence[int]) -> None:
        self.start, self.end = start, end
        self.opened: dict[tuple[object, ...], list[int]] = {}

    def begin(self, key: tuple[object, ...], at: int) -> None:
        """Add a slice. Drop the slices that it outlasts: it is around whatever they would be around."""
        opened = self.opened.setdefault(key, [])
        while opened and self.end[opened[-1]] <= self.end[at]:
            opened.pop()
        opened.append(at)

    def innermost(self, key: tuple[object, ...], at: int) -> int:
        """Return the slice of a kind that opened last, and ends no earlier than this one."""
        opened = self.opened.get(key, [])
        while opened and self.end[opened[-1]] <= self.start[at]:
            opened.pop()
        outlasting = bisect_right(opened, -self.end[at], key=lambda each: -self.end[each])
        return opened[outlasting - 1] if outlasting else NOWHERE

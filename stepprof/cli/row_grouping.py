"""Group the rows of a table for thousands of ranks: similar rows share one, outliers keep their
own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

from stepprof.formatting import counted, number

FULL_ROWS = 20
"""A table of at most this many rows is printed whole."""
ALONE = 3
"""A group of at most this many items is not formed: each keeps its own row."""
OUTLIERS = 2
"""Number of outliers of a group that keep their own row, per measure."""
FAR = 1.25
"""A value this many times the median of its group is an outlier."""
RANGES = 4
"""Maximum number of ranges of ranks in a cell."""
NOTES = 12
"""This many notes are printed whole; beyond that, a few of each kind."""
OF_A_KIND = 3

T = TypeVar("T")
Measure = Callable[[T], "float | None"]


@dataclass(frozen=True)
class Groups(Generic[T]):
    """The items of each row, and the number of omitted items."""

    rows: list[list[T]]
    items: int
    left_out: int = 0

    def note(self, things: str) -> str | None:
        """Return the line below the table with the number of rows and items; None if each item has
        its own row.

        >>> Groups([[1, 2, 3, 4], [5]], items=7, left_out=2).note("windows")
        '7 windows in 2 rows, 2 of them omitted; --all shows each'
        """
        if len(self.rows) == self.items:
            return None
        left = f", {number(self.left_out)} of them omitted" if self.left_out else ""
        return f"{number(self.items)} {things} in {counted(len(self.rows), 'row')}{left}; --all shows each"


def grouped(
    items: Iterable[T],
    key: Callable[[T], Hashable],
    measures: Sequence[Measure[T]] = (),
    *,
    show_all: bool = False,
    urgent: Callable[[T], bool] = lambda item: False,
) -> Groups[T]:
    """Return items in groups: each alone if there are few, else grouped by key.

    Args:
        items: in the order in which they are shown.
        key: items with the same key share a row.
        measures: larger is worse. The worst items of a group, if far from its median, keep their own rows.
        show_all: group nothing.
        urgent: items to show first if there are too many groups.
    """
    found = list(items)
    if show_all or len(found) <= FULL_ROWS:
        return Groups([[item] for item in found], len(found))
    together: dict[Hashable, list[T]] = {}
    for item in found:
        together.setdefault(key(item), []).append(item)
    rows: list[list[T]] = []
    for group in together.values():
        alone = group if len(group) <= ALONE else _outliers(group, measures)
        standing_out = {id(item) for item in alone}
        rest = [item for item in group if id(item) not in standing_out]
        rows += [*([rest] if rest else []), *([item] for item in alone)]
    if len(rows) > FULL_ROWS:
        rows.sort(key=lambda row: not urgent(row[0]))
    left_out = sum(map(len, rows[FULL_ROWS:]))
    return Groups(rows[:FULL_ROWS], len(found), left_out)


def _outliers(group: Sequence[T], measures: Sequence[Measure[T]]) -> list[T]:
    """Return the worst items by each measure, without duplicates."""
    found: dict[int, T] = {}
    for measure in measures:
        values = [(value, item) for item in group if (value := measure(item)) is not None]
        if not values:
            continue
        far = FAR * median(value for value, _ in values)
        worst = sorted((each for each in values if each[0] > far), key=lambda each: -each[0])
        found.update((id(item), item) for _, item in worst[:OUTLIERS])
    return list(found.values())


def spread(values: Iterable[float | None], shown: Callable[[float], str]) -> str | None:
    """Return the smallest and the largest value; one if they read the same, None if there is none.

    >>> spread([1, None, 3], str), spread([2, 2], str), spread([None], str)
    ('1-3', '2', None)
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    least, most = shown(min(known)), shown(max(known))
    return least if least == most else f"{least}-{most}"


def one_or_count(values: Iterable[str | None], what: str) -> str | None:
    """Return the value that all share, else how many there are.

    >>> one_or_count(["a", "a"], "host"), one_or_count(["a", "b", None], "host")
    ('a', '2 hosts')
    """
    known = {value for value in values if value is not None}
    return next(iter(known), None) if len(known) <= 1 else counted(len(known), what)


def bounded(kinds: Sequence[Sequence[str]], *, show_all: bool = False) -> list[str]:
    """Return notes of several kinds: all if there are few, else some of each kind and the number of
    others.

    >>> bounded([["a"] * 50, ["b"]])
    ['a', 'a', 'a', 'b', '… and 47 more notes: --all shows them']
    """
    notes = [note for kind in kinds for note in kind]
    if show_all or len(notes) <= NOTES:
        return notes
    few = [note for kind in kinds for note in kind[:OF_A_KIND]]
    if len(few) == len(notes):
        return few
    return [*few, f"… and {number(len(notes) - len(few))} more notes: --all shows them"]

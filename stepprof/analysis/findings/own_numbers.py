"""Find the same work in regions whose names have the number of their rank: `shard_0` of rank 0 and `shard_1` of rank 1."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from stepprof.analysis.findings.step_times import kinds_of

Key = tuple["str | None", tuple[str, ...]]
"""A role, and a region in it with those around it."""


def is_numbered(place: Key, others: Collection[Key]) -> bool:
    """Return whether one of some places differs from a place in the numbers of its names only."""
    return len(_of_kind(place, others)) > 0


def counterpart(
    place: Key, rank: int, own: Collection[Key], other: int, others: Collection[Key]
) -> Key | None:
    """Return the place in which another rank does what a rank does in a place; None: not known.

    The number of the rank is replaced by that of the other one. If that names none, it is the only one that differs in its numbers.

    >>> places = [("actor", ("micro_0_r2",)), ("actor", ("micro_2_r2",))]
    >>> counterpart(("actor", ("micro_0_r0",)), 0, [], 2, places)
    ('actor', ('micro_0_r2',))
    """
    role, region = place
    named = {(role, each) for each in _renamed(region, rank, other)} & {*others}
    if named:
        return named.pop() if len(named) == 1 else None
    alike = _of_kind(place, others)
    return alike[0] if len(alike) == 1 and len(_of_kind(place, own)) == 1 else None


def _of_kind(place: Key, others: Collection[Key]) -> list[Key]:
    kinds = kinds_of(place[1])
    if kinds == place[1]:
        return []
    return [key for key in others if key[0] == place[0] and kinds_of(key[1]) == kinds]


def _renamed(region: tuple[str, ...], rank: int, other: int) -> Iterator[tuple[str, ...]]:
    """Yield the names with each number that is the rank's replaced by that of another one, one at a time."""
    for depth, name in enumerate(region):
        for number in re.finditer(r"\d+", name):
            if int(number[0]) == rank:
                renamed = f"{name[: number.start()]}{other:0{len(number[0])}}{name[number.end() :]}"
                yield (*region[:depth], renamed, *region[depth + 1 :])

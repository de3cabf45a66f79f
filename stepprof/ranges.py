"""Many ranks in few characters: ``0-4093, 4095``. Without any other module, since `stepprof.state` prints with it."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["label_ranges", "ranges"]


def ranges(items: Iterable[int | str], most: int | None = None) -> str:
    """Return numbers as ranges, and names after them.

    Args:
        items: numbers and names; what comes twice counts once.
        most: how many ranges and names are shown; past that, how many items there are. None: all.

    >>> ranges([3, 0, 1, 2, 5, "driver"])
    '0-3, 5, driver'
    >>> ranges(range(0, 100, 2), most=3)
    '0, 2, 4, … (50)'
    """
    distinct = set(items)
    found: list[list[int]] = []
    for number in sorted(item for item in distinct if isinstance(item, int)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    parts = [str(first) if first == last else f"{first}-{last}" for first, last in found]
    parts += sorted(item for item in distinct if isinstance(item, str))
    if most is not None and len(parts) > most:
        parts = [*parts[:most], f"… ({len(distinct)})"]
    return ", ".join(parts)


def label_ranges(labels: Iterable[str], most: int | None = None) -> str:
    """Return labels of engines, those of one role together.

    >>> label_ranges([f"rollout/{number}" for number in range(8)] + ["reward/0"])
    'rollout/0-7, reward/0'
    """
    roles: dict[str, list[int | str]] = {}
    for label in labels:
        role, _, number = label.rpartition("/")
        roles.setdefault(role, []).append(int(number) if number.isdecimal() else number)
    parts = [
        f"{role}/{ranges(numbers, most)}" if role else ranges(numbers, most)
        for role, numbers in roles.items()
    ]
    if most is not None and len(parts) > most:
        parts = [*parts[:most], f"… ({len(roles)} roles)"]
    return ", ".join(parts)

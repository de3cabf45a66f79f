"""Format values for people: tables, numbers, sizes and ranges of ranks, as plain text for terminals, log files and pipes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NOTHING = "-"


def install(extra: str) -> str:
    """Return what to do where the packages of an extra are missing.

    stepprof is in no package index: `pip install` with its name could install another package.

    >>> install("report")
    'install the extra "report" of stepprof (docs/adopting.md#install)'
    """
    return f'install the extra "{extra}" of stepprof (docs/adopting.md#install)'


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], align: str = "") -> str:
    """Rows under headers, in columns as wide as they must be.

    Args:
        headers: one per column.
        rows: the cells; None is shown as "-".
        align: "l" or "r" for each column; the rest is left-aligned.

    >>> print(table(["role", "bytes"], [["actor", 12], [None, 3]], "lr"))
    role   bytes
    actor     12
    -          3
    """
    cells = [[printable(NOTHING if cell is None else str(cell)) for cell in row] for row in [headers, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    sides = align.ljust(len(headers), "l")
    lines = (
        "  ".join(
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, sides, strict=True)
        )
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def indented(headers: Sequence[str]) -> list[str]:
    """Return the headers of a table that is indented by two spaces.

    >>> indented(("artifact", "kind"))
    ['  artifact', 'kind']
    """
    return ["  " + headers[0], *headers[1:]]


def printable(text: str) -> str:
    """Return `text` without characters that move the cursor or colour the terminal: names come from the user's program."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def size(count: float | None) -> str:
    """Format a number of bytes.

    >>> size(None), size(0), size(1023), size(1536), size(5 * 2**30)
    ('-', '0 B', '1023 B', '1.5 KiB', '5.0 GiB')
    """
    if count is None:
        return NOTHING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def duration(seconds: float | None) -> str:
    """Format seconds, to the millisecond.

    >>> duration(None), duration(0.01234), duration(12.5)
    ('-', '0.012', '12.500')
    """
    return NOTHING if seconds is None else f"{seconds:.3f}"


def number(count: int | None) -> str:
    """Format a count.

    >>> number(None), number(12345)
    ('-', '12,345')
    """
    return NOTHING if count is None else f"{count:,}"


def counted(count: int, what: str) -> str:
    """Format a count and a noun with a regular plural.

    >>> counted(1, "step"), counted(0, "step"), counted(1200, "step")
    ('1 step', '0 steps', '1,200 steps')
    """
    return f"{number(count)} {what}{'' if count == 1 else 's'}"


def ranges(items: Iterable[int | str], most: int | None = None) -> str:
    """Return numbers as ranges, and names after them.

    Args:
        items: numbers and names; duplicates count once.
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
    """Return labels of engines, grouped by role.

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

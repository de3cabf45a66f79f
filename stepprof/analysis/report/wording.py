"""Format seconds, shares and causes for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from stepprof.formatting import printable

_CAUSES = {
    "profiler": "profiler",
    "collective": "collectives",
    "collective_unmatched": "unmatched",
    "host": "device idle",
    "rollout": "rollout",
    "peers": "other ranks",
    "other_role": "other roles",
    "not_recorded": "not recorded",
    "unknown": "unknown",
}


LONGEST_QUOTED = 80
MOST_NAMES = 3


def quoted(name: str) -> str:
    """Return the name of a region or function for a sentence: between backticks, on one line and without any inside, so that its end is clear.

    >>> quoted("loss/kl"), quoted("a`b"), quoted("x" * 200)[30:50]
    ('`loss/kl`', "`a'b`", 'xxxxxxxxxx…xxxxxxxxx')
    """
    text = printable(name).replace("`", "'")
    half = LONGEST_QUOTED // 2
    return f"`{text if len(text) <= LONGEST_QUOTED else f'{text[: half - 1]}…{text[-half:]}'}`"


def names(labels: Sequence[str]) -> str:
    """Return the names of processes, the first ones only.

    >>> names(["rank 0"]), names(["rank 0", "rank 1"]), names([f"rank {each}" for each in range(8)])
    ('rank 0', 'rank 0 and rank 1', 'rank 0, rank 1, rank 2 and 5 more')
    """
    if len(labels) <= MOST_NAMES:
        return " and ".join(filter(None, (", ".join(labels[:-1]), labels[-1])))
    return f"{', '.join(labels[:MOST_NAMES])} and {len(labels) - MOST_NAMES} more"


def seconds_text(seconds: float) -> str:
    """Return a duration for a sentence.

    >>> [seconds_text(value) for value in (83.4, 1.84, 0.0421, 0.0000034)]
    ['83 s', '1.8 s', '42 ms', '3 us']
    """
    if seconds >= 10:
        return f"{seconds:.0f} s"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f} us"


def seconds(value: float | None) -> str:
    """Return a duration with three digits.

    >>> seconds(None), seconds(0), seconds(123.4), seconds(1.234), seconds(0.0123), seconds(-4.2e-6)
    ('-', '0 s', '123 s', '1.23 s', '12.3 ms', '-4.20 µs')
    """
    if value is None:
        return "-"
    size = abs(value)
    if size < 5e-10:
        return "0 s"
    if size >= 99.95:
        return f"{value:,.0f} s"
    for unit, one in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if size >= one * 0.9995:
            scaled = value / one
            digits = 0 if abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
            return f"{scaled:.{digits}f} {unit}"
    return f"{value * 1e9:.0f} ns"


def share(value: float | None) -> str:
    """Return a share in per cent; None: not known.

    >>> share(0.412), share(0.0042), share(0), share(None)
    ('41%', '0.4%', '0%', '-')
    """
    if value is None:
        return "-"
    percent = value * 100
    return f"{percent:.1f}%" if percent and abs(percent) < 1 else f"{percent:.0f}%"


def path_text(names: Sequence[str]) -> str:
    """Return the regions of a path as one text. A slash in a name has a backslash before it, unlike those between names.

    >>> path_text(["update", "loss/kl"]), path_text(["update", "loss", "kl"]), path_text([])
    ('update/loss\\\\/kl', 'update/loss/kl', '')
    """
    return "/".join(_SEPARATORS.sub(r"\\\g<0>", name) for name in names)


_SEPARATORS = re.compile(r"[\\/]")


def causes(found: Iterable[Mapping[str, float]]) -> dict[str, str]:
    """Return the causes that occur, each with its heading; known ones first, in their order.

    >>> causes([{"unknown": 1.0, "rollout": 2.0}, {"meteor": 0.5, "profiler": 0.0}])
    {'rollout': 'rollout', 'unknown': 'unknown', 'meteor': 'meteor'}
    """
    there = dict.fromkeys(cause for each in found for cause, value in each.items() if value > 0)
    return {cause: heading for cause, heading in _CAUSES.items() if cause in there} | {
        cause: cause for cause in there if cause not in _CAUSES
    }

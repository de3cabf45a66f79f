"""Parse ``--assume-offset NAME=SECONDS``, for sources without a measured clock or a start time."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import PurePath
from typing import TYPE_CHECKING

from stepprof.errors import ConfigError

if TYPE_CHECKING:
    from stepprof.analysis.timeline.find import Input

ALL = "*"
"""The name for all sources without a start time."""
ONE_CLOCK = ""
"""The key that says that clocks which were never compared agree (`--one-clock`)."""
OPTION = "--assume-offset"
_LARGEST_SECONDS = 4_102_444_800
"""The year 2100."""


def assumed_offsets(texts: Iterable[str]) -> dict[str, int]:
    """Return the offsets to add to the times of sources [ns], by name. A number without a name is
    for `ALL`.

    >>> assumed_offsets(["rank-1.json=1700000000.5", "-2"])
    {'rank-1.json': 1700000000500000000, '*': -2000000000}

    Raises:
        ConfigError: the text after the last equals sign is not a number of seconds.
    """
    offsets = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            seconds = Decimal(number.strip())
        except InvalidOperation:
            seconds = Decimal("NaN")
        if not seconds.is_finite() or abs(seconds) > _LARGEST_SECONDS:
            raise ConfigError.at(
                OPTION,
                text,
                "must be NAME=SECONDS or SECONDS, such as host-2=-1.25 or rank-1.json=1700000000",
            )
        offsets[name.strip() if equals else ALL] = int((seconds * 10**9).to_integral_value())
    return offsets


def assumed_for(wanted: Input, assume: Mapping[str, int]) -> int | None:
    """Return the offset for one of this source's names; None if there is none."""
    return next((assume[name] for name in _names(wanted) if name in assume), None)


def check_assumed(assume: Mapping[str, int], inputs: Iterable[Input]) -> None:
    """Raise ConfigError unless every name is the path, file name, label or host of a source.

    Raises:
        ConfigError: a name matches no source; the message states the closest name.
    """
    known = list(dict.fromkeys(name for each in inputs for name in _names(each)))
    for name in assume:
        if name not in (ALL, ONE_CLOCK) and name not in known:
            near = difflib.get_close_matches(name, known, 1) or known[:1]
            hint = f'did you mean "{near[0]}"?' if near else "there is no source"
            raise ConfigError.at(OPTION, name, f"must be the name of a source, file or host; {hint}")


def _names(wanted: Input) -> list[str]:
    origin = wanted.origin
    names = (origin.path, PurePath(wanted.paths[0]).name, origin.label, origin.host)
    return [name for name in names if name]

"""Parse selections of steps and ranks: "2, 10-12, every 100" and "0-3,8".

A selection is parsed once, into intervals and periods. The checks at every step of the training
loop need no text, and `Steps.next_after` lets a target arm ahead of time.

Step numbers are the caller's own and never negative.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from stepprof.errors import ConfigError, shown

Interval = tuple[int, int]

# At most 18 digits: such a number fits in 64 bits, and `int` never refuses it for its length.
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_RANGE = re.compile(r"(\d{1,18}) ?- ?(\d{1,18})", re.ASCII)
_EVERY = re.compile(r"every (\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps to record, as sorted intervals that do not touch, and periods.

    >>> steps = Steps.parse("2, 10-12, every 100")
    >>> 11 in steps, 13 in steps, 300 in steps
    (True, False, True)
    >>> steps.next_after(12)
    100
    >>> str(steps)
    '2,10-12,every 100'
    """

    intervals: tuple[Interval, ...] = ()
    periods: tuple[int, ...] = ()
    all: bool = False

    @classmethod
    def parse(cls, value: object, key: str = "steps") -> Steps:
        """Read steps from text, a number, or a list of either.

        Text is a comma-separated list of numbers (`2`), ranges that include both ends (`10-12`) and periods (`every 100`: 100, 200, … but not step 0);
        `none` and `all` stand alone.

        Raises:
            ConfigError: names `key`, the value and what was probably meant.
        """
        if isinstance(value, Steps):
            return value
        numbers: list[Interval] = []
        periods: list[int] = []
        parts = _parts(value, key, example='"2, 10-12, every 100"')
        for part in parts:
            if part in ("none", "all"):
                _refuse_company(part, parts, value, key)
                return cls(all=part == "all")
            if (every := _EVERY.fullmatch(part)) is not None:
                if int(every[1]) == 0:
                    raise ConfigError.at(key, value, '"every 0" selects nothing; did you mean "every 1"?')
                periods.append(int(every[1]))
            else:
                numbers.append(_interval(part, value, key, words=("none", "all", "every 100")))
        return cls(_merged(numbers), _irreducible(periods))

    def __contains__(self, step: object) -> bool:
        """Return whether `step` is selected."""
        if not isinstance(step, int) or step < 0:
            return False
        if self.all:
            return True
        for first, last in self.intervals:
            if first <= step <= last:
                return True
        return any(step % period == 0 for period in self.periods) if step else False

    @property
    def is_none(self) -> bool:
        """Return whether no step can be selected."""
        return not (self.all or self.intervals or self.periods)

    def next_after(self, step: int) -> int | None:
        """Return the first selected step greater than `step`, or None where there is none."""
        after = max(step + 1, 0)
        if self.all:
            return after
        found = [max(first, after) for first, last in self.intervals if last >= after]
        found += [max(-(-after // period), 1) * period for period in self.periods]
        return min(found, default=None)

    def longest_run(self) -> float:
        """Return the number of steps in the longest run of consecutive ones; infinite where every step is selected."""
        if self.all or 1 in self.periods:
            return math.inf
        runs = [last - first + 1 for first, last in self.intervals]
        return max(runs, default=1 if self.periods else 0)

    def without(self, seen: Iterable[int]) -> Steps:
        """Return the listed steps that are not in `seen`: those that never came.

        >>> str(Steps.parse("2, 10-12, every 5").without([2, 11]))
        '10,12'
        """
        left: list[Interval] = []
        came = sorted(set(seen))
        for first, last in self.intervals:
            start = first
            for step in came:
                if start <= step <= last:
                    left.append((start, step - 1))
                    start = step + 1
            left.append((start, last))
        return Steps(tuple((first, last) for first, last in left if first <= last))

    def __str__(self) -> str:
        """Return the canonical text, which parses to an equal value."""
        if self.is_none:
            return "none"
        if self.all:
            return "all"
        return ",".join(
            [*map(_interval_text, self.intervals), *(f"every {period}" for period in self.periods)]
        )


@dataclass(frozen=True, slots=True)
class Ranks:
    """The global ranks to record, as sorted intervals that do not touch.

    >>> ranks = Ranks.parse("0-3,8")
    >>> 2 in ranks, 5 in ranks, str(ranks)
    (True, False, '0-3,8')
    >>> ranks.check(8, "roles.actor.ranks")
    Traceback (most recent call last):
      ...
    stepprof.errors.ConfigError: roles.actor.ranks = "0-3,8": there is no rank 8 in a world of 8; did you mean 7?
    """

    intervals: tuple[Interval, ...] = ()
    all: bool = False

    @classmethod
    def parse(cls, value: object, key: str = "ranks") -> Ranks:
        """Read ranks from text (`0-3,8`, `all`, `none`), a number, or a list of either.

        Raises:
            ConfigError: names `key`, the value and what was probably meant.
        """
        if isinstance(value, Ranks):
            return value
        numbers: list[Interval] = []
        parts = _parts(value, key, example='"0-3,8" or "all"')
        for part in parts:
            if part in ("none", "all"):
                _refuse_company(part, parts, value, key)
                return cls(all=part == "all")
            numbers.append(_interval(part, value, key, words=("none", "all")))
        return cls(_merged(numbers))

    def __contains__(self, rank: object) -> bool:
        """Return whether `rank` is selected; a process without a rank (a Ray driver, an actor) counts
        as rank 0.
        """
        if self.all:
            return True
        number = 0 if isinstance(rank, str) else rank
        if not isinstance(number, int):
            return False
        for first, last in self.intervals:  # noqa: SIM110 - a window asks several times, and `any` takes twice as long
            if first <= number <= last:
                return True
        return False

    @property
    def is_none(self) -> bool:
        """Return whether no rank can be selected."""
        return not (self.all or self.intervals)

    def check(self, world_size: int, key: str = "ranks") -> None:
        """Refuse ranks that a world of `world_size` does not have.

        Raises:
            ConfigError: names `key`, the value and the nearest valid rank.
        """
        for first, last in self.intervals:
            if last >= world_size:
                absent = max(first, world_size)
                raise ConfigError.at(
                    key,
                    str(self),
                    f"there is no rank {absent} in a world of {world_size}; did you mean {world_size - 1}?",
                )

    def __str__(self) -> str:
        """Return the canonical text, which parses to an equal value."""
        if self.all:
            return "all"
        return ",".join(map(_interval_text, self.intervals)) or "none"


def _parts(value: object, key: str, *, example: str) -> list[str]:
    """Split a selection into its items, in lower case and with single spaces."""
    if isinstance(value, bool) or not isinstance(value, int | str | list | tuple | range | set | frozenset):
        raise ConfigError.at(key, value, f"expected a string or a list of numbers, such as {example}")
    if isinstance(value, int):
        return [str(value)]
    if isinstance(value, str):
        parts = [" ".join(part.split()).lower() for part in value.split(",")]
        if "" in parts:
            meant = ", ".join(part for part in parts if part) or "none"
            raise ConfigError.at(key, value, f'an empty item; did you mean "{meant}"?')
        return parts
    items: list[str] = []
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int | str):
            raise ConfigError.at(
                key, value, f"{shown(item)} is not a number; expected something like {example}"
            )
        items += _parts(item, key, example=example)
    return items


def _interval(part: str, value: object, key: str, *, words: tuple[str, ...]) -> Interval:
    """Read a number or a range."""
    if _NUMBER.fullmatch(part):
        return int(part), int(part)
    if (matched := _RANGE.fullmatch(part)) is not None:
        first, last = int(matched[1]), int(matched[2])
        if first > last:
            raise ConfigError.at(key, value, f'the range {part} is empty; did you mean "{last}-{first}"?')
        return first, last
    raise ConfigError.at(key, value, f"cannot read {shown(part)}; {_nearest_word(part, words)}")


def _nearest_word(part: str, words: tuple[str, ...]) -> str:
    import difflib  # imported only for a mistake

    if part.isascii() and part.isdecimal():
        return "a number has at most 18 digits"
    if re.fullmatch(r"-\s*\d+", part):
        return f'numbers start at 0; did you mean "{part.lstrip("- ")}"?'
    if (
        digits := re.fullmatch(r"(\d+)\s*(?:\.{2,3}|:|to|\N{EN DASH}|\N{EM DASH})\s*(\d+)", part)
    ) is not None:
        return f'did you mean "{digits[1]}-{digits[2]}"?'
    if (period := re.fullmatch(r"\D+?(\d+)", part)) is not None and "every 100" in words:
        return f'did you mean "every {period[1]}"?'
    for word in difflib.get_close_matches(part, words, n=1, cutoff=0.4):
        return f'did you mean "{word}"?'
    return 'expected a number, a range such as "10-12", or one of: ' + ", ".join(words)


def _refuse_company(word: str, parts: list[str], value: object, key: str) -> None:
    """Refuse `none` and `all` next to other items: the meaning would be unclear."""
    if len(parts) > 1:
        raise ConfigError.at(key, value, f'"{word}" cannot be combined; did you mean "{word}"?')


def _merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    merged: list[Interval] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _irreducible(periods: Iterable[int]) -> tuple[int, ...]:
    """Leave out each period that is a multiple of another."""
    kept: list[int] = []
    for period in sorted(set(periods)):
        if all(period % smaller for smaller in kept):
            kept.append(period)
    return tuple(kept)


def _interval_text(interval: Interval) -> str:
    first, last = interval
    return str(first) if first == last else f"{first}-{last}"

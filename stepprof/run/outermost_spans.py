"""Count spans of one name without those inside another one: a timer and a decorator of the same
name, or a recursive function, are one call.

A span is written when it ends, so inner spans are written first.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_LARGEST_NS = 2**62


@dataclass(slots=True)
class _Stack:
    """The outermost spans of one thread or task, ordered by end."""

    start: array[int] = field(default_factory=lambda: array("q"))
    duration: array[int] = field(default_factory=lambda: array("q"))
    error: bytearray = field(default_factory=bytearray)

    def add(self, start: int, duration: int, error: bool) -> None:
        """Add the next written span; it replaces those inside it."""
        end = start + duration
        while self.start and start <= self.start[-1] and self.start[-1] + self.duration[-1] <= end:
            if not duration:  # two points in time
                break
            self.start.pop()
            self.duration.pop()
            self.error.pop()
        self.start.append(start)
        self.duration.append(duration)
        self.error.append(error)


@dataclass(slots=True)
class Outermost:
    """The outermost spans of one process with one name, kind and role, on all of its threads and tasks."""

    _stacks: dict[tuple[Any, Any], _Stack] = field(default_factory=dict)

    def add(self, span: Mapping[str, Any]) -> int:
        """Add the next written span; return its nanoseconds."""
        place = (span.get("thread"), span.get("task"))
        stack = self._stacks.get(place)
        if stack is None:
            stack = self._stacks[place] = _Stack()
        duration = _nanoseconds(span.get("dur"))
        stack.add(_nanoseconds(span.get("start")), duration, bool(span.get("error")))
        return duration

    @property
    def errors(self) -> int:
        """Return how many ended with an exception."""
        return sum(sum(stack.error) for stack in self._stacks.values())

    @property
    def seconds_of_each(self) -> array[float]:
        """Return the duration of each."""
        return array("d", (each / 1e9 for stack in self._stacks.values() for each in stack.duration))


def _nanoseconds(value: object) -> int:
    """Return a time or a duration; 0 if a damaged file has something else."""
    return value if type(value) is int and 0 <= value < _LARGEST_NS else 0

"""The truth, the report and the list of differences, for every comparison."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stepprof.analysis.report.schema import Report
from truth.known import Place
from truth.model import Engine, Truth

__all__ = ["CLOSE", "Notes", "key_of"]

CLOSE = 2_000
"""Permitted difference of a figure in nanoseconds: its rounding, and the edges of a few stretches."""
_RANK = re.compile(r"\brank (\d+)\b")


def key_of(label: str) -> int | str | None:
    """Return the rank that a label names, or None."""
    found = _RANK.search(label)
    if found:
        return int(found[1])
    return "driver" if "driver" in label.split() else None


@dataclass
class Notes:
    """The differences between a report and the truth, one sentence each."""

    truth: Truth
    report: Report
    found: list[str] = field(default_factory=list)
    unclear: bool = False
    """Whether two machines of one host name are on different islands; the report does not show
    which source is on which.
    """
    shifts: dict[int, int] = field(default_factory=dict)
    """The shift of each engine's workers, by replica."""
    islands: dict[int, object] = field(default_factory=dict)
    """The island of each engine's workers, by replica."""

    def say(self, what: str, reported: object, true: object) -> None:
        """Note a difference."""
        self.found.append(f"{what}: reported {reported}, true {true}")

    def same(self, what: str, reported: float | None, true_ns: float | None, close: float = CLOSE) -> None:
        """Compare seconds with nanoseconds."""
        if reported is None and true_ns is None:
            return
        if reported is None or true_ns is None or abs(reported * 1e9 - true_ns) > close:
            self.say(what, reported, None if true_ns is None else true_ns / 1e9)

    def equal(self, what: str, reported: object, true: object) -> None:
        """Compare other values."""
        if reported != true:
            self.say(what, reported, true)

    def engine_island(self, engine: Engine) -> object:
        """Return the island whose clock places an engine's workers."""
        return self.islands.get(engine.replica)

    def generated(self, island: object) -> int:
        """Return the time from the first forward step on an island to the last [ns]."""
        steps = [
            step
            for engine in self.truth.engines
            for scheduler in engine.schedulers
            for step in scheduler.steps
            if self.engine_island(engine) == island
        ]
        return max(end for _, end, _ in steps) - min(start for start, _, _ in steps)

    def place_of_engine(self, engine: Engine, place: Place) -> None:
        """Note how an engine was placed."""
        self.shifts[engine.replica] = place.shift
        self.islands[engine.replica] = place.island

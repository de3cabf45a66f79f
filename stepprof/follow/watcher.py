"""Detect slow steps, slow regions and growing memory of one process, from the lines of its spans.

A recorded step, and the one after it, are slower because of the recording, so they are not part of
any history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stepprof.config.options.watch import WatchOptions
from stepprof.follow.baseline import Floor, History, Unusual

MATTERS = 0.1
"""A slow region must cost at least this share of its window's time more than usual."""

MAX_HISTORIES = 512
"""Maximum number of regions and roles to watch: a program may invent names for each step."""

MAX_OPEN = 256
"""Maximum number of windows whose regions are being summed."""

HOST, DEVICE = "memory grows", "device memory grows"

Key = tuple["str | None", "str | None"]
"""(role, region). No region: the window itself. No role: the whole step."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An outlier: its step, its place, and the excess."""

    what: str
    """``slow step``, ``slow region``, ``memory grows`` or ``device memory grows``."""
    step: int
    role: str | None
    region: str | None
    unusual: Unusual
    at_unix_ns: int
    """The end of the window."""

    @property
    def facts(self) -> dict[str, object]:
        """Return the facts for the log, the mark and the run."""
        unusual = self.unusual
        if self.what.startswith("slow"):
            usual: dict[str, object] = {
                "seconds": round(unusual.value, 6),
                "median_seconds": round(unusual.median, 6),
                "times": round(unusual.value / unusual.median, 2) if unusual.median > 0 else None,
            }
        else:
            usual = {"bytes": int(unusual.value), "bytes_before": int(unusual.median)}
        where = {"region": self.region} if self.region is not None else {}
        return {"step": self.step, "role": self.role, **where, **usual}


class Watcher:
    """The histories of one process.

    Args:
        options: when a value is an outlier.
        is_recorded: returns whether a step was recorded.
    """

    def __init__(self, options: WatchOptions, is_recorded: Callable[[int], bool]) -> None:
        self._options = options
        self._is_recorded = is_recorded
        self._histories: dict[Key, History] = {}
        self._open: dict[tuple[int, str | None], dict[str, float]] = {}
        self._found: list[Finding] = []
        self._steps = 0
        """Number of steps seen."""
        self._last: tuple[int, int] = (-1, -1)
        """The last two steps."""
        self._ended_ns = 0
        self._rest_until = 0
        growth = options.memory_growth
        self._floors: dict[str, Floor] = {}
        if isinstance(growth, int):
            floors = {what: Floor(growth, options.window, options.skip_first) for what in (HOST, DEVICE)}
            self._floors = floors

    def take(self, span: Mapping[str, Any], *, is_old: bool = False) -> None:
        """Add a span, in the order in which they ended. An old one is history only."""
        step, role, kind = span.get("step"), span.get("role"), span.get("kind")
        if step is None:
            return
        if kind == "window":
            self._end(span, step, role)
            if is_old:
                self._found.clear()
        elif kind == "region" and self._is_watched(role, span["name"]):
            key = (step, role)
            if key not in self._open and len(self._open) >= MAX_OPEN:
                self._open.pop(next(iter(self._open)))
            sums = self._open.setdefault(key, {})
            if span["name"] in sums or len(sums) < MAX_HISTORIES:
                sums[span["name"]] = sums.get(span["name"], 0.0) + span["dur"] / 1e9

    def _is_watched(self, role: str | None, region: str | None) -> bool:
        options = self._options
        if options.roles is not None and role is not None and role not in options.roles:
            return False
        return region is None or options.regions is None or region in options.regions

    def _end(self, span: Mapping[str, Any], step: int, role: str | None) -> None:
        """Add a completed window, with the sums of its regions."""
        regions = self._open.pop((step, role), {})
        if step != self._last[1]:
            self._last = (self._last[1], step)
            self._steps += 1
        self._ended_ns = span["start"] + span["dur"]
        if span.get("error") or not self._is_watched(role, None) or any(map(self._is_recorded, self._last)):
            return
        seconds = span["dur"] / 1e9
        for region, spent in regions.items():
            unusual = self._judge((role, region), spent)
            if unusual is not None and unusual.excess >= MATTERS * seconds:
                self._note(Finding("slow region", step, role, region, unusual, self._ended_ns))
        unusual = self._judge((role, None), seconds)
        if unusual is not None:
            self._note(Finding("slow step", step, role, None, unusual, self._ended_ns))

    def _judge(self, key: Key, seconds: float) -> Unusual | None:
        history = self._histories.get(key)
        if history is None:
            if len(self._histories) >= MAX_HISTORIES:
                return None
            history = self._histories[key] = History(self._options)
        return history.add(seconds)

    def _note(self, finding: Finding) -> None:
        if self._steps >= self._rest_until:
            self._found.append(finding)

    def findings(self, resident: int | None, device: int | None) -> list[Finding]:
        """Return what is new: the narrowest finding of the first unusual step, and growing memory.

        Args:
            resident: the published memory of the process; None: there is no new reading.
            device: the same of its devices.
        """
        result = []
        found, self._found = self._found, []
        if found:
            self._rest_until = self._steps + self._options.window
            result.append(min((each for each in found if each.step == found[0].step), key=_narrowest))
        for what, reading in ((HOST, resident), (DEVICE, device)):
            if reading is not None and self._steps and what in self._floors:
                unusual = self._floors[what].add(reading, self._steps)
                if unusual is not None:
                    result.append(Finding(what, self._last[1], None, None, unusual, self._ended_ns))
        return result


def _narrowest(finding: Finding) -> tuple[bool, bool, float]:
    """Return the sort key: regions, then windows of a role, then whole steps; the largest excess first."""
    return finding.region is None, finding.role is None, -finding.unusual.excess

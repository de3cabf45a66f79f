"""Detect slow steps, slow regions and growing memory, from the drained spans, on the background
thread.

An outlier of a history is one log line and a mark in the spans. The next step of the same role is
recorded, within the budget of the run. A recorded step, and the one after it, are slower because of
the recording, so they are not part of any history.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepprof.host.memory import device_bytes, resident_bytes
from stepprof.log import logger
from stepprof.recording.watch.baseline import Floor, History, Unusual, median_of

if TYPE_CHECKING:
    from stepprof.config.options.watch import WatchOptions
    from stepprof.instrument.scope import Span
    from stepprof.instrument.span_recorder import Recorder
    from stepprof.recording.control.auto_capture import AutoCaptures

MATTERS = 0.1
"""A slow region must cost at least this share of its window's time more than usual."""

MAX_HISTORIES = 512
"""Maximum number of regions and roles to watch: a program may invent names for each step."""

MAX_OPEN = 256
"""Maximum number of windows whose regions are being summed."""

LEAD_SECONDS = 0.05
"""A step that begins within this time may begin before its request is accepted."""

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


@dataclass(slots=True)
class _Pace:
    """The sequence of the windows of one role."""

    last: int
    stride: int = 1
    begun_ns: deque[int] = field(default_factory=lambda: deque(maxlen=9))

    def note(self, step: int, begun_ns: int) -> None:
        """Add a completed window."""
        if step > self.last:
            self.stride = step - self.last
        if step != self.last or not self.begun_ns:
            self.begun_ns.append(begun_ns)
        self.last = step

    def next_step(self) -> int:
        """Return the next step that will not have begun when a request for it is accepted."""
        begun = list(self.begun_ns)
        between = [(after - before) / 1e9 for before, after in itertools.pairwise(begun)]
        usual = max(median_of(between), 1e-4) if between else math.inf
        return self.last + self.stride * (1 + math.ceil(LEAD_SECONDS / usual))


@dataclass(eq=False)
class Watcher:
    """The histories of one process."""

    options: WatchOptions
    """When a value is an outlier."""
    recorder: Recorder
    """Receives the marks."""
    came: Callable[[int], bool]
    """Returns whether a window of this step was selected."""
    captures: AutoCaptures
    """Requests recorded steps."""
    rank: Callable[[], int | str]
    """Returns the rank of this process."""

    name = "watching"

    def __post_init__(self) -> None:
        """Begin without any history."""
        self._histories: dict[Key, History] = {}
        self._open: dict[tuple[int, str | None], dict[str, float]] = {}
        self._found: list[tuple[Finding, Span]] = []
        self._paces: dict[str | None, _Pace] = {}
        self._steps = 0
        """Number of steps seen here."""
        self._last: tuple[int, int] = (-1, -1)
        """The last two steps."""
        self._window: Span | None = None
        self._rest_until = 0
        self._floors: dict[str, Floor] = {}
        options, growth = self.options, self.options.memory_growth
        if isinstance(growth, int):
            floors = {what: Floor(growth, options.window, options.skip_first) for what in (HOST, DEVICE)}
            self._floors = floors

    # -- drained spans

    def take(self, spans: Sequence[Span]) -> None:
        """Add spans, in the order in which they ended."""
        for span in spans:
            where = span[6]
            if where is None or where.number is None:
                continue
            if span[1] == "window":
                self._end(span, where.number, where.role)
            elif span[1] == "region" and self._is_watched(where.role, span[0]):
                key = (where.number, where.role)
                if key not in self._open and len(self._open) >= MAX_OPEN:
                    self._open.pop(next(iter(self._open)))
                sums = self._open.setdefault(key, {})
                if span[0] in sums or len(sums) < MAX_HISTORIES:
                    sums[span[0]] = sums.get(span[0], 0.0) + (span[3] - span[2]) / 1e9

    def _is_watched(self, role: str | None, region: str | None) -> bool:
        options = self.options
        if options.roles is not None and role is not None and role not in options.roles:
            return False
        return region is None or options.regions is None or region in options.regions

    def _end(self, span: Span, step: int, role: str | None) -> None:
        """Add a completed window, with the sums of its regions."""
        regions = self._open.pop((step, role), {})
        if step != self._last[1]:
            self._last = (self._last[1], step)
            self._steps += 1
        self._window = span
        pace = self._paces.get(role)
        if pace is None:
            if len(self._paces) >= MAX_HISTORIES:
                self._paces.pop(next(iter(self._paces)))
            pace = self._paces[role] = _Pace(step)
        pace.note(step, span[2])
        if span[8] or not self._is_watched(role, None) or any(map(self.came, self._last)):
            return
        seconds = (span[3] - span[2]) / 1e9
        for region, spent in regions.items():
            unusual = self._judge((role, region), spent)
            if unusual is not None and unusual.excess >= MATTERS * seconds:
                self._note(Finding("slow region", step, role, region, unusual), span)
        unusual = self._judge((role, None), seconds)
        if unusual is not None:
            self._note(Finding("slow step", step, role, None, unusual), span)

    def _judge(self, key: Key, seconds: float) -> Unusual | None:
        history = self._histories.get(key)
        if history is None:
            if len(self._histories) >= MAX_HISTORIES:
                return None
            history = self._histories[key] = History(self.options)
        return history.add(seconds)

    def _note(self, finding: Finding, span: Span) -> None:
        if self._steps >= self._rest_until:
            self._found.append((finding, span))

    # -- each round

    def look(self) -> None:
        """Report one finding (the narrowest of the first unusual step since the last round), and read the memory."""
        window = self._window
        if window is None:
            return
        self.captures.look(max(pace.last for pace in self._paces.values()), self._next_step)
        found, self._found = self._found, []
        if found:
            self._rest_until = self._steps + self.options.window
            first = found[0][0].step
            self._report(*min((each for each in found if each[0].step == first), key=_narrowest))
        for what, floor in self._floors.items():
            reading = resident_bytes() if what == HOST else device_bytes()
            unusual = None if reading is None else floor.add(reading, self._steps)
            if unusual is not None:
                self._report(Finding(what, self._last[1], None, None, unusual), window)

    def close(self, timeout: float) -> None:
        """Do nothing: there is no rest."""

    def _report(self, finding: Finding, span: Span) -> None:
        """Log a finding, mark the end of its window, and request a capture."""
        facts, role = finding.facts, finding.role
        outcome = self.captures.record(finding.what, facts, role, lambda: self._next_step(role))
        attributes = {**facts, "capture": outcome}
        mark: Span = (finding.what, "mark", span[3], span[3], span[4], span[5], span[6], attributes, False)
        self.recorder.pending.append(mark)
        logger.warning("watch.alert", what=finding.what, **attributes, rank=self.rank())

    def _next_step(self, role: str | None) -> int:
        """Return the next step of a role; if it has no window, of the role that ran last."""
        pace = self._paces.get(role) or max(self._paces.values(), key=lambda pace: pace.last)
        return pace.next_step()


def _narrowest(found: tuple[Finding, Span]) -> tuple[bool, bool, float]:
    """Return the sort key: regions, then windows of a role, then whole steps; the largest excess first."""
    finding = found[0]
    return finding.region is None, finding.role is None, -finding.unusual.excess

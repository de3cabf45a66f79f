"""What the recorded data shows of a step: the layer between the truth and any figure.

Every process is placed on the clock of the report, by the offset that the report states for it.
Whether that offset is right within its stated error is checked separately. So figures from placed
times can be compared exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from truth.model import Call, Note, Process, Region, Stretch, Truth, Window, Work
from truth.tracing import CALL_STREAM, shown

__all__ = ["Known", "Place", "clipped", "known_of", "merged", "minus", "total"]


@dataclass(frozen=True)
class Place:
    """How a process is placed: `shift` is added to true times. Times of processes on one island can
    be compared.
    """

    shift: int
    error: int
    island: object


@dataclass
class Known:
    """One process, as far as it was recorded, with placed times."""

    process: Process
    place: Place
    windows: list[tuple[str | None, int, int]] = field(default_factory=list)
    """(role, start, end) of the windows whose end is known."""
    open: list[Window] = field(default_factory=list)
    """Windows without a known end."""
    parts: list[tuple[str | None, int, int]] = field(default_factory=list)
    """The known parts of `open`: from the start of a window until its capture ended."""
    regions: list[Region] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    spans: bool = False
    """Whether the process has a span file."""
    around: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Region and role of each call, by its id.

    The region is the innermost one that the trace shows, for kernels on their stream. Regions that
    had not ended are missing.
    """
    computing: list[Work] = field(default_factory=list)
    """Events that count as work: kernels and copies, or, in a trace without a device, operators."""
    covered: list[Stretch] = field(default_factory=list)
    """Times in which the absence of an event shows that nothing happened."""
    traced: list[Window] = field(default_factory=list)
    """Windows with a trace."""

    @property
    def device(self) -> bool:
        """Return whether the traces show a device; a device that did nothing is not visible."""
        moved = any(each.kind in ("kernel", "copy") for each in self.work)
        return self.process.devices > 0 and (moved or bool(self.calls))

    @property
    def rank(self) -> int | str:
        """Return the rank of the process."""
        return self.process.rank

    def at(self, time: int) -> int:
        """Return a true time as a placed time."""
        return time + self.place.shift

    def stretches(self, things: Iterable[Work | Region | Window]) -> list[Stretch]:
        """Return the placed times of work, regions or windows."""
        return [(self.at(each.start), self.at(each.end)) for each in things]

    def call(self, call: Call) -> Stretch:
        """Return the placed times of the process's part of a call."""
        return self.at(call.arrive[self.rank]), self.at(call.leave[self.rank])


def known_of(truth: Truth, process: Process, place: Place) -> Known:
    """Return what is known of a process.

    A killed process has no spans of its last window. Only roles of its earlier windows are then
    known as roles and not as attributes of the user, so a region may have no role.
    """
    spans = truth.spans and process.has_spans
    known = Known(process, place, spans=spans)
    for window in process.windows:
        in_manifest = window in process.windows_in_manifest(truth)
        # without spans, only the end of a capped capture is known, and no end of a lost one
        whole = in_manifest and window.status != "lost" and window.capped_by is None
        if (spans and not process.ended(window.end)) or whole:
            known.windows.append((window.role, known.at(window.start), known.at(window.end)))
        elif in_manifest:
            known.open.append(window)
            until = window.start if window.captured is None else window.captured
            known.parts.append((window.role, known.at(window.start), known.at(until)))
        if window.captured is None or process.rank == "driver" or window.joined:
            continue
        known.traced.append(window)
        things = shown(process, window)
        work = [thing for thing in things if isinstance(thing, Work)]
        known.work += work
        on_device = [each for each in work if each.kind in ("kernel", "copy")]
        if process.devices and (on_device or any(isinstance(thing, Call) for thing in things)):
            known.computing += on_device
        else:
            known.computing += [each for each in work if each.kind == "op"]
        known.calls += [thing for thing in things if isinstance(thing, Call)]
        regions = [thing for thing in things if isinstance(thing, Region)]
        notes = [thing for thing in things if isinstance(thing, Note) and thing.stream == (0, CALL_STREAM)]
        for call in things:
            if isinstance(call, Call):
                known.around[id(call)] = (
                    _innermost(call, process.rank, notes if process.devices else regions),
                    _role(call, process, window),
                )
        if not spans:
            known.regions += regions
        if not window.truncated:
            known.covered.append((known.at(window.start), known.at(window.captured)))
    if spans:
        closed = {window.role for window in process.windows if not process.ended(window.end)}
        known.regions = [
            region if not closed or region.role in closed else replace(region, role=None)
            for region in process.regions
            if not process.ended(region.end)
        ]
    return known


def _innermost(call: Call, rank: int | str, regions: Sequence[Region | Note]) -> str:
    holding = [
        region for region in regions if region.start <= call.arrive[rank] and call.leave[rank] <= region.end
    ]
    # of two regions with the same times, the inner one was written later
    return min(reversed(holding), key=lambda region: region.end - region.start).name if holding else ""


def _role(call: Call, process: Process, window: Window) -> str:
    """Return the role of a call. In a capture around several windows, it is the role of the window
    in which the call began.
    """
    at = call.arrive[process.rank]
    inner = [each for each in process.windows if each.joined and each.start <= at < each.end]
    return (inner[0] if inner else window).role or ""


def merged(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Return the union, in order."""
    found: list[Stretch] = []
    for start, end in sorted(stretches):
        if start >= end:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def total(stretches: Iterable[Stretch]) -> int:
    """Return the length of the union."""
    return sum(end - start for start, end in merged(stretches))


def clipped(stretches: Iterable[Stretch], start: int, end: int) -> list[Stretch]:
    """Return the parts within bounds."""
    return [(max(a, start), min(b, end)) for a, b in stretches if a < end and b > start]


def minus(stretches: Iterable[Stretch], others: Sequence[Stretch]) -> list[Stretch]:
    """Return the union of some stretches, without others."""
    left = merged(stretches)
    for low, high in merged(others):
        parts: list[Stretch] = []
        for start, end in left:
            if start < low:
                parts.append((start, min(end, low)))
            if end > high:
                parts.append((max(start, high), end))
        left = [part for part in parts if part[0] < part[1]]
    return left

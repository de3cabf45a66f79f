"""Define the schema of ``stepprof report --json``. The terminal and the page are rendered from it.

Points in time (``at``, ``start``, ``end``) are seconds after the report's ``start_unix_ns``; all
other seconds are durations. A field that is None and a list that is empty are unknown, never zero.
"""

from __future__ import annotations

import msgspec

from stepprof.analysis.recording_cost import RecordingCost

__all__ = [
    "SCHEMA_VERSION", "Bar", "Change", "Comparison", "Finding", "GanttRow", "Headline", "Idle", "Island", "Memory", "Op", "Overhead", "Overlap", "PhaseSkew", "ProcessTime", "Report",
    "Rollout", "Sample", "Shortfall", "SourceInfo", "Spread", "StopCost", "TimeOf",
    "UnmatchedTime",
]  # fmt: skip

SCHEMA_VERSION = 2


class SourceInfo(msgspec.Struct, frozen=True):
    """One trace or span file that the report uses, or a capture that produced none."""

    label: str
    kind: str
    path: str | None
    role: str | None
    rank: int | str | None
    replica: int | None
    host: str | None
    status: str | None
    """The outcome in the manifest; None for a trace that stepprof did not record."""
    events: int
    bytes: int | None
    alignment: str
    offset_ns: int
    error_ns: int | None
    island: str = ""
    """The clock that its times are on, as `Island.clock`."""


class Headline(msgspec.Struct, frozen=True):
    """A finding as a sentence, the most expensive first."""

    text: str
    topic: str
    """``straggler``, ``tail``, ``idle``, ``overlap``, ``overhead``, ``memory``, ``coverage``, …"""
    seconds: float | None = None
    """Its cost in seconds of the step, if known; headlines are sorted by it."""


class Bar(msgspec.Struct, frozen=True, array_like=True):
    """One bar of a row: a window, a region, a phase of an engine."""

    start: float
    seconds: float
    name: str
    role: str | None
    depth: int


class GanttRow(msgspec.Struct, frozen=True):
    """One process over the step."""

    label: str
    host: str | None
    kind: str
    bars: list[Bar]
    busy: list[tuple[float, float]] = []
    """Where its device or its threads worked, merged to a few hundred intervals of (start,
    seconds).
    """


class ProcessTime(msgspec.Struct, frozen=True):
    """Seconds of one process."""

    label: str
    seconds: float
    calls: int = 1
    end: float | None = None


class TimeOf(msgspec.Struct, frozen=True):
    """Time of a role (``region`` None) or of a region within it."""

    role: str | None
    region: str | None
    seconds: float
    """Wall time: the union over all processes."""
    share: float
    """Share of the step's wall time."""
    per_process: list[ProcessTime]
    clock: str | None = None
    """The hosts of this clock, if the step was recorded on clocks that were never compared."""


class PhaseSkew(msgspec.Struct, frozen=True):
    """The straggler of a phase that several ranks go through, and the waits of the others."""

    role: str | None
    region: str | None
    straggler: str
    """The process that ended last; in collectives, the one that the others waited for longest."""
    spread: float
    """Last end minus the first end."""
    behind_median: float
    """How far it was behind the median of the others."""
    waited: list[ProcessTime]
    """The wait of each of the others, and its number of calls.

    ``end``: from its own end to the last one. ``collectives``: its wait for the straggler in
    collectives, without time in which it computed.
    """
    significant: bool
    """Whether the spread exceeds the error of the clocks."""
    basis: str = "end"
    """``end``: by the time when the processes finished the phase. ``collectives``: by their waits
    in the phase's collectives until the straggler came; `spread` is then the longest wait minus the
    straggler's own.
    """
    began_later: float | None = None
    """How much later than the median of the others it started. That part of the delay is not from
    this phase.
    """
    by_profiler: float = 0.0
    """The part of the delay that the profiler caused by holding it up for longer than the median of
    the others.
    """
    by_waiting: float = 0.0
    """The part of the delay that it spent in the phase's collectives, where it may have waited for
    others.
    """


class UnmatchedTime(msgspec.Struct, frozen=True):
    """Communication that could not be matched across ranks. Waiting and transfer cannot be
    separated, and no rank is named.
    """

    role: str | None
    region: str | None
    spent: list[ProcessTime]
    """By process, the longest first."""
    recorded: int | None
    """The recorded members of the process group; None: not known, or not the same for all calls."""
    members: int | None
    """The members of the group; None: not known, or not the same for all calls."""


class Idle(msgspec.Struct, frozen=True):
    """How one process spent the step: ``busy`` plus the causes are its wall time."""

    label: str
    wall: float
    """Length of the step, on the clock of the process's host."""
    busy: float
    """Seconds recorded as work: kernels, operators, forward steps, and CPU time of a window's
    thread beyond these.
    """
    causes: dict[str, float]
    """Seconds by cause.

    ``profiler``: held up by the recording, or waiting for another rank that was. ``collective``:
    waiting for another rank in a collective. ``collective_unmatched``: in communication that could
    not be matched. ``host``: its device had no work. ``not_recorded``: in windows that no capture
    covers. ``rollout``: no own work was recorded while generation ran; ``peers``: while other ranks
    of its role were in their windows; ``other_role``: while other roles ran. ``unknown``.
    """


class Sample(msgspec.Struct, frozen=True):
    """One sample that was bound with ``stepprof.bind(sample=…)``: its seconds by region."""

    sample: str
    start: float
    end: float
    seconds: dict[str, float]


class Rollout(msgspec.Struct, frozen=True):
    """One engine's generation: batch size over time, and the tail."""

    label: str
    iterations: int
    seconds: float
    peak_batch: float
    mean_batch: float
    below_half: float
    """Share of the phase below half of the peak batch."""
    tail: float
    """Seconds at the end below half of the peak batch."""
    curve: list[tuple[float, float]]
    """(at, batch size), at most a few hundred points, each holding until the next."""
    samples: list[Sample] = []
    """The longest samples, longest first."""
    whole: bool = True
    """Whether the capture covers all of the phase. False: it was capped, or is incomplete."""


class Overlap(msgspec.Struct, frozen=True):
    """Communication and computation of one process."""

    label: str
    device: str
    """``gpu``, ``npu`` or ``cpu``; with its number if the process used several: ``gpu 1``."""
    compute: float
    communication: float
    overlapped: float
    exposed: float
    """Communication that no computation overlaps."""
    busy_share: float | None
    """Share of the time that the captures of its process cover, for the device; None: not known."""


class Op(msgspec.Struct, frozen=True):
    """An operator or kernel, over all sources."""

    name: str
    kind: str
    """``op`` or ``kernel``."""
    calls: int
    seconds: float
    self_seconds: float
    share: float
    """Share of the self time of all operators, or of all kernels."""
    per_process: list[ProcessTime] = []
    """Its self time in each process, the longest first."""


class Memory(msgspec.Struct, frozen=True):
    """The peak of a process's memory."""

    label: str
    device: str
    """Device and kind: ``GPU 0, allocated``."""
    peak_bytes: int
    at: float | None


class Overhead(msgspec.Struct, frozen=True):
    """The cost of recording for a process or an engine. Seconds; None: not known."""

    label: str
    arm: float | None = None
    """Preparing the profiler, before a window or in an earlier one."""
    start: float | None = None
    """Starting the profiler; for an engine, its start call."""
    wait: float | None = None
    """Waiting for an earlier stop."""
    stall: float | None = None
    """The time for which the stop held the training thread, including an export in the process."""
    export: float | None = None
    """The export that runs concurrently with training."""
    stop: float | None = None
    """An engine's stop call."""

    @property
    def held(self) -> float:
        """All time for which recording held the training thread."""
        return sum(filter(None, (self.arm, self.start, self.wait, self.stall)))


class StopCost(msgspec.Struct, frozen=True):
    """The time that an engine took to write its trace, with estimates for other limits."""

    label: str
    iterations: int
    """Forward steps in the trace."""
    seconds: float
    basis: str
    """``write``: from the end of the recording until the file was written. ``stop``: the time until
    the engine answered the stop, minus the time for which it continued to record.
    """
    estimates: list[tuple[int, float]]
    """(max_iterations, seconds), in proportion to the forward steps."""


class Shortfall(msgspec.Struct, frozen=True):
    """A capture that does not cover all of its window, or has no trace."""

    label: str
    status: str
    """The outcome in the manifest; ``damaged`` if the file is damaged."""
    capped_by: str | None
    """The limit that ended it before its window: ``max_seconds``, …"""
    reason: str | None
    recorded: float | None
    """Seconds that it covers; None: not known."""
    window: float | None
    """Seconds of its window; None: not known."""
    iterations: int | None = None
    """Forward steps that an engine recorded before it ended its capture by itself; None: another reason, or not known."""


class Island(msgspec.Struct, frozen=True):
    """Hosts whose clocks were compared with each other but not with other hosts. Times of different
    islands are never compared.
    """

    hosts: list[str]
    start_unix_ns: int
    """Second 0 of all times of its processes."""
    seconds: float
    clock: str = ""
    """The name of its clock; empty: the common clock of the step."""


class Finding(msgspec.Struct, frozen=True):
    """A problem of the data that the report is made from."""

    source: str | None
    problem: str


class Report(msgspec.Struct, frozen=True):
    """One step."""

    run_id: str
    step: int | None
    """None: the traces state no step."""
    start_unix_ns: int
    seconds: float
    """From the first window to the last. If clocks were never compared, the longest of all islands."""
    clock: str
    """How the sources were placed on one clock, in a sentence."""
    clock_error_ns: int | None
    schema_version: int = SCHEMA_VERSION
    stepprof: str = ""
    occurrence: int = 1
    """The occurrence of the step, out of `occurrences`: its number may have been used for several
    steps.
    """
    occurrences: int = 1
    version: int | str | None = None
    headlines: list[Headline] = []
    sources: list[SourceInfo] = []
    gantt: list[GanttRow] = []
    roles: list[TimeOf] = []
    regions: list[TimeOf] = []
    skew: list[PhaseSkew] = []
    unmatched: list[UnmatchedTime] = []
    idle: list[Idle] = []
    rollout: list[Rollout] = []
    overlap: list[Overlap] = []
    ops: list[Op] = []
    kernels: list[Op] = []
    memory: list[Memory] = []
    overhead: list[Overhead] = []
    recording: RecordingCost | None = None
    stops: list[StopCost] = []
    shortfalls: list[Shortfall] = []
    findings: list[Finding] = []
    islands: list[Island] = []
    """Several if the step was recorded on hosts whose clocks were never compared. Then each figure
    covers the processes of one island.
    """


class Spread(msgspec.Struct, frozen=True):
    """How much the steps of a run that were not recorded differ in one part."""

    role: str | None
    """None, without a region: the whole step."""
    region: str | None
    """None: the role as a whole."""
    steps: int
    median: float
    deviation: float
    """One standard deviation, in seconds."""


class Change(msgspec.Struct, frozen=True):
    """The time of one part in A and in B."""

    what: str
    topic: str
    """``step``, ``role``, ``region``, ``op``, ``kernel``, ``rollout``."""
    a: float
    b: float
    noise: float | None
    """The noise in seconds: the larger one of the two below; None: neither is known."""
    significant: bool
    """Whether the difference exceeds the noise, if that is known."""
    noise_processes: float | None = None
    """Between processes of A or of B that did equal work; None: there is one process."""
    noise_steps: float | None = None
    """Between steps, by the spans of other steps of A's or of B's run; None: too few steps have
    spans.
    """
    steps: int = 0
    """The number of steps that it is computed from."""


class Comparison(msgspec.Struct, frozen=True):
    """Two steps or two runs: what became slower or faster, the largest change first."""

    a: str
    b: str
    schema_version: int = SCHEMA_VERSION
    headlines: list[Headline] = []
    changes: list[Change] = []
    findings: list[Finding] = []

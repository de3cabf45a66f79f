"""What a report says: the stable schema of ``stepprof report --json``, and what the terminal and the page are drawn from.

Seconds are relative to ``start_unix_ns`` of the report where they are points in time (``at``, ``start``, ``end``), lengths of time otherwise. A field that is None, or a list that is
empty, is not known from what was recorded: never zero.
"""

from __future__ import annotations

import msgspec

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
    """One stretch of a row: a window, a region, an engine's phase."""

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
    """Where its device or its threads worked, merged to a few hundred stretches of (start, seconds)."""


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
    """On the clock: the union over all processes."""
    share: float
    """Of the step's wall time."""
    per_process: list[ProcessTime]
    clock: str | None = None
    """The hosts whose clocks this is on, where the step was recorded on clocks that were never compared."""


class PhaseSkew(msgspec.Struct, frozen=True):
    """A phase that several ranks go through: who came last, and what the others waited."""

    role: str | None
    region: str | None
    straggler: str
    """The process that ended last; of collectives the one that the others waited for longest."""
    spread: float
    """Last end minus the first end."""
    behind_median: float
    """How far it was behind the median of the others."""
    waited: list[ProcessTime]
    """How long each of the others was done before the last one; of collectives how long it waited for the straggler in them without computing meanwhile, and in how many calls."""
    significant: bool
    """Whether the spread exceeds what the clocks may be wrong by."""
    basis: str = "end"
    """``end``: by when the processes finished the phase. ``collectives``: by how long each stood in the phase's collectives until the straggler came; `spread` is then the longest
    wait less the straggler's own."""
    began_later: float | None = None
    """How much later than the median of the others it began: so much of its being late is not of this phase."""
    by_profiler: float = 0.0
    """How much of its being late the profiler caused, which held it up for longer than the median of the others."""
    by_waiting: float = 0.0
    """How much of its being late it stood in the phase's collectives, where it may have waited for others."""


class UnmatchedTime(msgspec.Struct, frozen=True):
    """Communication that could not be matched across ranks: waiting and transfer cannot be separated in it, and no rank is named."""

    role: str | None
    region: str | None
    spent: list[ProcessTime]
    """By process, the longest first."""
    recorded: int | None
    """How many members of the process group were recorded; None: not known, or not the same for all calls."""
    members: int | None
    """How many members the group has; None: likewise."""


class Idle(msgspec.Struct, frozen=True):
    """How one process spent the step: ``busy`` plus the causes are its wall time."""

    label: str
    wall: float
    """The step, on the clock of the process's host."""
    busy: float
    """What was recorded as work: kernels, operators, forward steps, and CPU time of a window's thread beyond these."""
    causes: dict[str, float]
    """``profiler`` (held up by the recording, or waiting for another rank that was), ``collective`` (waiting for another rank in a collective), ``collective_unmatched`` (in communication that could
    not be matched), ``host`` (its device had nothing to do), ``not_recorded`` (in windows that no capture covers), ``rollout``, ``peers``, ``other_role`` (nothing of its own was recorded while
    generation ran, while other ranks of its role were in their windows, while other roles ran), ``unknown``."""


class Sample(msgspec.Struct, frozen=True):
    """One sample that was bound with ``stepprof.bind(sample=…)``: its seconds by what it did."""

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
    """The longest ones, longest first."""
    whole: bool = True
    """Whether the capture is all of the phase; False: it was capped, or is not complete."""


class Overlap(msgspec.Struct, frozen=True):
    """Communication and computation of one process."""

    label: str
    device: str
    """``gpu``, ``npu`` or ``cpu``; with its number where the process used several: ``gpu 1``."""
    compute: float
    communication: float
    overlapped: float
    exposed: float
    """Communication that nothing overlaps."""
    busy_share: float | None
    """Of the device, over what the captures of its process cover; None where that is not known."""


class Op(msgspec.Struct, frozen=True):
    """An operator or kernel, over all sources."""

    name: str
    kind: str
    """``op`` or ``kernel``."""
    calls: int
    seconds: float
    self_seconds: float
    share: float
    """Of all self time of its kind."""
    per_process: list[ProcessTime] = []
    """Its self time in each process, the longest first."""


class Memory(msgspec.Struct, frozen=True):
    """The highest point of a process's memory."""

    label: str
    device: str
    """And of what: ``GPU 0, allocated``."""
    peak_bytes: int
    at: float | None


class Overhead(msgspec.Struct, frozen=True):
    """What recording cost a process, or an engine. Seconds; None: not known."""

    label: str
    arm: float | None = None
    """Preparing the profiler, before a window or in an earlier one."""
    start: float | None = None
    """Starting it; of an engine its start call."""
    wait: float | None = None
    """Waiting for an earlier stop."""
    stall: float | None = None
    """What the stop held the training thread, with an export in place."""
    export: float | None = None
    """The export beside training."""
    stop: float | None = None
    """An engine's stop call."""

    @property
    def held(self) -> float:
        """What held the training thread, in all."""
        return sum(filter(None, (self.arm, self.start, self.wait, self.stall)))


class StopCost(msgspec.Struct, frozen=True):
    """What an engine's trace took to be written, and an estimate of what it would have taken with another bound."""

    label: str
    iterations: int
    """Forward steps in the trace."""
    seconds: float
    basis: str
    """``write``: from the end of the recording until the file was written. ``stop``: the answer to the stop, less the time for which the engine recorded on."""
    estimates: list[tuple[int, float]]
    """(max_iterations, seconds), in proportion to the forward steps."""


class Shortfall(msgspec.Struct, frozen=True):
    """A capture that is not all of its window, or brought nothing."""

    label: str
    status: str
    """The outcome in the manifest; ``damaged`` where the file is."""
    capped_by: str | None
    """What ended it before its window: ``max_seconds``, …"""
    reason: str | None
    recorded: float | None
    """Seconds that it covers; None: not known."""
    window: float | None
    """Seconds of its window; None: not known."""
    iterations: int | None = None
    """Forward steps that an engine recorded before it ended its capture by itself; None: another reason, or not known."""


class Island(msgspec.Struct, frozen=True):
    """Hosts whose clocks are known against each other, where there are others that are not: times of different islands are never compared."""

    hosts: list[str]
    start_unix_ns: int
    """Second 0 of all times of its processes."""
    seconds: float
    clock: str = ""
    """What its clock is called; empty: the common clock of the step."""


class Finding(msgspec.Struct, frozen=True):
    """What is wrong with what the report is made from."""

    source: str | None
    problem: str


class Report(msgspec.Struct, frozen=True):
    """One step."""

    run_id: str
    step: int | None
    """None: traces that say of no step."""
    start_unix_ns: int
    seconds: float
    """From the first window to the last; where clocks were never compared, of the island where that is longest."""
    clock: str
    """How the sources came onto one clock, in a sentence."""
    clock_error_ns: int | None
    schema_version: int = SCHEMA_VERSION
    stepprof: str = ""
    occurrence: int = 1
    """Which occurrence of the step, out of `occurrences`: its number may have been used for several steps."""
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
    stops: list[StopCost] = []
    shortfalls: list[Shortfall] = []
    findings: list[Finding] = []
    islands: list[Island] = []
    """More than one where the step was recorded on hosts whose clocks were never compared; then each figure is of the processes of one."""


class Spread(msgspec.Struct, frozen=True):
    """How far the steps of a run that were not recorded differ among themselves in one thing."""

    role: str | None
    """None, without a region: the whole step."""
    region: str | None
    """None: the role as a whole."""
    steps: int
    median: float
    deviation: float
    """One standard deviation, in seconds."""


class Change(msgspec.Struct, frozen=True):
    """What one thing took in A and in B."""

    what: str
    topic: str
    """``step``, ``role``, ``region``, ``op``, ``kernel``, ``rollout``."""
    a: float
    b: float
    noise: float | None
    """How far it differs anyway, in seconds: the larger one of the two below; None: neither is known."""
    significant: bool
    """Whether the difference exceeds the noise, where that is known."""
    noise_processes: float | None = None
    """Between processes of A or of B that did equal work; None: one process only."""
    noise_steps: float | None = None
    """From step to step, by the spans of other steps of A's or of B's run; None: too few steps have spans, or it has none."""
    steps: int = 0
    """How many steps that is known of."""


class Comparison(msgspec.Struct, frozen=True):
    """Two steps, or two runs: what got slower, and what faster; the largest change first."""

    a: str
    b: str
    schema_version: int = SCHEMA_VERSION
    headlines: list[Headline] = []
    changes: list[Change] = []
    findings: list[Finding] = []

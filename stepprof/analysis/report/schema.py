"""Define the schema of ``stepprof report --json``. The terminal and the page are rendered from it.

Points in time (``at``, ``start``, ``end``) are seconds after the report's ``start_unix_ns``; all
other seconds are durations. A field that is None and a list that is empty are unknown, never zero.
"""

from __future__ import annotations

import msgspec

from stepprof.analysis.recording_cost import RecordingCost

SCHEMA_VERSION = 4


class SourceInfo(msgspec.Struct, frozen=True):
    """One trace or span file that the report uses, or a capture that produced none."""

    label: str
    """The process that it belongs to."""
    kind: str
    """``rank``: of a process that records itself. ``engine``: of an engine's worker. ``spans``: a span file. ``trace``: stepprof did not record it."""
    path: str | None
    """Relative to the run; None: the capture produced no file."""
    role: str | None
    """The role of its windows; None: none, or not known."""
    rank: int | str | None
    """The global rank; for an engine's worker its rank within the engine; ``driver`` for a driver."""
    replica: int | None
    """The engine's replica."""
    host: str | None
    """Where it was recorded."""
    status: str | None
    """The outcome in the manifest; None for a trace that stepprof did not record."""
    events: int
    """How many the report has read from it."""
    bytes: int | None
    """Size of the file."""
    alignment: str
    """How its clock was placed on the common one: ``reference`` (it is that clock), ``same-host``, ``kernel`` (another wall clock of a machine, compared by its kernel's clock), ``ping-pong``, ``calls`` (by the calls that an engine was started and stopped with), ``collectives``, ``shared`` (collectives end together on one clock), ``assumed`` (by ``--assume-offset``), ``unmeasured`` (never compared)."""
    offset_ns: int
    """What was subtracted from its times."""
    error_ns: int | None
    """How far that may be off; None: not known."""
    island: str = ""
    """The clock that its times are on, as `Island.clock`."""


class RecordedProcess(msgspec.Struct, frozen=True):
    """A process, and what of it was recorded."""

    label: str
    """The process. Other tables name it the same."""
    kind: str
    """``rank``, ``engine`` or ``trace``, as in `SourceInfo`."""
    rank: int | str | None
    """As in `SourceInfo`."""
    role: str | None = None
    """The role of an engine."""
    replica: int | None = None
    """The number of an engine among those of its role."""
    spans: bool = False
    """Whether its spans show its windows and regions from begin to end: it has spans, and did not end in a window."""
    captures: list[str] = []
    """The windows that its captures cover, by their roles (``step`` without one), with the region if only that was captured; for an engine or a trace its files."""
    options: list[str] | None = None
    """The profilers of these windows, and their options that are not the defaults, such as ``torch.with_stack = true``; None: not known."""
    whole: bool | None = None
    """Whether the captures cover these windows from begin to end; None: not known, or there are none."""
    ended: bool = True
    """Whether it left its windows at their end; false: an exception, SIGTERM or its death ended one of them, or its end is not known."""


class Job(msgspec.Struct, frozen=True):
    """The job that was recorded, as its first process described it when it began (`run.json`)."""

    command: list[str] = []
    """The command line. Secrets in it are replaced by "…"."""
    world_size: int | None = None
    """The number of ranks; None: not known."""
    model: str | None = None
    """The model that is trained, as the framework's configuration names it; None: not known."""
    versions: dict[str, str] = {}
    """Versions of Python and of the packages that were imported when it began."""
    platform: str | None = None
    """The operating system and the processor."""
    adapters: list[str] = []
    """The frameworks that stepprof has attached itself to."""


class Finding(msgspec.Struct, frozen=True):
    """What made the step long: where, why, and what to try."""

    text: str
    """The sentence. The terminal and the page print it too."""
    topic: str
    """The kind: ``straggler``, ``tail``, ``poll``, ``overlap``, ``memory``, ``coverage``, … ``docs/findings.md`` lists all."""
    seconds: float | None = None
    """Its seconds of the step; None: it has none. Findings that have a `start` share no second with each other."""
    process: str | None = None
    """The label of the process in which the cause lies, of those with a place of their own the one on the critical path (`also` has the others); None: several, or not known."""
    role: str | None = None
    """The role in which the cause lies; None: none, or not known."""
    region: str | None = None
    """The innermost region of the cause."""
    start: float | None = None
    """Where its longest stretch begins in the timeline; None: it has no place."""
    end: float | None = None
    """Where that stretch ends."""
    stretches: list[tuple[float, float]] = []
    """All of its stretches, as (start, seconds): they add up to its seconds, unless it has more than 200. Then these are the longest."""
    why: str | None = None
    """The evidence."""
    advice: str | None = None
    """What to try."""
    saves: float | None = None
    """How much shorter the step would be without the cause, from a replay of its work and waits; None: not known."""
    assumption: str | None = None
    """What `saves` assumes."""
    also: list[str] = []
    """Other processes in which the cause lies in the same region: `saves` is without it in them too."""


class Bar(msgspec.Struct, frozen=True, array_like=True):
    """One bar of a row: a window, a region, a phase of an engine. In JSON an array of its fields in this order."""

    start: float
    """Its begin."""
    seconds: float
    """Its duration."""
    name: str
    """The role of a window (``step`` without one), the region, or the phase."""
    role: str | None
    """The role around it."""
    depth: int
    """How many earlier bars are still open at its begin."""


class GanttRow(msgspec.Struct, frozen=True):
    """One process over the step."""

    label: str
    """The process. Other tables name it the same."""
    host: str | None
    """Where it ran."""
    kind: str
    """``rank``, ``engine`` or ``trace``, as in `SourceInfo`."""
    bars: list[Bar]
    """Its windows, regions and phases; in a long step only the longest."""
    busy: list[tuple[float, float]] = []
    """Where its device or its threads worked, merged to a few hundred intervals of (start,
    seconds).
    """


class ProcessTime(msgspec.Struct, frozen=True):
    """Seconds of one process."""

    label: str
    """The process."""
    seconds: float
    """Its time."""
    calls: int = 1
    """How often."""
    end: float | None = None
    """When the last of these calls ended; None: not known, or not asked."""


class TimeOf(msgspec.Struct, frozen=True):
    """Time of a role (``region`` None) or of a region within it."""

    role: str | None
    """None: windows without a role."""
    region: str | None
    """None: the role as a whole."""
    seconds: float
    """Wall time: the union over all processes. A window without a known end counts in its role as far as it was recorded."""
    share: float | None
    """Share of the step's wall time; None: its end is not known."""
    per_process: list[ProcessTime]
    """The time in each process. Processes overlap: do not add them up."""
    clock: str | None = None
    """The hosts of this clock, if the step was recorded on clocks that were never compared."""


class RegionTime(msgspec.Struct, frozen=True, array_like=True):
    """One row of the region tree in one process. In JSON an array of its fields in this order."""

    label: str
    """The process."""
    seconds: float
    """Time in which it was open."""
    self_seconds: float
    """The same without the regions inside it."""
    calls: int
    """How often."""


class RegionRow(msgspec.Struct, frozen=True):
    """A row of the region tree: the step, a role, a region, or what a region called. A row comes after its `parent`.

    In each process, the self time of the step, of a role or of a region and the seconds of its children that are no operators or kernels add up to its seconds:
    its self time is that outside of them. A region that outlasts the window in which it began ends with that window here. A region outside of every known window has no row: its process was killed in the window.
    Where children overlap (coroutines, or regions that do not end in the order in which they began), the one that began last has the self time: the self times
    of all rows below the step and its own add up to it in any case.
    """

    parent: int | None
    """The index of the row around it; None: it is at the top."""
    kind: str
    """``step``: the windows. ``role`` and ``region``. ``regions``: shorter regions together. ``op`` and ``kernel``: called by the row around it.
    ``threads``: regions of other threads, which run concurrently. ``unclear``: what a coroutine called, or a kernel without a recorded launch.
    """
    name: str
    """The region, operator or kernel; ``others``: all others that the row around it called."""
    calls: int
    """By all processes; of the step its windows without a role. 0 for ``threads``."""
    seconds: float
    """The median over the processes that have the row; for operators with inner operators, for kernels on the device."""
    self_seconds: float
    """The median of the time without inner regions or operators."""
    share: float | None
    """`seconds` as a share of the step; for operators and kernels that of `self_seconds`. None: the end of the step is not known."""
    least: float
    """The least seconds of a process."""
    most: float
    """The most seconds of a process."""
    slowest: str
    """The process with the most seconds."""
    processes: int
    """How many have the row."""
    per_process: list[RegionTime] = []
    """The processes, at most 64; empty for operators and kernels."""


class PhaseSkew(msgspec.Struct, frozen=True):
    """The straggler of a phase that several ranks go through, and the waits of the others."""

    role: str | None
    """The role of the phase; None: none."""
    region: str | None
    """The region; None: the role as a whole."""
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
    """The role around the communication; None: none."""
    region: str | None
    """The innermost region around it; None: none."""
    spent: list[ProcessTime]
    """By process, the longest first."""
    recorded: int | None
    """The recorded members of the process group; None: not known, or not the same for all calls."""
    members: int | None
    """The members of the group; None: not known, or not the same for all calls."""


class Idle(msgspec.Struct, frozen=True):
    """How one process spent the step: ``busy`` plus the causes are its wall time."""

    label: str
    """The process."""
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
    covers although one was wanted. ``rollout``: no own work was recorded while generation ran; ``peers``: while other ranks
    of its role were in their windows; ``other_role``: while other roles ran. ``unknown``: the
    rest. Of a process without a device, work outside of operators is the CPU time of the window's thread
    minus the length of its operators: where operators wait for a CPU, some of it counts as ``unknown``.
    """


class Sample(msgspec.Struct, frozen=True):
    """One sample that was bound with ``stepprof.bind(sample=…)``: its seconds by region."""

    sample: str
    """Its name, as bound."""
    start: float
    """The begin of its first region."""
    end: float
    """The end of its last one."""
    seconds: dict[str, float]
    """Its time in each region."""
    requests: int = 0
    """Its requests whose times are recorded (`stepprof.mark_request`)."""
    generated_tokens: int | None = None
    """The tokens that these generated; None: not stated for each of them."""
    first_token: float | None = None
    """Mean seconds from one of these requests to its first token; None: not stated."""
    per_token: float | None = None
    """Mean seconds between two tokens of these requests; None: not stated."""


class SampleSeconds(msgspec.Struct, frozen=True):
    """How some seconds, or tokens, are distributed over bound samples, or over their requests."""

    count: int
    """The number of samples, or of requests that state it."""
    mean: float
    """Their mean."""
    median: float
    """Their median."""
    p95: float
    """The 95th percentile."""
    longest: float
    """The longest one."""


class Rollout(msgspec.Struct, frozen=True):
    """One engine's generation: batch size over time, and the tail."""

    label: str
    """The engine; ``samples of rank 0`` if the curve is made from bound samples."""
    iterations: int
    """Forward steps; 0 for bound samples."""
    seconds: float
    """Length of the phase, from the first to the last generation."""
    peak_batch: float
    """Most sequences at a time."""
    mean_batch: float
    """Sequences at a time, mean over the phase."""
    below_half: float
    """Share of the phase below half of the peak batch."""
    tail: float
    """Seconds at the end below half of the peak batch."""
    curve: list[tuple[float, float]]
    """(at, batch size), at most a few hundred points, each holding until the next."""
    samples: list[Sample] = []
    """The longest samples, longest first."""
    sample_seconds: SampleSeconds | None = None
    """The durations of all bound samples, each from its first region to its last; None for an engine."""
    first_token: SampleSeconds | None = None
    """Seconds from each request of the bound samples to its first token, as the engines stated them or an adapter measured them; None: not recorded."""
    per_token: SampleSeconds | None = None
    """Mean seconds between two tokens of each such request; None: not recorded."""
    whole: bool = True
    """Whether the capture covers all of the phase. False: it was capped, or is incomplete."""
    generated_tokens: SampleSeconds | None = None
    """The tokens that each such request generated; None: not recorded."""


class Stage(msgspec.Struct, frozen=True):
    """The forward steps of one stage of an engine."""

    stage: str
    """``prefill``: the step worked on prompts; ``decode``: on sequences that it continued; ``mixed``: on both; ``other``: not stated."""
    iterations: int
    """The forward steps."""
    seconds: float
    """Their time, each until the next one began or the engine paused."""
    prefill_tokens: int | None
    """Tokens of prompts that they worked on; None: the engine does not state it."""
    decode_tokens: int | None
    """Tokens of continued sequences that they worked on, including recomputed ones; None: not stated."""


class EngineWork(msgspec.Struct, frozen=True):
    """What one engine did in the step: by its trace, and by its own statistics."""

    label: str
    """The engine: ``rollout/0``; the file of a trace whose engine is not known."""
    seconds: float
    """Seconds that the rates refer to."""
    basis: str
    """``generation``: `seconds` are from the first to the last forward step. ``window``: from the start to the stop of
    its capture, because the trace does not cover all forward steps.
    """
    stages: list[Stage] = []
    """The recorded forward steps by stage."""
    whole: bool = True
    """Whether the trace covers all forward steps of the window."""
    peak_batch: float | None = None
    """Most sequences at a time; None: no forward steps."""
    mean_batch: float | None = None
    """Sequences at a time, mean over the generation."""
    limit: int | None = None
    """Most sequences that its configuration allows at a time, over all of its schedulers; None: not known."""
    requests: int | None = None
    """Requests that it finished, by its own statistics."""
    prompt_tokens: int | None = None
    """Tokens of the prompts, by its own statistics. A prompt counts once."""
    cached_tokens: int | None = None
    """Those of them that came from a cache."""
    generated_tokens: int | None = None
    """Generated tokens, by its own statistics."""
    recomputed_tokens: int | None = None
    """Tokens that it computed again after preemptions: those of all forward steps without those of new prompts and
    of generation.
    """
    preemptions: int | None = None
    """How often it took a sequence out of the batch for lack of memory, by its own statistics."""
    prompt_tokens_per_second: float | None = None
    """`prompt_tokens` by `seconds`."""
    generated_tokens_per_second: float | None = None
    """`generated_tokens` by `seconds`."""
    first_token: float | None = None
    """Mean seconds from a request to its first token, by its own statistics."""
    per_token: float | None = None
    """Mean seconds between two tokens of a sequence, by its own statistics."""
    per_request: float | None = None
    """Mean seconds of a request, with its time in the queue, by its own statistics."""


class Overlap(msgspec.Struct, frozen=True):
    """Communication and computation of one process."""

    label: str
    """The process."""
    device: str
    """``gpu``, ``npu`` or ``cpu``; with its number if the process used several: ``gpu 1``."""
    compute: float
    """Time in which the device computed."""
    communication: float
    """Time in which the device communicated."""
    overlapped: float
    """Time in which the device did both."""
    exposed: float
    """Communication that no computation overlaps."""
    busy_share: float | None
    """Share of the time that the captures of its process cover, for the device; None: not known, or ``cpu``."""


class Op(msgspec.Struct, frozen=True):
    """An operator or kernel, over all sources."""

    name: str
    """As in the trace."""
    kind: str
    """``op`` or ``kernel``."""
    calls: int
    """How often it was called."""
    seconds: float
    """From begin to end, with inner operators."""
    self_seconds: float
    """Without inner operators."""
    share: float
    """Share of the self time of all operators, or of all kernels."""
    per_process: list[ProcessTime] = []
    """Its self time in each process, the longest first."""


class Memory(msgspec.Struct, frozen=True):
    """The peak of a process's memory."""

    label: str
    """The process."""
    device: str
    """Device and kind: ``GPU 0, allocated``."""
    peak_bytes: int
    """The most that was allocated at a time."""
    at: float | None
    """When; None: not known."""


class Allocator(msgspec.Struct, frozen=True):
    """What the allocator of a device counted since its process began, or since the job last reset its statistics."""

    label: str
    """The process."""
    device: int
    """The number of the device."""
    retries: int
    """How often it found no memory, freed its cache and tried again (``num_alloc_retries``)."""
    failed: int
    """How many requests failed all the same (``num_ooms``)."""


class Overhead(msgspec.Struct, frozen=True):
    """The cost of recording for a process or an engine. Seconds; None: not known."""

    label: str
    """The process, or the engine."""
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
    """The engine."""
    iterations: int
    """Forward steps in the trace."""
    seconds: float
    """How long it took."""
    basis: str
    """``write``: from the end of the recording until the file was written. ``stop``: the time until
    the engine answered the stop, minus the time for which it continued to record.
    """
    estimates: list[tuple[int, float]]
    """(max_iterations, seconds), in proportion to the forward steps."""


class Shortfall(msgspec.Struct, frozen=True):
    """A capture that does not cover all of its window, or has no trace."""

    label: str
    """The process, or the engine."""
    status: str
    """The outcome in the manifest; ``damaged`` if the file is damaged, ``cut`` if no manifest lists the file and it was read only in part, ``unreadable`` if no event of it could be used; ``unread`` if its reader died."""
    capped_by: str | None
    """The limit that ended it before its window: ``max_seconds``, …"""
    reason: str | None
    """The manifest's reason; None: none is known."""
    recorded: float | None
    """Seconds that it covers; None: not known."""
    window: float | None
    """Seconds of its window; None: not known."""
    iterations: int | None = None
    """Forward steps that an engine recorded before it ended its capture by itself; None: another reason, or not known."""
    early: bool = False
    """Its window ended early too: by an exception, SIGTERM or the end of the session."""
    regions: dict[str, float] = {}
    """Seconds of the outermost regions in the rest of the window, after the capture had ended, the longest first; {}: not known."""


class PathSegment(msgspec.Struct, frozen=True):
    """A part of the critical path: the chain of work and waits that made the step as long as it was."""

    process: str
    """The process that the step waited for at this time."""
    start: float
    """Its begin."""
    seconds: float
    """Its duration."""
    kind: str
    """``work``: in a window; ``communication``: in a collective that the last rank had entered;
    ``waiting``: in a collective, for a rank whose time cannot be compared; ``unmatched``: in
    communication that was not matched across ranks; ``engine``: an engine generated; ``handover``: after the process that this one waited for had
    finished; ``recording``: the profiler held the process up; ``outside``: in no window.
    """
    role: str | None = None
    """The role of the window; None: none."""
    region: list[str] = []
    """The names of the regions around it, the innermost one last; empty: it is in no region."""
    part: int | None = None
    """The index of its row in `Report.parts`; None: the step has none."""
    clock: str | None = None
    """The hosts of this clock, if the step was recorded on clocks that were never compared: then each has a path of its own."""


class Part(msgspec.Struct, frozen=True):
    """A part of the step: a role, an outermost region, or the rest.

    Its `seconds` are on the critical path: those of all parts add up to the step. Its `wall_seconds` are those in which any process
    was in it, also next to others: they overlap.
    """

    name: str
    """The role or the region. Of the rest: ``no role``, ``no region``, ``no role or region``, ``other regions``, ``in no window``, ``in no annotation`` (of a trace that stepprof did not record), or ``held up by the profiler``."""
    role: str | None
    """The role; None: a region outside of roles, or the rest."""
    region: str | None
    """The region; None: the role as a whole, or the rest."""
    seconds: float | None
    """Its time on the critical path; None: clocks were never compared, so that there is no path through the step."""
    share: float | None
    """`seconds` as a share of the step."""
    wall_seconds: float | None
    """The time in which any process was in it, in a region as the outermost one; None: of the rest."""
    wall_share: float | None
    """`wall_seconds` as a share of the step."""
    when: list[tuple[float, float]] = []
    """When any process was in it, as (start, seconds), without the narrowest gaps."""
    clock: str | None = None
    """The hosts of this clock, if the step was recorded on clocks that were never compared."""


class Slack(msgspec.Struct, frozen=True):
    """How much longer a process could have worked in a role before the step takes longer."""

    process: str
    """The process."""
    role: str | None
    """The role of its windows; None: none."""
    seconds: float
    """In the places where it waits: its waits in the role, and by how much its end in the role may be later.
    0: the step waited for it.
    """


class Island(msgspec.Struct, frozen=True):
    """Hosts whose clocks were compared with each other but not with other hosts. Times of different
    islands are never compared.
    """

    hosts: list[str]
    """The hosts whose clocks were compared."""
    start_unix_ns: int
    """Second 0 of all times of its processes."""
    seconds: float
    """From the start of their first window to the end of their last."""
    clock: str = ""
    """The name of its clock; empty: the common clock of the step."""
    ended: bool = True
    """Whether a process on this clock shows its end; false: `seconds` is a lower bound."""


class Problem(msgspec.Struct, frozen=True):
    """A problem of the data that the report is made from."""

    source: str | None
    """The file or process that it concerns; None: the step as a whole."""
    problem: str
    """The sentence."""
    unread: bool = False
    """The source was not read, because the process that read it died. It may be intact: read it again."""


class MarkedLength(msgspec.Struct, frozen=True):
    """A step that torch's profiler marked."""

    number: int
    """Its number (`ProfilerStep#N`)."""
    seconds: float
    """From its mark to the next one, in the rank in which that took longest."""


class Report(msgspec.Struct, frozen=True):
    """One step."""

    run_id: str
    """The run; of traces that stepprof did not record, the name of their file or folder."""
    step: int | None
    """None: the traces state no step."""
    start_unix_ns: int
    """Second 0 of all points in time, on the reference clock."""
    seconds: float
    """From the first window to the last. If clocks were never compared, the longest of all islands. A lower bound if `ended` is false."""
    clock: str
    """How the sources were placed on one clock, in a sentence."""
    clock_error_ns: int | None
    """The largest error of a source's placement; None: one of them is not known."""
    schema_version: int = SCHEMA_VERSION
    """The version of these fields."""
    ended: bool = True
    """False: its end is not known, because a process was killed in it or is still in it. It lasted at least `seconds`, and there is no path and no gain."""
    stepprof: str = ""
    """The version that made the report."""
    occurrence: int = 1
    """The occurrence of the step, out of `occurrences`: its number may have been used for several
    steps.
    """
    occurrences: int = 1
    """How often the number was used."""
    version: int | str | None = None
    """The version that the loop gave the step (`profile_step(version=…)`); None: none."""
    marked: list[MarkedLength] = []
    """The steps that torch's profiler marked in traces that stepprof did not record, by number."""
    job: Job | None = None
    """The job; None: the traces are of no run."""
    findings: list[Finding] = []
    """The step, what is missing from the data, the causes (the largest gain first), and their consequences."""
    sources: list[SourceInfo] = []
    """The files that the report was made from."""
    processes: list[RecordedProcess] = []
    """The processes, and what of them was recorded."""
    gantt: list[GanttRow] = []
    """The timeline, one row per process."""
    roles: list[TimeOf] = []
    """Time by role. Roles that run at the same time overlap."""
    parts: list[Part] = []
    """What divides the step: its roles, with the outermost regions of the time in no role; or those regions alone where no role divides it. In the order in which they begin; then the rest."""
    regions: list[TimeOf] = []
    """Time by region, the longest first."""
    tree: list[RegionRow] = []
    """Where the regions nest, and what they called; without engines."""
    path: list[PathSegment] = []
    """From the start of the step to its end, without a gap; empty: nothing is known of when
    processes were in windows.
    """
    slack: list[Slack] = []
    """How much longer the processes could have worked, the longest first. Without those of which no wait in
    either direction is known, or not all ends of windows, and without roles whose window ended early.
    """
    skew: list[PhaseSkew] = []
    """The ranks that were last in a phase. A later phase repeats the delay of an earlier one."""
    unmatched: list[UnmatchedTime] = []
    """Communication whose waits cannot be attributed."""
    idle: list[Idle] = []
    """How each process spent the step."""
    rollout: list[Rollout] = []
    """Generation of each engine, or of bound samples."""
    engines: list[EngineWork] = []
    """What each engine did: its forward steps by stage, and its own statistics."""
    overlap: list[Overlap] = []
    """Communication that is hidden by computation, and exposed."""
    ops: list[Op] = []
    """Operators of the host, by self time."""
    kernels: list[Op] = []
    """Kernels of devices, by self time."""
    memory: list[Memory] = []
    """Peaks of memory."""
    allocators: list[Allocator] = []
    """Allocators of devices that found no memory; only the backend ``memory`` records this."""
    overhead: list[Overhead] = []
    """What recording cost in each process."""
    recording: RecordingCost | None = None
    """The step compared with its neighbours that were not recorded; None: too few of them."""
    neighbourhood: Neighbourhood | None = None
    """The step among all steps of the run; None: no spans, or its number was used for several steps."""
    stops: list[StopCost] = []
    """What engines took to write their traces."""
    shortfalls: list[Shortfall] = []
    """Captures that miss a part of their window."""
    problems: list[Problem] = []
    """What could not be read or does not fit together."""
    islands: list[Island] = []
    """Several if the step was recorded on hosts whose clocks were never compared. Then each figure
    covers the processes of one island.
    """


class StepTime(msgspec.Struct, frozen=True):
    """How long a step of the run took in one process, by its windows."""

    step: int
    """Its number."""
    seconds: float
    """From the begin of its first window to the end of its last one, without the time that the recording took as far as it is known."""
    recorded: bool
    """Whether it was recorded, which can make it longer."""
    roles: dict[str, float] = {}
    """Its seconds in windows of each role."""
    regions: dict[str, float] = {}
    """Its seconds in each outermost region. Empty if the step has roles, or no regions."""
    held: float = 0.0
    """Seconds for which profilers held the process up, or others that it waited for. They are not in `seconds`."""


class Usual(msgspec.Struct, frozen=True):
    """How long the step, or one role or region of it, took, and how long in the other steps. Seconds."""

    role: str | None
    """None: the whole step, or a region."""
    seconds: float | None
    """In this step; None: it has no window of the role."""
    median: float
    """The median of the other steps."""
    shortest: float
    """The shortest of the other steps."""
    longest: float
    """The longest of the other steps."""
    steps: int
    """The number of other steps that have the role or the region."""
    typical: bool | None
    """Whether this step is near the median of the others, as these vary. None: the profiler held the processes of the step up at different times, or for different lengths of time, which may explain the difference."""
    region: str | None = None
    """An outermost region, where no role divides the step; None: the whole step, or a role."""


class CauseTimes(msgspec.Struct, frozen=True):
    """The place of a finding in the steps of the run, by the spans of its process. Seconds."""

    process: str
    """The process of the finding."""
    role: str | None
    """The role of the finding."""
    region: str | None
    """The region of the finding; None: the windows of the role."""
    by_step: dict[int, float]
    """The seconds in each step that has it, by its number."""
    usual: Usual | None = None
    """This step compared with the others; null: too few others have it."""


class Neighbourhood(msgspec.Struct, frozen=True):
    """The step among the other steps of the run, by the spans of one process."""

    process: str
    """The process: the driver; else that of the first cause, or the one with the most time on the critical path, of those with spans of the step."""
    steps: list[StepTime]
    """The steps in order, with this one; at most 200 before and after it."""
    others: list[int]
    """The steps that this one is compared with: those with the same roles that were not recorded, without the first step of the run."""
    parts: list[Usual]
    """The step as a whole, then its roles, or its outermost regions where no role divides it; empty: there are too few other steps."""
    text: str
    """The result as a sentence."""
    places: list[CauseTimes] = []
    """The places of the first three findings with a place, each in its own process, without those that `parts` shows."""


class Change(msgspec.Struct, frozen=True):
    """The time of one part in A and in B."""

    what: str
    """The part in words."""
    topic: str
    """``step``, ``role``, ``region``, ``op``, ``kernel``, ``rollout``."""
    a: float
    """Seconds in A."""
    b: float
    """Seconds in B."""
    noise: float | None
    """The noise in seconds, by which two equal steps may differ; None: not known."""
    significant: bool
    """Whether the difference exceeds the noise, if that is known."""
    noise_processes: float | None = None
    """Of operators, kernels and rollouts, between processes of A or of B that did equal work; None: there are no two. Steps may differ by more: a change is significant if it also exceeds the noise of the step."""
    noise_steps: float | None = None
    """Of the step, roles and regions, between steps, by the spans of other steps of A's or of B's run; None: too few steps have
    spans.
    """
    steps: int = 0
    """The number of steps that it is computed from."""


class Gate(msgspec.Struct, frozen=True):
    """Whether B is a regression of A, by ``--fail-on-regression``."""

    verdict: str
    """``none``, ``regression``, or ``unknown``: the noise is not known or too large, or the runs cannot be compared."""
    limit: float
    """The largest tolerated increase of the step, as a share of A."""
    text: str
    """The verdict as a sentence, with its figures."""
    a: float | None = None
    """Seconds of a step of A, by the clock of one process: the median over its steps that were not recorded, each from its begin to the begin of the next one; or over those that torch's
    profiler marked; or the windows of the step itself if A and B are of one run.
    """
    b: float | None = None
    """Seconds of a step of B, in the same way."""
    noise: float | None = None
    """Seconds by which the true difference may differ from the measured one, with 95 % certainty."""


class Comparison(msgspec.Struct, frozen=True):
    """Two steps or two runs: what became slower or faster, the largest change first."""

    a: str
    """The run and the step before."""
    b: str
    """The run and the step after."""
    schema_version: int = SCHEMA_VERSION
    """As in `Report`."""
    findings: list[Finding] = []
    """The largest significant changes, as sentences. Only `text`, `topic` and `seconds` are set."""
    changes: list[Change] = []
    """The parts that differ, the largest change first; at most 200."""
    problems: list[Problem] = []
    """What could not be read or compared."""
    gate: Gate | None = None
    """The verdict of ``--fail-on-regression``; None: it was not given."""

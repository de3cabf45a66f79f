"""Compute how each process spent the step: working, or waiting for one of the known causes.

Work is what was recorded as work: kernels, operators, and forward steps of an engine with
sequences. Without a device, it includes the CPU time of the window's thread beyond its operators.

Every other moment has one cause. If several apply, the most certain one counts. What no capture
covers although one was wanted is `not_recorded`. A process of which nothing was recorded has no row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepprof.analysis.report.incomplete_captures import NOT_A_CAPTURE
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.processes import Process, union
from stepprof.analysis.report.schema import Idle
from stepprof.analysis.report.waiting import Waiting
from stepprof.analysis.timeline.capture_window import LONGEST_SECONDS

LEAST_NS = 1000
"""A smaller part of a cause results from rounding: two edges of one moment differ slightly."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Facts that all processes of an island share."""

    when: Intervals
    generating: Intervals
    """Time in which an engine had sequences to generate."""
    rollout: Intervals
    """Time in which any process was in a window of a role that engines work in."""
    phases: Mapping[str | None, Intervals]
    """Time in which any process was in a window of a role."""
    engine_roles: frozenset[str | None]
    handing: Intervals
    """Time in which engines were started and stopped."""


def idle_times(
    processes: Sequence[Process],
    when: Intervals,
    engine_roles: frozenset[str | None],
    waits: Mapping[str, Waiting],
    engines: Sequence[Mapping[str, Any]] = (),
) -> list[Idle]:
    """Return a row for each process that has windows or a trace.

    Args:
        processes: of one island.
        when: the step, from its start to its end.
        engine_roles: roles that engines work in: a rank in such a window waits for them.
        waits: inside collectives, by label.
        engines: from the manifests. While an engine is started or stopped, the job waits for it.
    """
    phases = {
        role: union(window for process in processes for window in process.windows if window.role == role)
        for role in {window.role for process in processes for window in process.windows}
    }
    generating = Intervals.all_of(process.generating() for process in processes)
    rollout = Intervals.all_of(phases.get(role, EMPTY) for role in engine_roles | {"rollout"})
    phases.pop(None, None)
    step = _Step(when, generating, rollout, phases, engine_roles, _handing(engines, processes))
    rows = (_row(process, step, waits.get(process.label, Waiting())) for process in processes)
    return [row for row in rows if row is not None]


def _row(process: Process, step: _Step, waiting: Waiting) -> Idle | None:
    computing, communicating, closed = process.working()
    mine = _own(process, step)
    covered = (process.covered() | _without_capture(process)) & step.when
    on_device = process.has_device
    if not on_device:
        closed = 0
    # no capture and no end of a window is known: the process was not recorded, and has no row
    generating = process.generating()
    if not len(computing | communicating | generating) and not process.manifest_windows:
        return None
    if (
        on_device and process.kind == "trace"
    ):  # forward steps are what its host does: the device shows its own work
        generating = EMPTY
    unmatched = waiting.unmatched
    if any(digest.calls.left_out for digest in process.digests):
        unmatched |= communicating
    stuck = (waiting.when | waiting.for_profiler | unmatched) - computing
    busy = ((computing | communicating | generating) - stuck) & step.when
    left = step.when - busy
    causes: dict[str, int] = {}

    def give(cause: str, when: Intervals) -> None:
        nonlocal left
        part = (left & when).total
        if part >= LEAST_NS:
            left -= when
            causes[cause] = causes.get(cause, 0) + part

    give("profiler", process.held() | waiting.for_profiler)
    give("collective", waiting.when)
    give("collective_unmatched", unmatched)
    worked = busy.total - closed
    if on_device:
        inside, unseen = covered & (mine if process.windows else step.when), process.unseen()
        give("host", inside - unseen)
        give("not_recorded", inside & unseen)
    else:
        worked += _by_cpu_time(process, step.engine_roles, left, computing)
    give("unknown", covered & mine)
    give("not_recorded", mine - covered)
    give("rollout", step.generating)
    give("profiler", step.handing)
    give("rollout", step.rollout)
    own = process.roles - step.engine_roles
    give("peers", Intervals.all_of(phase for role, phase in step.phases.items() if role in own))
    give("other_role", Intervals.all_of(phase for role, phase in step.phases.items() if role not in own))
    by_cpu = worked - (busy.total - closed)
    for cause in ("unknown", "not_recorded"):  # the CPU time shows how much of a gap was work, but not when
        taken = min(by_cpu, causes.get(cause, 0))
        causes[cause] = causes.get(cause, 0) - taken
        by_cpu -= taken
    if closed:  # gaps that the digest closed are in the covered time of the device
        causes["host"] = causes.get("host", 0) + closed
    causes["unknown"] = causes.get("unknown", 0) + left.total
    wall = step.when.total
    return Idle(
        label=process.label,
        wall=wall / 1e9,
        busy=max(worked, 0) / 1e9,
        causes={cause: nanoseconds / 1e9 for cause, nanoseconds in causes.items() if nanoseconds > 0},
    )


def _without_capture(process: Process) -> Intervals:
    """Return the windows of a process for which no capture was wanted: there, none is missing."""
    return Intervals.of(
        edges
        for window in process.manifest_windows
        if window["backend"] == NOT_A_CAPTURE and (edges := process.edges(window)) is not None
    )


def _own(process: Process, step: _Step) -> Intervals:
    """Return when the process was in windows of its own.

    Windows in which it waits for engines do not count, nor does one around all of its roles. A
    window without a known end lasts until the next one.
    """
    end = int(step.when.end[-1]) if len(step.when) else 0
    stretches = [(window.role, window.start, window.end) for window in process.windows]
    for role, since in process.open_ended():
        following = [start for _, start, _ in stretches if start > since]
        stretches.append((role, since, min(following, default=end)))
    named = [each for each in stretches if each[0] is not None]
    chosen = [each for each in named if each[0] not in step.engine_roles]
    if process.kind == "rank" and not named:
        chosen = stretches
    return Intervals.of((start, end) for _, start, end in chosen)


def _by_cpu_time(
    process: Process, engine_roles: frozenset[str | None], gaps: Intervals, computing: Intervals
) -> int:
    """Return how much of the gaps in its own windows a process worked [ns].

    That is the CPU time of the window's thread beyond its operators, limited to the gaps.
    """
    own = [window for window in process.manifest_windows if window["role"] is not None]
    own = (
        [window for window in own if window["role"] not in engine_roles] if own else process.manifest_windows
    )
    used = [
        (*edges, cpu)
        for window in own
        if (edges := process.edges(window)) is not None and (cpu := window.get("thread_cpu_seconds"))
    ]
    worked, reach = 0, None
    for low, high, cpu in sorted(used, key=lambda each: (each[0], -each[1])):
        if reach is not None and high <= reach:
            continue  # a window inside another one: its CPU time is counted there
        reach = high
        beyond = int(cpu * 1e9) - computing.clip(low, high).total
        worked += min(max(beyond, 0), gaps.clip(low, high).total)
    return worked


def _handing(engines: Sequence[Mapping[str, Any]], processes: Sequence[Process]) -> Intervals:
    """Return when engines were started and stopped, by the clock of the driver, if the driver is one of
    these processes.
    """
    offsets = {process.origin.rank: process.offset_ns for process in processes if process.kind == "rank"}
    found = []
    for engine in engines:
        offset = offsets.get(engine["driver"])
        if offset is None:
            continue
        for at, seconds, before in (
            (engine["start_unix_ns"], engine["start_seconds"], True),
            (engine["end_unix_ns"], engine["stop_seconds"], False),
        ):
            if at is not None and 0 < (seconds or 0) < LONGEST_SECONDS:
                length = int(seconds * 1e9)
                start = int(at) - offset - (length if before else 0)
                found.append((start, start + length))
    return Intervals.of(found)

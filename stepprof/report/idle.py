"""How each process spent the step, and what it waited for as far as the data says.

A process with a device is busy while the device is; one without is busy while it is in a window of its own. What is left of the step is given to one cause each, the surest first:
the profiler, a collective, the host, the rollout, other ranks of its own role, another role.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stepprof.report.collectives import Waiting
from stepprof.report.intervals import EMPTY, Intervals
from stepprof.report.processes import Process, union
from stepprof.report.schema import Idle

__all__ = ["idle_times"]

LONGEST_STALL_SECONDS = 1e6
_DRIVER = re.compile(r"-engines-rank-(.+?)(?:\.\d+)?\.json$")
LEAST_NS = 1000
"""Less of a cause is where two edges of one moment do not quite meet."""


def idle_times(
    processes: Sequence[Process],
    step: Intervals,
    engine_roles: frozenset[str | None],
    waits: Mapping[str | None, Mapping[str, Waiting]],
    engines: Sequence[Mapping[str, Any]] = (),
) -> list[Idle]:
    """A row for each process that windows or a trace are known of; a driver without a trace of its own only waits, and has none.

    Args:
        processes: of the step.
        step: from its begin to its end.
        engine_roles: roles that engines work in: a rank in such a window waits for them.
        waits: inside collectives, by role and label.
        engines: of the manifests: while one is started or hands over its recording, the job waits for it.
    """
    handing = _handing(engines, processes)
    phases = {
        role: union(window for process in processes for window in process.windows if window.role == role)
        for role in {window.role for process in processes for window in process.windows}
    }
    rollout = EMPTY
    for role in engine_roles | {"rollout"}:
        rollout |= phases.get(role, EMPTY)
    for process in processes:
        rollout |= process.generating()
    phases.pop(None, None)
    rows = []
    for process in processes:
        if process.origin.rank == "driver" and not any(digest.work for digest in process.digests):
            continue
        row = _row(
            process,
            step=step,
            rollout=rollout,
            phases=phases,
            engine_roles=engine_roles,
            waits=waits,
            handing=handing,
        )
        if row is not None:
            rows.append(row)
    return rows


def _row(
    process: Process,
    *,
    step: Intervals,
    rollout: Intervals,
    phases: Mapping[str | None, Intervals],
    engine_roles: frozenset[str | None],
    waits: Mapping[str | None, Mapping[str, Waiting]],
    handing: Intervals,
) -> Idle | None:
    computing, communicating, closed = process.working()
    on_device = any(digest.work is not None and digest.work.device != "cpu" for digest in process.digests)
    mine = union(
        window for window in process.windows if window.role not in engine_roles and window.role is not None
    )
    if process.kind == "rank" and not any(window.role for window in process.windows):
        mine = union(process.windows)
    busy = computing | communicating | process.generating()
    if not on_device:
        busy |= mine
        closed = 0
    if not len(busy) and not process.windows:
        return None
    waiting = EMPTY
    for by_label in waits.values():
        if process.label in by_label:
            waiting |= by_label[process.label].when
    waiting = (waiting - computing) & step
    busy = (busy & step) - waiting
    causes: dict[str, int] = {}
    left = step - busy
    own = {window.role for window in process.windows} - engine_roles
    peers, others = EMPTY, EMPTY
    for role, phase in phases.items():
        if role in own:
            peers |= phase
        else:
            others |= phase
    host = (mine if process.windows else _captured(process)) if on_device else EMPTY
    for cause, when in (
        ("flush", _flushing(process)),
        ("collective", waiting),
        ("host", host),
        ("rollout", rollout),
        ("peers", peers),
        ("other_role", others),
        ("flush", handing),
    ):
        part = (left & when).total
        if part >= LEAST_NS:
            left -= when
            causes[cause] = causes.get(cause, 0) + part
    unknown = left.total
    if closed:  # gaps too narrow to travel one by one lie where the device was traced
        causes["host"] = causes.get("host", 0) + closed
    if unknown:
        causes["unknown"] = unknown
    wall = step.total
    return Idle(
        label=process.label,
        wall=wall / 1e9,
        busy=max(busy.total - closed, 0) / 1e9,
        causes={cause: nanoseconds / 1e9 for cause, nanoseconds in causes.items()},
    )


def _captured(process: Process) -> Intervals:
    """From the first to the last event of each trace with a device."""
    whole = EMPTY
    for digest in process.digests:
        if digest.work is not None and digest.start is not None and digest.end is not None:
            whole |= Intervals.one(digest.start, digest.end)
    return whole


def _handing(engines: Sequence[Mapping[str, Any]], processes: Sequence[Process]) -> Intervals:
    """While engines were started and stopped, by the clock of the process that drove them."""
    offsets = {str(process.origin.rank): process.offset_ns for process in processes if process.told}
    start, end = [], []
    for engine in engines:
        driver = _DRIVER.search(engine.get("fragment") or "")
        offset = offsets.get(driver[1], 0) if driver else 0
        for at, seconds, before in (
            (engine["start_unix_ns"], engine["start_seconds"], True),
            (engine["end_unix_ns"], engine["stop_seconds"], False),
        ):
            if at is not None and 0 < (seconds or 0) < LONGEST_STALL_SECONDS:
                length = int(seconds * 1e9)
                start.append(int(at) - offset - (length if before else 0))
                end.append(start[-1] + length)
    return Intervals.union(start, end)


def _flushing(process: Process) -> Intervals:
    """While the profiler held the process up after its windows."""
    start, end = [], []
    for window in process.told:
        if window["end_unix_ns"] is not None and 0 < (window["stall_seconds"] or 0) < LONGEST_STALL_SECONDS:
            start.append(int(window["end_unix_ns"]) - process.offset_ns)
            end.append(start[-1] + int(window["stall_seconds"] * 1e9))
    return Intervals.union(start, end)

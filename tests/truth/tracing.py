"""Traces in torch's layout, modelled on real ones of two gloo processes, of an H100 and of vLLM.

Kineto writes thread by thread and the device last, not by time; the window that stepprof adds comes
first. A truncated file has lost whole threads, or all kernels.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence

from truth.model import STEP, Call, Engine, Note, Process, Region, Scheduler, Truth, Window, Work

__all__ = [
    "CALL_STREAM",
    "DISPATCH_NS",
    "dispatch_name",
    "engine_trace",
    "in_trace",
    "kernel_name",
    "rank_trace",
    "shown",
]

GRID = 7_889_238 * 10**9
"""Kineto's times are relative to a multiple of this number."""
GLOO = {"reduce_scatter": "all_reduce"}
"""Collectives for which gloo uses another name than torch (torch 2.13)."""
NCCL = {
    "all_reduce": ("AllReduce_Sum_bf16_RING_LL", "allreduce"),
    "all_gather": ("AllGather_RING_LL", "_allgather_base"),
    "reduce_scatter": ("ReduceScatter_Sum_bf16_RING_LL", "_reduce_scatter_base"),
    "all_to_all": ("SendRecv", "all_to_all"),
    "barrier": ("AllReduce_Sum_i8_RING_LL", "barrier"),
    "broadcast": ("Broadcast_RING_LL", "broadcast"),
    "reduce": ("Reduce_Sum_bf16_RING_LL", "reduce"),
    "gather": ("SendRecv", "gather"),
    "scatter": ("SendRecv", "scatter"),
    "send": ("SendRecv", "send"),
    "recv": ("SendRecv", "recv"),
}
CALL_THREAD, STREAM, CALL_STREAM = 2, 7, 20
AROUND = 300_000
"""How much longer than the window the profiler ran, before and after it [ns]."""
DISPATCH_NS = 20_000
"""Duration of the operator that starts a call."""


def in_trace(window: Window, start: int, end: int) -> bool:
    """Return whether an event is in the capture of a window. Kineto keeps events that have ended
    when it stops.
    """
    return window.captured is not None and start >= window.start and end <= window.captured


def rank_trace(truth: Truth, process: Process, window: Window, run_id: str, step: int) -> tuple[bytes, int]:
    """Return the compressed trace of one window of a rank, and the number of its events."""
    lines = [line for _, line in _events(process, window, step)]
    if window.truncated:
        return _broken(_head(truth, process, window, run_id, step), lines, _kept(lines)), len(lines)
    data = _head(truth, process, window, run_id, step) + ",\n".join(lines) + '\n], "traceName": "x"}'
    return gzip.compress(data.encode(), 1), len(lines)


def shown(process: Process, window: Window) -> list[Call | Work | Region | Note]:
    """Return the part of the process's work that the trace of a window contains."""
    if window.captured is None:
        return []
    events = _events(process, window)
    things = [thing for thing, _ in (events[: _kept(events)] if window.truncated else events)]
    return [thing for thing in things if thing is not None]


def _kept(events: Sequence[object]) -> int:
    """Return how many events of a truncated file are intact."""
    return max(2, len(events) // 2)


def _broken(head: str, lines: Sequence[str], kept: int) -> bytes:
    text = head + ",\n".join(lines[:kept]) + ",\n" + lines[min(kept, len(lines) - 1)][:25]
    return gzip.compress(text.encode(), 1)


def _events(
    process: Process, window: Window, step: int = STEP
) -> list[tuple[Call | Work | Region | Note | None, str]]:
    """Return the events of a capture in the order of the file, each with what it shows."""
    base = process.machine.own(window.start) // GRID * GRID
    pid, rank, captured = process.pid, process.rank, window.captured or window.end

    def at(time: int) -> str:
        own = process.machine.own(time) - base
        return f"{own // 1000}.{own % 1000:03d}"

    def event(
        cat: str, name: str, place: tuple[object, object], start: int, end: int, args: str = "{}"
    ) -> str:
        where = f'"pid": {json.dumps(place[0])}, "tid": {json.dumps(place[1])}'
        times = f'"ts": {at(start)}, "dur": {(end - start) / 1000:.3f}'
        return f'{{"ph": "X", "cat": "{cat}", "name": {json.dumps(name)}, {where}, {times}, "args": {args}}}'

    found: list[tuple[Call | Work | Region | Note | None, str]] = []
    inner = [each for each in process.windows if each.joined] if window.role is None else []
    for number, each in enumerate([window, *inner]):
        reported = json.dumps({"step": step, "role": each.role, "kind": "window"})
        own = f'"cat": "stepprof", "name": "{each.role or "step"}", "pid": {pid}, "tid": {pid}, "id2": {{"local": "{number:#x}"}}'
        found.append((None, f'{{"ph": "b", {own}, "ts": {at(each.start)}, "args": {reported}}}'))
        found.append((None, f'{{"ph": "e", {own}, "ts": {at(min(each.end, captured))}}}'))
    named = f'"ts": {at(window.start)}, "pid": {pid}, "tid": 0, "args": {{"name": "python"}}'
    found.append((None, f'{{"ph": "M", "name": "process_name", {named}}}'))
    kind = 1 if process.devices else 0
    for later, given in enumerate((process.peak_bytes, process.peak_bytes // 2)):
        sums = f'"Total Allocated": {given}, "Device Type": {kind}, "Device Id": {kind - 1}'
        where = f'"ts": {at(window.start + later)}, "pid": {pid}, "tid": {pid}'
        found.append(
            (
                None,
                f'{{"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", {where}, "args": {{{sums}}}}}',
            )
        )
    calls = [
        (call, call.arrive[rank], call.leave[rank])
        for call in process.calls
        if in_trace(window, call.arrive[rank], call.leave[rank])
    ]
    work = [each for each in process.work if in_trace(window, each.start, each.end)]
    if not process.devices:
        for call, start, end in calls:
            name = f"gloo:{GLOO.get(call.kind, call.kind)}"
            found.append((call, event("user_annotation", name, (pid, pid + CALL_THREAD), start, end)))
    for each in work:
        if each.thread:
            found.append((each, event("cpu_op", each.name, (pid, pid + 1), each.start, each.end)))
    for region in process.regions:
        if in_trace(window, region.start, region.end):
            found.append(
                (region, event("user_annotation", region.name, (pid, pid), region.start, region.end))
            )
    for each in work:
        if each.kind == "op" and not each.thread:
            cat = "cuda_runtime" if each.name.startswith("cuda") else "cpu_op"
            found.append((each, event(cat, each.name, (pid, pid), each.start, each.end)))
    for call, start, _ in calls:
        dispatch = Work(dispatch_name(call), start, start + DISPATCH_NS, kind="dispatch")
        found.append((dispatch, event("cpu_op", dispatch.name, (pid, pid), start, dispatch.end)))
    for each in work:
        if each.kind in ("kernel", "copy"):
            cat = "kernel" if each.kind == "kernel" else "gpu_memcpy"
            args = f'{{"device": {each.device}, "stream": {STREAM}}}'
            found.append((each, event(cat, each.name, (each.device, STREAM), each.start, each.end, args)))
            if each.launched is not None:
                arrow = f'"cat": "ac2g", "name": "ac2g", "id": {len(found)}'
                from_host = f'"pid": {pid}, "tid": {pid}, "ts": {at(each.launched)}'
                to_device = f'"pid": {each.device}, "tid": {STREAM}, "ts": {at(each.start)}, "bp": "e"'
                found.append((None, f'{{"ph": "s", {arrow}, {from_host}}}'))
                found.append((None, f'{{"ph": "f", {arrow}, {to_device}}}'))
    if process.devices:
        for call, start, end in calls:
            args = json.dumps(_nccl(call, rank))
            found.append((call, event("kernel", kernel_name(call), (0, CALL_STREAM), start, end, args)))
    for note in _notes(process, window, work, calls) if process.devices else ():
        found.append((note, event("gpu_user_annotation", note.name, note.stream, note.start, note.end)))
    start, end = window.start - AROUND, captured + AROUND
    found.append((None, event("Trace", "PyTorch Profiler (0)", ("Spans", "PyTorch Profiler"), start, end)))
    found.append(
        (
            None,
            f'{{"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": {at(end + 40_000)}}}',
        )
    )
    return found


def _notes(
    process: Process, window: Window, work: Sequence[Work], calls: Sequence[tuple[Call, int, int]]
) -> Iterator[Note]:
    """Return the regions of the host as torch shows them on each stream, outer ones first."""
    ran = [((each.device, STREAM), each.start, each.end) for each in work if each.kind != "op"]
    ran += [((0, CALL_STREAM), start, end) for _, start, end in calls]
    for region in process.regions:
        if not in_trace(window, region.start, region.end):
            continue
        for stream in sorted({stream for stream, _, _ in ran}):
            inside = [
                (start, end)
                for on, start, end in ran
                if on == stream and region.start <= start and end <= region.end
            ]
            if inside:
                first, last = min(start for start, _ in inside), max(end for _, end in inside)
                yield Note(region.name, first, last, stream)


def dispatch_name(call: Call) -> str:
    """Return the name of the operator that starts a call."""
    return f"c10d::{call.kind.replace('_', '')}_"


def kernel_name(call: Call) -> str:
    """Return the name of a call's kernel."""
    return f"ncclDevKernel_{NCCL[call.kind][0]}(ncclDevKernelArgsStorage<4096ul>)"


def _nccl(call: Call, rank: int | str) -> dict[str, object]:
    """Return the arguments that torch writes with a kernel of NCCL."""
    ranks = list(call.group.ranks)
    args: dict[str, object] = {
        "device": 0,
        "stream": CALL_STREAM,
        "Collective name": NCCL[call.kind][1],
        "dtype": "BFloat16",
        "In msg nelems": 8,
        "Out msg nelems": 8,
        "Group size": len(ranks),
        "Process Group Name": call.group.name,
        "Process Group Description": "default_pg" if call.group.name == "0" else "sub",
        "Process Group Ranks": str(ranks)
        if len(ranks) <= 30
        else str(ranks[:28])[:-1] + ", ..., " + str(ranks[-2:])[1:],
        "Rank": rank,
    }
    if call.number >= 0:
        args["Seq"] = call.number
    return args


def _head(truth: Truth, process: Process, window: Window, run_id: str, step: int) -> str:
    groups = [group for group in truth.groups if process.rank in group.ranks]
    reported = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": number, "name": "NVIDIA H100"} for number in range(process.devices)],
        "distributedInfo": {
            "backend": "nccl" if process.devices else "gloo",
            "rank": process.rank,
            "world_size": truth.world,
            "pg_count": len(groups),
            "pg_config": [
                {
                    "pg_name": group.name,
                    "pg_desc": "default_pg" if group.name == "0" else "sub",
                    "pg_size": len(group.ranks),
                    "ranks": list(group.ranks),
                }
                for group in groups
            ],
        },
        "host_name": process.machine.host,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": process.machine.own(window.start) // GRID * GRID,
        "stepprof": {
            "run_id": run_id,
            "step": step,
            "role": window.role,
            "occurrence": window.occurrence,
            "rank": process.rank,
            "world_size": truth.world,
            "host": process.machine.host,
            "pid": process.pid,
        },
    }
    return json.dumps(reported)[:-1] + ', "traceEvents": [\n'


def engine_trace(
    engine: Engine, scheduler: Scheduler, worker: int, run_id: str, step: int, *, many: bool
) -> tuple[bytes, int]:
    """Return the trace of one worker of an engine: its forward steps as vLLM annotates them."""
    base = engine.machine.own(engine.start) // GRID * GRID
    pid = 5000 + 100 * engine.replica + 10 * scheduler.group + worker
    events: list[dict[str, object]] = []
    for start, end, size in (*scheduler.steps, *scheduler.beyond):
        own = engine.machine.own(start) - base
        events.append(
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"execute_context_0(0)_generation_{size}({size + scheduler.again.get(start, 0)})",
                "pid": pid,
                "tid": pid,
                "ts": _Exact(f"{own // 1000}.{own % 1000:03d}"),
                "dur": (end - start) / 1000,
                "args": {},
            }
        )
    reported: dict[str, object] = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": base,
        "stepprof": {
            "run_id": run_id,
            "step": step,
            "role": engine.role,
            "replica": engine.replica,
            "rank": worker,
            "host": engine.machine.host,
            **({"dp_rank": scheduler.group} if many else {}),
        },
        "traceEvents": events,
    }
    return gzip.compress(json.dumps(reported).encode(), 1), len(events)


class _Exact(float):
    """A number that is written with its original digits."""

    def __new__(cls, text: str) -> _Exact:
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str

    def __repr__(self) -> str:
        return self.text

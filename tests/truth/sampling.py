"""Sample the threads of a world as a recording does, and write what it found as lines of evidence."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from stepprof.run.evidence import SAMPLE_NS
from truth.scheduling import Line, Piece
from truth.worlds import Doing

__all__ = ["cpu_ns", "evidence"]

Spanned = dict[str, object]


def evidence(line: Line, thread: int, step: int, phase: int, until: int) -> Iterator[Spanned]:
    """Yield the lines of a process about the recorded windows of a step, by its true clock.

    Args:
        line: what the process did.
        thread: its native id.
        step: the number of the step.
        phase: how long after the begin of a window the first sample is taken [ns].
        until: when the last capture ended.
    """
    for window in line.windows:
        last = min(window.end, until)
        where = {"thread": thread, "task": None, "step": step, "role": window.role}
        inside = [each for each in line.pieces if each.start < last and each.end > window.start]
        yield from (_collection(each, where) for each in inside if each.doing.collects)
        yield from _awaited(inside, last, where)
        for start, end, samples, doing in _stretches(inside, window.start + phase, last):
            used = sum(
                each.doing.cpu * max(0, min(each.end, end) - max(each.start, start)) for each in inside
            )
            yield {
                **where,
                "name": doing.call or doing.frames[0][0],
                "kind": "stack",
                "start": start,
                "dur": end - start,
                "attrs": _stack(doing, samples, round(used), round(doing.queued * (end - start))),
            }
            if doing.others is not None:
                task = {**_stack(doing.others, samples, round(doing.others.cpu * (end - start))), **POOL}
                label = doing.others.call or doing.others.frames[0][0]
                pooled = {"name": label, "kind": "stack", "start": start, "dur": end - start, "attrs": task}
                yield {**where, **pooled, "thread": thread + 1}
        yield {
            **where,
            "name": "process",
            "kind": "usage",
            "start": window.start,
            "dur": last - window.start,
            "attrs": {"collections_dropped": 0},
        }


POOL = {"task": "reward", "pool": True}


def _awaited(pieces: Sequence[Piece], until: int, where: Spanned) -> Iterator[Spanned]:
    """Yield the calls that coroutines await, region by region."""
    regions: dict[tuple[str, ...], list[Piece]] = {}
    for each in pieces:
        if each.doing.awaits is not None:
            regions.setdefault(each.region, []).append(each)
    for calls in regions.values():
        lengths = [min(each.end, until) - each.start for each in calls]
        counts = {"calls": len(calls), "busy": sum(lengths), "longest": max(lengths), "caller": "score_all"}
        times = {"start": calls[0].start, "dur": min(calls[-1].end, until) - calls[0].start}
        yield {**where, "name": calls[0].doing.awaits, "kind": "awaits", **times, "attrs": counts}


def _collection(piece: Piece, where: Spanned) -> Spanned:
    busy = piece.end - piece.start
    attributes = {"generation": 2, "count": 1, "busy": busy, "collected": 1000}
    return {**where, "name": "gc", "kind": "gc", "start": piece.start, "dur": busy, "attrs": attributes}


def _stretches(pieces: Sequence[Piece], first: int, end: int) -> Iterator[tuple[int, int, int, Doing]]:
    """Yield equal samples in a row as (start, end, samples, what was done). A stretch lasts until the next sample."""
    starts = [each.start for each in pieces]
    found: list[tuple[int, int, int, Doing]] = []
    for time in range(first, end, SAMPLE_NS):
        at = bisect_right(starts, time) - 1
        if at < 0 or pieces[at].end <= time:
            continue
        doing, until = pieces[at].doing, min(time + SAMPLE_NS, end)
        if found and found[-1][3] == doing and found[-1][1] == time:
            found[-1] = (found[-1][0], until, found[-1][2] + 1, doing)
        else:
            found.append((time, until, 1, doing))
    yield from found


def _stack(doing: Doing, samples: int, used: int, queued: int = 0) -> Spanned:
    attributes: Spanned = {
        "frames": doing.frames,
        "call": doing.call,
        "samples": samples,
        "cpu": used,
        "run_queue": queued,
    }
    if doing.compiles:
        attributes["compiles"] = True
    caller = next((frame for frame in doing.frames if frame[3]), None)
    if caller is not None and caller != doing.frames[0]:
        attributes["caller"] = caller
    return attributes


def cpu_ns(line: Line, start: int, end: int) -> int:
    """Return the CPU time of a process between two times."""
    within = ((min(each.end, end) - max(each.start, start), each.doing.cpu) for each in line.pieces)
    return round(sum(share * length for length, share in within if length > 0))

"""Determine when the profiler held a process up, from the times of arm, start and stop in the
manifest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepprof.analysis.timeline.capture_window import duration_ns
from stepprof.analysis.timeline.manifest_sources import Input, process_of
from stepprof.analysis.timeline.model import Slices, Source, Track, TrackKind

Held = tuple[str, int, int]
"""The action of the profiler, its start and its end, by the process's own clock [ns]."""

CATEGORY = "profiler"
_ORDER = 2_000_000
_TRACK: tuple[TrackKind, str] = ("async", "profiler")


def profiler_times(window: Mapping[str, Any]) -> list[Held]:
    """Return when the profiler held a process up for a window of the manifest.

    >>> profiler_times({"start_unix_ns": 5_000_000_000, "start_seconds": 1.0, "arm_seconds": 0.5, "arm_unix_ns": None,
    ...     "end_unix_ns": 9_000_000_000, "stall_seconds": 2.0})
    [('start', 4000000000, 5000000000), ('arm', 3500000000, 4000000000), ('stop', 9000000000, 11000000000)]
    """
    times: list[Held] = []
    began, ended, armed = window["start_unix_ns"], window["end_unix_ns"], window.get("arm_unix_ns")
    start, arm, stall = (duration_ns(window.get(f"{key}_seconds")) or 0 for key in ("start", "arm", "stall"))
    if began is not None:
        times.append(("start", int(began) - start, int(began)))
    if armed is not None:
        times.append(("arm", int(armed), int(armed) + arm))
    elif began is not None:
        times.append(("arm", int(began) - start - arm, int(began) - start))
    if ended is not None:
        times.append(("stop", int(ended), int(ended) + stall))
    return [each for each in times if each[2] > each[1]]


def with_held(inputs: Sequence[Input], windows: Iterable[Mapping[str, Any]]) -> list[Input]:
    """Return the inputs with the times at which the profiler held their processes up.

    They are at the first input of each process, which is its spans if there are any.
    """
    held: dict[tuple[object, ...], list[Held]] = defaultdict(list)
    for window in windows:
        held[process_of(window)] += profiler_times(window)
    chosen = list(inputs)
    for at in sorted(range(len(chosen)), key=lambda at: chosen[at].origin.kind != "spans"):
        origin = chosen[at].origin
        if origin.kind in ("spans", "rank") and (times := held.pop(origin.process, None)):
            chosen[at] = replace(chosen[at], held=tuple(times))
    return chosen


def with_held_slices(source: Source, held: Sequence[Held]) -> Source:
    """Return the source with a track that shows when the profiler held its process up."""
    if not held:
        return source
    slices, names, offset = source.slices, len(source.names), source.alignment.offset_ns
    count, track = len(held), len(source.tracks)
    whats = list(dict.fromkeys(what for what, _, _ in held))
    start = np.array([begin - offset for _, begin, _ in held], np.int64)
    duration = np.array([end - begin for _, begin, end in held], np.int64)
    name = np.array([names + whats.index(what) for what, _, _ in held], np.int32)
    longer = Slices(
        np.concatenate((slices.start, start)),
        np.concatenate((slices.duration, duration)),
        np.concatenate((slices.name, name)),
        np.concatenate((slices.category, np.full(count, len(source.categories), np.int32))),
        np.concatenate((slices.track, np.full(count, track, np.int32))),
        None if slices.args is None else [*slices.args, *([None] * count)],
        None if slices.task is None else np.concatenate((slices.task, np.full(count, -1, np.int32))),
    )
    return replace(
        source,
        names=[*source.names, *(f"profiler {what}" for what in whats)],
        categories=[*source.categories, CATEGORY],
        tracks=[*source.tracks, Track(*_TRACK, _TRACK, _ORDER)],
        slices=longer,
    )

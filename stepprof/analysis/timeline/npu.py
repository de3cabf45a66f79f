"""Adapt ``trace_view.json`` of torch_npu: a bare array of events with Unix times as text and device
events without category.

Only this module knows the names that torch_npu gives the processes of its rows, and which of them
belong to the chip. Their streams become streams and their events kernels, as in a trace of a GPU. A
stream of a chip also has rows that are no work: it waits for an event, or records one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stepprof.analysis.timeline.model import Source, TrackKind

HARDWARE = "Ascend Hardware"
COMMUNICATION = "communication"
ROWS: dict[str, tuple[TrackKind, str]] = {
    HARDWARE: ("stream", "kernel"),
    "Communication": ("stream", COMMUNICATION),
    "HCCL": ("stream", COMMUNICATION),
    "CANN": ("thread", "runtime"),
    "Overlap Analysis": ("async", "overlap analysis"),
}
"""The name of a process → the kind of its rows, and the category for its events without one."""
_NO_WORK = re.compile(r"[A-Z_]*(?:WAIT|RECORD|WRITE_VALUE)(?:_SQE)?|Notify_(?:Wait|Record)")
_COPY = re.compile(r"(?:MEMCPY|SDMA)[A-Z_]*|Memcpy")
"""Tasks on a stream that run no operator: their names are their types."""


def is_npu(processes: Mapping[str, str]) -> bool:
    """Return whether a trace with processes of these names (by their id) is of torch_npu."""
    return HARDWARE in processes.values()


def adapt(source: Source, processes: Mapping[str, str]) -> None:
    """Give the rows and events of a chip the kinds and categories of a GPU."""
    names = [processes.get(track.key[1], "") if len(track.key) > 1 else "" for track in source.tracks]
    if COMMUNICATION not in source.categories:
        source.categories.append(
            COMMUNICATION
        )  # the report recognises an NPU by it, also in a trace of its own
    uncategorized = source.categories.index("") if "" in source.categories else -1
    tasks = np.array([_number(source, _category(name)) for name in source.names], np.int32)
    for number, name in enumerate(names):
        if name not in ROWS:
            continue
        kind, category = ROWS[name]
        source.tracks[number] = replace(source.tracks[number], kind=kind)
        here = (source.slices.track == number) & (source.slices.category == uncategorized)
        if here.any():
            by_name = name == HARDWARE
            source.slices.category[here] = (
                tasks[source.slices.name[here]] if by_name else np.int32(_number(source, category))
            )


def _number(source: Source, category: str) -> int:
    if category not in source.categories:
        source.categories.append(category)
    return source.categories.index(category)


def _category(name: str) -> str:
    """Return the category of a task on a stream, by its name."""
    if _NO_WORK.fullmatch(name):
        return "overhead"
    return "gpu_memcpy" if _COPY.fullmatch(name) else ROWS[HARDWARE][1]

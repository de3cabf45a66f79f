"""Read the values over time in a trace: counters, and the allocations of torch's memory profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from stepprof.analysis.timeline.columns import CounterColumns
from stepprof.analysis.timeline.event import Event
from stepprof.analysis.timeline.salvage import DECODE_ERRORS
from stepprof.analysis.timeline.tracks import Place, Rows

MEMORY = "[memory]"
"""Kineto's name for an allocation event."""
ValuesOf = Callable[[Event], Iterator[tuple[str, float]]]
_SIZE = b'"Bytes"'
"""What an allocation of torch 1.8 states alone: it has no sum."""
_DEVICES = {
    0: "CPU",
    1: "GPU",
    6: "GPU",
    8: "MAIA",
    9: "XLA",
    12: "XPU",
    13: "MPS",
    15: "HPU",
    18: "IPU",
    19: "MTIA",
    20: "PrivateUse1",
}
"""torch's numbers of devices (c10/core/DeviceType.h); 6 is a GPU of AMD."""


class _Allocation(
    msgspec.Struct,
    rename={
        "total": "Total Allocated",
        "reserved": "Total Reserved",
        "kind": "Device Type",
        "number": "Device Id",
    },
):
    total: float | None = None
    reserved: float | None = None
    kind: int = -1
    number: int = -1


_allocation = msgspec.json.Decoder(_Allocation)
_values = msgspec.json.Decoder(dict[str, Any])


class Counted:
    """Collects values; `unreadable` counts the events without a value."""

    def __init__(self, rows: Rows, counters: CounterColumns) -> None:
        self._rows, self._counters = rows, counters
        self.unreadable = 0

    def add(self, events: Iterable[Event], times: Iterable[int], values_of: ValuesOf) -> None:
        """Add the values of events: `values_of` is `series` for counters, and `sums` for allocations."""
        rows: list[tuple[int, float, int]] = []
        for event, at in zip(events, times, strict=True):
            try:
                values = list(values_of(event))
            except DECODE_ERRORS:
                values = []
            self.unreadable += not values and _SIZE not in bytes(event.args)
            pid: Place = event.pid
            rows += [(at, value, self._rows.keys["counter", pid, name]) for name, value in values]
        if rows:
            self._counters.add(*zip(*rows, strict=True))


def series(event: Event) -> Iterator[tuple[str, float]]:
    """Yield each number in the arguments of a counter, with the name of its series."""
    values = _values.decode(event.args)
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            plain = len(values) == 1 and name in ("value", event.name)
            yield event.name if plain else f"{event.name} {name}", float(value)


def sums(event: Event) -> Iterator[tuple[str, float]]:
    """Yield what an allocation states: the sums so far, which are counters of each device."""
    allocation = _allocation.decode(event.args)
    device = _DEVICES.get(allocation.kind, f"type-{allocation.kind} device")
    of = device if allocation.kind == 0 else f"{device} {allocation.number}"
    if allocation.total is not None:
        yield f"memory allocated {of}", allocation.total
    if allocation.reserved is not None and allocation.kind != 0:
        yield f"memory reserved {of}", allocation.reserved

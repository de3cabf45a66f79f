"""Compare another machine's clock with that of this machine, by asking one actor on it for the time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from stepprof.host import real_time
from stepprof.remote.base import Clock, EngineFailure

FRESH_SECONDS = 1.0
"""How long one measurement of a machine's clock serves all actors on it."""


class Clocks:
    """Recent and pending measurements, by the machine's boot id."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, asyncio.Future[Clock]]] = {}

    async def of(self, machine: str, measure: Callable[[], Awaitable[Clock]]) -> Clock:
        """Return the clock of a machine, measured if necessary. Raises EngineFailure."""
        began, measuring = self._known.get(machine, (0.0, None))
        if measuring is None or real_time.monotonic() - began > FRESH_SECONDS:
            measuring = asyncio.ensure_future(measure())
            self._known[machine] = real_time.monotonic(), measuring
        try:
            return await asyncio.shield(measuring)
        except (
            EngineFailure
        ):  # measured through another actor on that machine, which may be dead while this one is not
            return await measure()


async def ping_pong(host: str, ask: Callable[[], Awaitable[Sequence[Any]]], tries: int = 8) -> Clock:
    """Return the offset of a clock, from the quickest of some round trips; its error is at most
    half of that round trip. ``ask`` returns the time there first, in nanoseconds.
    """
    trips = []
    for _ in range(tries):
        sent, began = real_time.time_ns(), real_time.perf_counter_ns()
        there = (await ask())[0]
        half = (real_time.perf_counter_ns() - began) // 2
        trips.append(Clock(host, there - (sent + half), half, "ping-pong"))
    return min(trips, key=lambda trip: trip.error_ns)

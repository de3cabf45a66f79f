"""Compare the clock of a server with that of this host, from the whole seconds in its answers.

An answer with the time stamp D was stamped between sending and receiving, so it bounds the offset from both sides by a second and the round trip. Each further
answer, at another fraction of the second, narrows the bounds. A request that is sent when the server's second should change halves them. The ``created`` of
``/v1/models`` (vLLM and SGLang) is exact. The ``Date`` of uvicorn is not: it is updated once a second, and later if the event loop is held up (measured: 2.6 s on a
busy host). So it is only a lower bound of the server's clock.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from stepprof.host import real_time
from stepprof.remote.base import Clock, EngineFailure
from stepprof.remote.http.offset_bounds import SECOND, date_of

if TYPE_CHECKING:
    from stepprof.remote.http.client import Client
    from stepprof.remote.http.reply import Reply

EXACT_NS = 20_000_000
"""Precise enough: below the round trips of a busy server."""
DOUBTFUL_NS = 5 * SECOND
"""A Date older than this raises the question whether it is our clock at all."""
_WAIT_SECONDS = 0.8
_SAMPLES = 8
_LATEST = 1 << 40
"""The largest number of seconds that a clock can show."""


async def clock(client: Client) -> Clock | None:
    """Compare a server's clock with ours; None if it does not report the time. On this host there
    is nothing to measure. A tunnel only looks like a connection within the host, and is recognised
    by a clock that cannot be ours. For other hosts it sends some requests, for about a second at
    most; the bounds become narrower with each call.

    Raises:
        EngineFailure: it cannot be reached.
    """
    bounds = client.bounds
    if client.same_host is None:
        await client.request("GET", "/health")
    if client.same_host:
        if not bounds.admit(0) or bounds.lag_ns > DOUBTFUL_NS:
            await _ask(client)
        if bounds.admit(0):
            return Clock(client.host, 0, 0, "same-host")
        client.same_host = False
    left = _WAIT_SECONDS
    for _ in range(_SAMPLES):
        if not await _ask(client) or bounds.error_ns <= EXACT_NS:
            break
        wait = bounds.seconds_to_change(real_time.time_ns())
        left -= wait
        if left < 0:
            break
        await asyncio.sleep(wait)
    if not bounds.known:
        return None
    return Clock(client.host, bounds.offset_ns, bounds.error_ns, "http-date")


async def _ask(client: Client) -> bool:
    """Ask once for the server's time; return whether asking again may help."""
    try:
        reply = await client.request("GET", "/v1/models", timeout=2.0)
    except EngineFailure:  # whether it can be reached is reported elsewhere
        return False
    created, date = _created(reply), date_of(reply)
    if created is None or date is None or created < date - 1:  # not the current time: when the model was made
        return False
    client.bounds.note(created, reply)
    return True


def _created(reply: Reply) -> int | None:
    models = reply.table().get("data")
    first = models[0] if isinstance(models, list) and models else None
    created = first.get("created") if isinstance(first, dict) else None
    return created if isinstance(created, int) and 0 < created < _LATEST else None

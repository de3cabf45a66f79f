"""Run an event loop on its own thread, like the loop of an engine. It ends with its test in every
case, and never blocks the end of the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture
def other_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Return a loop that runs on another thread."""
    loop, running = asyncio.new_event_loop(), threading.Event()
    loop.call_soon(running.set)
    thread = threading.Thread(target=loop.run_forever, name="other-loop", daemon=True)
    thread.start()
    assert running.wait(30)
    yield loop
    if thread.is_alive():
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
    for task in asyncio.all_tasks(loop):
        task.cancel()
    for _ in range(100):
        loop.call_soon(loop.stop)
        loop.run_forever()
        if not asyncio.all_tasks(loop):
            break
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()

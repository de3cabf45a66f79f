"""Wait until pipes can be read, also where a tool has removed `select.poll`, as eventlet does.

The functions of `select` are called as they are now: gevent and eventlet replace them, and threads,
so that a waiting thread lets the others of its process run.
"""

from __future__ import annotations

import select
from collections.abc import Collection


def readable(descriptors: Collection[int], seconds: float | None) -> set[int]:
    """Return which descriptors can be read, or are at their end, after at most `seconds`; None: no limit.

    >>> import os
    >>> reading, writing = os.pipe()
    >>> _ = os.write(writing, b".")
    >>> readable([reading], 1.0) == {reading}
    True
    """
    if not hasattr(select, "poll"):
        return set(select.select(list(descriptors), [], [], seconds)[0])
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN | select.POLLHUP)
    return {descriptor for descriptor, _ in poller.poll(None if seconds is None else seconds * 1000)}

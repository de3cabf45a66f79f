"""A process of the tests that hangs says where, and ends: in a test past its bound, and at its end, where a thread that a test left may keep it.

pytest-timeout fails a test by an exception in the main thread. That does not reach one that waits in C, and says nothing once the tests
are over. What tells here is a thread of C: it needs no lock of the interpreter's, and works until that is gone.
"""

from __future__ import annotations

import faulthandler
import threading

MORE_SECONDS = 30.0
"""How much longer than its bound a test may hang."""

END_SECONDS = 60.0
"""How long a process may take to end."""


def watch_test(seconds: float, stderr: int) -> None:
    """From now on the test has so long."""
    if seconds > 0:
        faulthandler.dump_traceback_later(seconds + MORE_SECONDS, exit=True, file=stderr)


def over() -> None:
    """The test has ended."""
    faulthandler.cancel_dump_traceback_later()


def watch_end(stderr: int, seconds: float = END_SECONDS) -> None:
    """Once the main thread has nothing left to do the process has so long."""

    def wait() -> None:
        threading.main_thread().join()
        faulthandler.dump_traceback_later(seconds, exit=True, file=stderr)

    threading.Thread(target=wait, name="watch-end", daemon=True).start()

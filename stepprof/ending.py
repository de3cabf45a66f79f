"""Ends that nobody planned: the end of the script, a signal, a fork.

At the end of the interpreter the session is shut down. SIGTERM is taken only while a capture runs and only where the process
would simply die of it: a handler of the user's is never replaced, and one that comes later replaces ours. A forked child has no
session, whatever state its parent was in.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

from stepprof.current import cell
from stepprof.log import logger
from stepprof.window import State

if TYPE_CHECKING:
    from stepprof.session import Session

__all__ = ["SIGTERM_SECONDS", "guard", "unwatch", "watch"]

SIGTERM_SECONDS = 8.0
"""How long a capture may delay the death by SIGTERM; launchers send SIGKILL after 10 to 30 s."""

_fork_watched = False
_session: Session | None = None


def watch(session: Session) -> None:
    """See to it that this session ends with its process."""
    global _session, _fork_watched
    _session = session
    atexit.register(session.shutdown)
    if not _fork_watched and hasattr(os, "register_at_fork"):
        _fork_watched = True
        os.register_at_fork(after_in_child=_in_child)
    multiprocessing: Any = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None and sys.modules["multiprocessing.process"].parent_process() is not None:
        # workers of multiprocessing leave through os._exit, past atexit
        multiprocessing.Finalize(None, session.shutdown, exitpriority=100)


def unwatch(session: Session) -> None:
    """The session has ended in an orderly way."""
    global _session
    atexit.unregister(session.shutdown)
    if _session is session:
        _session = None
    guard(False)


def guard(recording: bool) -> None:
    """Take SIGTERM while a capture runs, if it would kill the process outright; give it back afterwards."""
    if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():
        return
    current = signal.getsignal(signal.SIGTERM)
    if recording and current is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)
    elif not recording and current is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    session = _session
    if session is None:
        _die()
    elif session.local.post_unless_free(lambda: _end(session)):
        _end(session)


def _end(session: Session) -> None:
    """Hand over and export within the budget, then die as the process would have without us."""
    logger.warning("SIGTERM while recording", budget_seconds=SIGTERM_SECONDS)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    watchdog = _watchdog(SIGTERM_SECONDS)
    try:
        session.shutdown(SIGTERM_SECONDS - 1.0, reason="SIGTERM")
    finally:
        if watchdog:
            os.kill(watchdog, signal.SIGKILL)
            os.waitpid(watchdog, 0)
        _die()


def _watchdog(seconds: float) -> int:
    """A child that sends the signal again when the time is up: torch's stop holds the interpreter's lock, no thread could."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and os.getppid() == parent:
                time.sleep(0.05)
            if os.getppid() == parent:
                os.kill(parent, signal.SIGTERM)
        finally:
            os._exit(0)
    return child


def _die() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _in_child() -> None:
    """After os.fork, in the child: no session, and the default action of SIGTERM."""
    global _session
    if _session is None:
        return
    _session.disown()
    _session = None
    cell.clear()
    cell.state = State()
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

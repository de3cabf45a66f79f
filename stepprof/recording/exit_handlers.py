"""End a session without `shutdown`: at the end of the script, by a signal, in a forked child.

At interpreter exit the session is shut down. SIGTERM is handled only while a capture runs, and only
if it would kill the process: a user's handler is never replaced, and a later one replaces ours. A
forked child has no session.

Tools such as Scalene replace functions of `signal` and `os`; this module calls those of the system.

A Python signal handler runs between any two bytecodes of the main thread, which may hold a lock of
stepprof or of the logger. Then the signal is delayed until the lock is released.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

from stepprof.host import real_time
from stepprof.host.system_calls import signals
from stepprof.host.worker_packages import parents
from stepprof.instrument.context import cell
from stepprof.instrument.decorators import wrappers
from stepprof.instrument.state import State
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.recording.export import fork

if TYPE_CHECKING:
    from stepprof.recording.session_port import RunningSession

SIGTERM_SECONDS = 8.0
"""Maximum delay of the death by SIGTERM during a capture; launchers send SIGKILL after 10 to 30 s."""

_RESEND_SECONDS = 0.02
_FINAL_WRITE_SECONDS = 1.0  # of the budget: for the last manifest and the spans

_PACKAGE = __name__.partition(".")[0]
_HOLDING = (_PACKAGE, "logging", "structlog")
_EXAMPLES = f"{_PACKAGE}.examples"
"""The folder of the examples: training loops like a user's, whose frames hold no lock."""

_fork_watched = False
_session: RunningSession | None = None
_deadline: float | None = None
_is_resent = False
_put_off = False
_guarding = False
"""The arguments of the last `guard` call on the main thread: each change of the state calls it."""
_watchdog: int | None = None
_masks: dict[int, set[int]] = {}


def watch(session: RunningSession) -> None:
    """Shut this session down when the process ends."""
    global _session, _fork_watched
    _session = session
    atexit.register(_at_exit)
    if not _fork_watched and hasattr(os, "register_at_fork"):
        _fork_watched = True
        os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
    for package in parents():  # its workers leave through os._exit, past atexit
        package.Finalize(None, _at_exit, exitpriority=100)


def unwatch(session: RunningSession) -> None:
    """Forget a session that was shut down."""
    global _session
    if _session is session:
        _session = None
        atexit.unregister(_at_exit)
    guard(False)


def guard(on: bool) -> None:
    """Handle SIGTERM during a capture, if it would kill the process. Restore the action afterwards."""
    global _guarding
    if (
        on is _guarding
        or _deadline is not None
        or threading.current_thread() is not threading.main_thread()
        or sys.is_finalizing()
    ):
        return
    _guarding = on
    current = signals.getsignal(signal.SIGTERM)
    if on and current == signals.SIG_DFL:
        signals.signal(signal.SIGTERM, _on_sigterm)
    elif not on and current is _on_sigterm:
        signals.signal(signals.SIGTERM, signals.SIG_DFL)


def after_act() -> None:
    """Run at the end of an act of the session: let a SIGTERM that arrived during it take effect."""
    if _put_off and _session is not None and threading.current_thread() is threading.main_thread():
        _end(_session)


def _at_exit() -> None:
    """Run when the main thread has left the user's code."""
    session = _session
    if session is not None:
        # Python sets it when it has printed the exception that ends the script
        session.shutdown(failed=getattr(sys, "last_type", None) is not None)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    global _deadline, _is_resent, _put_off
    first, came_back, _is_resent = _deadline is None, _is_resent, False
    session = _session
    if session is None or not (first or came_back):  # nothing to stop, or a second signal: no more delay
        _die()
        return
    if _deadline is None:
        _deadline = real_time.monotonic() + SIGTERM_SECONDS
    where = _interrupted(frame, session)
    if where in ("act", "fork"):
        _put_off = True
        if where == "act":
            _start_watchdog()
    elif where is None or real_time.monotonic() > _deadline or not _reschedule_signal():
        _end(session)


def _interrupted(frame: FrameType | None, session: RunningSession) -> str | None:
    """Return what the signal interrupted in the main thread, from the frames on its stack.

    ``act``: an act of the session, which calls `after_act` at its end. ``fork``: an act that is forking;
    no second fork is possible then. ``moment``: other code that may hold a lock of ours, of the
    log, or one that a fork waits for. None: none of these.
    """
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    codes = {each.f_code for each in frames}
    if codes & session.acts and type(session).shutdown.__code__ not in codes:
        return "fork" if any(each.f_globals is vars(fork) for each in frames) else "act"
    pools: Any = sys.modules.get("concurrent.futures.thread")
    if pools is not None and pools.ThreadPoolExecutor.submit.__code__ in codes:
        return "moment"
    return "moment" if any(map(_may_hold_a_lock, frames)) else None


def _may_hold_a_lock(frame: FrameType) -> bool:
    """Return whether a frame is stepprof's or the log's, and neither an example nor a function's wrapper."""
    name = str(frame.f_globals.get("__name__"))
    if name.partition(".")[0] not in _HOLDING or frame.f_code in wrappers:
        return False
    return not f"{name}.".startswith(f"{_EXAMPLES}.")


def _reschedule_signal() -> bool:
    """Have the signal sent again soon. Return False if no thread can be started."""
    try:
        _thread.start_new_thread(_send_again, ())
    except ours(RuntimeError):
        return False
    return True


def _send_again() -> None:  # pragma: no cover - a raw thread, which coverage does not see
    global _is_resent
    time.sleep(_RESEND_SECONDS)
    _is_resent = True
    # to that very thread, so that its blocking call is interrupted
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _end(session: RunningSession) -> None:
    """Stop and export within the budget, then die by the signal."""
    global _put_off
    _put_off = False
    deadline = _start_watchdog()
    try:
        logger.warning("signal.received", budget_seconds=SIGTERM_SECONDS)
        budget = max(deadline - real_time.monotonic() - _FINAL_WRITE_SECONDS, 0.5)
        session.shutdown(budget, reason="SIGTERM", failed=True)
    finally:
        if _watchdog:
            fork.kill(_watchdog, signal.SIGKILL)
            fork.reap(_watchdog, block=True)
        _die()


def _start_watchdog() -> float:
    """Start a child that sends the signal again at the deadline: torch's stop holds the GIL, so no
    thread could. Return the deadline.
    """
    global _watchdog
    deadline = real_time.monotonic() + SIGTERM_SECONDS if _deadline is None else _deadline
    signals.signal(signals.SIGTERM, signals.SIG_DFL)
    if _watchdog is not None:
        return deadline
    parent, _watchdog = os.getpid(), 0

    def watch_over(_send: fork.Send) -> None:
        while os.getppid() == parent and real_time.monotonic() < deadline:
            time.sleep(0.05)
        if os.getppid() == parent:
            fork.kill(parent, signal.SIGTERM)

    with fork.signals_held() as mask:
        try:
            _watchdog, pipe = fork.fork_for(watch_over, mask)
            os.close(pipe)
        except ours(OSError, RuntimeError) as error:  # the launcher's SIGKILL is the limit then
            logger.warning("signal.watchdog_failed", reason=str(error))
    return deadline


def _die() -> None:
    signals.signal(signals.SIGTERM, signals.SIG_DFL)
    fork.kill(os.getpid(), signal.SIGTERM)


def _before_fork() -> None:
    """Block our SIGTERM until the child has the default action: until then Python would drop a signal
    to a new worker.
    """
    if signals.getsignal(signal.SIGTERM) is _on_sigterm:
        before = signals.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        _masks[threading.get_ident()] = {int(number) for number in before}


def _in_parent() -> None:
    mask = _masks.pop(threading.get_ident(), None)
    if mask is not None:
        signals.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    """Run after os.fork in the child: no session, and the default action of SIGTERM."""
    global _session, _deadline, _is_resent, _put_off, _watchdog, _guarding
    _deadline, _is_resent, _put_off, _watchdog, _guarding = None, False, False, None, False
    if signals.getsignal(signal.SIGTERM) is _on_sigterm:
        signals.signal(signals.SIGTERM, signals.SIG_DFL)
    _in_parent()
    _masks.clear()
    if _session is None:
        return
    _session.disown()
    _session = None
    atexit.unregister(_at_exit)
    cell.clear()
    cell.state = State()

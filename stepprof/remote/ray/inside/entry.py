"""The entry that other processes call through an actor's handle.

A plain actor has one thread, the main one: a call waits there like any method. In every other actor a call runs on the thread that starts the actor's methods
(measured, Ray 2.60: while a call waits, no method begins). So there the work runs on a thread of its own, the call returns a number at once, and the caller polls the answer.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from stepprof.host import real_time
from stepprof.interrupts import ours
from stepprof.remote.base import EngineFailure
from stepprof.remote.core.lease import watch
from stepprof.remote.ray.inside.attachment import Guest, guests
from stepprof.remote.ray.inside.messages import Answer, Inside, Unknown, boot_id
from stepprof.run.manifest_writer import describe_error

_answers: dict[int, Answer | None] = {}
_numbers = itertools.count(1)


def serve(actor: object, token: str, verb: str, *arguments: Any) -> Answer:
    """Serve a call from the actor's ``__ray_call__``: do the work here, or on another thread. Raises nothing."""
    if verb == "answer":
        return _answer(*arguments)
    if verb == "leave":
        return _leave(token, *arguments)
    if verb == "announce":
        known = guests.get(token)
        return Answer(known is not None and known.follow(*arguments))
    guest = guests.setdefault(token, Guest(token))
    if verb == "collect":
        return Answer(guest.pending.collect(*arguments))
    act = getattr(guest, verb)
    wait_seconds: float | None = 0.0
    if _on_main_thread():
        guest.plain = True
        wait_seconds = guest.waits(verb, arguments[0] if verb == "arm" else None)
    if verb == "arm":
        arguments = (actor, *arguments)
    if wait_seconds is None:
        return _done(guest, act, arguments)
    return _elsewhere(guest, act, arguments, wait_seconds)


def _elsewhere(
    guest: Guest, act: Callable[..., Any], arguments: tuple[Any, ...], wait_seconds: float
) -> Answer:
    """Do the work on a new thread, and wait for it up to a limit."""
    ticket = next(_numbers)
    _answers[ticket] = None
    over = threading.Event()

    def work() -> None:
        try:
            _answers[ticket] = _done(guest, act, arguments)
        except BaseException as error:  # noqa: BLE001 - the caller that polls for the answer must not poll for ever
            _answers[ticket] = Answer(
                failure=EngineFailure(f"in the actor: {describe_error(error)}", "unknown")
            )
        over.set()

    threading.Thread(target=work, name="stepprof-inside", daemon=True).start()
    if wait_seconds:
        over.wait(wait_seconds)
    return _answer(ticket)


def now(actor: object) -> tuple[int, str]:
    """Return the wall clock of this process, and its machine."""
    return real_time.time_ns(), boot_id()


def _done(guest: Guest, act: Callable[..., Any], arguments: tuple[Any, ...]) -> Answer:
    try:
        with guest.turn:
            return Answer(act(*arguments))
    except EngineFailure as failure:
        if type(failure) not in (EngineFailure, Unknown, Inside):  # the other process may not know its class
            failure = EngineFailure(describe_error(failure), failure.health, owes_stop=failure.owes_stop)
        return Answer(failure=failure.with_traceback(None))
    except ours(Exception) as error:  # it must not reach the actor; the driver process reports it
        return Answer(
            failure=EngineFailure(f"in the actor: {describe_error(error)}", owes_stop=act.__name__ == "start")
        )


def _leave(token: str, timeout: float) -> Answer:
    """End an attachment. An engine that hangs does not delay it, because only a session has
    exports. Another thread waits for exports: the caller polls the answer, and so sees that this
    process is alive.
    """
    guest = guests.pop(token, None)
    watch.remove(token)
    if guest is None:
        return Answer([])
    if guest.attachment is not None and guest.attachment.kind == "engine":
        guest.retire()
        return Answer([])
    if not _on_main_thread():
        return _elsewhere(guest, guest.close_and_leave, (timeout,), 0.0)
    closed = _done(guest, guest.close, ())
    return closed if closed.failure is not None else _elsewhere(guest, guest.leave, (timeout,), 0.0)


def _answer(ticket: int) -> Answer:
    if ticket not in _answers:
        return Answer(failure=Unknown("the actor was restarted while it was asked", "unknown"))
    if _answers[ticket] is None:
        return Answer(ticket=ticket)
    return _answers.pop(ticket) or Answer()


def _on_main_thread() -> bool:
    """Return whether calls run one after the other on the main thread, as in a plain actor."""
    return threading.current_thread() is threading.main_thread()

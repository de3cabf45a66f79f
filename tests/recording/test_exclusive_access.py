"""Exclusive access to the local target: one thread at a time, and no deadlock after an interrupt."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from stepprof.errors import StateError
from stepprof.recording.exclusive_access import ExclusiveAccess


def elsewhere(act):
    """Return the result of a call on another thread."""
    result = []
    thread = threading.Thread(target=lambda: result.append(act()))
    thread.start()
    thread.join(10)
    return result[0]


class TestExclusiveAccess:
    def test_another_thread_waits(self) -> None:
        """Another thread gets no access within its timeout, and with a timeout of 0 it does not wait."""
        access = ExclusiveAccess()
        assert access.acquire(0)
        assert not elsewhere(lambda: access.acquire(0))
        assert not elsewhere(lambda: access.acquire(0.05))
        assert elsewhere(lambda: access.held_elsewhere)
        access.release()
        assert not elsewhere(lambda: access.held_elsewhere)

    def test_access_passes_to_the_next_waiter(self) -> None:
        """A thread that waits gets the access after its release."""
        access = ExclusiveAccess()
        access.acquire(0)
        begun, taken = threading.Event(), []

        def wait():
            begun.set()
            taken.append(access.acquire(10))
            access.release()

        thread = threading.Thread(target=wait)
        thread.start()
        begun.wait()
        time.sleep(0.05)
        assert taken == []
        access.release()
        thread.join(10)
        assert taken == [True]

    def test_reentry_on_the_same_thread_is_refused(self) -> None:
        """A second call on the same thread raises an error instead of a deadlock, and
        the first one keeps its access.
        """
        access = ExclusiveAccess()
        access.acquire(0)
        for timeout in (0, 1):
            with pytest.raises(StateError, match="already acting on the target"):
                access.acquire(timeout)
            assert not access.take(timeout)
        assert not elsewhere(lambda: access.acquire(0))
        access.release()
        assert access.acquire(0)

    def test_access_left_by_an_interrupt_is_free(self) -> None:
        """If an interrupt ends the function that holds the access, the next caller gets it, on any thread."""
        access = ExclusiveAccess()

        def interrupted():
            access.acquire(0)
            raise KeyboardInterrupt

        for next_one in (lambda: access.acquire(0), lambda: elsewhere(lambda: access.acquire(0))):
            with pytest.raises(KeyboardInterrupt):
                interrupted()
            assert not access.held_elsewhere
            assert next_one()

    def test_the_act_is_another_functions(self) -> None:
        """A function can acquire the access for its caller, which then holds it."""
        access = ExclusiveAccess()

        def take():
            return access.acquire(0, by=sys._getframe(1))

        assert take()
        assert elsewhere(lambda: access.held_elsewhere)
        access.release()
        assert access.take(0)
        assert elsewhere(lambda: access.held_elsewhere)
        assert not elsewhere(lambda: access.acquire(0.01))

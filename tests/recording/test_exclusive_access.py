"""Exclusive access to the local target: one thread at a time, and no deadlock by an interrupt."""

from __future__ import annotations

import sys
import threading

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
        """Within its bound; without one it is not delayed at all."""
        access = ExclusiveAccess()
        assert access.acquire(0)
        assert not elsewhere(lambda: access.acquire(0))
        assert not elsewhere(lambda: access.acquire(0.05))
        assert elsewhere(lambda: access.held_elsewhere)
        access.release()
        assert not elsewhere(lambda: access.held_elsewhere)

    def test_access_passes_to_the_next_waiter(self) -> None:
        """A waiting thread gets the access when it is released."""
        access = ExclusiveAccess()
        access.acquire(0)
        threading.Timer(0.05, lambda: None).start()
        taken = []

        def wait():
            taken.append(access.acquire(10))
            access.release()

        thread = threading.Thread(target=wait)
        thread.start()
        access.release()
        thread.join(10)
        assert taken == [True]

    def test_reentry_on_the_same_thread_is_refused(self) -> None:
        """Re-entry is refused instead of a deadlock, and the first act keeps its access."""
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
        """Access whose function has ended without a release is free for the next caller."""
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
        """A function that acquires the access for its caller declares this."""
        access = ExclusiveAccess()

        def take():
            return access.acquire(0, by=sys._getframe(1))

        assert take()
        assert elsewhere(lambda: access.held_elsewhere)
        access.release()
        assert access.take(0)
        assert elsewhere(lambda: access.held_elsewhere)
        assert not elsewhere(lambda: access.acquire(0.01))

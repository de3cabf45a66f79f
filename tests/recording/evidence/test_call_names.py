"""The name of the call that a frame makes, read from real frames while they wait."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from stepprof.recording.evidence.call_names import call_name


class Waiting:
    """Methods that wait in a call of a C function until the lock is released."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.nested = [self]

    def acquire(self) -> None:
        self.lock.acquire()

    def enter(self) -> None:
        with self.lock:
            pass

    def argument(self) -> None:
        max(1, self.nested[0].lock.acquire())

    def item(self) -> None:
        self.nested[0].lock.acquire()

    def result(self) -> None:
        getattr(self, "lock").acquire()  # noqa: B009 - the result of a call

    def iterate(self) -> None:
        for _ in filter(None, iter(self.lock.acquire, True)):
            pass


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("acquire", "self.lock.acquire"),
        ("enter", "self.lock.__enter__"),
        ("argument", "self.nested[].lock.acquire"),
        ("item", "self.nested[].lock.acquire"),
        ("result", "getattr().acquire"),
        ("iterate", "filter().__next__"),
    ],
)
def test_the_called_function_is_named(method, name) -> None:
    """The name of the call is the one in the source."""
    waiting = Waiting()
    thread = threading.Thread(target=getattr(waiting, method))
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while (frame := sys._current_frames()[thread.ident]).f_code.co_name != method:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.05)
        assert call_name(frame.f_code, frame.f_lasti) == name
    finally:
        del frame
        waiting.lock.release()
        thread.join()


def test_an_instruction_that_calls_nothing() -> None:
    """Instructions that call no function, and offsets outside of the code, have no name."""

    def add(one, other):
        return one + other

    names = {call_name(add.__code__, at) for at in range(-2, len(add.__code__.co_code) + 4, 2)}
    assert names == {None}

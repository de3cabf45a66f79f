"""Test that no signal handler of the job runs while it forks, and that each is as before afterwards."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from stepprof.recording.export.held_handlers import handlers_held

LOCK_OF_A_HOOK = """
import os, signal, threading, time
from stepprof.recording.export import fork

class TimedOut(Exception):
    pass

def expired(*_):
    raise TimedOut

def release():
    os.kill(os.getpid(), signal.SIGALRM)
    time.sleep(0.1)  # the other thread receives it
    lock.release()

lock = threading.Lock()
signal.signal(signal.SIGALRM, expired)
os.register_at_fork(before=lock.acquire, after_in_parent=release)
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
try:
    with fork.signals_held() as mask:
        pid, pipe = fork.fork_for(lambda send: None, mask)
        os.waitpid(pid, 0)
except TimedOut:
    print("timed out, the lock is", "held" if lock.locked() else "free")
"""


class Expired(Exception):
    """What the handlers here raise."""


@pytest.fixture
def expiring() -> Iterator[list[int]]:
    """Install two handlers that raise, and return the signals that they got."""
    got: list[int] = []

    def expired(number: int, _frame: object) -> None:
        got.append(number)
        raise Expired(number)

    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.signal(number, expired) for number in numbers]
    yield got
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def action(number: int) -> bytes:
    """Return the handler that the system runs for a signal, and its flags."""
    buffer = (ctypes.c_byte * 256)()
    ctypes.CDLL(None).sigaction(number, None, buffer)
    return bytes(buffer)[:8] + bytes(buffer)[136:140]


def test_the_hooks_of_a_fork_release_their_locks() -> None:
    """A time-out that another thread receives meanwhile interrupts no hook: it reaches the job after the fork."""
    ended = subprocess.run(
        [sys.executable, "-c", LOCK_OF_A_HOOK], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.stdout, ended.stderr) == ("timed out, the lock is free\n", "")


def test_each_signal_reaches_its_handler(expiring: list[int]) -> None:
    """Both handlers run after the block, although the first one raises, and both are installed again."""
    handler = signal.getsignal(signal.SIGUSR1)

    def forks() -> None:
        with handlers_held():
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR2)
            assert expiring == []

    with pytest.raises(Expired) as raised:
        forks()
    assert expiring == [signal.SIGUSR1, signal.SIGUSR2]
    assert isinstance(raised.value.__context__, Expired)
    assert signal.getsignal(signal.SIGUSR1) is signal.getsignal(signal.SIGUSR2) is handler


def test_a_signal_while_the_handlers_are_restored(expiring: list[int]) -> None:
    """A handler that is back may raise before the next one is: that is restored too."""
    handler = signal.getsignal(signal.SIGUSR1)

    def send(_frame: object, event: str, _function: object) -> None:
        if event == "c_return" and signal.getsignal(signal.SIGUSR1) is handler:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGUSR1)

    def forks() -> None:
        with handlers_held():
            sys.setprofile(send)

    with pytest.raises(Expired):
        forks()
    assert signal.getsignal(signal.SIGUSR1) is signal.getsignal(signal.SIGUSR2) is handler
    assert expiring == [signal.SIGUSR1]


def test_the_actions_of_the_system_are_the_same_afterwards(expiring: list[int]) -> None:
    """The flag of `signal.siginterrupt` is kept. A handler that a library in C has installed is never replaced."""
    received = threading.Event()
    native = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _number: received.set())
    signal.siginterrupt(signal.SIGUSR1, False)
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signal.SIGUSR2, native)
    before = action(signal.SIGUSR1), action(signal.SIGUSR2)
    with handlers_held():
        assert action(signal.SIGUSR1) != before[0]
        assert action(signal.SIGUSR2) == before[1]
        signal.raise_signal(signal.SIGUSR2)
        assert received.is_set()
    assert (action(signal.SIGUSR1), action(signal.SIGUSR2)) == before
    assert expiring == []

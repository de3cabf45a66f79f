"""The frames of all threads, also while garbage is collected."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

from stepprof.host.frames import frames, frames_once

BUSY = """
import gc, sys, threading, time
from stepprof.host.frames import frames

stop = False

class Node:
    def __del__(self):
        time.sleep(0)  # another thread runs

def fresh():
    time.sleep(0.001)

def work():
    while not stop:
        fresh()

def make_garbage():
    while not stop:
        node = Node()
        node.itself = node
        time.sleep(0)

def start_threads():
    while not stop:
        thread = threading.Thread(target=fresh)
        thread.start()
        thread.join()

gc.set_threshold(10, 5, 5)
threads = [threading.Thread(target=each) for each in (make_garbage, start_threads, *[work] * 30)]
for thread in threads:
    thread.start()
end = time.monotonic() + 3
while time.monotonic() < end:
    assert len(frames()) > 30
    time.sleep(0.001)
stop = True
assert gc.isenabled()
"""


def test_the_frames_of_each_thread() -> None:
    """`frames` has the frames of this thread and of another one while it runs."""
    mine = threading.get_ident()
    assert frames()[mine].f_back is sys._getframe()
    reached, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        reached.set()
        go_on.wait()

    other = threading.Thread(target=wait)
    other.start()
    reached.wait()
    assert {mine, other.ident} <= frames().keys()
    go_on.set()
    other.join()
    assert other.ident not in frames()


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_stays_as_it_is(enabled: bool) -> None:
    """Garbage collection stays on or off, as the job has set it."""
    (gc.enable if enabled else gc.disable)()
    try:
        assert len(list(frames_once())) == 1
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_threads_start_while_garbage_is_collected(run_script) -> None:
    """The process does not hang. With Python 3.11's own function it hangs within a second."""
    run_script(BUSY, timeout=200).check()

"""Stop a torch session of all threads while some of them are inside an op. `STOP_CAPTURES` in the
environment sets the number of captures; `nox -s campaigns` sets it.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from stepprof.backends.torch import stop
from stepprof.backends.torch.stop import CALLBACK_NS, stop_all_threads

CAPTURES = int(os.environ.get("STOP_CAPTURES", "12"))


def processor_ns(thread: int) -> int:
    return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])


class Session:
    """A torch session that records the CPU time of a thread at its switch-off and at its stop."""

    def __init__(self, thread: int, *, pauses: bool = True) -> None:
        self.thread = thread
        self.pauses = pauses
        self.noted: list[int] = []

    def toggle_collection_dynamic(self, enable: bool, activities: set) -> None:
        assert not enable
        if not self.pauses:
            raise RuntimeError("unknown")
        self.noted.append(processor_ns(self.thread))

    def stop_trace(self) -> None:
        self.noted.append(processor_ns(self.thread))


@pytest.fixture
def computing():
    """Start a thread that computes without the interpreter's lock, as inside an op; return its number."""
    begun, number = threading.Event(), []

    def compute() -> None:
        number.append(threading.get_native_id())
        begun.set()
        hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 1_500_000)

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    assert begun.wait(30)
    deadline = time.monotonic() + 30
    while not stop._is_up(number[0]):
        assert time.monotonic() < deadline
    yield number[0]
    thread.join(100)


class TestWaiting:
    def test_the_stop_waits_for_a_computing_thread(self, computing) -> None:
        """The stop waits until the thread has had more CPU time than a callback takes."""
        session = Session(computing)
        stop_all_threads(session, set())
        before, after = session.noted
        assert after - before >= CALLBACK_NS

    def test_the_stop_does_not_wait_for_a_sleeping_thread(self) -> None:
        """A sleeping thread cannot be inside the callback, so the stop does not wait for it."""
        done = threading.Event()
        thread = threading.Thread(target=done.wait, daemon=True)
        thread.start()
        deadline = time.monotonic() + 30
        while stop._is_up(thread.native_id):
            assert time.monotonic() < deadline
        before = processor_ns(thread.native_id)
        session = Session(thread.native_id)
        stop_all_threads(session, set())
        assert session.noted == [before, before]
        done.set()
        thread.join()

    def test_the_wait_is_bounded(self, computing, monkeypatch) -> None:
        """The stop ends after its timeout if the thread gets no CPU, also with a torch that cannot switch
        its recording off.
        """
        monkeypatch.setattr(stop, "CALLBACK_NS", 10**18)
        monkeypatch.setattr(stop, "LEAVE_SECONDS", 0.2)
        session = Session(computing, pauses=False)
        stop_all_threads(session, set())
        assert len(session.noted) == 1


@pytest.mark.torch
@pytest.mark.slow
class TestStarvedThreads:
    def test_the_process_lives_on(self, warm) -> None:
        """The process does not crash when threads are descheduled inside an op while captures start and
        stop.
        """
        script = """
            import os, subprocess, sys, threading, time
            from pathlib import Path
            import torch
            from stepprof.backends.torch import stop
            from stepprof.backends.torch.backend import TorchBackend
            from stepprof.run.model import Capture, Window

            stop.LEAVE_SECONDS = 60  # next to other tests a thread may get no processor for longer than the usual limit
            first, *_, last = sorted(os.sched_getaffinity(0)) * 2

            def compute():
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
                os.sched_setaffinity(threading.get_native_id(), {first})
                x = torch.ones(16, 16)
                while True:
                    x @ x * 1e-3

            taker = f"import os; os.sched_setaffinity(0, {{{first}}})\\nwhile os.getppid() == {os.getpid()}: pass"
            other = subprocess.Popen([sys.executable, "-c", taker])
            try:
                for _ in range(3):
                    threading.Thread(target=compute, daemon=True).start()
                os.sched_setaffinity(threading.get_native_id(), {last})
                backend = TorchBackend()
                assert backend.probe() is None
                backend.arm()
                until = time.monotonic() + 30
                for number in range(int(sys.argv[1])):
                    capture = Capture(Window(number, "actor"), Path.cwd(), f"s{number}", {})
                    backend.start(capture)
                    time.sleep(0.02)
                    backend.stop(capture, ())
                    if time.monotonic() > until:
                        break
            finally:
                other.kill()
                other.wait()
            sys.stdout.write("ended")
            sys.stdout.flush()
            os._exit(0)
        """
        assert warm.run(script, str(CAPTURES), timeout=110).check().stdout == "ended"

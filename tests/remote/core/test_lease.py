"""The lease of an actor: when it is over, and which callback is then called."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from stepprof.host.process_identity import writer_identity
from stepprof.remote.core import lease
from stepprof.remote.core.lease import Lease, Watch, new_lease


@pytest.fixture
def child():
    """A process that lives until its standard input is closed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    process.stdin.close()


class TestLease:
    def test_this_process_lives(self):
        """A lease of this process is never over, and equal to another lease of this process."""
        made = new_lease()
        assert (made.here, made.is_over) == (True, False)
        assert made == new_lease()
        assert str(os.getpid()) in str(made)

    def test_a_killed_process(self, child):
        """The lease of another process is over when that process has ended."""
        made = Lease(writer_identity(child.pid))
        assert not made.is_over
        child.kill()
        child.wait()
        assert made.is_over

    def test_a_lease_of_another_host_holds_without_an_answer_of_ray(self):
        """For a process on another host, without information from Ray, the lease holds."""
        made = Lease({**writer_identity(), "host": "elsewhere"})
        assert (made.here, made.is_over) == (None, False)


class TestWatch:
    @pytest.fixture(autouse=True)
    def often(self, monkeypatch):
        """Check the processes more often than in a job."""
        monkeypatch.setattr(lease, "LOOK_SECONDS", 0.02)

    def test_the_watch_ends_with_its_process(self, child):
        """When the process ends, its callback is called. The thread ends when no process is left to watch."""
        watch, ended = Watch(), threading.Event()
        watch.add("a", Lease(writer_identity(child.pid)), lambda: False, ended.set)
        assert not ended.wait(0.2)
        child.kill()
        child.wait()
        assert ended.wait(10)
        thread = watch._thread
        if thread is not None:
            thread.join(10)
        assert watch._thread is None

    def test_a_removed_callback_is_not_called(self, child):
        """A callback that was removed before the process ended is not called."""
        watch, ended = Watch(), threading.Event()
        watch.add("a", Lease(writer_identity(child.pid)), lambda: False, ended.set)
        watch.remove("a")
        child.kill()
        child.wait()
        assert not ended.wait(0.3)

"""End a test process that hangs, and print where it hangs. This covers a test past its timeout, and
the end of the process, which a thread of a test may block.

pytest-timeout fails a test by an exception in the main thread. That does not interrupt a call in C,
and has no effect after the last test. This module uses a thread of C: it needs no lock of the
interpreter, and works until the interpreter has ended.

A worker of pytest-xdist that ends in this way ends the whole run, with a separate exit status.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from typing import Any

import pytest

MORE_SECONDS = 30.0
"""How much longer than its timeout a test may hang."""

END_SECONDS = 60.0
"""How long a process may take to end."""


def watch_test(seconds: float, stderr: int) -> None:
    """Limit the time of the current test."""
    if seconds > 0:
        faulthandler.dump_traceback_later(seconds + MORE_SECONDS, exit=True, file=stderr)


def over() -> None:
    """Remove the limit at the end of the test."""
    faulthandler.cancel_dump_traceback_later()


def watch_end(stderr: int, seconds: float = END_SECONDS) -> None:
    """Limit the time that the process may take after the main thread has finished."""

    def wait() -> None:
        threading.main_thread().join()
        faulthandler.dump_traceback_later(seconds, exit=True, file=stderr)

    threading.Thread(target=wait, name="watch-end", daemon=True).start()


CRASHED = pytest.ExitCode.INTERNAL_ERROR
"""The exit status of a run that a crash ended early. Tests are missing, so that repeating only the
failed ones cannot make it pass.
"""


class Workers:
    """Watch the workers of pytest-xdist in their controller. Name the tests that they run, and
    remember a crash.
    """

    def __init__(self) -> None:
        self.running: dict[str, None] = {}
        self.crashed = False

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note that a worker has begun a test."""
        self.running[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Forget a test that has ended."""
        self.running.pop(nodeid, None)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        """Remember that a worker crashed."""
        self.crashed = self.crashed or error is not None

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the tests that did not end because the run was interrupted or their workers crashed."""
        for nodeid in self.running:
            terminalreporter.write_line(f"did not end: {nodeid}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Return a status that distinguishes a crash from a failure."""
        if self.crashed:
            session.exitstatus = CRASHED


def watch_workers(config: pytest.Config) -> None:
    """End the run with the first worker that crashes. A new worker would begin with the test that
    ended the previous one.
    """
    config.pluginmanager.register(Workers())
    if config.option.maxworkerrestart is None:
        config.option.maxworkerrestart = "0"


def keep_pipe(config: pytest.Config) -> None:
    """Detach forked children from the pipe to the controller. The controller waits for the end of
    the pipe even if the worker has ended and a child is left.
    """
    (worker,) = (each for each in config.pluginmanager.get_plugins() if hasattr(each, "channel"))
    streams: Any = worker.channel.gateway._io
    numbers = [stream.fileno() for stream in (streams.infile, streams.outfile)]

    def leave() -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for number in numbers:
            os.dup2(null, number, inheritable=False)
        os.close(null)

    os.register_at_fork(after_in_child=leave)

"""Run an engine in its own process, with functions that may end it.

SGLang kills the process that holds an engine whenever its scheduler dies, so the tests hold no
engine. `Host` starts this file as a script. It calls functions of the test modules there, with the
engine as first argument.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import sglang_tiny
from driven import unmeasured

import stepprof
from stepprof.remote.core import ownership

HERE = Path(__file__).parent
START_SECONDS = 400.0  # both cores may be in use


class HostDiedError(Exception):
    """The process that holds the engine has ended."""


class Host:
    """An engine in its own process.

    Args:
        model: the model's path.
        log: the file for its output.
        arguments: further arguments of the engine.
        before: a function of a test module that is called first, with the engine; its result is `before`.
    """

    def __init__(
        self,
        model: str,
        log: Path,
        *,
        before: Callable[..., Any] | None = None,
        before_arguments: tuple[Any, ...] = (),
        env: dict[str, str] | None = None,
        **arguments: Any,
    ) -> None:
        self.log = log
        self._connection: Connection | None = None
        address = str(log.with_suffix(".socket"))
        with Listener(address) as listener, log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "sglang_host.py"), address],
                env={**os.environ, **sglang_tiny.variables(), **(env or {})},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._connection = self._accept(listener)
        self._connection.send((model, arguments))
        self.before = None
        assert self.answer() == "up"
        if before is not None:
            self.before = self.run(before, *before_arguments)

    def _accept(self, listener: Listener) -> Connection:
        accepted: list[Connection] = []
        thread = threading.Thread(target=lambda: accepted.append(listener.accept()), daemon=True)
        thread.start()
        thread.join(180)
        if not accepted:
            self.close()
            raise HostDiedError(self.log.read_text()[-4000:])
        return accepted[0]

    def run(self, function: Callable[..., Any], *arguments: Any, timeout: float = START_SECONDS) -> Any:
        """Call a function of a test module in the host, with the engine as first argument."""
        assert self._connection is not None
        self._connection.send((function.__module__, function.__qualname__, arguments))
        return self.answer(timeout)

    def answer(self, timeout: float = START_SECONDS) -> Any:
        """Return the result of a function that was sent."""
        assert self._connection is not None
        try:
            if not self._connection.poll(timeout):
                raise TimeoutError(self.log.read_text()[-4000:])
            good, value = self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            status = self.process.wait(30)
            raise HostDiedError(f"exit status {status}\n{self.log.read_text()[-4000:]}") from error
        if not good:
            raise AssertionError(f"in the host:\n{value}")
        return value

    def send(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function in the host and do not wait for it."""
        assert self._connection is not None
        self._connection.send((function.__module__, function.__qualname__, arguments))

    def close(self) -> None:
        """End the host and all processes that it started."""
        if self._connection is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._connection.send(None)
                self.process.wait(20)
            self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)


def _leave() -> None:
    """End what a failed test has left open. The next test would otherwise find its session or a
    busy engine.
    """
    stepprof.shutdown()
    ownership._in_memory.clear()


def main(address: str) -> None:
    """Serve until a request to end."""
    connection = Client(address)
    import sglang

    model, arguments = connection.recv()
    with unmeasured():
        engine = sglang.Engine(
            **{**sglang_tiny.ENGINE, "sleep_on_idle": True, "model_path": model, **arguments}
        )
    connection.send((True, "up"))
    while (asked := connection.recv()) is not None:
        module, function, given = asked
        try:
            answer = (True, getattr(importlib.import_module(module), function)(engine, *given))
        except BaseException:  # noqa: BLE001 - it is the test that fails
            answer = (False, traceback.format_exc())
            _leave()
        connection.send(answer)
    engine.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])

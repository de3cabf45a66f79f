"""Run the HTTP server of a real engine on this host, in its own process group."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from driven import unmeasured

START_SECONDS = 500.0  # both cores may be in use


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class EngineServer:
    """``python -m MODULE --host 127.0.0.1 --port … ARGUMENTS``.

    Args:
        module: the module of the server.
        arguments: its further arguments.
        log: the file for its output.
        key: the key that its users send.
        env: its additional variables.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        log: Path,
        *,
        key: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log, self._key = log, key
        address = ["--host", "127.0.0.1", "--port", str(port)]
        with log.open("w") as output, unmeasured():
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *address, *arguments],
                env={**os.environ, **(env or {})},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until the server answers."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self._log.read_text()[-4000:]
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                self.ask("GET", "/health", timeout=5)
                return
            time.sleep(0.3)
        raise TimeoutError(self._log.read_text()[-4000:])

    def ask(
        self, method: str, path: str, content: object = None, key: str | None = None, timeout: float = 100
    ) -> bytes:
        """Send one request as a user would."""
        key = key or self._key
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.url + path, method=method, data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            body: bytes = reply.read()
            return body

    def find(self, title: bytes) -> int:
        """Return the process of the server's group with this text in its command line or name."""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                of_the_server = os.getpgid(int(entry.name)) == self.process.pid
                if (
                    of_the_server
                    and title in (entry / "cmdline").read_bytes() + (entry / "comm").read_bytes()
                ):
                    return int(entry.name)
        raise LookupError(title)

    def close(self) -> None:
        """End the server and all processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)

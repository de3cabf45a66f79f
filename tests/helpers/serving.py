"""Run real HTTP servers on 127.0.0.1 that answer as a test configures them, and store their
requests.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace


@contextmanager
def serving(routes, *, host="127.0.0.1", tls=None):
    """Serve during the block.

    `routes` maps ``"GET /path"`` or ``"/path"`` to the answer: a status, JSON, (status, JSON),
    (status, JSON, headers), or a function of the handler. Any other request gets a 404. The block
    gets the server's `url`, its `port` and the requests `asked`.
    """
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            asked.append(
                SimpleNamespace(
                    method=self.command,
                    path=self.path,
                    headers={key.lower(): value for key, value in self.headers.items()},
                    json=json.loads(body) if body else None,
                )
            )
            found = routes.get(f"{self.command} {self.path}", routes.get(self.path, 404))
            if callable(found):
                found = found(self)
                if found is None:
                    return
            status, content, headers = 200, {}, {}
            if isinstance(found, int):
                status = found
            elif isinstance(found, tuple):
                status, content, headers = (*found, {})[:3]
            else:
                content = found
            data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        address_family = 10 if ":" in host else 2
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_):
            pass

    server = Server((host, 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    port = server.server_address[1]
    shown = f"[{host}]" if ":" in host else host
    try:
        yield SimpleNamespace(
            url=f"{'https' if tls else 'http'}://{shown}:{port}", port=port, asked=asked, stop=server.shutdown
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

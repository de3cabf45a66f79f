"""Send one request to a server, on a thread of its own, with the standard library alone.

A failed request states whether it was never sent, or sent and not answered: then a stop must
follow. Keys and passwords never appear in names, messages or `repr`. Proxies of the environment are
not used, because engines run in the same cluster.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import http.client
import json
import socket
import ssl
import weakref
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from stepprof.errors import ConfigError
from stepprof.host import real_time
from stepprof.interrupts import ours
from stepprof.redaction.messages import hide, quoted
from stepprof.remote.base import EngineFailure, Health
from stepprof.remote.http.address import PORTS, Address
from stepprof.remote.http.reply import MOST_BYTES, FinalResponse, Reply, read_body
from stepprof.remote.http.wire import HEAD_BYTES, Place, Wire, addresses, dial
from stepprof.remote.loop import in_thread

__all__ = ["Address", "Client"]

TIMEOUT_SECONDS = 10.0
AT_ONCE = 256
"""Maximum number of concurrent requests: each has a thread and a socket, which a hanging server occupies until the timeout."""
_SHOWN = 300


_under_way: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
    weakref.WeakKeyDictionary()
)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request and its deadline."""

    method: str
    target: str
    content: object
    timeout: float
    deadline: float

    @property
    def changes(self) -> bool:
        """Return whether the request changes the state of the server."""
        return self.method != "GET"


class Client:
    """Speaks to one server; every request has a connection of its own, and blocks no event loop.

    Args:
        url: the server's address; a name and password in it are sent, and never shown.
        api_key: sent as ``Authorization: Bearer``.
        admin_key: sent instead with requests that change the server (POST), if the server requires
            another key for them.
        ca_file: certificates to trust in addition to the system's, for https.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        admin_key: str | None = None,
        *,
        ca_file: str | None = None,
    ) -> None:
        self.address = Address.parse(url)
        self._api_key = _checked_key("api_key", api_key)
        self._admin_key = _checked_key("admin_key", admin_key)
        self._ca_file = ca_file
        password = (self.address.credentials or "").partition(":")[2]
        hide(self._api_key, self._admin_key, password, self.address.credentials)
        self.same_host: bool | None = None
        """Whether the server is on this host; None before the first answer."""

    def __repr__(self) -> str:
        return f"<Client {self.name}>"

    @property
    def name(self) -> str:
        """Return the URL without secrets."""
        return self.address.name

    @property
    def key(self) -> str:
        """Return the identity of the server."""
        return self.address.key

    @property
    def host(self) -> str:
        """Return the host of the server, by its URL and the connection."""
        return socket.gethostname() if self.same_host else self.address.host

    def for_url(self, url: str) -> Client:
        """Return a client for another server with the same keys."""
        client = Client(url, self._api_key, self._admin_key, ca_file=self._ca_file)
        if client.address.credentials is None and self.address.credentials is not None:
            client.address = replace(client.address, credentials=self.address.credentials)
        return client

    async def request(
        self, method: str, path: str, json: object = None, timeout: float = TIMEOUT_SECONDS
    ) -> Reply:
        """Send one request.

        Args:
            method: ``GET`` or ``POST``.
            path: what follows the server's address: ``/start_profile``.
            json: the body.
            timeout: seconds for everything: name lookup, connection, TLS, request and the whole answer.

        Returns:
            The server's answer, also if it is an error.

        Raises:
            EngineFailure: no answer. ``unreachable``: the request was never sent, or only asked for
                information; ``unknown`` and `owes_stop`: a POST was sent and not answered.
        """
        async with _turns():
            asked = _Asked(method, self.address.path + path, json, timeout, real_time.monotonic() + timeout)
            places = await self._places(asked)
            reply = await in_thread(self._request, asked, places)
        if self.same_host is None:
            self.same_host = reply.same_host
        return reply

    def failure(self, reply: Reply, doing: str, health: Health = "unknown") -> EngineFailure:
        """Return the failure that a reply means, with the remedy if a key is missing."""
        if reply.status in (401, 403):
            return EngineFailure(
                f"{self.name} answered {reply.status} to {doing}: it requires {'another' if self._api_key or self._admin_key else 'a'} key; "
                f"pass attach(…, api_key=…), and admin_key=… if it has one: {reply.text}",
                "unconfigured",
            )
        return EngineFailure(f"{self.name} answered {reply.status} to {doing}: {reply.text}", health)

    async def _places(self, asked: _Asked) -> list[Place]:
        try:
            return await addresses(self.address.host, self.address.port, asked.timeout)
        except ours(TimeoutError):
            reason = f'the name "{self.address.host}" was not looked up within {asked.timeout:.3g} s'
        except ours(OSError, UnicodeError) as error:
            reason = self._unreachable(error, asked)
        raise EngineFailure(f"{self.name} cannot be reached: {reason}", "unreachable")

    def _request(self, asked: _Asked, places: Sequence[Place]) -> Reply:
        """Send one request and return its answer, on this thread, within the deadline."""
        failure: EngineFailure | None = None
        with self._dial(places, asked) as sock:
            try:
                reply = self._exchange(asked, sock)
            except ours(OSError, http.client.HTTPException, ValueError) as error:
                failure = self._lost(asked, error)
        if failure is None and 300 <= reply.status < 400:
            failure = self._redirected(asked, reply)
        if failure is not None:
            raise failure  # outside of the block: a traceback would show the server's answer
        return reply

    def _exchange(self, asked: _Asked, sock: socket.socket) -> Reply:
        same_host = sock.getsockname()[0] == sock.getpeername()[0]
        wire = Wire(sock, asked.deadline)
        connection = self._connected(wire)
        body = None if asked.content is None else json.dumps(asked.content).encode()
        headers = self._headers(asked, has_body=body is not None)
        connection.request(asked.method, asked.target, body, headers)
        with closing(connection.getresponse()) as response:
            wire.allowance = 2 * MOST_BYTES + HEAD_BYTES  # also counts the sizes of chunks, and trailers
            data = read_body(response)
        said = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, data, said, same_host)

    def _connected(self, wire: Wire) -> http.client.HTTPConnection:
        """Return an HTTP connection over an open socket."""
        address = self.address
        connection = http.client.HTTPConnection(address.host, address.port)
        connection.default_port = PORTS[address.scheme]
        connection.response_class = FinalResponse
        connection.sock = wire
        return connection

    def _dial(self, places: Sequence[Place], asked: _Asked) -> socket.socket:
        try:
            return dial(places, self.address.host, self._context(), asked.deadline)
        except ssl.SSLCertVerificationError as error:
            reason = f"its certificate is not trusted ({error.verify_message}); name the one to trust: attach(…, ca_file=…)"
        except ours(ssl.SSLError) as error:
            reason = f"it does not speak TLS ({error.reason or error}); did you mean http://?"
        except ours(OSError, UnicodeError) as error:
            reason = self._unreachable(error, asked)
        raise EngineFailure(f"{self.name} cannot be reached: {reason}", "unreachable")

    def _unreachable(self, error: Exception, asked: _Asked) -> str:
        """Return why there is no connection."""
        if isinstance(error, TimeoutError):
            return f"no connection within {asked.timeout:.3g} s"
        if isinstance(error, socket.gaierror):
            return f'the name "{self.address.host}" is not known here ({error.strerror})'
        if isinstance(error, ConnectionRefusedError):
            return f"nothing listens on port {self.address.port} there; is the server up?"
        return str(error)

    def _context(self) -> ssl.SSLContext | None:
        if self.address.scheme == "http":
            return None
        try:
            changed = None if self._ca_file is None else Path(self._ca_file).stat().st_mtime_ns
            return _trusted(self._ca_file, changed)
        except ours(OSError, ssl.SSLError) as error:
            raise EngineFailure(
                f'ca_file = "{self._ca_file}" cannot be used: {error}', "unreachable"
            ) from error

    def _headers(self, asked: _Asked, *, has_body: bool) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "stepprof"}
        if has_body:
            headers["Content-Type"] = "application/json"
        key = (self._admin_key if asked.changes else None) or self._api_key
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        elif self.address.credentials is not None:
            basic = base64.b64encode(self.address.credentials.encode()).decode()
            headers["Authorization"] = f"Basic {basic}"
        return headers

    def _lost(self, asked: _Asked, error: Exception) -> EngineFailure:
        """Return the failure of a request that was sent and not completely answered: a start may have begun."""
        what = f"{asked.method} {asked.target}"
        if isinstance(error, TimeoutError):
            problem = f"did not answer {what} within {asked.timeout:.3g} s"
        else:
            problem = f"broke off while it answered {what} ({type(error).__name__}: {quoted(error, _SHOWN)})"
        health: Health = "unknown" if asked.changes else "unreachable"
        return EngineFailure(f"{self.name} {problem}", health, owes_stop=asked.changes)

    def _redirected(self, asked: _Asked, reply: Reply) -> EngineFailure:
        return EngineFailure(
            f"{self.name} answered {asked.method} {asked.target} with a redirect{reply.target and f' to {reply.target}'}; it is not followed, since a key "
            "would go with it: attach the engine's own address",
            "unreachable",
        )


def _turns() -> asyncio.Semaphore:
    """Return the semaphore that limits the concurrent requests on this loop."""
    loop = asyncio.get_running_loop()
    if loop not in _under_way:
        _under_way[loop] = asyncio.Semaphore(AT_ONCE)
    return _under_way[loop]


@functools.lru_cache(maxsize=16)
def _trusted(ca_file: str | None, changed: int | None) -> ssl.SSLContext:
    """Return the certificates to check servers with, cached: reading the system's takes longer than most requests."""
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


def _checked_key(name: str, key: object) -> str | None:
    """Return a key that fits a header. Raises ConfigError, without showing the key."""
    if key is None:
        return None
    if not isinstance(key, str) or not key.strip():
        raise ConfigError(f"{name}: expected a non-empty string")
    if not (key.strip().isascii() and key.strip().isprintable()):
        raise ConfigError(
            f"{name}: holds characters that no HTTP header can carry; was it read from the right file?"
        )
    return key.strip()

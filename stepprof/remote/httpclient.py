"""One request to a server, on a thread of its own, by the standard library alone.

Engines keep state of their own, so what matters here is what is known after a request that failed: whether it never left, or left
and was not answered (then a stop is owed). Keys and passwords are kept out of whatever is shown: names, messages, `repr`.
Environment variables that name a proxy are not followed: engines stand in the same cluster.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import http.client
import json
import socket
import ssl
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from stepprof.errors import ConfigError
from stepprof.remote.address import PORTS, Address, joined
from stepprof.remote.base import EngineFailure, Health
from stepprof.remote.httpclock import Bounds
from stepprof.remote.loop import in_thread

__all__ = ["Address", "Client", "Reply"]

TIMEOUT_SECONDS = 10.0
AT_ONCE = 256
"""Requests under way at a time: each has a thread and a socket. A server that hangs keeps one of them until its time is out."""
_MOST_BYTES = 1 << 26
_TALK = 300


_under_way: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
    weakref.WeakKeyDictionary()
)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered, and when, by our clock."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    """Names in small letters."""
    sent_unix_ns: int
    received_unix_ns: int
    same_host: bool
    """Both ends of the connection have one address; a tunnel may deceive."""
    secrets: Sequence[str] = field(default=(), repr=False)
    """What is not to be shown even if the server says it."""

    @property
    def ok(self) -> bool:
        """Whether the server did what it was asked to."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The beginning of the body, fit for a message."""
        text = " ".join(self.body[: 8 * _TALK].decode("utf-8", "replace").split())
        for secret in self.secrets:
            text = text.replace(secret, "…")
        shown = "".join(c if c.isprintable() else "?" for c in text)
        return shown if len(shown) <= _TALK else f"{shown[:_TALK]}…"

    def json(self) -> Any:
        """The body as JSON; None where it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class Client:
    """Speaks to one server; every request has a connection of its own, and blocks no event loop.

    Args:
        url: the server's address; a name and password in it are sent, and never shown.
        api_key: sent as ``Authorization: Bearer``.
        admin_key: sent in its place with what changes the server (POST), where the server wants another one for that.
        ca_file: certificates to trust besides the system's, for https.
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
        self.same_host: bool | None = None
        """Whether the server is on this host; None before the first answer."""
        self.bounds = Bounds()
        """Between what its clock's offset lies, by the answers so far."""

    def __repr__(self) -> str:
        return f"<Client {self.name}>"

    @property
    def name(self) -> str:
        """The URL without secrets."""
        return self.address.name

    @property
    def key(self) -> str:
        """What makes it the same server."""
        return self.address.key

    @property
    def host(self) -> str:
        """Where the server runs, as far as the URL and the connection say."""
        return socket.gethostname() if self.same_host else self.address.host

    def beside(self, url: str) -> Client:
        """A client for another server that takes the same keys."""
        client = Client(url, self._api_key, self._admin_key, ca_file=self._ca_file)
        if client.address.credentials is None and self.address.credentials is not None:
            given = client.address
            client.address = Address(
                given.scheme, given.host, given.port, given.path, self.address.credentials
            )
        return client

    async def request(
        self, method: str, path: str, json: object = None, timeout: float = TIMEOUT_SECONDS
    ) -> Reply:
        """Send one request.

        Args:
            method: ``GET`` or ``POST``.
            path: what follows the server's address: ``/start_profile``.
            json: the body.
            timeout: seconds until the connection stands, and then until the answer is whole.

        Returns:
            Whatever the server answered, errors included.

        Raises:
            EngineFailure: no answer. ``unreachable``: the request never left, or asked for nothing but information; ``unknown`` and
                `owes_stop` where a POST left and was not answered.
        """
        async with _turns():
            reply = await in_thread(self._request, method, path, json, timeout)
        if self.same_host is None:
            self.same_host = reply.same_host
        self.bounds.note_date(reply)
        return reply

    def failure(self, reply: Reply, doing: str, health: Health = "unknown") -> EngineFailure:
        """The failure that a reply amounts to, in words: what to do about a missing key is said here, for every engine."""
        if reply.status in (401, 403):
            return EngineFailure(
                f"{self.name} answered {reply.status} to {doing}: it wants {'another' if self._api_key or self._admin_key else 'a'} key; "
                f"say attach(…, api_key=…), and admin_key=… where it has one: {reply.text}",
                "unconfigured",
            )
        return EngineFailure(f"{self.name} answered {reply.status} to {doing}: {reply.text}", health)

    def _request(self, method: str, path: str, content: object, timeout: float) -> Reply:
        target = self.address.path + path
        reply = self._exchange(method, target, content, timeout)
        if 300 <= reply.status < 400:
            raise EngineFailure(
                f"{self.name} answered {method} {target} with a redirect{_aim(reply)}; it is not followed, since a key would go with it: "
                "attach the engine's own address",
                "unreachable",
            )
        return reply

    def _exchange(self, method: str, target: str, content: object, timeout: float) -> Reply:
        connection = self._connection(timeout)
        try:
            self._connect(connection, timeout)
            sock = connection.sock
            same_host = sock.getsockname()[0] == sock.getpeername()[0]
            deadline = time.monotonic() + timeout
            sent = time.time_ns()
            try:
                body = None if content is None else json.dumps(content).encode()
                connection.request(method, target, body, self._headers(method, content is not None))
                response = connection.getresponse()
                received = time.time_ns()
                with response:
                    data = _body(response, sock, deadline)
            except (OSError, http.client.HTTPException) as error:
                self._lost(method, target, timeout, error)
        finally:
            connection.close()
        headers = {name.lower(): value for name, value in response.getheaders()}
        password = (self.address.credentials or "").partition(":")[2]
        secrets = [secret for secret in (self._api_key, self._admin_key, password) if secret]
        return Reply(response.status, data, headers, sent, received, same_host, secrets)

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        address = self.address
        if address.scheme == "http":
            return http.client.HTTPConnection(address.host, address.port, timeout=timeout)
        try:
            changed = None if self._ca_file is None else Path(self._ca_file).stat().st_mtime_ns
            context = _trusted(self._ca_file, changed)
        except (OSError, ssl.SSLError) as error:
            raise EngineFailure(
                f'ca_file = "{self._ca_file}" cannot be used: {error}', "unreachable"
            ) from error
        return http.client.HTTPSConnection(address.host, address.port, timeout=timeout, context=context)

    def _connect(self, connection: http.client.HTTPConnection, timeout: float) -> None:
        try:
            connection.connect()
        except socket.gaierror as error:
            reason = f'the name "{self.address.host}" is not known here ({error.strerror})'
        except ConnectionRefusedError:
            reason = f"nothing listens on port {self.address.port} there; is the server up?"
        except TimeoutError:
            reason = f"no connection within {timeout:.3g} s"
        except ssl.SSLCertVerificationError as error:
            reason = f"its certificate is not trusted ({error.verify_message}); name the one to trust: attach(…, ca_file=…)"
        except ssl.SSLError as error:
            reason = f"it does not speak TLS ({error.reason or error}); did you mean http://?"
        except (OSError, UnicodeError) as error:
            reason = str(error)
        else:
            return
        raise EngineFailure(f"{self.name} cannot be reached: {reason}", "unreachable")

    def _headers(self, method: str, has_body: bool) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "stepprof"}
        if has_body:
            headers["Content-Type"] = "application/json"
        key = (self._admin_key if method == "POST" else None) or self._api_key
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        elif self.address.credentials is not None:
            basic = base64.b64encode(self.address.credentials.encode()).decode()
            headers["Authorization"] = f"Basic {basic}"
        return headers

    def _lost(self, method: str, target: str, timeout: float, error: Exception) -> NoReturn:
        """The request left, and no whole answer came back: what was to be begun may have begun."""
        asked = method != "GET"
        if isinstance(error, TimeoutError):
            what = f"did not answer {method} {target} within {timeout:.3g} s"
        else:
            what = f"broke off while it answered {method} {target} ({type(error).__name__}: {error})"
        raise EngineFailure(
            f"{self.name} {what}", "unknown" if asked else "unreachable", owes_stop=asked
        ) from error


def _turns() -> asyncio.Semaphore:
    """Who may have a request under way, on this loop."""
    loop = asyncio.get_running_loop()
    if loop not in _under_way:
        _under_way[loop] = asyncio.Semaphore(AT_ONCE)
    return _under_way[loop]


@functools.lru_cache(maxsize=16)
def _trusted(ca_file: str | None, changed: int | None) -> ssl.SSLContext:
    """What certificates are checked by: reading the system's takes longer than many a request."""
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


def _checked_key(name: str, key: object) -> str | None:
    """A key as it may stand in a header; what is wrong with it is said without showing it."""
    if key is None:
        return None
    if not isinstance(key, str) or not key.strip():
        raise ConfigError(f"{name}: expected a text that is not empty")
    if not (key.strip().isascii() and key.strip().isprintable()):
        raise ConfigError(
            f"{name}: holds characters that no HTTP header can carry; was it read from the right file?"
        )
    return key.strip()


def _body(response: http.client.HTTPResponse, sock: socket.socket, deadline: float) -> bytes:
    """The body, in the time that is left: a server that sends a byte now and then keeps no thread for ever."""
    data = bytearray()
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if not response.isclosed():
            sock.settimeout(left)
        block = response.read1(1 << 16)
        if not block:
            break
        data += block
        if len(data) > _MOST_BYTES:
            raise http.client.HTTPException(f"more than {_MOST_BYTES} bytes")
    expected = response.getheader("content-length")
    if expected is not None and expected.isdecimal() and len(data) < int(expected):
        raise http.client.IncompleteRead(bytes(data[:0]), int(expected) - len(data))
    return bytes(data)


def _aim(reply: Reply) -> str:
    """Where a redirect points to, without what may be secret in it."""
    try:
        parts = urlsplit(reply.headers.get("location", ""))
        return (
            f" to {joined(parts.scheme, parts.hostname, parts.port or PORTS.get(parts.scheme, 80), parts.path)}"
            if parts.hostname
            else f" to {parts.path}"
        )
    except ValueError:
        return ""

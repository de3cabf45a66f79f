"""A connection with one deadline for everything on it, and a limit on the bytes that arrive.

`http.client` has neither: it skips interim responses for ever, waits anew for each byte of a header, and reads trailers without end. So it gets this class in place of a socket:
before each read the remaining time becomes the socket's time-out, and each byte is counted.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import socket
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepprof.host import real_time
from stepprof.interrupts import ours
from stepprof.remote.loop import in_thread

if TYPE_CHECKING:
    import ssl

HEAD_BYTES = 1 << 18
"""Maximum bytes before a body: interim responses, the status and the headers."""

Place = tuple[Any, ...]
"""One of the answers of `socket.getaddrinfo`."""

_looking: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[tuple[str, int], asyncio.Future[list[Place]]]
] = weakref.WeakKeyDictionary()


async def addresses(host: str, port: int, timeout: float) -> list[Place]:
    """Return the addresses of a host, as `socket.getaddrinfo` does. A resolver cannot be
    interrupted, so one thread resolves a name for all callers that wait for it.

    Raises:
        OSError: the name is not known; TimeoutError: the resolver has not answered within `timeout` seconds.
        UnicodeError: the name is invalid.
    """
    try:
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
    except ours(socket.gaierror, UnicodeError):
        pass  # it is a name, not an address
    asked = _looking.setdefault(asyncio.get_running_loop(), {})
    looking = asked.get((host, port))
    if looking is None:
        looking = asyncio.ensure_future(in_thread(socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM))
        asked[host, port] = looking
        looking.add_done_callback(
            lambda done: (asked.pop((host, port)), done.cancelled() or done.exception())
        )
    await asyncio.wait({looking}, timeout=timeout)
    if not looking.done():
        raise TimeoutError
    return looking.result()


def dial(
    places: Sequence[Place], host: str, context: ssl.SSLContext | None, deadline: float
) -> socket.socket:
    """Return a connection to the first place that answers, with TLS where there is a `context`.

    Args:
        places: the addresses of the host; each gets an equal part of the remaining time.
        host: its name, as its certificate has it.
        context: of TLS; None: none.
        deadline: by `time.monotonic`.

    Raises:
        OSError: of the last one that was tried; TimeoutError: the time is over.
    """
    failed: OSError = ConnectionError("the name has no address")
    for number, (family, kind, protocol, _, address) in enumerate(places):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(_left(deadline) / (len(places) - number))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is None:
                return sock
            sock.settimeout(_left(deadline))  # holds for the whole handshake
            return context.wrap_socket(sock, server_hostname=host)
        except ours(OSError) as error:
            failed = error
            sock.close()
        except BaseException:
            sock.close()
            raise
    raise failed


class Wire:
    """A substitute for a connected socket, for `http.client`, with a deadline by `time.monotonic`."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline
        self.allowance = HEAD_BYTES
        """The number of bytes that may still arrive."""

    def sendall(self, data: bytes) -> None:
        """Send all of it. Raises TimeoutError."""
        self._sock.settimeout(_left(self._deadline))
        self._sock.sendall(data)

    def receive_into(self, buffer: Any) -> int:
        """Receive the available bytes. Raises TimeoutError, or HTTPException if it is more than allowed."""
        self._sock.settimeout(_left(self._deadline))
        count = self._sock.recv_into(buffer)
        self.allowance -= count
        if self.allowance < 0:
            raise http.client.HTTPException("its answer is too large")
        return count

    def makefile(self, *_: object) -> io.BufferedReader:
        """Return the file that `http.client` reads from."""
        return io.BufferedReader(_Reading(self))

    def close(self) -> None:
        """Do nothing: the caller that opened the socket closes it."""


class _Reading(io.RawIOBase):
    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._wire.receive_into(buffer)


def _left(deadline: float) -> float:
    left = deadline - real_time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left

"""The answer of a server: the parts that may be parsed, and those that may be shown."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from stepprof.interrupts import ours
from stepprof.redaction.messages import masked, quoted
from stepprof.remote.http.address import PORTS, joined

MOST_BYTES = 1 << 22
"""Maximum size of an answer. No engine sends more; parsing takes up to twenty times as much memory."""
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's answer."""

    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    """Names in lower case."""
    same_host: bool
    """Whether both ends of the connection have one address. A tunnel to another host may have that too."""

    @property
    def ok(self) -> bool:
        """Return whether the request succeeded."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """Return the beginning of the body, fit for a message."""
        return quoted(" ".join(masked(self.body.decode("utf-8", "replace")).split()), _SHOWN)

    @property
    def target(self) -> str:
        """Return the target of a redirect, fit for a message and without secrets; empty if it names none."""
        try:
            parts = urlsplit(masked(self.headers.get("location", "")))  # before it is parsed
            port = parts.port or PORTS.get(parts.scheme, 80)
        except ours(ValueError):
            return ""
        host = parts.hostname
        return quoted(parts.path if not host else joined(parts.scheme, host, port, parts.path), _SHOWN)

    def json(self) -> Any:
        """Return the body as JSON; None if it is not JSON."""
        try:
            return json.loads(self.body)
        except ours(ValueError, RecursionError):
            return None

    def table(self, *keys: str) -> dict[str, Any]:
        """Return the mapping at these keys of a successful answer; empty if there is none."""
        content = self.json() if self.ok else None
        for key in keys:
            content = content.get(key) if isinstance(content, dict) else None
        return content if isinstance(content, dict) else {}


class FinalResponse(http.client.HTTPResponse):
    """The final answer of a server. `http.client` skips 100 alone of the interim ones before it."""

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        is_interim = 100 <= status < 200 and status != http.client.SWITCHING_PROTOCOLS
        return version, http.client.CONTINUE if is_interim else status, reason


def read_body(response: http.client.HTTPResponse) -> bytes:
    """Return the whole body. Raises HTTPException if it is longer than `MOST_BYTES` or shorter than stated."""
    data = bytearray()
    while block := response.read1(1 << 16):
        data += block
        if len(data) > MOST_BYTES:
            raise http.client.HTTPException(f"more than {MOST_BYTES} bytes")
    said = response.getheader("content-length", "")
    if not response.chunked and said.isdecimal() and (len(said) > 18 or len(data) < int(said)):
        raise http.client.IncompleteRead(b"", None if len(said) > 18 else int(said) - len(data))
    return bytes(data)

"""The answer of a server: the parts that may be read, and those that may be shown."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from stepprof.redaction import masked, quoted
from stepprof.remote.http.address import PORTS, joined

__all__ = ["MOST_BYTES", "Reply", "read_body"]

MOST_BYTES = 1 << 22
"""No engine tells more of itself; what is parsed takes some twenty times as much memory at worst."""
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered, and when, by our clock."""

    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    """Names in small letters."""
    sent_unix_ns: int
    received_unix_ns: int
    same_host: bool
    """Both ends of the connection have one address; a tunnel may deceive."""

    @property
    def ok(self) -> bool:
        """Whether the server did what it was asked to."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The beginning of the body, fit for a message."""
        return quoted(" ".join(masked(self.body.decode("utf-8", "replace")).split()), _SHOWN)

    @property
    def target(self) -> str:
        """Where a redirect points to, fit for a message, without what may be secret in it; empty where it does not say."""
        try:
            parts = urlsplit(masked(self.headers.get("location", "")))  # before it is taken apart
            port = parts.port or PORTS.get(parts.scheme, 80)
        except ValueError:
            return ""
        host = parts.hostname
        return quoted(parts.path if not host else joined(parts.scheme, host, port, parts.path), _SHOWN)

    def json(self) -> Any:
        """Return the body as JSON; None: it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def table(self, *keys: str) -> dict[str, Any]:
        """Return the mapping at these keys of a successful answer; an empty one if there is none."""
        content = self.json() if self.ok else None
        for key in keys:
            content = content.get(key) if isinstance(content, dict) else None
        return content if isinstance(content, dict) else {}


def read_body(response: http.client.HTTPResponse) -> bytes:
    """Return the whole body. Raises HTTPException for one that is longer than `MOST_BYTES` or shorter than it says."""
    data = bytearray()
    while block := response.read1(1 << 16):
        data += block
        if len(data) > MOST_BYTES:
            raise http.client.HTTPException(f"more than {MOST_BYTES} bytes")
    said = response.getheader("content-length", "")
    if not response.chunked and said.isdecimal() and (len(said) > 18 or len(data) < int(said)):
        raise http.client.IncompleteRead(b"", None if len(said) > 18 else int(said) - len(data))
    return bytes(data)

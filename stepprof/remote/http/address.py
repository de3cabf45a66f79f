"""The address of a server: a URL is parsed once, so that none of its secrets reaches a name, a message or a manifest."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from stepprof.errors import ConfigError
from stepprof.interrupts import ours
from stepprof.redaction.messages import quoted

PORTS = {"http": 80, "https": 443}
_NO_HOST = re.compile(r"[\x00-\x20\x7f/?#@\\]")
_UNFIT = re.compile(r"[^\x21-\x7e]")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server; what is shown of it contains no secret.

    >>> Address.parse("http://me:secret@LOCALHOST:8000/v1/").name
    'http://localhost:8000/v1'
    """

    scheme: str
    host: str
    port: int
    path: str
    credentials: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL. Raises ConfigError with the problem, and without secrets."""
        try:
            parts = urlsplit(url.strip())
            port = parts.port
            host = unquote(parts.hostname or "")
        except ours(ValueError) as error:
            raise ConfigError(
                f"a server's URL cannot be read ({quoted(error, 200)}); expected something like http://host:8000"
            ) from error
        if parts.scheme not in PORTS or not host or _NO_HOST.search(host):
            raise ConfigError(
                f'a server\'s URL with scheme "{parts.scheme}" and host "{quoted(host, 100)}"; expected something like http://host:8000'
            )
        shown = joined(parts.scheme, host, port or PORTS[parts.scheme], parts.path.rstrip("/"))
        if _UNFIT.search(parts.path):
            raise ConfigError(f"the path of the URL of {host} contains a space or another invalid character")
        if parts.query or parts.fragment:
            raise ConfigError(
                f"the URL {shown} has a query or a fragment (after ? or #): attach the server's address alone, and its key as api_key"
            )
        return cls(
            parts.scheme,
            host,
            port or PORTS[parts.scheme],
            parts.path.rstrip("/"),
            _credentials(parts),
        )

    @property
    def name(self) -> str:
        """Return the URL without secrets."""
        return joined(self.scheme, self.host, self.port, self.path)

    @property
    def key(self) -> str:
        """Return the same key for every URL of this server, within one host: `localhost` of two hosts are two servers."""
        local = self.host in ("localhost", "::1", "0.0.0.0", "::") or self.host.startswith("127.")  # noqa: S104 - compared with, never bound
        return joined(self.scheme, socket.gethostname() if local else self.host, self.port, self.path)


def joined(scheme: str, host: str, port: int, path: str) -> str:
    """Return the URL of these parts."""
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}{'' if port == PORTS.get(scheme) else f':{port}'}{path}"


def _credentials(parts: SplitResult) -> str | None:
    if parts.username is None and parts.password is None:
        return None
    return f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"

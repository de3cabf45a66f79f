"""Decide which workers of a router are followed: those on hosts that the option ``workers`` names.

The router's list is text from outside, and the router's key is sent to the listed addresses.
"""

from __future__ import annotations

import fnmatch
import functools
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from stepprof.errors import ConfigError
from stepprof.interrupts import ours
from stepprof.redaction.messages import quoted
from stepprof.remote.http.address import Address

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MOST_WORKERS = 1024
"""Maximum number of followed workers of one router."""
_LOOKED_AT = 4 * MOST_WORKERS
_PATTERN = re.compile(r"[\w.:*?\[\]-]+")


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts that the option ``workers`` names; none without it."""

    patterns: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, given: object) -> Hosts:
        """Read the option: host names, patterns of them and networks, or one of these.

        >>> Hosts.parse(["node-*", "10.0.0.0/8"]).admits("node-3")
        True

        Raises:
            ConfigError: it is none of these.
        """
        listed = [given] if isinstance(given, str) else given
        patterns, networks = [], []
        for each in listed if isinstance(listed, list | tuple) and listed else [None]:
            network = _network(each)
            if network is not None:
                networks.append(network)
            elif isinstance(each, str) and _PATTERN.fullmatch(each):
                patterns.append(each.lower())
            else:
                problem = 'must be hosts, patterns such as "node-*" or networks such as "10.0.0.0/8", without scheme, port and path'
                raise ConfigError.at("workers", given, problem)
        return cls(tuple(patterns), tuple(networks))

    def admits(self, host: str) -> bool:
        """Return whether a worker may be on this host."""
        address = _literal(host)
        if address is not None and any(address in network for network in self.networks):
            return True
        names = {host.lower(), *([] if address is None else [str(address)])}
        return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class Choice:
    """The workers that are followed, and why each other one is not, by the router's list."""

    urls: list[str] = field(default_factory=list)
    refused: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def among(cls, listed: Iterable[object], hosts: Hosts) -> Choice:
        """Choose from a router's list. A refused entry affects only itself; workers behind gRPC are omitted."""
        urls: dict[str, None] = {}
        refused: dict[str, str] = {}
        for each in islice(listed, _LOOKED_AT):
            problem = _problem(each, hosts)
            if problem is not None:
                refused.setdefault(quoted(each, 200), problem)
            elif isinstance(each, str) and each not in urls:
                if len(urls) < MOST_WORKERS:
                    urls[each] = None
                else:
                    refused[quoted(each, 200)] = f"only {MOST_WORKERS} workers of a router are followed"
        return cls(list(urls), refused)


def _problem(url: object, hosts: Hosts) -> str | None:
    if not isinstance(url, str):
        return "not a URL"
    try:
        address = Address.parse(url)
    except ConfigError:
        return "not the URL of a server"
    if address.path:
        return "has a path, which no worker of SGLang has; attach it separately"
    if not hosts.admits(address.host):
        return f'the option workers does not name its host; to follow it: attach(…, workers=["{quoted(address.host, 100)}"])'
    return None


def _network(given: object) -> Network | None:
    try:
        return ipaddress.ip_network(str(given), strict=False) if isinstance(given, str) else None
    except ours(ValueError):
        return None


@functools.lru_cache(maxsize=MOST_WORKERS)
def _literal(host: str) -> Ip | None:
    """Return the address that a host is written as, in any form that the resolver accepts (`0x7f.1`); None: it is a name."""
    if host == "localhost":
        return ipaddress.IPv4Address("127.0.0.1")
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        address = ipaddress.ip_address(found[0][4][0])
    except ours(OSError, ValueError):
        return None
    return getattr(address, "ipv4_mapped", None) or address

"""Decide which workers of a router are followed. The router's list is text from outside, and the
router's key is sent to the listed addresses.

By default a worker must be on the router's host or in its private network; the option ``workers``
names other hosts and networks instead.
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
from typing import TYPE_CHECKING

from stepprof.errors import ConfigError
from stepprof.interrupts import ours
from stepprof.redaction.messages import quoted
from stepprof.remote.http.address import Address
from stepprof.remote.http.wire import addresses

if TYPE_CHECKING:
    from stepprof.remote.http.client import Client

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MOST_WORKERS = 1024
"""Maximum number of followed workers of one router."""
_LOOKED_AT = 4 * MOST_WORKERS
_PREFIX = {4: 16, 6: 64}
"""Minimum length of the common prefix of two private addresses of one network."""
_PRIVATE_DOMAINS = ("internal", "local", "localdomain")
"""Top-level domains that are reserved for private names."""
_PATTERN = re.compile(r"[\w.:*?\[\]-]+")


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts that the option ``workers`` allows."""

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


class Neighbourhood:
    """A router's own host and network."""

    def __init__(self, host: str, places: Iterable[Ip]) -> None:
        self._host = host
        self._places = tuple(places)
        self._is_here = any(map(_is_here, self._places))

    @classmethod
    async def of(cls, client: Client, timeout: float) -> Neighbourhood:
        """Look up a router's addresses. If that fails, it has no network."""
        try:
            places = await addresses(client.address.host, client.address.port, timeout)
        except ours(OSError, UnicodeError):
            places = []
        found = (_literal(str(place[4][0])) for place in places)
        return cls(client.address.host, [each for each in found if each is not None])

    def admits(self, host: str) -> bool:
        """Return whether this host is the router's, or in its private network."""
        if host == self._host:
            return True
        address = _literal(host)
        if address is None:
            return _are_siblings(host, self._host)
        if address in self._places:
            return True
        if _is_loopback(address):
            return self._is_here
        here = _source(address) if self._is_here else None
        return any(_are_near(address, place) for place in (*self._places, here) if place is not None)


@dataclass(frozen=True, slots=True)
class Choice:
    """The workers that are followed, and why each other one is not, by the router's list."""

    urls: list[str] = field(default_factory=list)
    refused: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def among(cls, listed: Iterable[object], hosts: Hosts | Neighbourhood) -> Choice:
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


def _problem(url: object, hosts: Hosts | Neighbourhood) -> str | None:
    if not isinstance(url, str):
        return "not a URL"
    try:
        address = Address.parse(url)
    except ConfigError:
        return "not the URL of a server"
    if address.path:
        return "has a path, which no worker of SGLang has; attach it separately"
    if not hosts.admits(address.host):
        return f'neither on the router\'s host nor in its network; to follow it: attach(…, workers=["{quoted(address.host, 100)}"])'
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


def _is_loopback(address: Ip) -> bool:
    return address.is_loopback or address.is_unspecified


def _is_here(address: Ip) -> bool:
    return _is_loopback(address) or _source(address) == address


def _source(address: Ip) -> Ip | None:
    """Return the address of this host from which the kernel would reach that one; nothing is sent."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((str(address), 9))
            return ipaddress.ip_address(sock.getsockname()[0])
    except ours(OSError, ValueError):
        return None


def _are_near(one: Ip, other: Ip) -> bool:
    """Return whether two addresses are in one private network."""
    if one.version != other.version or one.is_global or _is_loopback(one):
        return False
    return one in ipaddress.ip_network(f"{other}/{_PREFIX[other.version]}", strict=False)


def _are_siblings(one: str, other: str) -> bool:
    """Return whether two names are certainly neighbours: both without a domain, or in one that cannot be registered."""
    domains = {name.lower().rstrip(".").partition(".")[2] for name in (one, other)}
    if len(domains) > 1 or _literal(other) is not None:
        return False
    domain = domains.pop()
    return not domain or domain.rpartition(".")[2] in _PRIVATE_DOMAINS

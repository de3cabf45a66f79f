"""The choice of a router's workers that stepprof contacts."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from stepprof.errors import ConfigError
from stepprof.remote.http.client import Client
from stepprof.remote.http.workers import MOST_WORKERS, Choice, Hosts, Neighbourhood


def near(host, *places):
    return Neighbourhood(host, map(ipaddress.ip_address, places))


class TestHosts:
    @pytest.mark.parametrize(
        ("given", "host", "admitted"),
        [
            ("node-3", "node-3", True),
            (["NODE-*"], "node-3", True),
            (["node-*"], "evil.node-3", False),
            (["10.0.0.0/8"], "10.200.1.1", True),
            (["10.0.0.0/8"], "11.0.0.1", False),
            (["10.0.0.0/8"], "0x0a000001", True),
            (["10.0.0.7"], "10.0.0.7", True),
            (["10.0.*"], "10.0.3.4", True),
            (["2001:db8::/32"], "2001:db8::9", True),
            (["*"], "anything.example", True),
            (["127.0.0.1"], "localhost", True),
        ],
    )
    def test_admitted_hosts(self, given, host, admitted):
        """The option accepts host names, patterns of names, addresses and networks."""
        assert Hosts.parse(given).admits(host) is admitted

    @pytest.mark.parametrize("given", [[], "", None, 7, ["http://a"], ["a/b"], ["a b"], [3], {"a": 1}])
    def test_invalid_host_options_are_refused(self, given):
        """An invalid value of the option `workers` raises ConfigError."""
        with pytest.raises(ConfigError, match="workers"):
            Hosts.parse(given)


class TestNeighbourhood:
    @pytest.mark.parametrize(
        ("host", "place", "worker", "admitted"),
        [
            ("10.1.2.3", "10.1.2.3", "10.1.2.3", True),
            ("10.1.2.3", "10.1.2.3", "10.1.9.9", True),
            ("10.1.2.3", "10.1.2.3", "10.2.0.1", False),
            ("10.1.2.3", "10.1.2.3", "127.0.0.1", False),
            ("10.1.2.3", "10.1.2.3", "localhost", False),
            ("10.1.2.3", "10.1.2.3", "0.0.0.0", False),
            ("10.1.2.3", "10.1.2.3", "[::]", False),
            ("10.1.2.3", "10.1.2.3", "169.254.169.254", False),
            ("10.1.2.3", "10.1.2.3", "node-3", False),
            ("10.1.2.3", "10.1.2.3", "::ffff:10.1.4.4", True),
            ("10.1.2.3", "10.1.2.3", "::ffff:8.8.8.8", False),
            ("10.1.2.3", "10.1.2.3", "167838212", True),
            ("10.1.2.3", "10.1.2.3", "134744072", False),
            ("8.8.8.8", "8.8.8.8", "8.8.8.8", True),
            ("8.8.8.8", "8.8.8.8", "8.8.4.4", False),
            ("fd00:1::1", "fd00:1::1", "fd00:1::2", True),
            ("fd00:1::1", "fd00:1::1", "fd00:2::2", False),
            ("127.0.0.1", "127.0.0.1", "localhost", True),
            ("127.0.0.1", "127.0.0.1", "0.0.0.0", True),
            ("localhost", "127.0.0.1", "127.0.0.1", True),
            ("127.0.0.1", "127.0.0.1", "8.8.8.8", False),
            ("router", "10.1.2.3", "10.1.7.7", True),
            ("router", "10.1.2.3", "router", True),
            ("router", "10.1.2.3", "node-3", True),
            ("router", "10.1.2.3", "evil.example", False),
            ("router.a.example", "10.1.2.3", "node.a.example", False),
            ("router.ns.svc.cluster.local", "10.1.2.3", "node.ns.svc.cluster.local", True),
            ("router.ns.svc.cluster.local", "10.1.2.3", "node.other.svc.cluster.local", False),
        ],
    )
    def test_the_same_host_or_network(self, host, place, worker, admitted):
        """Only workers of the router's own host or network are accepted. Their names are not looked up,
        because a name may later point elsewhere.
        """
        assert near(host, place).admits(worker.strip("[]")) is admitted

    def test_this_hosts_own_address(self):
        """A router on this host may list its workers by the host's external address."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            try:
                sock.connect(("192.0.2.1", 9))
            except OSError:  # a machine without a network has no such address
                return
            own = sock.getsockname()[0]
        assert near("127.0.0.1", "127.0.0.1").admits(own)

    async def test_a_routers_own_host_is_admitted(self):
        """The router's own host name, which the user wrote, is looked up. Workers on that host are
        accepted.
        """
        found = await Neighbourhood.of(Client("http://localhost:1"), 5)
        assert found.admits("127.0.0.1")
        unknown = await Neighbourhood.of(Client("http://no.such.host.invalid:1"), 5)
        assert not unknown.admits("10.0.0.1")
        assert unknown.admits("no.such.host.invalid")


class TestChoice:
    def test_a_bad_entry_affects_only_itself(self):
        """Each bad entry is refused with its reason. The text has no control characters and no password,
        and is short.
        """
        listed = [
            "http://a:1",
            "http://a/\x1b[2J",
            "http://[::1",
            "ftp://a",
            "http://a:1/p",
            "http://me:pw@b",
            "x" * 9000,
            7,
        ]
        choice = Choice.among(listed, Hosts.parse("a"))
        assert choice.urls == ["http://a:1"]
        assert len(choice.refused) == 7
        shown = " ".join([*choice.refused, *choice.refused.values()])
        assert shown.isprintable()
        assert "pw@" not in shown
        assert len(shown) < 3000

    def test_the_number_of_workers_is_limited(self):
        """The number of chosen workers is limited, and so is the number of refused ones."""
        choice = Choice.among((f"http://a:{port}" for port in range(1, 60_000)), Hosts.parse("a"))
        assert len(choice.urls) == MOST_WORKERS
        assert len(choice.refused) < 4 * MOST_WORKERS

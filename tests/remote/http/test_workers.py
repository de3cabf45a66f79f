"""The choice of a router's workers that stepprof contacts."""

from __future__ import annotations

import pytest

from stepprof.errors import ConfigError
from stepprof.remote.http.workers import MOST_WORKERS, Choice, Hosts


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

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "node-3"])
    def test_no_host_without_the_option(self, host):
        """Without the option `workers`, no host is admitted: a router's key goes nowhere that the user has not named."""
        assert not Hosts().admits(host)

    @pytest.mark.parametrize("given", [[], "", None, 7, ["http://a"], ["a/b"], ["a b"], [3], {"a": 1}])
    def test_invalid_host_options_are_refused(self, given):
        """An invalid value of the option `workers` raises ConfigError."""
        with pytest.raises(ConfigError, match="workers"):
            Hosts.parse(given)


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

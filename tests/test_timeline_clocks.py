"""From the clocks of several hosts to one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprof.errors import ConfigError
from stepprof.timeline.assume import ALL, assumed_for, assumed_offsets, check_assumed
from stepprof.timeline.clocks import Clocks, describe, worst_error
from stepprof.timeline.find import Input
from stepprof.timeline.model import Alignment, Origin


def told(host, *clocks, boot=None, fragment=None):
    entries = [dict(zip(("host", "offset_ns", "error_ns", "method"), clock, strict=True)) for clock in clocks]
    return {"fragment": fragment or f"of-{host}", "host": host, "boot_id": boot, "clocks": entries}


class TestClocks:
    def test_reference_is_who_compared(self):
        """Offsets are against the process that compared others with itself, wherever the sources are."""
        clocks = Clocks.of(
            [told("b"), told("driver", ("b", 3_000, 10, "ping-pong"), ("c", -7, 2, "http-date"))],
            ["b", "b", "c"],
        )
        assert clocks.alignment("driver") == Alignment("reference", 0, 0)
        assert clocks.alignment("b") == Alignment("ping-pong", 3_000, 10)
        assert clocks.alignment("c") == Alignment("http-date", -7, 2)

    def test_never_compared(self):
        """Without a comparison the clock of most sources is the common one, and another host's error is not known."""
        clocks = Clocks.of([told("a"), told("b")], ["a", "b", "b", None])
        assert clocks.alignment("b") == Alignment("reference", 0, 0)
        assert clocks.alignment("a") == Alignment("unmeasured", 0, None)
        assert clocks.alignment("elsewhere") == clocks.alignment(None) == Alignment("unmeasured", 0, None)

    def test_by_way_of_another(self):
        """Offsets and errors add up along the way with the smallest error, in either direction."""
        clocks = Clocks.of(
            [
                told(
                    "a", ("b", 100, 5, "ping-pong"), ("c", 1_000, 500, "http-date"), ("e", 1, 1, "ping-pong")
                ),
                told("b", ("c", 50, 7, "ping-pong")),
                told("d", ("c", 3, 1, "ping-pong")),
            ]
        )
        assert clocks.alignment("c") == Alignment("ping-pong", 150, 12)
        assert clocks.alignment("d") == Alignment("ping-pong", 147, 13)

    def test_one_machine_under_two_names(self):
        """Containers of one machine have one boot, and its clock."""
        clocks = Clocks.of(
            [told("pod-1", boot="x"), told("pod-2", boot="x"), told("pod-3", boot="y")],
            ["pod-1", "pod-1", "pod-2", "pod-3"],
        )
        assert clocks.alignment("pod-1") == Alignment("reference", 0, 0)
        assert clocks.alignment("pod-2") == Alignment("same-host", 0, 0)
        assert clocks.alignment("pod-3").method == "unmeasured"

    def test_same_host_by_another_name(self):
        clocks = Clocks.of(
            [told("a", ("localhost", 0, 0, "same-host"), ("b", 9, 1, "ping-pong"))], ["localhost"]
        )
        assert clocks.alignment("localhost") == Alignment("same-host", 0, 0)

    def test_two_machines_of_one_name(self):
        """A name that two machines have places only what its own fragment places."""
        clocks = Clocks.of(
            [
                told("box", ("far", 5, 1, "ping-pong"), boot="x", fragment="1"),
                told("box", boot="y", fragment="2"),
            ]
        )
        assert clocks.alignment("box", "1") == Alignment("reference", 0, 0)
        assert clocks.alignment("box", "2").method == "unmeasured"
        assert clocks.alignment("box").method == "unmeasured"

    @settings(max_examples=100, deadline=None)
    @given(
        st.lists(st.integers(-(10**12), 10**12), min_size=2, max_size=6),
        st.lists(
            st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 1000), st.integers(-1, 1)),
            max_size=12,
        ),
    )
    def test_within_the_error(self, true, comparisons):
        """Whatever was compared: a host that is placed is right within the error that is stated."""
        hosts = [f"h{n}" for n in range(len(true))]
        entries = [
            told(
                hosts[a % len(true)],
                (
                    hosts[b % len(true)],
                    true[b % len(true)] - true[a % len(true)] + side * error,
                    error,
                    "ping-pong",
                ),
                fragment=str(n),
            )
            for n, (a, b, error, side) in enumerate(comparisons)
            if a % len(true) != b % len(true)
        ]
        clocks = Clocks.of(entries, hosts)
        reference = true[hosts.index(clocks.reference_host)]
        for host, offset in zip(hosts, true, strict=True):
            placed = clocks.alignment(host)
            if placed.error_ns is not None:
                assert abs(placed.offset_ns - (offset - reference)) <= placed.error_ns


class TestSentences:
    def test_describe(self):
        alignments = [
            Alignment("unmeasured", 0, None),
            Alignment("ping-pong", 5, 100_000),
            Alignment("ping-pong", 9, 250_000),
            Alignment("assumed", 1, None),
            Alignment("reference"),
        ]
        assert describe(alignments) == (
            "1 source by the clock of one host; 2 compared by ping-pong, right within 0.25 ms; 1 placed by --assume-offset; "
            "1 on hosts that were never compared, placed by their own wall clocks: their error is not known"
        )
        assert describe([]) == "no source is placed"

    def test_worst_error(self):
        assert worst_error([Alignment("reference"), Alignment("ping-pong", 5, 70)]) == 70
        assert worst_error([Alignment("reference"), Alignment("unmeasured", 0, None)]) is None
        assert worst_error([]) == 0


class TestAssumed:
    def test_option(self):
        assert assumed_offsets(["a=b.json=1.000000001", "-0.5", "host=+2"]) == {
            "a=b.json": 1_000_000_001,
            ALL: -500_000_000,
            "host": 2_000_000_000,
        }

    @pytest.mark.parametrize("text", ["", "x=", "x=soon", "nan", "x=inf", "4e10"])
    def test_no_number(self, text):
        with pytest.raises(ConfigError, match="expected NAME=SECONDS"):
            assumed_offsets([text])

    def test_names(self):
        """A source is named by its path, file, label or host; a name of none is refused with the nearest."""
        wanted = Input(
            Origin("rank", "step/actor/rank-0.json", "actor", 0, None, "node-1"),
            ("/r/step/actor/rank-0.json",),
            1,
        )
        for name in ("step/actor/rank-0.json", "rank-0.json", "actor rank 0", "node-1"):
            assert assumed_for(wanted, {name: 5}) == 5
            check_assumed({name: 5, ALL: 1}, [wanted])
        assert assumed_for(wanted, {"node-2": 5, ALL: 1}) is None
        with pytest.raises(ConfigError, match='did you mean "node-1"'):
            check_assumed({"node-2": 5}, [wanted])

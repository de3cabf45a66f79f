"""The alignment of the clocks of several hosts with one common clock."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprof.analysis.timeline.assumed_offsets import ALL, assumed_for, assumed_offsets, check_assumed
from stepprof.analysis.timeline.clocks import Clocks, describe, unsure_ns, worst_error
from stepprof.analysis.timeline.find import Input
from stepprof.analysis.timeline.model import Alignment, Origin
from stepprof.errors import ConfigError


def compared(host, *clocks, boot=None, fragment=None, anchor=None):
    keys = ("host", "offset_ns", "error_ns", "method", "boot_id")
    entries = [dict(zip(keys, (*clock, None)[:5], strict=True)) for clock in clocks]
    return {
        "fragment": fragment or f"of-{host}",
        "host": host,
        "boot_id": boot,
        "anchor": anchor,
        "clocks": entries,
    }


def of(host, boot=None):
    return Origin("rank", f"of {host}", host=host, machine=boot)


def unmeasured(island):
    return Alignment("unmeasured", 0, None, island)


class TestClocks:
    def test_the_reference_is_the_process_that_compared(self):
        """Offsets are relative to the process that compared other clocks with its own, regardless
        of where the sources are.
        """
        clocks = Clocks.of(
            [compared("b"), compared("driver", ("b", 3_000, 10, "ping-pong"), ("c", -7, 2, "calls"))],
            [of("b"), of("b"), of("c")],
        )
        assert clocks.alignment(of("driver")) == Alignment("reference", 0, 0)
        assert clocks.alignment(of("b")) == Alignment("ping-pong", 3_000, 10)
        assert clocks.alignment(of("c")) == Alignment("calls", -7, 2)

    def test_clocks_that_were_never_compared_have_an_unknown_error(self):
        """Without a comparison, the clock of most sources is the common one, and the error of
        another host is unknown.
        """
        clocks = Clocks.of([compared("a"), compared("b")], [of("a"), of("b"), of("b"), of(None)])
        assert clocks.alignment(of("b")) == Alignment("reference", 0, 0)
        assert clocks.alignment(of("a")) == unmeasured("host a")
        assert clocks.alignment(of("elsewhere")) == unmeasured("of elsewhere")
        assert clocks.alignment(of(None)) == unmeasured("of None")

    def test_hosts_are_related_through_a_third(self):
        """Offsets and errors add up along the path of comparisons with the smallest error, in
        either direction.
        """
        clocks = Clocks.of(
            [
                compared("a", ("b", 100, 5, "ping-pong"), ("c", 300, 500, "calls"), ("e", 1, 1, "ping-pong")),
                compared("b", ("c", 50, 7, "ping-pong")),
                compared("d", ("c", 3, 1, "ping-pong")),
            ]
        )
        assert clocks.alignment(of("c")) == Alignment("ping-pong", 150, 12)
        assert clocks.alignment(of("d")) == Alignment("ping-pong", 147, 13)

    def test_one_machine_under_two_names(self):
        """Containers of one machine have one boot and share a clock."""
        clocks = Clocks.of(
            [compared("pod-1", boot="x"), compared("pod-2", boot="x"), compared("pod-3", boot="y")],
            [of(f"pod-{n}") for n in (1, 1, 2, 3)],
        )
        assert clocks.alignment(of("pod-1")) == Alignment("reference", 0, 0)
        assert clocks.alignment(of("pod-2")) == Alignment("same-host", 0, 0)
        assert clocks.alignment(of("pod-3")).method == "unmeasured"

    def test_same_host_by_another_name(self):
        clocks = Clocks.of(
            [compared("a", ("localhost", 0, 0, "same-host"), ("b", 9, 1, "ping-pong"))], [of("localhost")]
        )
        assert clocks.alignment(of("localhost")) == Alignment("same-host", 0, 0)

    def test_machines_of_one_name_are_placed_by_their_own_fragments(self):
        """Two machines share a name. An alignment for that name counts only for sources of its own
        fragment.
        """
        clocks = Clocks.of(
            [
                compared("box", ("far", 5, 1, "ping-pong"), boot="x", fragment="1"),
                compared("box", boot="y", fragment="2"),
            ]
        )
        assert clocks.alignment(of("box"), "1") == Alignment("reference", 0, 0)
        assert clocks.alignment(of("box"), "2").method == "unmeasured"
        assert clocks.alignment(of("box")).method == "unmeasured"

    @settings(max_examples=100, deadline=None)
    @given(
        st.lists(st.integers(-(10**12), 10**12), min_size=2, max_size=6),
        st.lists(
            st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 1000), st.integers(-1, 1)),
            max_size=12,
        ),
    )
    def test_within_the_error(self, true, comparisons):
        """For any comparisons, a placed host is right within its stated error."""
        hosts = [f"h{n}" for n in range(len(true))]
        entries = [
            compared(
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
        clocks = Clocks.of(entries, [of(host) for host in hosts])
        placed = [clocks.alignment(of(host)) for host in hosts]
        assert clocks.findings == []
        assert sum(each.method == "reference" for each in placed) == 1
        for one, first in zip(placed, true, strict=True):
            for other, second in zip(placed, true, strict=True):
                unsure = unsure_ns(one, other)
                assert (unsure is None) == (one.island != other.island)
                if unsure is not None:
                    assert abs((one.offset_ns - other.offset_ns) - (first - second)) <= unsure

    @settings(max_examples=200, deadline=None)
    @given(
        st.lists(st.integers(-(10**12), 10**12), min_size=3, max_size=5),
        st.integers(-(10**12), 10**12),
        st.data(),
    )
    def test_one_wrong_comparison_widens_the_error(self, true, wrong, data):
        """Hosts were compared in a circle, with one wrong comparison. The contradiction is found,
        and each host is right within its stated error.
        """
        count = len(true)
        bad = data.draw(st.integers(0, count - 1))
        entries = []
        for here in range(count):
            there = (here + 1) % count
            error = data.draw(st.integers(0, 1000))
            offset = true[there] - true[here] + data.draw(st.integers(-error, error)) + (here == bad) * wrong
            entries.append(compared(f"h{here}", (f"h{there}", offset, error, "ping-pong")))
        clocks = Clocks.of(entries)
        placed = [clocks.alignment(of(f"h{host}")) for host in range(count)]
        if abs(wrong) > 3_000 * count:
            assert len(clocks.findings) == 1
        if clocks.findings or wrong == 0:
            first = next(host for host, each in enumerate(placed) if each.method == "reference")
            for each, offset in zip(placed, true, strict=True):
                assert abs(each.offset_ns - (offset - true[first])) <= each.error_ns

    def test_contradicting_comparisons_give_a_finding_and_a_wider_error(self):
        """Two comparisons of a host contradict each other. A finding has the host and both values,
        and the error covers both.
        """
        clocks = Clocks.of(
            [
                compared("a", ("b", 3_500_000_000, 60_000, "ping-pong"), fragment="1"),
                compared("a", ("b", 1_000_000_000, 50_000, "ping-pong"), fragment="2"),
            ]
        )
        placed = clocks.alignment(of("b"))
        assert placed.offset_ns - placed.error_ns <= 1_000_000_000 - 50_000
        assert placed.offset_ns + placed.error_ns >= 3_500_000_000 + 60_000
        assert placed.error_ns <= 1_250_055_001
        (finding,) = clocks.findings
        assert "b against a: +3.5 s ± 60 µs by ping-pong" in finding
        assert "b against a: +1 s ± 50 µs by ping-pong" in finding

    def test_of_two_agreeing_comparisons_the_better_one_counts(self):
        """If two comparisons from either side agree within their errors, the better one counts."""
        clocks = Clocks.of(
            [compared("a", ("b", 100, 60, "ping-pong")), compared("b", ("a", -130, 5, "ping-pong"))]
        )
        assert clocks.findings == []
        assert clocks.alignment(of("b")) == Alignment("ping-pong", 130, 5)

    def test_hosts_without_the_common_clock_share_their_own(self):
        """Hosts that were compared with each other, but not with the common clock, share a clock.
        So do sources of one machine.
        """
        clocks = Clocks.of(
            [
                compared("a", ("b", 5, 1, "ping-pong"), ("c", 7, 1, "ping-pong")),
                compared("d", ("e", 40, 2, "ping-pong")),
                compared("f", boot="x"),
                compared("g", boot="x"),
            ]
        )
        placed = {host: clocks.alignment(of(host)) for host in "abcdefg"}
        assert {placed[host].island for host in "abc"} == {""}
        assert placed["d"] == unmeasured("host d")
        assert placed["e"] == Alignment("ping-pong", 40, 2, "host d")
        assert placed["f"] == placed["g"] == unmeasured("boot x")
        assert unsure_ns(placed["d"], placed["e"]) == 2
        assert unsure_ns(placed["f"], placed["g"]) == 0
        assert unsure_ns(placed["a"], placed["d"]) is None
        assert unsure_ns(Alignment("unmeasured", 0, None), placed["a"]) is None

    def test_an_engine_on_a_machine_with_the_driver_s_name(self):
        """The driver compares an engine's machine of its own name. The boot distinguishes them;
        without it, a machine is not compared with itself.
        """
        known = Clocks.of(
            [
                compared("box", ("box", 9_000, 3, "ping-pong", "y"), boot="x"),
                compared("box", boot="y", fragment="2"),
            ]
        )
        assert known.alignment(of("box", "x")) == Alignment("reference")
        assert known.alignment(of("box", "y")) == Alignment("ping-pong", 9_000, 3)
        unknown = Clocks.of([compared("box", ("box", 9_000, 3, "calls"), boot="x")])
        assert unknown.alignment(of("box"), "of-box") == Alignment("calls", 9_000, 3)
        assert unknown.alignment(of("box", "x")) == Alignment("reference")

    def test_a_comparison_that_several_machines_may_be_meant_by(self):
        """Two machines have the compared name, so the comparison is omitted and a finding says so."""
        clocks = Clocks.of(
            [
                compared("a", ("box", 9_000, 3, "calls")),
                compared("box", boot="x", fragment="1"),
                compared("box", boot="y", fragment="2"),
            ]
        )
        assert clocks.alignment(of("box", "x")).island == "boot x"
        assert clocks.alignment(of("box", "y")).island == "boot y"
        assert "2 clocks have that name" in clocks.findings[0]


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
            "1 source by the clock of one host; 2 compared by ping-pong, error at most 0.25 ms; 1 placed by --assume-offset; "
            "1 by clocks that were never compared, their own clocks, with an unknown error"
        )
        assert describe([]) == "no source is placed"

    def test_sources_that_share_a_clock_that_was_never_compared(self):
        """The number of clocks is stated if there are fewer of them than sources."""
        far = [Alignment("shared", 0, 10, island) for island in ("a", "a", "b")]
        assert describe(far[:2]) == "2 by 1 clock that was never compared, with an unknown error"
        assert describe(far) == "3 by 2 clocks that were never compared, with an unknown error"

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
        with pytest.raises(ConfigError, match="must be NAME=SECONDS"):
            assumed_offsets([text])

    def test_names(self):
        """An offset names a source by path, file, label or host. An unknown name is refused with
        the most similar one.
        """
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

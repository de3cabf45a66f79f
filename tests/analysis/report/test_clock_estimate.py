"""Clock offsets of hosts that were never compared, estimated from the collectives of their ranks.
The jobs and their clocks are simulated.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprof.analysis.report.clock_estimate import UNKNOWN_NS, Member, Series, estimate
from stepprof.analysis.report.offset_bounds import DRIFT, READING_NS

SECOND = 10**9
ALL = "all"


@dataclass
class Host:
    """The clock of a host: calling it with a true time returns its reading."""

    name: str
    ahead_ns: int = 0
    rate: float = 0.0

    def __call__(self, true):
        return np.asarray(true, np.float64) * (1 + self.rate) + self.ahead_ns


def simulate(rng, hosts, ranks_per_host=2, calls=20, *, period=SECOND // 20, group=ALL, numbered=True):
    """Return the members of a job whose ranks run all-reduces. Each rank leaves a call after the
    last one has entered.
    """
    world = len(hosts) * ranks_per_host
    begun = np.cumsum(rng.integers(1, period, (calls, 1)), axis=0)
    entered = begun + rng.integers(0, period, (calls, world))
    left = np.empty_like(entered)
    free = np.zeros(world, np.int64)
    for at in range(calls):
        entered[at] = np.maximum(entered[at], free)
        left[at] = entered[at].max() + rng.integers(1, period // 10, world)
        free = left[at]
    members = []
    for rank in range(world):
        host = hosts[rank // ranks_per_host]
        wrong = rng.integers(-READING_NS, READING_NS, (2, calls))
        start = np.rint(host(entered[:, rank])).astype(np.int64) + wrong[0]
        end = np.rint(host(left[:, rank])).astype(np.int64) + wrong[1]
        end = np.maximum(end, start)
        series = Series(
            np.zeros(calls, np.int64), start, end, np.arange(calls) + 7 if numbered else None, world
        )
        members.append(
            Member(
                host.name, host.name, ("rank", "actor"), rank, 0, int(start[0]), int(end[-1]), {group: series}
            )
        )
    return members


def check(made, hosts, members, *, placed=True):
    """Check each offset: it is right within its stated error, from the first to the last moment of
    the host's ranks.
    """
    by_name = {host.name: host for host in hosts}
    extents = {}
    for member in members:
        first, last = extents.get(member.island, (member.first, member.last))
        extents[member.island] = (min(first, member.first), max(last, member.last))
    for host in hosts:
        move = made.moves.get(host.name)
        if host.name == "" or move is None:
            continue
        first, last = extents[host.name]
        own = np.linspace(first, last, 50)
        true = (own - host.ahead_ns) / (1 + host.rate)
        wrong = own - move.offset_ns - by_name[move.island](true)
        assert np.abs(wrong).max() <= move.error_ns + 2  # 2 ns: the simulation's own rounding
    if placed:
        assert set(made.moves) == {host.name for host in hosts if host.name}


def without(member, group, *calls):
    """Return the rank without some of its calls."""
    series = member.series[group]
    kept = np.setdiff1d(np.arange(len(series.kind)), calls)
    number = None if series.number is None else series.number[kept]
    part = Series(series.kind[kept], series.start[kept], series.end[kept], number, series.size)
    return replace(member, series={group: part})


HOURS = st.integers(-24 * 3600 * SECOND, 24 * 3600 * SECOND)
RATES = st.floats(-DRIFT / 2.01, DRIFT / 2.01)


class TestEstimate:
    @settings(max_examples=200, deadline=None)
    @given(
        st.integers(0, 2**32),
        st.lists(st.tuples(HOURS, RATES), min_size=1, max_size=4),
        st.booleans(),
        st.data(),
    )
    def test_the_truth_is_within_the_error(self, seed, clocks, numbered, data):
        """The offset is right within its stated error for any clocks, drifts, and waits of the ranks."""
        hosts = [Host(""), *(Host(f"h{number}", *clock) for number, clock in enumerate(clocks))]
        members = simulate(
            np.random.default_rng(seed),
            hosts,
            data.draw(st.integers(1, 3)),
            data.draw(st.integers(1, 30)),
            period=data.draw(st.sampled_from([100, SECOND // 1000, SECOND])),
            numbered=numbered,
        )
        made = estimate(data.draw(st.permutations(members)))
        assert made.findings == []
        check(made, hosts, members)

    @settings(max_examples=100, deadline=None)
    @given(st.integers(0, 2**32), HOURS, RATES, st.data())
    def test_numbered_calls_of_captures_that_differ(self, seed, ahead, rate, data):
        """With numbered calls, each rank may have recorded different calls, and some ranks none."""
        hosts = [Host(""), Host("b", ahead, rate)]
        members = simulate(np.random.default_rng(seed), hosts)
        parts = [
            without(member, ALL, *data.draw(st.lists(st.integers(0, 19), max_size=8)))
            for member in members
            if member.rank % 2 == 0 or data.draw(st.booleans())
        ]
        made = estimate(parts)
        assert made.findings == []
        check(made, hosts, parts)

    @settings(max_examples=50, deadline=None)
    @given(st.integers(0, 2**32), st.lists(st.tuples(HOURS, RATES), min_size=2, max_size=3), st.booleans())
    def test_hosts_are_connected_through_other_hosts(self, seed, clocks, reaches):
        """Groups of two hosts connect the hosts in a chain, and errors add up. A chain without the
        common clock gets the clock of one of its hosts.
        """
        rng = np.random.default_rng(seed)
        hosts = [
            Host("") if reaches else Host("a", 5),
            *(Host(f"h{number}", *clock) for number, clock in enumerate(clocks)),
        ]
        members = []
        for number, pair in enumerate(itertools.pairwise(hosts)):
            members += simulate(rng, list(pair), group=f"pair {number}")
            for at in range(-4, 0):
                members[at] = replace(members[at], job=("pair", number))
        made = estimate(members)
        assert made.findings == []
        check(made, hosts, members, placed=False)
        assert len(made.moves) == len(clocks)
        assert len({move.island for move in made.moves.values()}) == 1
        if reaches:
            errors = [made.moves[f"h{number}"].error_ns for number in range(len(clocks))]
            assert errors == sorted(errors)

    def test_shorter_calls_give_a_smaller_error(self):
        """Calls that last about 10 µs bound the offset to less than 50 µs, although the clocks are
        hours apart.
        """
        rng = np.random.default_rng(1)
        hosts = [Host(""), Host("b", 5 * 3600 * SECOND)]
        members = simulate(rng, hosts, period=10_000)
        assert estimate(members).moves["b"].error_ns < 50_000

    @settings(max_examples=50, deadline=None)
    @given(st.integers(0, 2**32), HOURS, st.booleans(), st.data())
    def test_calls_without_a_known_end_do_not_bound_the_offset(self, seed, ahead, numbered, data):
        """The last calls of a capture may have ended after it. Their unknown ends neither bound the
        offset nor make it wrong.
        """
        hosts = [Host(""), Host("b", ahead)]
        parts = []
        for member in simulate(np.random.default_rng(seed), hosts, numbered=numbered):
            series = member.series[ALL]
            end = series.end.copy()
            end[len(end) - data.draw(st.integers(0, 20)) :] = UNKNOWN_NS
            parts.append(replace(member, series={ALL: replace(series, end=end)}))
        made = estimate(parts)
        assert made.findings == []
        check(made, hosts, parts, placed=False)

    def test_a_group_without_calls(self):
        """The ranks have no usable calls, so no host is placed and no finding is added."""
        members = simulate(np.random.default_rng(3), [Host(""), Host("b", SECOND)], numbered=False)
        count = len(members[0].series[ALL].kind)
        made = estimate([without(member, ALL, *range(count)) for member in members])
        assert (made.moves, made.findings) == ({}, [])

    def test_the_error_of_a_host_s_own_clock_counts(self):
        """The clock of one rank is known within 1 ms. The error of the offset is larger than that."""
        members = simulate(np.random.default_rng(1), [Host(""), Host("b", SECOND)], period=10_000)
        unsure = [replace(member, error_ns=1_000_000) if member.island else member for member in members]
        assert estimate(unsure).moves["b"].error_ns > 1_000_000


class TestRefused:
    """If the match of the calls is not certain, no host is placed, and a finding gives the reason."""

    def made(self, change, *, numbered=False, hosts=None):
        hosts = hosts or [Host(""), Host("b", 3600 * SECOND)]
        members = simulate(np.random.default_rng(3), hosts, numbered=numbered)
        made = estimate(change(members))
        assert made.moves == {}
        (finding,) = made.findings
        return finding

    def test_a_rank_that_was_not_recorded(self):
        assert "3 of 4 ranks" in self.made(lambda members: members[1:])

    def test_calls_that_differ_in_number(self):
        """Without numbers, one additional or missing call on a rank could shift all the others."""
        assert "order or count" in self.made(lambda members: [without(members[0], ALL, 0), *members[1:]])

    def test_calls_of_other_kinds(self):
        def other(members):
            series = members[0].series[ALL]
            return [replace(members[0], series={ALL: replace(series, kind=series.kind + 1)}), *members[1:]]

        assert "order or count" in self.made(other)
        assert "the call with one number" in self.made(other, numbered=True)

    def test_a_rank_that_occurs_twice_is_refused(self):
        """A rank occurs twice if a run has two jobs or a restarted one. Which calls belong together
        is then unknown.
        """
        assert "recorded twice" in self.made(lambda members: [*members, members[0]], numbered=True)

    def test_some_numbers(self):
        def some(members):
            series = members[0].series[ALL]
            return [replace(members[0], series={ALL: replace(series, number=None)}), *members[1:]]

        assert "number their calls" in self.made(some, numbered=True)

    def test_a_clock_that_was_set(self):
        """A clock was set during the calls. No offset fits both the calls before and those after."""

        def later(members):
            series = members[-1].series[ALL]
            jump = np.where(np.arange(20) < 10, 0, 60 * SECOND)
            moved = replace(series, start=series.start + jump, end=series.end + jump)
            return [*members[:-1], replace(members[-1], series={ALL: moved})]

        assert "a clock was set" in self.made(later)

    def test_with_one_clock_nothing_is_estimated(self):
        """With a single clock there is no offset to estimate and no finding."""
        made = estimate(simulate(np.random.default_rng(3), [Host("")]))
        assert (made.moves, made.findings) == ({}, [])

    @pytest.mark.parametrize("numbered", [True, False])
    def test_a_group_that_fails_where_another_one_does_not(self, numbered):
        """One group fails, but another group places the hosts. No finding is added."""
        rng = np.random.default_rng(3)
        hosts = [Host(""), Host("b", 3600 * SECOND)]
        members = simulate(rng, hosts)
        others = [replace(each, job=("other",)) for each in simulate(rng, hosts, numbered=numbered)[1:]]
        made = estimate([*members, *(others if not numbered else [*others, others[0]])])
        assert made.findings == []
        check(made, hosts, members)


class TestOrder:
    def test_calls_of_two_threads_that_change_places(self):
        """Calls that overlap on one rank may begin in another order there. They are matched as one,
        and the offset is right.
        """
        host = Host("b", 3600 * SECOND)
        # the second call has ended on both ranks before rank 1 begins to record the first one,
        # which rank 0 began at once
        truth = {0: [(0, 10_000_300), (1_000, 300_000)], 1: [(500, 300_000), (10_000_000, 10_000_400)]}
        members = []
        for rank, clock in enumerate((Host(""), host)):
            start, end = (
                np.rint(clock(np.array(times))).astype(np.int64) for times in zip(*truth[rank], strict=True)
            )
            series = Series(np.zeros(2, np.int64), start, end, None, 2)
            members.append(
                Member(clock.name, clock.name, (), rank, 0, int(start[0]), int(end[-1]), {ALL: series})
            )
        made = estimate(members)
        assert made.findings == []
        check(made, [Host(""), host], members)

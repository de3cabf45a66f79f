"""The order of collectives is that in which the processes ran them, also if the clocks of hosts are wrong."""

from __future__ import annotations

from digested import MS, T0, numbered, peer

from stepprof.analysis.report.matching import match
from stepprof.analysis.report.profiler_waits import order_of
from stepprof.analysis.report.wait_attribution import settle


def ends(*peers):
    """Return in order when each collective ended, by the clock of its first member, in milliseconds."""
    matching = match(peers)
    settled = [settle(matched, matching) for matched in matching.matched]
    end = [time for each in settled for time in each.end[0].tolist()]
    return [(end[number] - T0) / MS for number in order_of(settled)]


class TestOrder:
    """Each process ran its collectives in the order that its own clock shows."""

    def test_calls_on_one_clock_are_ordered_by_their_ends(self):
        """Calls on one clock are ordered by their ends."""
        assert ends(peer("a", 0, (20, 5), (0, 5), world=2), peer("b", 1, (20, 5), (0, 5), world=2)) == [5, 25]

    def test_a_clock_that_is_ahead(self):
        """The clock of c is 8 ms ahead. a and b ran the collective of all three before their own."""
        found = ends(
            peer("a", 0, numbered(0, 10, 1, (0, 1, 2)), numbered(11, 2, 1, (0, 1)), error=5),
            peer("b", 1, numbered(5, 5, 1, (0, 1, 2)), numbered(11, 2, 1, (0, 1)), error=5),
            peer("c", 2, numbered(10, 8, 1, (0, 1, 2)), error=5, host="other"),
        )
        assert found == [10, 13]

    def test_a_thread_that_continues_late(self):
        """c leaves the first collective after a and b have left their next one."""
        found = ends(
            peer("a", 0, numbered(0, 10, 1, (0, 1, 2)), numbered(11, 2, 1, (0, 1))),
            peer("b", 1, numbered(5, 5, 1, (0, 1, 2)), numbered(11, 2, 1, (0, 1))),
            peer("c", 2, numbered(5, 10, 1, (0, 1, 2))),
        )
        assert found == [10, 13]

    def test_the_order_follows_through_another_process(self):
        """The clock of a is hours behind. Its collectives with c stay in order, between those with b."""
        found = ends(
            peer("b", 1, numbered(3_600_000, 5, 1, (0, 1)), numbered(3_600_040, 5, 2, (0, 1)), island="1"),
            peer(
                "a",
                0,
                numbered(0, 5, 1, (0, 1)),
                numbered(10, 5, 1, (0, 2)),
                numbered(20, 5, 2, (0, 2)),
                numbered(40, 5, 2, (0, 1)),
            ),
            peer("c", 2, numbered(10, 5, 1, (0, 2)), numbered(20, 5, 2, (0, 2))),
        )
        assert found == [3_600_005, 15, 25, 3_600_045]

    def test_calls_that_overlap(self):
        """The calls are on two streams. Neither precedes the other, so they are ordered by their ends."""
        found = ends(
            peer("a", 0, numbered(0, 10, 1, (0, 1, 2)), numbered(5, 4, 1, (0, 1))),
            peer("b", 1, numbered(0, 10, 1, (0, 1, 2)), numbered(5, 8, 1, (0, 1))),
            peer("c", 2, numbered(0, 11, 1, (0, 1, 2))),
        )
        assert found == [10, 9]

    def test_processes_that_contradict_each_other(self):
        """Damaged traces contradict each other. The order still contains each collective once."""
        first, second = numbered(0, 5, 1, (0, 1)), numbered(10, 5, 2, (0, 1))
        swapped = numbered(10, 5, 1, (0, 1)), numbered(0, 5, 2, (0, 1))
        assert sorted(ends(peer("a", 0, first, second), peer("b", 1, *swapped))) == [5, 15]

    def test_no_collective(self):
        assert ends(peer("a", 0, world=2)) == []

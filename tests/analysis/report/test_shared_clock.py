"""Traces of unknown hosts whose collectives end together."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from digested import MS, source

from stepprof.analysis.report.digest import digest
from stepprof.analysis.report.shared_clock import shared_clocks
from stepprof.analysis.timeline.model import Alignment, Origin

REDUCE = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"
EXCHANGE = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"
ENDS = (10, 25, 47, 60)


def rank(number, *ends, name=REDUCE, host=None, group=None, first=None, **origin):
    """Return the trace of a rank whose collectives end at some times [ms]; `first`: the number of the first one in its group."""
    stated = {} if group is None else {"Process Group Name": group, "Group size": 2}
    calls = [
        (
            ("stream", "20"),
            "kernel",
            name,
            end - 1 - number / 10,
            1 + number / 10,
            stated if first is None else {**stated, "Seq": first + at},
        )
        for at, end in enumerate(ends)
    ]
    path = f"{number}.json"
    origin = Origin("trace", path, None, number, None, host, **origin)
    return digest(source(origin, *calls, alignment=Alignment("unmeasured", 0, None, path)))


def sets(*ranks):
    """Return the islands that are placed on another one, by the island."""
    return {island: move.island for island, move in shared_clocks(ranks).items()}


def counted(work):
    """Return a result, and how many calls made it."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        return work(), calls
    finally:
        sys.setprofile(before)


class TestSharedClocks:
    @pytest.mark.parametrize("name", [REDUCE, EXCHANGE])
    def test_ends_within_microseconds(self, name):
        """They begin at other times, because ranks wait; calls have neither number nor group."""
        ranks = [rank(each, *(end + each / 1000 for end in ENDS), name=name) for each in range(8)]
        moves = shared_clocks(ranks)
        assert {(each.island, each.offset_ns, each.method) for each in moves.values()} == {("", 0, "shared")}
        assert set(moves) == {f"{each}.json" for each in range(8)}
        assert max(each.error_ns for each in moves.values()) <= 0.01 * MS

    def test_a_capture_may_lack_a_call(self):
        """It began later."""
        assert sets(rank(0, *ENDS, 80), rank(1, *ENDS[1:], 80)) == {"0.json": "", "1.json": ""}

    def test_clocks_that_differ(self):
        """Ends are a millisecond apart, or at other times, or the calls are of another kind."""
        assert sets(rank(0, *ENDS), rank(1, *(end + 1 for end in ENDS))) == {}
        assert sets(rank(0, *ENDS), rank(1, 3, 31, 55, 70)) == {}
        assert sets(rank(0, *ENDS), rank(1, *ENDS, name="ncclKernel_AllGather_RING")) == {}

    @pytest.mark.parametrize("ahead", [0, 1])
    def test_a_clock_that_is_ahead_by_one_call(self, ahead):
        """Layers take equal times: the numbers of the calls tell one from the next."""
        row = [each * 0.8 for each in range(20)]
        ranks = [rank(at, *(end + 0.8 * ahead * at for end in row), group="a", first=0) for at in (0, 1)]
        assert sets(*ranks) == ({} if ahead else {"0.json": "", "1.json": ""})

    def test_chance(self):
        """Of calls in a row some end is always near."""
        row = [each * 0.03 for each in range(200)]
        assert sets(rank(0, *row), rank(1, *(end + 0.014 for end in row))) == {}

    def test_groups_connect_ranks(self):
        """Ranks 0 and 3 are in no common group; those between them are. Groups of one name are of other ranks if they end apart."""
        pairs = [
            rank(0, *ENDS, group="a"),
            rank(3, *(end + 5 for end in ENDS), group="b"),
            rank(1, *ENDS, group="a"),
        ]
        both = digest(
            source(
                replace(pairs[0].origin, path="2.json", rank=2),
                *((("stream", "20"), "kernel", REDUCE, end - 2, 2, {"Process Group Name": "a", "Group size": 2}) for end in ENDS),
                *((("stream", "21"), "kernel", REDUCE, end + 3, 2, {"Process Group Name": "b", "Group size": 2}) for end in ENDS),
                alignment=Alignment("unmeasured", 0, None, "2.json"),
            )
        )  # fmt: skip
        assert sets(*pairs) == {"0.json": "", "1.json": ""}
        assert sets(*pairs, both) == {f"{each}.json": "" for each in range(4)}

    def test_two_machines(self):
        """Each has a clock of its own; the larger one is the common one."""
        near, far = [rank(each, *ENDS) for each in (0, 1)], [rank(each, 7, 33, 51) for each in (2, 3, 4)]
        assert sets(*near, *far) == {"0.json": "0.json", "1.json": "0.json"} | {
            f"{each}.json": "" for each in (2, 3, 4)
        }

    def test_many_clocks(self):
        """The work grows with the ranks, not with their pairs; ranks of one machine are found among many others."""
        calls = {}
        for count in (100, 200):
            ahead = [0.7 * (number // 2) for number in range(count)]
            ranks = [rank(each, *(end + ahead[each] for end in ENDS)) for each in range(count)]
            moves, calls[count] = counted(lambda ranks=ranks: sets(*ranks))
            assert len(moves) == count
            assert len(set(moves.values())) == count / 2
        assert calls[200] < 3 * calls[100]

    def test_a_known_host_is_another_matter(self):
        """Two hosts have two clocks, and a file without a rank is of no job."""
        assert sets(rank(0, *ENDS, host="a"), rank(1, *ENDS, host="b")) == {}
        assert sets(rank(0), rank(1, *ENDS)) == {}

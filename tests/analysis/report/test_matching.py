"""Which calls of several ranks are one collective, and which stay unmatched. Calls match only if
the traces show that they belong together.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from digested import MS, T0, numbered, peer

from stepprof.analysis.report.matching import match


def matched(*peers):
    """Return the matched calls: the kind, and for each process the starts of its calls [ms]."""
    found = match(peers)
    return [
        (
            each.kind,
            {
                peers[at].label: ((peers[at].columns.start[rows] - T0) / MS).tolist()
                for at, rows in zip(each.members, each.rows, strict=True)
            },
        )
        for each in found.matched
    ]


def left(*peers):
    """Return for each process its unmatched calls: (start [ms], recorded members of the group, all
    members of the group).
    """
    found = match(peers)
    return {
        each.label: [
            (start, recorded, members)
            for start, recorded, members in zip(
                ((each.columns.start - T0) / MS).tolist(),
                found.recorded[at].tolist(),
                found.members[at].tolist(),
                strict=True,
            )
            if recorded >= 0
        ]
        for at, each in enumerate(peers)
    }


class TestNumbered:
    """Calls whose arguments have their process group and sequence number, like those of NCCL's kernels."""

    def test_equal_numbers_match_regardless_of_clocks(self):
        """Rank 1 has another clock, and its capture began one call later. Calls of equal numbers match."""
        peers = (
            peer("a", 0, numbered(0, 5, 1), numbered(10, 5, 2), numbered(20, 5, 3)),
            peer("b", 1, numbered(9000, 5, 2), numbered(9010, 5, 3), numbered(9020, 5, 4), island="other"),
        )
        assert matched(*peers) == [("all_reduce", {"a": [10, 20], "b": [9000, 9010]})]
        assert left(*peers) == {"a": [(0, 2, 2)], "b": [(9020, 2, 2)]}
        assert match(peers).matched[0].error_ns is None

    def test_a_group_with_a_missing_member_is_not_matched(self):
        """The rank that was not recorded may be the one for which the other two waited."""
        peers = [peer(f"{rank}", rank, numbered(0, 5, 1, range(3))) for rank in range(2)]
        assert matched(*peers) == []
        assert left(*peers) == {"0": [(0, 2, 3)], "1": [(0, 2, 3)]}

    def test_groups_of_one_name_with_other_ranks_are_two(self):
        peers = [
            peer(f"{rank}", rank, numbered(rank, 5, 1, pair)) for pair in ((0, 1), (2, 3)) for rank in pair
        ]
        assert matched(*peers) == [
            ("all_reduce", {"0": [0], "1": [1]}),
            ("all_reduce", {"2": [2], "3": [3]}),
        ]

    def test_kinds_are_matched_apart(self):
        """Numbers count all kinds of calls of a group, but only calls of one kind are matched."""
        gather = "ncclDevKernel_AllGather_RING_LL"
        peers = [
            peer(f"{rank}", rank, numbered(0, 5, 1), numbered(10, 5, 2, name=gather)) for rank in range(2)
        ]
        assert matched(*peers) == [
            ("all_reduce", {"0": [0], "1": [0]}),
            ("all_gather", {"0": [10], "1": [10]}),
        ]

    def test_two_processes_with_one_rank_are_both_ignored(self):
        """A process was replaced during the step, so two processes have rank 0. Neither is matched."""
        peers = [
            peer("a", 0, numbered(0, 5, 1)),
            peer("again", 0, numbered(0, 5, 1)),
            peer("b", 1, numbered(0, 5, 1)),
        ]
        assert matched(*peers) == []

    def test_calls_between_two_ranks_are_never_matched(self):
        name = "ncclDevKernel_SendRecv"
        peers = [peer(f"{rank}", rank, numbered(0, 5, 1, name=name)) for rank in range(2)]
        assert matched(*peers) == []
        assert left(*peers) == {"0": [(0, 0, 0)], "1": [(0, 0, 0)]}

    @pytest.mark.parametrize("ranks", ["[0, 1, ...", ""])
    def test_a_group_of_unknown_size_is_not_matched(self, ranks):
        args = {"Process Group Name": "1", "Process Group Ranks": ranks, "Seq": 1}
        peers = [peer(f"{rank}", rank, ("ncclDevKernel_AllReduce", 0, 5, args)) for rank in range(2)]
        assert matched(*peers) == []


class TestOneGroup:
    """Calls without a group in a job with one group: the i-th calls of all ranks match, unless the
    clocks contradict it.
    """

    def test_the_calls_of_all_ranks_in_order(self):
        peers = [peer("a", 0, (0, 12), (20, 11), world=2), peer("b", 1, (10, 2), (22, 9), world=2)]
        assert matched(*peers) == [("all_reduce", {"a": [0, 20], "b": [10, 22]})]
        assert left(*peers) == {"a": [], "b": []}

    def test_a_rank_that_was_not_recorded(self):
        peers = [peer(f"{rank}", rank, (0, 12), world=3) for rank in range(2)]
        assert matched(*peers) == []
        assert left(*peers) == {"0": [(0, 2, 3)], "1": [(0, 2, 3)]}

    def test_a_rank_without_a_call_of_that_kind_counts_as_missing(self):
        """Rank 2 was recorded, but its call of the collective was not."""
        peers = [*(peer(f"{rank}", rank, (0, 12), world=3) for rank in range(2)), peer("2", 2, world=3)]
        assert matched(*peers) == []

    def test_without_job_information_nothing_is_matched(self):
        peers = [peer("a", 0, (0, 12)), peer("b", 1, (10, 2))]
        assert matched(*peers) == []
        assert left(*peers) == {"a": [(0, 0, 0)], "b": [(10, 0, 0)]}

    def test_unequal_counts_are_cut_to_the_common_capture_time(self):
        """The capture of rank 1 began after 30 ms. It has the last two of four calls."""
        peers = [
            peer("a", 0, (0, 5), (20, 5), (40, 10), (60, 10), world=2, captured=(0, 100)),
            peer("b", 1, (42, 8), (65, 5), world=2, captured=(30, 100)),
        ]
        assert matched(*peers) == [("all_reduce", {"a": [40, 60], "b": [42, 65]})]
        assert left(*peers) == {"a": [(0, 2, 2), (20, 2, 2)], "b": []}

    def test_unequal_counts_of_captures_that_are_not_known_are_not_matched(self):
        peers = [peer("a", 0, (0, 5), (20, 5), world=2), peer("b", 1, (20, 5), world=2)]
        assert matched(*peers) == []

    def test_a_missing_call_in_the_middle_prevents_the_match(self):
        peers = [
            peer("a", 0, (10, 10), (30, 10), (50, 10), world=2, captured=(0, 100)),
            peer("b", 1, (15, 5), (55, 5), world=2, captured=(0, 100)),
        ]
        assert matched(*peers) == []

    def test_equal_counts_shifted_by_one_do_not_match(self):
        """One call was running when the first capture began, and another one when the second
        capture ended.
        """
        peers = [peer("a", 0, (0, 10), (20, 10), world=2), peer("b", 1, (20, 10), (40, 10), world=2)]
        assert matched(*peers) == []

    def test_one_call_without_overlap_prevents_the_match(self):
        calls = [(20 * n, 10) for n in range(30)]
        late = [*calls[:-1], (20 * 29 + 11, 2)]
        assert matched(peer("a", 0, *calls, world=2), peer("b", 1, *late, world=2)) == []

    def test_clocks_that_were_never_compared_prove_no_order(self):
        peers = [peer("a", 0, (0, 10), world=2), peer("b", 1, (8, 2), world=2, host="g", island="other")]
        assert matched(*peers) == []

    def test_the_clocks_errors_are_allowed_for(self):
        """The errors of two hosts add up. Calls 5 ms apart can be simultaneous with an error of 3
        ms each, but not of 2 ms each.
        """

        def pair(error, host):
            first = peer("a", 0, (0, 10), world=2, error=error, host="h")
            return matched(first, peer("b", 1, (15, 2), world=2, error=error, host=host))

        assert pair(3, "g") == [("all_reduce", {"a": [0], "b": [15]})]
        assert pair(2, "g") == []
        assert pair(3, "h") == []

    def test_a_call_that_had_not_ended_is_not_matched(self):
        """The capture of rank 0 was capped at 28 ms, during its second call."""
        peers = [
            peer("a", 0, (0, 10), (20, 8, {"finished": False}), world=2, captured=(-10, 28)),
            peer("b", 1, (5, 5), (25, 5), world=2, captured=(-10, 100)),
        ]
        assert matched(*peers) == [("all_reduce", {"a": [0], "b": [5]})]
        assert [start for start, *_ in left(*peers)["a"]] == [20]
        assert [start for start, *_ in left(*peers)["b"]] == [25]

    def test_collectives_with_a_root_are_matched_where_counts_agree(self):
        """In a collective with a root, a rank may leave early. Its call need not overlap those of
        the other ranks.
        """
        peers = [
            peer("a", 0, ("gloo:broadcast", 0, 1), world=2),
            peer("b", 1, ("gloo:broadcast", 50, 1), world=2),
        ]
        assert matched(*peers) == [("broadcast", {"a": [0], "b": [50]})]
        more = [
            peer("a", 0, ("gloo:broadcast", 0, 1), ("gloo:broadcast", 9, 1), world=2, captured=(0, 100)),
            peer("b", 1, ("gloo:broadcast", 50, 1), world=2, captured=(30, 100)),
        ]
        assert matched(*more) == []

    def test_rooted_calls_of_only_damaged_traces_are_not_matched(self):
        """Each trace has lost a call, not necessarily the same one. A third, complete trace shows
        how many calls there are.
        """
        calls = [("gloo:broadcast", 0, 1), ("gloo:broadcast", 50, 1)]
        damaged = [peer(str(rank), rank, *calls, world=3, whole=False) for rank in range(3)]
        assert matched(*damaged) == []
        assert len(matched(*damaged[:2], peer("2", 2, *calls, world=3))) == 1

    def test_rooted_calls_of_complete_windows_are_matched(self):
        """Both windows are complete, so no call of either rank is missing, although the last
        broadcasts do not overlap. A capped window may miss calls.
        """

        def ranks(whole):
            return [
                peer(
                    "a",
                    0,
                    ("gloo:broadcast", 0, 51),
                    ("gloo:broadcast", 60, 1),
                    world=2,
                    captured=(0, 62),
                    whole=whole,
                ),
                peer(
                    "b",
                    1,
                    ("gloo:broadcast", 50, 1),
                    ("gloo:broadcast", 80, 1),
                    world=2,
                    captured=(49, 90),
                    whole=True,
                ),
            ]

        assert matched(*ranks(True)) == [("broadcast", {"a": [0, 60], "b": [50, 80]})]
        assert matched(*ranks(False)) == []

    def test_calls_between_two_ranks_are_never_matched(self):
        peers = [peer("a", 0, ("gloo:send", 0, 5), world=2), peer("b", 1, ("gloo:recv", 0, 5), world=2)]
        assert matched(*peers) == []
        assert left(*peers) == {"a": [(0, 0, 0)], "b": [(0, 0, 0)]}

    def test_two_processes_with_one_rank_are_both_ignored(self):
        peers = [
            peer("a", 0, (0, 9), world=2),
            peer("again", 0, (0, 9), world=2),
            peer("b", 1, (0, 9), world=2),
        ]
        assert matched(*peers) == []

    def test_a_group_of_one_rank_is_ignored(self):
        """Frameworks create a group for each single rank. No rank waits in it."""
        peers = [peer(f"{rank}", rank, (rank, 9 - rank), world=2, groups=[(0,), (1,)]) for rank in range(2)]
        assert matched(*peers) == [("all_reduce", {"0": [0], "1": [1]})]

    def test_two_groups_of_the_same_ranks_are_one(self):
        """Both groups have the same ranks, so the awaited rank is the same."""
        peers = [peer(f"{rank}", rank, (rank, 9 - rank), world=2, groups=[(0, 1)]) for rank in range(2)]
        assert matched(*peers) == [("all_reduce", {"0": [0], "1": [1]})]


class TestSeveralGroups:
    """Calls without a group in a job with several groups. A rank that is in only one group
    identifies the calls of that group.
    """

    def test_a_rank_in_one_group_identifies_that_groups_calls(self):
        """Ranks 0 and 1 have a group in addition to that of all ranks. Rank 2 calls only in the
        latter, at 8 and 41 ms.
        """
        peers = [
            peer("a", 0, (0, 10), (20, 10), (40, 10), world=3, groups=[(0, 1)]),
            peer("b", 1, (5, 5), (28, 2), (45, 5), world=3, groups=[(0, 1)]),
            peer("c", 2, (8, 2), (41, 9), world=3, groups=[(0, 1)]),
        ]
        assert matched(*peers) == [
            ("all_reduce", {"a": [0, 40], "b": [5, 45], "c": [8, 41]}),
            ("all_reduce", {"a": [20], "b": [28]}),
        ]

    def test_an_ambiguous_overlap_is_not_matched(self):
        """Rank 2 is in the collective of all ranks from 0 to 50 ms. In this time rank 0 is in two
        collectives, and either may be that call.
        """
        peers = [
            peer("a", 0, (5, 10), (20, 30), world=3, groups=[(0, 1)]),
            peer("b", 1, (6, 9), (40, 10), world=3, groups=[(0, 1)]),
            peer("c", 2, (0, 50), world=3, groups=[(0, 1)]),
        ]
        assert matched(*peers) == []
        assert left(*peers)["c"] == [(0, 0, 0)]

    def test_where_every_rank_is_in_several_groups_nothing_is_matched(self):
        """With tensor and data parallelism on four ranks, both groups of a rank often call at the
        same time.
        """
        grid = [(0, 1), (2, 3), (0, 2), (1, 3)]
        peers = [peer(f"{rank}", rank, (0, 10), (20, 10), world=4, groups=grid) for rank in range(4)]
        assert matched(*peers) == []
        assert left(*peers)["3"] == [(0, 0, 0), (20, 0, 0)]

    def test_where_a_rank_was_not_recorded_nothing_is_matched(self):
        """Only two of three ranks were recorded, so each call may belong to the group of all ranks."""
        peers = [peer(f"{rank}", rank, (0, 10), world=3, groups=[(0, 1)]) for rank in range(2)]
        assert matched(*peers) == []

    def test_without_clock_comparison_no_group_is_identified(self):
        def rank(number, *calls, island=""):
            return peer(f"{number}", number, *calls, world=3, groups=[(0, 1)], island=island, host=island)

        assert (
            matched(rank(0, (0, 10), (20, 9)), rank(1, (0, 10), (20, 9)), rank(2, (5, 5), island="other"))
            == []
        )

    def test_groups_that_do_not_meet(self):
        """Two jobs of two ranks each have no common group, so each rank is in only one group."""
        pairs = [
            replace(peer(f"{rank}", rank, (start, took)), configured=[group])
            for rank, start, took, group in ((0, 0, 10, "0-1"), (1, 8, 2, "0-1"), (2, 500, 10, "2-3"), (3, 507, 3, "2-3"))
        ]  # fmt: skip
        assert matched(*pairs) == [
            ("all_reduce", {"0": [0], "1": [8]}),
            ("all_reduce", {"2": [500], "3": [507]}),
        ]


class TestExchanges:
    """NCCL's all-to-all is a kernel of sends and receives; before torch 2.2 nothing else names it."""

    NAME = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"

    def ranks(self, *begins, ends=(10, 30), world=3):
        """Return ranks whose calls begin at some times, and end together."""
        return [
            peer(f"{rank}", rank, *((self.NAME, each, end - each) for each, end in zip(begin, ends, strict=True)), world=world)
            for rank, begin in enumerate(begins)
        ]  # fmt: skip

    def test_all_ranks_end_together(self):
        assert matched(*self.ranks((0, 20), (4, 21), (9, 22))) == [
            ("all_to_all", {"0": [0, 20], "1": [4, 21], "2": [9, 22]})
        ]

    def test_transfers_between_two_ranks(self):
        """Ranks of a pipeline end apart, call less often, or are not all there."""
        two = self.ranks((0, 20), (4, 21))
        late = peer("2", 2, (self.NAME, 9, 3), (self.NAME, 22, 8), world=3)
        fewer = peer("2", 2, (self.NAME, 9, 1), world=3)
        for peers in ([*two, late], [*two, fewer], two):
            assert matched(*peers) == []


def test_nothing_at_all():
    assert matched() == []
    assert matched(peer("a", 0, world=2)) == []

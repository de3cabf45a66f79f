"""Collectives are matched by the process groups that torch writes with NCCL's kernels (keys of
`saveNcclMeta` and of libkineto's kernels).
"""

import json

import pytest

from stepprof.analysis.report.analyse import analyse
from stepprof.analysis.timeline.find import find

BASE = 1_700_000_000_000_000_000
KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def kernel(ts, dur, ranks=None, name="1", seq=None):
    args = {"stream": 20, "device": 0, "correlation": 7}
    if ranks is not None:
        args |= {
            "Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 8, "Out msg nelems": 8, "Group size": len(ranks), "In split size": "[]", "Out split size": "[]",
            "Process Group Name": name, "Process Group Description": "TP", "Process Group Ranks": str(ranks), "Rank": 0,
        }  # fmt: skip
    if seq is not None:
        args["Seq"] = seq
    return {
        "ph": "X",
        "cat": "kernel",
        "name": KERNEL,
        "pid": 0,
        "tid": 20,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def report(tmp_path, *ranks):
    """Return the report of the traces of ranks of one host."""
    for rank, events in enumerate(ranks):
        reported = {
            "baseTimeNanoseconds": BASE,
            "stepprof": {"rank": rank, "role": "actor", "host": "h", "pid": rank + 1},
        }
        (tmp_path / f"rank-{rank}.trace.json").write_text(json.dumps({**reported, "traceEvents": events}))
    return analyse(find([tmp_path], output_dir=tmp_path), workers=1)


def waited(made):
    """Return for each straggler how long each process waited for it, in µs."""
    return {
        row.straggler: {each.label: round(each.seconds * 1e6) for each in row.waited}
        for row in made.skew
        if row.basis == "collectives"
    }


def test_ranks_wait_for_their_own_group_alone(tmp_path):
    """Two groups run in lockstep. All calls overlap in time, so only the arguments of the kernels
    distinguish them.
    """
    fast, slow = [], []
    for at in range(0, 10_000, 1000):
        fast.append((at, 500)), slow.append((at + 300, 200))
    groups = [[0, 1], [0, 1], [2, 3], [2, 3]]
    # rank 1 is late in the first group; no rank is late in the second
    calls = [fast, slow, fast, fast]
    with_groups = [
        [kernel(at, dur, ranks, name=str(ranks[0])) for at, dur in own]
        for own, ranks in zip(calls, groups, strict=True)
    ]
    made = report(tmp_path, *with_groups)
    (late,) = waited(made)
    assert "rank 1" in late
    assert sorted(waited(made)[late].values()) == [0, 0, 3000]
    without = report(tmp_path, *([kernel(at, dur) for at, dur in own] for own in calls))
    assert waited(without) == {}, "of which group each call is, nobody says"
    (row,) = without.unmatched
    assert ({each.label: each.calls for each in row.spent}, row.members) == (
        {f"actor rank {rank}": 10 for rank in range(4)},
        None,
    )


def test_calls_are_matched_by_their_numbers(tmp_path):
    """The capture of rank 1 began two calls later."""
    early = [kernel(at * 1000, 500, [0, 1], seq=at) for at in range(10)]
    late = [kernel(at * 1000 + 400, 100, [0, 1], seq=at) for at in range(2, 10)]
    made = report(tmp_path, early, late)
    (straggler,) = waited(made)
    assert "rank 1" in straggler
    assert list(waited(made)[straggler].values()) == [8 * 400]
    # the first two calls of rank 0 have no partner
    assert [(each.label, each.calls) for each in made.unmatched[0].spent] == [("actor rank 0", 2)]


def test_without_numbers_the_calls_that_both_captured_are_matched_in_order(tmp_path):
    """The capture of rank 1 began two calls later, so the first two calls of rank 0 are in one trace only."""
    early = [kernel(at * 1000, 500, [0, 1]) for at in range(10)]
    late = [kernel(at * 1000 + 400, 100, [0, 1]) for at in range(2, 10)]
    made = report(tmp_path, early, late)
    assert waited(made) == {"actor rank 1": {"actor rank 0": 8 * 400}}


def test_numbers_match_calls_despite_a_wrong_clock(tmp_path):
    """One clock is wrong by 10 s, which is not known. Calls with equal numbers are still one collective."""
    one = [kernel(at * 1000, 500, [0, 1], seq=at) for at in range(4)]
    other = [kernel(10_000_000 + at * 1000, 100, [0, 1], seq=at) for at in range(4)]
    made = report(tmp_path, one, other)
    assert [row.label for row in made.idle] == ["actor rank 0", "actor rank 1"]
    assert sum(len(row.spent) for row in made.unmatched) == 0


def test_a_group_of_which_a_member_was_not_recorded(tmp_path):
    made = report(
        tmp_path, *([kernel(at * 1000 + 300 * rank, 500 - 300 * rank, [0, 1, 2], seq=at) for at in range(10)] for rank in range(2))
    )  # fmt: skip
    assert waited(made) == {}
    (row,) = made.unmatched
    assert (row.recorded, row.members) == (2, 3)
    assert {each.label: round(each.seconds * 1e6) for each in row.spent} == {
        "actor rank 0": 5000,
        "actor rank 1": 2000,
    }


def late_by_300(odd):
    calls = [
        [kernel(at * 1000 + 300 * rank, 500 - 300 * rank, [0, 1]) for at in range(10)] for rank in range(2)
    ]
    for each in calls[0] + calls[1]:
        each["args"] |= {"Process Group Name": odd, "Process Group Ranks": odd}
    return calls


def test_a_truncated_list_of_ranks_keeps_its_size(tmp_path):
    (others,) = waited(report(tmp_path, *late_by_300("[0, 1, ..."))).values()
    assert list(others.values()) == [3000]


@pytest.mark.parametrize("odd", [7, {"a": 1}, None])
def test_arguments_that_name_no_group_match_nothing(tmp_path, odd):
    """Without a valid group its size is unknown, and it may have more than the two recorded members."""
    made = report(tmp_path, *late_by_300(odd))
    assert waited(made) == {}
    assert [(row.recorded, row.members) for row in made.unmatched] == [(None, None)]

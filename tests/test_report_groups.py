"""Collectives matched by the process groups that torch writes beside NCCL's kernels (the keys of its `saveNcclMeta` and of libkineto's kernels)."""

import json

import pytest

from stepprof.report.analyse import analyse
from stepprof.timeline.find import find

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
    """Of traces of ranks of one host."""
    for rank, events in enumerate(ranks):
        told = {
            "baseTimeNanoseconds": BASE,
            "stepprof": {"rank": rank, "role": "actor", "host": "h", "pid": rank + 1},
        }
        (tmp_path / f"rank-{rank}.trace.json").write_text(json.dumps({**told, "traceEvents": events}))
    return analyse(find([tmp_path], output_dir=tmp_path), workers=1)


def waited(made):
    """By which process and how long each waited for the one that came last."""
    return {
        row.straggler: {each.label: round(each.seconds * 1e6) for each in row.waited}
        for row in made.skew
        if row.basis == "collectives"
    }


def test_ranks_wait_for_their_own_group_alone(tmp_path):
    """Two groups in lockstep: all calls overlap in time, so that only what the kernels say tells them apart."""
    fast, slow = [], []
    for at in range(0, 10_000, 1000):
        fast.append((at, 500)), slow.append((at + 300, 200))
    groups = [[0, 1], [0, 1], [2, 3], [2, 3]]
    # rank 1 is late in the first group, in the second nobody is
    calls = [fast, slow, fast, fast]
    with_groups = [
        [kernel(at, dur, ranks, name=str(ranks[0])) for at, dur in own]
        for own, ranks in zip(calls, groups, strict=True)
    ]
    made = report(tmp_path, *with_groups)
    (late,) = waited(made)
    assert "rank 1" in late
    assert sorted(waited(made)[late].values()) == [0, 0, 3000]
    without = [[kernel(at, dur) for at, dur in own] for own in calls]
    assert sorted(waited(report(tmp_path, *without))[late].values()) == [3000, 3000, 3000]


def test_calls_are_matched_by_their_numbers(tmp_path):
    """One rank's capture began two calls later: without numbers nothing could be said."""
    early = [kernel(at * 1000, 500, [0, 1], seq=at) for at in range(10)]
    late = [kernel(at * 1000 + 400, 100, [0, 1], seq=at) for at in range(2, 10)]
    made = report(tmp_path, early, late)
    (straggler,) = waited(made)
    assert "rank 1" in straggler
    assert list(waited(made)[straggler].values()) == [8 * 400]
    bare = [[kernel(each["ts"], each["dur"], [0, 1]) for each in own] for own in (early, late)]
    assert waited(report(tmp_path, *bare)) == {}


@pytest.mark.parametrize("odd", ["[0, 1, ...", 7, {"a": 1}, None])
def test_odd_arguments_leave_it_to_the_overlap(tmp_path, odd):
    calls = [
        [kernel(at * 1000 + 300 * rank, 500 - 300 * rank, [0, 1]) for at in range(10)] for rank in range(2)
    ]
    for each in calls[0] + calls[1]:
        each["args"] |= {"Process Group Name": odd, "Process Group Ranks": odd}
    made = report(tmp_path, *calls)
    (others,) = waited(made).values()
    assert list(others.values()) == [3000]

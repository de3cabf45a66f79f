"""Collectives matched by the process groups that torch writes beside NCCL's kernels (the keys of its `saveNcclMeta` and of libkineto's kernels), and whether the collectives in a trace are exactly those that its window called."""

from __future__ import annotations

import heapq
import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from timelines import T0, make_source

from stepprof.analysis.report.analyse import analyse
from stepprof.analysis.report.clipping import within
from stepprof.analysis.report.process_groups import Issued, issued
from stepprof.analysis.timeline.find import find
from stepprof.analysis.timeline.model import Track

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
    # rank 1 is late in the first group; in the second no rank is
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
    # the first two of rank 0 have no partner
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


MS = 1_000_000
WORLD = {"distributedInfo": {"world_size": 2, "pg_config": [{"pg_name": "0", "pg_size": 2}]}}


@dataclass
class Call:
    """One collective of the program, the same on every rank: the computation before it, and whether
    a call is awaited after it.
    """

    before: int
    awaited: int | None
    """How many calls before this one; 0: this one; None: nothing is awaited."""


def recorded(rng, program, window, *, loaded):
    """Run a program on two ranks and capture a window of it; of each rank the source, cut to the window, and which calls its annotations are of."""
    first, last = window
    issue, begun, ended = (np.zeros((2, len(program)), np.int64) for _ in range(3))
    now, free = [0, 0], [[0, 0], [0, 0]]
    opened, closed = [0, 0], [0, 0]
    for at, call in enumerate(program):
        for rank in (0, 1):
            if at == first:  # the profiler starts
                opened[rank] = now[rank] + int(rng.integers(1, 30 * MS))
                now[rank] = opened[rank] + 10_000
            if at == last:
                closed[rank] = now[rank]
            now[rank] += int(rng.integers(1, 2 * call.before + 2))
            issue[rank, at] = now[rank]
            now[rank] += 20_000
            late = (
                int(rng.integers(0, 40 * MS))
                if loaded and rng.random() < 0.3
                else int(rng.integers(0, 150_000))
            )
            begun[rank, at] = max(issue[rank, at], heapq.heappop(free[rank])) + late
        for rank in (0, 1):
            ended[rank, at] = begun[:, at].max() + int(rng.integers(50_000, 2 * MS))
            heapq.heappush(free[rank], int(ended[rank, at]))
            if call.awaited is not None and at >= call.awaited:
                of = at - call.awaited
                done = int(ended[rank, of]) + int(rng.integers(-90_000, MS))
                # its annotation may end later than it was done; but no rank goes on before all have begun it
                now[rank] = max(now[rank], done, int(begun[:, of].max()))
    made = []
    for rank in (0, 1):
        start, end = opened[rank], closed[rank] or now[rank]
        called = [at for at in range(len(program)) if start <= issue[rank, at] <= end]
        seen = [at for at in range(len(program)) if start <= begun[rank, at] <= end]
        rows = [(0, int(issue[rank, at]), 20_000, "c10d::allreduce_") for at in called]
        rows += [
            (1 + at % 2, int(begun[rank, at]), int(ended[rank, at] - begun[rank, at]), "gloo:all_reduce")
            for at in seen
        ]
        tracks = [Track("thread", "", ("1", str(number)), number) for number in (7, 8, 9)]
        source = make_source(rows, tracks=tracks)
        source.metadata = WORLD
        bounds = (T0 + start, T0 + end)
        made.append((within(source, *bounds), bounds, seen))
    return made


CALLS = st.builds(
    Call,
    st.sampled_from([0, 100_000, 10 * MS, 30 * MS, 100 * MS]),
    st.sampled_from([0, 0, 0, 0, 0, None, 1, 2]),
)


class TestIssued:
    @settings(max_examples=400, deadline=None)
    @given(st.integers(0, 2**32), st.lists(CALLS, min_size=2, max_size=14), st.booleans(), st.data())
    def test_ranks_that_are_both_sure_have_the_same_calls(self, seed, program, loaded, data):
        """Calls may begin late or cross the bounds of the window. If both ranks are sure and have
        equal counts, they recorded the same calls.
        """
        first = data.draw(st.integers(0, len(program) - 1))
        last = data.draw(st.integers(first, len(program)))
        made = recorded(np.random.default_rng(seed), program, (first, last), loaded=loaded)
        reported = [issued(source, bounds) for source, bounds, _ in made]
        counts = [len(seen) for _, _, seen in made]
        sure = None not in reported and counts[0] == counts[1]
        event(f"sure: {sure}")
        if sure:
            assert set(made[0][2]) == set(made[1][2])

    @settings(max_examples=100, deadline=None)
    @given(st.integers(0, 2**32), st.integers(4, 20))
    @example(103516, 17).via("a caller that would have gone on before its call had begun")
    def test_calls_that_are_awaited_are_sure(self, seed, count):
        """The program waits for each call, as programs usually do. Its ranks are sure, and the
        result names the thread.
        """
        program = [Call(10 * MS, 0)] * count
        for source, bounds, seen in recorded(np.random.default_rng(seed), program, (1, count), loaded=False):
            assert issued(source, bounds) == Issued(2, "7")
            assert seen == list(range(1, count))

    def test_with_other_groups_the_call_order_is_unknown(self):
        """With a second process group, even one of a single rank, the group of a call is unknown.
        It is also unknown if the trace lists no groups.
        """
        ((source, bounds, _), _) = recorded(
            np.random.default_rng(1), [Call(10 * MS, 0)] * 5, (1, 5), loaded=False
        )
        assert issued(source, bounds) is not None
        others = ([{"pg_size": 2}, {"pg_size": size}] for size in (1, 2))
        for config in ([], None, *others, [{"pg_size": 1}], ["0"]):
            source.metadata = {"distributedInfo": {"world_size": 2, "pg_config": config}}
            assert issued(source, bounds) is None
        source.metadata = {}
        assert issued(source, bounds) is None

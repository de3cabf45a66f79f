"""Whether a trace has exactly the collectives that its window called. Two ranks and gloo's threads
are simulated.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from timelines import T0, make_source

from stepprof.analysis.report.call_order import Issued, issued
from stepprof.analysis.report.clipping import within
from stepprof.analysis.timeline.model import Track

MS = 1_000_000
WORLD = {
    "distributedInfo": {
        "world_size": 2,
        "pg_config": [{"pg_name": "0", "pg_size": 2}],
    }
}


@dataclass
class Call:
    """One collective of the program, the same on every rank: the computation before it, and whether
    a call is awaited after it.
    """

    before: int
    awaited: int | None
    """How many calls earlier the awaited call is; 0 is this call. None: nothing is awaited."""


def run(rng, program, window, *, loaded):
    """Run a program on two ranks and capture a window of it.

    Return for each rank its source, cut to the window, the bounds, and the numbers of the recorded
    calls.
    """
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
                # its annotation may end later, but no rank continues before all have begun it
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
        made = run(np.random.default_rng(seed), program, (first, last), loaded=loaded)
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
        for source, bounds, seen in run(np.random.default_rng(seed), program, (1, count), loaded=False):
            assert issued(source, bounds) == Issued(2, "7")
            assert seen == list(range(1, count))

    def test_with_other_groups_the_call_order_is_unknown(self):
        """With a second process group, even one of a single rank, the group of a call is unknown.
        It is also unknown if the trace lists no groups.
        """
        ((source, bounds, _), _) = run(np.random.default_rng(1), [Call(10 * MS, 0)] * 5, (1, 5), loaded=False)
        assert issued(source, bounds) is not None
        others = ([{"pg_size": 2}, {"pg_size": size}] for size in (1, 2))
        for config in ([], None, *others, [{"pg_size": 1}], ["0"]):
            source.metadata = {"distributedInfo": {"world_size": 2, "pg_config": config}}
            assert issued(source, bounds) is None
        source.metadata = {}
        assert issued(source, bounds) is None

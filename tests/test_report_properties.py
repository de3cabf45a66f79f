"""Figures of a report against an implementation that looks at every millisecond."""

from __future__ import annotations

import pytest
from digested import engine, spans, trace
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprof.report.combine import combine
from stepprof.report.digest import digest

stretches = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 15)), max_size=4)


def report(*sources):
    return combine([digest(each) for each in sources], step=2)


def moments(raw):
    return {at for start, length in raw for at in range(start, start + length)}


@settings(deadline=None)
@given(stretches, stretches, stretches)
def test_overlap(computing, copying, communicating):
    slices = [
        *((("stream", "7"), "kernel", "gemm", start, length) for start, length in computing),
        *((("stream", "7"), "gpu_memcpy", "Memcpy DtoH", start, length) for start, length in copying),
        *(
            (("stream", "20"), "kernel", "ncclDevKernel_AllReduce", start, length)
            for start, length in communicating
        ),
    ]
    rows = report(trace(0, ("thread", "cpu_op", "mm", 0, 60), *slices)).overlap
    if not slices:
        assert rows == []
        return
    compute, copy, communication = moments(computing), moments(copying), moments(communicating)
    (row,) = rows
    assert (row.compute, row.communication) == pytest.approx((len(compute) / 1e3, len(communication) / 1e3))
    assert row.overlapped == pytest.approx(len(compute & communication) / 1e3)
    assert row.exposed == pytest.approx(len(communication - compute) / 1e3)
    assert row.busy_share == pytest.approx(len(compute | copy | communication) / 60)


roles = st.sampled_from(["actor", "critic", "rollout"])
windows = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 15), roles), min_size=1, max_size=4)


@settings(deadline=None)
@given(
    st.lists(windows, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=2),
)
def test_idleness(ranks, generating):
    """Busy in a window of its own; else by the first that holds: the rollout, other ranks of its role, another role."""
    sources = [
        spans(rank, *(("window", role, start, length, role) for start, length, role in mine))
        for rank, mine in enumerate(ranks)
    ]
    if generating:
        sources.append(engine(0, *((start, length, 4) for start, length in generating)))
    made = report(*sources)
    everything = {
        (at, role) for mine in ranks for start, length, role in mine for at in range(start, start + length)
    }
    step = range(min(at for at, _ in everything), max(at for at, _ in everything) + 1)
    engines = {"rollout"} if generating else set()
    first, last = (min(s for s, _ in generating), max(s + n for s, n in generating)) if generating else (0, 0)
    # a batch holds until the next iteration begins
    engine_at_work = {at for at in range(first, last) if any(s <= at for s, _ in generating)}
    rollout = engine_at_work | {at for at, role in everything if role == "rollout"}
    by_label = {row.label: row for row in made.idle}
    for rank, mine in enumerate(ranks):
        own = {role for _, _, role in mine} - engines
        busy = moments([(start, length) for start, length, role in mine if role not in engines])
        expected = {"busy": 0, "rollout": 0, "peers": 0, "other_role": 0, "unknown": 0}
        for at in step:
            if at in busy:
                expected["busy"] += 1
            elif at in rollout:
                expected["rollout"] += 1
            elif any((at, role) in everything for role in own):
                expected["peers"] += 1
            elif any((at, role) in everything for role in ("actor", "critic", "rollout")):
                expected["other_role"] += 1
            else:
                expected["unknown"] += 1
        row = next(row for label, row in by_label.items() if label.endswith(f"rank {rank}"))
        found = {
            "busy": row.busy,
            **dict.fromkeys(("rollout", "peers", "other_role", "unknown"), 0.0),
            **row.causes,
        }
        assert {name: round(value * 1e3) for name, value in found.items()} == expected
        assert row.wall == pytest.approx(len(step) / 1e3)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=2, max_size=5))
def test_who_waits_in_collectives(arrivals):
    """Each rank comes to three collectives; each ends for all of them 5 ms after the last one has come."""
    ends = [100 * number + max(rank[number] for rank in arrivals) + 5 for number in range(3)]
    sources = [
        trace(
            rank,
            *(
                (
                    "thread",
                    "user_annotation",
                    "gloo:all_reduce",
                    100 * number + late,
                    ends[number] - 100 * number - late,
                )
                for number, late in enumerate(mine)
            ),
        )
        for rank, mine in enumerate(arrivals)
    ]
    (row,) = report(*sources).skew
    waits = {
        f"actor rank {rank}": sum(ends[number] - 5 - 100 * number - late for number, late in enumerate(mine))
        for rank, mine in enumerate(arrivals)
    }
    assert {time.label: round(time.seconds * 1e3) for time in row.waited} == {
        label: wait for label, wait in waits.items() if label != row.straggler
    }
    assert row.significant is (max(time.seconds for time in row.waited) * 1e3 > waits[row.straggler] + 1e-9)

"""Figures of a report, compared with an implementation that looks at every millisecond."""

from __future__ import annotations

import pytest
from digested import engine, manifest, trace, window
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest

stretches = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 15)), max_size=4)


def report(*sources, **more):
    return combine([digest(each) for each in sources], step=2, **more)


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
windows = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 15), roles, st.booleans()), min_size=1, max_size=4
)
ranks_of = st.lists(st.tuples(windows, stretches), min_size=1, max_size=3)
CAUSES = ("unknown", "not_recorded", "rollout", "peers", "other_role")


@settings(deadline=None)
@given(ranks_of, st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=2))
def test_idleness(ranks, generating):
    """A moment with an operator is work. Any other gets the first cause that holds: own captured
    window, own uncaptured window, rollout, peers, other role.
    """
    sources, reported = [], []
    for rank, (mine, ops) in enumerate(ranks):
        slices = [("thread", "cpu_op", "mm", start, length) for start, length in ops]
        # the captures of its roles; the first one has all operators
        for number, role in enumerate(dict.fromkeys(role for _, _, role, _ in mine)):
            sources.append(
                trace(rank, *(slices if not number else ()), ("thread", "overhead", "x", 0, 1), role=role)
            )
        for start, length, role, captured in mine:
            status = {"status": "complete"} if captured else {"status": "lost", "error": "export: killed"}
            reported.append(window(rank, role, start, start + length, **status))
    if generating:
        sources.append(engine(0, *((start, length, 4) for start, length in generating)))
    made = report(*sources, manifests=[manifest(*reported)])
    everything = {
        (at, role)
        for mine, _ in ranks
        for start, length, role, _ in mine
        for at in range(start, start + length)
    }
    step = range(min(at for at, _ in everything), max(at for at, _ in everything) + 1)
    engines = {"rollout"} if generating else set()
    first, last = (min(s for s, _ in generating), max(s + n for s, n in generating)) if generating else (0, 0)
    # a batch lasts until the next iteration begins
    engine_at_work = {at for at in range(first, last) if any(s <= at for s, _ in generating)}
    rollout = engine_at_work | {at for at, role in everything if role == "rollout"}
    by_label = {row.label: row for row in made.idle}
    for rank, (mine, ops) in enumerate(ranks):
        roles_of = {role for _, _, role, _ in mine} - engines
        own = moments([(start, length) for start, length, role, _ in mine if role not in engines])
        covered = moments([(start, length) for start, length, _, captured in mine if captured])
        working = moments(ops)
        expected = dict.fromkeys(("busy", *CAUSES), 0)
        for at in step:
            if at in working:
                expected["busy"] += 1
            elif at in own:
                expected["unknown" if at in covered else "not_recorded"] += 1
            elif at in rollout:
                expected["rollout"] += 1
            elif any((at, role) in everything for role in roles_of):
                expected["peers"] += 1
            elif any((at, role) in everything for role in ("actor", "critic", "rollout")):
                expected["other_role"] += 1
            else:
                expected["unknown"] += 1
        row = next(row for label, row in by_label.items() if label.endswith(f"rank {rank}"))
        found = {"busy": row.busy, **dict.fromkeys(CAUSES, 0.0), **row.causes}
        assert {name: round(value * 1e3) for name, value in found.items()} == expected
        assert row.wall == pytest.approx(len(step) / 1e3)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=2, max_size=5))
def test_waits_in_collectives(arrivals):
    """Each rank enters three collectives. Each ends for all ranks 5 ms after the last one has entered."""
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
            world=len(arrivals),
        )
        for rank, mine in enumerate(arrivals)
    ]
    row = next((row for row in report(*sources).skew if row.basis == "collectives"), None)
    waits = {
        f"actor rank {rank}": sum(ends[number] - 5 - 100 * number - late for number, late in enumerate(mine))
        for rank, mine in enumerate(arrivals)
    }
    if row is None:
        assert not any(waits.values())
        return
    assert sum(time.seconds for time in row.waited) * 1e3 <= sum(waits.values()) + 1e-9
    for time in row.waited:
        assert time.seconds * 1e3 <= waits[time.label] + 1e-9
    caused = dict.fromkeys(waits, 0)
    for number in range(3):
        last = max(rank[number] for rank in arrivals)
        first_of_last = next(at for at, rank in enumerate(arrivals) if rank[number] == last)
        caused[f"actor rank {first_of_last}"] += sum(last - rank[number] for rank in arrivals)
    assert caused[row.straggler] == max(caused.values())
    assert row.significant is (max(time.seconds for time in row.waited) * 1e3 > waits[row.straggler] + 1e-9)

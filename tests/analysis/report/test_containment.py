"""Nesting of windows and regions: which one contains which."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepprof.analysis.report.containment import NOWHERE, containers


def found(*slices):
    """Return the name of the region around each region. Regions are (name, start, end, coroutine)."""
    slices = sorted(slices, key=lambda each: (each[1], -each[2]))
    names, start, end, task = zip(*slices, strict=True)
    around = containers(start, end, names, task)
    return [(name, None if at == NOWHERE else names[at]) for name, at in zip(names, around, strict=True)]


def test_the_innermost_one_of_a_thread():
    assert found(("a", 0, 10, None), ("b", 1, 9, None), ("c", 2, 3, None), ("d", 4, 12, None)) == [
        ("a", None),
        ("b", "a"),
        ("c", "b"),
        ("d", None),
    ]


def test_coroutines_that_are_open_at_the_same_time():
    """A sample is not inside a concurrent sample of another coroutine, and neither are its calls."""
    assert found(("sample", 0, 90, 1), ("sample", 1, 40, 2), ("generate", 2, 80, 1), ("tool", 3, 20, 2)) == [
        ("sample", None),
        ("sample", None),
        ("generate", "sample"),
        ("tool", "sample"),
    ]


def test_coroutines_of_another_coroutine():
    """All samples are inside `rollout`, whose coroutine started them. One `tool` begins after it,
    so no `tool` is inside another region.
    """
    assert found(
        ("rollout", 0, 95, 0),
        ("sample", 1, 90, 1),
        ("sample", 2, 40, 2),
        ("tool", 3, 4, 3),
        ("tool", 96, 97, 4),
    ) == [("rollout", None), ("sample", "rollout"), ("sample", "rollout"), ("tool", None), ("tool", None)]


times = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda each: (min(each), max(each)))


@given(st.lists(times, min_size=1, max_size=30))
def test_slices_of_one_thread(slices):
    """The parent of a slice is the latest earlier slice that ends no earlier."""
    slices.sort(key=lambda each: (each[0], -each[1]))
    start, end = zip(*slices, strict=True)
    count = len(slices)
    slow = [
        max((one for one in range(at) if end[one] >= end[at] and end[one] > start[at]), default=NOWHERE)
        for at in range(count)
    ]
    assert containers(start, end, ["a"] * count, [None] * count) == slow
    assert containers(start, end, ["a"] * count, [1] * count) == slow

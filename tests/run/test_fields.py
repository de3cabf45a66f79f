"""The checks of the values in a manifest fragment, field by field."""

from __future__ import annotations

import pytest

from stepprof.run.fields import cut, is_rank, is_step, path_problem, wrong


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("world_size", 10**18),
        ("world_size", -1),
        ("world_size", 8.0),
        ("occurrence", 10**400),
        ("replica", "0"),
        ("start_unix_ns", 2**63),
        ("start_unix_ns", -1),
        ("start_unix_ns", 1.5e18),
        ("start_seconds", float("inf")),
        ("start_seconds", 10**400),
        ("stall_seconds", 1e300),
        ("offset_ns", float("nan")),
        ("bytes", True),
        ("pid", "7"),
        ("error", "x" * 10**6),
        ("region", []),
        ("thread", []),
        ("version", {"a": 1}),
        ("exit_status", 10**12),
    ],
)
def test_impossible_values_are_problems(key, value):
    """An impossible value is a problem. None and keys that the module does not know are accepted."""
    assert wrong(key, value)
    assert wrong(key, None) is None
    assert wrong("of_a_newer_version", value) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [("world_size", 4096), ("offset_ns", -3), ("start_seconds", 0), ("version", "a"), ("events", 0), ("exit_status", -9)],
)  # fmt: skip
def test_possible_values_have_no_problem(key, value):
    """A possible value has no problem."""
    assert wrong(key, value) is None


def test_ranks_and_steps():
    """A rank is a number in its range or a short name. A step is a number in its range."""
    assert all(map(is_rank, (0, 2**20 - 1, "driver")))
    assert not any(map(is_rank, (-1, 2**20, "", "x" * 300, None, True, 1.0, [])))
    assert all(map(is_step, (0, 10**18 - 1)))
    assert not any(map(is_step, (-1, 10**18, True, "2", None)))


@pytest.mark.parametrize(
    "path", [None, "", "/a", "a/../b", "..", "a\\b", "a\0b", "a/" * 3000, "x" * 300, "a/" + "x" * 256]
)
def test_paths_that_are_refused(path):
    """Paths that lead out of the step's folder, or that cannot be opened, are refused."""
    assert path_problem(path)
    assert path_problem("actor/rank-0.trace.json.gz") is None


def test_cut():
    """A value in a message is cut to 120 characters."""
    assert cut("x" * 10**6) == "'" + "x" * 119 + "…"
    assert cut(7) == "7"

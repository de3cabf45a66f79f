"""The same work in regions whose names have the number of their rank."""

from __future__ import annotations

import pytest

from stepprof.analysis.findings.own_numbers import counterpart, is_numbered


def places(*regions):
    return [("actor", tuple(region.split("/"))) for region in regions]


@pytest.mark.parametrize(
    ("mine", "own", "others", "found"),
    [
        ("shard_1", ["shard_1"], ["shard_3"], "shard_3"),
        ("shard_001", ["shard_001", "shard_005"], ["shard_003", "shard_007"], "shard_003"),
        ("worker1/load", ["worker1/load"], ["worker3/load", "worker3/save"], "worker3/load"),
        ("micro_0_r1", ["micro_0_r1", "micro_1_r1"], ["micro_0_r3", "micro_1_r3"], "micro_0_r3"),
        ("micro_1_r1", ["micro_0_r1", "micro_1_r1"], ["micro_1_r3", "micro_3_r3"], "micro_1_r3"),
        ("micro_1_r1", ["micro_1_r1"], ["micro_1_r3", "micro_3_r1"], None),
        ("part_8", ["part_8"], ["part_9"], "part_9"),
        ("part_8", ["part_8", "part_7"], ["part_9"], None),
        ("part_8", ["part_8"], ["part_9", "part_10"], None),
        ("part", ["part"], ["part_9"], None),
        ("part_8", ["part_8"], ["other_9"], None),
    ],
)
def test_the_region_of_another_rank(mine, own, others, found) -> None:
    """Rank 1 is compared with rank 3: its number is replaced, or there is one region only that differs in its numbers."""
    (place,) = places(mine)
    key = counterpart(place, 1, places(*own), 3, places(*others))
    assert key == (None if found is None else places(found)[0])
    assert is_numbered(place, places(*others)) or found is None


def test_another_role() -> None:
    """A region of another role is other work."""
    assert (
        counterpart(("actor", ("shard_1",)), 1, [("actor", ("shard_1",))], 3, [("ref", ("shard_3",))]) is None
    )

"""Random pairs of runs: what the comparison and its gate say is true of the two worlds.

`TRUTH_WORLDS` and `TRUTH_SEED` in the environment select the number of worlds, one in ten of which is a pair, and the seed.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from truth.judging_pairs import compared, false_comparison, false_status
from truth.model import SECOND
from truth.world_of_driver import driver_world
from truth.world_of_ranks import ranks_world
from truth.worlds import DRIVER, Name, World

PAIRS = -(-int(os.environ.get("TRUTH_WORLDS", "500")) // 10)
SEED = int(os.environ.get("TRUTH_SEED", "0"))
PARTS = 2
"""Number of parts into which the pairs are divided, for several processes."""
CAPPED = 0.2
"""Share of the runs with a capture that ended early."""
OF_RANKS = ("slower", "data", "gc", "checkpoint", "half_batch", "compile", "sleep")
OF_DRIVERS = ("tail", "poll", "poll_ranks", "slower", "weight_sync", "data", "evaluation", "io")


class Pair(NamedTuple):
    """Two worlds of one shape."""

    kind: str
    a: World
    b: World
    lost: Sequence[Name] = ()
    """The ranks of B without spans."""


def pair_of(seed: int) -> Pair:
    """Return the pair of a seed: equal worlds with other noise and clocks, a cause that was added or removed, lost ranks, or
    more time between the steps.
    """
    drawn = random.Random(f"pair {seed}")
    kind = ("equal", "slower", "faster", "lost", "between")[seed % 5]
    world, causes = (driver_world, OF_DRIVERS) if seed % 3 == 2 else (ranks_world, OF_RANKS)
    cause = [drawn.choice(causes)]
    before, after = {"slower": ([], cause), "faster": (cause, [])}.get(kind, ([], []))
    a = world(seed, kinds=before, always=True)
    gap = {"gap": a.gap + SECOND} if kind == "between" else {}
    b = world(seed, again=1, kinds=after, always=True, **gap)
    cap = random.Random(f"capped pair {seed}")
    for each in (a, b):
        if cap.random() < CAPPED:
            each.cap(cap.choice([name for name in each.on if isinstance(name, int)]), cap.uniform(0.1, 0.9))
    having = [name for name in b.on if isinstance(name, int) or name == DRIVER]  # engines have no spans
    lost = [drawn.choice(having)] if kind == "lost" and len(having) > 1 else []
    return Pair(kind, a, b, lost)


def wrong_in(seed: int) -> list[str]:
    """Return what is false in the comparison of the pair of a seed."""
    pair = pair_of(seed)
    with tempfile.TemporaryDirectory() as folder:
        made = compared(pair.a, pair.b, Path(folder), pair.lost)
    wrong = false_status(made, complete=not pair.lost)
    return wrong if pair.lost else [*wrong, *false_comparison(made)]


@pytest.mark.slow
@pytest.mark.timeout(0)  # the number of pairs is configurable
@pytest.mark.parametrize("part", range(PARTS))
def test_no_comparison_is_false(part: int) -> None:
    """The exit status and the changes of a random pair of runs are those of its worlds."""
    for seed in range(SEED + part, SEED + PAIRS, PARTS):
        wrong = wrong_in(seed)
        assert not wrong, "\n".join([f"the pair of seed {seed}:", *wrong])

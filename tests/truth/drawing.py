"""Draw the shapes of steps: most are small, some are large, and each special case occurs often."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from truth.model import Shape

__all__ = ["draw_shape"]

Value = TypeVar("Value")

FATES = ("capped", "lost", "truncated", "killed", "unselected", "absent")
KINDS = (
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "reduce",
    "gather",
    "scatter",
    "send",
)
PHASES = (
    ("actor",),
    ("actor",),
    ("ref", "actor"),
    ("actor", "critic"),
    ("actor", "actor"),
    ("critic", "ref", "actor"),
)


def draw_shape(drawn: random.Random) -> Shape:
    """Return the shape of any step."""
    few = drawn.choice((1, 2, 3, 4, 2, 3, 4, 5, 6, 8, 8, 0))
    ranks = few or drawn.randint(9, 64)
    machines = min(drawn.choice((1, 1, 2, 2, 3, 8)), ranks)
    device = drawn.choice(("cpu", "cuda"))
    fates: dict[int, str] = {}
    for _ in range(drawn.choice((0, 0, 0, 1, 1, 2, 3))):
        fates[drawn.randrange(ranks)] = drawn.choice(FATES)
    engines = [
        (drawn.choice((1, 2, 3)), drawn.choice((1, 2))) for _ in range(drawn.choice((0, 0, 0, 0, 1, 2, 3)))
    ]
    kinds = [drawn.choice(KINDS) for _ in range(drawn.choice((1, 1, 2, 4)))]
    profiler = drawn.choice(("none", "equal", "differing"))
    spans, driver = not _seldom(drawn), drawn.choice(("none", "none", "waits", "manifest"))
    short = {"capped", "lost", "truncated", "killed"}.intersection(fates.values())
    again = drawn.choice(("no", "no", "no", "no", "no", "no", "epoch", "restart"))
    # if a process recorded nothing, on a host that was never compared, only their order matches
    # visits with occurrences. One process before a restart and one after it have one visit each.
    # This case is left out
    unclear = again == "restart" and machines > 1 and (driver == "waits" or "unselected" in fates.values())
    return Shape(
        seed=drawn.randrange(2**32),
        ranks=ranks,
        machines=machines,
        device=device,
        devices=drawn.choice((1, 1, 2)),
        same_name=_seldom(drawn),
        compared=drawn.choice(("all", "all", "some", "none")),
        clock_error=drawn.choice((False, True)),
        phases=drawn.choice(PHASES),
        layout=_usually(drawn, "world", ["disjoint"]),
        groups=_usually(drawn, "world", ["halves", "both"]),
        kinds=tuple(dict.fromkeys(kinds)),
        rounds=drawn.choice((1, 2, 3, 4, 0)),
        local=drawn.choice(("ops", "ops", "python", "sleep", "mixed", "mixed")),
        fates=tuple(sorted(fates.items())),
        profiler=profiler,
        spans=spans,
        driver=driver,
        engines=tuple(engines),
        late=_seldom(drawn)
        and machines == 1,  # else the clocks may not show which forward steps belong to the window
        nested=_seldom(drawn),
        jitter=_seldom(drawn),
        overlap=_seldom(drawn) and profiler == "none",
        outer=_seldom(drawn) and spans and driver != "manifest" and not short,
        again="no" if unclear else again,
    )


def _seldom(drawn: random.Random) -> bool:
    return drawn.choice((False, False, False, True))


def _usually(drawn: random.Random, usual: Value, others: Sequence[Value]) -> Value:
    return drawn.choice((usual, usual, usual, *others))

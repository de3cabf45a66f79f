"""Play a plan and return the violated invariants."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from faults.judge import broken, slow
from faults.plan import Plan
from faults.play import play

__all__ = ["TRIES", "problems"]

TRIES = 3
"""How often a plan must exceed a time limit before stepprof, and not the machine, counts as the cause."""


def problems(plan: Plan, seen: Counter[str] | None = None) -> list[str]:
    """Return the problems in a run of this plan; [] if there are none. Count the outcomes of its
    engines in `seen`.
    """
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            facts = play(plan, Path(folder))
        if seen is not None:
            seen.update(entry["status"] for each in facts.fragments for entry in each["engines"])
        wrong = broken(facts)
        if wrong:
            return [*wrong, str(facts)]
        late = slow(facts)
        if not late:
            return []
    return [*late, str(facts)]

"""Phrases that several findings share."""

from __future__ import annotations

from stepprof.analysis.findings.facts import SHORTEST_NS, Facts, Part

__all__ = ["doing", "inside"]


def inside(part: Part) -> str:
    """Return the place of a part: its innermost region, and the regions around it.

    >>> from stepprof.analysis.report.intervals import EMPTY
    >>> inside(Part("actor rank 1", "actor", ("update", "load"), EMPTY))
    '`load` (in `update`, role actor)'
    """
    around = [*(f"`{name}`" for name in part.region[-2:-1])]
    around += [f"role {part.role}"] if part.role and part.role != part.name else []
    place = f"`{part.name}`" if part.name else "the window"
    if part.name is None and part.role:
        return f"the window of {part.role}"
    return f"{place} (in {', '.join(around)})" if around else place


def doing(facts: Facts, part: Part) -> str | None:
    """Return what the stacks of a part show, if they show most of it."""
    signs = facts.signs.get(part.process)
    if signs is None or part.when.total < SHORTEST_NS:
        return None
    shown = [
        f"{nanoseconds / part.when.total:.0%} in {label}"
        for label, nanoseconds in list(signs.doing(part.when).items())[:3]
        if nanoseconds >= 0.1 * part.when.total
    ]
    return f"its stacks: {', '.join(shown)}" if shown else None

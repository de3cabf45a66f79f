"""Make comparisons of clocks consistent.

Of comparisons that agree, the best one is kept. Contradicting ones are replaced by an interval that
covers all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Edge:
    """A comparison: the clock of the machine `there` minus that of the machine `here`."""

    here: str
    there: str
    offset_ns: int
    error_ns: int
    method: str

    def __str__(self) -> str:
        return f"{self.offset_ns / 1e9:+.6g} s ± {self.error_ns / 1e3:.6g} µs by {self.method}"

    @property
    def low(self) -> int:
        """The smallest possible offset."""
        return self.offset_ns - self.error_ns

    @property
    def high(self) -> int:
        """The largest possible offset."""
        return self.offset_ns + self.error_ns

    def turned(self) -> Edge:
        """Return the same comparison as seen from the other machine."""
        return Edge(self.there, self.here, -self.offset_ns, self.error_ns, self.method)


Contradiction = tuple[list[Edge], int]
"""Comparisons that cannot all be right, and the error [ns] that an offset gets because of them."""


def agreed(edges: Sequence[Edge]) -> tuple[list[Edge], list[Contradiction]]:
    """Return one comparison for each pair of machines, and the contradictions.

    Of comparisons that agree within their errors, the one with the smallest error is kept.
    Contradicting ones of one pair are replaced by the interval that covers all of them. Around a
    circle of machines any one comparison may be wrong: each gets the error that it has if all others
    are right.
    """
    pairs: dict[frozenset[str], list[Edge]] = {}
    for edge in edges:
        same = pairs.setdefault(frozenset((edge.here, edge.there)), [])
        same.append(edge if not same or same[0].here == edge.here else edge.turned())
    kept: dict[frozenset[str], Edge] = {}
    problems: list[Contradiction] = []
    for pair, those in pairs.items():
        best = min(those, key=lambda edge: edge.error_ns)
        apart = [max(those, key=lambda edge: edge.low), min(those, key=lambda edge: edge.high)]
        if apart[0].low > apart[1].high:
            low, high = min(edge.low for edge in those), max(edge.high for edge in those)
            middle = (low + high) // 2
            best = replace(best, offset_ns=middle, error_ns=max(high - middle, middle - low))
            problems.append((apart, best.error_ns))
        kept[pair] = best
    while circle := _contradiction(list(kept.values())):
        needed = abs(sum(edge.offset_ns for edge in circle)) + sum(edge.error_ns for edge in circle)
        for edge in circle:
            pair = frozenset((edge.here, edge.there))
            kept[pair] = replace(kept[pair], error_ns=max(edge.error_ns, needed - edge.error_ns))
        problems.append((circle, needed - min(edge.error_ns for edge in circle)))
    return list(kept.values()), problems


def _contradiction(edges: Sequence[Edge]) -> list[Edge]:
    """Return comparisons around a circle of machines that cannot all be right; empty if there are
    none.

    A comparison bounds the difference of two clocks from above, in each direction. Bounds around a
    circle that sum up to less than 0 are found as Bellman and Ford find a circle of negative
    length.
    """
    directed = [*edges, *(edge.turned() for edge in edges)]
    bound = dict.fromkeys((edge.here for edge in directed), 0)
    last: dict[str, Edge] = {}
    changed: str | None = None
    for _ in range(len(bound) + 1):
        changed = None
        for edge in directed:
            if bound[edge.here] + edge.high < bound[edge.there]:
                bound[edge.there] = bound[edge.here] + edge.high
                last[edge.there] = edge
                changed = edge.there
        if changed is None:
            return []
    machine = changed or ""
    for _ in bound:  # back into the circle
        machine = last[machine].here
    circle = [last[machine]]
    while circle[-1].here != machine:
        circle.append(last[circle[-1].here])
    return circle[::-1]

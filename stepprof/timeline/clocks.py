"""From the clocks of several hosts to one: which comparisons the manifests hold, and what they make of a host's offset.

The common clock is that of the process that compared the most others with its own (the driver's, as a rule). A comparison of two others reaches further by way of the one that they have in
common; the errors add up. Machines are told apart by their boot, where it is known: two containers of one machine share its clock, whatever they are called.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepprof.timeline.model import Alignment

__all__ = ["Clocks", "describe", "worst_error"]

SAME = ("local", "same-host")
_Edge = tuple[str, int, int, str]
"""(machine, its offset, the error of that, how it was measured), seen from another machine."""


@dataclass(frozen=True, slots=True)
class _Reach:
    """How a machine's clock is known: its offset from the reference."""

    offset_ns: int
    error_ns: int
    method: str


@dataclass(slots=True)
class Clocks:
    """What the fragments of a step say of their clocks, by `stepprof.manifest.read_clocks`, of one or more run directories.

    >>> told = [{"fragment": "f", "host": "a", "boot_id": None, "clocks": [
    ...     {"host": "b", "offset_ns": 5_000, "error_ns": 20, "method": "ping-pong"}]}]
    >>> clocks = Clocks.of(told)
    >>> clocks.alignment("a").method, clocks.alignment("b"), clocks.alignment("c").method
    ('reference', Alignment(method='ping-pong', offset_ns=5000, error_ns=20), 'unmeasured')
    """

    machines: dict[str, set[str]] = field(default_factory=dict)
    """host → its machines."""
    fragments: dict[str, str] = field(default_factory=dict)
    """fragment → the machine that it was written on."""
    reach: dict[str, _Reach] = field(default_factory=dict)
    reference: str | None = None
    reference_host: str | None = None

    @classmethod
    def of(cls, told: Sequence[Mapping[str, Any]], hosts: Sequence[str | None] = ()) -> Clocks:
        """Put the comparisons together.

        Args:
            told: {fragment, host, boot_id, clocks} of each fragment.
            hosts: of the sources that have to be placed: where nothing was compared, the most frequent one is the reference.
        """
        clocks = cls()
        for entry in told:
            machine = clocks._note(entry["host"], entry["boot_id"])
            if machine is not None:
                clocks.fragments[str(entry["fragment"])] = machine
        comparisons = [
            (here, clock)
            for entry in told
            if (here := clocks.fragments.get(str(entry["fragment"]))) is not None
            for clock in entry["clocks"]
        ]
        for here, clock in comparisons:
            if clock["method"] in SAME:  # another name for the same machine, as that of a container
                clocks.machines.setdefault(clock["host"], {here})
        for host in [*(clock["host"] for _, clock in comparisons), *hosts]:
            if host is not None:
                clocks.machines.setdefault(host, {f"host {host}"})
        edges: dict[str, list[_Edge]] = {}
        compared: Counter[str] = Counter()
        for here, clock in comparisons:
            there = clocks._machine(clock["host"])
            if there is None or there == here:
                continue
            offset, error = int(clock["offset_ns"]), abs(int(clock["error_ns"]))
            edges.setdefault(here, []).append((there, offset, error, clock["method"]))
            edges.setdefault(there, []).append((here, -offset, error, clock["method"]))
            compared[here] += 1
        clocks._choose(compared, [host for host in hosts if host is not None])
        clocks._measure(edges)
        return clocks

    def _note(self, host: str | None, boot_id: str | None) -> str | None:
        if host is None:
            return None
        machine = f"boot {boot_id}" if boot_id else f"host {host}"
        self.machines.setdefault(host, set()).add(machine)
        return machine

    def _machine(self, host: str | None) -> str | None:
        machines = self.machines.get(host or "", set())
        return next(iter(machines)) if len(machines) == 1 else None

    def _choose(self, compared: Counter[str], hosts: Sequence[str]) -> None:
        if compared:
            self.reference = compared.most_common(1)[0][0]
        elif hosts or self.machines:
            frequent = Counter(hosts or list(self.machines)).most_common(1)[0][0]
            self.reference = min(self.machines[frequent])
        names = [host for host, machines in self.machines.items() if self.reference in machines]
        self.reference_host = names[0] if names else None

    def _measure(self, edges: Mapping[str, Sequence[_Edge]]) -> None:
        if self.reference is None:
            return
        queue: list[tuple[int, int, str, int, str]] = [(0, 0, self.reference, 0, "reference")]
        while queue:  # the way with the smallest error
            error, hops, machine, offset, method = heapq.heappop(queue)
            if machine in self.reach:
                continue
            self.reach[machine] = _Reach(offset, error, method)
            for there, further, wrong, how in edges.get(machine, ()):
                worse = method if how in SAME and hops else how
                heapq.heappush(queue, (error + wrong, hops + 1, there, offset + further, worse))

    def alignment(self, host: str | None, fragment: str | None = None) -> Alignment:
        """How a source of this host, told of in this fragment, comes onto the common clock."""
        machine = (
            self.fragments.get(fragment or "") if self._written_by(host, fragment) else self._machine(host)
        )
        reach = self.reach.get(machine or "")
        if reach is None:
            return Alignment("unmeasured", 0, None)
        if machine == self.reference:
            return Alignment("reference" if host == self.reference_host else "same-host", 0, 0)
        return Alignment(reach.method, reach.offset_ns, reach.error_ns)

    def _written_by(self, host: str | None, fragment: str | None) -> bool:
        """Whether the fragment was written on that host: then its machine is known for sure."""
        machine = self.fragments.get(fragment or "")
        return machine is not None and machine in self.machines.get(host or "", set())


def worst_error(alignments: Iterable[Alignment]) -> int | None:
    """The largest error [ns]; None where that of one is not known."""
    errors = [alignment.error_ns for alignment in alignments]
    return None if None in errors else max((error for error in errors if error is not None), default=0)


def describe(alignments: Iterable[Alignment]) -> str:
    """How sources came onto one clock, in a sentence.

    >>> describe([Alignment("reference"), Alignment("same-host"), Alignment("ping-pong", 5, 200_000)])
    '2 sources by the clock of one host; 1 compared by ping-pong, right within 0.2 ms'
    """
    by_method: dict[str, list[Alignment]] = {}
    for alignment in alignments:
        method = "same-host" if alignment.method == "reference" else alignment.method
        by_method.setdefault(method, []).append(alignment)
    parts = []
    for method, those in sorted(by_method.items(), key=lambda item: _ORDER.get(item[0], 2)):
        parts.append(_PHRASES.get(method, "{count} compared by {method}{within}").format(
            count=len(those), sources=f"{len(those)} source{'s' * (len(those) > 1)}", method=method, within=_within(those)
        ))  # fmt: skip
    return "; ".join(parts) or "no source is placed"


_ORDER = {"same-host": 0, "ping-pong": 1, "assumed": 3, "unmeasured": 4}
_PHRASES = {
    "same-host": "{sources} by the clock of one host",
    "assumed": "{count} placed by --assume-offset",
    "unmeasured": "{count} on hosts that were never compared, placed by their own wall clocks: their error is not known",
}


def _within(alignments: Sequence[Alignment]) -> str:
    error = worst_error(alignments)
    return "" if error is None else f", right within {error / 1e6:.3g} ms"

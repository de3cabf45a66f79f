"""Put the clocks of several machines onto one common clock.

The comparisons in the manifests give the offset and the error of each source. The common clock is
that of the machine that compared the most others with its own, usually the driver's. Two machines
that were compared with a third one are related through it, and their errors add up.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepprof.analysis.timeline.comparisons import Edge, agreed
from stepprof.analysis.timeline.model import Alignment, Origin
from stepprof.formatting import counted
from stepprof.host.clock import Anchor
from stepprof.run.fields import LARGEST_OFFSET_NS

SAME = ("local", "same-host")


@dataclass(slots=True)
class Clocks:
    """The clock comparisons in the fragments of a step, from `stepprof.run.manifest.read_clocks`.

    The fragments may be from several run directories.

    >>> fragments = [{"fragment": "f", "host": "a", "boot_id": None, "anchor": None, "clocks": [
    ...     {"host": "b", "boot_id": None, "offset_ns": 5_000, "error_ns": 20, "method": "ping-pong"}]}]
    >>> clocks = Clocks.of(fragments)
    >>> [clocks.alignment(Origin("spans", "x", host=host)).method for host in "abc"]
    ['reference', 'ping-pong', 'unmeasured']
    """

    findings: list[str] = field(default_factory=list)
    """Comparisons that contradict each other, and ambiguous ones."""
    _machines: dict[str, set[str]] = field(default_factory=dict)
    """host → its machines. If processes of a machine have several wall clocks, each counts as one."""
    _anchors: dict[str, dict[str, Anchor]] = field(default_factory=dict)
    """boot → its wall clocks, each with the anchor of one process."""
    _boots: dict[str, str] = field(default_factory=dict)
    """wall clock → its boot."""
    _writers: dict[str, tuple[str, str]] = field(default_factory=dict)
    """fragment → host and machine that it was written on."""
    _ahead: dict[str, int] = field(default_factory=dict)
    """fragment → how far the wall clock was ahead of its writer's."""
    _compared: dict[tuple[str, str], str] = field(default_factory=dict)
    """(fragment, host) → the machine that its writer means by that host name."""
    _placed: dict[str, Alignment] = field(default_factory=dict)
    """machine → the alignment of its clock with that of its island."""
    _reference: str | None = None
    _reference_host: str | None = None

    @classmethod
    def of(cls, fragments: Sequence[Mapping[str, Any]], origins: Sequence[Origin] = ()) -> Clocks:
        """Combine the comparisons.

        Args:
            fragments: {fragment, host, boot_id, anchor, clocks} of each fragment.
            origins: of the sources to be placed. Without comparisons, the machine with the most sources is the reference.
        """
        clocks = cls()
        for entry in fragments:
            if entry["host"] is not None:
                machine = clocks._note(entry["host"], entry["boot_id"], entry["anchor"])
                clocks._writers[str(entry["fragment"])] = (entry["host"], machine)
        for origin in origins:
            if origin.host is not None and origin.machine is not None:
                clocks._note(origin.host, origin.machine, origin.anchor)
        edges = clocks._edges(fragments)
        for origin in origins:
            if origin.host is not None and origin.host not in clocks._machines:
                clocks._note(origin.host, None)
        clocks._choose(edges, origins)
        edges, problems = agreed([*edges, *clocks._one_boot()])
        clocks.findings += [clocks._worded(circle, error) for circle, error in problems]
        clocks._place(edges)
        return clocks

    def _note(self, host: str, boot_id: str | None, anchor: Anchor | None = None) -> str:
        machine = self._clock_of(boot_id, anchor) if boot_id else f"host {host}"
        self._machines.setdefault(host, set()).add(machine)
        return machine

    def _clock_of(self, boot_id: str, anchor: Anchor | None) -> str:
        """Return the wall clock of a process: usually all processes of a boot have the same one."""
        machine = f"boot {boot_id}"
        if anchor is None:
            return machine
        known = self._anchors.setdefault(boot_id, {})
        for clock, another in known.items():
            if anchor.ahead_of(another) == (0, 0):
                return clock
        clock = f"{machine} clock {len(known) + 1}" if known else machine
        known[clock] = anchor
        self._boots[clock] = boot_id
        return clock

    def _one_boot(self) -> list[Edge]:
        """Return the comparisons of wall clocks of one boot, by the kernel's clock."""
        return [
            Edge(f"boot {boot_id}", clock, *ahead, "kernel")
            for boot_id, known in self._anchors.items()
            for clock, anchor in known.items()
            if clock != f"boot {boot_id}" and (ahead := anchor.ahead_of(known[f"boot {boot_id}"])) is not None
        ]

    def _edges(self, fragments: Sequence[Mapping[str, Any]]) -> list[Edge]:
        """Return the comparisons of two machines.

        A machine may appear under another name (that of a container); that name is recorded.
        """
        comparisons = [
            (str(entry["fragment"]), *writer, clock)
            for entry in fragments
            if (writer := self._writers.get(str(entry["fragment"]))) is not None
            for clock in entry["clocks"]
        ]
        for fragment, _, here, clock in comparisons:
            if clock["method"] in SAME:
                self._machines.setdefault(clock["host"], {here})
                self._compared[fragment, clock["host"]] = here
            if clock["method"] == "local":
                self._ahead[fragment] = int(clock["offset_ns"])
        edges = []
        for fragment, name, here, clock in comparisons:
            if clock["method"] in SAME:
                continue
            host = clock["host"]
            others = {each for each in self._machines.get(host, set()) if not self._is_one_boot(each, here)}
            if clock.get("boot_id"):
                there = self._note(host, clock["boot_id"])
            elif len(others) > 1:
                self.findings.append(
                    f"the clock comparison of {name} with {host} is ignored: {len(others)} clocks have that name"
                )
                continue
            else:
                there = next(iter(others), f"host {host}" if host != name else f"host {host} next to {here}")
                self._machines.setdefault(host, set()).add(there)
            self._compared[fragment, host] = there
            if there != here:
                edges.append(
                    Edge(here, there, int(clock["offset_ns"]), abs(int(clock["error_ns"])), clock["method"])
                )
        return edges

    def _choose(self, edges: Sequence[Edge], origins: Sequence[Origin]) -> None:
        compared = Counter(edge.here for edge in edges)
        sources = Counter(machine for each in origins if (machine := self._machine(each, None)) is not None)
        known = [machine for machines in self._machines.values() for machine in sorted(machines)]
        counted = compared or sources or Counter(known)
        if counted:
            self._reference = counted.most_common(1)[0][0]
        names = [host for host, machines in self._machines.items() if self._reference in machines]
        self._reference_host = names[0] if names else None

    def _place(self, edges: Sequence[Edge]) -> None:
        """Place every machine: on the common clock if comparisons connect it, else on that of its
        island.
        """
        neighbours: dict[str, list[Edge]] = {}
        for edge in edges:
            neighbours.setdefault(edge.here, []).append(edge)
            neighbours.setdefault(edge.there, []).append(edge.turned())
        busiest = sorted(neighbours, key=lambda machine: (-len(neighbours[machine]), machine))
        alone = sorted({machine for machines in self._machines.values() for machine in machines})
        for root in [self._reference, *busiest, *alone]:
            if root is None or root in self._placed:
                continue
            common = root == self._reference
            island = "" if common else root
            first = Alignment("reference") if common else Alignment("unmeasured", 0, None, island)
            numbers = itertools.count()  # of several paths with the same error, any will do
            queue: list[tuple[int, int, str, int, int, Alignment]] = [(0, 0, root, 0, next(numbers), first)]
            while queue:  # the path with the smallest error
                error, hops, machine, offset, _, alignment = heapq.heappop(queue)
                if machine in self._placed:
                    continue
                self._placed[machine] = alignment
                for edge in neighbours.get(machine, ()):
                    total, wrong = offset + edge.offset_ns, error + edge.error_ns
                    if abs(total) > LARGEST_OFFSET_NS:
                        continue  # no clock is that wrong
                    further = Alignment(edge.method, total, wrong, island)
                    heapq.heappush(queue, (wrong, hops + 1, edge.there, total, next(numbers), further))

    def alignment(self, origin: Origin, fragment: str | None = None) -> Alignment:
        """Return the alignment of a source with the common clock.

        Args:
            origin: the origin of the source.
            fragment: the fragment of the manifest that names it.
        """
        machine = self._machine(origin, fragment)
        if machine is None or machine not in self._placed:
            return Alignment("unmeasured", 0, None, machine or origin.path)
        if machine == self._reference and origin.host != self._reference_host:
            return Alignment("same-host")
        return self._placed[machine]

    def wall_ahead_ns(self, origin: Origin, fragment: str) -> int:
        """Return how far the times of a trace, which are by the wall clock, are ahead of the clock of the
        process that wrote the fragment. Another machine's clock was compared with that process's.
        """
        writer = self._writers.get(fragment)
        here = writer is not None and self._machine(origin, fragment) == writer[1]
        return self._ahead.get(fragment, 0) if here else 0

    def _machine(self, origin: Origin, fragment: str | None) -> str | None:
        """Return the machine of a source; None: not known."""
        host = origin.host
        writer = self._writers.get(fragment or "")
        if origin.machine is not None:
            if writer is not None and self._boots.get(writer[1]) == origin.machine:
                return writer[1]
            return self._clock_of(origin.machine, origin.anchor)
        if host is None:
            return None
        if (fragment, host) in self._compared:
            return self._compared[fragment or "", host]
        if writer is not None and writer[0] == host:
            return writer[1]
        machines = self._machines.get(host, set())
        return next(iter(machines)) if len(machines) == 1 else None

    def _is_one_boot(self, one: str, other: str) -> bool:
        boot = self._boots.get(one)
        return one == other or (boot is not None and boot == self._boots.get(other))

    def _worded(self, circle: Sequence[Edge], error_ns: int) -> str:
        names = {machine: host for host, machines in self._machines.items() for machine in machines}
        each = [f"{names[edge.there]} against {names[edge.here]}: {edge}" for edge in circle]
        return (
            f"clock comparisons contradict each other ({'; '.join(each)}): "
            f"times of these hosts may be wrong by {error_ns / 1e9:.6g} s"
        )


def unsure_ns(one: Alignment, other: Alignment) -> int | None:
    """Return the error of a comparison of the times of two machines; None: their clocks were never
    compared.

    >>> unsure_ns(Alignment("reference"), Alignment("ping-pong", 5, 70))
    70
    """
    if one.island != other.island:
        return None
    # the clock of an island is exact on its island
    own = [each.method == "unmeasured" and each.island != "" for each in (one, other)]
    errors = [0 if exact else each.error_ns for exact, each in zip(own, (one, other), strict=True)]
    return None if None in errors else sum(error for error in errors if error is not None)


def never_compared(origin: Origin, alignment: Alignment) -> list[str]:
    """Return the finding about a source whose clock has no connection with the common clock."""
    if alignment.island == "":
        return []
    where = f"on its host {origin.host}" if origin.host else "on its host, which is unknown,"
    return [
        f"its clock {where} was never compared with the common clock: placed by its own clock, with an unknown error"
    ]


def worst_error(alignments: Iterable[Alignment]) -> int | None:
    """Return the largest error [ns]; None if one error is not known."""
    errors = [None if alignment.island else alignment.error_ns for alignment in alignments]
    return None if None in errors else max((error for error in errors if error is not None), default=0)


def describe(alignments: Iterable[Alignment]) -> str:
    """Describe in a sentence how sources were placed on one clock.

    >>> describe([Alignment("reference"), Alignment("same-host"), Alignment("ping-pong", 5, 200_000)])
    '2 sources by the clock of one host; 1 compared by ping-pong, error at most 0.2 ms'
    """
    by_method: dict[str, list[Alignment]] = {}
    for alignment in alignments:
        method = "unmeasured" if alignment.island else alignment.method
        by_method.setdefault("same-host" if method == "reference" else method, []).append(alignment)
    parts = []
    for method, those in sorted(by_method.items(), key=lambda item: _ORDER.get(item[0], 2)):
        clocks = len({each.island for each in those})
        if method == "unmeasured" and clocks < len(those):
            which = "1 clock that was" if clocks == 1 else f"{clocks} clocks that were"
            parts.append(f"{len(those)} by {which} never compared, with an unknown error")
            continue
        parts.append(_PHRASES.get(method, "{count} compared by {method}{within}").format(
            count=len(those), hosts=counted(len(set(those)), "host"), its="its" if len(set(those)) == 1 else "their",
            sources=f"{len(those)} source{'s' * (len(those) > 1)}", method=method, within=_within(those)
        ))  # fmt: skip
    return "; ".join(parts) or "no source is placed"


_ORDER = {"same-host": 0, "shared": 0, "kernel": 1, "ping-pong": 1, "assumed": 4, "unmeasured": 5}
_PHRASES = {
    "same-host": "{sources} by the clock of one host",
    "kernel": "{count} by another wall clock of {its} host, compared by the kernel's clock{within}",
    "shared": "{sources} on one clock, because their collectives end together{within}",
    "collectives": "{hosts} placed by {its} matched collectives{within}",
    "assumed": "{count} placed by --assume-offset",
    "unmeasured": "{count} by clocks that were never compared, their own clocks, with an unknown error",
}


def _within(alignments: Sequence[Alignment]) -> str:
    error = worst_error(alignments)
    return "" if error is None else f", error at most {error / 1e6:.3g} ms"

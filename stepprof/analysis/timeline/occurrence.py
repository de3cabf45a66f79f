"""Select one occurrence of a step: fragments by their numbers, spans by the time at which their
process was in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stepprof.analysis.timeline.clocks import Clocks
from stepprof.analysis.timeline.manifest_sources import Input, machine_of
from stepprof.analysis.timeline.model import Alignment, Origin
from stepprof.run.occurrence_spans import Portion, Portions, other_windows, superseded, windows_in
from stepprof.run.occurrences import choose, number_fragments


def without_superseded(inputs: Sequence[Input], step: int) -> list[Input]:
    """Return the inputs without spans of processes that were in the step at another time, before or
    after a restart of the job.
    """
    of_rank: dict[object, list[tuple[int, Portion, list[Path]]]] = defaultdict(list)
    for number, each in enumerate(inputs):
        if each.portion is not None:
            of_rank[each.origin.rank].append((number, each.portion, [Path(path) for path in each.paths]))
    left_out = set()
    for several in (of for of in of_rank.values() if len(of) > 1):
        processes = [
            (list(windows_in(paths, step)), partial(other_windows, paths, step), portion)
            for _, portion, paths in several
        ]
        left_out |= {several[number][0] for number in superseded(processes)}
    return [each for number, each in enumerate(inputs) if number not in left_out]


class Occurrence:
    """The selected occurrence of a step: its fragments and spans.

    Args:
        manifests: of each run directory, by the marks of its fragments.
        clocks: of the hosts.
        wanted: its number; None: the last one.
        step: the step.

    Attributes:
        number: of the occurrence, from 1.
        count: how many were recorded.
        unsure: hosts of captures that were placed by a clock that was never compared.
    """

    def __init__(
        self,
        manifests: Mapping[str, Mapping[str, Any]],
        clocks: Clocks,
        wanted: int | None,
        step: int,
    ) -> None:
        self._clocks = clocks
        entries = [
            {**entry, "fragment": mark + entry["fragment"]}
            for mark, manifest in manifests.items()
            for kind in ("windows", "engines")
            for entry in manifest[kind]
        ]
        by_other_clocks: set[str] = set()
        self._numbers = number_fragments(entries, self._offset, by_other_clocks)
        self.unsure = sorted(
            {
                str(entry["host"])
                for entry in entries
                if entry["fragment"] in by_other_clocks and self._alignment(entry).island
            }
        )
        self.count = max(self._numbers.values(), default=1)
        self.number = choose(self.count, wanted, step)
        windows: list[list[dict[str, Any]]] = [[] for _ in range(self.count)]
        for entry in entries:
            if "replica" not in entry:
                windows[self._numbers[entry["fragment"]] - 1].append(entry)
        self._portions = Portions(windows, self.number - 1, self._clock)

    def has(self, fragment: str, *, mark: str = "") -> bool:
        """Return whether a fragment belongs to it; a damaged one may belong to any occurrence."""
        return self._numbers.get(mark + fragment, self.number) == self.number

    def portion(self, origin: Origin, alignment: Alignment) -> Portion | None:
        """Return the part of a process's spans that belongs to it."""
        return self._portions.of(origin.host, origin.pid, origin.rank, alignment.island, alignment.offset_ns)

    def _offset(self, entry: Mapping[str, Any]) -> int:
        """Return how far the clock of an entry is ahead of the common one."""
        return self._alignment(entry).offset_ns

    def _clock(self, window: Mapping[str, Any]) -> tuple[str, int]:
        """Return the island of a window's clock, and how far that clock is ahead of the island's."""
        alignment = self._alignment(window)
        return alignment.island, alignment.offset_ns

    def _alignment(self, entry: Mapping[str, Any]) -> Alignment:
        if "replica" in entry:  # for an engine, the clock of its driver
            origin = Origin("rank", "", machine=machine_of(entry))
        else:
            origin = Origin("rank", "", host=entry["host"], machine=entry["boot_id"])
        return self._clocks.alignment(origin, entry["fragment"])

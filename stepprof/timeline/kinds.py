"""What many events of a trace have in common: complete ones their name, category and place, ends of arrows their category, phase and place.

What only this module knows: a look into one table with all of that as its key is quicker than one look for each; the columns follow from the numbers in a handful of numpy operations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepprof.timeline.columns import FlowColumns, Interned
from stepprof.timeline.event import Event
from stepprof.timeline.model import Indices
from stepprof.timeline.tracks import Rows

__all__ = ["FLOW_PHASES", "Arrows", "Kinds"]

FLOW_PHASES = {"s": FlowColumns.BEGIN, "t": FlowColumns.STEP, "f": FlowColumns.END}
_GROUP = re.compile(r"\[[^\]]*\]")
_ID_BITS = 40

_Place = int | str


class Kinds:
    """Name, category and track of complete events."""

    def __init__(self, names: Interned[str], categories: Interned[str], rows: Rows) -> None:
        self._names, self._categories, self._rows = names, categories, rows
        self._kinds: Interned[tuple[str, str, _Place, _Place]] = Interned()
        self._columns: list[Indices] = [np.zeros(0, np.int32)] * 3

    def of(self, events: Sequence[Event]) -> tuple[Indices, Indices, Indices]:
        """Return three columns, numbers of `names`, `categories` and tracks of `rows`."""
        kinds, known = self._kinds, len(self._kinds)
        kind = np.array([kinds[event.name, event.cat, event.pid, event.tid] for event in events], np.int32)
        if len(kinds) > known:
            self._learn(list(kinds)[known:])
        name, category, track = (column[kind] for column in self._columns)
        return name, category, track

    def _learn(self, new: list[tuple[str, str, _Place, _Place]]) -> None:
        name = np.array([self._names[each[0]] for each in new], np.int32)
        category = np.array([self._categories[each[1]] for each in new], np.int32)
        place = np.array([self._rows.places[each[2:]] for each in new], np.int32)
        track = self._rows.of_places(place, category, self._categories)
        columns = zip(self._columns, (name, category, track), strict=True)
        self._columns = [np.concatenate(both) for both in columns]


class Arrows:
    """Place, arrow, category and phase of ends of arrows."""

    def __init__(self, categories: Interned[str], rows: Rows) -> None:
        self._categories, self._rows = categories, rows
        self._ids: Interned[_Place | None] = Interned()
        self._kinds: Interned[tuple[str, str, _Place, _Place]] = Interned()
        self._groups: Interned[tuple[str, str]] = Interned()
        self._columns: list[Indices] = [np.zeros(0, np.int32)] * 4

    def of(self, events: Sequence[Event]) -> tuple[Indices, npt.NDArray[np.int64], Indices, Indices]:
        """Return four columns: numbers of `rows.ends`, one for all ends of the same arrow, numbers of `categories`, phases of `FlowColumns`."""
        kinds, ids, known = self._kinds, self._ids, len(self._kinds)
        kind = np.array([kinds[event.ph, event.cat, event.pid, event.tid] for event in events], np.int32)
        number = np.array([ids[event.id] for event in events], np.int64)
        if len(kinds) > known:
            self._learn(list(kinds)[known:])
        place, group, category, phase = (column[kind] for column in self._columns)
        return place, group.astype(np.int64) << _ID_BITS | number, category, phase

    def _learn(self, new: list[tuple[str, str, _Place, _Place]]) -> None:
        rows = [
            (
                self._rows.ends[pid, tid],
                self._groups[category, _group(pid)],
                self._categories[category],
                FLOW_PHASES[phase],
            )
            for phase, category, pid, tid in new
        ]
        columns = zip(self._columns, np.array(rows, np.int32).T, strict=True)
        self._columns = [np.concatenate(both) for both in columns]


def _group(pid: _Place) -> str:
    """A merger leaves the ids of several ranks as they were, and puts the rank before the process."""
    match = _GROUP.match(pid) if isinstance(pid, str) else None
    return match[0] if match else ""

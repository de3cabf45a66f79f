"""Number the combinations of phase, name, category and place of the events of a trace.

Only this module knows that one lookup with all of these as the key is faster than one lookup for
each. The columns follow from the numbers in a few numpy operations.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from stepprof.analysis.timeline.columns import FlowColumns, Interned
from stepprof.analysis.timeline.event import Event
from stepprof.analysis.timeline.event_lines import EventLines
from stepprof.analysis.timeline.model import Indices
from stepprof.analysis.timeline.tracks import HOST, WRITTEN, Rows

COMPLETE, OTHER, UNWANTED = -1, -2, -3
"""Phases in addition to those of `FlowColumns`."""
_PHASES = {"X": COMPLETE, "s": FlowColumns.BEGIN, "t": FlowColumns.STEP, "f": FlowColumns.END}
_GROUP = re.compile(r"\[[^\]]*\]")
_ANNOTATION = re.compile(r"enumerate\(DataLoader\)#|Optimizer\.(?:step|zero_grad)#")
"""Annotations of torch itself, which torch 1.8 and torch_npu write among the operators."""
_ID_BITS = 40
_SMALL = 1 << 39

_Place = int | str
_Kind = tuple[str, str, str, _Place, _Place]


class Kinds:
    """The kinds of the events of one file, numbered in the order of their first use.

    Args:
        names: of the file.
        categories: of the file.
        rows: of the file.
        arrows: the categories of arrows to read; None: all.
    """

    def __init__(
        self,
        names: Interned[str],
        categories: Interned[str],
        rows: Rows,
        arrows: Collection[str] | None = None,
    ) -> None:
        self._arrows = arrows
        self._names, self._categories, self._rows = names, categories, rows
        self._kinds: Interned[_Kind] = Interned()
        self._groups: Interned[tuple[str, str]] = Interned()
        self._ids: Interned[_Place | None] = Interned()
        self._columns: list[Indices] = [np.zeros(0, np.int32)] * 4
        self._of_lines = np.zeros(0, np.int32)

    def of(self, events: Sequence[Event]) -> tuple[Indices, Indices]:
        """Return two columns: the kind of each event, and its phase.

        The phase is one of `FlowColumns` for the end of an arrow, `COMPLETE`, `UNWANTED` or `OTHER`.
        """
        kinds, known = self._kinds, len(self._kinds)
        kind = np.array(
            [kinds[each.ph, each.name, each.cat, each.pid, each.tid] for each in events], np.int32
        )
        if len(kinds) > known:
            self._learn(kinds.since(known))
        return kind, self._columns[0][kind]

    def of_lines(self, lines: EventLines) -> Indices:
        """Return the kind of each event of these lines, all of one file."""
        new = lines.kinds[len(self._of_lines) :]
        if new:
            self._of_lines = np.concatenate((self._of_lines, self.of(new)[0]))
        return self._of_lines[lines.kind]

    @property
    def held(self) -> int:
        """Approximate bytes of memory of the kinds."""
        return self._kinds.held + self._groups.held + self._ids.held

    def complete(self, kind: Indices) -> tuple[Indices, Indices, Indices]:
        """Return three columns for kinds of complete events: numbers of names, of categories and of tracks of `Rows`."""
        _, name, category, track = self._columns
        return name[kind], category[kind], track[kind]

    def arrows(
        self, kind: Indices, events: Sequence[Event]
    ) -> tuple[Indices, npt.NDArray[np.int64], Indices, Indices]:
        """Return four columns for ends of arrows: two numbers of `Rows.ends`, equal for all ends of
        one arrow, categories and phases.
        """
        number = self._numbers([event.id for event in events])
        phase, group, category, place = (column[kind] for column in self._columns)
        return place, group.astype(np.int64) << _ID_BITS | number, category, phase

    def _numbers(self, ids: list[_Place | None]) -> npt.NDArray[np.int64]:
        """Return a number for each id: the id itself if it is a small number, as nearly all are."""
        number = np.array(ids) if ids else np.zeros(0, np.int64)  # a text among them: an array of texts
        if number.dtype == np.int64 and (not len(number) or 0 <= number.min() <= number.max() < _SMALL):
            return number
        interned = self._ids
        return np.array(
            [
                each if isinstance(each, int) and 0 <= each < _SMALL else _SMALL + interned[each]
                for each in ids
            ],
            np.int64,
        )

    def _learn(self, new: list[_Kind]) -> None:
        columns = np.full((4, len(new)), OTHER, np.int32)
        complete = [at for at, each in enumerate(new) if each[0] == "X"]
        if complete:
            columns[0, complete] = COMPLETE
            columns[1, complete] = [self._names[new[at][1]] for at in complete]
            written = [_category(*new[at][1:3]) for at in complete]
            category = np.array([self._categories[each] for each in written], np.int32)
            place = np.array([self._rows.places[new[at][3:]] for at in complete], np.int32)
            columns[2, complete] = category
            for at, each in zip(complete, written, strict=True):
                if each in HOST:
                    self._rows.works_on_host(*new[at][3:], each)
            columns[3, complete] = self._rows.of_places(place, category, self._categories)
        for at, (phase, _, category_, pid, tid) in enumerate(new):
            if (
                phase in _PHASES
                and phase != "X"
                and self._arrows is not None
                and category_ not in self._arrows
            ):
                columns[0, at] = UNWANTED
            elif phase in _PHASES and phase != "X":
                group = self._groups[category_, _group(pid)]
                columns[:, at] = _PHASES[phase], group, self._categories[category_], self._rows.ends[pid, tid]
        self._columns = [np.concatenate(both) for both in zip(self._columns, columns, strict=True)]


def _group(pid: _Place) -> str:
    """Return the rank in front of a process; empty without one.

    A merger of traces puts it there, and leaves the ids of arrows as they were.
    """
    match = _GROUP.match(pid) if isinstance(pid, str) else None
    return match[0] if match else ""


def _category(name: str, written: str) -> str:
    category = WRITTEN.get(written, written)
    return "user_annotation" if category == "cpu_op" and _ANNOTATION.match(name) else category

"""Collect the columns of a source while it is read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from sys import getsizeof
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from stepprof.analysis.timeline.model import Args, Counters, Flows, Indices, Instants, Slices, Times

Key = TypeVar("Key", bound=Hashable)
Number = TypeVar("Number", bound=np.generic)
_ENTRY = 110
"""Bytes of an entry of a dictionary, with its number."""
Flags = npt.NDArray[np.bool_]


class Interned(dict[Key, int], Generic[Key]):
    """Numbers for keys, in the order of their first use. Looking up a known key is a plain
    subscription.

    Attributes:
        held: approximate bytes of memory of the keys.

    >>> names = Interned()
    >>> names["a"], names["b"], names["a"], list(names)
    (0, 1, 0, ['a', 'b'])
    """

    held = 0

    def __missing__(self, key: Key) -> int:
        number = self[key] = len(self)
        parts = sum(map(getsizeof, key)) if isinstance(key, tuple) else 0
        self.held += _ENTRY + getsizeof(key) + parts
        return number

    def since(self, known: int) -> list[Key]:
        """Return the keys after the first `known`, in order."""
        return [*islice(reversed(self), len(self) - known)][::-1]


class _Columns:
    """Parts of columns of equal length, joined at the end.

    Args:
        columns: how many.
        args: whether to keep a column of arguments as well.
        shared: equal arguments are one object, and a writer encodes them once.
    """

    _ROW = 0
    """The most bytes of memory that a row takes until it is drawn or summed up."""

    def __init__(self, columns: int, args: bool = False, shared: bool = False) -> None:
        self._parts: list[list[npt.NDArray[np.generic]]] = [[] for _ in range(columns)]
        self._args: list[Args] | None = [] if args else None
        self._rows = self._kept = 0
        self._each, self._byte = (640, 4) if shared else (56, 1)

    @property
    def held(self) -> int:
        """The most bytes of memory that the rows take."""
        return self._ROW * self._rows + self._kept

    def _add(self, *columns: Sequence[int] | npt.NDArray[np.generic]) -> None:
        self._rows += len(columns[0])
        for parts, column in zip(self._parts, columns, strict=True):
            parts.append(column if isinstance(column, np.ndarray) else np.array(column, dtype=np.int32))

    def _keep(self, count: int, args: Sequence[Args] | None) -> None:
        if self._args is None:
            return
        self._args.extend([None] * count if args is None else args)
        distinct = {each for each in set(args or ()) if each is not None}
        self._kept += self._each * len(distinct) + self._byte * sum(map(len, distinct))

    def _joined(self, column: int, dtype: type[Number]) -> npt.NDArray[Number]:
        parts = self._parts[column]
        joined = np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)
        parts.clear()
        return joined

    def _times(self, column: int) -> Times:
        return self._joined(column, np.int64)

    def _indices(self, column: int) -> Indices:
        return self._joined(column, np.int32)


class SliceColumns(_Columns):
    """Slices while they are read. Times are on the reader's clock until `built`."""

    _ROW = 240

    def __init__(self, args: bool, shared: bool = False) -> None:
        super().__init__(5, args, shared)

    def add(
        self,
        start: Times,
        duration: Times,
        name: Sequence[int] | Indices,
        category: Sequence[int] | Indices,
        track: Sequence[int] | Indices,
        *,
        args: Sequence[Args] | None = None,
    ) -> None:
        """Add some slices; without `args` they have none."""
        self._add(start, duration, name, category, track)
        self._keep(len(start), args)

    def built(self, shift_ns: int) -> Slices:
        """Return all slices, `shift_ns` later."""
        start, duration = self._times(0) + shift_ns, self._times(1)
        return Slices(start, duration, self._indices(2), self._indices(3), self._indices(4), self._args)


class InstantColumns(_Columns):
    """Instants while they are read."""

    _ROW = 100

    def __init__(self, args: bool, shared: bool = False) -> None:
        super().__init__(4, args, shared)

    def add(
        self,
        time: Times,
        name: Sequence[int] | Indices,
        category: Sequence[int],
        track: Sequence[int],
        *,
        args: Sequence[Args] | None = None,
    ) -> None:
        """Add some instants; without `args` they have none."""
        self._add(time, name, category, track)
        self._keep(len(time), args)

    def built(self, shift_ns: int) -> Instants:
        """Return all instants, `shift_ns` later."""
        time = self._times(0) + shift_ns
        return Instants(time, self._indices(1), self._indices(2), self._indices(3), self._args)


class CounterColumns(_Columns):
    """Values of counters while they are read."""

    _ROW = 100

    def __init__(self) -> None:
        super().__init__(3)

    def add(self, time: Times, value: npt.NDArray[np.float64], track: Sequence[int] | Indices) -> None:
        """Take some values."""
        self._add(time, value, track)

    def built(self, shift_ns: int) -> Counters:
        """Return all values, `shift_ns` later."""
        time = self._times(0) + shift_ns
        return Counters(time, self._joined(1, np.float64), self._indices(2))


class FlowColumns(_Columns):
    """Ends of arrows while they are read: arrow, time, place, and whether the arrow starts,
    continues or ends there.

    `built` connects the ends.
    """

    BEGIN, STEP, END = range(3)
    _ROW = 160

    def __init__(self) -> None:
        super().__init__(5)
        self.unpaired = 0
        """Ends without a start and starts without an end. A capture that starts or ends in between
        leaves them.
        """

    def add(
        self,
        time: Times,
        place: Indices,
        arrow: npt.NDArray[np.int64],
        category: Indices,
        phase: Indices,
    ) -> None:
        """Add some ends; those with one `arrow` belong together."""
        self._add(time, place, arrow, category, phase)

    def built(self, shift_ns: int, tracks: Callable[[Indices, Times, Flags], Indices]) -> Flows:
        """Return all arrows, `shift_ns` later. Each step and end comes from the latest start or
        step of its arrow before it.

        Args:
            shift_ns: added to the times.
            tracks: returns the track of each end of an arrow, from its place, its shifted time, and whether it is an end.
        """
        time, place, arrow = self._times(0) + shift_ns, self._indices(1), self._times(2)
        category, phase = self._indices(3), self._indices(4)
        track = tracks(place, time, phase == self.END)
        pairs = self._pairs(time, arrow, phase)
        if pairs is not None:
            begin, end = pairs
            self.unpaired = len(time) - len(np.unique(begin)) - len(end)
            return Flows(time[begin], track[begin], time[end], track[end], category[end])
        order = np.lexsort((phase, time, arrow))
        time, track, arrow, category, phase = (
            time[order],
            track[order],
            arrow[order],
            category[order],
            phase[order],
        )
        # the latest start or step at or before each place; it is of the same arrow, or there is none
        every = np.arange(len(time))
        leaving = np.maximum.accumulate(np.where(phase != self.END, every, -1)) if len(time) else every
        before = np.where(phase == self.END, leaving, np.concatenate((leaving[:1] * 0 - 1, leaving[:-1])))
        to = np.flatnonzero((phase != self.BEGIN) & (before >= 0) & (arrow[before] == arrow))
        origin = before[to]
        self.unpaired = int(np.count_nonzero(phase != self.BEGIN)) - len(to)
        left = np.zeros(len(time), np.bool_)
        left[origin] = True
        self.unpaired += int(np.count_nonzero((phase == self.BEGIN) & ~left))
        return Flows(time[origin], track[origin], time[to], track[to], category[to])

    def _pairs(
        self, time: Times, arrow: npt.NDArray[np.int64], phase: Indices
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]] | None:
        """Return the start and the end of each arrow in less time and memory; None if an arrow has several starts or a step in between."""
        if (phase == self.STEP).any():
            return None
        begins, ends = np.flatnonzero(phase == self.BEGIN), np.flatnonzero(phase == self.END)
        if not len(begins):
            return begins[:0], ends[:0]
        begins = begins[np.argsort(arrow[begins], kind="stable")]
        ends = ends[np.argsort(arrow[ends], kind="stable")]
        known = arrow[begins]
        if (known[1:] == known[:-1]).any():
            return None
        at = np.minimum(np.searchsorted(known, arrow[ends]), len(known) - 1)
        paired = (known[at] == arrow[ends]) & (time[begins[at]] <= time[ends])
        return begins[at[paired]], ends[paired]

"""Collect the columns of a source while it is read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice
from sys import getsizeof
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from stepprof.analysis.timeline.distinct import distinct
from stepprof.analysis.timeline.model import Args, Counters, Flags, Flows, Indices, Instants, Slices, Times

Key = TypeVar("Key", bound=Hashable)
Column = Sequence[float] | npt.NDArray[Any]
_ENTRY = 110
"""Bytes of an entry of a dictionary, with its number."""


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
    """Parts of columns of equal length, joined at the end. Times are on the reader's clock until then.

    Args:
        args: whether to keep a column of arguments as well.
        shared: equal arguments are one object, and a writer encodes them once.
    """

    _TYPES: tuple[type[np.generic], ...] = ()
    """The type of each column; the first is a time."""
    _ROW = 0
    """The most bytes of memory that a row takes until it is drawn or summed up."""

    def __init__(self, args: bool = False, shared: bool = False) -> None:
        self._parts: list[list[npt.NDArray[Any]]] = [[] for _ in self._TYPES]
        self._args: list[Args] | None = [] if args else None
        self._rows = self._kept = 0
        self._each, self._byte = (640, 4) if shared else (56, 1)

    @property
    def held(self) -> int:
        """The most bytes of memory that the rows take."""
        return self._ROW * self._rows + self._kept

    def add(self, *columns: Column, args: Sequence[Args] | None = None) -> None:
        """Add some rows by their columns; without `args` they have none."""
        count = len(columns[0])
        self._rows += count
        for parts, column, type_ in zip(self._parts, columns, self._TYPES, strict=True):
            parts.append(np.asarray(column, type_))
        if self._args is not None:
            self._args.extend([None] * count if args is None else args)
            distinct = {each for each in set(args or ()) if each is not None}
            self._kept += self._each * len(distinct) + self._byte * sum(map(len, distinct))

    def _joined(self, shift_ns: int) -> Iterator[npt.NDArray[Any]]:
        """Yield each whole column, the times `shift_ns` later."""
        for number, (parts, type_) in enumerate(zip(self._parts, self._TYPES, strict=True)):
            joined = np.concatenate(parts) if parts else np.zeros(0, type_)
            parts.clear()
            yield joined if number else joined + shift_ns


class SliceColumns(_Columns):
    """Slices while they are read: start, duration, name, category and track."""

    _TYPES = (np.int64, np.int64, np.int32, np.int32, np.int32)
    _ROW = 240

    def built(self, shift_ns: int) -> Slices:
        """Return all slices, `shift_ns` later."""
        start, duration, name, category, track = self._joined(shift_ns)
        return Slices(start, duration, name, category, track, self._args)


class InstantColumns(_Columns):
    """Instants while they are read: time, name, category and track."""

    _TYPES = (np.int64, np.int32, np.int32, np.int32)
    _ROW = 100

    def built(self, shift_ns: int) -> Instants:
        """Return all instants, `shift_ns` later."""
        time, name, category, track = self._joined(shift_ns)
        return Instants(time, name, category, track, self._args)


class CounterColumns(_Columns):
    """Values of counters while they are read: time, value and track."""

    _TYPES = (np.int64, np.float64, np.int32)
    _ROW = 100

    def built(self, shift_ns: int) -> Counters:
        """Return all values, `shift_ns` later."""
        return Counters(*self._joined(shift_ns))


class FlowColumns(_Columns):
    """Ends of arrows while they are read: time, place, arrow, category, and whether the arrow starts,
    continues or ends there. Ends with one `arrow` belong together: `built` connects them.
    """

    BEGIN, STEP, END = range(3)
    _TYPES = (np.int64, np.int32, np.int64, np.int32, np.int32)
    _ROW = 160

    unpaired = 0
    """Ends without a start and starts without an end. A capture that starts or ends in between
    leaves them.
    """

    def built(
        self,
        shift_ns: int,
        tracks: Callable[[Indices, Times, Flags], Indices],
        on_device: Callable[[Indices], Flags] | None = None,
    ) -> Flows:
        """Return all arrows, `shift_ns` later. Each step and end comes from the latest start or
        step of its arrow before it.

        Args:
            shift_ns: added to the times.
            tracks: returns the track of each end of an arrow, from its place, its shifted time, and whether it is an end.
            on_device: returns whether each of some tracks is of a device; None: no end is taken for a start.
        """
        time, place, arrow, category, phase = self._joined(shift_ns)
        track = tracks(place, time, phase == self.END)
        pairs = self._pairs(time, arrow, phase)
        ends = phase == self.END
        if on_device is not None and (pairs is None or len(pairs[1]) < np.count_nonzero(ends)):
            # ROCm ends an arrow at the launch of a graph, where it begins
            launches = ends & ~np.isin(arrow, arrow[phase == self.BEGIN]) & ~on_device(track)
            if launches.any():
                phase = np.where(launches, self.BEGIN, phase)
                pairs = self._pairs(time, arrow, phase)
        if pairs is not None:
            begin, end = pairs
            self.unpaired = len(time) - len(distinct(begin)) - len(end)
            return Flows(time[begin], track[begin], time[end], track[end], category[end])
        order = np.lexsort((phase, time, arrow))
        time, track, arrow = time[order], track[order], arrow[order]
        category, phase = category[order], phase[order]
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

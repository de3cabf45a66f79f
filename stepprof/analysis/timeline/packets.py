"""Write records of different lengths into one buffer without a loop over them. Perfetto's packets
are built this way.

Only this module knows that numpy copies items of any size in one operation. So a view of the buffer
with an item at every byte accepts a row at every start of a record, at ten nanoseconds each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepprof.analysis.timeline.protobuf import Bytes

Places = npt.NDArray[np.int64]


def scatter(buffer: Bytes, at: Places, rows: Bytes) -> None:
    """Copy each row of a matrix to its place in the buffer; a single row to all places.

    >>> buffer = np.zeros(5, np.uint8)
    >>> scatter(buffer, np.array([3, 0]), np.array([[1, 2], [3, 4]], np.uint8))
    >>> buffer.tolist()
    [3, 4, 0, 1, 2]
    """
    width = rows.shape[1]
    if not len(rows) or not width:
        return
    if int(at.min()) < 0 or int(at.max()) + width > len(buffer):
        raise IndexError("a row does not fit into the buffer")
    items = np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer.data, strides=(1,))
    items[at] = np.ascontiguousarray(rows).view(f"V{width}").reshape(-1)


class Extras:
    """The variable part of records of equal length: texts from a table, and rows of fixed width,
    any number for each record.

    Args:
        count: records.
    """

    def __init__(self, count: int) -> None:
        self.lengths = np.zeros(count, np.int64)
        self._texts: list[tuple[Places, Sequence[bytes]]] = []
        self._rows: list[tuple[Places, Bytes]] = []

    def add_texts(self, codes: Places, table: Sequence[bytes]) -> None:
        """For each record the number of a text in the table."""
        sizes = np.fromiter(map(len, table), np.int64, len(table))
        self.lengths += sizes[codes]
        self._texts.append((codes, table))

    def add_rows(self, record: Places, rows: Bytes) -> None:
        """For each row the number of its record, in ascending order."""
        np.add.at(self.lengths, record, rows.shape[1])
        self._rows.append((record, rows))

    def write(self, buffer: Bytes, at: Places) -> None:
        """Copy the variable parts to their places."""
        at = at.copy()
        for codes, table in self._texts:
            order = np.argsort(codes, kind="stable")
            used, first = np.unique(codes[order], return_index=True)
            for code, members in zip(used.tolist(), np.split(order, first[1:]), strict=True):
                text = table[code]
                if text:
                    scatter(buffer, at[members], np.frombuffer(text, np.uint8).reshape(1, -1))
                    at[members] += len(text)
        for record, rows in self._rows:
            first = np.searchsorted(record, record, side="left")
            scatter(buffer, at[record] + (np.arange(len(record)) - first) * rows.shape[1], rows)
            np.add.at(at, record, rows.shape[1])

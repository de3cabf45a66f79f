"""A table that speaks the Arrow C stream interface, and reads its rows when a consumer asks for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepprof.analysis.data.schema import Column, Columns
from stepprof.config.validators import nearest
from stepprof.errors import ConfigError
from stepprof.formatting import install

if TYPE_CHECKING:
    import pyarrow

__all__ = ["BATCH_ROWS", "Batch", "Rows", "Table", "Warn", "require_arrow"]

Batch = Mapping[str, Any]
"""Some rows by column: a numpy array, a list, a tuple of indices and the strings that they mean, or one
value for all rows.
"""
Rows = Callable[[frozenset[str]], Iterable[tuple[int, Batch]]]
"""Yields batches with their number of rows; the argument names the columns that are wanted."""
Warn = Callable[[str, str], None]
"""Receives a file and a problem of it."""
BATCH_ROWS = 1 << 16
"""Rows that are read before a batch is made of them."""


def require_arrow() -> None:
    """Raise ConfigError if pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"tables of a run need pyarrow, which is not installed: {install('data')}"
        ) from error


class Table:
    """A table of a run. Its rows are read anew each time they are asked for.

    Everything that takes the Arrow C stream interface takes it: ``polars.DataFrame(table)``,
    ``pandas.DataFrame.from_arrow(table)``, ``pyarrow.table(table)``, and the name of the variable
    in a query of DuckDB.

    >>> import stepprof
    >>> run = stepprof.open_run("stepprof-runs/demo-1")  # doctest: +SKIP
    >>> duckdb.sql("from spans select name, sum(duration_ns) / 1e9 group by name")  # doctest: +SKIP
    """

    def __init__(self, columns: Columns, rows: Rows) -> None:
        self._columns, self._rows = columns, rows

    def __repr__(self) -> str:
        return f"<table {self.name}: {', '.join(self._columns.names)}>"

    @property
    def name(self) -> str:
        """The name of the table."""
        return self._columns.table

    @property
    def columns(self) -> tuple[Column, ...]:
        """Its columns, each with name, type, unit and meaning."""
        return self._columns.columns

    def select(self, *names: str) -> Table:
        """Return the table with these columns only. The others are not read.

        Raises:
            ConfigError: there is no such column.
        """
        known = {column.name: column for column in self.columns}
        for name in names:
            if name not in known:
                raise ConfigError(f'column "{name}": not in {self.name}{nearest(name, list(known))}')
        chosen = Columns(self.name, self._columns.text, tuple(known[name] for name in names))
        return Table(chosen, self._rows)

    def reader(self) -> pyarrow.RecordBatchReader:
        """Return a reader of record batches, which holds a part of the rows at a time."""
        import pyarrow

        schema = self._schema()
        rows = self._rows(frozenset(self._columns.names))
        return pyarrow.RecordBatchReader.from_batches(schema, self._batches(schema, rows))

    def __arrow_c_schema__(self) -> object:
        """Return the schema as a capsule."""
        return self._schema().__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows as a capsule with a stream."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def _schema(self) -> pyarrow.Schema:
        import pyarrow

        fields = [
            pyarrow.field(
                column.name, _type(column), metadata={"description": column.text, "unit": column.unit}
            )
            for column in self.columns
        ]
        about = {"stepprof": json.dumps({"table": self.name, "description": self._columns.text})}
        return pyarrow.schema(fields, metadata=about)

    def _batches(
        self, schema: pyarrow.Schema, rows: Iterable[tuple[int, Batch]]
    ) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        for count, batch in rows:
            if count:
                arrays = [_array(batch[column.name], column, count) for column in self.columns]
                yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _type(column: Column) -> pyarrow.DataType:
    import pyarrow

    if column.type == "category":
        return pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    return pyarrow.type_for_alias(column.type)


def _array(value: Any, column: Column, count: int) -> pyarrow.Array:
    """Return a column. Numpy arrays are used without a copy."""
    import numpy as np
    import pyarrow

    kind = _type(column)
    if value is None:
        return pyarrow.nulls(count, kind)
    if isinstance(value, np.ndarray):
        return pyarrow.array(value, kind)
    if isinstance(value, tuple):
        indices, strings = value
        return pyarrow.DictionaryArray.from_arrays(pyarrow.array(indices, pyarrow.int32()), _strings(strings))
    if isinstance(value, list):
        if column.type == "category":
            return _strings(value).dictionary_encode()
        return _strings(value) if column.type == "string" else pyarrow.array(value, kind)
    if column.type == "category":
        return _array((np.zeros(count, np.int32), [value]), column, count)
    return pyarrow.array(np.full(count, value), kind)


def _strings(values: Sequence[str | bytes | None]) -> pyarrow.Array:
    """Return strings. In those of a damaged file, invalid UTF-8 becomes U+FFFD."""
    import pyarrow

    try:
        return pyarrow.array(values, pyarrow.string())
    except (UnicodeEncodeError, pyarrow.ArrowInvalid):
        return pyarrow.array([_utf8(value) for value in values], pyarrow.string())


def _utf8(value: str | bytes | None) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if value is None else value.encode("utf-8", "replace").decode()

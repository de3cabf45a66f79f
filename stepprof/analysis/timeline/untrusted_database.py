"""Open an SQLite database that another user may have made, for reading.

A schema can define values and rows without end in a few bytes: views, virtual tables, generated
columns, pages that several tables share. So only tables with nothing but stored rows are read, and
length, work and time are limited.
"""

from __future__ import annotations

import math
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

from stepprof.host import real_time
from stepprof.host.plain_files import open_plain
from stepprof.interrupts import ignored

_LOOK = 1_000_000
_WORK, _WORK_PER_BYTE = 50_000_000, 100
"""The most SQLite instructions for all queries of a file. A row of 50 bytes takes about 40."""
_SECONDS, _BYTES_PER_SECOND = 300.0, 1 << 20
"""The longest time for all queries of a file."""
_LONGEST_VALUE = 1 << 20
"""The most bytes of a row: names and shapes have some hundred."""
_COMPUTED_COLUMNS = (2, 3)
"""Values of `hidden` in `PRAGMA table_xinfo` of generated columns."""


def open_database(
    path: Path, wanted: frozenset[str], text: Callable[[bytes], object], findings: list[str]
) -> tuple[sqlite3.Connection, frozenset[str]]:
    """Open a database read-only: nothing is written next to it, and a writer is not waited for.

    Args:
        path: a plain file.
        wanted: names of the tables that may be read.
        text: decodes the strings.
        findings: receives a sentence for each wanted table that is refused.

    Returns:
        The connection, and the wanted tables that may be read.

    Raises:
        OSError: no plain file, or it cannot be read.
        sqlite3.Error: no database, or it was replaced meanwhile.
    """
    with open_plain(path) as file:
        found = os.fstat(file.fileno())
        before = _times_open(found)
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            _bound(connection, found.st_size)
            connection.text_factory = text
            tables = _plain_tables(connection, wanted, findings)
            # SQLite opens files by their name alone: it must have opened the one that was checked
            if _times_open(found) <= before or not os.path.samestat(found, path.lstat()):
                raise sqlite3.DatabaseError("the file was replaced while it was opened")
        except BaseException:
            connection.close()
            raise
    return connection, tables


def _times_open(found: os.stat_result) -> float:
    """Return how many descriptors of this process have a file open; "not a number" without /proc, which compares as False."""
    count = 0
    with ignored(OSError):
        for entry in os.scandir("/proc/self/fd"):
            with ignored(OSError):  # the descriptor of this search, or one that was closed meanwhile
                count += os.path.samestat(found, os.fstat(int(entry.name)))
        return count
    return math.nan


def _bound(connection: sqlite3.Connection, size: int) -> None:
    """Stop queries that take longer than a file of this size needs: pages of a table may be shared."""
    left = (_WORK + _WORK_PER_BYTE * size) // _LOOK
    deadline = real_time.monotonic() + _SECONDS + size / _BYTES_PER_SECOND

    def is_over() -> bool:
        nonlocal left
        left -= 1
        return left < 0 or real_time.monotonic() > deadline

    connection.set_progress_handler(is_over, _LOOK)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    if sys.version_info >= (3, 11):
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)


def _plain_tables(
    connection: sqlite3.Connection, wanted: frozenset[str], findings: list[str]
) -> frozenset[str]:
    """Return the tables of a database that hold nothing but rows. A view, a virtual table or a generated
    column can compute endless values: a finding names the table that has one.
    """
    plain: set[str] = set()
    refused: set[str] = set()
    if sqlite3.sqlite_version_info >= (3, 37):
        kinds = connection.execute(
            "SELECT name, type FROM pragma_table_list WHERE schema = 'main'"
        ).fetchall()
    else:  # what the schema says must be read as text
        kinds = connection.execute(
            "SELECT name, CASE WHEN sql LIKE 'CREATE TABLE %' THEN type ELSE 'other' END FROM sqlite_master "
            "WHERE sql NOT LIKE 'CREATE INDEX %' AND sql NOT LIKE 'CREATE UNIQUE INDEX %'"
        ).fetchall()
        if any(kind != "table" for _, kind in kinds):
            raise sqlite3.DatabaseError("it has a view, a virtual table or a trigger")
    for name, kind in kinds:
        table = name.upper()  # SQLite compares names without regard to case
        if table not in wanted:
            continue
        columns = connection.execute("SELECT hidden FROM pragma_table_xinfo(?)", (name,))
        if kind == "table" and not any(hidden in _COMPUTED_COLUMNS for (hidden,) in columns):
            plain.add(table)
        else:
            refused.add(table)
    if refused:
        findings.append(f"computes its table {', '.join(sorted(refused))}: that is not read")
    return frozenset(plain - refused)

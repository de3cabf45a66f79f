"""Read torch_npu's databases (``ascend_pytorch_profiler*.db``, msprof's ``msprof_*.db``) as the
events of its trace_view.json.

Only this module knows the tables. Their times are nanoseconds since 1970 by the host's clock, names
are numbers of STRING_IDS, and a ``globalTid`` is a process and a thread in one number. msprof
writes the tables of the device and of CANN, and torch_npu adds those of the host to the same file.
The recording determines which of them exist.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from stepprof.analysis.timeline.event import Event
from stepprof.analysis.timeline.inflate import Limits
from stepprof.analysis.timeline.npu import COMMUNICATION, HARDWARE
from stepprof.analysis.timeline.untrusted_database import open_database
from stepprof.analysis.timeline.utf8 import Utf8

_BATCH = 8192
_QUEUE, _PYTHON = 50002, 50003
_COLLECTOR, _CANN, _GROUPS, _DEVICES = -1, -2, -3, -10
"""Ids of rows of the JSON that are not processes. They count down over several devices."""
_NO_CONNECTION = 4294967295
_NAME_BYTES = 1 << 28
"""The most characters of all names together."""


def _query(table: str, numbers: str, names: str = "") -> str:
    """Return a query whose `numbers` are integers: a column of SQLite may contain any type."""
    columns = ", ".join(
        f"COALESCE(CAST({name} AS INTEGER), 0)" for name in ("startNs", "endNs", *numbers.split())
    )
    return f"SELECT {', '.join([columns, *names.split()])} FROM {table} WHERE startNs IS NOT NULL AND endNs IS NOT NULL"  # noqa: S608 - table and column names are constants of this module


_HOST = _query("PYTORCH_API", "globalTid type", "name sequenceNumber fwdThreadId inputDtypes inputShapes")
_CALLS = _query("CANN_API", "globalTid", "name type")
_RANGES = _query("MSTX_EVENTS", "globalTid", "message")
_COLLECTIONS = _query("GC_RECORD", "globalTid")
_TASKS = _query("TASK", "deviceId streamId", "globalTaskId connectionId taskType")
_COMMUNICATION = _query("COMMUNICATION_OP", "", "opName groupName")
_COMPUTED = "SELECT globalTaskId, name, opType, inputShapes FROM COMPUTE_TASK_INFO"
_ARROWS = """
SELECT CAST(a.startNs AS INTEGER), CAST(a.globalTid AS INTEGER), CAST(t.startNs AS INTEGER), CAST(t.deviceId AS INTEGER), CAST(t.streamId AS INTEGER) FROM PYTORCH_API a
JOIN CONNECTION_IDS c ON c.id = a.connectionId JOIN TASK t ON t.connectionId = c.connectionId
WHERE a.type = 50001 AND t.connectionId NOT IN (-1, 4294967295) AND a.startNs + t.startNs + a.globalTid + t.deviceId + t.streamId IS NOT NULL
"""


_TABLES = frozenset(
    {
        *("STRING_IDS", "ENUM_API_TYPE", "META_DATA", "HOST_INFO", "RANK_DEVICE_MAP", "CONNECTION_IDS"),
        *("PYTORCH_API", "CANN_API", "MSTX_EVENTS", "GC_RECORD", "TASK", "COMPUTE_TASK_INFO"),
        *("COMMUNICATION_OP", "COMMUNICATION_TASK_INFO", "COMMUNICATION_SCHEDULE_TASK_INFO"),
    }
)
"""The tables that are read."""


@dataclass(slots=True)
class DatabaseStream:
    """A database as batches of events, as `TraceStream` yields those of a JSON.

    Problems are in the findings; nothing is raised.

    Args:
        path: the file.
        limits: limits for reading it.
    """

    path: Path
    limits: Limits | None = None
    header: dict[str, object] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    whole: bool = True
    """Whether all of its rows were read."""
    utf8: Utf8 = field(default_factory=Utf8)

    def head(self) -> None:
        """Read the facts that the recording states about itself."""
        with _Opened(self) as tables:
            self._head(tables)

    def __iter__(self) -> Iterator[list[Event]]:
        """Yield the batches; callable once."""
        with _Opened(self) as tables:
            self._head(tables)
            yield from tables.batches()
        self.findings += self.utf8.finding()

    def _head(self, tables: _Opened) -> None:
        """Store the facts under the keys that torch writes."""
        for (host,) in tables.rows("SELECT hostName FROM HOST_INFO", optional=True):
            self.header["host_name"] = host
        for (rank,) in tables.rows("SELECT rankId FROM RANK_DEVICE_MAP WHERE rankId >= 0", optional=True):
            self.header["distributedInfo"] = {"rank": rank}
        for name, value in tables.rows("SELECT name, value FROM META_DATA", optional=True):
            if name == "stepprof":
                try:
                    self.header["stepprof"] = msgspec.json.decode(value)
                except (msgspec.DecodeError, TypeError):
                    self.findings.append("its stepprof entry in META_DATA is not JSON and was ignored")


class _Opened:
    """Return the tables of a file, opened read-only: nothing is written next to it, and a writer is
    not waited for.
    """

    def __init__(self, stream: DatabaseStream) -> None:
        self._stream = stream
        self._findings = stream.findings
        self._path = stream.path
        self._connection: sqlite3.Connection | None = None
        self._there: frozenset[str] = frozenset()
        self._names: dict[object, str] = {}

    def __enter__(self) -> _Opened:
        known = len(self._findings)
        try:
            self._connection, self._there = open_database(
                self._path, _TABLES, self._stream.utf8.text, self._findings
            )
            self._stream.whole &= len(self._findings) == known  # a finding names a table that is refused
        except sqlite3.Error as error:
            self._stream.whole = False
            self._findings.append(f"is not a readable database: {error}")
        except OSError as error:
            self._stream.whole = False
            self._findings.append(f"cannot be read: {error.strerror or error}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def rows(self, query: str, *, optional: bool = False) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query; none if one of its tables is missing or damaged."""
        table = query.partition(" FROM ")[2].split()[0]
        if self._connection is None or table not in self._there:
            return
        try:
            yield from self._connection.execute(query)
        except sqlite3.Error as error:
            if not optional:
                self._stream.whole = False
                self._findings.append(f"its table {table} cannot be read to its end: {error}")

    def batches(self) -> Iterator[list[Event]]:
        """Yield the events of each table, and the names of their rows."""
        self._read_names()
        for make in (self._host, self._cann, self._ranges, self._collections, self._device, self._groups, self._arrows):  # fmt: skip
            yield from _in_batches(make())

    def _read_names(self) -> None:
        left = _NAME_BYTES
        for number, value in self.rows("SELECT id, value FROM STRING_IDS"):
            name = "" if value is None else str(value)
            left -= len(name)
            if left < 0:
                self._stream.whole = False
                self._findings.append(f"has more than {_NAME_BYTES} characters of names: the rest is ignored")
                return
            self._names[number] = name

    def _name(self, number: object, otherwise: str = "?") -> str:
        return self._names.get(number) or otherwise

    def _host(self) -> Iterator[Event]:
        for number, (start, end, where, kind, *rest) in enumerate(self.rows(_HOST)):
            name, sequence, forward, types, shapes = rest
            if not number:
                yield _called("process", "Python", where >> 32)
            arguments = {
                "Sequence number": sequence if sequence != -1 else None,
                "Fwd thread id": forward or None,
                "Input type": self._names.get(types),
                "Input Dims": self._names.get(shapes),
            }
            text = self._name(name)
            category = "python_function" if kind == _PYTHON else "cpu_op"
            if kind == _QUEUE:
                category = "dequeue" if text.startswith("Dequeue") else "enqueue"
            yield _complete(text, category, _thread(where), (start, end), arguments)

    def _cann(self) -> Iterator[Event]:
        levels = dict(self.rows("SELECT id, name FROM ENUM_API_TYPE"))
        named: set[int] = set()
        for start, end, where, name, kind in self.rows(_CALLS):
            process, thread = _thread(where)
            if not named:
                yield _called("process", "CANN", _CANN)
            if thread not in named:
                named.add(thread)
                yield _called("thread", f"Thread {thread}", _CANN, thread)
            arguments = {"level": levels.get(kind), "pid": process}
            yield _complete(self._name(name), "", (_CANN, thread), (start, end), arguments)

    def _ranges(self) -> Iterator[Event]:
        for start, end, where, message in self.rows(_RANGES):
            process, thread = _thread(where)
            if end <= start:
                yield Event("i", "mstx", self._name(message), process, thread, _us(start))
            else:
                yield _complete(self._name(message), "mstx", (process, thread), (start, end))

    def _collections(self) -> Iterator[Event]:
        for number, (start, end, where) in enumerate(self.rows(_COLLECTIONS)):
            if not number:
                yield _called("process", "Python GC", _COLLECTOR)
            yield _complete("GC", "GC", (_COLLECTOR, _thread(where)[1]), (start, end))

    def _device(self) -> Iterator[Event]:
        computed = {number: rest for number, *rest in self.rows(_COMPUTED)}
        others: dict[object, object] = {}
        for table in ("COMMUNICATION_TASK_INFO", "COMMUNICATION_SCHEDULE_TASK_INFO"):
            others |= dict(self.rows(f"SELECT globalTaskId, name FROM {table}"))  # noqa: S608 - table and column names are constants of this module
        marked = dict(self.rows("SELECT connectionId, message FROM MSTX_EVENTS"))
        named: set[object] = set()
        for start, end, device, stream, number, connection, kind in self.rows(_TASKS):
            if device not in named:
                named.add(device)
                yield _called("process", HARDWARE, _DEVICES - device)
            if (device, stream) not in named:
                named.add((device, stream))
                yield _called("thread", f"Stream {stream}", _DEVICES - device, stream)
            type_, shapes = None, None
            text = others.get(number)
            category = "" if text is None else COMMUNICATION
            if number in computed:
                category = ""
                text, type_, shapes = computed[number]
            elif text is None and connection not in (-1, _NO_CONNECTION):
                text = marked.get(connection)
            arguments = {
                "Task Type": self._names.get(kind),
                "Op Type": self._names.get(type_),
                "Input Shapes": self._names.get(shapes),
            }
            name = self._name(text, self._name(kind))
            yield _complete(name, category, (_DEVICES - device, stream), (start, end), arguments)

    def _groups(self) -> Iterator[Event]:
        named: dict[object, int] = {}
        for start, end, name, group in self.rows(_COMMUNICATION):
            if not named:
                yield _called("process", "Communication", _GROUPS)
            if group not in named:
                named[group] = len(named)
                yield _called("thread", f"Group {self._name(group)}", _GROUPS, named[group])
            yield _complete(self._name(name), "", (_GROUPS, named[group]), (start, end))

    def _arrows(self) -> Iterator[Event]:
        if not {"CONNECTION_IDS", "TASK"} <= self._there:
            return
        for number, (start, where, end, device, stream) in enumerate(self.rows(_ARROWS)):
            process, thread = _thread(where)
            yield Event("s", "async_npu", "torch_to_npu", process, thread, _us(start), id=number)
            yield Event("f", "async_npu", "torch_to_npu", _DEVICES - device, stream, _us(end), id=number)


def _in_batches(events: Iterator[Event]) -> Iterator[list[Event]]:
    batch: list[Event] = []
    for event in events:
        batch.append(event)
        if len(batch) >= _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _complete(
    name: str,
    category: str,
    place: tuple[int, int],
    times: tuple[int, int],
    arguments: Mapping[str, object] | None = None,
) -> Event:
    start, end = times
    known = {key: value for key, value in (arguments or {}).items() if value is not None}
    args = Raw(_encode(known)) if known else Raw(b"")
    return Event("X", category, name, *place, _us(start), _us(end - start), args=args)


def _called(what: str, name: str, process: int, thread: int = 0) -> Event:
    return Event("M", "", f"{what}_name", process, thread, args=Raw(_encode({"name": name})))


def _thread(where: int) -> tuple[int, int]:
    return where >> 32, where & 0xFFFFFFFF


def _us(ns: int) -> str:
    """Format times as the JSON does: as text if a float is not exact."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


_encode: Callable[[object], bytes] = msgspec.json.encode

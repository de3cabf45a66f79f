"""The in-memory span recorder and the files it is drained to.

A span is a plain tuple appended to a deque: appending is atomic in CPython, so that no lock is taken where the training loop
runs. One background thread (``stepprof.background``) drains the deque into rolling JSON-lines files. The deque is bounded: where
the writer cannot keep up (a dead disk) the oldest spans are dropped and counted, and the count is logged and written.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol

from stepprof import current
from stepprof.clock import Anchor
from stepprof.current import WAKE_AT
from stepprof.log import logger

if TYPE_CHECKING:
    from stepprof.current import Scope

__all__ = ["MAX_PENDING", "Hook", "Recorder", "Span", "SpanFile", "plain"]

MAX_PENDING = 262_144
"""Spans held in memory at most: about 64 MB at ~250 bytes each (benchmarks, "memory")."""

ROLL_BYTES = 64 * 2**20
"""A file of spans is followed by the next one at this size."""

Span = tuple[str, str, int, int, int, "int | None", "Scope | None", "Mapping[str, object] | None", bool]
"""(name, kind, start, end [perf_counter_ns], native thread id, task id, scope, attributes, error)."""


class Hook(Protocol):
    """What looks at regions while a selected window is open: puts them into the capture, applies caps, counts a schedule."""

    def enter(self, name: str, lane: bool) -> object: ...

    def exit(self, token: object, span: Span) -> None: ...


class _Thread(threading.local):
    """The operating system's thread id, asked once per thread: the system call costs more than a span."""

    def __init__(self) -> None:
        self.id = threading.get_native_id()


class Recorder:
    """Spans of this process, from any thread or task, while a session is on.

    ``hook`` is None but while a selected window is open. ``keep`` False (``spans = false``) records nothing for the files.
    """

    __slots__ = ("_dropped", "current_task", "hook", "is_compiling", "keep", "pending", "running_loop", "thread", "wake")

    def __init__(self, *, keep: bool = True, wake: Callable[[], None] = lambda: None) -> None:
        self.pending: deque[Span] = deque()
        self.keep = keep
        self.hook: Hook | None = None
        self.wake = wake
        self.thread = _Thread()
        self.running_loop = asyncio._get_running_loop
        self.current_task = asyncio.current_task
        self.is_compiling: Callable[[], bool] = current.is_compiling
        self._dropped = itertools.count()
        self.look_for_torch()

    def look_for_torch(self) -> None:
        """Take torch's own check as soon as torch is there: a third of the price of looking it up at each region."""
        compiler = getattr(sys.modules.get("torch"), "compiler", None)
        if compiler is not None:
            # both fold to True under Dynamo; the first is a bare `return False` otherwise
            self.is_compiling = getattr(compiler, "is_dynamo_compiling", None) or compiler.is_compiling

    def task_id(self) -> int | None:
        """What the current asyncio task is called in spans, or None outside of one."""
        loop = self.running_loop()
        return None if loop is None else id(self.current_task(loop))

    def add(self, name: str, kind: str, start: int, end: int, attributes: Mapping[str, object] | None, error: bool = False) -> Span:
        """Record what is over; ``start`` and ``end`` are ``perf_counter_ns`` readings."""
        where = current.scope.get() or current.cell.scope
        span: Span = (name, kind, start, end, self.thread.id, self.task_id(), where, attributes, error)
        if self.keep:
            self.pending.append(span)
            if len(self.pending) > WAKE_AT:
                self.relieve()
        return span

    def relieve(self) -> None:
        """Many spans wait: wake the writer, and past the bound drop the oldest."""
        self.wake()
        if len(self.pending) > MAX_PENDING:
            try:
                self.pending.popleft()
            except IndexError:
                return
            next(self._dropped)

    def instant(self, name: str, kind: str, attributes: Mapping[str, object] | None) -> None:
        """Record a point in time, and put it into the running capture."""
        now = perf_counter_ns()
        span = self.add(name, kind, now, now, attributes)
        hook = self.hook
        if hook is not None:
            hook.exit(None, span)

    def take_dropped(self) -> int:
        """How many spans were dropped since the last call."""
        dropped = next(self._dropped)
        self._dropped = itertools.count()
        return dropped


def plain(value: object, depth: int = 3) -> Any:
    """An attribute's value as JSON can hold it.

    Only plain values are looked into. Of anything else the type's name is kept: the text of a tensor on a device would make the
    host wait for the device.

    >>> plain({"loss": float("nan"), "n": (1, 2), "x": object()})
    {'loss': 'nan', 'n': [1, 2], 'x': '<object>'}
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value if value.__class__ in (bool, int, str, type(None)) else plain(_base(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if depth:
        if isinstance(value, Mapping):
            return {str(key): plain(item, depth - 1) for key, item in itertools.islice(value.items(), 64)}
        if isinstance(value, (list, tuple)):
            return [plain(item, depth - 1) for item in itertools.islice(value, 64)]
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        return plain(value.item(), 0)
    return f"<{type(value).__name__}>"


def _base(value: object) -> object:
    """An enum or other subclass of a plain type, as that type."""
    for kind in (bool, int, str):
        if isinstance(value, kind):
            return kind.__str__(value) if kind is str else kind(value)
    return None


class SpanFile:
    """Rolling files of one process: a header line, then one JSON object per span; only whole lines are ever written.

    Args:
        new_path: makes the next file, empty and ours alone, and returns its path.
        header: what the first line says beside the anchor.
    """

    def __init__(self, new_path: Callable[[], Path], header: Mapping[str, object], *, roll_bytes: int = ROLL_BYTES) -> None:
        self._new_path = new_path
        self._header = dict(header)
        self._roll_bytes = roll_bytes
        self._fd: int | None = None
        self._size = 0
        self._offset = 0
        self._heads: dict[object, str] = {}
        self._failed = False
        self.lost = 0

    def drain(self, recorder: Recorder) -> int:
        """Write what waits; returns how many spans were written. A file system that refuses costs the spans, never an exception."""
        pending = recorder.pending
        written = 0
        while pending:
            batch: list[Span] = []
            try:
                for _ in range(4096):
                    batch.append(pending.popleft())
            except IndexError:
                pass
            written += self._write(batch)
        dropped = recorder.take_dropped()
        if dropped:
            self.lost += dropped
            logger.warning("spans dropped", spans=dropped, reason="more regions than the writer can keep up with")
            self._write([("stepprof.dropped", "counter", perf_counter_ns(), perf_counter_ns(), 0, None, None, {"value": dropped}, False)])
        return written

    def _write(self, batch: list[Span]) -> int:
        if not batch:
            return 0
        try:
            self._ready()
            data = "".join(map(self._line, batch)).encode("utf-8", "surrogatepass")
            self._put(data)
        except OSError as error:
            self.lost += len(batch)
            if not self._failed:
                logger.warning("spans cannot be written", reason=str(error), spans=len(batch))
            self._failed = True
            self.close()
            return 0
        self._failed = False
        return len(batch)

    def _put(self, data: bytes) -> None:
        if self._fd is None:
            raise OSError("the file of spans is closed")
        view = memoryview(data)
        while view:
            count = os.write(self._fd, view)
            view = view[count:]
            self._size += count

    def _ready(self) -> None:
        """An open file that still has a name and room."""
        if self._fd is not None:
            if self._size < self._roll_bytes and os.fstat(self._fd).st_nlink:
                return
            self.close()
        anchor = Anchor.take()
        self._offset = anchor.unix_ns - anchor.monotonic_ns
        self._fd = os.open(self._new_path(), os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0))
        self._size = 0
        header = {"schema_version": 1, "kind": "spans", **self._header, "anchor": anchor.to_dict()}
        self._put(json.dumps(header).encode() + b"\n")

    def _line(self, span: Span) -> str:
        name, kind, start, end, thread, task, where, attributes, error = span
        key = (name, kind, thread, task, where if where is None else where[:2])
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) > 4096:
                self._heads.clear()
            step, role = (None, None) if where is None else where[:2]
            fields = {"name": name, "kind": kind, "thread": thread, "task": task, "step": step, "role": role}
            head = self._heads[key] = json.dumps(fields)[:-1] + ', "start": '
        line = f'{head}{start + self._offset}, "dur": {end - start}'
        bound = None if where is None else where[2]
        if bound or attributes:
            attrs = plain({**(bound or {}), **(attributes or {})})
            if kind == "counter":
                line += f', "value": {json.dumps(attrs.pop("value", None))}'
            if attrs:
                line += f', "attrs": {json.dumps(attrs)}'
        return line + (', "error": true}\n' if error else "}\n")

    def close(self) -> None:
        """Close the file; the next span opens another one."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

"""The in-memory span recorder and the files it is drained to.

A span is a plain tuple appended to a deque: appending is atomic in CPython, so that no lock is taken where the training loop
runs. One background thread (``stepprof.recording.background_worker``) drains the deque into rolling JSON-lines files. The deque is bounded: where
the writer cannot keep up (a dead disk) the oldest spans are dropped and counted, and the count is logged and written.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Protocol

from stepprof.host.clock import Anchor
from stepprof.instrument import context
from stepprof.instrument.attributes import LONGEST_NAME, plain, short_name
from stepprof.instrument.context import SIMPLE, WAKE_AT
from stepprof.log import logger

if TYPE_CHECKING:
    from stepprof.instrument.context import Scope

__all__ = ["MAX_PENDING", "Hook", "Recorder", "Span", "SpanFile"]

MAX_PENDING = 262_144
"""Spans held in memory at most: about 64 MB at ~250 bytes each (benchmarks, "memory")."""

BATCH = 4096
"""Spans that one write takes."""

ROLL_BYTES = 64 * 2**20
"""A file of spans is followed by the next one at this size."""

Span = tuple[str, str, int, int, int, "int | None", "Scope | None", "Mapping[str, object] | None", bool]
"""(name, kind, start, end [perf_counter_ns], native thread id, task id, scope, attributes, error)."""


class Hook(Protocol):
    """What looks at regions while a selected window is open: puts them into the capture, applies caps, counts a schedule."""

    def enter(self, name: str, lane: bool) -> object:
        """A region begins; ``lane``: it may be suspended, so that it is not put on the thread's stack."""
        ...

    def exit(self, token: object, span: Span) -> None:
        """A region ends, with what `enter` returned; or a window, a mark, a counter."""
        ...


class _Thread(threading.local):
    """The operating system's thread id, asked once per thread: the system call costs more than a span."""

    def __init__(self) -> None:
        self.id = threading.get_native_id()


def _nothing_late(token: object) -> None:
    """No capture, so that nothing of one is left open."""


class Recorder:
    """Spans of this process, from any thread or task, while a session is on.

    ``hook`` is None but while a selected window is open; ``late`` is given what it answered to a region that ends after that. ``keep`` False (``spans = false``) records nothing for the files. What
    started before it ``began`` is not of its session.
    """

    __slots__ = (
        "_dropped",
        "began",
        "current_task",
        "first_cut",
        "hook",
        "is_compiling",
        "keep",
        "late",
        "pending",
        "running_loop",
        "thread",
        "wake",
    )

    def __init__(self, *, keep: bool = True, wake: Callable[[], None] = lambda: None) -> None:
        self.began = perf_counter_ns()
        self.pending: deque[Span] = deque()
        self.keep = keep
        self.hook: Hook | None = None
        self.late: Callable[[object], object] = _nothing_late
        self.wake = wake
        self.thread = _Thread()
        self.running_loop = asyncio._get_running_loop
        self.current_task = asyncio.current_task
        self.is_compiling: Callable[[], bool] = self._ask_torch
        self._dropped = itertools.count()
        self.first_cut: str | None = None
        self.look_for_torch()

    def look_for_torch(self) -> None:
        """Take torch's own check as soon as torch is there: a third of the price of looking it up at each region."""
        compiler = getattr(sys.modules.get("torch"), "compiler", None)
        # both fold to True under Dynamo; the first is a bare `return False` otherwise
        for name in ("is_dynamo_compiling", "is_compiling"):
            if hasattr(compiler, name):
                self.is_compiling = getattr(compiler, name)
                return

    def _ask_torch(self) -> bool:
        """Whether Dynamo is tracing this call, as long as torch was not there yet. Dynamo itself sees no more than the first True."""
        if "torch" not in sys.modules:
            return False
        if context.is_compiling():
            return True
        self.look_for_torch()
        return False

    @staticmethod
    def plain(attributes: Mapping[str, object]) -> dict[str, object]:
        """Attributes as they are kept until they are written: nothing of the training loop's is held."""
        return {str.__str__(name): plain(value) for name, value in attributes.items()}

    def cut(self, name: str) -> str:
        """Return a name that is too long at a bounded length; the writer logs the first one."""
        name = short_name(name)
        if self.first_cut is None:
            self.first_cut = name
        return name

    def task_id(self) -> int | None:
        """What the current asyncio task is called in spans, or None outside of one."""
        loop = self.running_loop()
        return None if loop is None else id(self.current_task(loop))

    def where(self) -> Scope | None:
        """The scope that a span which ended here and now would be in."""
        return context.holding(context.scope.get(), self.thread.id, self.task_id()) or context.cell.scope

    def relieve(self) -> None:
        """Many spans wait: wake the writer, and past the bound drop the oldest."""
        self.wake()
        if len(self.pending) > MAX_PENDING:
            try:
                self.pending.popleft()
            except IndexError:
                return
            next(self._dropped)

    def instant(self, name: str, kind: str, attributes: Mapping[str, object]) -> None:
        """Record a point in time, and put it into the running capture."""
        now = perf_counter_ns()
        for value in attributes.values():
            if value.__class__ not in SIMPLE:
                attributes = self.plain(attributes)
                break
        if name.__class__ is not str:
            name = str(plain(name))
        if len(name) > LONGEST_NAME:
            name = self.cut(name)
        thread = self.thread.id
        loop = self.running_loop()
        task = None if loop is None else id(self.current_task(loop))
        where = context.scope.get()
        if where is not None and not where._start:
            where = context.holding(where, thread, task)
        span: Span = (name, kind, now, now, thread, task, where or context.cell.scope, attributes, False)
        if self.keep:
            self.pending.append(span)
            if len(self.pending) > WAKE_AT:
                self.relieve()
        hook = self.hook
        if hook is not None:
            hook.exit(None, span)

    def take_dropped(self) -> int:
        """How many spans were dropped since the last call."""
        dropped = next(self._dropped)
        self._dropped = itertools.count()
        return dropped


class SpanFile:
    """Rolling files of one process: a header line, then one JSON object per span; only whole lines are ever written.

    Args:
        new_path: makes the next file, empty and ours alone, and returns its path.
        header: what the first line says beside the anchor.
    """

    def __init__(
        self, new_path: Callable[[], Path], header: Mapping[str, object], *, roll_bytes: int = ROLL_BYTES
    ) -> None:
        self._new_path = new_path
        self._header = dict(header)
        self._roll_bytes = roll_bytes
        self._fd: int | None = None
        self._size = 0
        self._offset = 0
        self._heads: dict[object, str] = {}
        self._failed = False
        self._is_outdated = False
        self._untold = 0
        self._cut_told = False
        self.lost = 0
        self.observers: list[Callable[[Sequence[Span]], object]] = []
        """Each is called with every batch of finished spans, on the thread that drains; one that fails is told once and called no more."""

    def restate(self, **header: object) -> None:
        """Say something else in the header: the next spans go into a new file. From any thread."""
        self._header = {**self._header, **header}
        self._is_outdated = True

    def drain(self, recorder: Recorder) -> int:
        """Write what waits; returns how many spans were written. A file system that refuses costs the spans, never an exception."""
        pending = recorder.pending
        written = 0
        waiting = len(pending)  # what comes meanwhile is the next round's: this one has to end
        while waiting > 0 and pending:
            batch: list[Span] = []
            try:
                for _ in range(BATCH):
                    batch.append(pending.popleft())
            except IndexError:
                pass
            waiting -= BATCH
            self._show(batch)
            written += self._write(batch)
        if recorder.first_cut is not None and not self._cut_told:
            self._cut_told = True
            logger.warning(
                "region.name_cut",
                name=f"{recorder.first_cut[:80]}…",
                reason=f"a name has more than {LONGEST_NAME} characters; this is logged once",
            )
        dropped = recorder.take_dropped()
        if dropped:
            self._lose(dropped)
            logger.warning(
                "spans dropped", spans=dropped, reason="more regions than the writer can keep up with"
            )
        if self._untold and not self._failed:
            now = perf_counter_ns()
            untold, self._untold = self._untold, 0
            if not self._write(
                [("stepprof.dropped", "counter", now, now, 0, None, None, {"value": untold}, False)]
            ):
                self._untold += untold - 1
                self.lost -= 1
        return written

    def _show(self, batch: Sequence[Span]) -> None:
        for observer in list(self.observers):
            try:
                observer(batch)
            except Exception as error:  # noqa: BLE001 - what looks on must not keep spans from being written
                self.observers.remove(observer)
                logger.warning("spans no longer observed", observer=repr(observer), reason=repr(error))

    def _lose(self, spans: int) -> None:
        self.lost += spans
        self._untold += spans

    def _write(self, batch: list[Span]) -> int:
        if not batch:
            return 0
        try:
            self._ready()  # first: times are by the anchor of the file they go to
            self._put("".join(map(self._line, batch)).encode("utf-8", "surrogatepass"))
        except OSError as error:
            self._lose(len(batch))
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
            if not self._is_outdated and self._size < self._roll_bytes and os.fstat(self._fd).st_nlink:
                return
            self.close()
        self._is_outdated = False
        anchor = Anchor.take()
        self._offset = anchor.unix_ns - anchor.monotonic_ns
        path = self._new_path()
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0))
        self._size = 0
        header = {"schema_version": 1, "kind": "spans", **self._header, "anchor": anchor.to_dict()}
        try:
            self._put(json.dumps(header).encode() + b"\n")
        except OSError:
            # a full disk takes a name but no byte: one empty file a second would be the next mischief
            if path.is_file() and not self._size:
                path.unlink()
            raise

    def _line(self, span: Span) -> str:
        name, kind, start, end, thread, task, where, attributes, error = span
        step, role, bound = (None, None, None) if where is None else (where.number, where.role, where.bound)
        key = (name, kind, thread, task, step, role)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) > 4096:
                self._heads.clear()
            fields = {"name": name, "kind": kind, "thread": thread, "task": task, "step": step, "role": role}
            head = self._heads[key] = json.dumps(fields)[:-1] + ', "start": '
        line = f'{head}{start + self._offset}, "dur": {end - start}'
        if bound or attributes:
            attrs = {key: plain(value) for key, value in {**(bound or {}), **(attributes or {})}.items()}
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

"""Write finished spans to rolling files on the background thread, one JSON object per line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepprof.host.clock import Anchor
from stepprof.host.real_time import perf_counter_ns
from stepprof.instrument.attributes import plain
from stepprof.instrument.scope import LONGEST_NAME, Measured
from stepprof.interrupts import ours
from stepprof.log import logger

if TYPE_CHECKING:
    from stepprof.instrument.scope import Span
    from stepprof.instrument.span_recorder import Recorder

BATCH = 4096
"""Maximum spans of one write."""

ROLL_BYTES = 64 * 2**20
"""At this size a new file begins."""


class SpanFile:
    """Rolling files of one process: a header line, then one JSON object per span. Only whole lines are
    written.

    Args:
        new_path: creates the next file, empty and ours alone, and returns its path.
        header: the header's fields besides the anchor.
        anchor: places all spans in time, as it places the windows of the process.
    """

    def __init__(
        self,
        new_path: Callable[[], Path],
        header: Mapping[str, object],
        anchor: Anchor,
        *,
        roll_bytes: int = ROLL_BYTES,
    ) -> None:
        self._new_path = new_path
        self._header = {**header, "anchor": anchor.to_dict()}
        self._roll_bytes = roll_bytes
        self._fd: int | None = None
        self._size = 0
        self._offset = anchor.unix_ns - anchor.monotonic_ns
        self._heads: dict[object, str] = {}
        self._failed = False
        self._is_outdated = False
        self._untold = 0
        self._cut_reported = False
        self.lost = 0
        self.observers: list[Callable[[Sequence[Span]], object]] = []
        """Called with every batch of finished spans, on the draining thread. A reader that fails is logged once and removed."""

    def restate(self, **header: object) -> None:
        """Change the header: the next spans go into a new file. Any thread may call this."""
        self._header = {**self._header, **header}
        self._is_outdated = True

    def drain(self, recorder: Recorder) -> int:
        """Write the pending spans; return their number. Spans that cannot be written are lost. Never raise."""
        pending = recorder.pending
        written = 0
        waiting = len(pending)  # later spans belong to the next round: this one must end
        while waiting > 0 and pending:
            batch: list[Span] = []
            try:
                for _ in range(BATCH):
                    batch.append(pending.popleft())
            except ours(IndexError):
                pass
            waiting -= BATCH
            self._show(batch)
            written += self._write(batch)
        if recorder.first_cut is not None and not self._cut_reported:
            self._cut_reported = True
            logger.warning(
                "region.name_cut",
                name=f"{recorder.first_cut[:80]}…",
                reason=f"a name has more than {LONGEST_NAME} characters; this is logged once",
            )
        dropped = recorder.take_dropped()
        if dropped:
            self._lose(dropped)
            logger.warning(
                "spans.dropped", spans=dropped, reason="more regions than the writer can keep up with"
            )
        if self._untold and not self._failed:
            now = perf_counter_ns()
            only_references, self._untold = self._untold, 0
            if not self._write(
                [("stepprof.dropped", "counter", now, now, 0, None, None, {"value": only_references}, False)]
            ):
                self._untold += only_references - 1
                self.lost -= 1
        return written

    def _show(self, batch: Sequence[Span]) -> None:
        for observer in list(self.observers):
            try:
                observer(batch)
            except ours(Exception) as error:  # an observer must not prevent the writing of spans
                self.observers.remove(observer)
                logger.warning("spans.observer_failed", observer=repr(observer), reason=repr(error))

    def _lose(self, spans: int) -> None:
        self.lost += spans
        self._untold += spans

    def write(self, spans: list[Span]) -> int:
        """Write spans that no observer sees, on the draining thread; return their number."""
        return sum(self._write(spans[at : at + BATCH]) for at in range(0, len(spans), BATCH))

    def _write(self, batch: list[Span]) -> int:
        if not batch:
            return 0
        try:
            self._ready()
            self._put("".join(map(self._line, batch)).encode("utf-8", "surrogatepass"))
        except ours(OSError) as error:
            self._lose(len(batch))
            if not self._failed:
                logger.warning("spans.not_written", reason=str(error), spans=len(batch))
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
        """Open the next file, unless the open one still exists and has room."""
        if self._fd is not None:
            if not self._is_outdated and self._size < self._roll_bytes and os.fstat(self._fd).st_nlink:
                return
            self.close()
        self._is_outdated = False
        path = self._new_path()
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0))
        self._size = 0
        header = {"schema_version": 1, "kind": "spans", **self._header}
        try:
            self._put(json.dumps(header).encode() + b"\n")
        except ours(OSError):
            # a full disk accepts a name but no byte: do not create an empty file each second
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
        if span.__class__ is Measured:
            line += f', "cpu": {span.cpu_ns}'
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

"""Several backends as one: ``backend = ["torch", "memory"]``.

They start in the configured order and stop in the reverse order, each into a file of its own. If
one fails to start, none starts: a capture never contains less than was requested without saying so.
If one fails to stop or export, the window is `partial` with the reason, and the others are
unaffected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from stepprof.backends.base import Backend, Busy, Export, ExportCall, ExportError, Incomplete, Mark
from stepprof.errors import BackendError
from stepprof.interrupts import is_interrupt, ours
from stepprof.log import logger
from stepprof.run.model import Annotation, Artifact, Capture, Window

_CAREFUL = ("inline", "thread", "fork")
"""The modes of an export, the most careful one first."""


class Together(Backend):
    """Backends that record side by side.

    If only one of them marks regions (`Backend.marks`), a region costs no more than with that one alone.
    """

    def __init__(self, parts: Sequence[Backend]) -> None:
        self.parts = tuple(parts)
        self._name = "+".join(part.name for part in self.parts)
        self._marking = tuple(part for part in self.parts if part.marks)
        self._mark = self._marking[0].mark if len(self._marking) == 1 else self._mark_all

    @property
    def name(self) -> str:
        """Their names, joined by a plus."""
        return self._name

    @property
    def waits(self) -> bool:
        """Whether the export of one of them waits for another process."""
        return any(part.waits for part in self.parts)

    def mark(self, name: str) -> Mark | None:
        """Return the ranges of a synchronous region."""
        return self._mark(name)

    def mark_lane(self, name: str) -> Mark | None:
        """Return the ranges of a region that may be suspended."""
        return self._mark_by(lambda part: part.mark_lane(name))

    def mark_window(self, window: Window) -> Mark | None:
        """Return the ranges of a window that joins the capture."""
        return self._mark_by(lambda part: part.mark_window(window))

    def may_leave(self, mark: Any) -> bool:
        """Whether the calling thread can end every range of this mark."""
        pairs = [(self._marking[0], mark)] if len(self._marking) == 1 else mark.pairs
        return all(part.may_leave(inner) for part, inner in pairs)

    @property
    def thread_bound(self) -> bool:
        """Whether one of them has to be stopped by the thread that started it."""
        return any(part.thread_bound for part in self.parts)

    def probe(self) -> str | None:
        """Return why the first backend that is unusable here cannot record."""
        for part in self.parts:
            reason = part.probe()
            if reason is not None:
                return f"{part.name}: {reason}"
        return None

    def keep_near(self, folder: Path) -> None:
        """Pass the run directory to each."""
        for part in self.parts:
            part.keep_near(folder)

    def arm(self) -> None:
        """Arm each backend. If one fails, none stays armed."""
        self._each(lambda part: part.arm())

    def start(self, capture: Capture) -> None:
        """Start each backend. If one fails, none records."""
        self._each(lambda part: part.start(capture))

    def stop(self, capture: Capture, annotations: Sequence[Annotation]) -> ExportCall:
        """Stop each backend, the last one first. Raises BackendError if none could be stopped."""
        exports: list[tuple[str, ExportCall]] = []
        failures: list[str] = []
        for part in reversed(self.parts):
            try:
                exports.insert(0, (part.name, part.stop(capture, annotations)))
            except ours(Exception) as error:  # the recordings of the others must not be lost
                failures.insert(0, _failure_text(part.name, error))
                _abort(part)
        if not exports:
            raise BackendError("; ".join(failures))
        return _Exports(exports, failures)

    def abort(self) -> None:
        """Abort each backend."""
        for part in reversed(self.parts):
            _abort(part)

    def leave(self, marks: Sequence[Mark]) -> None:
        """End the open ranges of each backend, before any backend stops."""
        failure: Exception | None = None
        for part in reversed(self._marking):
            mine = list(marks) if len(self._marking) == 1 else [m for mark in marks for m in _of(part, mark)]
            try:
                part.leave(mine)
            except ours(Exception) as error:  # the others' ranges are still open
                failure = failure or error
        if failure is not None:
            raise failure

    def bytes_so_far(self) -> int | None:
        """Return the sum of the known sizes."""
        known = [size for part in self.parts if (size := part.bytes_so_far()) is not None]
        return sum(known) if known else None

    def export_mode(self) -> str:
        """Return the most careful mode among the backends: one job exports them all."""
        modes = [part.export_mode() for part in self.parts]
        return next((mode for mode in _CAREFUL if mode in modes), "inline")

    def _each(self, act: Callable[[Backend], None]) -> None:
        done: list[Backend] = []
        for part in self.parts:
            done.append(part)
            try:
                act(part)
            except BaseException as error:  # a KeyboardInterrupt must not leave half of them recording either
                for other in reversed(done):
                    _abort(other)
                if is_interrupt(error):
                    raise
                kind = Busy if isinstance(error, Busy) else BackendError
                raise kind(_failure_text(part.name, error)) from error

    def _mark_by(self, make: Callable[[Backend], Mark | None]) -> Mark | None:
        found = [(part, mark) for part in self._marking if (mark := make(part)) is not None]
        if len(self._marking) == 1:
            return found[0][1] if found else None
        return _Marks(found) if found else None

    def _mark_all(self, name: str) -> Mark | None:
        found = [(part, mark) for part in self._marking if (mark := part.mark(name)) is not None]
        return _Marks(found) if found else None


class _Marks:
    """One range of each backend, entered in order and left in reverse order."""

    __slots__ = ("_entered", "pairs")

    def __init__(self, pairs: Sequence[tuple[Backend, Mark]]) -> None:
        self.pairs = tuple(pairs)
        self._entered = 0

    def __enter__(self) -> _Marks:
        try:
            for _, mark in self.pairs:
                mark.__enter__()
                self._entered += 1
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        failure: BaseException | None = None
        while self._entered:
            self._entered -= 1
            try:
                self.pairs[self._entered][1].__exit__(kind, error, traceback)
            except BaseException as problem:  # noqa: BLE001 - the ranges around it are still open
                failure = failure or problem
        if failure is not None:
            raise failure


class _Exports(Export):
    """The exports of one capture, one after another. A failed export does not affect the others."""

    def __init__(self, exports: Sequence[tuple[str, ExportCall]], failures: Sequence[str]) -> None:
        self._exports = exports
        self._failures = failures

    def __call__(self) -> tuple[Artifact, ...]:
        """Write every artifact. Raises Incomplete if some are missing, ExportError if all are."""
        artifacts: list[Artifact] = []
        failures = list(self._failures)
        whole = 0
        for name, export in self._exports:
            try:
                artifacts += export()
                whole += 1
            except ours(Exception) as error:  # as above
                artifacts += getattr(error, "artifacts", ())
                whole += isinstance(error, Incomplete)
                failures.append(_failure_text(name, error))
        if failures:
            kind = Incomplete if whole else ExportError
            raise kind("; ".join(failures), tuple(artifacts))
        return tuple(artifacts)

    def hurry(self, until: float) -> None:
        """Limit the wait for external tools: the process is about to end."""
        for _, export in self._exports:
            if isinstance(export, Export):
                export.hurry(until)

    def discard(self) -> None:
        """Remove the files of an interrupted export."""
        for _, export in self._exports:
            if isinstance(export, Export):
                export.discard()


def _of(part: Backend, mark: Any) -> list[Mark]:
    return [inner for owner, inner in mark.pairs if owner is part]


def _abort(part: Backend) -> None:
    try:
        part.abort()
    except ours(Exception) as error:  # a violation of its contract; the others must be left too
        logger.warning("abort.failed", backend=part.name, reason=_failure_text(part.name, error))


def _failure_text(name: str, error: BaseException) -> str:
    """Return which backend failed, and why. The message of its own errors says both."""
    text = str(error) if isinstance(error, BackendError) else f"{type(error).__name__}: {error}"
    return f"{name}: {text}"

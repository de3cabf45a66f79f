"""One capture of the local target, from its start to the end of its export.

It belongs to the window that opened it; windows entered meanwhile join it. It knows which fragments of which steps have to tell
of it, and how each window ended, but nothing of when to start or stop: that is `stepprof.recording.local_target`'s.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepprof.errors import BackendError
from stepprof.instrument.attributes import plain
from stepprof.log import logger
from stepprof.run.entry_times import Timing
from stepprof.run.manifest_writer import (
    EXPORTING,
    LOST,
    Fragment,
    Origin,
    as_entries,
    describe_error,
    window_entry,
)
from stepprof.run.model import Annotation, Capture, Outcome
from stepprof.run.reasons import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepprof.backends.base import Backend, Mark
    from stepprof.instrument.scope import Span
    from stepprof.recording.export.job import ExportResult
    from stepprof.recording.window_handle import Ticket
    from stepprof.run.schema import WindowEntry

__all__ = ["MAX_ANNOTATIONS", "Ending", "LocalCapture"]

MAX_ANNOTATIONS = 200_000
"""Spans that one capture writes into its artifact at most; the files of spans have the rest."""


def _quietly(act: Callable[[], object]) -> None:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - a range without a beginning or an end must not cost the capture
        logger.warning("region.not_marked", reason=describe_error(error))


@dataclass(frozen=True, slots=True)
class Ending:
    """How a capture ends: what it will be when its export succeeds, why it is not whole, which cap ended it."""

    status: Outcome
    code: ReasonCode | None = None
    error: str | None = None
    capped_by: str | None = None


class LocalCapture:
    """A running or finished capture.

    Args:
        opener: the ticket of the window that it belongs to.
        region: the name of the region that opened it, where one did.
    """

    def __init__(
        self,
        opener: Ticket,
        backend: Backend,
        origin: Origin,
        post: Callable[[Callable[[], object]], None],
        *,
        region: str | None = None,
    ) -> None:
        self.opener = opener
        self.policy = opener.policy
        self.window = opener.window
        self.backend = backend
        self.region = region
        self.thread = threading.get_ident()
        self.started = time.monotonic()
        self.open: set[Ticket] = set() if region else {opener}
        self.seen: dict[int, set[tuple[str | None, int]]] = {
            opener.window.step: {(opener.window.role, opener.window.occurrence)}
        }
        self.annotations: deque[Span] = deque(maxlen=MAX_ANNOTATIONS)
        self.marks: dict[int, Mark] = {}
        self.request: Ending | None = None
        self._ending: Ending | None = None
        self._last = opener
        """The window that went out last."""
        self.exported_beside = False
        """Its export was given to its job on the background thread, which holds nothing up."""
        self.submitting = threading.Lock()
        self.over = False
        self._sized = True
        self._origin = origin
        self._post = post
        self._fragments: dict[int, Fragment] = {}
        self.timing = Timing(time.perf_counter_ns()) if region else opener.timing
        self.record = self._tell(opener, "lost", self.timing)
        self._stopped_after = self.record
        """The entry right after whose end it was stopped."""
        if region:
            self.record.region = region
        self.values: Capture | None = None

    def _tell(self, ticket: Ticket, status: Outcome, timing: Timing) -> WindowEntry:
        """An entry for a window in the fragment of its step."""
        window = ticket.window
        fragment = self._fragments.get(window.step)
        if fragment is None:
            fragment = self._fragments[window.step] = Fragment(self._origin, window, self._post)
        record = window_entry(
            self._origin,
            window,
            timing,
            status=status,
            backend=self.backend.name,
            reason_code=ReasonCode.RECORDING,
            error=LOST,
        )
        fragment.windows.append(record)
        ticket.capture, ticket.record, ticket.fragment = self, record, fragment
        return record

    def owns(self, step: int) -> bool:
        """Whether it was opened for windows of this step; with ``join_steps`` for the whole run of steps."""
        return step == self.window.step or (
            self.policy.join_steps and step in self.seen and step in self.policy.steps
        )

    @property
    def held(self) -> bool:
        """Whether it is kept open between two steps of a run (``join_steps``)."""
        return self.policy.join_steps and not self.open and self.region is None

    def awaits(self, step: int) -> bool:
        """Whether a window of this step belongs to the run of steps so far, or goes on with it."""
        return step in self.seen or step - 1 in self.seen

    def bytes_so_far(self) -> int:
        """How large the artifact would be by now; 0 where that is not known."""
        if not self._sized:
            return 0
        try:
            return self.backend.bytes_so_far() or 0
        except Exception as error:  # noqa: BLE001 - asked five times a second: told once
            self._sized = False
            logger.warning("capture.size_unknown", backend=self.backend.name, reason=describe_error(error))
            return 0

    @property
    def fragment(self) -> Fragment:
        """The fragment of the opener's step."""
        return self._fragments[self.window.step]

    def claim(self) -> Capture:
        """Write the manifest ahead as lost, and say where the artifacts belong. Raises OSError."""
        claim = self.fragment.write_ahead()
        metadata = self._origin.metadata(self.window)
        if self.region:
            metadata["region"] = self.region
        self.values = Capture(window=self.window, folder=claim.folder, stem=claim.stem, metadata=metadata)
        return self.values

    def leave_marks(self) -> None:
        """Leave the regions that are still in progress (on other threads, or around the window), right before the stop."""
        may_leave = self.backend.may_leave
        marks = []
        for key in reversed(list(self.marks)):  # the regions' own threads take theirs out meanwhile
            mark = self.marks.get(key)
            if mark is not None and may_leave(mark) and self.marks.pop(key, None) is not None:
                marks.append(mark)
        if marks:
            _quietly(lambda: self.backend.leave(marks))

    def _mark(self, ticket: Ticket) -> None:
        """Enter the backend's range for a window that joins."""
        _quietly(lambda: self._enter_mark(ticket, self.backend.mark_window(ticket.window)))

    def _enter_mark(self, ticket: Ticket, mark: Mark | None) -> None:
        if mark is not None:
            mark.__enter__()
            self.marks[id(ticket)] = mark

    def join(self, ticket: Ticket) -> None:
        """A window comes in while the capture runs."""
        self.open.add(ticket)
        self.seen.setdefault(ticket.window.step, set()).add((ticket.window.role, ticket.window.occurrence))
        self._mark(ticket)
        record = self._tell(ticket, "joined", ticket.timing)
        record.update(reason_code=None, error=None)
        if self.values is not None:
            record.capture = {"step": self.window.step, "stem": self.values.stem}

    def begin(self) -> None:
        """The region that opened it begins, on this thread."""
        self.timing.begin(time.perf_counter_ns())
        self.record.update(**self.timing.keys(self._origin.anchor))

    def leave(self, ticket: Ticket) -> None:
        """A window goes out; whether the capture ends with it is not decided here."""
        self.open.discard(ticket)
        self._last = ticket
        mark = self.marks.pop(id(ticket), None)
        if mark is not None:
            _quietly(lambda: mark.__exit__(None, None, None))

    def annotate(self) -> list[Annotation]:
        """What the backend's stacks do not hold, with absolute times."""
        found = []
        for name, kind, start, end, thread, _task, where, attributes, error in list(self.annotations):
            place = {} if where is None else {"step": where.number, "role": where.role, **(where.bound or {})}
            values = {**place, **(attributes or {})}
            found.append(
                Annotation(
                    name=name,
                    kind=kind,
                    start_unix_ns=self._origin.unix_ns(start),
                    end_unix_ns=self._origin.unix_ns(end),
                    thread=thread,
                    attributes={key: plain(value) for key, value in values.items() if value is not None},
                    error=error,
                )
            )
        return found

    @property
    def place(self) -> Capture:
        """What the backend was given. Raises BackendError where nothing was claimed."""
        if self.values is None:
            raise BackendError("the capture has no place in the run directory")
        return self.values

    def cut(self, end_ns: int) -> list[Ticket]:
        """Nothing is recorded from now on. Returns the windows that are still open: their entries end here."""
        left = list(self.open)  # a copy: windows go out on other threads meanwhile
        for ticket in left:
            ticket.end(end_ns)
        if self.region:
            self._end_region(end_ns)
        elif self.opener not in left and self._last.record is not None:
            self._stopped_after = self._last.record
        return left

    def _end_region(self, end_ns: int) -> None:
        if self.timing.end(end_ns):
            self.record.update(**self.timing.keys(self._origin.anchor))

    def end(self, ending: Ending, left: list[Ticket]) -> None:
        """The stop is done. ``left`` are the windows that were open when it began."""
        self.over = True
        self._ending = ending
        self.record.update(reason_code=ReasonCode.EXPORTING, error=EXPORTING, capped_by=ending.capped_by)
        for ticket in left:
            record = ticket.record
            if (
                record is not None
                and record is not self.record
                and (self.region or not self.owns(ticket.window.step))
            ):
                what = f"the region {self.region}" if self.region else f"step {self.window.step}"
                record.update(
                    status="partial",
                    reason_code=ReasonCode.OUTLIVED_CAPTURE,
                    error=f"the window outlived its capture, which ended with {what}",
                )

    def fail(self, code: ReasonCode, error: str, status: Outcome = "failed") -> None:
        """The capture came to nothing; every window that relied on it says so."""
        self._fail(code, error, status)
        self.save()

    def _fail(self, code: ReasonCode, error: str, status: Outcome) -> None:
        self.over = True
        for fragment in self._fragments.values():
            for record in fragment.windows:
                record.update(status=status, pending=False, reason_code=code, error=error)
        if self.region:
            self._end_region(time.perf_counter_ns())

    def exported(self, result: ExportResult) -> bool:
        """The export job has ended; True where there is something to show for it."""
        exported = self._conclude(result)
        self.save(now=True)
        return exported

    def exported_later(self, result: ExportResult) -> None:
        """`exported`, on another thread."""
        self._post(lambda: self.exported(result))

    def _conclude(self, result: ExportResult) -> bool:
        self.record.export_seconds = round(result.seconds, 6)
        if not self.exported_beside:
            self.add_stall(result.stall_seconds)
        self.record.artifacts = as_entries(result.artifacts)
        if result.error is not None and result.outcome != "partial":
            self._fail(ReasonCode.EXPORT_FAILED, f"export: {result.error}", result.outcome)
            return False
        ending = self._ending or Ending("partial", ReasonCode.ENDED_EARLY, self.record.error)
        status, code, error = ending.status, ending.code, ending.error
        if result.error is not None:
            status, code = "partial", code or ReasonCode.EXPORT_FAILED
            error = "; ".join(filter(None, [error, f"export: {result.error}"]))
        self.record.update(status=status, pending=False, reason_code=code, error=error)
        return True

    def exported_in_child(self, result: ExportResult) -> None:
        """In the export's own process: the one that recorded may have died, and then no other process knows the file."""
        self._conclude(result)
        for fragment in self._fragments.values():
            fragment.write_in_child()

    def add_stall(self, seconds: float) -> None:
        """Count what its stop, or its export in place, held the training thread."""
        record = self._stopped_after
        record.stall_seconds = round((record.stall_seconds or 0.0) + seconds, 6)

    def save(self, *, now: bool = False) -> None:
        """Have every fragment written: soon, or on this thread."""
        for fragment in self._fragments.values():
            if now:
                fragment.write()
            else:
                fragment.save()

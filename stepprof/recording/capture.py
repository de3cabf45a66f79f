"""One capture of the local target, from its start to the end of its export.

It belongs to the window that opened it; windows entered meanwhile join it. It knows which manifest
fragments describe it and how each window ended. `stepprof.recording.local_target` decides when it
starts and stops.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepprof.errors import BackendError
from stepprof.host import real_time
from stepprof.host.process_identity import writer_identity
from stepprof.instrument.attributes import plain
from stepprof.interrupts import ours
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
from stepprof.run.schema import LONGEST_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepprof.backends.base import Backend, Mark
    from stepprof.instrument.scope import Span
    from stepprof.recording.export.job import ExportResult
    from stepprof.recording.window_handle import Ticket
    from stepprof.run.schema import WindowEntry

MAX_ANNOTATIONS = 200_000
"""Maximum number of spans that one capture writes into its artifact; the span files have all."""


def _quietly(act: Callable[[], object]) -> None:
    try:
        act()
    except ours(Exception) as error:  # a range without a begin or an end must not ruin the capture
        logger.warning("region.not_marked", reason=describe_error(error))


@dataclass(frozen=True, slots=True)
class Ending:
    """How a capture ends: its status if the export succeeds, why it is incomplete, which cap ended it."""

    status: Outcome
    code: ReasonCode | None = None
    error: str | None = None
    capped_by: str | None = None


class LocalCapture:
    """A running or finished capture.

    Args:
        opener: the ticket of the window that it belongs to.
        region: the name of the region that opened it, if one did.
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
        self.started = real_time.monotonic()
        self.open: set[Ticket] = set() if region else {opener}
        self.seen: dict[int, set[tuple[str | None, int]]] = {
            opener.window.step: {(opener.window.role, opener.window.occurrence)}
        }
        self.annotations: deque[Span] = deque(maxlen=MAX_ANNOTATIONS)
        self.marks: dict[int, Mark] = {}
        self.request: Ending | None = None
        self._ending: Ending | None = None
        self._last = opener
        """The window that exited last."""
        self.has_background_export = False
        """Whether the background thread submits its export, which delays no window."""
        self.submitting = threading.Lock()
        self.over = False
        self._sized = True
        self._origin = origin
        self._post = post
        self._fragments: dict[int, Fragment] = {}
        self.timing = Timing(real_time.perf_counter_ns()) if region else opener.timing
        self.record = self._entry_of(opener, "lost", self.timing)
        self._stopped_after = self.record
        """The entry after whose end the capture was stopped."""
        if region:
            self.record.region = region
        self.values: Capture | None = None

    def _entry_of(self, ticket: Ticket, status: Outcome, timing: Timing) -> WindowEntry:
        """Return an entry for a window in the fragment of its step."""
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
        """Return whether it was opened for windows of this step; with ``join_steps`` for the whole run of steps."""
        return step == self.window.step or (
            self.policy.join_steps and step in self.seen and step in self.policy.steps
        )

    @property
    def held(self) -> bool:
        """Return whether it is kept open between two steps of a run (``join_steps``)."""
        return self.policy.join_steps and not self.open and self.region is None

    def awaits(self, step: int) -> bool:
        """Return whether a window of this step belongs to the run of steps so far, or continues it."""
        return step in self.seen or step - 1 in self.seen

    def bytes_so_far(self) -> int:
        """Return the current size of the artifact; 0 if unknown."""
        if not self._sized:
            return 0
        try:
            return self.backend.bytes_so_far() or 0
        except ours(Exception) as error:  # checked five times a second: reported once
            self._sized = False
            logger.warning("capture.size_unknown", backend=self.backend.name, reason=describe_error(error))
            return 0

    @property
    def fragment(self) -> Fragment:
        """Return the fragment of the opener's step."""
        return self._fragments[self.window.step]

    def claim(self) -> Capture:
        """Write the manifest ahead as `lost`, and return where the artifacts belong. Raises OSError."""
        claim = self.fragment.write_ahead()
        metadata = self._origin.metadata(self.window)
        if self.region:
            metadata["region"] = self.region
        self.values = Capture(window=self.window, folder=claim.folder, stem=claim.stem, metadata=metadata)
        return self.values

    def close_regions(self) -> None:
        """Leave the open regions (on other threads, or around the window), right before the stop."""
        may_leave = self.backend.may_leave
        marks = []
        for key in reversed(list(self.marks)):  # the regions' own threads remove theirs meanwhile
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
        """Join a window that is entered while the capture runs."""
        self.open.add(ticket)
        self.seen.setdefault(ticket.window.step, set()).add((ticket.window.role, ticket.window.occurrence))
        self._mark(ticket)
        record = self._entry_of(ticket, "joined", ticket.timing)
        record.update(reason_code=None, error=None)
        if self.values is not None:
            record.capture = {"step": self.window.step, "stem": self.values.stem}

    def begin(self) -> None:
        """Begin the region that opened it, on this thread."""
        self.timing.begin(real_time.perf_counter_ns())
        self.record.update(**self.timing.keys(self._origin.anchor))

    def leave(self, ticket: Ticket) -> None:
        """Exit a window. Whether the capture ends with it is decided elsewhere."""
        self.open.discard(ticket)
        self._last = ticket
        mark = self.marks.pop(id(ticket), None)
        if mark is not None:
            _quietly(lambda: mark.__exit__(None, None, None))

    def annotate(self) -> list[Annotation]:
        """Return what the backend's stacks cannot hold, with absolute times."""
        found = []
        ahead = self.fragment.wall_ahead_ns
        for name, kind, start, end, thread, _task, where, attributes, error in list(self.annotations):
            place = {} if where is None else {"step": where.number, "role": where.role, **(where.bound or {})}
            values = {**place, **(attributes or {})}
            found.append(
                Annotation(
                    name=name,
                    kind=kind,
                    start_unix_ns=self._origin.unix_ns(start) + ahead,
                    end_unix_ns=self._origin.unix_ns(end) + ahead,
                    thread=thread,
                    attributes={key: plain(value) for key, value in values.items() if value is not None},
                    error=error,
                )
            )
        return found

    @property
    def place(self) -> Capture:
        """Return the place that was claimed for the backend. Raises BackendError if there is none."""
        if self.values is None:
            raise BackendError("the capture has no place in the run directory")
        return self.values

    def cut(self, end_ns: int) -> list[Ticket]:
        """Record nothing from now on. Return the windows that are still open; their entries end here."""
        left = list(self.open)  # a copy: other threads exit windows meanwhile
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
        """Note that the stop is done. ``left`` are the windows that were open when it began."""
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
        """Fail the capture, and every window that relied on it."""
        self._fail(code, error, status)
        self.save()

    def _fail(self, code: ReasonCode, error: str, status: Outcome) -> None:
        self.over = True
        for fragment in self._fragments.values():
            for record in fragment.windows:
                record.update(status=status, pending=False, reason_code=code, error=error)
        if self.region:
            self._end_region(real_time.perf_counter_ns())

    def exported(self, result: ExportResult) -> bool:
        """Note the result of the export job. Return whether there are artifacts. The thread that trains
        does not wait for the manifest.
        """
        exported = self._conclude(result)
        self.save(now=threading.get_ident() != self.thread)
        return exported

    def exported_later(self, result: ExportResult) -> None:
        """Run `exported` on another thread."""
        self._post(lambda: self.exported(result))

    def exporting_in_child(self, pid: int) -> None:
        """Note the export's own process: it may outlive this one, and then finishes the manifest."""
        for fragment in self._fragments.values():
            fragment.exporter = writer_identity(pid)
        self.save()

    def _conclude(self, result: ExportResult) -> bool:
        self.record.export_seconds = round(result.seconds, 6)
        options = self._options()
        for fragment in self._fragments.values():
            fragment.exporter = None
            for record in fragment.windows:
                record.options = options
        self.record.export_note = result.note
        if not self.has_background_export:
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

    def _options(self) -> dict[str, Any] | None:
        """Return the options that are not the defaults; None: they are too long for the manifest, as a plug-in's may be."""
        options: dict[str, Any] = plain(self.policy.changed_options())
        return options if len(str(options)) <= LONGEST_OPTIONS else None

    def exported_in_child(self, result: ExportResult) -> None:
        """Write the result from the export's own process: if the recording process has died, no other process knows the file."""
        self._conclude(result)
        for fragment in self._fragments.values():
            fragment.write_in_child()

    def add_stall(self, seconds: float) -> None:
        """Add the time for which its stop, or its export in place, delayed the training thread."""
        record = self._stopped_after
        record.stall_seconds = round((record.stall_seconds or 0.0) + seconds, 6)

    def save(self, *, now: bool = False) -> None:
        """Write every fragment: soon, or now on this thread."""
        for fragment in self._fragments.values():
            if now:
                fragment.write()
            else:
                fragment.save()

"""Pending exports after a stop: those to be submitted, those that run, and their results.

Between a stop and its export job, an interrupt or the end of the process could lose the capture. So
each capture is noted here first, and the first thread that arrives submits its job exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stepprof.interrupts import ours
from stepprof.log import bound, logger
from stepprof.recording.background_worker import is_background
from stepprof.run.manifest_writer import describe_error

if TYPE_CHECKING:
    from stepprof.backends.base import ExportCall
    from stepprof.recording.capture import LocalCapture
    from stepprof.recording.export.executor import Exporter
    from stepprof.recording.export.job import ExportResult
    from stepprof.run.model import Window


class Exports:
    """The exports of this process's captures.

    Args:
        exporter: runs the jobs.
        rank: of this process, for the log.
        label: returns the name of a capture for logs and ``state().pending_exports``.
        failed: called with the error of an export, for ``stepprof.state``.
        changed: called after each change that ``stepprof.state`` shows.
    """

    def __init__(
        self,
        exporter: Exporter,
        rank: int | str,
        label: Callable[[Window], str],
        failed: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        self.recorded: tuple[int, ...] = ()
        self.recorded_bytes = 0
        """The total size of this process's artifacts."""
        self._exporter = exporter
        self._rank = rank
        self._label = label
        self._tell_error = failed
        self._changed = changed
        self._pending: dict[LocalCapture, ExportCall] = {}
        self._running: dict[LocalCapture, str] = {}
        self._recorded: set[int] = set()

    @property
    def unsubmitted(self) -> bool:
        """Return whether a capture has no export job yet."""
        return bool(self._pending)

    @property
    def pending(self) -> tuple[str, ...]:
        """Return the labels of the jobs that have not ended."""
        return tuple(self._running.copy().values())

    def add_pending(self, capture: LocalCapture, export: ExportCall) -> None:
        """Note that the stop is done; the export is to be submitted."""
        self._pending[capture] = export

    def forget(self, capture: LocalCapture) -> None:
        """Forget a stop that failed."""
        self._pending.pop(capture, None)

    def submit_all(self) -> None:
        """Submit all remaining exports at the end: those of other threads, and those of interrupted callers."""
        for capture in list(self._pending):
            self.submit(capture)

    def submit(self, capture: LocalCapture) -> None:
        """Submit the export to its job."""
        with capture.submitting:  # a second thread waits here, and finds it done
            export = self._pending.get(capture)
            if export is None:
                return
            capture.has_background_export = is_background()
            label = self._running[capture] = self._label(capture.window)
            self._exporter.submit(
                label,
                export,
                _mode(capture),
                lambda result: self._ended(capture, result),
                in_child=capture.exported_in_child,
                on_child=capture.exporting_in_child,
            )
            self._pending.pop(capture, None)
        if capture in self._running:  # otherwise it has ended, and that was published
            self._changed()

    def _ended(self, capture: LocalCapture, result: ExportResult) -> None:
        with bound(capture.window.fields):
            self._note_result(capture, result)

    def _note_result(self, capture: LocalCapture, result: ExportResult) -> None:
        window = capture.window
        self._pending.pop(capture, None)
        self._running.pop(capture, None)
        try:
            exported = capture.exported(result)
        except (
            BaseException
        ):  # an interrupt right after an export in place: another thread updates the manifest
            capture.exported_later(result)
            raise
        if exported:
            self._recorded.add(window.step)
            self.recorded = tuple(sorted(self._recorded))
            self.recorded_bytes += sum(artifact.bytes for artifact in result.artifacts)
            logger.info(
                "export.finished",
                step=window.step,
                role=window.role,
                rank=self._rank,
                bytes=sum(artifact.bytes for artifact in result.artifacts),
                seconds=round(result.seconds, 3),
            )
        if result.error is not None:
            self._tell_error(f"export: {result.error}")
            where = {"step": window.step, "role": window.role, "rank": self._rank}
            if exported:
                logger.warning("export.incomplete", **where, reason=result.error)
            else:
                logger.warning("export.failed", **where, reason=result.error)
        self._changed()


def _mode(capture: LocalCapture) -> str:
    waits = capture.backend.waits
    if capture.policy.export != "auto":
        return "thread" if waits and capture.policy.export == "inline" else capture.policy.export
    if waits:
        return "thread"
    try:
        return capture.backend.export_mode()
    except ours(Exception) as error:  # the capture exists: exporting it in place is always possible
        logger.warning("export.in_place", backend=capture.backend.name, reason=describe_error(error))
        return "inline"

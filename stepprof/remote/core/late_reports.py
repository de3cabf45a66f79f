"""Wait for reports of engines that arrive after the stop was answered: nsys writes them some time later.

The engine is free meanwhile, and the training loop continues. The entry says `lost` until the report has arrived, which is true if the process ends before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from stepprof.backends.base import ExportError
from stepprof.host import real_time
from stepprof.log import logger
from stepprof.remote.core.late_files import naming
from stepprof.run.manifest_writer import as_entries, describe_error
from stepprof.run.reasons import ReasonCode

if TYPE_CHECKING:
    from stepprof.remote.base import Later
    from stepprof.remote.core.engine_capture import Recording

AWAITED = "the process ended before the engine's report had come"

MARGIN_SECONDS = 1.0
"""The time at the end that is reserved for writing the manifest."""


class Awaiting:
    """The pending reports of one engine. `changed` is called when a report becomes pending, and when it no longer is.
    Everything runs on stepprof's own loop.
    """

    def __init__(self, label: str, changed: Callable[[], object]) -> None:
        self._label = label
        self._changed = changed
        self._over = False
        self._pending: dict[asyncio.Task[None], tuple[str, Later]] = {}

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the pending reports, as ``state().pending_exports`` shows them."""
        return tuple(label for label, _ in self._pending.copy().values())

    def begin(self, recording: Recording, later: Later, partial: str | None) -> None:
        """Wait for the report of a window; `partial` is what it lacks even if everything arrives."""
        recording.record_outcome("lost", AWAITED, ReasonCode.REPORT_PENDING, pending=True)
        task = asyncio.get_running_loop().create_task(self._take(recording, later, partial))
        self._pending[task] = (f"{self._label} of step {recording.step}", later)
        task.add_done_callback(self._forget)
        self._changed()

    async def _take(self, recording: Recording, later: Later, partial: str | None) -> None:
        try:
            stopped = await later.wait()
        except ExportError as error:
            reason = await naming(str(error), recording.window)
            recording.disown(error.outcome, reason, ReasonCode.EXPORT_FAILED)
            logger.warning("engine.report_failed", target=self._label, step=recording.step, reason=str(error))
        except BaseException as error:  # noqa: BLE001 - a plug-in may raise anything; the manifest reports it
            if self._over:  # cancelled: the entry that was written ahead stays
                return
            reason = await naming(describe_error(error), recording.window)
            recording.disown("lost", reason, ReasonCode.EXPORT_FAILED)
        else:
            lacking = "; ".join(filter(None, [partial, stopped.partial])) or None
            recording.keep(as_entries(stopped.artifacts), lacking)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._pending.pop(task, None)
        self._changed()

    async def end(self, timeout: float) -> None:
        """Wait for pending reports when the run ends or the engine is detached; later ones are lost."""
        if not self._pending:
            return
        until = real_time.monotonic() + timeout - min(MARGIN_SECONDS, timeout / 2)
        for _, later in self._pending.values():
            later.hurry(until)
        _, late = await asyncio.wait(self._pending.copy(), timeout=timeout)
        self._over = True
        for task in late:
            task.cancel()

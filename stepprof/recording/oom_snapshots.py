"""Write a snapshot of CUDA's allocator whenever it runs out of memory: ``[memory] on_oom = true``.

torch calls an observer before it raises, without a lock of the allocator. An observer cannot be
removed, so there is one per process; it asks which session wants a snapshot now. It must not raise:
its exception would replace the user's OutOfMemoryError. The file is written at once, because many
processes do not survive. The number of snapshots is limited: some programs retry with ever smaller
batches.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepprof.host import real_time
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.run.entry_times import Timing
from stepprof.run.manifest_writer import Fragment, Origin, as_entries, describe_error, window_entry
from stepprof.run.model import Capture, Window
from stepprof.run.reasons import ReasonCode

if TYPE_CHECKING:
    from stepprof.backends.memory.api import MemoryApi
    from stepprof.config.config import Policy
    from stepprof.config.options.memory import MemoryOptions
    from stepprof.recording.selector import Selector


@dataclass(eq=False)
class OutOfMemory:
    """Takes the snapshots of one session."""

    origin: Origin
    """The identity of the process."""
    post: Callable[[Callable[[], object]], None]
    """Runs work on the background thread: a manifest that could not be written at once."""
    place: Callable[[], tuple[int, str | None]]
    """Returns the current or last step and role of this thread."""
    taken: int = field(default=0, init=False)
    _selector: Selector | None = field(default=None, init=False)
    _api: MemoryApi | None = field(default=None, init=False)
    _pid: int = field(default_factory=os.getpid, init=False)
    _busy: threading.Lock = field(default_factory=threading.Lock, init=False)

    def begin(self, selector: Selector) -> None:
        """Start to observe if a role of this process asks for it, once CUDA is initialized. Never raise."""
        global _watch
        policies = list(selector.policies())
        asking = [options for policy in policies if (options := _asked(selector, policy))]
        if not asking:
            if selector.identity.records and any(map(_is_unused, policies)):
                logger.warning("memory.on_oom_ignored", reason='no role\'s backend names "memory"')
            return
        try:
            from stepprof.backends.memory.api import MemoryApi

            api = MemoryApi()
            if api.obstacle() is not None:  # the backend's probe has logged it
                return
            self._selector, self._api = selector, api
            _watch = self
            _attach_once(api)
            longest = max(asking, key=lambda options: options.on_oom_entries)
            if longest.on_oom_entries:
                api.when_in_use(lambda: self._start_history(longest))
        except ours(Exception) as error:  # a torch that has no observers is no reason not to train
            logger.warning("memory.snapshot_failed", reason=describe_error(error))

    def end(self) -> None:
        """Take no more snapshots."""
        global _watch
        if _watch is self:
            _watch = None
        if self._api is not None and self._pid == os.getpid():
            from stepprof.backends.memory.api import history

            try:
                history.stop_outside(self._api)
            except ours(Exception) as error:  # the run is over
                logger.warning("memory.history_left_on", reason=repr(error))

    def _start_history(self, options: MemoryOptions) -> None:
        """Keep a history outside of windows."""
        from stepprof.backends.memory.api import history

        if _watch is self and self._api is not None:
            history.start_outside(self._api, options)

    def take(self, device: int, asked: int, total: int, free: int) -> None:
        """Write a snapshot and log it. Never raise."""
        if self._pid != os.getpid() or not self._busy.acquire(blocking=False):
            return
        try:
            if self._api is None or self._selector is None:
                return
            step, role = self.place()
            options = _asked(self._selector, self._selector.policy(role))
            if options is None or self.taken >= options.on_oom_limit:
                return
            self.taken += 1
            event = {"device": device, "asked_bytes": asked, "total_bytes": total, "free_bytes": free}
            self._write(self._api, Window(step, role, visit=self._selector.visits.current(step, role)), event)
        except ours(
            Exception
        ) as error:  # the user's OutOfMemoryError propagates, whatever happens to the snapshot
            logger.warning("memory.snapshot_failed", reason=describe_error(error))
        finally:
            self._busy.release()

    def _write(self, api: MemoryApi, window: Window, event: dict[str, int]) -> None:
        from stepprof.backends.memory.api import history
        from stepprof.backends.memory.backend import SnapshotFile

        timing = Timing(real_time.perf_counter_ns())
        timing.end(timing.entered_ns)  # a moment; the time of the snapshot is counted separately
        reason = (
            f"out of memory on CUDA device {event['device']}: {event['asked_bytes']:,} bytes requested, "
            f"{event['free_bytes']:,} of {event['total_bytes']:,} free; the snapshot shows the allocations"
        )
        fragment = Fragment(self.origin, window, self.post)
        # no world size: the windows of other ranks are not missing
        record = window_entry(
            self.origin,
            window,
            timing,
            status="lost",
            backend="memory",
            reason_code=ReasonCode.OUT_OF_MEMORY,
            error=reason,
            world_size=None,
        )
        fragment.windows.append(record)
        claim = fragment.write_ahead()
        try:
            metadata = {**self.origin.metadata(window), "out_of_memory": event}
            place = Capture(window, claim.folder, claim.stem, metadata)
            running = history.running
            context = None if running is None else running.context
            about = {"out_of_memory": event, "context": context, "devices": api.stats()}
            artifacts = SnapshotFile(api.snapshot(), place, about)()
        except ours(Exception) as error:
            record.update(
                status="failed",
                pending=False,
                error=f"{reason}; none could be taken: {describe_error(error)}",
            )
            raise
        else:
            record.update(status="complete", pending=False, artifacts=as_entries(artifacts))
            logger.warning(
                "memory.exhausted",
                step=window.step,
                role=window.role,
                rank=self.origin.rank,
                snapshot=artifacts[0].path,
                **event,
            )
        finally:
            record.stall_seconds = round((real_time.perf_counter_ns() - timing.entered_ns) / 1e9, 6)
            fragment.write()


def _asked(selector: Selector, policy: Policy) -> MemoryOptions | None:
    """Return the options of a policy that asks for snapshots in this process, or None."""
    if "memory" not in policy.backend or not policy.memory.on_oom or policy.steps.is_none:
        return None
    return policy.memory if selector.selects_rank(policy) else None


def _is_unused(policy: Policy) -> bool:
    return policy.memory.on_oom and "memory" not in policy.backend and not policy.steps.is_none


_watch: OutOfMemory | None = None
_attached = False


def _attach_once(api: MemoryApi) -> None:
    global _attached
    if not _attached:
        api.observe(_observe)
        _attached = True  # also in a forked process: torch's list of observers is copied


def _observe(device: int, asked: int, total: int, free: int) -> None:
    """torch calls this for the rest of the process."""
    watch = _watch
    if watch is not None:
        watch.take(device, asked, total, free)

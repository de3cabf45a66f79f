"""Run captures in this process: the state machine, the backends, and their failures.

The thread that changes the state has exclusive access to the target; the backend's calls are
callbacks of the transitions. An exception of a backend leaves the machine idle, the reason in the
manifest and the log, and the training loop untouched. `stepprof.recording.local_target` decides
when to capture.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from stepprof.backends.base import Busy
from stepprof.errors import BackendError
from stepprof.host import real_time
from stepprof.host.memory import available_and_total
from stepprof.host.real_time import perf_counter_ns
from stepprof.interrupts import is_interrupt, ours
from stepprof.log import logger
from stepprof.recording.backend_pool import BackendPool
from stepprof.recording.background_worker import is_background
from stepprof.recording.capture import Ending, LocalCapture
from stepprof.recording.exclusive_access import ExclusiveAccess
from stepprof.recording.export.tracker import Exports
from stepprof.recording.window_handle import Ticket, log_outcome
from stepprof.redaction.messages import redacted
from stepprof.run.manifest_writer import Origin, describe_error
from stepprof.run.model import WHOLE_STEP
from stepprof.run.reasons import ReasonCode
from stepprof.state_machine import TargetMachine

if TYPE_CHECKING:
    from stepprof.backends.base import Backend
    from stepprof.config.config import Policy
    from stepprof.recording.background_worker import Background
    from stepprof.recording.evidence.collector import Evidence
    from stepprof.recording.export.executor import Exporter
    from stepprof.run.model import Outcome, Window
Later = Callable[[], None]
"""Submits an export, once the access has been released."""


class Capturer:
    """The one machine of this process, and the backends that it drives.

    Args:
        origin: who writes the manifests.
        exporter: runs the export jobs.
        background: writes the manifests.
        changed: called after each change that concerns ``stepprof.state`` or the region hook.
    """

    def __init__(
        self, origin: Origin, exporter: Exporter, background: Background, changed: Callable[[], None]
    ) -> None:
        self.origin = origin
        self.machine = TargetMachine(f"rank-{origin.rank}")
        self.access = ExclusiveAccess()
        self.backends = BackendPool(origin.run.path, self._note_unavailable)
        self.capture: LocalCapture | None = None
        self.evidence: Evidence | None = None
        """Collects evidence while a capture runs; None: it is off."""
        self.health = "ok"
        self.last_error: str | None = None
        self.backend: Backend | None = None
        """The backend that is armed or recording."""
        self._armed_step: int | None = None
        self._armed_ns: tuple[int, int] | None = None
        """When the backend was armed: start and end."""
        self._spent: set[Ticket] = set()
        self.post = background.post
        self.changed = changed
        self.exports = Exports(exporter, origin.rank, self._label, self._set_error, changed)

    def _note_unavailable(self, reason: str) -> None:
        self.health = "unconfigured"
        self._set_error(reason)

    def _set_error(self, reason: str) -> None:
        self.last_error = redacted(reason)

    def note(self, reason: str, window: Window | None = None) -> None:
        """Report in the log and in ``state()`` that something was not recorded."""
        self._set_error(reason)
        where = {} if window is None else {"step": window.step, "role": window.role}
        logger.warning("window.not_recorded", **where, rank=self.origin.rank, reason=reason)
        self.changed()

    @property
    def armed_step(self) -> int | None:
        """Return the step that the target is armed for, if it is armed."""
        return self.machine.step if self.machine.state == "armed" else None

    def is_spent(self, step: int) -> bool:
        """Return whether the capture of this step ended (by a cap, by its region) before its
        windows, some of which are still open.
        """
        if self._spent:
            self._spent = {ticket for ticket in self._spent if not ticket.closed}
        return bool(self._spent) and any(ticket.window.step == step for ticket in self._spent)

    # -- by the thread that has access

    def arm(self, step: int, role: str | None, policy: Policy, backend: Backend) -> bool:
        """Arm this step and backend, from any state. Return whether the state has changed. Passes
        on the backend's exceptions, and is idle then.
        """
        if self.machine.state == "armed":
            if backend is self.backend:
                # a backend is armed for any step; of two windows of this step, that of the whole
                # step comes first
                if self._armed_step == step and (role is not None or policy.capture_per == "role"):
                    return False
                self._armed_step = step
                if (self.machine.step, self.machine.role) == (step, role):
                    return False
                self.machine.hold(self._holder(step, role), step, role)
                return True
            self.to_idle(f"armed again for step {step}")
        if not self.machine.may_arm():
            raise self.machine.refused("arm")
        self.backend = backend
        began_ns = perf_counter_ns()
        try:
            self.machine.arm(act=backend.arm, **self._fields(step, role))
        except BaseException as error:  # KeyboardInterrupt must not leave it half prepared either
            self.to_idle(describe_error(error))
            raise
        self._armed_step = step
        self._armed_ns = (began_ns, perf_counter_ns())
        return True

    def to_idle(self, reason: str) -> None:
        """Go to idle from any state; the backend releases its resources."""
        backend, self._armed_step, self._armed_ns = self.backend, None, None
        if backend is not None:
            try:
                backend.abort()
            except ours(
                Exception
            ) as error:  # a violation of its contract; the machine must not stay in its state
                logger.warning("abort.failed", backend=backend.name, reason=describe_error(error))
        if self.machine.state != "idle":
            self.machine.abort(**self._fields(self.machine.step, self.machine.role), reason=reason)
        self.backend = None
        self.changed()

    def open(self, ticket: Ticket, region: str | None = None) -> BaseException | None:
        """Open a capture for a window. Write and return a failure. The caller publishes the state."""
        policy, window = ticket.policy, ticket.window
        try:
            backend = self.backends.find(policy)
        except BackendError as error:
            code = ReasonCode.BACKEND_UNAVAILABLE
            log_outcome(ticket, self.origin, self.post, status="failed", code=code, reason=str(error))
            return error
        capture = LocalCapture(ticket, backend, self.origin, self.post, region=region)
        again = self.machine.state == "armed"
        while True:
            try:
                values = capture.values or capture.claim()
                self.arm(window.step, window.role, policy, backend)
                self.machine.owner = capture.thread if backend.thread_bound else None
                self.machine.start(
                    act=partial(backend.start, values), **self._fields(window.step, window.role)
                )
                break
            except BaseException as error:  # KeyboardInterrupt must not leave a profiler running
                self.to_idle(describe_error(error))
                if again and not is_interrupt(error) and not isinstance(error, Busy):
                    again = False
                    continue
                self._not_started(capture, error)
                if is_interrupt(error):
                    raise
                return error
        capture.started = real_time.monotonic()
        self.capture = capture
        if self.evidence is not None:
            self.evidence.begin(perf_counter_ns(), window.step, window.role)
        self.health = "ok"
        ticket.captured += 1
        if self._armed_ns is not None:
            capture.timing.armed(*self._armed_ns)
        if region:
            capture.begin()
        return None

    def _not_started(self, capture: LocalCapture, error: BaseException) -> None:
        reason = describe_error(error)
        if isinstance(error, Busy):
            self.health = "busy"
        self.note(reason, capture.window)
        if isinstance(error, Busy):
            capture.fail(ReasonCode.BUSY, reason, "skipped")
        else:
            capture.fail(ReasonCode.BACKEND_FAILED, reason)

    def finish(self, capture: LocalCapture, ending: Ending) -> tuple[Later | None, BaseException | None]:
        """Stop the running capture now. Return a callable that submits its export once the access
        is released, and the error, if any.
        """
        began = real_time.perf_counter()
        window = capture.window
        if not self.machine.on_owning_thread():
            self._post_stop(capture, ending)
            return None, None
        try:
            self._release(ended_ns := perf_counter_ns())
            left = capture.cut(ended_ns)
            if capture.region is None:
                self._spent.update(ticket for ticket in left if capture.owns(ticket.window.step))
            fields = self._fields(window.step, window.role)
            self.machine.stop(**fields, reason=ending.capped_by or ending.error)
            self.changed()
            capture.close_regions()
            self.exports.add_pending(capture, capture.backend.stop(capture.place, capture.annotate()))
            capture.end(ending, left)
            self.machine.done(**fields)
            self.backend = None
        except BaseException as error:
            self.exports.forget(capture)
            reason = describe_error(error)
            self.to_idle(reason)
            self.note(reason, window)
            capture.fail(ReasonCode.BACKEND_FAILED, reason)
            if is_interrupt(error):
                raise
            return None, error
        finally:
            self.changed()
        if not is_background():
            capture.add_stall(real_time.perf_counter() - began)
        capture.save()
        return lambda: self.exports.submit(capture), None

    def _release(self, ended_ns: int) -> None:
        """Note that no capture runs any more."""
        capture, self.capture = self.capture, None
        if self.evidence is not None:
            self.evidence.end(None if capture is None else capture.timing.began_ns, ended_ns)

    def _post_stop(self, capture: LocalCapture, ending: Ending) -> None:
        """Leave the stop to the thread that owns the capture: it finds the request."""
        if capture.request is None:
            capture.request = ending
            logger.warning(
                "capture.stop_posted",
                step=capture.window.step,
                role=capture.window.role,
                rank=self.origin.rank,
                reason=f"the capture belongs to thread {capture.thread}, the stop came from thread {threading.get_ident()}; "
                "it is applied there at the next region, tick or window",
            )

    def finish_and_post(self, capture: LocalCapture, ending: Ending) -> None:
        """Stop the running capture to make room for a window. Its export does not delay the window."""
        later, _ = self.finish(capture, ending)
        if later is not None:
            self.post(later)

    def settle(self) -> None:
        """At a window's edge, apply a stop that another thread requested, and leave any state that an interrupt left behind."""
        capture = self.capture
        if capture is None:
            if self.machine.state in ("recording", "flushing"):
                self.to_idle("an interrupt arrived between two states")
        elif capture.request is not None:
            self.finish_and_post(capture, capture.request)

    # -- from anywhere

    def apply_here(self) -> None:
        """At a region, a tick or a window's edge, apply a requested stop if this thread may."""
        capture = self.capture
        if capture is not None and capture.request is not None and self.machine.on_owning_thread():
            self.cut(capture, capture.request)

    def cut(self, capture: LocalCapture, ending: Ending, *, wait_seconds: float = 0.0) -> None:
        """Stop the capture from any thread, if the access is available soon; otherwise leave a request for its owner."""
        if not self.access.take(wait_seconds):
            capture.request = capture.request or ending
            return
        later: Later | None = None
        try:
            if capture is self.capture:
                later, _ = self.finish(capture, capture.request or ending)
        finally:
            self.access.release()
        if later is not None:
            later()

    def look_at_caps(self) -> None:
        """Stop the running capture if it has reached a limit. The background thread calls this."""
        capture = self.capture
        if capture is None:
            return
        if capture.request is None:
            reason = _cap_reached(capture)
            if reason is None:
                return
            logger.warning(
                "capture.capped", step=capture.window.step, role=capture.window.role, reason=reason
            )
            capture.request = Ending("complete", capped_by=reason)
        self.apply_here()

    @property
    def holds(self) -> bool:
        """Return whether a sudden end would lose something: a running capture, or one whose export is not submitted."""
        return self.machine.state in ("recording", "flushing") or self.exports.unsubmitted

    def _fields(self, step: int | None, role: str | None) -> dict[str, object]:
        """Return the arguments of a transition: the window that holds the target, and the fields of its log line."""
        name = None if self.backend is None else self.backend.name
        where = {"step": step, "role": role, "rank": self.origin.rank, "backend": name}
        return {"holder": self._holder(step, role), **where}

    def _label(self, window: Window) -> str:
        return self._holder(window.step, window.role)

    def _holder(self, step: int | None, role: str | None) -> str:
        return f"{role or WHOLE_STEP}/{self.origin.rank} of step {step}"

    def abandon(self, capture: LocalCapture, reason: str, status: Outcome = "failed") -> None:
        """Abandon a capture that cannot be stopped from here, and log that."""
        self._release(perf_counter_ns())
        capture.close_regions()
        self.to_idle(reason)
        capture.fail(ReasonCode.ENDED_EARLY, reason, status)
        self.changed()


def _cap_reached(capture: LocalCapture) -> str | None:
    policy = capture.policy
    if policy.max_seconds is not None and real_time.monotonic() - capture.started >= policy.max_seconds:
        return "max_seconds"
    if policy.max_bytes is not None and capture.bytes_so_far() >= policy.max_bytes:
        return "max_bytes"
    memory = available_and_total()
    if memory is not None and memory[0] < policy.min_free_memory.bytes_of(memory[1]):
        return "memory"
    return None

"""The local target: decide what each window of this process does.

The outermost selected window opens the capture. Windows entered while it runs join it, and it ends
with its opener. A window at the wrong time is refused with a reason and changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from stepprof.errors import BackendError, StateError, StepprofError
from stepprof.host import real_time
from stepprof.host.frames import frames
from stepprof.host.real_time import perf_counter_ns
from stepprof.instrument.context import unfinished_windows
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.recording.capture import Ending, LocalCapture
from stepprof.recording.capture_controller import Capturer, Later
from stepprof.recording.region_capture import UNFINISHED, RegionHook, RegionWatch
from stepprof.recording.window_handle import LeftOpen, Ticket, log_outcome
from stepprof.run.manifest_writer import Origin, describe_error
from stepprof.run.reasons import ReasonCode

if TYPE_CHECKING:
    from stepprof.config.config import Policy
    from stepprof.instrument.scope import Span
    from stepprof.instrument.span_recorder import Recorder
    from stepprof.recording.background_worker import Background
    from stepprof.recording.export.executor import Exporter


class LocalTarget:
    """This process as a target.

    Args:
        origin: who writes the manifests.
        recorder: gets the hook by which regions reach a running capture.
        exporter: runs the export jobs.
        background: writes the manifests and checks the caps.
        strict: raise what would otherwise be logged.
        changed: called after each change that ``stepprof.state`` shows.
    """

    def __init__(
        self,
        origin: Origin,
        recorder: Recorder,
        exporter: Exporter,
        background: Background,
        *,
        strict: bool,
        changed: Callable[[], None],
    ) -> None:
        self._origin = origin
        self._recorder = recorder
        self._background = background
        self._strict = strict
        self._notify_changed = changed
        # an export that ends on another thread must not unhook the next capture; reentrant: a signal handler
        self._changing = threading.RLock()
        self.capturer = Capturer(origin, exporter, background, self._changed)
        self.watch = RegionWatch(self.capturer)
        self._hook = RegionHook(self.capturer, self.watch)
        recorder.late = self._hook.late
        self.over = False
        """The run has ended: nothing is opened any more. Set before `abort`, so that no capture is left behind."""

    @property
    def calm(self) -> bool:
        """Return whether nothing is armed, recorded or watched, so that an unselected window has nothing to check."""
        return self.capturer.machine.state == "idle" and not self.watch.tickets

    # -- windows

    def arm(self, step: int, role: str | None, policy: Policy) -> None:
        """Prepare for an upcoming step. This is a hint: it never waits and never fails the caller."""
        machine, backends = self.capturer.machine, self.capturer.backends
        if not self.capturer.access.take(0):
            self._refuse_arm(step, role, f"another thread acts on the target ({machine.state})")
            return
        try:
            self.capturer.settle()
            if self.over:
                self._refuse_arm(step, role, "the run has ended")
            elif self.capturer.capture is not None:
                self._refuse_arm(step, role, f"recording, held by {machine.holder}")
            elif machine.state in ("idle", "armed") and backends.probe(policy) is None:
                self.capturer.arm(step, role, policy, backends.find(policy))
                self._changed()
        except ours(Exception) as error:  # the entry tries again, and reports it
            self.capturer.note(f"arm for step {step}: {describe_error(error)}")
        finally:
            self.capturer.access.release()

    @staticmethod
    def _refuse_arm(step: int, role: str | None, reason: str) -> None:
        logger.debug("arm.refused", step=step, role=role, reason=reason)

    def enter(self, ticket: Ticket, *, wait_seconds: float) -> None:
        """Enter a selected window. The caller publishes the new state.

        Args:
            ticket: the ticket of the window.
            wait_seconds: how long to wait for a stop on another thread; after that, the window is skipped.
        """
        access, timing = self.capturer.access, ticket.timing
        try:
            taken = access.acquire(0)
            if not taken:
                began = real_time.perf_counter()
                taken = access.acquire(wait_seconds)
                timing.waited(real_time.perf_counter() - began)
        except StateError as error:
            self._skip(ticket, ReasonCode.BUSY, str(error))
            return
        if not taken:
            reason = f"the stop on another thread did not end within {timing.waited_seconds:.3g} s"
            self._skip(ticket, ReasonCode.BUSY, reason)
            return
        failure: BaseException | None = None
        try:
            self.capturer.settle()
            if self._opens(ticket):
                failure = self.capturer.open(ticket)
            self._hook_regions()
        finally:
            access.release()
        self._raise_if_strict(failure)

    def _opens(self, ticket: Ticket) -> bool:
        """Return whether a window opens a capture. If not, it joins one, is watched for its
        regions, or is skipped. Requires access.
        """
        capture, window, policy = self.capturer.capture, ticket.window, ticket.policy
        if self.over:
            self._skip(ticket, ReasonCode.CAPTURE_ENDED, "the run ended while the window was entered")
            return False
        if capture is not None and capture.held and not capture.awaits(window.step):
            self.capturer.finish_and_post(capture, Ending("complete"))
            capture = self.capturer.capture
        ticket.timing.entered_ns = perf_counter_ns()
        if capture is not None:
            capture.join(ticket)
            if self.capturer.evidence is not None:
                self.capturer.evidence.note_thread()
        elif self.capturer.is_spent(window.step):
            reason = f"the capture of step {window.step} has ended already"
            self._skip(ticket, ReasonCode.CAPTURE_ENDED, reason)
        elif policy.schedule is not None or policy.capture_per == "region":
            self.watch.add(ticket)
        else:
            return policy.capture_per != "role" or window.role is not None
        return False

    def _skip(self, ticket: Ticket, code: ReasonCode, reason: str) -> None:
        """Skip the window: its ticket holds nothing, and the manifest has the reason."""
        self.capturer.note(reason, ticket.window)
        log_outcome(ticket, self._origin, self._background.post, status="skipped", code=code, reason=reason)

    def exit(self, ticket: Ticket, error: BaseException | None) -> None:
        """Exit a selected window. The last one of the opener's step ends the capture."""
        if ticket.closed:
            reason = "this window is closed already"
            logger.warning("stop.refused", step=ticket.window.step, role=ticket.window.role, reason=reason)
            return
        later: Later | None = None
        failure: BaseException | None = None
        try:
            ticket.closed = True
            if ticket in self.watch.tickets:
                later, failure = self._leave_watch(ticket)
            elif isinstance(ticket.capture, LocalCapture):
                later, failure = self._leave(ticket.capture, ticket, error)
            elif ticket.fragment is not None:  # it was not captured: only its times are new
                ticket.fragment.save()
        except BaseException as interrupt:
            self.abandon(ticket, interrupt)
            raise
        finally:
            if error is not None:
                ticket.note_error(error)
        if later is not None:
            later()
        if error is None:
            self._raise_if_strict(failure)

    def abandon(self, ticket: Ticket, interrupt: BaseException) -> None:
        """Close a window whose entry or exit was interrupted (Ctrl-C, `ray.cancel`); nothing else
        will. A capture that ends with it is only asked to end: the background thread, or the thread
        that owns it, stops it.
        """
        ticket.closed = True
        ticket.end(perf_counter_ns())
        if ticket.fragment is not None:  # a failed start has written an entry without an end
            ticket.fragment.save()
        if ticket in self.watch.tickets:
            self.watch.tickets.remove(ticket)
        reason = f"interrupted while the window was entered or left: {describe_error(interrupt)}"
        running, capture = self.capturer.capture, ticket.capture
        if running is not None and (running is capture or running.opener is ticket or ticket in running.open):
            running.leave(ticket)
            if running.region is not None or self._ends_with(running, ticket):
                running.request = running.request or Ending("partial", ReasonCode.ENDED_EARLY, reason)
        elif ticket.record is None:
            code, post = ReasonCode.ENDED_EARLY, self._background.post
            log_outcome(ticket, self._origin, post, status="failed", code=code, reason=reason)

    def _leave(
        self, capture: LocalCapture, ticket: Ticket, error: BaseException | None
    ) -> tuple[Later | None, BaseException | None]:
        """Take a window out of its capture. If the capture is over, there is nothing to wait for."""
        ending = (
            Ending("partial", ReasonCode.ENDED_EARLY, str(error))
            if isinstance(error, LeftOpen)
            else Ending("complete")
        )
        running = capture is self.capturer.capture
        taken = running and self.capturer.access.take(ticket.policy.engine_stop_timeout_seconds)
        try:
            capture.leave(ticket)
            if capture.over and ticket.fragment is not None:
                ticket.fragment.save()
            if capture is self.capturer.capture and self._ends_with(capture, ticket):
                if taken:
                    return self.capturer.finish(capture, ending)
                capture.request = capture.request or ending
        finally:
            if taken:
                self.capturer.access.release()
        return None, None

    def _leave_watch(self, ticket: Ticket) -> tuple[Later | None, BaseException | None]:
        """Exit a window whose regions are captured."""
        taken = self.capturer.access.take(ticket.policy.engine_stop_timeout_seconds)
        try:
            return self.watch.remove(ticket, "its window ended", may_stop=taken)
        finally:
            if taken:
                self.capturer.access.release()

    @staticmethod
    def _ends_with(capture: LocalCapture, ticket: Ticket) -> bool:
        """Return whether the capture ends with the exit of this window."""
        step = ticket.window.step
        if capture.region is not None or any(
            other.window.step in (step, capture.window.step) for other in list(capture.open)
        ):
            return False
        if not capture.policy.join_steps:
            return step == capture.window.step
        if capture.open or step + 1 in ticket.policy.steps:
            return False
        # the last step of the run: it is over when it has had as many windows as the step before
        return capture.seen.get(step - 1, set()) <= capture.seen[step]

    def pass_by(self, step: int) -> None:
        """Enter a window that is not selected: end what was kept open or armed for an earlier step."""
        capture = self.capturer.capture
        armed = self.capturer.armed_step
        if capture is not None:
            self.capturer.apply_here()
            if capture.held and step not in capture.policy.steps:
                self.capturer.cut(capture, Ending("complete"))
        elif armed is not None and step > armed and self.capturer.access.take(0):
            try:
                if self.capturer.machine.state == "armed":
                    self.capturer.to_idle(f"step {armed} was never entered")
            finally:
                self.capturer.access.release()

    # -- caps, requests, the end

    def tick(self) -> None:
        """Apply requests of other threads, if this thread can."""
        self.capturer.apply_here()

    def ask_owner(self, reason: str, timeout: float) -> None:
        """Before the end, ask the thread that alone can stop the capture to do so at its next region, tick or window."""
        capture = self.capturer.capture
        if capture is None or self.capturer.machine.on_owning_thread():
            return
        capture.request = capture.request or Ending("partial", ReasonCode.ENDED_EARLY, reason)
        deadline = real_time.monotonic() + timeout
        while (
            self.capturer.capture is capture
            and capture.thread in frames()
            and real_time.monotonic() < deadline
        ):
            time.sleep(0.01)

    def abort(self, reason: str, timeout: float) -> None:
        """Leave every state. Keep what was captured so far as partial."""
        if not self.capturer.access.take(timeout):
            return
        later: Later | None = None
        try:
            for ticket in list(self.watch.tickets):
                result, _ = self.watch.remove(ticket, reason, may_stop=True)
                later = later or result
            capture = self.capturer.capture
            if capture is None:
                self.capturer.to_idle(reason)
            elif not self.capturer.machine.on_owning_thread():
                self.capturer.abandon(capture, f"{reason}, on another thread than the one that recorded")
            else:
                ending = (
                    Ending("complete") if capture.held else Ending("partial", ReasonCode.ENDED_EARLY, reason)
                )
                later, _ = self.capturer.finish(capture, capture.request or ending)
        finally:
            self.capturer.access.release()
        if later is not None:
            later()

    def unfinished(self) -> Iterator[Span]:
        """Yield the spans of the windows that are open, and of the regions that began in recorded ones and have not ended: until now."""
        yield from self._hook.unfinished()
        yield from unfinished_windows(UNFINISHED)

    def _changed(self) -> None:
        self._hook_regions()
        self._notify_changed()

    def _hook_regions(self) -> None:
        """Have regions reach a capture, and its caps checked, while there is one or a window is watched."""
        with self._changing:
            on = self.capturer.capture is not None or bool(self.watch.tickets)
            self._recorder.hook = self._hook if on else None
            self._background.watch(on)

    def _raise_if_strict(self, failure: BaseException | None) -> None:
        if failure is not None and self._strict:
            if isinstance(failure, StepprofError):
                raise failure
            raise BackendError(describe_error(failure)) from failure

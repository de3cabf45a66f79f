"""Handle regions during a selected window: mark them in the capture, capture them one by one, or
count them.

The recorder calls the hook at each region only while there is something to do. Otherwise there is
no hook, and a region costs no more than a span.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any

from stepprof.backends.base import keep_forever
from stepprof.host.real_time import perf_counter_ns, thread_time_ns
from stepprof.instrument import context
from stepprof.instrument.attributes import short_name
from stepprof.instrument.scope import Measured, Scope, current_scope, newest
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.recording.capture import Ending
from stepprof.recording.window_handle import Ticket, log_outcome
from stepprof.run.manifest_writer import describe_error
from stepprof.run.reasons import ReasonCode

if TYPE_CHECKING:
    from stepprof.instrument.scope import Span
    from stepprof.recording.capture_controller import Capturer, Later

ACCESS_SECONDS = 1.0
"""Maximum seconds that a region waits for access before it goes on without a capture."""

UNFINISHED: Mapping[str, object] = {"unfinished": True}
"""The attributes of a window or region that had not ended when its session did."""


class RegionWatch:
    """The open windows with captures of single regions (``capture_per = "region"``, ``schedule``)."""

    def __init__(self, capturer: Capturer) -> None:
        self.tickets: list[Ticket] = []
        self._capturer = capturer

    def add(self, ticket: Ticket) -> None:
        """Add a window whose regions are captured."""
        self.tickets.append(ticket)
        if ticket.policy.schedule is not None:
            self._arm(ticket)

    def remove(
        self, ticket: Ticket, reason: str, *, may_stop: bool
    ) -> tuple[Later | None, BaseException | None]:
        """Remove a window. A capture that a region left running ends now, on the thread that has access."""
        self.tickets.remove(ticket)
        capturer = self._capturer
        capture = capturer.capture
        if capture is not None and capture.opener is ticket:
            why = f"{capture.region} had not ended when {reason}"
            ending = Ending("partial", ReasonCode.ENDED_EARLY, why)
            if may_stop:
                return capturer.finish(capture, ending)
            capture.request = capture.request or ending
        elif may_stop and capturer.machine.state == "armed" and capturer.armed_step == ticket.window.step:
            capturer.to_idle(f"no further region was entered before {reason}")
        if not ticket.captured and not ticket.refused:
            schedule = ticket.policy.schedule
            names = " or ".join([schedule.region] if schedule else ticket.policy.regions)
            reported = f"nothing was captured: {names} was entered {ticket.entries} times"
            code, post = ReasonCode.REGION_NOT_ENTERED, capturer.post
            log_outcome(ticket, capturer.origin, post, status="skipped", code=code, reason=reported)
        capturer.changed()
        return None, None

    def enter(self, name: str) -> tuple[Ticket, bool] | None:
        """Begin a region. If it is captured, return its window, and whether the capture ends with it."""
        ticket = self._of(name)
        if ticket is None:
            return None
        schedule = ticket.policy.schedule
        ticket.entries += 1
        if schedule is None:
            return (ticket, True) if self._open(ticket, name) else None
        entry = ticket.entries - 1 - schedule.skip_first
        idle, cycle = schedule.wait + schedule.warmup, schedule.wait + schedule.warmup + schedule.active
        if entry < 0 or (schedule.repeat and entry >= cycle * schedule.repeat):
            return None
        place = entry % cycle
        if place == schedule.wait and schedule.warmup:
            self._arm_now(ticket)
        if place < idle:
            return None
        if place == idle and not self._open(ticket, name):
            return None
        return ticket, place == cycle - 1

    def exit(self, entry: tuple[Ticket, bool]) -> None:
        """End a captured region."""
        ticket, last = entry
        capturer = self._capturer
        capture = capturer.capture
        if last and capture is not None and capture.opener is ticket and capture.region is not None:
            capturer.cut(capture, Ending("complete"), wait_seconds=ACCESS_SECONDS)

    def _of(self, name: str) -> Ticket | None:
        """Return the window of a region, by its context."""
        recorder = context.cell.recorder
        where = None if recorder is None else recorder.where()
        wanted = [ticket for ticket in self.tickets if _watches(ticket, name)]
        if where is not None:
            step, role = where.number, where.role
            inside = [ticket for ticket in wanted if (ticket.window.step, ticket.window.role) == (step, role)]
            wanted = inside or [ticket for ticket in wanted if ticket.window.step == step] or wanted
        return wanted[-1] if wanted else None

    def _open(self, ticket: Ticket, name: str) -> bool:
        if ticket.refused:  # logged once, not for each of a thousand mini-batches
            return False
        if not self._capturer.access.take(ACCESS_SECONDS):
            return False
        try:
            if self._capturer.capture is not None:
                return False
            ticket.refused = self._capturer.open(ticket, name) is not None
            self._capturer.changed()
            return not ticket.refused
        finally:
            self._capturer.access.release()

    def _arm_now(self, ticket: Ticket) -> None:
        if self._capturer.access.take(0):
            try:
                self._arm(ticket)
            finally:
                self._capturer.access.release()

    def _arm(self, ticket: Ticket) -> None:
        capturer = self._capturer
        window, policy = ticket.window, ticket.policy
        if capturer.capture is not None or capturer.backends.probe(policy) is not None:
            return
        try:
            if capturer.arm(window.step, window.role, policy, capturer.backends.find(policy)):
                capturer.changed()
        except ours(Exception) as error:  # the first entry tries again, and reports it
            capturer.note(describe_error(error), window)


def _watches(ticket: Ticket, name: str) -> bool:
    schedule = ticket.policy.schedule
    return name == schedule.region if schedule is not None else name in ticket.policy.regions


def _measured(span: Span, ident: int, began_ns: int) -> Span:
    """Return the span of a region with the CPU time of its thread, unless it ended on another one."""
    used = thread_time_ns() - began_ns
    if used < 0 or get_ident() != ident:
        return span
    measured = Measured(span)
    measured.cpu_ns = min(used, span[3] - span[2])
    return measured


class RegionHook:
    """The recorder calls this at each region while a capture runs or a window is watched."""

    def __init__(self, capturer: Capturer, watch: RegionWatch) -> None:
        self._capturer = capturer
        self._watch = watch
        self._mark_failed = False
        self._numbers = itertools.count()
        self._open: dict[int, tuple[str, int, int, int | None, Scope | None]] = {}
        """(name, start, thread, task, scope) of each region that has not ended."""

    def enter(self, name: str, lane: bool) -> object:
        """Begin a region; return the token for `exit`. Never raise: the region is the user's code."""
        marked: Any = None
        entry = cpu = None
        name = short_name(name)
        try:
            capturer = self._capturer
            capture = capturer.capture
            if capture is not None and capture.request is not None:
                capturer.apply_here()
            entry = self._watch.enter(name) if self._watch.tickets else None
            capture = capturer.capture
            if capture is not None:
                backend = capture.backend
                mark = backend.mark_lane(name) if lane else backend.mark(name)
                if mark is not None:
                    marks = capture.marks
                    mark.__enter__()
                    marks[id(mark)] = mark
                    marked = marks, id(mark)
                    if capturer.capture is not capture and marks.pop(id(mark), None) is not None:
                        keep_forever(mark)  # the capture ended meanwhile, and has not left the range
                if not lane and capturer.evidence is not None:
                    cpu = capturer.evidence.note_thread()
        except ours(Exception) as error:  # a range that is missing from a trace must not end the region
            self._log_once(error)
        number, recorder = next(self._numbers), context.cell.recorder
        if recorder is not None:
            where = recorder.thread.id, recorder.task_id(), current_scope()
            self._open[number] = (name, perf_counter_ns(), *where)
        return marked, lane, entry, cpu, number

    def unfinished(self) -> Iterator[Span]:
        """Yield the spans of the regions that have not ended: until now."""
        now = perf_counter_ns()
        for name, start, thread, task, where in list(self._open.values()):
            yield (
                name,
                "region",
                start,
                now,
                thread,
                task,
                where or newest.window,
                UNFINISHED,
                False,
            )

    def exit(self, token: Any, span: Span) -> Span:
        """End a region; return its span with its CPU time, if that was measured. ``token`` is None for
        a mark, a counter or a window, and for a region that began before the hook.
        """
        marked, lane, entry, cpu, number = token or (None, True, None, None, -1)
        self._open.pop(number, None)
        measured = span if cpu is None else _measured(span, *cpu)
        try:
            if marked is not None:
                mark = marked[0].pop(marked[1], None)
                if mark is not None:  # else its capture has ended and left the range
                    mark.__exit__(None, None, None)
        except ours(Exception) as error:  # as above
            self._log_once(error)
        try:
            capture = self._capturer.capture
            if capture is not None:
                if lane or (span[7] and marked is None):
                    capture.annotations.append(span)
                elif span[7]:  # the range is on its thread
                    capture.annotations.append((span[0], "attributes", *span[2:]))
                if capture.request is not None:
                    self._capturer.apply_here()
            if entry is not None:
                self._watch.exit(entry)
        except ours(Exception) as error:  # as above
            self._log_once(error)
        return measured

    def late(self, token: Any) -> None:
        """End a region whose capture has ended: only this thread can end its range."""
        self._open.pop(token[-1], None)
        marked = token[0]
        mark = None if marked is None else marked[0].pop(marked[1], None)
        if mark is not None:
            try:
                mark.__exit__(None, None, None)
            except ours(Exception) as error:  # as above
                self._log_once(error)

    def _log_once(self, error: Exception) -> None:
        if not self._mark_failed:
            self._mark_failed = True
            logger.warning("region.not_marked", reason=describe_error(error))

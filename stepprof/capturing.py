"""Making captures in this process: the machine, the backends, and what goes wrong with them.

Every change of state happens on the target's turn, as check, act, commit. What a backend throws leaves the machine idle, the
reason in the manifest and in the log, and the training loop untouched. When to capture is `stepprof.local`'s to say.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING

from stepprof.backends import make_backend
from stepprof.backends.base import Busy
from stepprof.capture import Ending, LocalCapture, Ticket
from stepprof.errors import BackendError, StateError
from stepprof.hostmemory import available_and_total
from stepprof.log import logger
from stepprof.machine import TargetMachine, Turn
from stepprof.records import Origin, describe_error, tell

if TYPE_CHECKING:
    from stepprof.backends.base import Backend, Export
    from stepprof.background import Background
    from stepprof.config import Policy
    from stepprof.export import Exporter, ExportResult
    from stepprof.window import Outcome, Window

__all__ = ["Capturer"]

Later = Callable[[], None]
"""What is done after the turn: handing an export to its job."""


class Capturer:
    """The one machine of this process, and the backends that it drives.

    Args:
        origin: who writes the manifests.
        exporter: runs the export jobs.
        background: writes the manifests.
        changed: called after each change that ``stepprof.state`` or the region hook has to see.
    """

    def __init__(self, origin: Origin, exporter: Exporter, background: Background, changed: Callable[[], None]) -> None:
        self.origin = origin
        self.machine = TargetMachine(f"rank-{origin.rank}")
        self.turn = Turn()
        self.capture: LocalCapture | None = None
        self.armed_step: int | None = None
        self.health = "ok"
        self.last_error: str | None = None
        self.recorded: set[int] = set()
        self.spent: set[Ticket] = set()
        self.exporting: dict[LocalCapture, str] = {}
        self.backend: Backend | None = None
        self._armed_key: object = None
        self._exporter = exporter
        self.post = background.post
        self.changed = changed
        self._backends: dict[object, Backend] = {}
        self._unavailable: dict[object, str] = {}

    # -- what is there

    def probe(self, policy: Policy) -> str | None:
        """Why this policy's backend cannot record here, or None. Pays its slow imports, once."""
        key = _key(policy)
        if key not in self._backends and key not in self._unavailable:
            reason: str | None
            try:
                backend = make_backend(policy)
                reason = backend.probe()
            except Exception as error:  # a backend that cannot even be asked is one that cannot record
                reason = describe_error(error)
            if reason is None:
                self._backends[key] = backend
            else:
                self._unavailable[key] = reason
                self.health = "unconfigured"
                self.last_error = f"{'+'.join(policy.backend)} cannot record here: {reason}"
                logger.warning("backend unavailable", backend="+".join(policy.backend), reason=reason)
        return self._unavailable.get(key)

    def note(self, reason: str, window: Window | None = None) -> None:
        """Something was not recorded: the log and ``state()`` say so."""
        self.last_error = reason
        where = {} if window is None else {"step": window.step, "role": window.role}
        logger.warning("not recorded", **where, rank=self.origin.rank, reason=reason)
        self.changed()

    # -- on this thread's turn

    def arm(self, step: int, policy: Policy) -> Backend:
        """Be armed for this step and policy, whatever was before. Raises what the backend raises."""
        backend = self._backends[_key(policy)]
        if self.machine.state == "armed":
            if self._armed_key == (step, _key(policy)):
                return backend
            self.to_idle("armed for something else")
        self.machine.check("arm")
        self.backend = backend
        backend.arm()
        self.machine.commit("arm", f"step {step}", step=step, rank=self.origin.rank, backend=backend.name)
        self.armed_step, self._armed_key = step, (step, _key(policy))
        self.changed()
        return backend

    def to_idle(self, reason: str) -> None:
        """Leave whatever state there is; the backend lets go of what it holds."""
        if self.backend is not None:
            self.backend.abort()
            self.backend = None
        self.armed_step = self._armed_key = None
        if self.machine.state != "idle":
            self.machine.commit("abort", "nobody", rank=self.origin.rank, reason=reason)
        self.changed()

    def open(self, ticket: Ticket, region: str | None = None) -> BaseException | None:
        """Open a capture for a window; what goes wrong is told in the manifest and returned."""
        began = time.perf_counter()
        policy, window = ticket.policy, ticket.window
        reason = self.probe(policy)
        if reason is not None:
            reason = f"{'+'.join(policy.backend)} cannot record here: {reason}"
            tell(ticket, self.origin, self.post, "failed", reason)
            return BackendError(reason)
        backend = self._backends[_key(policy)]
        capture = LocalCapture(ticket, backend, self.origin, self.post, region=region)
        tries = 2 if self.machine.state == "armed" else 1
        while True:
            tries -= 1
            try:
                values = capture.values or capture.claim()
                self.arm(window.step, policy)
                self.machine.check("start")
                backend.start(values)
                self._commit("start", window, backend=backend.name)
                break
            except BaseException as error:  # KeyboardInterrupt in the middle of a start must not leave a profiler running
                self.to_idle(describe_error(error))
                busy = isinstance(error, Busy)
                if busy:
                    self.health = "busy"
                if tries and not busy and isinstance(error, Exception):
                    continue
                self.note(describe_error(error), window)
                capture.fail(describe_error(error), "skipped" if busy else "failed")
                if not isinstance(error, Exception):
                    raise
                return error
        self.capture = capture
        self.health = "ok"
        ticket.captured += 1
        self.changed()
        capture.add_stall(time.perf_counter() - began)
        return None

    def finish(self, capture: LocalCapture, ending: Ending) -> tuple[Later | None, BaseException | None]:
        """End the running capture: the hand-over now. Returns what submits its export after the turn, and what went wrong."""
        began = time.perf_counter()
        backend, window = capture.backend, capture.window
        if backend.thread_bound and capture.thread != threading.get_ident():
            capture.request = capture.request or ending
            logger.warning(
                "stop posted",
                step=window.step,
                role=window.role,
                reason=f"the capture belongs to thread {capture.thread}, the stop came from thread {threading.get_ident()}; "
                "it is applied there at the next region, tick or window",
            )
            return None, None
        self.capture = None
        self.spent.update(ticket for ticket in capture.open if ticket.window.step == window.step)
        try:
            self._commit("stop", window, backend=backend.name, reason=ending.capped_by or ending.error)
            self.changed()
            export = backend.stop(capture.place, capture.annotate())
            self._commit("done", window, backend=backend.name)
            self.backend = None
        except BaseException as error:
            reason = describe_error(error)
            self.to_idle(reason)
            self.note(reason, window)
            capture.fail(reason)
            if not isinstance(error, Exception):
                raise
            return None, error
        finally:
            self.changed()
        capture.end(perf_counter_ns(), ending)
        capture.add_stall(time.perf_counter() - began)
        return lambda: self._export(capture, export), None

    def apply_request(self) -> None:
        """At a window's edge or a region: end the capture where another thread asked for it."""
        capture = self.capture
        if capture is not None and capture.request is not None:
            later, _ = self.finish(capture, capture.request)
            if later is not None:
                self.post(later)

    # -- from anywhere

    def cut(self, capture: LocalCapture, ending: Ending) -> None:
        """End the capture from wherever this is called, if the turn can be had now; else the request waits for its owner."""
        capture.request = capture.request or ending
        try:
            if not self.turn.take(0):
                return
        except StateError:
            return
        later: Later | None = None
        try:
            if capture is self.capture:
                later, _ = self.finish(capture, ending)
        finally:
            self.turn.give()
        if later is not None:
            later()

    def look_at_caps(self) -> None:
        """Has the running capture reached one of its bounds? Called from the background thread."""
        capture = self.capture
        if capture is None or capture.request is not None:
            return
        reason = _cap_reached(capture)
        if reason is None:
            return
        ending = Ending("complete", capped_by=reason)
        logger.warning("cap hit", step=capture.window.step, role=capture.window.role, capped_by=reason)
        if capture.backend.thread_bound:
            capture.request = ending
        else:
            self.cut(capture, ending)

    def _export(self, capture: LocalCapture, export: Export) -> None:
        mode = capture.policy.export
        if mode == "auto":
            mode = capture.backend.export_mode()
        window = capture.window
        label = f"{window.name}/{self.origin.rank} of step {window.step}"
        self.exporting[capture] = label
        self._exporter.submit(
            label, export, mode, lambda result: self._exported(capture, result), orphaned=capture.exported_by_orphan
        )
        self.changed()

    def _exported(self, capture: LocalCapture, result: ExportResult) -> None:
        window = capture.window
        self.exporting.pop(capture, None)
        if capture.exported(result):
            self.recorded.add(window.step)
            size = sum(artifact.bytes for artifact in result.artifacts)
            logger.info(
                "exported",
                step=window.step,
                role=window.role,
                rank=self.origin.rank,
                bytes=size,
                seconds=round(result.seconds, 3),
            )
        else:
            self.note(f"export: {result.error}", window)
        self.changed()

    def _commit(self, trigger: str, window: Window, *, backend: str, reason: str | None = None) -> None:
        holder = f"{window.name}/{self.origin.rank} of step {window.step}"
        self.machine.commit(
            trigger, holder, step=window.step, role=window.role, rank=self.origin.rank, backend=backend, reason=reason
        )
        self.armed_step = self._armed_key = None

    def give_up(self, capture: LocalCapture, reason: str, status: Outcome = "failed") -> None:
        """A capture that cannot be stopped from here: let go of it, and say so."""
        self.capture = None
        self.to_idle(reason)
        capture.fail(reason, status)
        self.changed()


def _key(policy: Policy) -> object:
    """Policies with one key share a backend."""
    return policy.backend, repr([policy.options(name) for name in policy.backend])


def _cap_reached(capture: LocalCapture) -> str | None:
    policy = capture.policy
    if policy.max_seconds is not None and time.monotonic() - capture.started >= policy.max_seconds:
        return "max_seconds"
    if policy.max_bytes is not None and (capture.backend.bytes_so_far() or 0) >= policy.max_bytes:
        return "max_bytes"
    memory = available_and_total()
    if memory is not None and memory[0] < policy.min_free_memory.bytes_of(memory[1]):
        return "memory"
    return None

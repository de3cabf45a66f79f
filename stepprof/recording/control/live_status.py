"""Publish the status of a running session and read its requests, on the background thread."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from stepprof.host import real_time
from stepprof.instrument.context import open_windows
from stepprof.instrument.scope import last_open, newest
from stepprof.recording.control.request_inbox import OVERLAP, Control
from stepprof.recording.control.status_publisher import Publisher

if TYPE_CHECKING:
    from stepprof.instrument.scope import Span
    from stepprof.recording.session_port import RunningSession
    from stepprof.run.layout import RunDir
    from stepprof.run.requests import Request

LAST_STEPS = 5
"""Number of last steps whose shortest one is the pace: the next step is rarely shorter."""

MOST_ROLES = 64
"""Maximum number of roles in the status: a program may invent a role for each step."""


class Pace:
    """The running step and the durations of the last ones, also if two steps overlap.

    ``first`` is the step of the first window that ended, ``shortest`` the shortest time from the start of
    one step to the start of the next, ``stride`` the difference of their numbers.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self._steps: dict[int, tuple[int, int]] = {}
        """Start and end of the last steps, by their completed windows."""
        self.roles: set[str] = set()
        self._noticed: tuple[int | None, int | None] = (None, None)
        self._sampled: float | None = None

    def see(self, spans: Iterable[Span]) -> None:
        """Add finished spans, in the order in which they ended."""
        for span in spans:
            where = span[6]
            if span[1] != "window" or where is None or where.number is None:
                continue
            if self.first is None:
                self.first = where.number
            if where.role is not None and len(self.roles) < MOST_ROLES:
                self.roles.add(where.role)
            if where.number not in self._steps and not self._is_recent(where.number, span[2]):
                continue
            start, end = self._steps.get(where.number, (span[2], span[3]))
            self._steps[where.number] = min(start, span[2]), max(end, span[3])

    def _is_recent(self, step: int, start_ns: int) -> bool:
        """Return whether a step without a completed window still counts. Make room for it."""
        newest = self.newest
        if newest is not None and step < newest - OVERLAP:
            if start_ns < self._steps[newest][1]:
                return False  # a window that was open for very long
            self._steps.clear()  # the loop has gone back to a checkpoint
        if len(self._steps) > LAST_STEPS:
            del self._steps[min(self._steps)]
        return True

    @property
    def newest(self) -> int | None:
        """Return the latest step with a completed window."""
        return max(self._steps, default=None)

    @property
    def stride(self) -> int | None:
        """Return the difference of the last two step numbers."""
        last = sorted(self._steps)[-2:]
        return last[1] - last[0] if len(last) == 2 else None

    @property
    def seconds(self) -> float | None:
        """Return the duration of the step before the newest, from the start of its first window to the
        end of its last.
        """
        before = sorted(self._steps)[-2:-1]
        return (self._steps[before[0]][1] - self._steps[before[0]][0]) / 1e9 if before else None

    @property
    def shortest(self) -> float | None:
        """Return the shortest duration of the last steps, each up to the next step; without spans, the mean between two looks."""
        begun = [start for _, (start, _) in sorted(self._steps.items())]
        between = [max(after - before, 0) / 1e9 for before, after in itertools.pairwise(begun)]
        return min(between, default=self._sampled)

    def since_unix_ns(self, step: int | None) -> int | None:
        """Return when this step was first seen running."""
        before, at = self._noticed
        if before == step:
            return at
        now = real_time.time_ns()
        if before is not None and at is not None and step is not None and step > before:
            self._sampled = max(now - at, 0) / 1e9 / (step - before)
        self._noticed = step, now
        return now


class Live:
    """The status and the requests of a session.

    Args:
        session: the session; its target and its selector exist.
        run: its run directory.
    """

    def __init__(self, session: RunningSession, run: RunDir) -> None:
        self._session = session
        self._clock = real_time.time() - real_time.monotonic()
        self.pace = Pace()
        probe = session.local.capturer.backends.probe
        self.control = Control(run.path, session.selector, probe, self._begun, self._elsewhere)
        self._publisher = Publisher(
            session.local.capturer.origin,
            self._condition,
            self._progress,
            shows_memory="watch" in session.config.follow_keys,
        )

    def look(self) -> None:
        """Do a round: read requests, publish the status, load the backends of accepted requests."""
        self.control.look()
        self._publisher.publish()
        self.control.prepare()

    def close(self, *, failed: bool) -> None:
        """Publish the final status, with whether the process failed."""
        self.control.close()
        self._publisher.close(failed=failed)

    def _condition(self) -> dict[str, Any]:
        """Return the facts that are published at once when they change."""
        session = self._session
        capturer = session.local.capturer
        machine, exports, fleet = capturer.machine, capturer.exports, session.fleet
        return {
            "state": machine.state,
            "state_since_unix_ns": round((machine.since + self._clock) * 1e9),
            "recording_step": machine.step,
            "recording_role": machine.role,
            "backend": None if capturer.backend is None else capturer.backend.name,
            "health": capturer.health,
            "engines": {} if fleet is None else fleet.describe(),
            "last_error": capturer.last_error,
            "pending_exports": [*exports.pending, *(() if fleet is None else fleet.awaited())],
            "recorded_steps": list(exports.recorded),
            "recorded_bytes": exports.recorded_bytes,
            "roles": sorted(self.pace.roles),
            "requests": self.control.outcomes(),
        }

    def _progress(self) -> dict[str, Any]:
        """Return the position of the loop, which is published with the next version."""
        step = self._begun()
        window = last_open(newest.window)
        return {
            "step": step,
            "step_since_unix_ns": self.pace.since_unix_ns(step),
            "step_seconds": self.pace.seconds,
            "pace_seconds": self.pace.shortest,
            "stride": self.pace.stride,
            "role": None if window is None else window.role,
        }

    def _elsewhere(self, request: Request, early: bool) -> str | None:
        """Return why no window of this process can match a request; None: one may."""
        first = self.pace.first
        if self._session.lent:
            return "the driver of this process answers for it"
        if request.role is not None and self.pace.roles and request.role not in self.pace.roles:
            return "this process has no window of this role"
        if early and first is not None and request.last_step < first:
            return f"this process began at step {first}"
        return None

    def _begun(self) -> int | None:
        """Return the furthest step that has begun: of two that overlap, the earlier may be entered last."""
        last = self._session.last_step
        if last is None:
            return None
        found = [last, *(window.number for window in open_windows() if window.number is not None)]
        if self.pace.newest is not None:
            found.append(self.pace.newest)
        most = last + OVERLAP * (self.pace.stride or 1)  # a step beyond this was before the loop went back
        return max(step for step in found if step <= most)

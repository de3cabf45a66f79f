"""The capture of one engine for one window: its state machine, the callers that wait for it, and the windows that keep it open.

It holds the window's entry in the manifest, and calls no driver: `stepprof.remote.core.engine_target` makes the calls, and notes each answer here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

from transitions import MachineError

from stepprof.errors import StateError
from stepprof.host import real_time
from stepprof.remote.core.event import Gate
from stepprof.run.reasons import ReasonCode
from stepprof.state_machine import LightMachine

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow
    from stepprof.run.model import Outcome
    from stepprof.run.schema import EngineEntry

LOST = "the process ended before the engine's capture was stopped"
"""The reason in an entry that is written before its engine starts."""

CaptureState = Literal["preparing", "starting", "recording", "stopping", "aborting", "finished"]

CAPTURE_STATES: tuple[CaptureState, ...] = get_args(CaptureState)
CAPTURE_TRANSITIONS: tuple[dict[str, Any], ...] = (
    {"trigger": "send_start", "source": "preparing", "dest": "starting"},
    {"trigger": "start_answered", "source": "starting", "dest": "recording"},
    {"trigger": "start_failed", "source": "starting", "dest": "aborting"},
    {"trigger": "send_stop", "source": "recording", "dest": "stopping"},
    {"trigger": "finish", "source": list(CAPTURE_STATES[:-1]), "dest": "finished"},
)
_MACHINE = LightMachine(
    model=None,
    states=list(CAPTURE_STATES),
    transitions=list(CAPTURE_TRANSITIONS),
    initial="preparing",
    auto_transitions=False,
)
"""One machine for all captures; each capture has its own state."""


class Recording:
    """The capture of one engine for one window."""

    def __init__(self, entry: EngineEntry, save: Callable[[], object], step: int) -> None:
        self.state: CaptureState = "preparing"
        self.entry = entry
        self.save = save
        """Writes the entry soon."""
        self.step = step
        """The capture ends with the windows of this step."""
        self.capped_by: str | None = None
        """The limit that ended it before its window ended."""
        self.window: EngineWindow | None = None
        """The window with its folder, once it exists."""
        self.stop = asyncio.Event()
        """Set when the window has ended, or when no window waits for the start any longer."""
        self.started = Gate()
        """Open when the start has succeeded or failed."""
        self.finished = Gate()
        """Open when nothing is left to do."""
        self.late: str | None = None
        """Why the capture does not cover the whole window."""
        self.answered_at: float | None = None
        """When the start succeeded, by the loop's clock."""
        self.begun_ns: int | None = None
        """When its window began without it, in nanoseconds since the Unix epoch."""
        self.ended_ns: int | None = None
        """When its last window ended: an engine that answers its start after that is stopped late."""
        self.closing = False
        """Whether the window that opened it is ending, or was abandoned while it began."""
        self.timed_out = False
        """Whether a start or stop timed out: no window waits for it any longer, and a late answer is still handled."""
        self.task: asyncio.Task[None] | None = None
        self._open = 1
        self._joined: list[tuple[EngineEntry, Callable[[], object]]] = []

    @property
    def sent(self) -> bool:
        """Whether the start has been sent, so that a stop is pending."""
        return self.state not in ("preparing", "finished")

    @property
    def answered(self) -> bool:
        """Whether the engine records or stops: its start has succeeded."""
        return self.state in ("recording", "stopping")

    @property
    def ending(self) -> bool:
        """Whether nothing keeps it open."""
        return self.stop.is_set() or (self.closing and self._open <= 1)

    @property
    def running(self) -> bool:
        """Whether another window may join it."""
        return self.answered and not self.ending

    @property
    def awaited(self) -> Gate:
        """The event after which another window can join it, or can use the engine."""
        return self.finished if self.ending else self.started

    @property
    def unanswered(self) -> str:
        """Describe the pending call, for a message."""
        if self.state == "aborting":
            return f"its start of step {self.step} has failed, and the stop that must follow has not been answered"
        return f"its {'stop' if self.answered else 'start'} of step {self.step} has not been answered"

    def send_start(self) -> None:
        """Note that the start is sent."""
        self._change("send_start")

    def start_answered(self) -> None:
        """Note that the engine records. `started` opens once the entry is updated."""
        self._change("start_answered")
        self.answered_at = asyncio.get_running_loop().time()

    def start_failed(self) -> None:
        """Note that the start has failed, so that no window waits for it. A stop may be pending before the engine is free."""
        self._change("start_failed")
        self.stop.set()
        self.started.open()

    def send_stop(self) -> None:
        """Note that the stop is sent."""
        self._change("send_stop")

    def finish(self) -> None:
        """Note that nothing is left to do, and release every caller that waits."""
        self._change("finish")
        self.started.open()
        self.finished.open()

    def _change(self, trigger: str) -> None:
        """Change the state. Raises StateError if the trigger is illegal."""
        try:
            _MACHINE.events[trigger].trigger(self)
        except MachineError as error:
            raise StateError(f"capture of step {self.step}: cannot {trigger} while {self.state}") from error

    def join(self, step: int, entry: EngineEntry, save: Callable[[], object]) -> None:
        """Add a window that begins while the capture runs; one of the same step keeps it open. `save` writes its entry."""
        self._joined.append((entry, save))
        self._open += step == self.step

    def leave(self) -> None:
        """Note that a window of its step has ended; the last one ends the capture."""
        self._open -= 1
        if self._open <= 0:
            self.ended_ns = real_time.time_ns()
            self.stop.set()

    def cap(self, by: str) -> None:
        """End it before its window does."""
        if not self.stop.is_set():
            self.capped_by = by
            self.stop.set()

    def begin_late(self, seconds: float) -> None:
        """Note that the window began without it, after this many seconds."""
        self.begun_ns = self.begun_ns or real_time.time_ns()
        late = f"start acknowledged after more than {seconds:.3g} s; the beginning of the window is missing"
        self.late = self.late or late

    def note_unanswered(self) -> None:
        """Note for how long the stop has not been answered; a capture that has an outcome keeps it."""
        end = self.entry.end_unix_ns
        if end is None or not self.entry.pending:
            return
        waited = (real_time.time_ns() - end) / 1e9
        what = "its window has closed, and its stop has not been answered"
        self.record_outcome(
            "lost",
            f"{what} within {waited:.3g} s; files that arrive later are kept",
            ReasonCode.STOP_UNANSWERED,
            pending=True,
        )

    def fail(self, status: Outcome, error: str, code: ReasonCode, health: str) -> None:
        """Note that the capture failed, with the health of the engine, in the entry of every window that relied on it."""
        for entry in (self.entry, *(entry for entry, _ in self._joined)):
            entry.health = health
        self.disown(status, error, code)

    def disown(self, status: Outcome, error: str, code: ReasonCode) -> None:
        """Note that the capture failed although the engine is well."""
        for entry, save in self._joined:
            entry.update(
                status=status,
                pending=False,
                reason_code=code,
                error=error,
                stop_seconds=self.entry.stop_seconds,
            )
            save()
        self.record_outcome(status, error, code)

    def keep(self, artifacts: list[dict[str, object]], lacking: str | None) -> None:
        """Note the files of the window, and what they lack."""
        if lacking:
            self.record_outcome("partial", lacking, ReasonCode.INCOMPLETE, artifacts=artifacts)
        else:
            self.record_outcome("complete", artifacts=artifacts)

    def record_outcome(
        self,
        status: Outcome,
        error: str | None = None,
        code: ReasonCode | None = None,
        *,
        pending: bool = False,
        **fields: object,
    ) -> None:
        """Note an outcome and write it; a `pending` one will be replaced if this process lives."""
        self.entry.update(status=status, pending=pending, reason_code=code, error=error, **fields)
        self.save()

"""The four states of a target, and whose turn it is to change them. Knows no backend.

A plain synchronous ``transitions.Machine``: its asynchronous sibling cancels concurrent triggers silently, its locked one costs
five times as much. Whoever acts on a target holds its turn from the check over the act to the commit, so a thread that comes in
between waits, and one that comes back into its own act (a signal handler, a finalizer) is refused instead of deadlocked.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import cast

from transitions import EventData, Machine, MachineError, Transition

from stepprof.errors import StateError
from stepprof.log import logger
from stepprof.status import Status

__all__ = ["STATES", "TRANSITIONS", "TargetMachine", "Turn"]

STATES: tuple[Status, ...] = ("idle", "armed", "recording", "flushing")

TRANSITIONS: tuple[tuple[str, str, str], ...] = (
    ("arm", "idle", "armed"),
    ("start", "armed", "recording"),
    ("stop", "recording", "flushing"),
    ("done", "flushing", "idle"),
    ("abort", "armed", "idle"),
    ("abort", "recording", "idle"),
    ("abort", "flushing", "idle"),
)
"""(trigger, source, destination)."""


_NAME = "stepprof"


def _not_ours(record: logging.LogRecord) -> bool:
    """Keep the library's own chatter about our machine out of the application's log: each transition has its one line."""
    return not (record.args and isinstance(record.args, tuple) and str(record.args[0]).startswith(_NAME))


logging.getLogger("transitions.core").addFilter(_not_ours)


class _Plain(Transition):
    """A transition without conditions and callbacks, as all of ours are: looking for them is half of what the library's own costs."""

    def execute(self, event_data: EventData) -> bool:
        """Change the state."""
        event_data.machine.set_state(cast("str", self.dest), event_data.model)
        return True


class _Machine(Machine):
    transition_cls = _Plain


class TargetMachine:
    """The state of one target. `check` before the act, `commit` after it; each commit is one log line.

    Args:
        target: its label, as in logs (``rank-0``).
    """

    state: Status

    def __init__(self, target: str) -> None:
        self.target = target
        self.holder = "nobody"
        self.since = time.monotonic()
        self._machine = _Machine(
            model=self,
            states=list(STATES),
            transitions=[list(transition) for transition in TRANSITIONS],
            initial="idle",
            name=_NAME,
            auto_transitions=False,
            model_override=False,
        )

    def check(self, trigger: str) -> None:
        """Raise StateError where the trigger is illegal now; it names the state and who holds it."""
        if trigger not in self._machine.get_triggers(self.state):
            raise StateError(f"{self.target}: cannot {trigger} while {self.state} (held by {self.holder})")

    def commit(self, trigger: str, holder: str, **fields: object) -> None:
        """Change the state, note who holds it, and log the transition. Raises StateError where it is illegal."""
        source, started = self.state, self.since
        try:
            self._machine.events[trigger].trigger(self)
        except (MachineError, KeyError) as error:
            raise StateError(
                f"{self.target}: cannot {trigger} while {source} (held by {self.holder})"
            ) from error
        self.holder = "nobody" if self.state == "idle" else holder
        self.since = time.monotonic()
        if logger.tells("info"):
            entries = {key: value for key, value in fields.items() if value is not None}
            logger.info(
                "transition",
                **{"from": source, "to": self.state, "target": self.target},
                seconds=round(self.since - started, 6),
                **entries,
            )


class Turn:
    """Who may act on a target: a lock that tells a thread which comes back into its own act from one that may begin."""

    def __init__(self) -> None:
        # reentrant, so that a signal handler that interrupts `take` or `give` at any bytecode can neither deadlock nor act twice
        self._lock = threading.RLock()
        self._acting = False

    def take(self, timeout: float) -> bool:
        """Wait for the turn, ``timeout`` seconds at most (0: do not wait). Raises StateError where this thread has it already."""
        taken = self._lock.acquire(timeout=timeout) if timeout > 0 else self._lock.acquire(blocking=False)
        if taken:
            if self._acting:
                self._lock.release()
                raise StateError(
                    "this thread is already acting on the target: a handler that comes in between can only post a request"
                )
            self._acting = True
        return taken

    def give(self) -> None:
        """End the turn."""
        self._acting = False
        self._lock.release()

    def reclaim(self) -> None:
        """Let go of whatever this thread still has: an interrupt came between an act and its end, and nobody will end it."""
        if self._lock.acquire(blocking=False):
            self._acting = False
            with suppress(RuntimeError):  # raised by the release that is one too many: then it is free
                while True:
                    self._lock.release()

    @property
    def taken(self) -> bool:
        """Whether another thread acts now."""
        if not self._lock.acquire(blocking=False):
            return True
        self._lock.release()
        return False

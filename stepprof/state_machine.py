"""The four states of a target, and whose turn it is to change them. Knows no backend.

A plain synchronous ``transitions.Machine``: its asynchronous sibling cancels concurrent triggers silently, its locked one costs
five times as much. Whoever acts on a target holds its turn from the check over the act to the commit, so a thread that comes in
between waits, and one that comes back into its own act (a signal handler, a finalizer) is refused instead of deadlocked.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from transitions import Event, Machine, MachineError

from stepprof.errors import StateError
from stepprof.instrument.state import Status
from stepprof.log import logger

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


class _Event(Event):
    """A trigger without conditions, callbacks and queue, as all of ours are: looking for them is most of what the library's own costs.

    Nor does it have the library's own lines in the log: each transition of ours has its one line.
    """

    def trigger(self, model: Any, *_: object, **__: object) -> bool:
        """Change the state of one target."""
        for transition in self.transitions.get(model.state, ()):
            model.state = transition.dest
            return True
        raise MachineError(f"cannot {self.name} from {model.state}")


class _Machine(Machine):
    event_cls = _Event


_MACHINE = _Machine(
    model=None,
    states=list(STATES),
    transitions=[list(transition) for transition in TRANSITIONS],
    initial="idle",
    auto_transitions=False,
)
"""One for all targets: each holds its own state."""


def _log(fields: dict[str, object]) -> None:
    logger.info("state.changed", **fields)


class TargetMachine:
    """The state of one target. `check` before the act, `commit` after it; each commit is one log line.

    Args:
        target: its label, as in logs (``rank-0``).
        tell: writes the line, or sees to it that it is written soon.
    """

    state: Status

    def __init__(self, target: str, tell: Callable[[dict[str, object]], object] = _log) -> None:
        self.target = target
        self._tell = tell
        self.holder = "nobody"
        self.since = time.monotonic()
        self.state = "idle"

    def check(self, trigger: str) -> None:
        """Raise StateError where the trigger is illegal now; it names the state and who holds it."""
        if trigger not in _MACHINE.get_triggers(self.state):
            raise StateError(f"{self.target}: cannot {trigger} while {self.state} (held by {self.holder})")

    def commit(self, trigger: str, holder: str, **fields: object) -> None:
        """Change the state, note who holds it, and log the transition. Raises StateError where it is illegal."""
        source, started = self.state, self.since
        try:
            _MACHINE.events[trigger].trigger(self)
        except (MachineError, KeyError) as error:
            raise StateError(
                f"{self.target}: cannot {trigger} while {source} (held by {self.holder})"
            ) from error
        self.holder = "nobody" if self.state == "idle" else holder
        self.since = time.monotonic()
        if logger.tells("info"):
            said = {key: value for key, value in fields.items() if value is not None}
            line = {"from": source, "to": self.state, "target": self.target}
            self._tell({**line, "seconds": round(self.since - started, 6), **said})


class Turn:
    """Who may act on a target: one thread at a time.

    Whoever takes it holds it for as long as the function runs that took it. So a turn that an interrupt (Ctrl-C, `ray.cancel`) kept from
    being given back is found out by whoever comes next, since that function is on no stack any more; and a thread that comes back into
    its own act is told from one that may begin. Taking and giving are one operation of a dict each, which no interrupt can divide.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, FrameType]] = {}
        # reentrant, since a signal handler may come in between
        self._looking = threading.RLock()

    def take(self, timeout: float, *, by: FrameType | None = None) -> bool:
        """Wait for the turn, ``timeout`` seconds at most (0: do not wait). Raises StateError where this thread has it already.

        Args:
            timeout: how long to wait, in seconds.
            by: the frame of the function that acts, and gives it back; None: the caller's.
        """
        mine = (threading.get_ident(), by or sys._getframe(1))
        deadline = time.monotonic() + timeout
        pause = 0.0001
        while self._held.setdefault("turn", mine) is not mine:
            holder = self._holder()
            if holder is None:
                continue
            if holder[0] == mine[0]:
                raise StateError(
                    "this thread is already acting on the target: a handler that comes in between can only post a request"
                )
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(pause * 2, 0.002)
        return True

    def give(self) -> None:
        """End the turn."""
        self._held.pop("turn", None)

    def _holder(self) -> tuple[int, FrameType] | None:
        """Who has it; one whose act is on no stack any more loses it."""
        holder = self._held.get("turn")
        if holder is None or _runs(*holder):
            return holder
        with self._looking:
            if self._held.get("turn") is holder:
                del self._held["turn"]
        return None

    @property
    def taken(self) -> bool:
        """Whether another thread acts now."""
        holder = self._holder()
        return holder is not None and holder[0] != threading.get_ident()


def _runs(thread: int, frame: FrameType) -> bool:
    """Whether this frame is on the stack of that thread."""
    top = sys._current_frames().get(thread)
    while top is not None and top is not frame:
        top = top.f_back
    return top is not None

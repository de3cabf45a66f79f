"""The four states of a target, as `transitions` state machines. Knows no backend and no engine.

`TargetMachine` is the machine of the local target: it makes the calls of the backend as part of its transitions. `EngineTargetMachine` has the same states
for an engine, whose calls are asynchronous and precede the transition.

Both are synchronous. The library's asynchronous machine cancels concurrent triggers silently, and its locked one costs five times as much:
`stepprof.recording.exclusive_access` keeps two threads from changing the local target at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from transitions import Event, Machine, MachineError

from stepprof.errors import StateError
from stepprof.host import real_time
from stepprof.instrument.state import Status
from stepprof.interrupts import ours
from stepprof.log import logger

STATES: tuple[Status, ...] = ("idle", "armed", "recording", "flushing")

TRANSITIONS: tuple[dict[str, Any], ...] = (
    {"trigger": "arm", "source": "idle", "dest": "armed"},
    {"trigger": "start", "source": "armed", "dest": "recording"},
    {"trigger": "stop", "source": "recording", "dest": "flushing", "conditions": "on_owning_thread"},
    {"trigger": "done", "source": "flushing", "dest": "idle"},
    {"trigger": "abort", "source": ["armed", "recording", "flushing"], "dest": "idle"},
)


class LightEvent(Event):
    """A trigger that checks conditions, acts, changes the state and calls back, without the
    library's queue, event object and log.

    Those take 20 us per transition when the training loop has left the caches cold: an eighth of a
    recorded window without a profiler. With a thousand engines they take a fifth of the time in
    which a window starts them all.
    """

    def trigger(
        self, model: Any, *_: object, act: Callable[[], object] | None = None, **fields: object
    ) -> bool:
        """Change the state of one target. ``act`` is called before; if it raises, the state stays."""
        machine: Any = self.machine
        for transition in self.transitions.get(model.state, ()):
            if not all(getattr(model, str(each.func))() for each in transition.conditions):
                return False
            if act is not None:
                act()
            source, model.state = model.state, transition.dest
            for name in machine.after_state_change:
                getattr(model, name)(source, fields)
            return True
        raise machine.refuse(model, self.name)


class LightMachine(Machine):
    """A machine for many models, each of which has its own ``state``."""

    event_cls = LightEvent

    def refuse(self, model: Any, trigger: str) -> Exception:
        """Return the error for a trigger that is illegal now."""
        return MachineError(f"cannot {trigger} from {model.state}")


class _LocalMachine(LightMachine):
    def refuse(self, model: Any, trigger: str) -> Exception:
        error: StateError = model.refused(trigger)
        return error


class TargetMachine:
    """The state machine of the local target.

    A trigger takes ``holder``, ``step`` and ``role`` of the window that will hold the target, and
    fields for the log line. `arm` and `start` also take ``act``: it is called before the state
    changes; if it raises, the state stays. An illegal trigger raises StateError; the message names
    the state and the holder. `stop` changes nothing, and returns False, on a thread that may not
    stop the capture.

    >>> machine = TargetMachine("rank-0")
    >>> machine.may_start(), machine.arm(holder="actor/0 of step 2"), machine.may_start(), machine.state
    (False, True, True, 'armed')

    Args:
        target: its name in the log (``rank-0``).
    """

    state: Status
    arm: Callable[..., bool]
    start: Callable[..., bool]
    stop: Callable[..., bool]
    done: Callable[..., bool]
    abort: Callable[..., bool]
    may_arm: Callable[[], bool]
    may_start: Callable[[], bool]
    may_stop: Callable[[], bool]

    def __init__(self, target: str) -> None:
        self.target = target
        self.hold("no window", None, None)
        self.since = real_time.monotonic()
        self.owner: int | None = None
        """The only thread that may stop the capture; None: any thread may."""
        _LocalMachine(
            self,
            states=list(STATES),
            transitions=list(TRANSITIONS),
            initial="idle",
            auto_transitions=False,
            after_state_change="_note_change",
        )

    def hold(self, holder: str, step: int | None, role: str | None) -> None:
        """Note the window that holds the target."""
        self.holder, self.step, self.role = holder, step, role

    def refused(self, trigger: str) -> StateError:
        """Return the error for a trigger that is illegal now."""
        return StateError(f"{self.target}: cannot {trigger} while {self.state} (held by {self.holder})")

    def on_owning_thread(self) -> bool:
        """Return whether the calling thread may stop the capture."""
        return self.owner is None or self.owner == threading.get_ident()

    def _note_change(self, source: str, fields: dict[str, Any]) -> None:
        """Note the holder, and log the transition."""
        started, self.since = self.since, real_time.monotonic()
        if self.state == "idle":
            self.hold("no window", None, None)
        else:
            self.hold(fields["holder"], fields.get("step"), fields.get("role"))
        if logger.is_enabled("info"):
            del fields["holder"]
            logger.info("state.changed", **_line(source, self, self.since - started, fields))


_ENGINES = LightMachine(
    model=None,
    states=list(STATES),
    transitions=[{key: each[key] for key in ("trigger", "source", "dest")} for each in TRANSITIONS],
    initial="idle",
    auto_transitions=False,
)
"""One machine for all engines; each target has its own state."""


class EngineTargetMachine:
    """The state machine of one attached engine.

    Args:
        target: its name in the log (``rollout/0``).
        write: writes the log line, now or soon.
    """

    state: Status

    def __init__(self, target: str, write: Callable[[dict[str, object]], object]) -> None:
        self.target = target
        self._write = write
        self.since = real_time.monotonic()
        self.state = "idle"

    def commit(self, trigger: str, **fields: object) -> None:
        """Change the state after the engine has answered, and log the transition. Raises StateError if the trigger is illegal."""
        source, started = self.state, self.since
        try:
            _ENGINES.events[trigger].trigger(self)
        except ours(MachineError, KeyError) as error:
            raise StateError(f"{self.target}: cannot {trigger} while {source}") from error
        self.since = real_time.monotonic()
        if logger.is_enabled("info"):
            self._write(_line(source, self, self.since - started, fields))


def _line(
    source: str, machine: TargetMachine | EngineTargetMachine, seconds: float, fields: dict[str, object]
) -> dict[str, object]:
    """Return the fields of the log line of a transition."""
    said = {key: value for key, value in fields.items() if value is not None}
    return {
        "from": source,
        "to": machine.state,
        "target": machine.target,
        "seconds": round(seconds, 6),
        **said,
    }

"""The plan for one run of the campaign: engines with their faults, and the windows of the job."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields

__all__ = ["BODIES", "FIRST", "LAST", "VERBS", "Act", "Block", "EnginePlan", "Fault", "Fork", "Op", "Plan"]

FIRST, LAST = 2, 5
"""The steps that are selected."""

START_SECONDS, STOP_SECONDS, SHUTDOWN_SECONDS, PATIENT_SECONDS = 0.025, 0.03, 0.15, 10.0
CLOSE_SECONDS = 0.5
"""The least time that the end of a run grants each driver to close."""

VERBS = ("arm", "start", "stop", "abort", "clock", "close", "expand", "announce", "wait")


class Short:
    """A base class whose `repr` omits default values, so that a failing plan can be read and kept."""

    def __repr__(self) -> str:
        said = []
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if each.default is MISSING or value != each.default:
                said.append(f"{each.name}={value!r}")
        return f"{type(self).__name__}({', '.join(said)})"


@dataclass(frozen=True, repr=False)
class Fault(Short):
    """The behaviour of one call, if it does not answer at once.

    ``what``: `ok`; `slow` and `late` answer within and after the bound; `hang` answers only when it
    is released. `raise` raises ``error``; `die` ends the engine during the call; `twice` gives the
    answer twice.
    """

    what: str = "ok"
    error: str = "unknown"
    early: bool = True
    """True: the engine acts before the fault, so that only the answer is affected. False: the call
    has no effect before the fault.
    """


@dataclass(frozen=True, repr=False)
class EnginePlan(Short):
    """One engine, how it is attached, and its faults by verb. The n-th call has the n-th fault;
    further calls have none.
    """

    role: str = "rollout"
    kind: str = "simulated"
    how: str = "object"
    """``object``, ``callable``, or ``router``, whose driver represents that of the engine."""
    result: str = "file"
    """The result of a stop: ``file``, ``nothing``, ``partial``, ``capped`` or ``later`` (the file
    arrives after the answer).
    """
    home: bool = False
    """Whether the engine lives on the event loop of the job, if there is one."""
    inside: bool = False
    faults: tuple[tuple[str, tuple[Fault, ...]], ...] = ()


@dataclass(frozen=True, repr=False)
class Act(Short):
    """An event of one engine, or of the job: `die`, `restart`, `steal`, `give back`, `release`,
    `detach`, `attach` or `pause`.

    `answered` waits until the engine has answered every call, and `armed` until it is armed after a
    stop.
    """

    what: str
    engine: int = 0


BODIES = ("with", "start", "decorated", "thread", "left open", "cancelled", "sync")
"""How a window is written. In a coroutine, `with` is ``async with``, and `sync` is a plain ``with``."""


@dataclass(frozen=True, repr=False)
class Block(Short):
    """A window and the operations inside it."""

    step: int
    role: str | None = "rollout"
    form: str = "with"
    raises: bool = False
    ops: tuple[Op, ...] = ()


@dataclass(frozen=True, repr=False)
class Fork(Short):
    """Two threads, or two tasks of a coroutine."""

    left: tuple[Op, ...]
    right: tuple[Op, ...]


Op = Act | Block | Fork


@dataclass(frozen=True, repr=False)
class Plan(Short):
    """A run: its engines, the operations of its job, and its end."""

    engines: tuple[EnginePlan, ...] = field(default_factory=lambda: (EnginePlan(),))
    ops: tuple[Op, ...] = ()
    coroutine: bool = False
    max_seconds: float | None = None
    shutdown: float | None = SHUTDOWN_SECONDS
    """The timeout of ``shutdown``. None: the timeouts of the configuration apply."""
    patient: bool = False
    """Whether the bounds are so long that only a hanging call reaches them, even on a busy machine."""
    again: tuple[Op, ...] | None = None
    """The operations of a second session in the same process with the same engines, in the state
    that the first session left.
    """

    @property
    def start_seconds(self) -> float:
        return PATIENT_SECONDS if self.patient else START_SECONDS

    @property
    def stop_seconds(self) -> float:
        return PATIENT_SECONDS if self.patient else STOP_SECONDS

    @property
    def shutdown_timeout(self) -> float | None:
        """Return the timeout of ``shutdown``. It is short if a report never arrives, because
        reports are awaited as long as exports.
        """
        faults = [
            each
            for engine in self.engines
            for verb, found in engine.faults
            for each in found
            if verb == "wait"
        ]
        if any(fault.what == "hang" for fault in faults):
            return SHUTDOWN_SECONDS
        return PATIENT_SECONDS if self.patient else self.shutdown

    @property
    def end_seconds(self) -> float:
        """Return how long the end of a session may take."""
        return self.stop_seconds + CLOSE_SECONDS if self.shutdown_timeout is None else self.shutdown_timeout

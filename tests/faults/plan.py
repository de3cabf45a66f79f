"""The plan for one run of the campaign: engines with their faults, and their windows."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields

__all__ = ["BODIES", "FIRST", "LAST", "VERBS", "Act", "Block", "EnginePlan", "Fault", "Fork", "Op", "Plan"]

FIRST, LAST = 2, 5
"""The steps that are selected."""

START_SECONDS, STOP_SECONDS, SHUTDOWN_SECONDS, PATIENT_SECONDS = 0.025, 0.03, 0.15, 10.0
CLOSE_SECONDS = 0.5
"""What the end of a run grants each driver to close, at least."""

VERBS = ("arm", "start", "stop", "abort", "clock", "close", "expand", "announce", "wait")


class Short:
    """What is as usual is not shown, so that a plan that was found can be read and kept."""

    def __repr__(self) -> str:
        said = []
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if each.default is MISSING or value != each.default:
                said.append(f"{each.name}={value!r}")
        return f"{type(self).__name__}({', '.join(said)})"


@dataclass(frozen=True, repr=False)
class Fault(Short):
    """What one call does instead of answering at once.

    ``what``: `ok`; `slow` and `late` answer within and after the bound; `hang` answers only when it is released; `raise` raises
    ``error``; `die` ends the engine in the middle of the call; `twice` gives the answer twice.
    """

    what: str = "ok"
    error: str = "unknown"
    early: bool = True
    """The engine acts before the fault, so that only the answer suffers; else the call has no effect before it."""


@dataclass(frozen=True, repr=False)
class EnginePlan(Short):
    """One engine, how it is attached, and its faults by verb: the n-th call has the n-th fault, further calls have none."""

    role: str = "rollout"
    kind: str = "simulated"
    how: str = "object"
    """``object``, ``callable``, or ``router``, whose driver represents the engine's."""
    result: str = "file"
    """What a stop brings: ``file``, ``nothing``, ``partial``, ``capped``, ``later`` (the file comes after the answer)."""
    home: bool = False
    """It lives on the event loop of the job, where there is one."""
    inside: bool = False
    faults: tuple[tuple[str, tuple[Fault, ...]], ...] = ()


@dataclass(frozen=True, repr=False)
class Act(Short):
    """Something that happens to an engine, or to all: `die`, `restart`, `steal`, `give back`, `release`, `detach`, `attach`, `pause`;
    `answered` and `armed` wait until it has answered every call, and until it is armed after a stop."""

    what: str
    engine: int = 0


BODIES = ("with", "start", "decorated", "thread", "left open", "cancelled", "sync")
"""How a window is written. In a coroutine `with` is ``async with``, and `sync` a plain ``with``."""


@dataclass(frozen=True, repr=False)
class Block(Short):
    """A window with what happens in it."""

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
    """A run: its engines, what its job does, and how it ends."""

    engines: tuple[EnginePlan, ...] = field(default_factory=lambda: (EnginePlan(),))
    ops: tuple[Op, ...] = ()
    coroutine: bool = False
    max_seconds: float | None = None
    shutdown: float | None = SHUTDOWN_SECONDS
    """The timeout of ``shutdown``; None: the timeouts of the configuration apply."""
    patient: bool = False
    """Its bounds are so long that only what hangs reaches them, however busy the machine is."""
    again: tuple[Op, ...] | None = None
    """What a second session in the same process does, with the same engines, whatever the first one left."""

    @property
    def start_seconds(self) -> float:
        return PATIENT_SECONDS if self.patient else START_SECONDS

    @property
    def stop_seconds(self) -> float:
        return PATIENT_SECONDS if self.patient else STOP_SECONDS

    @property
    def shutdown_timeout(self) -> float | None:
        """Return the timeout of ``shutdown``. Reports that never arrive are awaited for as long as exports."""
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
        """How long the end of a session may take."""
        return self.stop_seconds + CLOSE_SECONDS if self.shutdown_timeout is None else self.shutdown_timeout

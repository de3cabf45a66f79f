"""The windows and timers of one training loop that stepprof does not own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import stepprof
from stepprof.config.config import load
from stepprof.errors import StepprofError
from stepprof.instrument.context import cell
from stepprof.instrument.region import Region, region
from stepprof.instrument.step import StepWindow
from stepprof.integrations import own_profiler
from stepprof.integrations.timer_switch import timers
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.recording.lifecycle import open_session
from stepprof.recording.session import current_session
from stepprof.untraced import untraced

if TYPE_CHECKING:
    from stepprof.integrations.adapter import Adapter

EVAL = "eval"
"""The role of an evaluation."""

STANDS_STILL = 200
"""After so many batches without an optimizer step it is logged if a selected step is still to come."""

_logged: set[str] = set()
_claims: list[TrainingLoop] = []


def ensure_session(name: str, config: Any = None, process: str | None = None) -> bool:
    """Start the session of this process from the environment, unless it has one.

    Call it late: when the rank and the world size of the job are known.

    Args:
        name: the adapter, for the log.
        config: what `stepprof.init` gets; None: the environment's.
        process: what the process is called if it has no rank.

    Returns:
        Whether the session is one that an adapter started: then the adapter opens the windows.
    """
    session = current_session()
    if session is None:
        try:
            if config is None:
                own_profiler.refuse(name)
            untraced(lambda: open_session(load(config), name=process))
        except ours(StepprofError, OSError) as error:
            if _first("not started", name):
                logger.warning("adapter.not_started", name=name, reason=str(error))
            return False
        session = current_session()
        if session is None:
            return False
        session.by_adapter = True
    if not session.by_adapter and not session.lent and _first("yielded", name):
        logger.info("adapter.yielded", name=name)
    return session.by_adapter


def start_session(
    name: str, attach: Callable[[], None], config: Any = None, process: str | None = "driver"
) -> bool:
    """Start the session of a process that drives others, and attach these: all or none.

    Args:
        name: the adapter, for the log.
        attach: attaches the other processes; if it raises, the session ends.
        config: what `stepprof.init` gets; None: the environment's.
        process: what the process is called if it has no rank.

    Returns:
        Whether the session is one that an adapter started.
    """
    if not ensure_session(name, config, process):
        return False
    try:
        attach()
    except BaseException:
        stepprof.shutdown()
        raise
    return True


def is_incomplete(name: str, adapters: Iterable[Adapter]) -> bool:
    """Return whether one of a framework's adapters was refused, and log which one; no session starts then.

    Args:
        name: of the framework, for the log.
        adapters: of the framework; one whose module is not imported is not missed.
    """
    entries = [(each.name, cell.adapters.get(each.name)) for each in adapters]
    refused = [
        f"{each} ({entry['status']})"
        for each, entry in entries
        if entry is not None and entry["status"] not in ("attached", "untested")
    ]
    if refused:
        logger.warning("adapter.not_started", name=name, reason=f"not attached: {', '.join(refused)}")
    return bool(refused)


def _first(what: str, name: str) -> bool:
    """Return whether an adapter reports this for the first time."""
    reported = f"{what} {name}" in _logged
    _logged.add(f"{what} {name}")
    return not reported


def end_evaluations(
    opened: Iterable[tuple[TrainingLoop, StepWindow | None]] | None, error: BaseException | None
) -> None:
    """Close the windows of an evaluation, each with the loop that opened it; None: none was opened."""
    for loop, window in opened or ():
        loop.end_evaluation(window, error)


def _timers_matter() -> bool:
    """Return whether timers record anything in the step that has just begun: it is recorded, or
    spans are kept. A timer with a role also counts if the role can be recorded alone or has
    engines.
    """
    session = current_session()
    if session is None:
        return False
    recorder, config = session.recorder, session.config
    alone = config.capture_per != "step" or bool(config.roles) or session.fleet is not None
    return recorder.keep or recorder.hook is not None or alone


class TrainingLoop:
    """The windows of one loop: one for each optimizer step, whatever the gradient accumulation.

    Args:
        name: the adapter, for the log.
        always: open windows also in a session that the job started itself.
    """

    def __init__(self, name: str, *, always: bool = False) -> None:
        self._name = name
        self._always = always
        self._window: StepWindow | None = None
        self._step: int | None = None
        self._repeated = 0
        """How often the open step was begun again."""

    @property
    def step(self) -> int | None:
        """Return the step whose window is open; None: none is."""
        return self._step

    def claim(self) -> None:
        """Claim the steps: a loop of a library below this one opens no windows until `release`."""
        if self not in _claims:
            _claims.append(self)

    def release(self) -> None:
        """Let other loops open windows again."""
        if self in _claims:
            _claims.remove(self)

    @property
    def is_claimed_elsewhere(self) -> bool:
        """Return whether another loop opens the windows now."""
        return any(each is not self for each in _claims)

    @property
    def is_recording(self) -> bool:
        """Return whether this process records a step now."""
        recorder = cell.recorder
        return recorder is not None and recorder.hook is not None

    def begin(self, step: int) -> bool:
        """Open the window of a step and close the one before.

        Args:
            step: the framework's number of the step that begins. The same one again: nothing happens.

        Returns:
            Whether it was opened by this call.
        """
        if step == self._step and self._window is not None:
            self._repeated += 1
            if self._repeated == STANDS_STILL:
                self._say_if_missed(step, None)
            return False
        if self._step is not None and step > self._step + 1:
            self._say_if_missed(self._step, step)
        self._repeated = 0
        self.end()
        if not ensure_session(self._name) and not (self._always and cell.session is not None):
            return False
        self._step = step
        self._window = stepprof.profile_step(step).start()
        timers.turn(_timers_matter())
        return True

    def _say_if_missed(self, step: int, following: int | None) -> None:
        """Log once that a selected step does not come, because the framework's number passes over it or stands still.

        Args:
            step: whose window is open.
            following: the next step; None: the number stands still.
        """
        session = current_session()
        if session is None:
            return
        missed = session.selector.next_selected(step, None)
        if missed >= (sys.maxsize if following is None else following):
            return
        reason = (
            f"the step has not changed over {STANDS_STILL} batches: does an optimizer step without the framework?"
            if following is None
            else f"the framework's number goes from {step} to {following}"
        )
        if _first("step missed", self._name):
            logger.warning("adapter.step_missed", name=self._name, step=missed, reason=reason)

    def end(self, error: BaseException | None = None) -> None:
        """Close the window that is open, if any; `error` is what ended the step."""
        window, self._window, self._step = self._window, None, None
        timers.turn(True)
        if window is not None and window._start:
            window.stop(error)

    def evaluation(self, step: int) -> StepWindow | None:
        """Open the window of an evaluation, with a role of its own; None in a session of the job's own.

        Args:
            step: the framework's number of the last finished step.
        """
        if not ensure_session(self._name) and not (self._always and cell.session is not None):
            return None
        return stepprof.profile_step(step if self._step is None else self._step, EVAL).__enter__()

    def end_evaluation(self, window: StepWindow | None, error: BaseException | None = None) -> None:
        """Close the window of an evaluation."""
        if window is not None:
            window.__exit__(None if error is None else type(error), error, None)


def end_jobs(jobs: list[Any], begun: bool | None, error: BaseException | None) -> None:
    """End the session with the training that began it.

    Args:
        jobs: of this process, each with its `loop`; emptied.
        begun: whether the adapter started the session.
        error: what ended the training.
    """
    if begun:
        for job in jobs:
            job.loop.end(error)
        jobs.clear()
        stepprof.shutdown()


def open_timer(name: str, role: str | None = None) -> StepWindow | Region | None:
    """Begin what a framework's timer measures: a region, or the window of a role.

    Args:
        name: of the region.
        role: opens a window of this role instead, in an open step that no evaluation is part of.

    Returns:
        What `close_timer` takes; None if there is nothing to record.
    """
    recorder = cell.recorder
    if recorder is None or (recorder.hook is None and not recorder.keep and role is None):
        return None
    if role is not None:
        where = recorder.where()
        session = current_session()
        if where is not None and where.role != EVAL and session is not None and session.by_adapter:
            timers.busy += 1
            return stepprof.profile_step(where.number, role).__enter__()
    timers.busy += 1
    return region(name).__enter__()


def close_timer(timer: StepWindow | Region | None, error: BaseException | None = None) -> None:
    """End what `open_timer` returned; `error` is what ended it."""
    if timer is not None:
        timers.busy -= 1
        timer.__exit__(None if error is None else type(error), error, None)

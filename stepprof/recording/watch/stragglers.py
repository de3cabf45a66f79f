"""Find ranks that fall behind, in one process of the run, from the published status files.

A thousand ranks that each read a thousand files would be a load, so only rank 0 (or the driver)
looks, every few seconds. The published steps are some seconds old, so a lag is in seconds: the
number of steps behind the median, times the duration of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.host import real_time
from stepprof.log import logger
from stepprof.recording.watch.baseline import median_of
from stepprof.run.reachable_steps import reachable_step
from stepprof.run.status import LIVE, read_statuses

if TYPE_CHECKING:
    from stepprof.instrument.scope import Span
    from stepprof.instrument.span_recorder import Recorder
    from stepprof.recording.control.auto_capture import AutoCaptures

EVERY_SECONDS = 10.0
"""Seconds between two looks at the other ranks."""

LEAST_RANKS = 3
"""Minimum number of ranks: of two, neither is the usual one."""

OBSERVERS = (0, "driver")


@dataclass(frozen=True, slots=True)
class Lag:
    """A rank that is behind."""

    rank: int
    step: int
    median_step: int
    seconds: float


def lags(statuses: Sequence[dict[str, Any]], lag_seconds: float) -> list[Lag]:
    """Return the ranks at least `lag_seconds` behind the median of all live ones, by their statuses."""
    live = [
        status
        for status in statuses
        if status["condition"] == LIVE and isinstance(status["rank"], int) and status["step"] is not None
    ]
    seconds = [status["step_seconds"] for status in live if status["step_seconds"] is not None]
    if len(live) < LEAST_RANKS or not seconds:
        return []
    usual, pace = int(median_of([status["step"] for status in live])), median_of(seconds)
    found = [
        Lag(status["rank"], status["step"], usual, round((usual - status["step"]) * pace, 3))
        for status in live
    ]
    return [lag for lag in found if lag.seconds >= lag_seconds]


@dataclass(eq=False)
class LagFinder:
    """A span reader that looks at the other ranks. It logs a rank once, until the rank has caught up."""

    run: Path
    """The run directory."""
    lag_seconds: float
    """The lag that is logged."""
    rank: Callable[[], int | str]
    """Returns the rank of this process."""
    recorder: Recorder
    """Receives the marks."""
    captures: AutoCaptures
    """Requests a recorded step of the rank."""

    name = "looking for ranks that lag"
    _looked: float = field(default_factory=real_time.monotonic, init=False)
    _behind: set[int] = field(default_factory=set, init=False)

    def take(self, spans: Sequence[Span]) -> None:
        """Ignore this process's own spans."""

    def look(self) -> None:
        """Look at the other ranks from time to time, in one process."""
        now = real_time.monotonic()
        if now - self._looked < EVERY_SECONDS or self.rank() not in OBSERVERS:
            return
        self._looked = now
        statuses = read_statuses(self.run)
        found = lags(statuses, self.lag_seconds)
        new = [lag for lag in found if lag.rank not in self._behind]
        self._behind = {lag.rank for lag in found}
        if not new:
            return
        worst = max(new, key=lambda lag: lag.seconds)
        facts: dict[str, object] = {
            "step": worst.step,
            "median_step": worst.median_step,
            "seconds_behind": worst.seconds,
            "ranks_behind": len(self._behind),
        }
        step = reachable_step([status for status in statuses if status["rank"] == worst.rank])
        outcome = self.captures.record_elsewhere("rank lags", facts, worst.rank, step)
        self.recorder.instant("rank lags", "mark", {"rank": worst.rank, **facts, "capture": outcome})
        logger.warning("watch.rank_lags", lagging_rank=worst.rank, **facts, capture=outcome)

    def close(self, timeout: float) -> None:
        """Do nothing: there is no rest."""

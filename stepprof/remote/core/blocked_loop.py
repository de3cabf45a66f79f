"""Handle engines on the event loop that a synchronous window blocks: they cannot answer while it
waits.

Calls to all other engines run on stepprof's own loop. So only these engines are refused at the
entry of a synchronous window, and not awaited at its exit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stepprof.log import logger

if TYPE_CHECKING:
    import asyncio

    from stepprof.remote.core.engine_target import EngineTarget

NOT_STARTED = (
    "nothing was sent: the engine lives on the event loop that this synchronous window blocks, and could not answer; "
    'write "async with stepprof.profile_step(…)"'
)

STOPPED_LATE = (
    "synchronous code on the event loop that the engine lives on ended the window, and could not wait for its stop: the capture goes "
    'on beyond the window; write "async with stepprof.profile_step(…)", "await window.astop()" or '
    '"await asyncio.to_thread(stepprof.shutdown)"'
)

HINT = (
    "the synchronous window blocked the event loop of its thread meanwhile: if the engine needs that loop to answer, write "
    '"async with stepprof.profile_step(…)"'
)


class OwnLoop:
    """The two warnings about such engines, each logged once per session, not at every recorded step."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def warn_not_started(self, target: EngineTarget) -> None:
        """Log that an engine was not started."""
        if self._is_new(NOT_STARTED):
            logger.warning("engine.not_started", target=target.label, reason=NOT_STARTED)

    def warn_stopped_late(self, targets: Iterable[EngineTarget]) -> None:
        """Log that the stops of engines could not be awaited."""
        labels = ", ".join(target.label for target in targets)
        if labels and self._is_new(STOPPED_LATE):
            logger.warning("engine.stop_not_awaited", target=labels, reason=STOPPED_LATE)

    def _is_new(self, reason: str) -> bool:
        is_new = reason not in self._logged
        self._logged.add(reason)
        return is_new


def runs_on(target: EngineTarget, loop: asyncio.AbstractEventLoop | None) -> bool:
    """Return whether an engine lives on this event loop; False without a loop."""
    return loop is not None and target.driver.loop is loop

"""Log which window an engine records first, if it is attached inside a recorded window."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepprof.instrument.context import open_windows
from stepprof.instrument.step import StepWindow
from stepprof.log import logger

if TYPE_CHECKING:
    from stepprof.recording.selector import Selector
    from stepprof.remote.engine import Engine


def warn_if_inside(engine: Engine, selector: Selector) -> None:
    """Log one line if a window that the engine would have followed is being recorded."""
    for window in _recorded():
        step, role = window.number, window.role
        if step is not None and (engine.follows(role) or role is None):
            logger.warning(
                "attach.inside_window",
                engine=engine.name,
                step=step,
                role=role,
                takes_part_from=_next(engine, selector, step, role),
            )
            return


def _recorded() -> Iterator[StepWindow]:
    """Yield the open selected windows, the one entered last first."""
    for window in open_windows():
        if isinstance(window, StepWindow) and window._after:
            yield window


def _next(engine: Engine, selector: Selector, step: int, role: str | None) -> str:
    """Name the first window that it can follow."""
    following = selector.next_selected(step, engine.role)
    if not engine.follows(role):  # a window of its own role may still follow in this step
        following = step
    if following >= sys.maxsize:
        return "no window: no later step is selected"
    return f"the first window of role {engine.role} in step {following}"

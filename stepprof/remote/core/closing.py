"""Close a driver at the end of an attachment, within a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from stepprof.log import logger
from stepprof.remote.core.constants import RANKS
from stepprof.remote.loop import drop_result
from stepprof.run.manifest_writer import describe_error

if TYPE_CHECKING:
    from stepprof.remote.base import EngineDriver

LEAST_SECONDS = 0.5
"""The minimum time for the answer to a driver's close, even if the stop before it used up the whole limit."""


async def close(driver: EngineDriver, label: str, *, answer_seconds: float, timeout: float) -> None:
    """Close a driver. Never raises, and cancels nothing: a driver that hangs is left behind.

    Args:
        driver: the driver.
        label: the name of its engine in the log.
        answer_seconds: how long to wait for an engine that does not answer.
        timeout: how long to wait for exports; only sessions of other processes have exports.
    """
    answers = max(answer_seconds, LEAST_SECONDS)
    closing = asyncio.ensure_future(_call(driver.close, max(timeout, 0.0), answers))
    bound = max(timeout, answers) + LEAST_SECONDS if driver.kind in RANKS else answers
    done, _ = await asyncio.wait([closing], timeout=bound)
    if not done:
        reason = f"no answer within {bound:.3g} s"
        closing.add_done_callback(drop_result)
    elif (error := _error_of(closing)) is not None:
        reason = describe_error(error)
    else:
        return
    logger.warning("engine.not_closed", target=label, name=driver.name, reason=reason)


async def _call(act: Callable[[float, float], Awaitable[object]], timeout: float, answers: float) -> object:
    """Close it. A driver of another package may raise before it can be awaited."""
    return await act(timeout, answers)


def _error_of(task: asyncio.Future[object]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()

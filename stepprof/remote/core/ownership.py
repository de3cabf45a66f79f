"""Let one driver at a time hold an engine's profiler.

An engine has one profiler, and several jobs may drive the engine. A driver takes the engine's slot
(`stepprof.remote.core.owner_slots`) before its start and releases it after its stop. A living
holder's capture is left alone (`busy`). A dead holder's capture is stopped, and kept under its own
run.
"""

from __future__ import annotations

import asyncio
import uuid
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from stepprof.host.process_identity import writer_identity
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.remote.base import EngineFailure, EngineWindow, Stopped
from stepprof.remote.core.inherited_captures import keep, kept_there
from stepprof.remote.core.owner_slots import FileSlot, Held
from stepprof.remote.loop import in_thread

if TYPE_CHECKING:
    from stepprof.remote.core.owner_slots import Finisher, Slot

T = TypeVar("T")

BEAT_SECONDS = 10.0
"""Interval of the signs of life of a file's holder."""

_TRIES = 5


class Hold:
    """One driver's hold on its engine's profiler. Its coroutines run on stepprof's own loop.

    Args:
        name: the name of the engine in messages.
        slot: the note of the holder; None: not known yet (`slot` is set before the first use).
    """

    def __init__(self, name: str, slot: Slot | None = None) -> None:
        self._name = name
        self.slot = slot
        self.held: Held | None = None
        """The hold that this driver has taken."""
        self._token = uuid.uuid4().hex[:16]
        self._beating: asyncio.Task[None] | None = None
        _living[self._token] = self

    @classmethod
    def of(cls, name: str, slot: Slot | None, held: Held) -> Hold:
        """Return the hold of a driver that has ended, for the driver that ends its capture."""
        hold = cls(name, slot)
        hold.held, hold._token = held, held.token
        return hold

    def retire(self) -> None:
        """Leave: a capture that is still held counts as left by a driver that has ended."""
        _living.pop(self._token, None)
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.get_loop().call_soon_threadsafe(beating.cancel)

    async def take(
        self,
        window: EngineWindow,
        *,
        driver: Finisher | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Become the holder for a window.

        Args:
            window: what will be recorded.
            driver: ends it on behalf of another driver of this process.
            state: what another process needs to find the files, JSON-able.

        Raises:
            EngineFailure: another driver holds it; that driver is left alone.
        """
        assert self.slot is not None  # noqa: S101 - narrows a type; no input decides it
        here = writer_identity()
        held = Held(self._token, here, window.owner or here, window, state or {}, driver)
        for _ in range(_TRIES):
            if await _do(self.slot, self.slot.take, held):
                self.held = held
                if isinstance(self.slot, FileSlot):
                    self._beating = asyncio.ensure_future(_beat(self.slot))
                return
            other = await _do(self.slot, self.slot.read)
            if other is not None:
                raise self.busy(other)
        raise EngineFailure(
            f"{self._name}: other drivers acquire and release it too fast; nothing was sent", "busy"
        )

    async def give(self) -> None:
        """Release it, if it is held."""
        held, self.held = self.held, None
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
        if held is not None and self.slot is not None:
            await _do(self.slot, self.slot.give, held.token)

    async def close(self, revive: Callable[[Held], Finisher], timeout: float) -> None:
        """End this driver's open capture within this many seconds, and leave. Raises nothing."""
        if self.held is not None:
            ending = asyncio.ensure_future(self.settle(revive))
            ending.add_done_callback(self._log_failed_end)
            await asyncio.wait({ending}, timeout=timeout)
        self.retire()

    def _log_failed_end(self, ending: asyncio.Future[None]) -> None:
        """Log why an end has failed, even if the wait for it was over."""
        if not ending.cancelled() and ending.exception() is not None:
            logger.warning("capture.left", name=self._name, reason=str(ending.exception()))

    @property
    def ending(self) -> asyncio.Lock:
        """Return the lock of the capture that this driver holds."""
        return asyncio.Lock() if self.held is None else self.held.ending

    async def stop(
        self, window: EngineWindow, end: Callable[[], Awaitable[Stopped]], forget: Callable[[], object]
    ) -> Stopped:
        """Return the result of `end`, or what another driver has kept; then call `forget`. Raises what `end` raises."""
        async with self.ending:
            if await self.is_taken():
                forget()
                return await self.taken_over(window)
            return await end()

    async def is_taken(self) -> bool:
        """Return whether another driver, which considered this one dead, holds it now."""
        if self.slot is None or self.held is None:
            return False
        other = await _do(self.slot, self.slot.read)
        return other is not None and other.token != self._token

    async def taken_over(self, window: EngineWindow) -> Stopped:
        """Return what the other driver kept of this window, with a note of the takeover."""
        self.held = None
        await self.give()
        return Stopped(
            await in_thread(kept_there, window),
            partial="another process considered this one dead, stopped its capture and started another; this window has the recording until then",
        )

    def busy(self, other: Held) -> EngineFailure:
        """Return the failure because of another holder."""
        return EngineFailure(
            f"{self._name} is recorded by another driver: {other}; nothing was sent. It is free when that window or its process ends",
            "busy",
        )

    async def settle(self, revive: Callable[[Held], Finisher]) -> None:
        """End a leftover capture: this driver's own whose stop failed, or one whose driver has
        ended. That of a living driver is left alone.

        Args:
            revive: makes an object that can end a capture, from the holder's note.

        Raises:
            EngineFailure: it cannot be ended.
        """
        slot = self.slot
        if slot is None:
            return
        if self.held is not None:
            reason = "its first stop failed, and a later one returned these files"
            await self._end(slot, self.held, revive(self.held), reason)
            return
        held = await _do(slot, _left, slot)
        if held is None:
            return
        release = await _do(slot, slot.claim_end, held)
        if release is None:
            return
        reason = f"the process that recorded it ended before its stop (process {held.owner.get('pid')} on {held.owner.get('host')})"
        try:
            await self._end(slot, held, held.driver or _revived(held, revive), reason)
        finally:
            await _do(slot, release)

    async def _end(self, slot: Slot, held: Held, finisher: Finisher, reason: str) -> None:
        async with held.ending:
            if held is not self.held:
                other = await _do(slot, slot.read)
                if other is None or other.token != held.token:  # it was ended while this driver waited
                    return
            logger.warning("capture.recovered", name=self._name, left_by=str(held), reason=reason)
            try:
                stopped = await finisher.finish(held.window)
            except EngineFailure as error:
                if await _do(slot, slot.read) is not None:  # it may still be running
                    raise
                logger.warning("capture.lost", name=self._name, left_by=str(held), reason=str(error))
                stopped = Stopped(partial=str(error))
            if held is self.held:
                await self.give()
            else:
                await _do(slot, slot.give, held.token)
            await in_thread(keep, held.window, stopped, reason, held.owner)


def _left(slot: Slot) -> Held | None:
    """Return the holder, if it has ended."""
    held = slot.read()
    return None if held is None or held.lives(slot.silent_seconds(), _living.__contains__) else held


def _revived(held: Held, revive: Callable[[Held], Finisher]) -> Finisher:
    """Return an object that can end the capture. If another kind of driver wrote the note, another
    engine answers now, and the capture went with the old one.
    """
    try:
        return revive(held)
    except ours(LookupError, TypeError, ValueError, AttributeError):
        return _Gone()


class _Gone:
    async def finish(self, window: EngineWindow) -> Stopped:
        """Return nothing: there is nothing to stop."""
        return Stopped(
            partial="another kind of engine answers there now; the recording was lost with the old one"
        )


async def _do(slot: Slot, act: Callable[..., T], *arguments: object) -> T:
    """Call a method of a slot: on a thread if it reads and writes a file."""
    return await in_thread(act, *arguments) if isinstance(slot, FileSlot) else act(*arguments)


async def _beat(slot: Slot) -> None:
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        await in_thread(slot.beat)


_living: weakref.WeakValueDictionary[str, Hold] = weakref.WeakValueDictionary()

"""SGLang in this process: starts and stops the profiler of an ``Engine`` or a ``TokenizerManager``.

What only this module knows: how its objects are recognised, and what is reported of an engine that was started with its first use. How its
calls are made is in `stepprof.remote.sglang.link`, what is sent and what that leaves behind in `stepprof.remote.sglang.capture`, servers
are in `stepprof.remote.sglang.server`.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from stepprof.remote.base import Clock, EngineDriver, Stopped
from stepprof.remote.kinds import check_options
from stepprof.remote.sglang.capture import SglangCapture
from stepprof.remote.sglang.link import ObjectLink
from stepprof.remote.sglang.server import SglangServer

if TYPE_CHECKING:
    from pathlib import Path

    from stepprof.remote.base import EngineWindow

__all__ = ["SglangEngine", "SglangKind", "SglangServer"]

MARGIN = 0.8
"""Which part of a time-out is used."""

NAMES = frozenset({"Engine", "TokenizerManager"})


class SglangKind:
    """Recognises SGLang's engine objects."""

    def recognises(self, target: object) -> bool:
        """Whether it is one, or of a class derived from one."""
        return any(
            base.__name__ in NAMES and base.__module__.partition(".")[0] == "sglang"
            for base in type(target).__mro__
        )

    def connect(self, target: object, **options: object) -> EngineDriver:
        """A driver for it. Nothing is asked of the engine yet."""
        name = options.pop("name", None)
        options = {key: value for key, value in options.items() if key not in ("kind", "find")}
        check_options(options, (), "an SGLang engine")
        return SglangEngine(target, None if name is None else str(name))


class SglangEngine(EngineDriver):
    """Speaks to an engine object of this process.

    Args:
        engine: an ``Engine`` or a ``TokenizerManager``.
        name: what it is called in logs; None: its type.
    """

    kind = "sglang"
    runs_loop = True
    """Its calls run the event loop that it lives on where no other thread does: they need the engine's thread to wait."""

    def __init__(self, engine: object, name: str | None = None) -> None:
        self.name = name or type(engine).__name__
        self.key = f"object:{id(engine)}"
        self.host = socket.gethostname()
        self._link = ObjectLink(engine, self.name)
        self._capture = SglangCapture(self._link, self.name)
        self._attached_on = _running_loop()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that it was first used on; until then, the loop of the code that attached it."""
        return self._link.home() or self._attached_on

    @property
    def workers(self) -> int:
        """How many ranks of its own it has."""
        return self._link.describe().workers

    async def arm(self, window: EngineWindow) -> None:
        """See that it would survive what it is going to be asked for."""
        await self._capture.arm(window)

    async def start(self, window: EngineWindow) -> None:
        """Begin. An engine that was never used begins with its first request."""
        # its loop is left alone before the caller goes on
        self._link.allow(MARGIN * window.start_seconds)
        await self._capture.start(window)

    async def stop(self, window: EngineWindow) -> Stopped:
        """Stop, and bring its files to the run."""
        self._link.allow(MARGIN * window.stop_seconds)
        began_late = self._link.began_late
        stopped = await self._capture.stop(window)
        if not began_late:
            return stopped
        late = "the engine had never been used before this window: its first forward steps may be missing"
        partial = late if stopped.partial is None else f"{late}; {stopped.partial}"
        return replace(stopped, partial=partial)

    async def abort(self) -> None:
        """Stop whatever was begun, and throw it away. The caller goes on meanwhile: its own use of the engine has it answered."""
        self._link.allow(0.0)
        await self._capture.abort()

    @property
    def writes_to(self) -> Path | None:
        """Where the capture that runs is written."""
        return self._capture.writes_to

    async def close(self, timeout: float, answer_seconds: float) -> None:
        """Stop what is still open, and keep it as partial."""
        await self._capture.close(answer_seconds)

    def retire(self) -> None:
        """Take no more part; what is still open is left to the next driver."""
        self._capture.retire()

    async def clock(self) -> Clock | None:
        """It runs on this host."""
        return Clock(socket.gethostname(), 0, 0, "same-host")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

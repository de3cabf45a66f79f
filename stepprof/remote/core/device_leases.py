"""Leases of the NPUs that an engine uses, held from before its start until its stop has been answered.

The engine's own processes hold no lease. So the process that drives it takes the leases of the devices that the configuration names. This host's trainers take the same leases.
Everything runs on stepprof's own event loop, so that no lock is needed. Replicas of one process share its leases.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from stepprof.backends.base import Busy
from stepprof.errors import BackendError
from stepprof.host.device_lease import DeviceLease, lease_folder
from stepprof.remote.core.engine_backends import records
from stepprof.run.reasons import ReasonCode

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow
    from stepprof.remote.core.engine_capture import Recording

_LOOK_SECONDS = 0.02
_OF_START = 0.8
"""The share of the window's start timeout that may be spent waiting for a lease; the rest is for the start itself."""


class Turn:
    """The devices of one engine."""

    def __init__(self) -> None:
        self._held: list[_Shared] = []

    def announce(self, window: EngineWindow) -> None:
        """Register as a user of these devices, so that no trainer keeps a lease while it is only armed."""
        with contextlib.suppress(BackendError):  # a problem is reported by `take`
            for shared in _of(window):
                shared.lease.is_shared()

    async def take(self, recording: Recording, window: EngineWindow, label: str) -> str | None:
        """Acquire the leases; wait at most until the window is over. Return why they are not available, or None."""
        refused = await self._take(recording.stop, window, f"{label} of step {window.window.step}")
        if refused is not None and recording.late is None:
            reason = f"{refused}; nothing was sent to the engine"
            recording.disown("skipped", reason, ReasonCode.BUSY)
        return refused

    async def _take(self, over: asyncio.Event, window: EngineWindow, label: str) -> str | None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + min(window.npu.lease_wait_seconds, window.start_seconds * _OF_START)
        try:
            for shared in _of(window):
                while (busy := shared.take(label)) is not None:
                    if over.is_set() or clock() >= deadline:
                        self.give()
                        return busy
                    await asyncio.sleep(_LOOK_SECONDS)
                self._held.append(shared)
        except BackendError as error:
            self.give()
            return str(error)
        return None

    def give(self) -> None:
        """Release the held leases; do nothing if there are none."""
        while self._held:
            self._held.pop().give()


class _Shared:
    """A lease that several engines of this process may hold together."""

    def __init__(self, lease: DeviceLease) -> None:
        self.lease = lease
        self._users = 0

    def take(self, label: str) -> str | None:
        """Share the lease; return which other process holds it, or None."""
        if not self.lease.held:
            self._users = 0
            try:
                self.lease.take(label)
            except Busy as error:
                return str(error)
        self._users += 1
        return None

    def give(self) -> None:
        """Release the lease if this was its last user."""
        self._users -= 1
        if self._users <= 0:
            self.lease.release()


_known: dict[tuple[Path, int], _Shared] = {}


def _of(window: EngineWindow) -> Iterator[_Shared]:
    """Yield the leases in the order of their numbers, so that two engines cannot deadlock on the
    same ones. Raises BackendError.
    """
    if "npu" not in records(window.options):
        return
    for number in sorted(set(window.options.devices)):
        key = lease_folder(window.npu.lease_dir), number
        if key not in _known:
            _known[key] = _Shared(DeviceLease(f"npu-{number}", key[0]))
        yield _known[key]

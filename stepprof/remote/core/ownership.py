"""Let one driver at a time hold an engine's profiler.

An engine has one profiler, and several jobs may drive the engine. Each driver takes the engine's place before
its start, and gives it back after its stop. The capture of a living driver is left alone: the other one is
`busy`, with the holder's name. The place of an engine object is in the memory of its process. That of a server is a
file with a lock that the kernel releases when the holder's process ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from stepprof.host.process_identity import is_alive, writer_identity
from stepprof.interrupts import ignored, ours
from stepprof.log import logger
from stepprof.redaction.messages import quoted
from stepprof.remote.base import EngineFailure, Stopped
from stepprof.remote.core.late_files import keep
from stepprof.remote.loop import in_thread

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow

T = TypeVar("T")

# follow no link of another user, and open no pipe
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MOST = 1000
"""Maximum number of bytes of a holder's name."""
LEFT = "this driver has left the engine; what it recorded stays where the engine writes it"
AGAIN = "its first stop failed, and a later one returned these files"
AT_THE_END = "it was stopped at the end of the run, or when the engine was detached"


class Taken(Exception):
    """Another driver holds the engine. The message is its name."""


class Finisher(Protocol):
    """A driver that can end its own capture after a stop that failed."""

    async def finish(self, window: EngineWindow) -> Stopped:
        """Stop the engine, unless it has ended the capture itself, and return its files. Raises EngineFailure."""


class MemoryPlace:
    """The place of an engine object of this process."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._mine: tuple[str, Mapping[str, object] | None] | None = None

    @property
    def is_held(self) -> bool:
        """Return whether no other driver has taken it, as after the end of the process whose window it is."""
        return self._mine is not None and _in_memory.get(self._key) is self._mine

    def take(self, holder: str, owner: Mapping[str, object]) -> str | None:
        """Become the holder. Return the name of one that left or ended without giving the place back; None: it was free. Raises Taken."""
        name, process = _in_memory.get(self._key, ("", None))
        if process is not None and is_alive(process) is not False:
            raise Taken(name)
        self._mine = _in_memory[self._key] = (holder, owner)
        return name or None

    def give(self) -> None:
        """Free the place, if it is still held."""
        if self.is_held:
            del _in_memory[self._key]

    def hand_back(self, holder: str) -> None:
        """Go as if the earlier holder had only now left: its capture could not be stopped."""
        if self.is_held:
            _in_memory[self._key] = (holder, None)

    def leave(self) -> None:
        """Go, although the engine may still record: the next driver stops it."""
        if self._mine is not None:
            self.hand_back(self._mine[0])


class FilePlace:
    """The place of a server: a file that every driver of it can see. Its methods block, so they run on a thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.holder = ""
        """The name that this place was taken with."""
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        """Return whether this driver holds it: no other one takes a file that is locked."""
        return self._descriptor is not None

    def take(self, holder: str, owner: Mapping[str, object]) -> str | None:
        """Become the holder. Return the name of one whose process ended without giving the place back; None: it was free.

        Raises:
            Taken: another driver holds it.
            EngineFailure: the file cannot be written.
        """
        for held in list(_open_here):  # NFS does not tell the locks of one process apart
            if held.path == self.path:
                raise Taken(held.holder)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, _FLAGS, 0o666)
        except ours(OSError) as error:
            raise EngineFailure(
                f"{self.path} cannot be written ({error.strerror or error}); drivers of one engine coordinate through it; nothing was sent",
                "unconfigured",
            ) from error
        try:
            is_locked = _locked(descriptor, self.path)
            before = _named(descriptor)
            if not is_locked and before:
                raise Taken(f"{before}; if it has ended, remove {self.path}")
            _write(descriptor, holder)
        except BlockingIOError:
            other = _named(descriptor)
            os.close(descriptor)
            raise Taken(other) from None
        except ours(OSError) as error:
            os.close(descriptor)
            raise EngineFailure(
                f"{self.path} cannot be written ({error.strerror or error}); nothing was sent", "unconfigured"
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor, self.holder = descriptor, holder
        _open_here.add(self)
        return before or None

    def hand_back(self, holder: str) -> None:
        """Go as if the earlier holder had only now left: its capture could not be stopped."""
        if self._descriptor is not None:
            with ignored(OSError):
                _write(self._descriptor, holder)
        self.leave()

    def give(self) -> None:
        """Free the place."""
        if self._descriptor is not None:
            with ignored(OSError):
                os.ftruncate(self._descriptor, 0)
        self.leave()

    def leave(self) -> None:
        """Go, although the engine may still record: the next driver stops it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with ignored(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)
            _open_here.discard(self)

    def forget(self) -> None:
        """Close the file without an unlock: in a forked child, the lock is that of the parent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with ignored(OSError):
                os.close(descriptor)


Place = MemoryPlace | FilePlace


def place_next_to_the_runs(window: EngineWindow, key: str) -> FilePlace:
    """Return the place of a server whose own folder is not visible here: jobs with the same ``output_dir`` find it."""
    return FilePlace(window.folder.parents[1] / ".engines" / f"{digest(key)}.holder")


def digest(key: str) -> str:
    """Return a file name for the key of an engine."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


class Hold:
    """One driver's hold on its engine's profiler. Its coroutines run on stepprof's own loop.

    Args:
        name: the name of the engine in messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._place: Place | None = None
        self._has_left = False
        self._window: EngineWindow | None = None
        self.ending = asyncio.Lock()
        """Held while the capture is being ended: a second end at the same time would find its files taken."""

    @property
    def window(self) -> EngineWindow | None:
        """What is recorded while the place is held."""
        return self._window if self._place is not None and self._place.is_held else None

    async def take(self, window: EngineWindow, place: Place, stop: Callable[[], Awaitable[object]]) -> None:
        """Become the holder for a window.

        Args:
            window: what will be recorded.
            place: the place of the engine.
            stop: stops a capture that a driver without a process has left. Its files are left alone.

        Raises:
            EngineFailure: another driver holds it, which is left alone; or what one has left cannot be stopped.
        """
        owner = window.owner or writer_identity()
        run, what = window.metadata.get("run_id", "unknown"), window.window
        holder = (
            f"run {run}, step {what.step}, {what.name} (process {owner.get('pid')} on {owner.get('host')})"
        )
        taking = asyncio.ensure_future(_do(place, place.take, holder, owner))
        try:
            left = await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(partial(_give_back, place))
            raise
        except Taken as other:
            raise EngineFailure(
                f"{self._name} is recorded by another driver: {other}; nothing was sent. It is free when that window or its process ends",
                "busy",
            ) from None
        if left is not None:
            try:
                await stop()
            except BaseException as error:
                await _do(place, place.hand_back, left)
                if not isinstance(error, EngineFailure):
                    raise
                file = (
                    f"; if nothing records there, remove {place.path}" if isinstance(place, FilePlace) else ""
                )
                raise EngineFailure(
                    f"{self._name}: the capture that {left} has left cannot be stopped: {error}{file}",
                    error.health,
                ) from error
            logger.warning("capture.abandoned", name=self._name, left_by=left)
        self._place, self._window = place, window

    async def give(self) -> None:
        """Release it, if it is held."""
        place, self._place, self._window = self._place, None, None
        if place is not None:
            await _do(place, place.give)

    async def settle(self, driver: Finisher, reason: str = AGAIN) -> None:
        """End this driver's own capture if it is still open, and keep its files.

        Args:
            driver: ends it.
            reason: why its files come late.

        Raises:
            EngineFailure: it cannot be ended.
        """
        async with self.ending:
            window = self.window
            if window is None:
                return
            try:
                stopped = await driver.finish(window)
            except EngineFailure as error:
                if self.window is not None or self._has_left:  # it may still be running
                    raise
                logger.warning("capture.lost", name=self._name, step=window.window.step, reason=str(error))
                stopped = Stopped(partial=str(error))
            await self.give()
            await in_thread(keep, window, stopped, reason)
            files = [artifact.path for artifact in stopped.artifacts]
            logger.warning(
                "capture.recovered", name=self._name, step=window.window.step, reason=reason, files=files
            )

    async def close(self, driver: Finisher, timeout: float) -> None:
        """End this driver's open capture within this many seconds, and leave. Raises nothing."""
        if self.window is not None:
            ending = asyncio.ensure_future(self.settle(driver, AT_THE_END))
            ending.add_done_callback(self._log_failed_end)
            await asyncio.wait({ending}, timeout=timeout)
        self.retire()

    def retire(self) -> None:
        """Leave: what is still open is stopped by the next driver, and no longer by this one."""
        place, self._place, self._window = self._place, None, None
        if place is not None:
            self._has_left = True
            place.leave()

    def _log_failed_end(self, ending: asyncio.Future[None]) -> None:
        """Log why an end has failed, even if the wait for it was over."""
        if not ending.cancelled() and ending.exception() is not None:
            logger.warning("capture.left", name=self._name, reason=str(ending.exception()))


def _named(descriptor: int) -> str:
    return quoted(os.pread(descriptor, _MOST, 0).decode(errors="replace"), 300)


def _write(descriptor: int, holder: str) -> None:
    data = holder.encode()[:_MOST]
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))


def _locked(descriptor: int, path: Path) -> bool:
    """Lock a file; return False on a file system without locks. Raises BlockingIOError: another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except ours(OSError) as error:
        logger.debug("folder.not_locked", path=str(path), reason=str(error))
        return False
    return True


def _give_back(place: Place, taking: asyncio.Future[str | None]) -> None:
    """Give a place back that was taken for a driver that no longer waits for it."""
    if not taking.cancelled() and taking.exception() is None:
        left = taking.result()
        if left is None:
            place.give()
        else:
            place.hand_back(left)


async def _do(place: Place, act: Callable[..., T], *arguments: object) -> T:
    """Call a method of a place: on a thread if it reads and writes a file."""
    return await in_thread(act, *arguments) if isinstance(place, FilePlace) else act(*arguments)


_in_memory: dict[str, tuple[str, Mapping[str, object] | None]] = {}
"""The holder of each engine object by its key, and the process whose window it is; None: it has left."""

_open_here: set[FilePlace] = set()
"""The places that this process holds."""


def _forget_in_child() -> None:
    """Close the files in a forked child, which would keep their locks when this process has ended."""
    for place in list(_open_here):
        place.forget()
    _open_here.clear()


os.register_at_fork(after_in_child=_forget_in_child)

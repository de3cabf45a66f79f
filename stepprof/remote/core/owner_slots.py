"""The slot that names the driver recording an engine, so that other drivers of the engine find it.

The slot of an engine object is in the memory of its process. The slot of a server is a file in the
engine's trace folder, created exclusively and touched while its holder lives, because other hosts
cannot check its process.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from stepprof.config.options.engine import EngineOptions
from stepprof.errors import ConfigError
from stepprof.host.atomic_files import write_exclusively, write_temporary
from stepprof.host.own_files import owner_for, read_own
from stepprof.host.plain_files import read_table
from stepprof.host.process_identity import is_alive, writer_identity
from stepprof.interrupts import ignored, ours
from stepprof.remote.base import EngineFailure, EngineWindow
from stepprof.run.model import Window

if TYPE_CHECKING:
    from stepprof.remote.base import Stopped

SILENT_SECONDS = 120.0
"""Seconds without a sign of life after which a holder on another host counts as dead. File systems
may show a file's time a minute late.
"""


class Finisher(Protocol):
    """An object that can end a capture, begun by itself or by a driver that has ended."""

    async def finish(self, window: EngineWindow) -> Stopped:
        """Stop the engine, unless it has ended the capture itself, and return its files. Raises EngineFailure."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a holder notes about itself."""

    token: str
    """The token of one driver in one process."""
    holder: Mapping[str, object]
    """The process that calls the engine."""
    owner: Mapping[str, object]
    """The process whose window it is: the same, except for an engine in a Ray actor."""
    window: EngineWindow
    state: Mapping[str, Any] = field(default_factory=dict)
    """What another process needs to find the capture's files."""
    driver: Finisher | None = None
    """The driver itself, if it is in this process."""
    ending: asyncio.Lock = field(default_factory=asyncio.Lock, compare=False, repr=False)
    """Held while the capture is being ended: a second end at the same time would find its files taken."""

    def __str__(self) -> str:
        run = self.window.metadata.get("run_id", "unknown")
        window = self.window.window
        return f"run {run}, step {window.step}, {window.name} (process {self.owner.get('pid')} on {self.owner.get('host')})"

    def lives(self, silent_seconds: float, is_here: Callable[[str], bool]) -> bool:
        """Return whether both of its processes are alive, as far as can be known here.

        Args:
            silent_seconds: the age of its last sign of life; decides if its processes cannot be checked.
            is_here: whether a driver of this process with that token still takes part.
        """
        if self.holder == writer_identity():
            known = is_here(self.token)
        else:
            answer = is_alive(self.holder)
            known = silent_seconds < SILENT_SECONDS if answer is None else answer
        return known and is_alive(self.owner) is not False

    def dump(self) -> bytes:
        """Return it as JSON."""
        window = self.window
        content = {
            "token": self.token,
            "holder": dict(self.holder),
            "owner": dict(self.owner),
            "state": dict(self.state),
            "window": {
                "window": asdict(window.window),
                "replica": window.replica,
                "folder": str(window.folder),
                "stem": window.stem,
                "options": asdict(window.options),
                "metadata": dict(window.metadata),
                "workers": None if window.workers is None else sorted(window.workers),
                "trace_dir": None if window.trace_dir is None else str(window.trace_dir),
            },
        }
        return json.dumps(content, indent=1, default=str).encode()

    @classmethod
    def load(cls, data: bytes) -> Held:
        """Read what `dump` returned. Raises ValueError, TypeError or KeyError: it is something else."""
        content = json.loads(data)
        reported = content["window"]
        window = EngineWindow(
            window=Window(**reported["window"]),
            replica=reported["replica"],
            folder=Path(reported["folder"]),
            stem=reported["stem"],
            options=EngineOptions(**reported["options"]),
            metadata=reported["metadata"],
            workers=None if reported["workers"] is None else frozenset(reported["workers"]),
            trace_dir=None if reported["trace_dir"] is None else Path(reported["trace_dir"]),
            owner=content["owner"],
        )
        return cls(content["token"], content["holder"], content["owner"], window, content["state"])


class MemorySlot:
    """The slot of an engine object of this process: the note of the holder of its profiler."""

    def __init__(self, key: str) -> None:
        self._key = key

    def read(self) -> Held | None:
        """Return the holder."""
        return _in_memory.get(self._key)

    def take(self, held: Held) -> bool:
        """Note a holder, unless there is one; return whether it was noted."""
        return _in_memory.setdefault(self._key, held) is held

    def give(self, token: str) -> None:
        """Remove the holder with this token."""
        with _changing:
            held = _in_memory.get(self._key)
            if held is not None and held.token == token:
                del _in_memory[self._key]

    def beat(self) -> None:
        """Do nothing: other processes can check whether this one lives."""

    def silent_seconds(self) -> float:
        """Return 0: this process can be checked."""
        return 0.0

    def claim_end(self, held: Held) -> Callable[[], object] | None:
        """Claim the exclusive right in this process to end this holder's capture. Return a callable
        that ends the claim; None: another driver has it.
        """
        with _changing:
            if held.token in _ending or self.read() is not held:
                return None
            _ending.add(held.token)
        return lambda: _ending.discard(held.token)


class FileSlot:
    """The slot of a server: a file that every driver of it can see. Its methods block, so they run on a thread."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Held | None:
        """Return the holder. Raises EngineFailure if the file belongs to another user or is
        invalid: it names folders, so only this user's is trusted.
        """
        try:
            return Held.load(read_own(self.path, owner_for(self.path)))
        except FileNotFoundError:
            return None
        except ours(ConfigError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise EngineFailure(
                f"{self.path} must name the process that records the engine, and is not trusted ({error}); remove it if no job records the engine",
                "busy",
            ) from error

    def take(self, held: Held) -> bool:
        """Note a holder, unless there is one; return whether it was noted. Raises EngineFailure: it cannot be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return write_exclusively(self.path, held.dump())
        except ours(OSError) as error:
            raise EngineFailure(
                f"{self.path} cannot be written ({error.strerror or error}); drivers of one engine coordinate through it; nothing was sent",
                "unconfigured",
            ) from error

    def give(self, token: str) -> None:
        """Remove the holder with this token."""
        with ignored(EngineFailure, OSError):
            held = self.read()
            if held is not None and held.token == token:
                self.path.unlink(missing_ok=True)

    def beat(self) -> None:
        """Set the time of the file."""
        with ignored(OSError):
            self.path.touch(exist_ok=True)

    def silent_seconds(self) -> float:
        """Return the age of the file, by the clock of its file system."""
        try:
            probe = write_temporary(self.path, b"")
            try:
                now = probe.stat().st_mtime
            finally:
                probe.unlink()
            return now - self.path.stat().st_mtime
        except ours(OSError):
            return 0.0

    def claim_end(self, held: Held) -> Callable[[], object] | None:
        """Claim the exclusive right to end this holder's capture. Return a callable that ends the
        claim; None: another process has it. Raises OSError.
        """
        number = 1
        while True:
            mark = self.path.with_name(f"{self.path.name}.{held.token}.{number}")
            if write_exclusively(mark, json.dumps(writer_identity()).encode()):
                break
            with ignored(OSError, ValueError):
                if is_alive(read_table(mark)) is not False:
                    return None
            number += 1
        now = self.read()
        if now is None or now.token != held.token:  # another process was faster, and is done
            mark.unlink(missing_ok=True)
            return None
        return lambda: _remove_marks(mark)


Slot = MemorySlot | FileSlot


def shared_slot(window: EngineWindow, key: str) -> FileSlot:
    """Return the slot of a server whose own folder is not visible here: jobs with the same ``output_dir`` find it."""
    return FileSlot(window.folder.parents[1] / ".engines" / f"{digest(key)}.json")


def digest(key: str) -> str:
    """Return a file name for the key of an engine."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _remove_marks(mark: Path) -> None:
    stem = mark.name.rpartition(".")[0]
    for path in mark.parent.iterdir():
        if path.name.startswith(f"{stem}."):
            path.unlink(missing_ok=True)


_in_memory: dict[str, Held] = {}
_ending: set[str] = set()
_changing = threading.Lock()

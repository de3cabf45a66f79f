"""The folder that a vLLM engine writes its traces to, retargeted for each window while the engine lives.

The folder is a link (`stepprof.remote.vllm.arguments` makes it). It points to a separate folder for
each window, and to an idle one between windows. One engine owns it, by a lock that the kernel
releases with its process. A file next to it names the driver that records with a server
(`stepprof.remote.core.ownership`). Everything blocks: it is called on a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepprof.interrupts import ignored, ours
from stepprof.log import logger
from stepprof.redaction.messages import quoted
from stepprof.remote.artifacts import damages, is_whole, opened
from stepprof.remote.base import EngineFailure
from stepprof.remote.core.engine_files import LINK, is_engine_file
from stepprof.remote.core.ownership import digest
from stepprof.remote.vllm.arguments import IDLE

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow

PREFIX = "stepprof-"

# follow no link of another user, and open no pipe
_OWNER_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_STEP = re.compile(rb'(?<!"gpu_user_annotation", )"name"\s*:\s*"execute_')
_SMALL = 4 << 20
_MOST_COUNTED = 256 << 20
_TRACE = re.compile(r"\.pt\.trace\.json(?:\.gz)?$")


@dataclass(frozen=True, slots=True)
class Session:
    """The files of one capture: where they are written, and what was there before."""

    folder: Path
    before: frozenset[str] = frozenset()
    link: Path | None = None


class TraceFolder:
    """The folder of an engine's traces, as this host sees it.

    Args:
        path: the engine's ``torch_profiler_dir``, or the folder of it that both hosts share.
        owner: identifies the engine; only one may retarget a link.
        alive: whether the engine is alive; the claims of a dead one are free again.
        shared: other processes may drive the engine too (a server).
        users: the users whose files count as the engine's; None: every user.
    """

    def __init__(
        self,
        path: Path,
        owner: str,
        alive: Callable[[], bool],
        *,
        shared: bool = False,
        users: frozenset[int] | None = None,
    ) -> None:
        link = path / LINK
        self.path = link if _is_link(link) else path
        self._owner = owner
        self._alive = alive
        self._shared = shared
        self.users = users

    @property
    def link(self) -> Path | None:
        """Return the link that can be retargeted; None: a plain folder."""
        return self.path if _is_link(self.path) else None

    def prepare(self) -> None:
        """Make what is missing, and check that files can be made there. Raises EngineFailure."""
        try:
            if not os.path.lexists(self.path):
                self._make()
            elif self.link is not None:
                (self.path.parent / IDLE).mkdir(exist_ok=True)
                _claim(self.path, self._owner, self._alive, shared=self._shared)
            if not os.access(self.path.parent if self.link else self.path, os.W_OK | os.X_OK):
                raise PermissionError(13, "not writable")
        except ours(OSError) as error:
            raise EngineFailure(
                f"the folder of the engine's traces, {quoted(self.path, 300)}, cannot be used: {error.strerror or error}; it has to be a folder that the "
                "engine's host and this one can both write to (trace_dir names it where the two see it under different paths)",
                "unconfigured",
            ) from error

    def _make(self) -> None:
        """Make a folder that was named on another host, or long ago: vLLM would make a plain folder instead."""
        if self.path.name == LINK:
            (self.path.parent / IDLE).mkdir(parents=True, exist_ok=True)
            self.path.symlink_to(IDLE)
            _claim(self.path, self._owner, self._alive, shared=self._shared)
        else:
            self.path.mkdir(parents=True)

    @property
    def holder(self) -> Path:
        """Return the file that names which driver of a server that writes here records."""
        link = self.link
        return (
            self.path / f".stepprof-{digest(self._owner)}.holder"
            if link is None
            else link.parent / ".capture.holder"
        )

    def begin(self, window: EngineWindow) -> Session:
        """Make a place for a window's files: a separate folder if the engine writes through a link."""
        link = self.link
        if link is None:
            return Session(self.path, frozenset(_names(self.path)))
        what = window.window
        stem = f"step-{what.step}.{what.name}-{window.replica}"
        for number in itertools.count(1):
            folder = link.parent / f"{stem}.{number}"
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                break
        return Session(folder, link=link)

    def lead(self, session: Session) -> None:
        """Direct everything written from now on to the place of a capture."""
        if session.link is not None:
            _retarget(session.link, session.folder.name)

    def end(self, session: Session) -> None:
        """Point the link at the idle folder again, and remove the engine's files that are not traces."""
        if session.link is None:
            return
        if session.folder.is_symlink():  # not made by this class
            return
        if session.link.is_symlink() and session.link.readlink().name == session.folder.name:
            _retarget(session.link, IDLE)
        for name in _names(session.folder):
            if "profiler_out" in name:
                (session.folder / name).unlink(missing_ok=True)
        with ignored(OSError):  # files that could not be adopted stay, with their folder
            session.folder.rmdir()

    def discard(self, session: Session, prefix: str) -> None:
        """Remove the files of a capture."""
        for path in self.traces(session, prefix):
            path.unlink(missing_ok=True)
        self.end(session)

    def traces(self, session: Session, prefix: str) -> list[Path]:
        """Return the traces of a capture so far: in a plain folder that engines share, those with this driver's prefix."""
        names = [
            name
            for name in _names(session.folder)
            if name not in session.before and _TRACE.search(name) and "async_llm" not in name
        ]
        own = [name for name in names if session.link is not None or name.startswith(prefix)]
        chosen = own or [name for name in names if not name.startswith(PREFIX)]
        paths = [session.folder / name for name in sorted(chosen)]
        return [path for path in paths if is_engine_file(path, self.users)]

    def is_over(self, session: Session, window: EngineWindow, prefix: str) -> bool:
        """Return whether a capture has left its files before it reached its limit: another stop has ended it."""
        found, bound = self.traces(session, prefix), window.options.bound
        if not found or not all(is_whole(path, self.users) for path in found):
            return False  # of a stop that has not ended: another one waits for it
        if bound is None:
            return True
        steps = count_steps(found[0], self.users)
        return steps is not None and steps < bound


def count_steps(path: Path, users: frozenset[int] | None = None) -> int | None:
    """Return the number of forward steps in a small trace. A large one has some, and is not read
    again to count them.
    """
    with contextlib.suppress(OSError, *damages()):
        if path.lstat().st_size <= _SMALL:
            with opened(path, users) as stream:
                data = stream.read(_MOST_COUNTED + 1)
            return len(_STEP.findall(data)) if len(data) <= _MOST_COUNTED else None
    return None


def new_prefix() -> str:
    """Return a prefix for the names of one engine's files, if its version supports one: it
    distinguishes engines that share a folder.
    """
    return f"{PREFIX}{uuid.uuid4().hex[:8]}"


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []


def _retarget(link: Path, target: str) -> None:
    """Retarget a link in one step: the engine never finds it missing."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


_claims: dict[Path, tuple[int, str, Callable[[], bool]]] = {}
_claiming = threading.Lock()


def _claim(link: Path, owner: str, alive: Callable[[], bool], *, shared: bool) -> None:
    """Claim a link for one engine, until this process ends. Raises EngineFailure: another living engine has it."""
    with _claiming:
        held = _claims.get(link)
        if held is not None:
            descriptor, other, still_alive = held
            if other != owner and still_alive():
                raise EngineFailure(_shared(link), "unconfigured")
            _claims[link] = (descriptor, owner, alive)
            return
        descriptor = os.open(link.parent / ".owner", _OWNER_FLAGS, 0o666)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise EngineFailure(_shared(link), "unconfigured") from None
        except ours(OSError) as error:  # a file system without locks: the user must keep the rule
            logger.debug("folder.not_locked", path=str(link.parent), reason=str(error))
        _claims[link] = (descriptor, owner, alive)


def _shared(link: Path) -> str:
    return (
        f"another engine, in this process or another one, retargets {link} too, so that their traces would be mixed up: call "
        "stepprof.remote.vllm.engine_args once for each engine, and give each server a folder of its own"
    )


def _forget_in_child() -> None:
    """Close the locks in a forked child: it shares the lock, not the engine."""
    for descriptor, _, _ in _claims.values():
        with ignored(OSError):
            os.close(descriptor)
    _claims.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def _is_link(path: Path) -> bool:
    try:
        return path.is_symlink()
    except ours(OSError):  # an invalid name, or no permission: reported when it is prepared
        return False

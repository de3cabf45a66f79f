"""The folder that a vLLM engine writes its traces to, and which of its files belong to a window.

What only this module knows: how the versions name their files (``rank0.…``, ``{prefix}_dp0_pp0_tp1_dcp0_ep0_rank1.…``,
``{instance}-rank-0.…``, ``{host}_{pid}.…``), that the engines of a data-parallel group give theirs the same names, and how a folder is
retargeted while the engine lives (`stepprof.remote.vllm_args`). Everything blocks: it is called on a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import itertools
import os
import re
import socket
import threading
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stepprof.log import logger
from stepprof.remote.artifacts import adopt
from stepprof.remote.base import EngineFailure
from stepprof.remote.vllm_args import IDLE, LINK

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow
    from stepprof.window import Artifact

__all__ = ["Brought", "Session", "TraceFolder", "Workers", "new_prefix"]

PREFIX = "stepprof-"

_TRACE = re.compile(r"\.pt\.trace\.json(?:\.gz)?$")
_RANK = re.compile(r"rank[-_]?(\d+)\.\d+\.pt\.trace")
_WRITTEN = re.compile(r"\.(\d{16,20})\.pt\.trace")
_GROUP = re.compile(r"(?:^|_)dp(\d+)_")
_HOST_PID = re.compile(r"^(?:.*_)(\d+)\.\d+\.pt\.trace")
_PID = re.compile(rb'"pid"\s*:\s*(\d+)')
_STATED_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?"rank"\s*:\s*(\d+)')
_STEP = re.compile(rb'"name"\s*:\s*"execute_')
_HOST = re.compile(rb'"host_name"\s*:\s*"([^"\\]*)"')
_TITLE = re.compile(rb"EngineCore_DP(\d+)")
_HEAD = 1 << 18
_SMALL = 4 << 20


@dataclass(frozen=True, slots=True)
class Session:
    """One capture, as its files go: where they come to, and what lay there before."""

    folder: Path
    before: frozenset[str] = frozenset()
    link: Path | None = None


@dataclass(frozen=True, slots=True)
class Workers:
    """The processes of an engine, as far as they are known."""

    cores: Sequence[int] = ()
    """Of a data-parallel group: the process of each of its engines, in order."""
    width: int = 1
    """How many workers each of them has."""
    groups: int = 0
    """How many of them there are; 0: not known."""


@dataclass(slots=True)
class Brought:
    """What a capture left."""

    artifacts: list[Artifact] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    written_ns: list[int] = field(default_factory=list)
    """When the engine wrote each, by its own clock."""
    found: int = 0
    """How many traces there were, kept or not."""
    steps: int | None = None
    """How many forward steps are in them; None: too large to be counted in passing."""


@dataclass(frozen=True, slots=True)
class _Found:
    path: Path
    rank: int | None
    pid: int | None
    host: str | None
    group: int | None


class TraceFolder:
    """Where an engine writes, as it is seen from here.

    Args:
        path: the engine's ``torch_profiler_dir``, or the folder of it that both hosts share.
        owner: which engine it is; only one may retarget a link.
        alive: whether the engine still is; what a dead one has claimed is free again.
    """

    def __init__(self, path: Path, owner: str, alive: Callable[[], bool]) -> None:
        link = path / LINK
        self.path = link if link.is_symlink() else path
        self._owner = owner
        self._alive = alive

    @property
    def link(self) -> Path | None:
        """The link that can be retargeted; None: a plain folder."""
        return self.path if self.path.is_symlink() else None

    def prepare(self) -> None:
        """Make what is missing, and see that files can be made there. Raises EngineFailure."""
        try:
            if not os.path.lexists(self.path):
                self._make()
            elif self.link is not None:
                (self.path.parent / IDLE).mkdir(exist_ok=True)
                _claim(self.path, self._owner, self._alive)
            if not os.access(self.path.parent if self.link else self.path, os.W_OK | os.X_OK):
                raise PermissionError(13, "not writable")
        except OSError as error:
            raise EngineFailure(
                f"the folder of the engine's traces, {self.path}, cannot be used: {error.strerror or error}; it has to be a folder that the "
                "engine's host and this one can both write to (trace_dir names it where the two see it under different paths)",
                "unconfigured",
            ) from error

    def _make(self) -> None:
        """It was named on another host, or long ago: vLLM would make a plain folder of it."""
        if self.path.name == LINK:
            (self.path.parent / IDLE).mkdir(parents=True, exist_ok=True)
            self.path.symlink_to(IDLE)
            _claim(self.path, self._owner, self._alive)
        else:
            self.path.mkdir(parents=True)

    @property
    def left_open(self) -> bool:
        """Whether a capture of ours was begun and never ended, by this process or one that died: the link still leads to its folder."""
        return self.link is not None and self.path.readlink().name != IDLE

    def begin(self, window: EngineWindow) -> Session:
        """Have what is written from now on come to a place that is this window's alone, as far as the folder allows."""
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
        _retarget(link, folder.name)
        return Session(folder, link=link)

    def end(self, session: Session) -> None:
        """After its files were taken: the link leads to the idle folder again; what the engine left besides traces goes."""
        if session.link is None:
            return
        if session.link.is_symlink() and session.link.readlink().name == session.folder.name:
            _retarget(session.link, IDLE)
        for name in _names(session.folder):
            if "profiler_out" in name:
                (session.folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # what could not be adopted stays, with its folder
            session.folder.rmdir()

    def discard(self, session: Session, prefix: str) -> None:
        """Throw away what a capture of ours has left."""
        for path in self.traces(session, prefix):
            path.unlink(missing_ok=True)
        self.end(session)

    def traces(self, session: Session, prefix: str) -> list[Path]:
        """The traces of a capture that are there by now: of engines that share a plain folder, those with our prefix."""
        names = [
            name
            for name in _names(session.folder)
            if name not in session.before and _TRACE.search(name) and "async_llm" not in name
        ]
        own = [name for name in names if name.startswith(prefix)]
        chosen = own or [name for name in names if not name.startswith(PREFIX)]
        return [session.folder / name for name in sorted(chosen)]

    def bring(self, session: Session, window: EngineWindow, prefix: str, workers: Workers) -> Brought:
        """Make the capture's traces artifacts of the run; those of workers that nobody asked for are removed.

        Args:
            session: what `begin` returned.
            window: whose they are.
            prefix: what the names of this engine's files may begin with.
            workers: which there are, as far as that is known.
        """
        brought = Brought()
        found = [_look(path) for path in self.traces(session, prefix)]
        brought.found, brought.steps = len(found), 0
        numbered = _numbered(found, workers)
        width = workers.width if workers.groups else max((rank for _, rank, _ in numbered), default=0) + 1
        for each, rank, group in numbered:
            if window.workers is not None and (group or 0) * width + rank not in window.workers:
                each.path.unlink(missing_ok=True)
                continue
            written = _WRITTEN.search(each.path.name)
            if written:
                brought.written_ns.append(int(written[1]))
            if brought.steps is not None:
                steps = _count_steps(each.path)
                brought.steps = None if steps is None else brought.steps + steps
            name = f"rank-{rank}" if group is None else f"dp-{group}-rank-{rank}"
            facts: dict[str, object] = {"rank": rank} if group is None else {"rank": rank, "dp_rank": group}
            try:
                brought.artifacts.append(adopt(each.path, window, name, **facts))
            except EngineFailure as error:
                brought.problems.append(str(error))
        self.end(session)
        return brought


def new_prefix() -> str:
    """What the names of one engine's files begin with, where its version lets them: engines that share a folder are told apart by it."""
    return f"{PREFIX}{uuid.uuid4().hex[:8]}"


def _numbered(found: Sequence[_Found], workers: Workers) -> list[tuple[_Found, int, int | None]]:
    """Each file with its worker's rank and, in a data-parallel group, which engine of it that worker belongs to."""
    by_pid = sorted(found, key=lambda each: (each.pid or 0, each.path.name))
    ranks = {each.path: each.rank if each.rank is not None else place for place, each in enumerate(by_pid)}
    same = Counter(ranks.values())
    named = {each.group for each in found}
    several = (
        workers.groups > 1 or max(same.values(), default=0) > 1 or (None not in named and len(named) > 1)
    )
    if not several:
        return [(each, ranks[each.path], None) for each in found]
    order = {core: place for place, core in enumerate(workers.cores)}
    taken: Counter[int] = Counter()
    numbered = []
    for each in by_pid:
        rank = ranks[each.path]
        group = _engine_of(each, order)
        if group is None:
            group = each.group if each.group is not None and len(named) > 1 else taken[rank]
        taken[rank] += 1
        numbered.append((each, rank, group))
    return sorted(numbered, key=lambda one: (one[2], one[1]))


def _look(path: Path) -> _Found:
    """What a file says of its writer, in its name or its head."""
    rank, group, owner = _RANK.search(path.name), _GROUP.search(path.name), _HOST_PID.search(path.name)
    head = b""
    with contextlib.suppress(OSError, EOFError, zlib.error):  # a damaged file is told of when it is adopted
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if compressed else path.open("rb") as stream:
            head = stream.read(_HEAD)
    host = _HOST.search(head)
    stated, pid = _STATED_RANK.search(head), _PID.search(head, max(head.find(b'"traceEvents"'), 0))
    return _Found(
        path=path,
        rank=int(rank[1]) if rank else int(stated[1]) if stated else None,
        pid=int(pid[1]) if pid else int(owner[1]) if owner else None,
        host=host[1].decode("utf-8", "replace") if host else None,
        group=int(group[1]) if group else None,
    )


def _count_steps(path: Path) -> int | None:
    """The forward steps in a small trace; a large one has some, and is not read twice."""
    try:
        if path.stat().st_size > _SMALL:
            return None
        data = path.read_bytes()
        return len(_STEP.findall(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data))
    except (OSError, EOFError, zlib.error):
        return None


def _engine_of(found: _Found, order: Mapping[int, int]) -> int | None:
    """Which engine of a data-parallel group wrote a file: the one that its process descends from, or is, if that runs on this host."""
    here = socket.gethostname()
    pid = found.pid if found.host in (here, None) else None
    while pid is not None and pid > 1:
        if pid in order:
            return order[pid]
        try:
            title = _TITLE.search(
                Path(f"/proc/{pid}/cmdline").read_bytes()
            )  # vLLM's processes are called VLLM::EngineCore_DP1
            if title and found.host == here:
                return int(title[1])
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return None
    return None


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []


def _retarget(link: Path, target: str) -> None:
    """Lead a link somewhere else, in one step: the engine never finds it missing."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


_claims: dict[Path, tuple[int, str, Callable[[], bool]]] = {}
_claiming = threading.Lock()


def _claim(link: Path, owner: str, alive: Callable[[], bool]) -> None:
    """Be the only one to retarget a link, until this process ends. Raises EngineFailure: another living engine has it."""
    with _claiming:
        held = _claims.get(link)
        if held is not None:
            descriptor, other, still_alive = held
            if other != owner and still_alive():
                raise EngineFailure(_shared(link), "unconfigured")
            _claims[link] = (descriptor, owner, alive)
            return
        descriptor = os.open(link.parent / ".owner", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise EngineFailure(_shared(link), "unconfigured") from None
        except OSError as error:  # a file system without locks: the rule is the user's to keep
            logger.debug("folder not locked", path=str(link.parent), reason=str(error))
        _claims[link] = (descriptor, owner, alive)


def _shared(link: Path) -> str:
    return (
        f"another engine, in this process or another one, retargets {link} too, so that their traces would be mixed up: call "
        "stepprof.remote.vllm.engine_args once for each engine, and give each server a folder of its own"
    )


def _forget_in_child() -> None:
    """A forked child shares the lock, not the engine."""
    for descriptor, _, _ in _claims.values():
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _claims.clear()


os.register_at_fork(after_in_child=_forget_in_child)

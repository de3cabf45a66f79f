"""Find the files of a window in a vLLM engine's folder, and the rank of each.

Versions name their files differently (``rank0.…``, ``{prefix}_dp0_pp0_tp1_dcp0_ep0_rank1.…``, ``{instance}-rank-0.…``, ``{host}_{pid}.…``), and the engines of a data-parallel group use the
same names. Everything blocks: it is called on a thread.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stepprof.interrupts import ours
from stepprof.remote.artifacts import adopt, damages, opened
from stepprof.remote.base import EngineFailure
from stepprof.remote.vllm.folder import count_steps

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow
    from stepprof.remote.vllm.folder import Session, TraceFolder
    from stepprof.run.model import Artifact

_RANK = re.compile(r"rank[-_]?(\d{1,9})\.\d+\.pt\.trace")
_WRITTEN = re.compile(r"\.(\d{16,20})\.pt\.trace")
_GROUP = re.compile(r"(?:^|_)dp(\d{1,9})_")
_HOST_PID = re.compile(r"^(?:.*_)(\d{1,9})\.\d+\.pt\.trace")
_PID = re.compile(rb'"pid"\s{0,9}:\s{0,9}(\d{1,9})(?!\d)')
_STATED_RANK = re.compile(
    rb'"distributedInfo"\s{0,9}:\s{0,9}\{[^{}\[\]]{0,1000}?"rank"\s{0,9}:\s{0,9}(\d{1,9})(?!\d)'
)
_HOST = re.compile(rb'"host_name"\s*:\s*"([^"\\]*)"')
_TITLE = re.compile(rb"EngineCore_DP(\d+)")
AGAIN = "another process stopped the engine's profiler while it recorded, and started it again; both traces are kept"
_HEAD = 1 << 18


@dataclass(frozen=True, slots=True)
class Workers:
    """The processes of an engine, as far as known."""

    cores: Sequence[int] = ()
    """In a data-parallel group: the process of each of its engines, in order."""
    width: int = 1
    """How many workers each of them has."""
    groups: int = 0
    """The number of these engines; 0: unknown."""

    @property
    def count(self) -> int | None:
        """Return the total number of workers; None: unknown."""
        return self.width * self.groups or None


@dataclass(slots=True)
class Brought:
    """The files of a capture."""

    artifacts: list[Artifact] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    written_ns: list[int] = field(default_factory=list)
    """When the engine wrote each trace, by its own clock."""
    found: int = 0
    """The number of traces, kept or not."""
    steps: int | None = None
    """The number of forward steps in them; None: too large to be counted on the way."""


@dataclass(frozen=True, slots=True)
class _Found:
    path: Path
    rank: int | None
    pid: int | None
    host: str | None
    group: int | None


def bring(
    folder: TraceFolder,
    session: Session,
    window: EngineWindow,
    prefix: str,
    workers: Workers,
    *,
    over: bool = True,
) -> Brought:
    """Move the capture's traces to the run as artifacts; remove those of unselected workers.

    Args:
        prefix: a prefix that the names of this engine's files may have.
        over: the capture has ended; False: its stop failed, and more files may appear in the same place.
    """
    brought = Brought()
    found, repeated = _once_each([_look(path, folder.users) for path in folder.traces(session, prefix)])
    brought.found, brought.steps = len(found), 0
    numbered = _numbered(found, workers)
    if repeated:
        brought.problems.append(AGAIN)
        of = {each.path: (rank, group) for each, rank, group in numbered}
        numbered += [(each, *of[first.path]) for each, first in repeated]
    width = workers.width if workers.groups else max((rank for _, rank, _ in numbered), default=0) + 1
    for each, rank, group in numbered:
        if window.workers is not None and (group or 0) * width + rank not in window.workers:
            each.path.unlink(missing_ok=True)
            continue
        written = _WRITTEN.search(each.path.name)
        if written:
            brought.written_ns.append(int(written[1]))
        if brought.steps is not None:
            steps = count_steps(each.path, folder.users)
            brought.steps = None if steps is None else brought.steps + steps
        name = f"rank-{rank}" if group is None else f"dp-{group}-rank-{rank}"
        facts: dict[str, object] = {"rank": rank} if group is None else {"rank": rank, "dp_rank": group}
        try:
            brought.artifacts.append(adopt(each.path, window, name, users=folder.users, **facts))
        except EngineFailure as error:
            brought.problems.append(str(error))
    if over:
        folder.end(session)
    return brought


def _once_each(found: Sequence[_Found]) -> tuple[list[_Found], list[tuple[_Found, _Found]]]:
    """Return the first trace of each worker, and each later trace of a worker together with its first."""
    firsts: dict[tuple[object, ...], _Found] = {}
    repeated = []
    for each in sorted(found, key=_written):
        worker = (each.host, each.pid, each.rank)
        first = firsts.setdefault(worker, each) if each.pid is not None else each
        if first is not each:
            repeated.append((each, first))
    later = {each.path for each, _ in repeated}
    return [each for each in found if each.path not in later], repeated


def _written(found: _Found) -> int:
    stamp = _WRITTEN.search(found.path.name)
    return int(stamp[1]) if stamp else 0


def _numbered(found: Sequence[_Found], workers: Workers) -> list[tuple[_Found, int, int | None]]:
    """Return each file with its worker's rank and, in a data-parallel group, the number of that worker's engine."""
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


def _look(path: Path, users: frozenset[int] | None) -> _Found:
    """Return the writer that a file states in its name or its head."""
    rank, group, owner = _RANK.search(path.name), _GROUP.search(path.name), _HOST_PID.search(path.name)
    head = b""
    with (
        contextlib.suppress(OSError, *damages()),
        opened(path, users) as stream,
    ):  # a damaged file is reported when it is adopted
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


def _engine_of(found: _Found, order: Mapping[int, int]) -> int | None:
    """Return which engine of a data-parallel group wrote a file: the engine process that is the
    writer or its ancestor; None if it runs on another host.
    """
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
        except ours(OSError):
            return None
    return None

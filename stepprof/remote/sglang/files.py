"""The files of an SGLang engine: where it may write, which process wrote each file, and its name in the run.

SGLang notices only at a stop that it cannot write, and its process ends. So a folder is tested by writing, before a start and again before a stop. Ranks are in the names of the
files alone: inside, each replica of a data-parallel engine says that it is rank 0. An Ascend engine writes folders instead of files.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.host.atomic_files import publish, temporary
from stepprof.interrupts import ignored, ours
from stepprof.log import logger
from stepprof.remote.artifacts import adopt, blocks, damages, opened
from stepprof.remote.base import EngineFailure
from stepprof.remote.core.engine_files import is_engine_file, open_engine_file, writers
from stepprof.remote.core.ownership import digest
from stepprof.remote.sglang.stages import STAGES, cut
from stepprof.run.model import Artifact

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow
    from stepprof.remote.sglang.request import Facts, Request

LEAST_BYTES = 1 << 29
"""Minimum free space on the disk for a capture: a trace that cannot be written ends the engine."""

_NAME = re.compile(
    r"-?TP-(?P<tp>\d+)(?:-DP-(?P<dp>\d+))?(?:-PP-(?P<pp>\d+))?(?:-EP-\d+)?"
    r"(?:-(?:ForwardMode\.)?(?P<stage>EXTEND|DECODE|1|2))?\.trace\.json(?:\.gz)?$"
)
_SNAPSHOT = re.compile(r"-?TP-(?P<tp>\d+)-memory\.pickle$")
_STAGES = {"EXTEND": "prefill", "DECODE": "decode", "1": "prefill", "2": "decode"}
_ASCEND = "*_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json"
_STEP = re.compile(rb"step\[(EXTEND|DECODE)\b")


@dataclass(frozen=True, slots=True)
class Found:
    """One trace: a file of the engine's, and which of its processes wrote it."""

    path: Path
    tp: int
    dp: int | None = None
    pp: int = 0
    stage: str | None = None
    """``prefill`` or ``decode``; None: all stages."""

    def rank(self, facts: Facts) -> int:
        """Return the rank within its replica."""
        return self.pp * facts.tp + self.tp

    def worker(self, facts: Facts) -> int:
        """Return the rank within the engine."""
        return (self.dp or 0) * facts.ranks * (facts.replicas > 1) + self.rank(facts)

    def name(self, facts: Facts) -> str:
        """Return its name in the run, without a suffix."""
        replica = "" if self.dp is None else f"dp-{self.dp}-"
        stage = "" if self.stage is None else f".{self.stage}"
        return f"{replica}rank-{self.rank(facts)}{stage}"


@dataclass(slots=True)
class Brought:
    """The result of one capture, by its files."""

    artifacts: list[Artifact] = field(default_factory=list)
    stages: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


def folder_of(window: EngineWindow) -> Path:
    """Return where the engine must write: its folder in the run, or a separate one in the folder that both hosts see."""
    if window.trace_dir is None:
        return window.output
    run = str(window.metadata.get("run_id") or "run")
    parts = (run, f"step-{window.window.step}", *window.stem.split("/"))
    return window.trace_dir.joinpath("stepprof", *parts, str(window.window.occurrence))


def holder_of(window: EngineWindow, key: str) -> Path | None:
    """Return the file that names which driver of a server records, in the folder shared with its host; None: there is none."""
    shared = window.trace_dir
    return None if shared is None else shared / f".stepprof-{digest(key)}.holder"


def require_writable(folder: Path, doing: str) -> None:
    """Make the folder, write a file into it, and check the free space; `doing` is the next action, such as ``started``.

    Raises:
        EngineFailure: it cannot be written; do not send anything then.
    """
    probe = folder / f".stepprof-probe-{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with probe.open("xb") as file:
            file.write(b"stepprof")
        probe.unlink()
        free = shutil.disk_usage(folder).free
    except ours(OSError) as error:
        with ignored(OSError):
            probe.unlink(missing_ok=True)
        raise EngineFailure(
            f"{folder} cannot be written ({error.strerror or error}), and SGLang would kill its whole process over that; the engine was "
            f"not {doing}. Make the folder writable, or name another one: attach(…, trace_dir=…)",
            "unconfigured",
        ) from error
    if free < LEAST_BYTES and doing == "started":
        raise EngineFailure(
            f"the disk of {folder} has {free >> 20} MiB left, and SGLang kills its whole process when it cannot write its trace; the engine "
            f"was not started. Free at least {LEAST_BYTES >> 20} MiB, or name another folder: attach(…, trace_dir=…)",
            "unconfigured",
        )


def find(folder: Path, users: frozenset[int] | None = None) -> list[Found]:
    """Return every trace that the engine, which runs as one of these users, has written there."""
    return [*_files(folder, users), *_ascend_folders(folder, users)]


def _files(folder: Path, users: frozenset[int] | None) -> Iterator[Found]:
    for path in sorted(folder.glob("*TP-*.trace.json*")):
        match = _NAME.search(path.name)
        if match is None or not is_engine_file(path, users) or path.name.startswith((".", "merged-")):
            continue
        stage = match["stage"]
        yield Found(
            path,
            tp=int(match["tp"]),
            dp=None if match["dp"] is None else int(match["dp"]),
            pp=int(match["pp"] or 0),
            stage=None if stage is None else _STAGES[stage],
        )


def _ascend_folders(folder: Path, users: frozenset[int] | None) -> Iterator[Found]:
    """Yield the traces of torch_npu: one folder for each process and capture, with the rank in the name of one of its files.

    In the order of time, the second folder of a rank is the second stage.
    """
    by_rank: dict[int, list[Path]] = {}
    traces = [path for path in folder.glob(_ASCEND) if _is_in_own_folders(path, users)]
    for number, trace in enumerate(sorted(traces, key=lambda path: path.lstat().st_mtime_ns)):
        infos = [
            re.fullmatch(r"profiler_info_(\d+)\.json", info.name)
            for info in trace.parents[1].glob("profiler_info_*.json")
        ]
        ranks = [int(match[1]) for match in infos if match is not None]
        alone = (trace.parents[1] / "profiler_info.json").exists()
        by_rank.setdefault(ranks[0] if ranks else 0 if alone else number, []).append(trace)
    for rank, traces in sorted(by_rank.items()):
        staged = zip(traces, STAGES, strict=False) if len(traces) > 1 else ((traces[0], None),)
        for trace, stage in staged:
            yield Found(trace, tp=rank, stage=stage)


def _is_in_own_folders(trace: Path, users: frozenset[int] | None) -> bool:
    """Return whether a trace of torch_npu is the engine's, and no folder above it is a link."""
    return is_engine_file(trace, users) and not any(folder.is_symlink() for folder in trace.parents[:2])


def bring(folder: Path, window: EngineWindow, facts: Facts, request: Request) -> Brought:
    """Move the engine's files to the run: the file of each requested rank under its name; remove the others. Blocks."""
    brought = Brought()
    seen: set[int] = set()
    found = find(folder, facts.users)
    for each in found:
        stage = each.stage or (_stage(each, found, facts.users) if request.by_stage else None)
        trace = Found(each.path, each.tp, each.dp, each.pp, stage)
        worker = trace.worker(facts)
        if stage is not None:
            brought.stages.add(stage)
        if window.workers is not None and worker not in window.workers:
            each.path.unlink(missing_ok=True)
            continue
        seen.add(worker)
        try:
            brought.artifacts += _adopted(trace, window, facts, cut_it=request.cut)
        except EngineFailure as error:
            brought.problems.append(str(error))
    asked = window.workers if window.workers is not None else frozenset(range(facts.workers))
    if "memory" in request.backends:
        _bring_snapshots(folder, window, asked, facts.users, brought)
    missing = sorted(worker for worker in asked if worker not in seen)
    if found and missing:
        which = ", ".join(map(str, missing))
        brought.problems.append(f"no trace of the engine's rank {which} of {facts.workers}")
    _remove_empty(folder, window.trace_dir)
    return brought


def _remove_empty(folder: Path, shared: Path | None) -> None:
    """Remove the folder of a capture below the shared folder, and its parents, up to the first that is not empty."""
    while shared is not None and folder != shared:
        try:
            folder.rmdir()
        except ours(OSError):
            return
        folder = folder.parent


def _bring_snapshots(
    folder: Path,
    window: EngineWindow,
    asked: frozenset[int],
    users: frozenset[int] | None,
    brought: Brought,
) -> None:
    """Move the snapshots of the allocators to the run: one for each process, distinguished by the rank in the name."""
    seen = set()
    for path in sorted(folder.glob("*TP-*-memory*.pickle")):
        match = _SNAPSHOT.search(path.name)
        if match is None or path.name.startswith(".") or not is_engine_file(path, users):
            continue
        rank = int(match["tp"])
        if rank not in asked:
            path.unlink(missing_ok=True)
            continue
        final = window.output / f"rank-{rank}.memory.pickle"
        try:
            with open_engine_file(path, users) as snapshot:
                size = os.fstat(snapshot.fileno()).st_size
            final.parent.mkdir(parents=True, exist_ok=True)
            hidden = temporary(final)
            shutil.move(path, hidden)  # from another file system, if its folder is a shared one
            placed = publish(hidden, final)
        except ours(OSError) as error:
            brought.problems.append(
                f"the snapshot {path} cannot be moved to {final}: {error.strerror or error}"
            )
            continue
        seen.add(rank)
        relative = placed.relative_to(window.folder).as_posix()
        brought.artifacts.append(Artifact(relative, "memory-snapshot", size))
    missing = sorted(asked - seen)
    if missing:
        brought.problems.append(f"no memory snapshot of the engine's rank {', '.join(map(str, missing))}")


def _adopted(trace: Found, window: EngineWindow, facts: Facts, *, cut_it: bool) -> list[Artifact]:
    """Return the artifact of a trace, or the artifacts of its stages instead."""
    states: dict[str, Any] = {"rank": trace.worker(facts)}
    if trace.dp is not None:
        states["dp_rank"] = trace.dp
    if trace.stage is not None:
        states["stage"] = trace.stage
    name = trace.name(facts)
    source, users = _own_copy(trace.path, window.output, facts.users)
    whole = adopt(source, window, name, users=users, **states)
    if not cut_it:
        return [whole]
    path = window.folder / whole.path
    try:
        parts = cut(path)
    except EngineFailure as error:
        logger.warning("trace.not_split", path=str(path), reason=str(error))
        return [whole]
    if not parts:
        return [whole]
    stages = [adopt(part, window, f"{name}.{stage}", **states, stage=stage) for stage, part in parts.items()]
    path.unlink()
    return [
        replace(stage, began_ns=whole.began_ns, ended_ns=whole.ended_ns, written_ns=whole.written_ns)
        for stage in stages
    ]


def _own_copy(path: Path, output: Path, users: frozenset[int] | None) -> tuple[Path, frozenset[int] | None]:
    """Return a file that may be moved instead of a trace, and the users that may own it: an Ascend
    trace stays next to the tables that are read with it.
    """
    if path.name != "trace_view.json":
        return path, users
    copy = output / f"{path.parents[1].name}.json"
    try:
        copy.hardlink_to(path)
    except FileExistsError:
        pass
    except ours(OSError):  # a file system without links
        with open_engine_file(path, users) as source, copy.open("xb") as target:
            shutil.copyfileobj(source, target)
        return copy, writers(os.geteuid())
    return copy, users


def _stage(trace: Found, others: Iterable[Found], users: frozenset[int] | None) -> str | None:
    """Return the stage of a file that the window's end cut off, because its name lacks the stage."""
    same = {each.stage for each in others if (each.tp, each.dp, each.pp) == (trace.tp, trace.dp, trace.pp)}
    if "prefill" in same:
        return "decode"
    with contextlib.suppress(OSError, *damages()), opened(trace.path, users) as stream:
        held = b""
        for block in blocks(stream):
            match = _STEP.search(held + block)
            if match is not None:
                return _STAGES[match[1].decode()]
            held = block[-32:]
    return None


def discard(folder: Path, users: frozenset[int] | None = None) -> None:
    """Remove the files that the engine, which runs as one of these users, wrote there."""
    snapshots = [path for path in folder.glob("*TP-*-memory*.pickle") if is_engine_file(path, users)]
    for path in (*(each.path for each in find(folder, users)), *snapshots):
        try:
            path.unlink(missing_ok=True)
        except ours(OSError) as error:
            logger.info("trace.kept", path=str(path), reason=str(error))

"""Decide whether run directories with one id are parts of one run (of nodes without a shared disk), or
two runs.

Equal ids alone prove nothing: `stepprof demo` calls its first run `demo-1` on every machine. Two runs are
proved by any of these:

* each id was invented by a process for itself;
* by the clock of one machine, one directory begins after the other one has ended;
* the same rank of the same role is another process in the other directory, and their times do not show a restart.

Everything else is taken for one run: the clocks of machines may differ by hours.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepprof.formatting import duration
from stepprof.host.plain_files import data_bytes, open_plain, read_table
from stepprof.host.plain_json import parse_json
from stepprof.run.layout import MANIFEST, SPANS, step_folder
from stepprof.run.runs import read_run, steps

__all__ = ["Evidence", "evidence_of", "is_part", "parts_of_one_run", "why_apart"]

_WRITER = ("host", "pid", "pid_start", "boot_id", "pid_namespace")
_TAIL = 1 << 16
Process = tuple[object, ...]


@dataclass(slots=True)
class Life:
    """The interval in which something was seen, in Unix nanoseconds of its own clock."""

    begin: int
    end: int

    def widen(self, begin: int, end: int) -> None:
        """Extend the interval."""
        self.begin, self.end = min(self.begin, begin), max(self.end, end)

    def overlaps(self, other: Life) -> bool:
        """Return whether two intervals overlap."""
        return self.begin <= other.end and other.begin <= self.end


@dataclass(slots=True)
class Evidence:
    """What one run directory shows of its processes. Small, to be sent to other processes."""

    founder: tuple[object, ...] | None
    """The process that wrote `run.json`, and when."""
    named_by: str | None
    life: Life | None = None
    by_boot: dict[str, Life] = field(default_factory=dict)
    """Intervals of each machine, by its boot id."""
    ranks: dict[tuple[object, object], dict[Process, Life]] = field(default_factory=dict)
    """(rank, role) → its processes."""

    def note(self, boot: object, begin: object, end: object) -> None:
        """Extend the interval of a machine."""
        if not _is_time(begin):
            return
        last = end if _is_time(end) else begin
        self.life = _widened(self.life, begin, last)
        if isinstance(boot, str):
            self.by_boot[boot] = _widened(self.by_boot.get(boot), begin, last)


def evidence_of(path: Path) -> Evidence:
    """Return what a run directory shows of its processes: `run.json`, all fragments, the first and
    last line of each span file.
    """
    run = read_run(path)
    writer, created, named_by = (run.get(key) for key in ("writer", "created_unix_ns", "run_id_from"))
    found = Evidence(_founder(run), named_by if isinstance(named_by, str) else None)
    boots = {}
    if isinstance(writer, dict):
        boots[writer.get("host")] = writer.get("boot_id")
        found.note(writer.get("boot_id"), created, created)
    for step in steps(path):
        for content in _tables(path / step_folder(step) / MANIFEST):
            writer = content.get("writer")
            if isinstance(writer, dict):
                boots[writer.get("host")] = writer.get("boot_id")
                _take(found, writer, content.get("windows"))
    spanned: dict[tuple[object, ...], Life] = {}
    for header, begin, end in _spans(path / SPANS):
        found.note(boots.get(header.get("host")), begin, end)
        key = (header.get("rank"), header.get("host"), header.get("pid"))
        spanned[key] = _widened(spanned.get(key), begin, end)
    for (rank, _), lives in found.ranks.items():
        for process, life in lives.items():
            seen = spanned.get((rank, *process[:2]), life)
            life.widen(seen.begin, seen.end)
    return found


def why_apart(one: Evidence, other: Evidence) -> str | None:
    """Return why two directories with one id are two runs; None if nothing proves it."""
    if one.founder is not None and one.founder == other.founder:
        return None  # one is a copy of the other, or of a part of it
    if one.named_by == other.named_by == "process" and None not in (one.founder, other.founder):
        return "each was named by a process that was alone (run_id_from = process)"
    for boot in one.by_boot.keys() & other.by_boot.keys():
        lives = sorted((one.by_boot[boot], other.by_boot[boot]), key=lambda life: life.begin)
        if not lives[0].overlaps(lives[1]):
            between = duration((lives[1].begin - lives[0].end) / 1e9)
            return (
                f"by the clock of one machine the later one began {between} s after the earlier one had ended"
            )
    return None if "ray" in (one.named_by, other.named_by) else _rank_apart(one, other)


def is_part(path: Path, of: Evidence) -> bool:
    """Return whether a directory may be a part of another one's run, with the same id. A shared disk
    is recognised without reading the steps.
    """
    founder = _founder(read_run(path))
    return (founder is not None and founder == of.founder) or why_apart(evidence_of(path), of) is None


def parts_of_one_run(paths: Sequence[Path]) -> list[list[Path]]:
    """Group directories with one id by their run, in the given order."""
    groups: list[list[tuple[Path, Evidence]]] = []
    for path in paths:
        found = evidence_of(path) if len(paths) > 1 else Evidence(None, None)
        mine = [group for group in groups if any(why_apart(each, found) is None for _, each in group)]
        joined = [each for group in mine for each in group] + [(path, found)]
        groups = [group for group in groups if group not in mine] + [joined]
    return sorted(([path for path, _ in group] for group in groups), key=lambda group: paths.index(group[0]))


def _rank_apart(one: Evidence, other: Evidence) -> str | None:
    """Return a rank and role that was a different process here and there at overlapping times, not one
    after a restart.
    """
    if one.life is None or other.life is None:
        return None
    at_once = one.life.overlaps(other.life)
    for rank, role in one.ranks.keys() & other.ranks.keys():
        here, there = one.ranks[rank, role], other.ranks[rank, role]
        for process, life in here.items():
            for another, its_life in there.items():
                if process not in there and another not in here and life.overlaps(its_life) == at_once:
                    return f"{role or 'step'} rank {rank} is process {process[1]} on {process[0]} in one, and process {another[1]} on {another[0]} in the other"
    return None


def _take(found: Evidence, writer: Mapping[str, Any], windows: object) -> None:
    """Add the windows of a fragment."""
    for window in windows if isinstance(windows, list) else []:
        if not isinstance(window, dict) or not _is_time(window.get("start_unix_ns")):
            continue
        begin, end = window["start_unix_ns"], window.get("end_unix_ns")
        found.note(writer.get("boot_id"), begin, end)
        rank, role = window.get("rank"), window.get("role")
        if isinstance(rank, int | str) and isinstance(role, str | None):
            lives = found.ranks.setdefault((rank, role), {})
            process = _process(writer)
            lives[process] = _widened(lives.get(process), begin, end if _is_time(end) else begin)


def _widened(life: Life | None, begin: Any, end: Any) -> Life:
    life = life or Life(begin, end)
    life.widen(begin, end)
    return life


def _founder(run: Mapping[str, Any]) -> tuple[object, ...] | None:
    created = run.get("created_unix_ns")
    return (*_process(run.get("writer")), created) if _is_time(created) else None


def _process(writer: object) -> Process:
    return tuple(writer.get(key) for key in _WRITER) if isinstance(writer, dict) else ()


def _is_time(value: object) -> bool:
    return type(value) is int and value > 0


def _tables(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the fragments of a step; damaged ones are reported when the step is read."""
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix == ".json" and file.name[0] != ".")
    except OSError:
        return
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            yield read_table(file)


def _spans(folder: Path) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Yield the first line of each span file, its start, and the end of its last span."""
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix == ".jsonl")
    except OSError:
        return
    for file in files:
        try:
            with open_plain(file) as lines:
                header = parse_json(lines.read(_TAIL).partition(b"\n")[0])
                lines.seek(max(data_bytes(lines) - _TAIL, 0))
                last = parse_json(lines.read(_TAIL).rstrip(b"\n").rpartition(b"\n")[2])
            begin = int(header["anchor"]["unix_ns"])
            end = int(last["start"] + last["dur"]) if "dur" in last else begin
        except (OSError, ValueError, KeyError, TypeError):
            continue
        yield header, begin, max(begin, end)

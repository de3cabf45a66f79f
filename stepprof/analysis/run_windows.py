"""Read the windows and the outermost regions of all steps of a run from its spans, one process at a time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from stepprof.analysis.findings.step_times import kind_of
from stepprof.host.plain_json import parse_json
from stepprof.run.layout import SPANS
from stepprof.run.span_lines import LARGEST_NS, parse_span, span_lines
from stepprof.run.spans import files_by_rank

MOST_REGIONS = 100_000
"""More regions than that are not read."""
_PLAIN = re.compile(r"[\w ./:-]+", re.ASCII)
"""A name that has one form in JSON."""


class RunWindow(NamedTuple):
    """A window of any step of the run; nanoseconds on the clock of its process."""

    start: int
    end: int
    step: int
    role: str | None
    process: str = ""
    """The host and the id of its process: a rank that was started again has several."""
    ends: bool = True
    """Whether it ended; if not, the process ended in it."""


class RunRegion(NamedTuple):
    """A region of any step of the run that is inside no other; nanoseconds on the clock of its process."""

    start: int
    end: int
    step: int
    name: str
    process: str
    """The host and the id of its process."""


def process_files(path: Path) -> list[tuple[int | str, list[Path]]]:
    """Return the span files of each rank: the driver first, then ranks in order, then the others."""
    found = files_by_rank(path / SPANS)

    def order(rank: int | str) -> tuple[object, ...]:
        return rank != "driver", isinstance(rank, str), rank

    return [(rank, found[rank]) for rank in sorted(found, key=order)]


def windows_of(files: Iterable[Path]) -> tuple[RunWindow, ...]:
    """Return the windows of a process; damage is reported when the recorded step itself is read.

    Several parts of a report need them: those of the last process are kept while its files do not change.
    """
    return _windows(tuple((file, _state(file)) for file in files))


def own_windows(files: Iterable[Path], step: int, processes: Collection[str]) -> tuple[RunWindow, ...]:
    """Return the windows of the process of a rank that was in a step, without those of its other processes: the rank may have
    been started again, and what lies between two processes is no time of a step.

    Args:
        files: of the rank.
        step: the number of the step.
        processes: the host and the id of those that are known to have been in it.

    Returns:
        Empty: none was in it, the one that is known to have been in it has no window of it, or which one is meant is not known.
    """
    windows = windows_of(files)
    having = {window.process: window.start for window in windows if window.step == step}
    known = having.keys() & processes
    if not known and (len(having) > 1 or any(window.process in processes for window in windows)):
        return ()
    own = max(known or having, key=having.__getitem__, default=None)  # of several, the one that came back
    return tuple(window for window in windows if window.process == own)


def _state(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


@lru_cache(maxsize=1)
def _windows(files: tuple[tuple[Path, object], ...]) -> tuple[RunWindow, ...]:
    return tuple(_read(file for file, _ in files))


def _read(files: Iterable[Path]) -> Iterator[RunWindow]:
    for file in files:
        process = ""
        try:
            for line in span_lines(file, windows=True):
                try:
                    window = parse_json(line)
                except ValueError:
                    continue
                if isinstance(window, dict) and window.get("kind") == "spans":
                    process = f"{window.get('host')} {window.get('pid')}"
                found = _window(window, process)
                if found is not None:
                    yield found
        except OSError:
            continue


def _window(line: object, process: str) -> RunWindow | None:
    """Return the window of a line; None: it is something else, or damaged."""
    if not isinstance(line, dict) or line.get("kind") != "window":
        return None
    start, length, step, role = (line.get(key) for key in ("start", "dur", "step", "role"))
    if type(start) is not int or type(step) is not int or not 0 <= start < LARGEST_NS:
        return None
    lasted = length if type(length) is int and 0 <= length < LARGEST_NS else 0
    attributes = line.get("attrs")
    ends = not (isinstance(attributes, dict) and "unfinished" in attributes)
    return RunWindow(start, start + lasted, step, role if isinstance(role, str) else None, process, ends)


def outermost_regions(files: Iterable[Path], steps: Collection[int]) -> list[RunRegion]:
    """Return the regions of some steps that are inside no other, in the order of the steps and of their begins.

    They are those of the threads that open windows in the step, without coroutines other than the only one that opens them: a
    process that was lost in the step has regions without a window. Empty: there are too many regions to read.
    """
    return _outermost(files, steps, lambda span: span.get("kind") == "region" and bool(span.get("name")))


def calls_of(
    files: Iterable[Path],
    steps: Collection[int],
    region: str | None,
    role: str | None,
    *,
    counting: bool = False,
) -> list[RunRegion]:
    """Return the calls of one region in a role that are inside no other call of it, as `outermost_regions` does.

    Args:
        files: of a process.
        steps: the numbers of the steps.
        region: its name; None: the windows of the role.
        role: the one around it.
        counting: also regions whose names differ in their numbers alone.
    """
    kind = None if region is None or not counting else kind_of(region)

    def is_wanted(span: Mapping[str, object]) -> bool:
        if (span.get("kind"), span.get("role")) != ("window" if region is None else "region", role):
            return False
        name = str(span.get("name", ""))
        return region is None or (name == region if kind is None else kind_of(name) == kind)

    written = b"" if region is None or counting or not _PLAIN.fullmatch(region) else f'"{region}"'.encode()
    return _outermost(files, steps, is_wanted, written)


def _outermost(
    files: Iterable[Path],
    steps: Collection[int],
    is_wanted: Callable[[Mapping[str, object]], bool],
    having: bytes = b"",
) -> list[RunRegion]:
    """Return the regions or windows that are wanted and inside no other one of them. Lines of regions without `having` are not parsed."""
    process = ""
    tasks: dict[object, set[object]] = defaultdict(set)
    found: list[tuple[int, int, int, object, str, str, object]] = []
    try:
        every = (line for file in files for line in span_lines(file, steps))
        some = (line for line in every if having in line or b'"region"' not in line)
        lines = [*islice(some, MOST_REGIONS)]
    except OSError:
        return []
    if len(lines) == MOST_REGIONS:
        return []
    for line in lines:
        span = parse_span(line)
        if span is not None and span.get("kind") == "spans":
            process = f"{span.get('host')} {span.get('pid')}"
        if span is None or span.get("step") not in steps:
            continue
        start, length, thread = (
            span.get("start", 0),
            span.get("dur", 0),
            (process, span["step"], span.get("thread")),
        )
        is_window, task = span.get("kind") == "window", span.get("task")
        if is_window:
            tasks[thread].add(task)
        if is_wanted(span):
            in_task = None if is_window else task
            found.append((span["step"], start, -length, thread, span.get("name", ""), process, in_task))
    outermost = []
    end: dict[tuple[int, object], int] = {}
    for step, start, negative, opened, name, process, task in sorted(found, key=lambda each: each[:3]):
        # windows of several coroutines overlap, and so do the regions in them
        own = tasks.get(opened, set())
        if own and (task is None or own == {task}) and start >= end.get((step, opened), 0):
            end[step, opened] = start - negative
            outermost.append(RunRegion(start, start - negative, step, name, process))
    return outermost

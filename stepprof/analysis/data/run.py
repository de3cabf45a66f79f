"""Open a run: its tables, and the recorded steps with theirs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from stepprof.analysis.data.schema import FINDINGS, ITERATIONS, SLICES, SPANS, STEPS
from stepprof.analysis.data.spans import span_rows, step_rows
from stepprof.analysis.data.table import BATCH_ROWS, Batch, Table, Warn, require_arrow
from stepprof.analysis.timeline.cutting import cut
from stepprof.analysis.timeline.filters import Filters
from stepprof.analysis.timeline.find import Found, Input
from stepprof.analysis.timeline.iterations import batch_size
from stepprof.analysis.timeline.load import load
from stepprof.analysis.timeline.model import Slices, Source
from stepprof.analysis.timeline.profiler_stalls import without_held_slices
from stepprof.errors import ConfigError
from stepprof.host.plain_files import resolved
from stepprof.run.manifest import find_step
from stepprof.run.runs import find_run, read_run, run_id_of, steps
from stepprof.run.same_run import parts_of_one_run

__all__ = ["RecordedStep", "Run"]


class Run:
    """A run that was recorded, by `stepprof.open_run`.

    A table is read when its rows are asked for, and again each time: the run may still be growing.
    """

    problems: list[str]
    """Damage that was found while tables were read: the valid rows are there all the same."""
    unread: list[str]
    """Sources that are not in a report because the process that read them died: memory ran out, or it was
    killed. They may be intact.
    """

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self.problems, self.unread = [], []

    @classmethod
    def of(cls, *paths: str | Path, output_dir: str | Path | None = None) -> Run:
        """Do what `stepprof.open_run` says."""
        require_arrow()
        folder = Path(output_dir or os.environ.get("STEPPROF_OUTPUT_DIR") or "stepprof-runs")
        found = [find_run(folder, None if path is None else str(path)) for path in paths or (None,)]
        whole = list({resolved(path): path.absolute() for path in found}.values())
        if len({run_id_of(path) for path in whole}) > 1 or len(parts_of_one_run(whole)) > 1:
            raise ConfigError(f"open_run({', '.join(map(str, paths))}): must be directories of one run")
        return cls(whole)

    def __repr__(self) -> str:
        return f"<run {self.id} in {self.path}>"

    @property
    def id(self) -> str:
        """The run id."""
        return run_id_of(self.path)

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._paths[0]

    @property
    def info(self) -> Mapping[str, Any]:
        """The content of ``run.json``: configuration, world size, versions."""
        return read_run(self.path)

    @property
    def steps(self) -> Table:
        """The table of steps: one row for each, recorded or not."""
        return Table(STEPS, lambda _: step_rows(self._paths, self._warn))

    @property
    def spans(self) -> Table:
        """The table of spans: windows, regions, marks and counters of every step."""
        return Table(SPANS, lambda _: span_rows(self._paths, self._warn))

    @property
    def recorded(self) -> list[int]:
        """The numbers of the recorded steps."""
        return sorted({number for path in self._paths for number in steps(path)})

    def step(self, number: int | None = None, occurrence: int | None = None) -> RecordedStep:
        """Return a recorded step.

        Args:
            number: its number; None: the last recorded one that ended.
            occurrence: which one, if the number was used several times; None: the last one.

        Raises:
            ConfigError: it is not recorded; the message has the nearest one.
        """
        return RecordedStep(self, self._paths, find_step(self._paths, number), occurrence, self._warn)

    def _warn(self, source: str, problem: str) -> None:
        text = f"{source}: {problem}"
        if text not in self.problems:
            self.problems.append(text)


class RecordedStep:
    """A recorded step of a run, by `Run.step`."""

    run: Run
    """The run that it belongs to."""
    number: int
    """Its number."""

    def __init__(self, run: Run, paths: list[Path], number: int, occurrence: int | None, warn: Warn) -> None:
        self.run, self.number = run, number
        self._paths, self._occurrence, self._warn = paths, occurrence, warn

    def __repr__(self) -> str:
        return f"<step {self.number} of {self.run.id}>"

    @property
    def occurrence(self) -> int:
        """Which occurrence of its number it is; 1 is the first."""
        return self._found.occurrence

    @property
    def occurrences(self) -> int:
        """How many steps with its number were recorded."""
        return self._found.occurrences

    @property
    def slices(self) -> Table:
        """The table of slices: every interval in its traces and spans, on the common clock."""
        return Table(SLICES, lambda wanted: slice_rows(self._placed, wanted, self._warn))

    @property
    def iterations(self) -> Table:
        """The table of its engines' forward steps."""
        return Table(ITERATIONS, lambda _: iteration_rows(self._placed, self._warn))

    @cached_property
    def report(self) -> dict[str, Any]:
        """The report, as ``stepprof report --json`` prints it. Its traces are read once.

        Large traces are read by processes of their own, which do not import the script. If one of
        them dies, `Run.unread` has its source.
        """
        import json

        from stepprof.analysis.report.analyse import analyse
        from stepprof.analysis.report.store import dump

        report = analyse(self._found)
        self.run.unread += [each.source or "" for each in report.problems if each.unread]
        content: dict[str, Any] = json.loads(dump(report))
        return content

    @property
    def findings(self) -> Table:
        """The table of the findings of `report`: what made the step long, the most expensive cause first."""
        return Table(FINDINGS, lambda _: self._finding_rows())

    def _finding_rows(self) -> Iterator[tuple[int, Batch]]:
        found = self.report["findings"]
        columns = {name: [finding.get(name) for finding in found] for name in FINDINGS.names}
        place = {"step": self.number, "occurrence": self.occurrence}
        yield len(found), {**columns, **place, "number": list(range(1, len(found) + 1))}

    @cached_property
    def _found(self) -> Found:
        from stepprof.analysis.timeline.find import find

        paths = [str(path) for path in self._paths]
        return find(paths, output_dir=self.run.path.parent, step=self.number, occurrence=self._occurrence)

    @cached_property
    def _placed(self) -> Found:
        from stepprof.analysis.report.analyse import placed

        found = placed(self._found)
        for source, problem in found.findings:
            self._warn(source or f"step {self.number}", problem)
        return found


def slice_rows(found: Found, wanted: frozenset[str], warn: Warn) -> Iterator[tuple[int, Batch]]:
    """Yield the slices of each source. One source is in memory at a time.

    Args:
        found: the step, its sources on the common clock.
        wanted: the columns to fill; without `arguments` the files are read faster.
        warn: receives the problems of each source.
    """
    for each in found.inputs:
        source = _read(each, arguments="arguments" in wanted, warn=warn)
        common = _common(source, found)
        for at in range(0, len(source.slices), BATCH_ROWS):
            part = source.slices.between(at, at + BATCH_ROWS)
            yield len(part), {**common, **_columns(source, part)}


def iteration_rows(found: Found, warn: Warn) -> Iterator[tuple[int, Batch]]:
    """Yield the forward steps of each worker, as `slice_rows` yields slices."""
    for each in found.inputs:
        if each.origin.kind == "spans":
            continue
        source = _read(each, arguments=False, warn=warn)
        kinds = np.array([track.kind == "iterations" for track in source.tracks], np.bool_)
        steps = source.slices.where(kinds[source.slices.track])
        sizes = np.array([batch_size(name) or 0 for name in source.names], np.int64)
        columns = {**_common(source, found), **_columns(source, steps)}
        yield len(steps), {**columns, "batch_size": sizes[steps.name]}


def _read(wanted: Input, *, arguments: bool, warn: Warn) -> Source:
    """Read a source, cut to the step as `stepprof merge` cuts it."""
    source = load(wanted, args=arguments, flows=False)
    if wanted.piece is not None:
        source = without_held_slices(source)
    source = cut(source, wanted.window).source
    if wanted.within is not None:
        start, end = (edge - source.alignment.offset_ns for edge in wanted.within)
        source = replace(Filters(from_ns=start, to_ns=end).apply(source), findings=source.findings)
    for problem in source.findings:
        warn(wanted.origin.path, problem)
    return source


def _common(source: Source, found: Found) -> dict[str, Any]:
    """Return the columns that are the same for all slices of a source."""
    origin = source.origin
    number = origin.rank if isinstance(origin.rank, int) else None
    is_engine = origin.kind == "engine"
    return {
        "step": found.step,
        "occurrence": found.occurrence,
        "process": origin.label,
        "source_kind": origin.kind,
        "role": origin.role,
        "rank": None if is_engine else number,
        "replica": origin.replica,
        "worker": number if is_engine else None,
        "host": origin.host,
        "source": origin.path,
        "clock": source.alignment.island or None,
    }


def _columns(source: Source, slices: Slices) -> dict[str, Any]:
    return {
        "track": (slices.track, [track.name for track in source.tracks]),
        "track_kind": (slices.track, [track.kind for track in source.tracks]),
        "name": (slices.name, source.names),
        "category": (slices.category, source.categories),
        "start_unix_ns": slices.start,
        "duration_ns": slices.duration,
        "arguments": slices.args,
    }

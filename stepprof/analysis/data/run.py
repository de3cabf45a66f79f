"""Open a run: its tables, and the recorded steps with theirs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from stepprof.analysis.data.marked import (
    MarkedProcess,
    marked_processes,
    marked_rows,
)
from stepprof.analysis.data.schema import FINDINGS, ITERATIONS, SLICES, SPANS, STEPS
from stepprof.analysis.data.slices import iteration_rows, slice_rows
from stepprof.analysis.data.spans import span_rows, step_rows
from stepprof.analysis.data.table import Batch, Table, Warn, require_arrow
from stepprof.analysis.timeline.find import Found
from stepprof.analysis.timeline.named_traces import is_file, names_traces
from stepprof.errors import ConfigError
from stepprof.formats.recognise import not_a_trace
from stepprof.formatting import ranges
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
        if any(names_traces(folder, str(path)) for path in paths):
            return Traces.at([Path(path) for path in paths], folder)
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

    def exported(self, number: int | None) -> list[RecordedStep]:
        """Return the recorded steps, or all occurrences of one of them."""
        numbers = self.recorded if number is None else [number]
        last = [self.step(each) for each in numbers]
        return [
            step
            for each in last
            for step in (*(self.step(each.number, at) for at in range(1, each.occurrences)), each)
        ]

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


class Traces(Run):
    """Traces that stepprof did not record, by `stepprof.open_run`: its steps are those that torch's profiler marked."""

    @classmethod
    def at(cls, paths: Sequence[Path], folder: Path) -> Traces:
        """Open files and folders. Raise ConfigError if one of them is no trace, or a run."""
        for path in paths:
            what = not_a_trace(path) if is_file(path) else None
            if what is not None:
                raise ConfigError(f'"{path}": {what.text}')
            if not names_traces(folder, str(path)):
                raise ConfigError(
                    f'open_run: "{path}" has no trace, and the others have; must be one run, or traces'
                )
        return cls([path.absolute() for path in paths])

    def __repr__(self) -> str:
        return f"<traces {self.id}>"

    @property
    def id(self) -> str:
        """The names of the files or folders."""
        return ", ".join(path.name for path in self._paths)

    @property
    def info(self) -> Mapping[str, Any]:
        """Nothing: there is no ``run.json``."""
        return {}

    @property
    def steps(self) -> Table:
        """The table of steps: one row for each that torch's profiler marked; else one row for each process, without a number."""
        return Table(STEPS, lambda _: marked_rows(self._marked))

    @property
    def spans(self) -> Table:
        """The table of spans, without rows."""
        return Table(SPANS, lambda _: iter(()))

    @property
    def recorded(self) -> list[int]:
        """The numbers of the steps that torch's profiler marked."""
        return sorted({step.number for process in self._marked for step in process.steps})

    def step(self, number: int | None = None, occurrence: int | None = None) -> RecordedStep:
        """Return a marked step, or everything in the traces.

        Args:
            number: its number; None: everything. The report is then about the step of median length.
            occurrence: is not used: a number occurs once.

        Raises:
            ConfigError: it is not marked.
        """
        if number is not None and number not in self.recorded:
            raise ConfigError.at(
                "step", number, f"not marked in {self.id}: {ranges(self.recorded) or 'no step is'}"
            )
        return RecordedStep(self, self._paths, number, occurrence, self._warn)

    def exported(self, number: int | None) -> list[RecordedStep]:
        """Return everything, or one step."""
        return [self.step(number)]

    @cached_property
    def _marked(self) -> list[MarkedProcess]:
        return marked_processes(self.step()._found, self._warn)


class RecordedStep:
    """A recorded step of a run, by `Run.step`."""

    run: Run
    """The run that it belongs to."""
    number: int | None
    """Its number; None: everything in traces that stepprof did not record."""

    def __init__(
        self, run: Run, paths: list[Path], number: int | None, occurrence: int | None, warn: Warn
    ) -> None:
        self.run, self.number = run, number
        self._paths, self._occurrence, self._warn = paths, occurrence, warn

    def __repr__(self) -> str:
        return f"<{'all' if self.number is None else f'step {self.number}'} of {self.run.id}>"

    @property
    def occurrence(self) -> int:
        """Which occurrence of its number it is; 1 is the first."""
        return self._found.occurrence

    @property
    def unlisted(self) -> set[str | None]:
        """The paths of its traces that no manifest lists."""
        return self._found.unlisted

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
        place = {"step": self.report["step"], "occurrence": self.occurrence}
        yield len(found), {**columns, **place, "number": list(range(1, len(found) + 1))}

    @cached_property
    def _found(self) -> Found:
        from stepprof.analysis.timeline.find import find

        paths = [str(path) for path in self._paths]
        return find(
            paths,
            output_dir=self.run.path.parent,
            step=self.number,
            occurrence=self._occurrence,
            marked=True,
        )

    @cached_property
    def _placed(self) -> Found:
        from stepprof.analysis.report.analyse import placed

        found = placed(self._found)
        for source, problem in found.findings:
            self._warn(source or f"step {self.number}", problem)
        return found

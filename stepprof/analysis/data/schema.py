"""Define the columns of every table of a run. `docs/data.md` is made from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["FINDINGS", "ITERATIONS", "SLICES", "SPANS", "STEPS", "TABLES", "Column", "Columns"]

Type = Literal["int64", "double", "bool", "string", "category"]
"""``category``: a string of which there are few, stored as a dictionary."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    name: str
    type: Type
    text: str
    """What it contains, and when it is null."""
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one table."""

    table: str
    text: str
    """What a row is, and on which clock the times are."""
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """The names of the columns, in order."""
        return [column.name for column in self.columns]


_START = "ns since 1970-01-01 UTC"
_STEP = Column(
    "step", "int64", "the step's number; null: outside of the steps that torch's profiler marked in a trace"
)
_ROLE = Column("role", "category", "the role; null: none")
_RANK = Column("rank", "int64", "the global rank; null: a process without one")
_HOST = Column("host", "category", "the host's name; null: not known")
_PID = Column("pid", "int64", "the process id on its host; null: not known")
_DURATION = Column("duration_ns", "int64", "the duration", "ns")
_OCCURRENCE = Column("occurrence", "int64", "which occurrence of the step's number; 1 is the first")
_PROCESS = Column("process", "category", "the process, as the report names it: `actor rank 0`")
_SOURCE = Column("source", "category", "the file, relative to the run")
_CLOCK = Column(
    "clock",
    "category",
    "null: the common clock of the step. Else the clock of a host that was compared with no other: times of different clocks cannot be compared",
)
_REPLICA = Column("replica", "int64", "the number of the engine among those of its role; null: no engine")

STEPS = Columns(
    "steps",
    "A row for each step of the run, recorded or not, in order. A step number that the loop used again has a row for each visit. The times are those of one process, by its own clock: the one with windows in most steps, and of these the driver, else the lowest rank. A step in which it has none has the times of another process.",
    (
        _STEP,
        Column("visit", "int64", "which visit to this number; 1 is the first"),
        Column("process", "category", "the process whose windows are counted"),
        Column("recorded", "bool", "whether a profiler recorded it; null: not known which visit was recorded"),
        Column("start_unix_ns", "int64", "the start of its first window; null: not known", _START),
        Column("duration_ns", "int64", "from there to the end of its last window; null: not known", "ns"),
        Column("until_next_ns", "int64", "from its start to the start of the next row's step; null: the last step, or that row is of another process", "ns"),
    ),
)  # fmt: skip
SPANS = Columns(
    "spans",
    "A row for each window, region, mark and counter value of every step, process by process. Times are by the clock of the process's host; `slices` has the spans of a recorded step on the common clock.",
    (
        Column("step", "int64", "the step's number; null: outside of steps"),
        Column("kind", "category", "`window`, `region`, `mark` or `counter`"),
        Column("name", "category", "the name; of a window its role, or `step`"),
        _ROLE,
        Column("process", "category", "the process: `rank 0`, `driver`, or its name"),
        _RANK,
        _HOST,
        _PID,
        Column("thread", "int64", "the thread id of the operating system; null: not known"),
        Column(
            "task",
            "int64",
            "identifies the task (of asyncio, of trio, or a greenlet) within its process; null: none",
        ),
        Column("start_unix_ns", "int64", "the start", _START),
        Column("duration_ns", "int64", "the duration; 0 for marks and counter values", "ns"),
        Column("value", "double", "the value of a counter; null: no counter"),
        Column("error", "bool", "whether it ended with an exception"),
        Column("attributes", "string", "the attributes as a JSON object; null: none"),
    ),
)
SLICES = Columns(
    "slices",
    "A row for each interval in the traces and spans of a recorded step: operators, kernels, annotations, windows, regions, forward steps. Times are on the clock that `clock` names.",
    (
        _STEP,
        _OCCURRENCE,
        _PROCESS,
        Column("source_kind", "category", "`rank`, `engine`, `spans`, or `trace` for a file that stepprof did not record"),
        _ROLE,
        _RANK,
        _REPLICA,
        Column("worker", "int64", "the rank within an engine; null: no engine, or not known"),
        _HOST,
        _SOURCE,
        Column("track", "category", "the row of the timeline: a thread, a stream of a device, a sample"),
        Column("track_kind", "category", "`thread`, `stream`, `async`, `sample` or `iterations`"),
        Column("name", "category", "the name of the operator, kernel, region, …"),
        Column("category", "category", "the category in the trace: `cpu_op`, `kernel`, `user_annotation`, …"),
        Column("start_unix_ns", "int64", "the start", _START),
        _DURATION,
        _CLOCK,
        Column("arguments", "string", "the arguments as a JSON object; null: none"),
    ),
)  # fmt: skip
ITERATIONS = Columns(
    "iterations",
    "A row for each forward step of an engine in a recorded step, worker by worker, as vLLM and SGLang annotate them. Times are on the clock that `clock` names.",
    (
        _STEP,
        _OCCURRENCE,
        _PROCESS,
        _ROLE,
        _REPLICA,
        Column("worker", "int64", "the rank within the engine; null: not known"),
        _HOST,
        _SOURCE,
        Column("start_unix_ns", "int64", "the start", _START),
        _DURATION,
        _CLOCK,
        Column("batch_size", "int64", "the sequences that it worked on", "sequences"),
        Column("name", "category", "the engine's annotation"),
    ),
)
FINDINGS = Columns(
    "findings",
    "A row for each finding of the report of a recorded step: the causes of its length, the most expensive one first. docs/findings.md lists the kinds.",
    (
        _STEP,
        _OCCURRENCE,
        Column("number", "int64", "its place in the report; 1 is the first"),
        Column("topic", "category", "the kind: `straggler`, `tail`, `overlap`, …"),
        Column("text", "string", "the sentence"),
        Column("seconds", "double", "its seconds of the step; null: it has none", "s"),
        Column("process", "category", "the process in which the cause lies; null: several, or not known"),
        Column("role", "category", "the role in which the cause lies; null: none, or not known"),
        Column("region", "category", "the innermost region of the cause; null: none"),
        Column("start", "double", "where its longest stretch begins, since the start of the step; null: it has no place", "s"),
        Column("end", "double", "where that stretch ends", "s"),
        Column("why", "string", "the evidence; null: none"),
        Column("advice", "string", "what to try; null: nothing"),
        Column("saves", "double", "how much shorter the step would be without the cause; null: not computed", "s"),
        Column("assumption", "string", "what `saves` assumes; null: nothing"),
    ),
)  # fmt: skip
TABLES = {table.table: table for table in (STEPS, SPANS, SLICES, ITERATIONS, FINDINGS)}

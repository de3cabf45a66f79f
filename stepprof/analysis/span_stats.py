"""Sum up the spans of a run: calls, total, median and longest time of each window and region, per
role and rank.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from stepprof.config.selection import Ranks
from stepprof.config.validators import nearest
from stepprof.errors import ConfigError
from stepprof.run.layout import SPANS
from stepprof.run.occurrence_spans import Portions, within
from stepprof.run.outermost_spans import Outermost
from stepprof.run.spans import read_spans
from stepprof.run.summary import Rank, rank_order

KINDS = ("window", "region", "mark", "counter")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The selected spans; None selects all."""

    step: int | None = None
    role: str | None = None
    region: str | None = None
    """The name of a window or region."""
    ranks: Ranks | None = None

    def includes_rank(self, rank: object) -> bool:
        """Return whether spans of this rank are selected. A process without a number is, unless numbers are given."""
        return self.ranks is None or (isinstance(rank, int) and rank in self.ranks)


@dataclass(slots=True)
class SpanTime:
    """The spans of one name, kind, role and rank."""

    kind: str
    name: str
    role: str | None
    rank: Rank | None
    """None: several ranks together."""
    ranks: int = 1
    errors: int = 0
    longest: float = -1.0
    """Seconds of the longest one; its step and rank follow."""
    longest_step: int | None = None
    longest_rank: Rank | None = None
    seconds_of_each: array[float] = field(default_factory=lambda: array("d"))
    """Seconds of the outermost ones: a span inside another one of them does not count twice."""
    _outermost: Outermost = field(default_factory=Outermost)

    def add(self, span: Mapping[str, Any], step: int | None) -> None:
        """Add a span, in the order in which they were written."""
        seconds = self._outermost.add(span) / 1e9
        if seconds > self.longest:
            self.longest, self.longest_step, self.longest_rank = seconds, step, self.rank

    def settle(self) -> None:
        """Compute the figures once all spans are read."""
        self.seconds_of_each, self.errors = self._outermost.seconds_of_each, self._outermost.errors
        self._outermost = Outermost()

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON types with stable keys. A mark and a value have no duration."""
        table: dict[str, Any] = {
            "kind": self.kind,
            "name": self.name,
            "role": self.role,
            "rank": self.rank,
            "count": len(self.seconds_of_each),
            "errors": self.errors,
        }
        if self.kind in ("window", "region"):
            table |= {
                "seconds": sum(self.seconds_of_each),
                "median_seconds": median(self.seconds_of_each),
                "longest_seconds": self.longest,
                "longest_step": self.longest_step,
            }
        return table


@dataclass(slots=True)
class SpanTable:
    """The rows, longest total first, and the problems of the files."""

    times: list[SpanTime] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ranks(self) -> list[Rank]:
        """The processes that wrote spans."""
        return sorted({time.rank for time in self.times if time.rank is not None}, key=rank_order)

    def together(self) -> list[SpanTime]:
        """Return the same figures with all ranks in one row."""
        rows: dict[tuple[str, str, str | None], SpanTime] = {}
        for time in self.times:
            row = rows.setdefault(
                (time.kind, time.name, time.role), SpanTime(time.kind, time.name, time.role, None, ranks=0)
            )
            if time.longest > row.longest:
                row.longest, row.longest_step, row.longest_rank = time.longest, time.longest_step, time.rank
            row.ranks += 1
            row.errors += time.errors
            row.seconds_of_each.extend(time.seconds_of_each)
        return _ordered(rows.values())


def span_times(path: Path, wanted: Wanted | None = None, portions: Portions | None = None) -> SpanTable:
    """Sum up the spans of a run.

    Args:
        path: the run's folder.
        wanted: which spans.
        portions: the selected occurrence of the wanted step; None: all of them.

    Raises:
        ConfigError: no span matches, though there are others; the message names the nearest.
    """
    wanted = wanted or Wanted()
    table = SpanTable()
    found: dict[tuple[str, str, str | None, Any], SpanTime] = {}
    roles: set[str] = set()
    names: set[str] = set()
    ranks: set[Rank] = set()
    spans = read_spans(path, step=wanted.step, findings=table.findings)
    if portions is not None and wanted.step is not None:
        spans = within(spans, portions, path / SPANS, wanted.step, table.findings)
    for span in spans:
        kind, name, role, rank = span.get("kind"), span.get("name"), span.get("role"), span["rank"]
        if kind not in KINDS or not isinstance(name, str):
            continue
        ranks.add(rank)
        if not wanted.includes_rank(rank):
            continue
        if isinstance(role, str):
            roles.add(role)
        else:
            role = None
        if wanted.role not in (None, role):
            continue
        names.add(name)
        if wanted.region not in (None, name):
            continue
        time = found.get((kind, name, role, rank))
        if time is None:
            time = found[kind, name, role, rank] = SpanTime(kind, name, role, rank)
        step = span.get("step")
        time.add(span, step if isinstance(step, int) else None)
    if not found:
        _refuse_step(path, wanted)
        _refuse_ranks(path, wanted, ranks)
        _refuse(path, wanted, roles, names)
    for time in found.values():
        time.settle()
    table.times = _ordered(found.values())
    return table


def _refuse_step(path: Path, wanted: Wanted) -> None:
    """Raise ConfigError if the selected ranks have spans, but none of the step."""
    if wanted.step is None:
        return
    number = wanted.step
    steps = {
        step
        for span in read_spans(path)
        if wanted.includes_rank(span["rank"]) and isinstance(step := span.get("step"), int)
    }
    if steps and number not in steps:
        close = min(steps, key=lambda step: abs(step - number))
        raise ConfigError(f"--step = {number}: no spans in {path}; did you mean {close}?")


def _refuse_ranks(path: Path, wanted: Wanted, ranks: Collection[Rank]) -> None:
    """Raise ConfigError if only other ranks than the selected ones wrote spans."""
    if ranks and not any(map(wanted.includes_rank, ranks)):
        known = ", ".join(map(str, sorted(ranks, key=rank_order)))
        raise ConfigError(f'--ranks = "{wanted.ranks}": no spans in {path}; must be among {known}')


def _refuse(path: Path, wanted: Wanted, roles: Collection[str], names: Collection[str]) -> None:
    """Raise ConfigError if no span has the given role or name, and name the nearest that exists."""
    for option, given, known in (("--role", wanted.role, roles), ("--region", wanted.region, names)):
        if given is not None and given not in known and known:
            raise ConfigError(f'{option} = "{given}": no spans in {path}{nearest(given, sorted(known))}')


def _ordered(times: Iterable[SpanTime]) -> list[SpanTime]:
    """Return the rows by kind, those with the longest total first."""
    return sorted(
        times,
        key=lambda time: (
            KINDS.index(time.kind),
            -sum(time.seconds_of_each),
            time.name,
            time.role or "",
            rank_order(time.rank if time.rank is not None else -1),
        ),
    )

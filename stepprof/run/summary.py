"""Summarise a recorded step: counts of its manifest, seconds per region, and missing windows."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from stepprof.config.selection import Ranks
from stepprof.errors import ConfigError
from stepprof.run.layout import SPANS
from stepprof.run.manifest import read_step
from stepprof.run.occurrence_spans import Portions, within
from stepprof.run.occurrences import split
from stepprof.run.outermost_spans import Outermost
from stepprof.run.reasons import ReasonCode
from stepprof.run.runs import read_run
from stepprof.run.spans import read_spans

SESSIONS = ("rank", "spans")
"""Kinds of targets that are sessions of other processes: they have windows of their own."""

Rank = int | str
_ABSENT_SHOWN = 8


@dataclass(frozen=True, slots=True)
class StepSummary:
    """A step in one line: the statuses of its windows, its participants and its size."""

    step: int
    version: int | str | None
    statuses: Mapping[str, int]
    roles: Sequence[str]
    ranks: Sequence[Rank]
    artifacts: int
    bytes: int
    findings: int
    engines: Mapping[str, int] = field(default_factory=dict)
    """Number of engine captures by status."""
    pruned: int = 0
    """Number of artifacts deleted by a budget."""
    not_uploaded: int = 0
    """Number of artifacts that could not be uploaded."""
    occurrence: int = 1
    """The number of the occurrence: a step number may be used several times."""
    occurrences: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data; the keys are stable."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class RegionTime:
    """One region of one rank in one step. The seconds of overlapping coroutine calls add up to more
    than the elapsed time.
    """

    name: str
    role: str | None
    rank: Rank
    count: int = 0
    seconds: float = 0.0
    errors: int = 0


@dataclass(slots=True)
class RegionTable:
    """Region times of a step, and the findings of its span files."""

    times: list[RegionTime] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)


def summarize_step(path: Path, step: int) -> list[StepSummary]:
    """Return the counts of the manifest, for each occurrence of the step."""
    occurrences = split(read_step(path, step))
    return [
        _summary(step, manifest, number, len(occurrences)) for number, manifest in enumerate(occurrences, 1)
    ]


def _summary(step: int, manifest: Mapping[str, Any], number: int, count: int) -> StepSummary:
    windows = manifest["windows"]
    engines = without_references(manifest["engines"])
    artifacts = [artifact for entry in [*windows, *engines] for artifact in entry["artifacts"]]
    return StepSummary(
        step=step,
        version=manifest["version"],
        statuses=dict(Counter(window["status"] for window in windows)),
        roles=sorted({window["role"] or "step" for window in windows}),
        ranks=sorted({window["rank"] for window in windows}, key=rank_order),
        artifacts=len(artifacts),
        bytes=sum(artifact["bytes"] for artifact in artifacts),
        findings=len(manifest["findings"]),
        engines=dict(Counter(engine["status"] for engine in engines)),
        pruned=sum(len(each["paths"]) for each in manifest["pruned"]),
        not_uploaded=sum(each["status"] != "uploaded" for each in manifest["uploads"]),
        occurrence=number,
        occurrences=count,
    )


def held_seconds(window: Mapping[str, Any]) -> float:
    """Return how long recording held the window's thread: arming, starting, waiting and stopping, but
    not the export.

    >>> held_seconds({"arm_seconds": 0.25, "start_seconds": 0.5, "wait_seconds": 0.0, "stall_seconds": None})
    0.75
    """
    return sum(
        window[key] or 0.0 for key in ("arm_seconds", "start_seconds", "wait_seconds", "stall_seconds")
    )


def without_references(engines: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the engines without entries that only refer to another process, if that one has an entry."""
    engines = list(engines)
    known = {name for engine in engines if not _is_elsewhere(engine) for name in _names(engine)}
    return [
        engine for engine in engines if not (_is_elsewhere(engine) and known.intersection(_names(engine)))
    ]


def only_references(engines: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the engines that every process leaves to another one, one entry each."""
    left = {_names(engine): engine for engine in without_references(engines) if _is_elsewhere(engine)}
    return list(left.values())


def engine_label(engine: Mapping[str, Any]) -> str:
    """Return the label of an engine in logs and tables.

    >>> engine_label({"role": "rollout", "replica": 0, "occurrence": 1})
    'rollout/0'
    """
    number = "?" if engine["replica"] is None else f"{engine['replica']:.0f}"
    again = "" if engine["occurrence"] in (None, 1) else f" ({engine['occurrence']})"
    return f"{engine['role'] or 'step'}/{number}{again}"


def _is_elsewhere(engine: Mapping[str, Any]) -> bool:
    return bool(engine["reason_code"] == ReasonCode.DRIVEN_ELSEWHERE)


def _names(engine: Mapping[str, Any]) -> tuple[tuple[object, ...], ...]:
    """Return the identities of an engine: its URL or number may differ in entries of other processes."""
    which = (engine["role"], engine["occurrence"])
    return ((*which, "name", engine["name"]), (*which, "replica", engine["replica"]))


def region_times(path: Path, step: int, portions: Portions | None = None) -> RegionTable:
    """Return calls and seconds of each region of a step, per rank and role, in the order of their
    first end. A call inside another call of the same region is not counted.

    Args:
        path: the run's folder.
        step: the step.
        portions: the selected occurrence; None: all occurrences.
    """
    found: dict[tuple[str, str | None, Rank], Outermost] = {}
    table = RegionTable()
    read = read_spans(path, step=step, findings=table.findings)
    for span in read if portions is None else within(read, portions, path / SPANS, step, table.findings):
        if span.get("kind") == "region":
            role = span.get("role") if isinstance(span.get("role"), str) else None
            found.setdefault((str(span["name"]), role, span["rank"]), Outermost()).add(span)
    for (name, role, rank), spans in found.items():
        seconds = spans.seconds_of_each
        table.times.append(RegionTime(name, role, rank, len(seconds), sum(seconds), spans.errors))
    return table


def absent_ranks(path: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Return the selected ranks without a window in the manifest, one sentence per role.

    The ranks of an engine's role are the engines' own: no other process is missing.
    """
    config = read_run(path).get("config")
    if not isinstance(config, dict):
        return []
    sentences = []
    of_engines = {engine["role"] for engine in manifest["engines"] if engine["kind"] not in SESSIONS}
    roles = {window["role"] for window in manifest["windows"]} - of_engines
    for role in sorted(roles, key=lambda role: role or ""):
        windows = [window for window in manifest["windows"] if window["role"] == role]
        world: int = max((window["world_size"] or 0 for window in windows), default=0)
        text = _ranks_of(config, role)
        if text is None or not world:
            continue
        try:
            selected = Ranks.parse(text)
        except ConfigError:  # of another version of stepprof: nothing is reported as missing
            continue
        there = {window["rank"] for window in windows}
        absent, count = _first_absent(selected, world, there)
        if count:
            shown = ", ".join(map(str, absent)) + (
                f" and {count - len(absent)} more" if count > len(absent) else ""
            )
            sentences.append(
                f'{role or "step"}: no window of rank {shown}, which ranks = "{text}" selects: it never entered one of this role, belongs to another run (see run_id_from in run.json), or could not write'
            )
    return sentences


def _first_absent(selected: Ranks, world: int, there: Collection[object]) -> tuple[list[int], int]:
    """Return the first few missing ranks among the selected, and the number of all, for any world size."""
    here = sorted(rank for rank in there if isinstance(rank, int))
    absent: list[int] = []
    count = 0
    for first, last in ((0, world - 1),) if selected.all else selected.intervals:
        end = min(last, world - 1) + 1
        if first >= end:
            continue
        count += end - first - (bisect_left(here, end) - bisect_left(here, first))
        missing = (rank for rank in range(first, end) if rank not in there)
        absent += islice(missing, _ABSENT_SHOWN - len(absent))
    return absent, count


def rank_order(rank: Rank) -> tuple[bool, Any]:
    """Return the sort key: numbers before names."""
    return (isinstance(rank, str), rank)


def _ranks_of(config: Mapping[str, Any], role: str | None) -> object:
    roles = config.get("roles")
    policy = roles.get(role) if isinstance(roles, dict) else None
    own = policy.get("ranks") if isinstance(policy, dict) else None
    return config.get("ranks") if own is None else own


def ordered_ranks(times: Iterable[RegionTime]) -> list[Rank]:
    """Return the ranks with any measured region."""
    return sorted({time.rank for time in times}, key=rank_order)

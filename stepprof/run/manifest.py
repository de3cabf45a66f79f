"""Combine the fragments of a step's manifest: one for each process that took part.

A fragment may be damaged, half-copied or of a newer version. What is wrong becomes a finding, and the
rest is read. An entry is written ahead as `lost`; while its writer lives, it is `recording` or
`exporting`.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stepprof.errors import ConfigError
from stepprof.formatting import counted
from stepprof.host.clock import Anchor
from stepprof.host.plain_files import json_files, readable
from stepprof.run.fields import cut, wrong
from stepprof.run.fragments import read_after, read_clock, read_engine, read_window
from stepprof.run.layout import MANIFEST, SPANS, step_folder
from stepprof.run.names import RUN_FILE
from stepprof.run.runs import load_table, run_id_of, run_problems, steps
from stepprof.run.schema import AFTER

SCHEMA_VERSION = 1
_MOST_ENTRIES = 100_000
_MOST_PROBLEMS = 20
_Find = Callable[[str], None]


def read_step(path: Path, step: int) -> dict[str, Any]:
    """Return the manifest of a step, combined from its fragments.

    Returns:
        schema_version, run_id, step, version, windows, engines, clocks, uploads, completions, pruned, as in docs/manifest.md. Each window and engine also has ``fragment`` (its file), and while its process lives the current status: ``recording`` or ``exporting`` (of an engine ``flushing``). ``findings`` is a list of {fragment, problem} for everything that is unreadable or contradictory.
    """
    manifest: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id_of(path),
        "step": step,
        "version": None,
        "windows": [],
        "engines": [],
        "clocks": [],
        **{key: [] for key in AFTER},
        "findings": [],
    }

    def find(problem: str, fragment: str | None = None) -> None:
        manifest["findings"].append({"fragment": fragment, "problem": problem})

    try:
        files = json_files(path / step_folder(step) / MANIFEST)
    except OSError as error:
        find(f"the step has no manifest: {error.strerror}")
        return manifest
    for problem in run_problems(path):
        find(problem, RUN_FILE)
    versions: list[Any] = []
    for file in files:
        name = readable(file.name)
        content, problem = load_table(file)
        if content is None:
            find(problem, name)
        elif content.get("schema_version") != SCHEMA_VERSION:
            find(
                f"written with schema_version {cut(content.get('schema_version'))}; this stepprof reads {SCHEMA_VERSION}: read it with the stepprof that wrote it, or a newer one",
                name,
            )
        else:
            reported = _Bounded(partial(find, fragment=name))
            _add_entries(manifest, content, name, reported)
            version = _version(content, reported)
            if version is not None and version not in versions:
                versions.append(version)
            reported.end()
    if len(versions) > 1:
        several = ", ".join(map(cut, versions[:_MOST_PROBLEMS]))
        find(f"the ranks do not agree on the version: {several}")
    manifest["version"] = versions[0] if versions else None
    manifest["clocks"] = list(
        {json.dumps(each, sort_keys=True): each for each in manifest["clocks"]}.values()
    )
    manifest["windows"].sort(key=_order)
    manifest["engines"].sort(key=_order_of_engines)
    return manifest


def find_step(runs: Sequence[Path], step: int | None) -> int:
    """Return the number of the step; None: the last recorded one that a process finished, if there is one.

    Args:
        runs: the folders of one run, of several nodes that share no disk.
        step: its number; None: the last.

    Raises:
        ConfigError: it is not recorded; the message has the nearest one.
    """
    recorded = sorted({number for run in runs for number in steps(run)})
    if not recorded:
        times = (
            f"; its times: stepprof spans {shlex.quote(str(runs[0]))}" if (runs[0] / SPANS).is_dir() else ""
        )
        raise ConfigError(f'run "{runs[0]}": no step is recorded{times}')
    if step is None:
        return next((each for each in reversed(recorded) if _is_finished(runs, each)), recorded[-1])
    if step not in recorded:
        nearest = min(recorded, key=lambda other: abs(other - step))
        raise ConfigError(f"step {step}: not recorded in {runs[0]}; did you mean {nearest}?")
    return step


def _is_finished(runs: Sequence[Path], step: int) -> bool:
    """Return whether any window of a step has an end, or its manifest has no windows."""
    windows = [window for run in runs for window in read_step(run, step)["windows"]]
    return not windows or any(window["end_unix_ns"] is not None for window in windows)


def read_clocks(path: Path, step: int) -> list[dict[str, Any]]:
    """Return by which clock each fragment of a step was written, and its comparisons with others.

    Returns:
        {fragment, host, boot_id, anchor, clocks} of each: the writer's host, boot and anchor (None if not stated), and its comparisons. Unreadable fragments are omitted; `read_step` reports them.
    """
    try:
        files = json_files(path / step_folder(step) / MANIFEST)
    except OSError:
        return []
    written = []
    for file in files:
        content, _ = load_table(file)
        if content is None or content.get("schema_version") != SCHEMA_VERSION:
            continue
        writer = content.get("writer")
        reported = writer if isinstance(writer, dict) else {}
        known = {key: reported[key] for key in ("host", "boot_id") if isinstance(reported.get(key), str)}
        clocks = _clocks(content, lambda problem: None)
        written.append(
            {
                "fragment": readable(file.name),
                "host": None,
                "boot_id": None,
                **known,
                "anchor": Anchor.of(content.get("anchor")),
                "clocks": [*clocks],
            }
        )
    return written


def _add_entries(manifest: dict[str, Any], content: Mapping[str, Any], name: str, find: _Find) -> None:
    """Add the entries of a fragment to the manifest."""
    for key in ("step", "run_id"):
        if content.get(key) != manifest[key]:
            find(f"says {key} = {cut(content.get(key))} and lies in {manifest[key]!r}")
    writer = content.get("writer")
    for key, read in (("windows", read_window), ("engines", read_engine)):
        for entry in _entries(content, key, find):
            known, problems = read(entry, writer)
            manifest[key].append({**known, **_of_job(content), "fragment": name})
            for problem in problems:
                find(problem)
    for key in AFTER:
        for entry in _entries(content, key, find):
            known, problems = read_after(key, entry, writer)
            manifest[key].append({**known, "fragment": name})
            for problem in problems:
                find(problem)
    manifest["clocks"] += _clocks(content, find)


def _clocks(content: Mapping[str, Any], find: _Find) -> Iterator[dict[str, Any]]:
    for entry in _entries(content, "clocks", find):
        clock, problems = read_clock(entry)
        if clock is not None:
            yield clock
        for problem in problems:
            find(problem)


def _version(content: Mapping[str, Any], find: _Find) -> Any:
    version = content.get("version")
    problem = wrong("version", version)
    if problem is None:
        return version
    find(f"damaged: version = {cut(version)} {problem}")
    return None


def _of_job(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job of a fragment, and the live process of another job that wrote as the same rank."""
    job, rival = content.get("job"), content.get("rival")
    return {
        "job": job if isinstance(job, str) else None,
        "rival": rival if isinstance(rival, dict) else None,
    }


class _Bounded:
    """Report the first problems of a fragment and the number of the others: one file must not fill the report."""

    def __init__(self, find: _Find) -> None:
        self._find = find
        self._count = 0

    def __call__(self, problem: str) -> None:
        self._count += 1
        if self._count <= _MOST_PROBLEMS:
            self._find(problem)

    def end(self) -> None:
        """Report the number of further problems."""
        more = self._count - _MOST_PROBLEMS
        if more > 0:
            self._find(f"and {counted(more, 'further problem')}")


def _entries(content: Mapping[str, Any], key: str, find: _Find) -> Iterator[dict[str, Any]]:
    entries = content.get(key, [])
    if not isinstance(entries, list):
        find(f"damaged: {key} is not a list")
        return
    for entry in entries[:_MOST_ENTRIES]:
        if isinstance(entry, dict):
            yield entry
        else:
            find(f"damaged: an entry of {key} is not an object")
    if len(entries) > _MOST_ENTRIES:
        find(f"has {len(entries)} entries of {key}: those after the first {_MOST_ENTRIES} are left out")


def _order(window: Mapping[str, Any]) -> tuple[object, ...]:
    rank = window["rank"]
    return (
        window["role"] or "",
        isinstance(rank, str),
        rank,
        window["occurrence"] or 1,
        window["start_unix_ns"] or 0,
    )


def _order_of_engines(engine: Mapping[str, Any]) -> tuple[object, ...]:
    replica = engine["replica"]
    return (
        engine["role"] or "",
        engine["occurrence"] or 1,
        math.inf if replica is None else replica,
        engine["kind"] or "",
        engine["name"] or "",
        engine["status"] == "joined",
        engine["start_unix_ns"] or 0,
    )

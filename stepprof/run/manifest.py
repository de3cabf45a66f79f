"""Reading a run: what was recorded, in the words of the manifests, whatever state they are in.

The reading wing's way into the run directory. A step's manifest is in as many fragments as processes took part, and any of them may be damaged, half-copied or of a newer version: what is
wrong becomes a finding beside the rest and stops nothing. A fragment that says `lost` was written ahead; while its writer lives, the truth is that the capture is running, or being exported.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stepprof.errors import ConfigError
from stepprof.formatting import counted
from stepprof.host.plain_files import read_table, readable
from stepprof.run.fields import LONGEST_NAME, cut, is_rank, wrong
from stepprof.run.fragments import read_after, read_clock, read_engine, read_window
from stepprof.run.layout import MANIFEST, RUN_FILE, SPANS, step_folder, step_number
from stepprof.run.schema import AFTER
from stepprof.run.span_lines import parse_span, span_lines

__all__ = [
    "find_run",
    "find_step",
    "is_run",
    "list_runs",
    "read_clocks",
    "read_run",
    "read_spans",
    "read_step",
    "run_id_of",
    "run_problems",
    "steps",
]

SCHEMA_VERSION = 1
_MOST_ENTRIES = 100_000
_MOST_PROBLEMS = 20
_SPANS_FILE = re.compile(r"rank-(.+)\.(\d{1,18})\.jsonl", re.ASCII)


def find_run(output_dir: Path, run: str | None = None) -> Path:
    """Return the folder of a run.

    Args:
        output_dir: the folder that holds runs.
        run: a run id, or the path of a run or of a folder of runs. None: the run in ``output_dir`` that was recorded into last.

    Raises:
        ConfigError: no such run; the message says where it was searched and what is there.
    """
    if run is None:
        runs = list_runs(output_dir)
        if not runs:
            raise ConfigError(
                f'output_dir = "{output_dir}": no run is recorded there; name another folder with --output-dir, or record a first run with "stepprof demo"'
            )
        return runs[-1]
    inside = output_dir / run
    for candidate in (inside, Path(run)):
        if candidate.is_dir():
            below = [] if is_run(candidate) else list_runs(candidate)
            return below[-1] if below else candidate
    known = ", ".join(path.name for path in reversed(list_runs(output_dir)[-5:]))
    raise ConfigError(
        f'run "{run}": neither a run under "{output_dir}" nor a folder; {f"the newest there: {known}" if known else "nothing is recorded there"}'
    )


def list_runs(output_dir: Path) -> list[Path]:
    """Return the runs under ``output_dir``, the one that was recorded into last at the end; empty if the folder does not exist."""
    try:
        folders = [path for path in output_dir.iterdir() if not path.name.startswith(".") and is_run(path)]
    except OSError:
        return []
    return sorted(folders, key=lambda path: (_last_recorded(path), path.name))


def is_run(path: Path) -> bool:
    """Whether a folder has been recorded into; one that may not be looked into is none."""
    try:
        return (path / RUN_FILE).is_file() or bool(steps(path))
    except PermissionError:
        return False


def read_run(path: Path) -> dict[str, Any]:
    """Return the content of ``run.json``; empty if it is missing or damaged."""
    return _read_run(path)[0]


def run_problems(path: Path) -> list[str]:
    """Return what is wrong with `run.json`; nothing is where it is missing."""
    return _read_run(path)[1]


def _read_run(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return what `run.json` says, without what cannot be; and what that was."""
    content, problem = _load(path / RUN_FILE)
    if content is None:
        return {}, [problem] if os.path.lexists(path / RUN_FILE) else []
    problems = []
    for key, is_good in _RUN_FIELDS.items():
        if content.get(key) is not None and not is_good(content[key]):
            problems.append(f"damaged: {key} = {cut(content[key])}")
            del content[key]
    return content, problems


_RUN_FIELDS: dict[str, Callable[[Any], bool]] = {
    "run_id": lambda value: type(value) is str and 0 < len(value) <= LONGEST_NAME and "\0" not in value,
    "world_size": lambda value: wrong("world_size", value) is None,
    "created_unix_ns": lambda value: wrong("created_unix_ns", value) is None,
    "config": lambda value: isinstance(value, dict),
    "writer": lambda value: isinstance(value, dict),
}


def run_id_of(path: Path) -> str:
    """What a run is called: by `run.json`, else by its folder."""
    return str(read_run(path).get("run_id", path.name))


def steps(path: Path) -> list[int]:
    """Return the steps that have a folder in the run, in order."""
    try:
        numbers = [step_number(child.name) for child in path.iterdir() if child.is_dir()]
    except OSError:
        return []
    return sorted(number for number in numbers if number is not None)


def find_step(runs: Sequence[Path], step: int | None) -> int:
    """The step that is meant: the last one recorded where none is named.

    Args:
        runs: the folders of one run, of several nodes that share no disk.
        step: its number; None: the last.

    Raises:
        ConfigError: it is not recorded; names the nearest that is.
    """
    recorded = sorted({number for run in runs for number in steps(run)})
    if not recorded:
        raise ConfigError(f'run "{runs[0]}": no step is recorded; "stepprof check" says what is there')
    if step is None:
        return recorded[-1]
    if step not in recorded:
        nearest = min(recorded, key=lambda other: abs(other - step))
        raise ConfigError(f"step {step}: not recorded in {runs[0]}; the nearest that is: {nearest}")
    return step


def read_step(path: Path, step: int) -> dict[str, Any]:
    """Return the manifest of a step, combined from its fragments.

    Returns:
        schema_version, run_id, step, version, windows, engines, clocks, uploads, completions, pruned, as in docs/manifest.md. Each window and engine also has ``fragment`` (its file),
        and while its process lives the current status: ``recording`` or ``exporting`` (of an engine ``flushing``). ``findings`` is a list of {fragment, problem} for everything that
        is unreadable or contradictory.
    """
    folder = path / step_folder(step) / MANIFEST
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
        files = _by_name(file for file in folder.iterdir() if file.suffix == ".json" and file.name[0] != ".")
    except OSError as error:
        find(f"the step has no manifest: {error.strerror}")
        return manifest
    for problem in run_problems(path):
        find(problem, RUN_FILE)
    versions: list[Any] = []
    clocks: dict[str, dict[str, Any]] = {}
    for file in files:
        name = readable(file.name)
        content, problem = _load(file)
        if content is None:
            find(problem, name)
            continue
        if content.get("schema_version") != SCHEMA_VERSION:
            find(
                f"written with schema_version {cut(content.get('schema_version'))}; this stepprof reads {SCHEMA_VERSION}: read it with the stepprof that wrote it, or a newer one",
                name,
            )
            continue
        for key, expected in (("step", step), ("run_id", manifest["run_id"])):
            if content.get(key) != expected:
                find(f"says {key} = {cut(content.get(key))} and lies in {expected!r}", name)
        told = _Bounded(partial(find, fragment=name))
        version = content.get("version")
        if wrong("version", version):
            told(f"damaged: version = {cut(version)} {wrong('version', version)}")
        elif version is not None and version not in versions:
            versions.append(version)
        for key, read in (("windows", read_window), ("engines", read_engine)):
            for entry in _entries(content, key, told):
                known, problems = read(entry, content.get("writer"))
                manifest[key].append({**known, **_of_job(content), "fragment": name})
                for problem in problems:
                    told(problem)
        for key in AFTER:
            for entry in _entries(content, key, told):
                known, problems = read_after(key, entry, content.get("writer"))
                manifest[key].append({**known, "fragment": name})
                for problem in problems:
                    told(problem)
        for entry in _entries(content, "clocks", told):
            clock, problems = read_clock(entry)
            if clock is not None:
                clocks.setdefault(json.dumps(clock, sort_keys=True), clock)
            for problem in problems:
                told(problem)
        told.end()
    if len(versions) > 1:
        several = ", ".join(map(cut, versions[:_MOST_PROBLEMS]))
        find(f"the ranks do not agree on the version: {several}")
    manifest["version"] = versions[0] if versions else None
    manifest["clocks"] = list(clocks.values())
    manifest["windows"].sort(key=_order)
    manifest["engines"].sort(key=_order_of_engines)
    return manifest


def read_clocks(path: Path, step: int) -> list[dict[str, Any]]:
    """By which clock each fragment of a step was written, and with which others that one was compared.

    Returns:
        {fragment, host, boot_id, clocks} of each: the writer's host and boot (None where it does not say), and its comparisons, as the file format says. What cannot be read is left out:
        `read_step` tells of it.
    """
    folder = path / step_folder(step) / MANIFEST
    try:
        files = _by_name(file for file in folder.iterdir() if file.suffix == ".json" and file.name[0] != ".")
    except OSError:
        return []
    written = []
    for file in files:
        name = readable(file.name)
        content, _ = _load(file)
        if content is None or content.get("schema_version") != SCHEMA_VERSION:
            continue
        writer = content.get("writer")
        who = {key: writer.get(key) for key in ("host", "boot_id")} if isinstance(writer, dict) else {}
        read = [read_clock(entry)[0] for entry in _entries(content, "clocks", lambda problem: None)]
        written.append(
            {
                "fragment": name,
                **{
                    key: value if isinstance(value := who.get(key), str) else None
                    for key in ("host", "boot_id")
                },
                "clocks": [clock for clock in read if clock is not None],
            }
        )
    return written


def read_spans(
    path: Path, *, step: int | None = None, findings: list[dict[str, Any]] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the spans of a run, rank by rank and in the order in which they were written, each with the ``rank``, ``host`` and ``pid`` of its file.

    Args:
        path: the run's folder.
        step: only the spans of this step.
        findings: receives {file, problem} for each file with damaged lines. An incomplete last line is not a finding: its process was writing it, or was killed.
    """
    try:
        files = _by_name(file for file in (path / SPANS).iterdir() if _SPANS_FILE.fullmatch(file.name))
    except FileNotFoundError:
        return
    except OSError as error:
        _note(findings, "", f"cannot be read: {error.strerror}")
        return
    for file in files:
        damaged = 0
        origin: dict[str, Any] = {"rank": _rank_of(readable(file.name)), "host": None, "pid": None}
        try:
            for line in span_lines(file, step):
                span = parse_span(line)
                if span is None:
                    damaged += line.endswith(b"\n")
                elif span.get("kind") == "spans":
                    origin.update(_origin(span))
                elif "name" not in span:
                    damaged += 1
                elif step is None or span.get("step") == step:
                    span.update(origin)
                    yield span
        except OSError as error:
            _note(findings, readable(file.name), f"cannot be read: {error.strerror}")
        if damaged:
            _note(findings, readable(file.name), f"{damaged} damaged line{'s' * (damaged > 1)} ignored")


def _of_job(content: Mapping[str, Any]) -> dict[str, Any]:
    """Of which job a fragment is, and which process of another job wrote as the same rank while both lived."""
    job, rival = content.get("job"), content.get("rival")
    return {
        "job": job if isinstance(job, str) else None,
        "rival": rival if isinstance(rival, dict) else None,
    }


def _origin(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return whose spans a file has, as far as its first line says."""
    kinds = {"rank": (int, str), "host": (str, type(None)), "pid": (int, type(None))}
    told = {key: header[key] for key, kind in kinds.items() if key in header and type(header[key]) in kind}
    return told if is_rank(told.get("rank", 0)) else {**told, "rank": "unknown"}


def _by_name(files: Iterable[Path]) -> list[Path]:
    """Return the files of one folder in the order of their names: paths themselves are compared in Python, and that many times over."""
    return sorted(files, key=lambda file: file.name)


def _note(findings: list[dict[str, Any]] | None, file: str, problem: str) -> None:
    if findings is not None:
        findings.append({"file": f"{SPANS}/{file}", "problem": problem})


def _rank_of(name: str) -> int | str:
    match = _SPANS_FILE.fullmatch(name)
    rank = match[1] if match else name
    return int(rank) if rank.isdecimal() and len(rank) < 10 else rank


def _load(file: Path) -> tuple[dict[str, Any] | None, str]:
    """A JSON table, or None and why not."""
    try:
        return read_table(file), ""
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    except ValueError as error:
        return None, str(error)


class _Bounded:
    """Reports the first problems of a fragment, and how many more there are: one file must not fill the report."""

    def __init__(self, find: Callable[[str], None]) -> None:
        self._find = find
        self._count = 0

    def __call__(self, problem: str) -> None:
        self._count += 1
        if self._count <= _MOST_PROBLEMS:
            self._find(problem)

    def end(self) -> None:
        """All of the fragment is read."""
        more = self._count - _MOST_PROBLEMS
        if more > 0:
            self._find(f"and {counted(more, 'further problem')}")


def _entries(content: Mapping[str, Any], key: str, find: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    entries = content.get(key, [])
    if not isinstance(entries, list):
        find(f"damaged: {key} is no list")
        return
    for entry in entries[:_MOST_ENTRIES]:
        if isinstance(entry, dict):
            yield entry
        else:
            find(f"damaged: an entry of {key} is no table")
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


def _last_recorded(path: Path) -> int:
    """When a run was last recorded into: reports and merged timelines that are made later do not count."""
    places = [path / RUN_FILE, path / SPANS, *(path / step_folder(step) / MANIFEST for step in steps(path))]
    times = [0]
    for place in places:
        try:
            times.append(place.stat().st_mtime_ns)
        except OSError:  # a run that has none of these, or loses it while we look
            continue
    return max(times)

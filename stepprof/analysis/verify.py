"""Check artifacts against manifests: everything that a run lists must exist, be complete and
readable.

An empty directory, a run without steps, and a step without a complete window are failures, because
a check without anything to check proves nothing. Artifacts are read to their ends
(`stepprof.analysis.artifact_check`), in worker processes if there is much data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepprof.analysis.artifact_check import Checked, Kept, check_artifact, foreign_files, never_kept
from stepprof.analysis.post_step_notes import after_notes, pruned_paths
from stepprof.analysis.timeline.workers import each_in_worker
from stepprof.host.plain_files import readable
from stepprof.run.conflicts import sentences
from stepprof.run.folders import ASIDE
from stepprof.run.layout import MANIFEST, step_folder, step_number
from stepprof.run.manifest import read_step
from stepprof.run.names import RUN_FILE
from stepprof.run.occurrences import split
from stepprof.run.runs import run_problems, steps
from stepprof.run.spans import read_spans
from stepprof.run.summary import SESSIONS, absent_ranks, engine_label, only_references, without_references

_WELL_ENDED = ("complete", "joined")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. `where` is a path relative to the folder of the run."""

    step: int | None
    where: str
    problem: str


@dataclass(slots=True)
class _Captures:
    """The captures that left a file, also if it was deleted since. Each folder is listed once."""

    _there: dict[Path, set[str]] = field(default_factory=dict)
    _deleted: dict[Path, set[str]] = field(default_factory=dict)

    def holds(self, run: Path, capture: object) -> bool:
        """Return whether the capture that a window joined is there; True if the entry does not name it."""
        if not isinstance(capture, dict):
            return True
        step, stem = capture.get("step"), capture.get("stem")
        if not isinstance(step, int) or not isinstance(stem, str) or ".." in stem:
            return False
        folder = run / step_folder(step)
        file = folder / stem
        if file.is_dir():  # an engine's own folder
            return any(other.is_file() for other in file.iterdir())
        if file.parent not in self._there:
            names = [other.name for other in file.parent.iterdir()] if file.parent.is_dir() else []
            self._there[file.parent] = {each for name in names for each in _stems(name)}
        if file.name in self._there[file.parent]:
            return True
        if folder not in self._deleted:
            paths = pruned_paths(read_step(run, step))
            self._deleted[folder] = {each for path in paths for each in _stems(path)}
        return stem in self._deleted[folder]


@dataclass(slots=True)
class Verification:
    """The result of a check. `problems` make it fail, `notes` do not."""

    steps: int = 0
    windows: int = 0
    engines: int = 0
    artifacts: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    pending: list[tuple[Problem, tuple[Path, int, str | None]]] = field(default_factory=list)
    """Artifacts that are still to be read: where a problem is reported, and the path, size and kind in the manifest."""
    captures: _Captures = field(default_factory=_Captures)
    kept: list[Kept] = field(default_factory=list)
    """What the check of uploads, commands and deletions needs to know of each step."""
    pruned: dict[str, str] = field(default_factory=dict)
    """The deleted artifacts of the current step, by path, with the reason."""

    @property
    def ok(self) -> bool:
        """Return whether nothing is missing or damaged."""
        return not self.problems


def verify_run(
    path: Path, *, workers: int | None = None, progress: Callable[[int, int], None] | None = None
) -> Verification:
    """Check every step of a run.

    Args:
        path: the run's folder.
        workers: maximum number of processes that read artifacts; None: one per core, and only this one if
            there is little to read. 1: all in this one.
        progress: called with (artifacts read, all artifacts) after each.
    """
    result = Verification()
    recorded = steps(path)
    if not (path / RUN_FILE).exists():
        result.problems.append(Problem(None, RUN_FILE, "missing"))
    result.problems += [Problem(None, RUN_FILE, problem) for problem in run_problems(path)]
    if not recorded:
        result.problems.append(Problem(None, "", "no step is recorded"))
    for found in _folder_problems(path):
        (result.notes if ASIDE in found.where else result.problems).append(found)
    for step in recorded:
        _verify_step(path, step, result)
    result.notes += [Problem(None, where, note) for where, note in foreign_files(path)]
    result.notes += [Problem(None, "", note) for note in never_kept(path, result.kept)]
    _read_artifacts(result, workers, progress)
    findings: list[dict[str, Any]] = []
    for _ in read_spans(path, findings=findings):
        pass
    result.problems += [Problem(None, finding["file"], finding["problem"]) for finding in findings]
    return result


def _folder_problems(path: Path) -> Iterator[Problem]:
    """Return why steps could not be recorded: another user's folder, or a file, has their name."""
    with contextlib.suppress(OSError):
        owner = path.stat().st_uid
        for file in sorted(path.iterdir()):
            number = step_number(file.name.partition(ASIDE)[0])
            if number is None:
                continue
            if ASIDE in file.name or not file.is_dir():
                why = (
                    "is not a folder: it was moved aside"
                    if ASIDE in file.name
                    else "is not a folder: nothing can be recorded there"
                )
                yield Problem(number, readable(file.name), why)
            elif file.stat().st_uid != owner:
                yield Problem(
                    number, file.name, f"belongs to user {file.stat().st_uid}, and the run to user {owner}"
                )


def _read_artifacts(
    result: Verification, workers: int | None, progress: Callable[[int, int], None] | None
) -> None:
    tasks = [task for _, task in result.pending]
    sizes = [size for _, size, _ in tasks]
    read = each_in_worker(check_artifact, tasks, sizes=sizes, workers=workers, progress=progress)
    for (about, _), found in zip(result.pending, read, strict=True):
        checked = found if isinstance(found, Checked) else Checked(f"could not be checked: {found.reason}")
        result.notes += [replace(about, problem=note) for note in checked.notes]
        if checked.problem:
            result.problems.append(replace(about, problem=checked.problem))
    result.pending.clear()


def _verify_step(path: Path, step: int, result: Verification) -> None:
    manifest = read_step(path, step)
    folder = path / step_folder(step)
    windows, engines = manifest["windows"], without_references(manifest["engines"])
    result.pruned = pruned_paths(manifest)
    result.notes += [Problem(step, folder.name, note) for note in after_notes(manifest, all_well=False)]
    result.steps += 1
    result.windows += len(windows)
    result.engines += len(engines)
    paths = [each["path"] for entry in [*windows, *engines] for each in entry["artifacts"]]
    there = any((folder / each).exists() for each in paths)
    result.kept.append(
        Kept(step, bool(windows or engines), bool(manifest["completions"]), bool(manifest["uploads"]), there)
    )
    for finding in manifest["findings"]:
        if finding["fragment"] == RUN_FILE:
            continue  # reported once, for the run
        where = f"{folder.name}/{MANIFEST}/{finding['fragment'] or ''}"
        result.problems.append(Problem(step, where, finding["problem"]))
    for window in windows:
        _verify_window(folder, step, window, result)
    for engine in engines:
        _verify_engine(folder, step, engine, result)
    for engine in only_references(engines):
        subject = f"{folder.name}/{engine_label(engine)}"
        result.problems.append(
            Problem(step, subject, f"is left to another process, which reported nothing: {engine['error']}")
        )
    result.notes += [Problem(step, folder.name, sentence) for sentence in sentences(windows)]
    for part in split(manifest):
        result.problems += [Problem(step, folder.name, sentence) for sentence in absent_ranks(path, part)]
    if not any(window["status"] in _WELL_ENDED for window in windows):
        result.problems.append(Problem(step, folder.name, "has no complete window"))
    named = {artifact["path"] for entry in [*windows, *engines] for artifact in entry["artifacts"]}
    for file in _files(folder):
        inside = file.relative_to(folder)
        if not named.intersection(path.as_posix() for path in (inside, *inside.parents)):
            result.notes.append(
                Problem(
                    step, f"{folder.name}/{file.relative_to(folder).as_posix()}", "not listed in any manifest"
                )
            )


def _verify_window(folder: Path, step: int, window: Mapping[str, Any], result: Verification) -> None:
    subject = f"{folder.name}/{window['role'] or 'step'} rank {window['rank']}"
    _verify_outcome(folder, step, subject, window, result)
    if (
        window["status"] in ("complete", "partial")
        and not window["artifacts"]
        and window["backend"] not in ("null", None)
    ):
        result.problems.append(Problem(step, subject, f"is {window['status']} but lists no artifact"))


def _verify_engine(folder: Path, step: int, engine: Mapping[str, Any], result: Verification) -> None:
    subject = f"{folder.name}/{engine_label(engine)}"
    _verify_outcome(folder, step, subject, engine, result)
    # a partial one may have left its files on its own host, and says so; ranks name theirs in their own windows
    if engine["status"] == "complete" and not engine["artifacts"] and engine["kind"] not in SESSIONS:
        result.problems.append(Problem(step, subject, "is complete but lists no artifact"))


def _verify_outcome(
    folder: Path, step: int, subject: str, entry: Mapping[str, Any], result: Verification
) -> None:
    """Check what entries of windows and of engines have in common: the status and the files."""
    status, reason = entry["status"], f": {entry['error']}" if entry["error"] else ""
    if status in ("failed", "lost", "skipped"):
        result.problems.append(Problem(step, subject, f"{status}{reason}"))
    elif status in ("recording", "exporting", "flushing"):
        result.notes.append(Problem(step, subject, f"still {status}"))
    elif status == "partial":
        result.notes.append(Problem(step, subject, f"partial{reason}"))
    # the null backend's captures leave nothing, and so do those that join them
    if (
        status == "joined"
        and entry.get("backend") != "null"
        and not result.captures.holds(folder.parent, entry["capture"])
    ):
        result.problems.append(Problem(step, subject, f"joined a missing capture: {entry['capture']}"))
    for artifact in entry["artifacts"]:
        if artifact["path"] in result.pruned and not (folder / artifact["path"]).exists():
            continue
        result.artifacts += 1
        result.bytes += artifact["bytes"]
        about = Problem(step, f"{folder.name}/{artifact['path']}", "")
        result.pending.append((about, (folder / artifact["path"], artifact["bytes"], artifact["kind"])))


def _stems(path: str) -> Iterator[str]:
    """Yield the stems of the captures that a file may belong to.

    "rank-1" is the stem of neither "rank-10.trace.json.gz" nor "rank-1.2.trace.json.gz".

    >>> list(_stems("rank-1.2.trace.gz"))
    ['rank-1.2', 'rank-1.2.trace']
    """
    for at, each in enumerate(path):
        if (each == "." and not path[at + 1 : at + 2].isdigit()) or each == "/":
            yield path[:at]


def _files(folder: Path) -> Iterator[Path]:
    """Yield the artifacts below the folder of a step. Reports that were made later are in the folder itself, and are left out."""
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder).parts
        if file.is_file() and len(inside) > 1 and inside[0] != MANIFEST:
            yield file

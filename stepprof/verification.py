"""Artifacts against manifests: whether what a run claims to hold is there, whole and readable.

The one place that opens every artifact. It believes nothing: an empty directory, a run without steps and a step without one complete window are failures, since a check that finds nothing to check
has shown nothing. Compressed files are read to their end (a gzip file that was cut off looks well at its beginning), and traces are parsed, or, where they are too large for that, looked at from both ends.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from stepprof import npufolder
from stepprof.aftermath import after_notes, is_pruned, pruned_paths
from stepprof.manifest import read_run, read_spans, read_step, steps
from stepprof.memorysnapshot import snapshot_problem
from stepprof.rundir import MANIFEST, RUN_FILE, step_folder
from stepprof.summary import SESSIONS, absent_ranks, engine_label, told_once, untold

__all__ = ["Problem", "Verification", "artifact_problem", "verify_run"]

PARSED_BYTES = 64 * 2**20
"""Up to this many bytes of JSON are parsed; parsing takes about twenty times as much memory."""
_CHUNK = 1 << 20
_FIRST_EVENT = re.compile(rb'"traceEvents"\s*:\s*\[\s*([^\s])')
_WELL_ENDED = ("complete", "joined")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong: `where` is a path relative to the run's folder."""

    step: int | None
    where: str
    problem: str


@dataclass(slots=True)
class Verification:
    """What was looked at and what was found: `problems` fail a check, `notes` are worth knowing."""

    steps: int = 0
    windows: int = 0
    engines: int = 0
    artifacts: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    pruned: dict[str, str] = field(default_factory=dict)
    """Of the step at hand: the artifacts that were deleted, by path, and why."""

    @property
    def ok(self) -> bool:
        """Whether nothing is missing or damaged."""
        return not self.problems


def verify_run(path: Path) -> Verification:
    """Check every step of a run."""
    result = Verification()
    recorded = steps(path)
    if not read_run(path):
        result.problems.append(Problem(None, RUN_FILE, "missing or damaged"))
    if not recorded:
        result.problems.append(Problem(None, "", "no step is recorded here"))
    for step in recorded:
        _verify_step(path, step, result)
    findings: list[dict[str, Any]] = []
    for _ in read_spans(path, findings=findings):
        pass
    result.problems += [Problem(None, finding["file"], finding["problem"]) for finding in findings]
    return result


def artifact_problem(file: Path, size: int, kind: str | None) -> str | None:
    """What is wrong with one artifact; None if it is whole.

    Args:
        file: where it should be.
        size: bytes, as the manifest says.
        kind: the manifest's kind; of a trace, events are expected.
    """
    try:
        if kind == npufolder.KIND:
            return _folder_problem(file)
        there = file.stat().st_size
        if not file.is_file():
            return "is no file"
        if there != size:
            return f"has {there} bytes; the manifest says {size}"
        if there == 0:
            return "is empty"
        if kind == "memory-snapshot" and size <= PARSED_BYTES:
            return snapshot_problem(file)
        compressed = file.suffix == ".gz"
        with gzip.open(file) if compressed else file.open("rb") as stream:
            if file.name.endswith((".json", ".json.gz")):
                return _json_problem(stream, is_trace="trace" in (kind or ""))
            for _ in _chunks(stream):
                pass
    except FileNotFoundError:
        return "is missing"
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        return f"is damaged: {error}"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return None


def _verify_step(path: Path, step: int, result: Verification) -> None:
    manifest = read_step(path, step)
    folder = path / step_folder(step)
    windows, engines = manifest["windows"], told_once(manifest["engines"])
    result.pruned = pruned_paths(manifest)
    result.notes += [Problem(step, folder.name, note) for note in after_notes(manifest, all_well=False)]
    result.steps += 1
    result.windows += len(windows)
    result.engines += len(engines)
    for finding in manifest["findings"]:
        where = f"{folder.name}/{MANIFEST}/{finding['fragment'] or ''}"
        result.problems.append(Problem(step, where, finding["problem"]))
    for window in windows:
        _verify_window(folder, step, window, result)
    for engine in engines:
        _verify_engine(folder, step, engine, result)
    for engine in untold(engines):
        who = f"{folder.name}/{engine_label(engine)}"
        result.problems.append(
            Problem(step, who, f"is left to another process, and none tells of it: {engine['error']}")
        )
    result.problems += [Problem(step, folder.name, sentence) for sentence in absent_ranks(path, manifest)]
    if not any(window["status"] in _WELL_ENDED for window in windows):
        result.problems.append(Problem(step, folder.name, "has no complete window"))
    named = {artifact["path"] for entry in [*windows, *engines] for artifact in entry["artifacts"]}
    for file in _files(folder):
        inside = file.relative_to(folder)
        if not named.intersection(path.as_posix() for path in (inside, *inside.parents)):
            result.notes.append(
                Problem(step, f"{folder.name}/{file.relative_to(folder).as_posix()}", "named in no manifest")
            )


def _verify_window(folder: Path, step: int, window: Mapping[str, Any], result: Verification) -> None:
    who = f"{folder.name}/{window['role'] or 'step'} rank {window['rank']}"
    _verify_outcome(folder, step, who, window, result)
    if (
        window["status"] in ("complete", "partial")
        and not window["artifacts"]
        and window["backend"] not in ("null", None)
    ):
        result.problems.append(Problem(step, who, f"is {window['status']} and names no artifact"))


def _verify_engine(folder: Path, step: int, engine: Mapping[str, Any], result: Verification) -> None:
    who = f"{folder.name}/{engine_label(engine)}"
    _verify_outcome(folder, step, who, engine, result)
    # a partial one may have left its files on its own host, and says so; ranks name theirs in their own windows
    if engine["status"] == "complete" and not engine["artifacts"] and engine["kind"] not in SESSIONS:
        result.problems.append(Problem(step, who, "is complete and names no artifact"))


def _verify_outcome(
    folder: Path, step: int, who: str, entry: Mapping[str, Any], result: Verification
) -> None:
    """What windows and engines have in common: how it ended, and the files that it names."""
    status, reason = entry["status"], f": {entry['error']}" if entry["error"] else ""
    if status in ("failed", "lost", "skipped"):
        result.problems.append(Problem(step, who, f"{status}{reason}"))
    elif status in ("recording", "exporting", "flushing"):
        result.notes.append(Problem(step, who, f"still {status}"))
    elif status == "partial":
        result.notes.append(Problem(step, who, f"partial{reason}"))
    # the null backend's captures leave nothing, and so do those that join them
    if (
        status == "joined"
        and entry.get("backend") != "null"
        and not _capture_is_there(folder.parent, entry["capture"])
        and not _capture_was_pruned(folder.parent, entry["capture"])
    ):
        result.problems.append(Problem(step, who, f"joined a capture that is not there: {entry['capture']}"))
    for artifact in entry["artifacts"]:
        if artifact["path"] in result.pruned and not (folder / artifact["path"]).exists():
            continue
        result.artifacts += 1
        result.bytes += artifact["bytes"]
        problem = artifact_problem(folder / artifact["path"], artifact["bytes"], artifact["kind"])
        if problem:
            result.problems.append(Problem(step, f"{folder.name}/{artifact['path']}", problem))


def _capture_is_there(run: Path, capture: object) -> bool:
    """Whether the capture that a window joined has left a file; one that does not say which cannot be missed."""
    if not isinstance(capture, dict):
        return True
    step, stem = capture.get("step"), capture.get("stem")
    if not isinstance(step, int) or not isinstance(stem, str) or ".." in stem:
        return False
    file = run / step_folder(step) / stem
    if file.is_dir():  # an engine's own folder
        return any(other.is_file() for other in file.iterdir())
    # "rank-1" is neither "rank-10.trace.json.gz" nor "rank-1.2.trace.json.gz"
    own = re.compile(re.escape(file.name) + r"\.(?!\d)")
    return file.parent.is_dir() and any(own.match(other.name) for other in file.parent.iterdir())


def _capture_was_pruned(run: Path, capture: Mapping[str, Any]) -> bool:
    step, stem = capture.get("step"), capture.get("stem")
    return isinstance(step, int) and isinstance(stem, str) and is_pruned(run, step, stem)


def _files(folder: Path) -> Iterator[Path]:
    """The artifacts below a step's folder; reports that were made later lie beside them, at the top."""
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder).parts
        if file.is_file() and len(inside) > 1 and inside[0] != MANIFEST:
            yield file


def _json_problem(stream: BufferedIOBase, *, is_trace: bool) -> str | None:
    held = bytearray()
    end = b""
    total = 0
    for chunk in _chunks(stream):
        total += len(chunk)
        if len(held) < PARSED_BYTES:
            held += chunk
        end = (end + chunk)[-64:]
    if total <= len(held):
        try:
            content = json.loads(bytes(held))
        except (ValueError, RecursionError) as error:
            return f"is no JSON: {error}"
        events = content.get("traceEvents") if isinstance(content, dict) else content
        return "has no traceEvents" if is_trace and not (isinstance(events, list) and events) else None
    if end.rstrip()[-1:] != {b"{": b"}", b"[": b"]"}.get(bytes(held.lstrip()[:1])):
        return f"is no JSON: it does not end as it should: {end[-20:]!r}"
    first = _FIRST_EVENT.search(held)
    return "has no traceEvents" if is_trace and (first is None or first[1] == b"]") else None


def _folder_problem(folder: Path) -> str | None:
    """What is wrong with a folder of torch_npu's; its size grows when it is analysed, and is not compared."""
    if not folder.is_dir():
        return "is no folder" if folder.exists() else "is missing"
    inside = list(npufolder.profile_folders(folder)) or [folder]
    return next((problem for found in inside if (problem := npufolder.missing_parts(found))), None)


def _chunks(stream: BufferedIOBase) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK):
        yield chunk

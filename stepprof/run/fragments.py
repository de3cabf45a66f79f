"""The entries of a fragment (windows, engines, clocks), as a reader may rely on them.

A fragment comes from another process, perhaps of another version, perhaps over a disk that was full. So each entry gets every key with a type that no table or report stumbles over, and what had to
be put right is told; a path that leaves the step's folder is never followed. Here, too, `lost` becomes what it means at this moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepprof.host.process_identity import is_alive
from stepprof.run.fields import LONGEST_NAME, cut, is_rank, is_step, path_problem, wrong
from stepprof.run.reasons import is_pending

__all__ = ["AFTER", "STATUSES", "read_after", "read_clock", "read_engine", "read_window"]

STATUSES = ("complete", "joined", "partial", "skipped", "failed", "lost")
_WINDOW: dict[str, Any] = {
    "role": None,
    "occurrence": 1,
    "visit": 1,
    "rank": None,
    "world_size": None,
    "host": None,
    "pid": None,
    "boot_id": None,
    "pid_namespace": None,
    "thread": None,
    "backend": None,
    "status": None,
    "pending": None,
    "reason_code": None,
    "error": None,
    "body_error": None,
    "start_unix_ns": None,
    "end_unix_ns": None,
    "arm_seconds": None,
    "arm_unix_ns": None,
    "start_seconds": None,
    "wait_seconds": None,
    "cpu_seconds": None,
    "thread_cpu_seconds": None,
    "stall_seconds": None,
    "export_seconds": None,
    "capped_by": None,
    "artifacts": [],
    "capture": None,
}
_ENGINE: dict[str, Any] = {
    "role": None,
    "occurrence": 1,
    "visit": 1,
    "replica": None,
    "kind": None,
    "name": None,
    "host": None,
    "boot_id": None,
    "pid_namespace": None,
    "rank": None,
    "status": None,
    "pending": None,
    "reason_code": None,
    "health": None,
    "error": None,
    "body_error": None,
    "start_unix_ns": None,
    "end_unix_ns": None,
    "start_seconds": None,
    "stop_seconds": None,
    "overrun_seconds": None,
    "write_seconds": None,
    "capped_by": None,
    "artifacts": [],
    "capture": None,
}
AFTER: dict[str, dict[str, Any]] = {
    "uploads": {"path": "", "url": None, "status": "failed", "bytes": None, "seconds": None, "tries": None, "verified": None, "reason_code": None, "error": None},
    "completions": {"command": [], "status": "lost", "error": None, "exit_status": None, "start_unix_ns": None, "seconds": None, "output": ""},
    "pruned": {"unix_ns": None, "reason": "", "files": None, "bytes": None, "not_uploaded": None, "kept": [], "paths": []},
}  # fmt: skip
"""What comes after a recording, by the key of its list: what each entry has at least."""
_CLOCK: dict[str, Any] = {"host": None, "boot_id": None, "offset_ns": None, "error_ns": None, "method": None}
_IDENTITY = ("boot_id", "pid_namespace")


def read_window(entry: Mapping[str, Any], writer: object) -> tuple[dict[str, Any], list[str]]:
    """A window with every key, none of a type that a reader would stumble over, and what was wrong with it.

    `boot_id` and `pid_namespace` are the writer's, where the window is of its process.
    """
    window, problems = _read(entry, _WINDOW)
    window["process"] = _process(writer)
    if isinstance(writer, dict) and (writer.get("host"), writer.get("pid")) == (
        window["host"],
        window["pid"],
    ):
        window.update({key: text for key in _IDENTITY if isinstance(text := writer.get(key), str)})
    if not is_rank(window["rank"]):
        problems.append(f"damaged: rank = {cut(window['rank'])} is no rank")
        window["rank"] = "unknown"
    if window["pending"]:
        alive = _is_alive(writer)
        if alive:
            window["status"] = "recording" if window["end_unix_ns"] is None else "exporting"
            window.update(reason_code=None, error=None)
        elif alive is None:
            _doubt(window, writer)
        else:
            window["pending"] = False
    return window, problems


def read_engine(entry: Mapping[str, Any], writer: object) -> tuple[dict[str, Any], list[str]]:
    """An engine's part of a window, in the same way; the writer is the process that drives it."""
    engine, problems = _read(entry, _ENGINE)
    engine["process"] = _process(writer)
    if engine["rank"] is not None and not is_rank(engine["rank"]):
        problems.append(f"damaged: rank = {cut(engine['rank'])} is no rank")
        engine["rank"] = None
    if engine["pending"]:
        alive = _is_alive(writer)
        if alive:
            engine["status"] = "recording" if engine["end_unix_ns"] is None else "flushing"
            engine.update(reason_code=None, error=None)
        elif alive is None:
            _doubt(engine, writer)
        else:
            engine["pending"] = False
    return engine, problems


def read_after(key: str, entry: Mapping[str, Any], writer: object) -> tuple[dict[str, Any], list[str]]:
    """What came of an upload or a command, or what was deleted; of a key in `AFTER`."""
    known, problems = AFTER[key], []
    read = {**known, **entry}
    for name, default in known.items():
        value = read[name]
        if isinstance(default, str):
            fits = isinstance(value, str)
        elif isinstance(default, list):
            fits = isinstance(value, list) and all(isinstance(each, str) for each in value)
        else:
            fits = wrong(name, value) is None
        if not fits:
            problems.append(f"damaged: {name} = {cut(value)} in {key}")
            read[name] = default
    if key == "completions" and read["status"] == "lost" and _is_alive(writer):
        read.update(status="running", error=None)
    return read, problems


def read_clock(entry: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    """A comparison of clocks; None where it compares nothing."""
    clock = {**_CLOCK, **entry}
    for key in ("offset_ns", "error_ns"):
        if clock[key] is None or wrong(key, clock[key]):
            return None, [f"damaged: a clock with {key} = {cut(clock[key])}"]
    if not isinstance(clock["host"], str):
        return None, [f"damaged: a clock of host = {cut(clock['host'])}"]
    boot_id = clock["boot_id"] if isinstance(clock["boot_id"], str) else None
    return {**clock, "boot_id": boot_id, "method": str(clock["method"])}, []


def _read(entry: Mapping[str, Any], keys: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What windows and engines have in common."""
    problems = []
    read = {**keys, **entry}
    for key, value in read.items():
        problem = wrong(key, value)
        if problem is not None:
            problems.append(f"damaged: {key} = {cut(value)} {problem}")
            read[key] = keys.get(key)
    role = read["role"]
    if role is not None and (not isinstance(role, str) or len(role) > LONGEST_NAME):
        problems.append(f"damaged: role = {cut(role)} is no name")
        read["role"] = None
    if read["status"] not in STATUSES:
        problems.append(f"damaged: status = {cut(read['status'])} is none of {', '.join(STATUSES)}")
        read["status"] = "lost"
    read["pending"] = is_pending(read)
    problem = _capture_problem(read["capture"])
    if problem is not None:
        problems.append(f"damaged: capture = {cut(read['capture'])} {problem}")
        read["capture"] = None
    artifacts, read["artifacts"] = read["artifacts"], []
    for artifact in artifacts if isinstance(artifacts, list) else [artifacts]:
        problem = _artifact_problem(artifact)
        if problem:
            problems.append(problem)
        else:
            read["artifacts"].append({"kind": None, "events": None, **artifact})
    return read, problems


def _process(writer: object) -> str:
    """What tells the process that wrote a fragment from all others; its machine comes first."""
    if not isinstance(writer, dict):
        return "unknown"
    keys = ("pid_namespace", "pid", "pid_start")
    machine = writer.get("boot_id") or writer.get("host")
    return " ".join(str(each) for each in (machine, *(writer.get(key) for key in keys)))


def _capture_problem(capture: object) -> str | None:
    """Why an entry cannot be in a capture."""
    if capture is None:
        return None
    if not isinstance(capture, dict):
        return "is no table"
    if not is_step(capture.get("step", 0)):
        return "is of no step"
    return "is no file of a step" if path_problem(capture.get("stem", "x")) else None


def _is_alive(writer: object) -> bool | None:
    return is_alive(writer) if isinstance(writer, dict) else None


def _doubt(entry: dict[str, Any], writer: object) -> None:
    """Whether what was written ahead is still true cannot be told from here."""
    host = writer.get("host") if isinstance(writer, dict) else None
    entry["error"] = (
        f"{entry['error'] or 'lost'} (or is still at it: that can be told on {host or 'its host'} alone)"
    )


def _artifact_problem(artifact: object) -> str | None:
    """Why an entry cannot name a file of the step."""
    if not isinstance(artifact, dict):
        return f"damaged: an artifact without a path: {cut(artifact)}"
    path, size = artifact.get("path"), artifact.get("bytes")
    problem = path_problem(path)
    if problem is not None:
        return f"damaged: an artifact {problem}: {cut(path if isinstance(path, str) else artifact)}"
    if size is None or wrong("bytes", size):
        return f"damaged: an artifact without a size: {cut(path)}"
    for key in ("kind", "events"):
        problem = wrong(key, artifact.get(key))
        if problem is not None:
            return f"damaged: an artifact of which {key} = {cut(artifact[key])} {problem}: {cut(path)}"
    return None

"""One window's entry in a fragment, as a reader may rely on it.

A fragment comes from another process, perhaps of another version, perhaps over a disk that was full. So each entry gets every key with a type that no table or report stumbles over, and what had to
be put right is told; a path that leaves the step's folder is never followed. Here, too, `lost` becomes what it means at this moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from stepprof.writer import is_alive

__all__ = ["STATUSES", "read_window"]

STATUSES = ("complete", "joined", "partial", "skipped", "failed", "lost")
_WINDOW: dict[str, Any] = {
    "role": None,
    "occurrence": 1,
    "rank": None,
    "world_size": None,
    "host": None,
    "pid": None,
    "thread": None,
    "backend": None,
    "status": None,
    "error": None,
    "body_error": None,
    "start_unix_ns": None,
    "end_unix_ns": None,
    "wait_seconds": None,
    "stall_seconds": None,
    "export_seconds": None,
    "capped_by": None,
    "artifacts": [],
    "capture": None,
}
_NUMBERS = (
    "occurrence",
    "world_size",
    "start_unix_ns",
    "end_unix_ns",
    "wait_seconds",
    "stall_seconds",
    "export_seconds",
)


def read_window(entry: Mapping[str, Any], writer: object) -> tuple[dict[str, Any], list[str]]:
    """A window with every key, none of a type that a reader would stumble over, and what was wrong with it."""
    problems = []
    window = {**_WINDOW, **entry}
    for key in _NUMBERS:
        value = window[key]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            problems.append(f"damaged: {key} = {value!r} is no number")
            window[key] = _WINDOW[key]
    if not isinstance(window["role"], str | None):
        problems.append(f"damaged: role = {window['role']!r} is no name")
        window["role"] = None
    if not isinstance(window["rank"], int | str):
        problems.append(f"damaged: rank = {window['rank']!r} is no rank")
        window["rank"] = "unknown"
    if window["status"] not in STATUSES:
        problems.append(f"damaged: status = {window['status']!r} is none of {', '.join(STATUSES)}")
        window["status"] = "lost"
    if not isinstance(window["capture"], dict | None):
        problems.append(f"damaged: capture = {window['capture']!r} is no table")
        window["capture"] = None
    artifacts, window["artifacts"] = window["artifacts"], []
    for artifact in artifacts if isinstance(artifacts, list) else [artifacts]:
        problem = _artifact_problem(artifact)
        if problem:
            problems.append(problem)
        else:
            window["artifacts"].append({"kind": None, "events": None, **artifact})
    if window["status"] == "lost":
        alive = is_alive(writer) if isinstance(writer, dict) else None
        if alive:
            window["status"] = "recording" if window["end_unix_ns"] is None else "exporting"
            window["error"] = None
        elif alive is None:
            host = writer.get("host") if isinstance(writer, dict) else None
            window["error"] = (
                f"{window['error'] or 'lost'} (or is still at it: that can be told on {host or 'its host'} alone)"
            )
    return window, problems


def _artifact_problem(artifact: object) -> str | None:
    """Why an entry cannot name a file of the step."""
    if not isinstance(artifact, dict) or not isinstance(artifact.get("path"), str):
        return f"damaged: an artifact without a path: {artifact!r}"
    path = PurePosixPath(artifact["path"])
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in artifact["path"]:
        return f"damaged: an artifact outside of the step: {artifact['path']!r}"
    if isinstance(artifact.get("bytes"), bool) or not isinstance(artifact.get("bytes"), int):
        return f"damaged: an artifact without a size: {artifact['path']!r}"
    return None

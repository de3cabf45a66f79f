"""Keep a capture that its own driver could not stop: list its files as `partial` in the manifest of its own run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from stepprof.host import real_time
from stepprof.host.atomic_files import publish, write_atomically, write_temporary
from stepprof.host.plain_files import read_table
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.redaction.messages import redacted
from stepprof.remote.artifacts import SUFFIX
from stepprof.remote.loop import in_thread
from stepprof.run.layout import MANIFEST
from stepprof.run.manifest_writer import as_entries, living_fragment
from stepprof.run.model import Artifact
from stepprof.run.reasons import ReasonCode
from stepprof.run.schema import EngineEntry

if TYPE_CHECKING:
    from pathlib import Path

    from stepprof.remote.base import EngineWindow, Stopped

_IDENTITY = ("host", "pid", "pid_start", "boot_id")


def keep(window: EngineWindow, stopped: Stopped, reason: str, owner: Mapping[str, object]) -> None:
    """Write the files of a capture into the manifest of its own run. Blocks; raises nothing.

    Args:
        stopped: its files, which lie below `window.folder`.
        owner: the process whose window it is, as in its fragment.
    """
    reported = {
        "status": "partial" if stopped.artifacts else "lost",
        "pending": False,
        "reason_code": ReasonCode.RECOVERED,
        "health": "ok",
        "error": redacted("; ".join(filter(None, [reason, stopped.partial]))),
        "artifacts": as_entries(stopped.artifacts),
    }
    try:
        for path in sorted((window.folder / MANIFEST).glob("*engines-rank-*.json")):
            if _restate(path, window, reported, owner):
                return
        _write_new(window, reported, owner)
    except ours(OSError, ValueError) as error:
        logger.warning("manifest.not_written", folder=str(window.folder), files=[a.path for a in stopped.artifacts], reason=str(error))  # fmt: skip


def kept_there(window: EngineWindow) -> tuple[Artifact, ...]:
    """Return the traces that another process has moved to a window's folder."""
    found = sorted((path, path.stat().st_size) for path in window.output.glob(f"*rank-[0-9]*{SUFFIX}"))
    return tuple(
        Artifact(path.relative_to(window.folder).as_posix(), "trace", size)
        for path, size in found
        if not path.name.startswith(".") and "-TP-" not in path.name
    )


def left_there(window: EngineWindow) -> list[str]:
    """Return the files in a window's folder, by their paths below the step's folder: a stop that failed may have left some."""
    try:
        found = sorted(path for path in window.output.rglob("*") if path.is_file() and path.name[0] != ".")
    except ours(OSError):
        return []
    return [path.relative_to(window.folder).as_posix() for path in found]


async def naming(error: str, window: EngineWindow | None, otherwise: str = "") -> str:
    """Return why a capture failed, with the files that it left in its folder; else with `otherwise`."""
    left = [] if window is None else await in_thread(left_there, window)
    return f"{error}; it left {', '.join(left)}" if left else f"{error}{otherwise}"


def _restate(
    path: Path, window: EngineWindow, reported: Mapping[str, Any], owner: Mapping[str, object]
) -> bool:
    """Correct the entry of a window in a fragment; return whether it exists."""
    content = read_table(path)
    writer = content.get("writer") or {}
    if any(writer.get(key) != owner.get(key) for key in _IDENTITY):
        return False
    fragment = living_fragment(path)
    if fragment is not None:
        entries = fragment.engines
    else:
        entries = [EngineEntry.from_dict(each)[0] for each in content["engines"]]
    entry = next((each for each in entries if _is_of(each, window)), None)
    if entry is None:
        return False
    if not reported["artifacts"] and entry.status != "lost":
        return True  # only the entry's own statement is known
    end = entry.end_unix_ns or real_time.time_ns()
    entry.update(**{**reported, "end_unix_ns": end, "artifacts": [*entry.artifacts, *reported["artifacts"]]})
    if fragment is None:
        content["engines"] = [each.to_dict() for each in entries]
        write_atomically(path, json.dumps(content, indent=1).encode())
    else:
        fragment.write()
    return True


def _write_new(window: EngineWindow, reported: Mapping[str, Any], owner: Mapping[str, object]) -> None:
    """Write a fragment for a process that died before it wrote its own."""
    what = window.window
    entry = EngineEntry(
        role=what.role,
        occurrence=what.occurrence,
        visit=what.visit,
        replica=window.replica,
        kind=cast("str | None", window.metadata.get("engine")),
        **reported,
    )
    writer = {key: value for key, value in owner.items() if key != "run_id"}
    content = bare_fragment(window.metadata.get("run_id"), what.step, what.version, writer)
    content["engines"].append(entry.to_dict())
    write_fragment(window.folder / MANIFEST / f"{what.name}-engines-rank-left.json", content)


def bare_fragment(run_id: object, step: int, version: object, writer: Mapping[str, object]) -> dict[str, Any]:
    """Return the content of a fragment without any entry, on behalf of a process that did not write its own."""
    return {
        "schema_version": 1,
        "run_id": run_id,
        "step": step,
        "version": version,
        "writer": writer,
        "windows": [],
        "engines": [],
        "clocks": [],
    }


def write_fragment(path: Path, content: Mapping[str, Any]) -> None:
    """Write such a fragment. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    publish(write_temporary(path, json.dumps(content, indent=1, default=str).encode()), path)


def _is_of(entry: EngineEntry, window: EngineWindow) -> bool:
    what = window.window
    return (entry.role, entry.occurrence, entry.replica) == (
        what.role,
        what.occurrence,
        window.replica,
    ) and entry.status not in ("complete", "joined")

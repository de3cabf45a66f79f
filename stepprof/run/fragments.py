"""Read the entries of a fragment: windows, engines, clocks.

A fragment comes from another process, perhaps of another version, perhaps from a full disk. Each
entry gets every key with a valid type, and each correction is reported. A path that leaves the
step's folder is never followed. A pending `lost` entry gets its current status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepprof.host.process_identity import is_alive
from stepprof.run.fields import cut, wrong
from stepprof.run.schema import AFTER, CaptureEntry, CompletionEntry, EngineEntry, WindowEntry

_CLOCK: dict[str, Any] = {"host": None, "boot_id": None, "offset_ns": None, "error_ns": None, "method": None}
_IDENTITY = ("boot_id", "pid_namespace")


def read_window(data: Mapping[str, Any], writer: object) -> tuple[dict[str, Any], list[str]]:
    """Return a window with every key, and its problems.

    `boot_id` and `pid_namespace` are the writer's, if the window is of the writer's process.
    """
    entry, problems = WindowEntry.from_dict(data)
    _say_what_it_means(entry, writer, ended="exporting")
    window: dict[str, Any] = {**dict.fromkeys(_IDENTITY), **entry.to_dict(), "process": _process(writer)}
    if isinstance(writer, dict) and (writer.get("host"), writer.get("pid")) == (entry.host, entry.pid):
        window.update({key: text for key in _IDENTITY if isinstance(text := writer.get(key), str)})
    if entry.rank is None:
        window["rank"] = "unknown"
    return window, problems


def read_engine(data: Mapping[str, Any], writer: object) -> tuple[dict[str, Any], list[str]]:
    """Return an engine's entry and its problems; the writer is the process that drives the engine."""
    entry, problems = EngineEntry.from_dict(data)
    _say_what_it_means(entry, writer, ended="flushing")
    return {**entry.to_dict(), "process": _process(writer)}, problems


def _say_what_it_means(entry: CaptureEntry, writer: object, *, ended: str) -> None:
    """Set the current status of a pending entry: its process works on it, is dead, or cannot be checked."""
    if not entry.pending:
        return
    alive = _is_alive(writer)
    if alive:
        status = "recording" if entry.end_unix_ns is None else ended
        entry.update(status=status, reason_code=None, error=None)
    elif alive is None:
        host = writer.get("host") if isinstance(writer, dict) else None
        doubt = f"or still running: liveness can only be checked on {host or 'its host'} alone"
        entry.error = f"{entry.error or 'lost'} ({doubt})"
    else:
        entry.pending = False


def read_after(key: str, data: Mapping[str, Any], writer: object) -> tuple[dict[str, Any], list[str]]:
    """Return an upload, a command or a deletion, and its problems; `key` is one of `AFTER`."""
    entry, problems = AFTER[key].from_dict(data)
    if isinstance(entry, CompletionEntry) and entry.status == "lost" and _is_alive(writer):
        entry.update(status="running", error=None)
    return entry.to_dict(), problems


def read_clock(entry: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    """Return a comparison of clocks, or None if it is invalid, and its problems."""
    clock = {**_CLOCK, **entry}
    for key in ("offset_ns", "error_ns"):
        if clock[key] is None or wrong(key, clock[key]):
            return None, [f"damaged: a clock with {key} = {cut(clock[key])}"]
    if not isinstance(clock["host"], str):
        return None, [f"damaged: a clock of host = {cut(clock['host'])}"]
    boot_id = clock["boot_id"] if isinstance(clock["boot_id"], str) else None
    return {**clock, "boot_id": boot_id, "method": str(clock["method"])}, []


def _process(writer: object) -> str:
    """Return the identity of the process that wrote a fragment, its machine first."""
    if not isinstance(writer, dict):
        return "unknown"
    keys = ("pid_namespace", "pid", "pid_start")
    machine = writer.get("boot_id") or writer.get("host")
    return " ".join(str(each) for each in (machine, *(writer.get(key) for key in keys)))


def _is_alive(writer: object) -> bool | None:
    return is_alive(writer) if isinstance(writer, dict) else None

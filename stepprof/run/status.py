"""Read the published status of the processes of a run: live, stale, ended, crashed, replaced, or
damaged.

`stepprof.recording.control.status_publisher` writes these files. A process that is gone without a final
status has crashed. One without a new status for too long is stale. Either is replaced if the job
was started again since. The types of all values are checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepprof.config.selection import Steps
from stepprof.errors import ConfigError
from stepprof.formatting import ranges
from stepprof.host import real_time
from stepprof.host.plain_files import json_files, read_table
from stepprof.host.process_identity import is_alive
from stepprof.run.names import STATUS
from stepprof.run.process_status import ProcessStatus

LIVE = "live"
"""The condition of a process whose status is recent."""

MISSED_BEATS = 3
"""Number of missed heartbeats after which a process is stale."""


def read_statuses(run: Path) -> list[dict[str, Any]]:
    """Return the last status of each process of a run, by rank.

    Returns:
        For each file in `status/` the fields that `stepprof.recording.control.status_publisher` writes (None if missing or of a wrong type), and `condition` ("live", "stale", "ended", "crashed", "replaced" or "damaged"), `age_seconds` since it was written (by the clock of its writer or of the file system, whichever is nearer to this host's), `uid` (its owner), and `file` (its name).
    """
    try:
        files = json_files(run / STATUS)
    except OSError:
        return []
    found = [status for path in files if (status := _read(path)) is not None]
    _find_replaced(found)
    return sorted(found, key=_place)


def missed_requests(run: Path, step: int) -> list[str]:
    """Return which ranks could not record this step although requested: a line per request and reason."""
    ranks: dict[tuple[str, str, str | None], list[int | str]] = {}
    for status in read_statuses(run):
        for name, seen in status["requests"].items():
            if seen["outcome"] in ("missed", "refused") and _asks_for(seen, step):
                key = name, str(seen["outcome"]), seen["reason"]
                ranks.setdefault(key, []).append("unknown" if status["rank"] is None else status["rank"])
    return [
        f"request {name}: {outcome} by rank {ranges(failed)}: {reason}"
        for (name, outcome, reason), failed in ranks.items()
    ]


def _asks_for(seen: Mapping[str, str | None], step: int) -> bool:
    """Return whether the step was missed; for a refused request, whether it was requested."""
    try:
        return step in Steps.parse(seen["missed"] or seen["steps"] or "none")
    except ConfigError:
        return False


def _place(status: Mapping[str, Any]) -> tuple[bool, int, str]:
    rank = status["rank"]
    return not isinstance(rank, int), rank if isinstance(rank, int) else 0, f"{rank} {status['file']}"


def _read(path: Path) -> dict[str, Any] | None:
    content: object = None
    changed_ns = uid = None
    try:
        status = path.lstat()
        changed_ns, uid = status.st_mtime_ns, status.st_uid
        content = read_table(path)
    except FileNotFoundError:
        return None  # its process has just learned its rank
    except (OSError, ValueError):
        pass  # reported as damaged
    known = ProcessStatus.from_dict(content if isinstance(content, Mapping) else {}).to_dict()
    age = None if known["published_unix_ns"] is None else _age(known["published_unix_ns"], changed_ns)
    return {**known, "condition": _condition(known, age), "age_seconds": age, "uid": uid, "file": path.name}


def _age(published_ns: int, changed_ns: int | None) -> float:
    """Return the age of a file by its writer's or the file system's clock: one node's may be wrong by hours."""
    now = real_time.time_ns()
    ages = [(now - at) / 1e9 for at in (published_ns, changed_ns) if at is not None]
    return min((age for age in ages if age >= 0), default=0.0)


def _condition(status: Mapping[str, Any], age: float | None) -> str:
    if age is None or status["writer"] is None or status["rank"] is None:
        return "damaged"
    if status["ended"]:
        return "ended"
    if is_alive(status["writer"]) is False:
        return "crashed"
    beat = status["beat_seconds"] or 5.0
    return "stale" if age > MISSED_BEATS * beat else LIVE


def _find_replaced(statuses: Sequence[dict[str, Any]]) -> None:
    """Mark the files of a dead job that was started again, perhaps on other hosts or with fewer ranks."""
    live = [each for each in statuses if each["condition"] == LIVE and each["started_unix_ns"] is not None]
    if not live:
        return
    first = min(each["started_unix_ns"] for each in live)
    latest: dict[object, int] = {}
    for each in live:
        latest[each["rank"]] = max(each["started_unix_ns"], latest.get(each["rank"], 0))
    for status in statuses:
        if status["condition"] not in ("stale", "crashed") or is_alive(status["writer"]):
            continue
        reported = status["published_unix_ns"]
        if first > reported or latest.get(status["rank"], 0) > reported:
            status["condition"] = "replaced"

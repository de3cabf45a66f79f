"""Files of a capture whose stop failed: they are named in the failure, and kept when a later stop brings them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepprof.host import real_time
from stepprof.interrupts import ours
from stepprof.redaction.messages import redacted
from stepprof.remote.loop import in_thread
from stepprof.run.layout import MANIFEST
from stepprof.run.manifest_writer import as_entries, living_fragment
from stepprof.run.reasons import ReasonCode

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow, Stopped
    from stepprof.run.schema import EngineEntry


def keep(window: EngineWindow, stopped: Stopped, reason: str) -> None:
    """Add files to the entry of a window whose stop failed, if this process writes its manifest. Blocks; raises nothing.

    Args:
        window: what was recorded.
        stopped: the files, which lie below `window.folder`.
        reason: why they come late.
    """
    fragments = map(living_fragment, sorted((window.folder / MANIFEST).glob("*engines-rank-*.json")))
    for fragment in filter(None, fragments):
        entry = next((each for each in fragment.engines if _is_of(each, window)), None)
        if entry is None:
            continue
        if not stopped.artifacts and entry.status != "lost":
            return  # only the entry's own statement is known
        entry.update(
            status="partial" if stopped.artifacts else "lost",
            pending=False,
            reason_code=ReasonCode.RECOVERED,
            health="ok",
            error=redacted("; ".join(filter(None, [reason, stopped.partial]))),
            end_unix_ns=entry.end_unix_ns or real_time.time_ns(),
            artifacts=[*entry.artifacts, *as_entries(stopped.artifacts)],
        )
        fragment.write()
        return


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


def _is_of(entry: EngineEntry, window: EngineWindow) -> bool:
    what = window.window
    where = (what.role, what.occurrence, what.visit, window.replica)
    is_open = entry.status not in ("complete", "joined")
    return is_open and (entry.role, entry.occurrence, entry.visit, entry.replica) == where

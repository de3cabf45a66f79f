"""Notice ranks of an unknown launcher: several processes of one parent that each count as alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepprof.host import real_time
from stepprof.host.plain_files import read_table
from stepprof.host.process_identity import is_alive, parent_of, writer_identity
from stepprof.interrupts import ignored
from stepprof.run.names import RUN_FILE

WITHIN_SECONDS = 60.0
"""Ranks begin within this time; later processes of a shell are other jobs."""


def is_second_of_many(run: Path, content: Mapping[str, object]) -> bool:
    """Return whether exactly one other live process of this one's parent, with the same command,
    opened a run of its own just before: so one process of many is the second.

    Args:
        run: the run directory of this process.
        content: its `run.json`.
    """
    if content.get("command") is None:
        return False
    mine, parent, earlier = _place(content), os.getppid(), 0
    since = real_time.time() - WITHIN_SECONDS
    with ignored(OSError):
        for folder in run.parent.iterdir():
            with ignored(OSError, ValueError):
                path = folder / RUN_FILE
                if folder == run or path.stat().st_mtime < since:
                    continue
                other = read_table(path)
                if _is_alike(other, content, parent) and _place(other) < mine:
                    earlier += 1
    return earlier == 1


def _is_alike(other: Mapping[str, Any], content: Mapping[str, object], parent: int) -> bool:
    """Return whether a run belongs to another live process of this parent that does the same."""
    writer = other.get("writer")
    if other.get("run_id_from") != "process" or other.get("command") != content["command"]:
        return False
    if not isinstance(writer, dict) or writer.get("pid") == os.getpid() or not is_alive(writer):
        return False
    pid = writer.get("pid")
    return (
        isinstance(pid, int) and writer.get("host") == writer_identity()["host"] and parent_of(pid) == parent
    )


def _place(content: Mapping[str, Any]) -> tuple[int, str]:
    created = content.get("created_unix_ns")
    return (created if isinstance(created, int) else 0, str(content.get("run_id")))

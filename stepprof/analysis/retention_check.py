"""Find why a run was not kept as configured: files of other users, and a command or a budget that never acted.

The processes of a job pass over what another user wrote into the run directory (`stepprof.host.own_files`). The check reports them, since the job's log may be gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepprof.formatting import counted
from stepprof.host.plain_files import readable
from stepprof.run.layout import AFTER, MANIFEST, REQUESTS, SPANS, STATUS, step_folder
from stepprof.run.runs import read_run, steps
from stepprof.run.status import read_statuses

__all__ = ["Kept", "foreign_files", "never_kept"]

_OVER = ("ended", "crashed", "replaced", "damaged")


@dataclass(frozen=True, slots=True)
class Kept:
    """What matters about a step: its windows, the runs of the command, and the remaining artifacts."""

    step: int
    windows: bool
    completed: bool
    artifacts: bool


def foreign_files(run: Path) -> Iterator[tuple[str, str]]:
    """Yield each folder of a run with files of another user, and a sentence about them."""
    try:
        owner = run.stat().st_uid
    except OSError:
        return
    for name in (
        ".",
        SPANS,
        STATUS,
        REQUESTS,
        AFTER,
        *(f"{step_folder(step)}/{MANIFEST}" for step in steps(run)),
    ):
        found: dict[int, list[str]] = {}
        try:
            with os.scandir(run / name) as entries:
                for entry in entries:
                    user = entry.stat(follow_symlinks=False).st_uid
                    if user != owner and not entry.is_dir():
                        found.setdefault(user, []).append(entry.name)
        except OSError:
            continue
        for user, names in found.items():
            more = f" and {counted(len(names) - 1, 'other file')}" if len(names) > 1 else ""
            who = f"belongs to user {user}, and the run to user {owner}: the job ignores it"
            yield name, f"{readable(min(names))}{more} {who}"


def never_kept(run: Path, recorded: Sequence[Kept]) -> Iterator[str]:
    """Yield a sentence for each configured action that never happened, once all processes of the
    job have ended.
    """
    config = read_run(run).get("config")
    if not isinstance(config, dict) or not recorded:
        return
    if any(status["condition"] not in _OVER for status in read_statuses(run)):
        return
    yield from _never_ran(run, config, recorded)
    budget = config.get("keep_steps")
    there = sum(each.artifacts for each in recorded)
    if type(budget) is int and there > max(budget, 1):
        yield f"keep_steps = {budget}, but the artifacts of {there} steps exist: no process deleted the oldest"


def _never_ran(run: Path, config: Mapping[str, Any], recorded: Sequence[Kept]) -> Iterator[str]:
    if not isinstance(config.get("on_complete"), list):
        return
    if config.get("on_complete_when") == "run":
        if not any(path.name.startswith("on-complete") for path in (run / AFTER).glob("*.json")):
            yield "on_complete is configured but never ran"
        return
    without = [each.step for each in recorded if each.windows and not each.completed]
    if without:
        shown = ", ".join(map(str, without[:8])) + (
            f" and {len(without) - 8} more" if len(without) > 8 else ""
        )
        yield f"on_complete is configured but never ran for step {shown}"

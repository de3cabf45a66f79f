"""Find a name for the run of a job whose name an earlier job, or another user, may have used.

A name may also be taken by another user. A Slurm step, a constant `torchrun --rdzv-id` and a shell with one MASTER_PORT name the next job like
the previous one. A run is over if all of its processes have ended in order. A process that failed,
or was killed, may be started again, and then records into its run.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepprof.host.own_files import foreign_folder
from stepprof.host.plain_files import json_files, read_table
from stepprof.host.process_identity import writer_identity
from stepprof.interrupts import ours
from stepprof.run.names import STATUS, rank_name


def usable_name(output_dir: Path, name: str, rank: int | str | None = None) -> str:
    """Return the first of `name`, `name.2`, `name.3`, … that this job may record into.

    A folder, or a link, of another user is not used: its owner can replace every file in it. Nor is
    a run that is over for `rank`; None: every run of this user is used. Where no name can be looked up, it is
    `name`: making the folder then fails with the reason.
    """
    try:
        (output_dir / name).lstat()
    except FileNotFoundError:
        pass
    except ours(OSError):
        return name
    for number in itertools.count(1):
        candidate = name if number == 1 else f"{name}.{number}"
        reason = foreign_folder(output_dir / candidate)
        if reason is not None:
            from stepprof.log import logger  # readers of a run work without structlog

            logger.warning("run.folder_refused", path=str(output_dir / candidate), reason=reason)
        elif rank is None or not is_finished(output_dir / candidate, rank):
            return candidate
    raise AssertionError("unreachable")


def is_finished(run: Path, rank: int | str | None) -> bool:
    """Return whether a run is over: all of its processes were others than this one, and ended in order.

    A run whose other ranks were faster than this one is not over: either its own rank, or all ranks
    of its world have ended. A process without a rank joins it, unless its own name has ended.
    """
    mine = rank is not None and (run / STATUS / f"rank-{rank_name(rank)}.json").exists()
    try:
        paths = json_files(run / STATUS)
    except ours(OSError):  # no process has published its status yet
        return False
    ranks: set[object] = set()
    world: object = None
    me = writer_identity()
    for path in paths:
        try:
            status = read_table(path)
        except ours(OSError, ValueError):  # damaged: nothing shows that its process has ended
            return False
        if not _has_ended_in_order(status) or status.get("writer") == me:
            return False
        if isinstance(status.get("rank"), int):
            ranks.add(status["rank"])
        world = status.get("world_size") or world
    return mine or (isinstance(rank, int) and isinstance(world, int) and len(ranks) >= world > 0)


def _has_ended_in_order(status: Mapping[str, Any]) -> bool:
    return status.get("ended") is True and status.get("failed") is not True

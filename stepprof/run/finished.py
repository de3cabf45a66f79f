"""Decide whether a run is over, so that a later job with the same name gets a run of its own.

A Slurm step, a constant `torchrun --rdzv-id` and a shell with one MASTER_PORT name the next job like
the previous one. A run is over if all of its processes have ended in order. A process that failed,
or was killed, may be started again, and then records into its run.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepprof.host.plain_files import json_files, read_table
from stepprof.host.process_identity import writer_identity
from stepprof.interrupts import ours
from stepprof.run.names import STATUS, rank_name


def unfinished_name(output_dir: Path, name: str, rank: int | str | None) -> str:
    """Return the first of `name`, `name.2`, `name.3`, … whose run is not over for this rank."""
    for number in itertools.count(1):
        candidate = name if number == 1 else f"{name}.{number}"
        if not is_finished(output_dir / candidate, rank):
            return candidate
    raise AssertionError("unreachable")


def is_finished(run: Path, rank: int | str | None) -> bool:
    """Return whether a run is over: all of its processes were others than this one, and ended in order.

    A run whose other ranks were faster than this one is not over: either its own rank, or all ranks
    of its world have ended.
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
        ranks.add(status.get("rank"))
        world = status.get("world_size") or world
    return bool(ranks) and (mine or (isinstance(world, int) and len(ranks) >= world))


def _has_ended_in_order(status: Mapping[str, Any]) -> bool:
    return status.get("ended") is True and status.get("failed") is not True

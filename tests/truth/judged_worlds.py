"""Run a world, write its run, and report on it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from stepprof.analysis.report.analyse import analyse
from stepprof.analysis.report.schema import Report
from stepprof.analysis.timeline.find import find
from truth.filing import file_run
from truth.model import T0
from truth.scheduling import Ran, run_all
from truth.worlds import World

__all__ = ["Made", "make"]


class Made(NamedTuple):
    """A world that has run, and the report of its recorded step."""

    world: World
    ran: list[Ran]
    run: Path
    report: Report


def make(world: World, folder: Path) -> Made:
    """Run a world and report on it; the run is written into a folder."""
    ran = run_all(world, T0)
    run = file_run(world, ran, folder)
    report = analyse(find([run], output_dir=folder, step=world.recorded), workers=1)
    return Made(world, ran, run, report)

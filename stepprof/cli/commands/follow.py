"""`stepprof follow RUN`: upload a run's recordings, run the `on_complete` command and delete old
artifacts, next to the job.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stepprof.cli.common import add_run, chosen_run
from stepprof.follow.loop import follow, is_open
from stepprof.follow.settings import settings
from stepprof.run.announced import announced
from stepprof.run.runs import is_run


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `follow`."""
    parser.description = (
        "Follow a running or ended job: upload its recordings, run the on_complete command, and delete old artifacts, "
        "as the configuration file says. It ends when all processes of the run have ended and nothing is left to do."
    )
    parser.epilog = (
        "exit status: 0 everything was done, 1 something failed, 2 it could not begin, "
        "130 it was stopped by Ctrl-C or a second SIGTERM"
    )
    add_run(parser)
    parser.add_argument(
        "--config", metavar="FILE", help="the configuration file in TOML (default: $STEPPROF_CONFIG)"
    )
    # of `stepprof run --follow`: the file in which the processes of its job announce their runs
    parser.add_argument("--announced", type=Path, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Follow the run. Return 1 if something failed."""
    config = settings(args.config, os.environ)
    if args.announced is None:
        path = chosen_run(args, is_run)
        return 0 if follow(config, lambda: [path]) else 1
    return 0 if follow(config, _runs_in(args.announced), is_open) else 1


def _runs_in(file: Path) -> Callable[[], list[Path]]:
    """Return a function that returns the announced runs; those known before, once the file is gone."""
    found: list[Path] = []

    def runs() -> list[Path]:
        with suppress(OSError):
            found[:] = announced(file)
        return found

    return runs

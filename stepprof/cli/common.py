"""What every command that reads a run has in common: which run is meant, and how an answer is given to a program."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepprof.cli.output import say_json
from stepprof.errors import ConfigError
from stepprof.run.layout import SPANS, STATUS, step_number
from stepprof.run.manifest import find_run, is_run, list_runs

__all__ = [
    "add_all",
    "add_json",
    "add_occurrence",
    "add_run",
    "add_step",
    "chosen_run",
    "output_dir",
    "print_json",
    "seconds",
]

SCHEMA_VERSION = 1
OUTPUT_DIR = "stepprof-runs"


def add_run(parser: argparse.ArgumentParser) -> None:
    """RUN and --output-dir."""
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help="a run id, the path of a run or of a step's folder; by default the newest run",
    )
    add_output_dir(parser)


def add_all(parser: argparse.ArgumentParser) -> None:
    """--all."""
    parser.add_argument(
        "--all",
        action="store_true",
        help="a line for each rank, engine, file and note, however many there are",
    )


def add_step(parser: argparse.ArgumentParser) -> None:
    """--step, of what is about one step."""
    parser.add_argument("--step", type=int, metavar="N", help="the step; by default the last one recorded")


def add_occurrence(parser: argparse.ArgumentParser) -> None:
    """--occurrence, of what is about one of several steps with one number."""
    parser.add_argument(
        "--occurrence",
        type=int,
        metavar="N",
        help="which occurrence of the step, where its number was used several times: 1 is the first; by default the last",
    )


def add_output_dir(parser: argparse.ArgumentParser) -> None:
    """--output-dir, which the environment and then the library's default stand in for."""
    parser.add_argument(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help=f"the folder that holds the runs; by default $STEPPROF_OUTPUT_DIR, else {OUTPUT_DIR}",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="print JSON (schema_version 1) instead of text")


def output_dir(args: argparse.Namespace) -> Path:
    """The folder of runs that is meant. Raises ConfigError where it is a run."""
    given: Path | None = args.output_dir
    folder = given or Path(os.environ.get("STEPPROF_OUTPUT_DIR") or OUTPUT_DIR)
    if is_run(folder):
        raise ConfigError(f'output_dir = "{folder}": is a run itself; name it as RUN, without --output-dir')
    return folder


def chosen_run(args: argparse.Namespace) -> Path:
    """The run that is meant, as an absolute path; where that is given as the folder of one of its steps, --step is that one.

    Raises:
        ConfigError: there is none, nothing of a run lies there, or --step says otherwise.
    """
    place = None if args.run is None else Path(args.run).resolve()
    number = None if place is None else step_number(place.name)
    if place is not None and number is not None and is_run(place.parent):
        given = getattr(args, "step", None)
        if isinstance(given, int) and given != number:
            raise ConfigError(f'--step = {given}: "{args.run}" is step {number}; leave one of them out')
        if given is None:
            args.step = number
        return place.parent
    path = find_run(output_dir(args), args.run).absolute()
    if not is_run(path) and not any((path / part).is_dir() for part in (SPANS, STATUS)):
        known = ", ".join(run.name for run in reversed(list_runs(output_dir(args))[-5:]))
        raise ConfigError(
            f'run "{args.run}": nothing of a run lies there{f"; the newest under {output_dir(args)}: {known}" if known else ""}'
        )
    return path


def print_json(content: Mapping[str, Any]) -> None:
    """An answer for a program: one JSON table, with the version of its schema."""
    say_json(json.dumps({"schema_version": SCHEMA_VERSION, **content}, indent=2, default=str))


def seconds(text: str) -> float:
    """A number of seconds, as an argument.

    >>> seconds("1.5")
    1.5
    """
    value = float(text)
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text}: expected a number of seconds, such as 2")
    return value

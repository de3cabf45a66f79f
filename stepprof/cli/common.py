"""Arguments that commands share: the selection of a run and step, and JSON output."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stepprof.analysis.timeline.named_traces import is_file, names_traces
from stepprof.cli import output
from stepprof.errors import ConfigError
from stepprof.formats.recognise import Kind, not_a_trace
from stepprof.host.plain_files import resolved
from stepprof.run.layout import SPANS, step_number
from stepprof.run.names import STATUS
from stepprof.run.runs import find_run, has_step, is_run, list_runs, named_run

SCHEMA_VERSION = 1
OUTPUT_DIR = "stepprof-runs"


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add RUN and --output-dir."""
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help="a run id, or the path of a run or of a step's folder (default: the newest run)",
    )
    add_output_dir(parser)


def add_run_or_traces(parser: argparse.ArgumentParser) -> None:
    """Add RUN…, which may also be traces, and --output-dir."""
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="a run id, or the path of a run or of a step's folder (default: the newest run); or traces that stepprof did not record, or a folder of them",
    )
    add_output_dir(parser)


def add_all(parser: argparse.ArgumentParser) -> None:
    """Add --all."""
    parser.add_argument(
        "--all",
        action="store_true",
        help="print one line for every rank, engine, file and note, without limits",
    )


def add_step(parser: argparse.ArgumentParser) -> None:
    """Add --step, for commands about one step."""
    parser.add_argument(
        "--step", type=int, metavar="N", help="the step (default: the last recorded one that ended)"
    )


def add_occurrence(parser: argparse.ArgumentParser) -> None:
    """Add --occurrence, which selects one of several steps with the same number."""
    parser.add_argument(
        "--occurrence",
        type=int,
        metavar="N",
        help="which occurrence of the step, if its number was used more than once: 1 is the first (default: the last)",
    )


def add_output_dir(parser: argparse.ArgumentParser) -> None:
    """Add --output-dir; its defaults are the environment variable, then the library's default."""
    parser.add_argument(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help=f"the folder of the runs (default: $STEPPROF_OUTPUT_DIR, else {OUTPUT_DIR})",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON (schema_version 1) instead of text")


def output_dir(args: argparse.Namespace) -> Path:
    """Return the selected folder of runs. Raise ConfigError if it is itself a run."""
    given: Path | None = args.output_dir
    folder = given or Path(os.environ.get("STEPPROF_OUTPUT_DIR") or OUTPUT_DIR)
    if is_run(folder):
        raise ConfigError(
            f'output_dir = "{folder}": is a run, not a folder of runs; pass it as RUN, without --output-dir'
        )
    return folder


def chosen_run(args: argparse.Namespace, holds: Callable[[Path], bool] = has_step) -> Path:
    """Return the selected run as an absolute path. The folder of one of its steps also sets --step.

    Args:
        args: of the command.
        holds: without RUN, the newest run for which this is true comes first.

    Raises:
        ConfigError: there is no such run, or --step contradicts RUN.
    """
    if args.run is not None:
        _refuse_traces(output_dir(args), args.run)
    place = None if args.run is None else resolved(args.run)
    number = None if place is None else step_number(place.name)
    if place is not None and number is not None and is_run(place.parent):
        given = getattr(args, "step", None)
        if isinstance(given, int) and given != number:
            raise ConfigError(f'--step = {given}: "{args.run}" is step {number}; omit one of them')
        if given is None:
            args.step = number
        return place.parent
    path = find_run(output_dir(args), args.run, holds=holds).absolute()
    if not is_run(path) and not any((path / part).is_dir() for part in (SPANS, STATUS)):
        known = ", ".join(run.name for run in reversed(list_runs(output_dir(args))[-5:]))
        raise ConfigError(
            f'run "{args.run}": is not a run{f"; the newest under {output_dir(args)}: {known}" if known else ""}'
        )
    return path


class Given(NamedTuple):
    """The arguments RUN… of a command that takes traces."""

    paths: list[str]
    left_out: list[tuple[str, str]]
    """Files that are no trace, and what they are; without those that stepprof writes next to traces."""


def given_traces(args: argparse.Namespace) -> Given:
    """Return the traces that RUN… names; none: RUN names a run, and is now `args.run`.

    Raises:
        ConfigError: several runs, a run and traces, or files that are no trace.
    """
    traces = [text for text in args.runs if names_traces(output_dir(args), text)]
    if len(traces) < len(args.runs) > 1:
        raise ConfigError(f"RUN: {', '.join(args.runs)}: must be one run, or traces")
    args.run = args.runs[0] if args.runs and not traces else None
    return only_traces(traces, output_dir(args))


def only_traces(texts: Sequence[str], folder: Path, *, compared: bool = False) -> Given:
    """Return RUN… without the files that are no trace, which are printed.

    Args:
        texts: RUN….
        folder: of the runs.
        compared: whether two are compared.

    Raises:
        ConfigError: nothing is left to read, or one to compare.
    """
    files = [text for text in texts if is_file(text) and named_run(folder, text) is None]
    others = {text: what for text in files if (what := not_a_trace(Path(text)))}
    left = [text for text in texts if text not in others]
    if others and (not left or (compared and len(texts) == 2)):
        raise ConfigError("; ".join(f'"{text}": {what.text}' for text, what in others.items()))
    for text, what in others.items():
        output.print_lines(f'left out: "{text}" {what.text}', file=sys.stderr)
    ours = (Kind.OURS, Kind.TIMELINE)
    return Given(left, [(text, what.text) for text, what in others.items() if what.kind not in ours])


def _refuse_traces(folder: Path, text: str) -> None:
    """Raise ConfigError if a text names a file or a folder of traces: the command needs a run."""
    if not names_traces(folder, text, sure=True):
        return
    what = not_a_trace(Path(text)) if is_file(text) else None
    of = "a trace" if is_file(text) else "a folder of traces"
    takes = f"is {of}, which report, merge, open, check and export take; this command takes a run"
    raise ConfigError(f'"{text}": {takes if what is None else what.text}')


def print_json(content: Mapping[str, Any]) -> None:
    """Print a JSON object with the version of its schema."""
    output.print_json(json.dumps({"schema_version": SCHEMA_VERSION, **content}, indent=2, default=str))


def seconds(text: str) -> float:
    """Parse a number of seconds from an argument.

    >>> seconds("1.5")
    1.5
    """
    value = float(text)
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text}: expected a number of seconds, such as 2")
    return value

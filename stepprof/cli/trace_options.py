"""Arguments of the commands that read traces: sources, assumed clock offsets, progress."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from stepprof.cli.common import add_occurrence, add_output_dir, add_step
from stepprof.cli.output import console, print_lines
from stepprof.errors import ConfigError
from stepprof.formatting import install

if TYPE_CHECKING:
    from rich.console import Console

    from stepprof.analysis.timeline.ray_workers import Cluster

_NEEDED = ("numpy", "msgspec", "rich", "isal")
SHORT = ("cut", "damaged", "unreadable")
"""Statuses of a capture whose file was not read to its end."""


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add RUN…, --output-dir and --step."""
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="a run id, the path of a run, of a step's folder, of a folder of traces or of a trace. Several folders of one run, copied from nodes without a shared disk, are read as one (default: the newest run that has a recorded step)",
    )
    add_output_dir(parser)
    add_step(parser)
    add_occurrence(parser)


def add_work(parser: argparse.ArgumentParser) -> None:
    """Add --assume-offset, --one-clock, --workers and --ray."""
    parser.add_argument(
        "--assume-offset",
        action="append",
        default=[],
        metavar="[NAME=]SECONDS",
        help="seconds to add to the times of a source, named by its path, file, host or label; without a name: of every trace that states no start time; 0 also says that clocks which were never compared agree",
    )
    parser.add_argument(
        "--one-clock",
        action="store_true",
        help="clocks that were never compared agree: for traces of one machine that do not state their host",
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="maximum number of processes (default: the number of processors)",
    )
    parser.add_argument(
        "--ray",
        nargs="?",
        const="auto",
        metavar="ADDRESS",
        help="read each source in a Ray task on the node that holds it. ADDRESS defaults to $RAY_ADDRESS, else to the local cluster. --workers then limits the concurrent tasks per node",
    )


@contextlib.contextmanager
def chosen_cluster(args: argparse.Namespace) -> Iterator[Cluster | None]:
    """Return the Ray cluster that --ray names; None without it. Raise ConfigError if none answers."""
    if args.ray is None:
        yield None
        return
    from stepprof.analysis.timeline.ray_workers import Cluster

    with Cluster(args.ray) as cluster:
        yield cluster


def begin_reading(args: argparse.Namespace) -> dict[str, int]:
    """Validate the options of reading traces, and keep freed memory in this process for reuse.

    Returns:
        The offsets of --assume-offset and --one-clock in nanoseconds, by the name of the source.

    Raises:
        ConfigError: the extra `report` is not installed, or an option is invalid.
    """
    require_extra()
    if args.workers is not None and args.workers < 1:
        raise ConfigError(f"--workers = {args.workers}: must be >= 1")
    from stepprof.analysis.timeline.assumed_offsets import ONE_CLOCK, assumed_offsets

    return assumed_offsets(args.assume_offset) | ({ONE_CLOCK: 0} if args.one_clock else {})


def require_extra() -> None:
    """Raise ConfigError if the packages that read traces are not installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"reading traces needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: {install('report')}"
        )


def warn_unread(sources: Sequence[str], what: str) -> int:
    """Print which sources were not read because the process that read them died. Return the exit status."""
    for source in sources:
        print_lines(
            f"{source}: is not in {what}, because the process that read it died; with --workers 1, or more memory, it may be read",
            file=sys.stderr,
        )
    return 1 if sources else 0


def short_files(
    sources: Iterable[tuple[str, str | None]],
    shortfalls: Iterable[tuple[str, str]],
    unlisted: Collection[str | None],
) -> list[str]:
    """Return the files of a report that were read only in part, of those that no manifest lists.

    Args:
        sources: the label and path of each source of the report.
        shortfalls: the label and status of each of its shortfalls.
        unlisted: the paths of the files that no manifest lists.

    >>> short_files([("a", "a.json"), ("a", "a.jsonl")], [("a", "damaged")], {"a.json"})
    ['a.json']
    """
    short = {label for label, status in shortfalls if status in SHORT}
    return [path or "" for label, path in sources if label in short and path in unlisted]


def warn_incomplete(empty: Sequence[str], cut: Sequence[str], what: str) -> int:
    """Print which files have no event in the output, and which were read only in part. Return the exit status."""
    for path in empty:
        print_lines(f"{path}: no event of it is in {what}", file=sys.stderr)
    for path in dict.fromkeys(path for path in cut if path not in empty):
        print_lines(f"{path}: read only in part", file=sys.stderr)
    return 1 if empty or cut else 0


def report_console() -> Console:
    """Return the console for a report. Names are printed as plain text; without a terminal it is
    120 columns wide.
    """
    return console(width=None if sys.stdout.isatty() else 120)


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Return a progress bar on stderr, moved by calls with (done, all).

    Return None without a terminal or without rich.
    """
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)

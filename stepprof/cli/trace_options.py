"""What the commands that read traces have in common: which sources are meant, how a clock is given by hand, how far the work is."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from stepprof.cli.common import add_occurrence, add_output_dir, add_step
from stepprof.cli.output import console
from stepprof.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from stepprof.analysis.timeline.ray_workers import Cluster

__all__ = [
    "add_sources",
    "add_work",
    "begin_reading",
    "chosen_cluster",
    "progress_bar",
    "report_console",
    "require_extra",
]

_NEEDED = ("numpy", "msgspec", "rich", "isal")


def add_sources(parser: argparse.ArgumentParser) -> None:
    """RUN…, --output-dir and --step."""
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="a run id, the path of a run, of a step's folder, of a folder of traces or of a trace; several folders of one run, copied from nodes that share no disk, are read as one; by default the newest run",
    )
    add_output_dir(parser)
    add_step(parser)
    add_occurrence(parser)


def add_work(parser: argparse.ArgumentParser) -> None:
    """--assume-offset, --workers and --ray."""
    parser.add_argument(
        "--assume-offset",
        action="append",
        default=[],
        metavar="[NAME=]SECONDS",
        help="what is added to the times of a source, named by its path, file, host or label; without a name: of every trace that does not say when its time 0 was",
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes at most; by default as many as processors"
    )
    parser.add_argument(
        "--ray",
        nargs="?",
        const="auto",
        metavar="ADDRESS",
        help="read each source in a task of this Ray cluster, on the node where it lies; without an ADDRESS $RAY_ADDRESS, else the cluster of this machine. --workers is then how many tasks a node has at once",
    )


@contextlib.contextmanager
def chosen_cluster(args: argparse.Namespace) -> Iterator[Cluster | None]:
    """The Ray cluster that --ray names; None without it. Raises ConfigError where none answers."""
    if args.ray is None:
        yield None
        return
    from stepprof.analysis.timeline.ray_workers import Cluster

    with Cluster(args.ray) as cluster:
        yield cluster


def begin_reading(args: argparse.Namespace) -> dict[str, int]:
    """What comes before anything is read: refuses what cannot be, and keeps what this process frees, which it will need again.

    Returns:
        What --assume-offset says, in nanoseconds, by the name of the source.

    Raises:
        ConfigError: what reads traces is not installed, --workers is no number of processes, or --assume-offset no number of seconds.
    """
    require_extra()
    if args.workers is not None and args.workers < 1:
        raise ConfigError(f"--workers = {args.workers}: no number of processes; the nearest: 1")
    from stepprof.analysis.timeline.assumed_offsets import assumed_offsets
    from stepprof.analysis.timeline.malloc_tuning import keep_freed_memory

    keep_freed_memory()
    return assumed_offsets(args.assume_offset)


def require_extra() -> None:
    """Raise ConfigError where what reads traces is not installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"reading traces needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: pip install 'stepprof[report]'"
        )


def report_console() -> Console:
    """Where a report is printed: names in it are text and nothing else, and what is no terminal is 120 columns wide."""
    return console(width=None if sys.stdout.isatty() else 120)


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr where that is a terminal, moved by calls with (done, all); None where it is none, or rich is not installed."""
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)

"""`stepprof status RUN`: the current or final state of every rank and engine, and of the requests."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.cli.common import add_all, add_json, add_run, chosen_run, print_json, seconds
from stepprof.cli.output import console, print_text
from stepprof.cli.process_table import ALIGN, HEADERS, PROBLEMS, status_notes, status_rows, urgency
from stepprof.formatting import printable, table
from stepprof.run.runs import is_run
from stepprof.run.status import LIVE, read_statuses

if TYPE_CHECKING:
    from rich.text import Text

EVERY_SECONDS = 1.0
_HAS_RICH = importlib.util.find_spec("rich") is not None
_COLOURS = {
    "live": "green",
    "stale": "yellow",
    "ended": "dim",
    "replaced": "dim",
    "crashed": "bold red",
    "damaged": "bold red",
    "recording": "bold magenta",
    "armed": "cyan",
    "flushing": "cyan",
    "ok": "green",
}


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `status`."""
    parser.description = "Show the current or final state of every rank and engine of a run."
    parser.epilog = "exit status: 0 all live, ended or replaced, 1 a process crashed, is stale, or its file is damaged, 2 no such run"
    add_run(parser)
    parser.add_argument(
        "--watch",
        nargs="?",
        type=seconds,
        const=EVERY_SECONDS,
        metavar="SECONDS",
        help="refresh every SECONDS (default 1) until Ctrl-C, or until every process has ended",
    )
    add_all(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Show the status, once or repeatedly. Return 1 if a process is unhealthy."""
    path = chosen_run(args, is_run)
    content = describe(path)
    if args.watch is not None:
        content = _watch(path, content, max(args.watch, 0.1), as_json=args.json, show_all=args.all)
    elif args.json:
        print_json(content)
    else:
        _print(content, show_all=args.all)
    return 1 if PROBLEMS & set(content["conditions"]) else 0


def describe(path: Path) -> dict[str, Any]:
    """Return the status of a run.

    `processes` is what `stepprof.run.status` reads, `conditions` counts them, and `requests` has
    the outcome of each request by rank.
    """
    processes = read_statuses(path)
    now = time.time_ns()
    requests: dict[str, dict[str, Any]] = {}
    for status in processes:
        since = status["state_since_unix_ns"]
        status["state_seconds"] = None if since is None else max((now - since) / 1e9, 0.0)
        for name, seen in status["requests"].items():
            request = requests.setdefault(
                name, {"name": name, "steps": seen["steps"], "role": seen["role"], "outcomes": []}
            )
            request["steps"] = request["steps"] or seen["steps"]
            request["outcomes"].append(
                {"rank": status["rank"], **{key: seen[key] for key in ("outcome", "reason", "missed")}}
            )
    return {
        "run_id": next((s["run_id"] for s in processes if s["run_id"]), path.name),
        "path": str(path),
        "conditions": dict(Counter(status["condition"] for status in processes)),
        "processes": processes,
        "requests": list(requests.values()),
    }


def render(content: Mapping[str, Any], *, show_all: bool = False) -> str:
    """Return the status as plain text. Similar processes share a row if there are many, unless
    `show_all`.
    """
    parts = [_title(content)]
    rows, how_many = status_rows(content["processes"], show_all=show_all)
    if rows:
        parts.append(table(HEADERS, rows, ALIGN) + "".join(f"\n({line})" for line in how_many))
    notes = status_notes(content, show_all=show_all)
    if notes:
        parts.append("notes:\n" + "\n".join(f"  {note}" for note in notes))
    return "\n\n".join(parts)


def _title(content: Mapping[str, Any]) -> str:
    conditions = ", ".join(f"{count} {name}" for name, count in sorted(content["conditions"].items()))
    return printable(f"run {content['run_id']}  {conditions or 'no process has reported its state'}")


def _print(content: Mapping[str, Any], *, show_all: bool) -> None:
    """Print with colours on a terminal that rich supports, else as plain text."""
    if sys.stdout.isatty() and _HAS_RICH:
        console().print(_coloured(content, show_all=show_all), soft_wrap=True)
    else:
        print_text(render(content, show_all=show_all))


def _coloured(content: Mapping[str, Any], lines: int | None = None, *, show_all: bool = False) -> Text:
    """Return the status with colours, in at most `lines` lines: the height of the terminal."""
    from rich.text import Text

    processes, notes = content["processes"], status_notes(content, show_all=show_all)
    cells, how_many = status_rows(processes, show_all=show_all)
    if lines is not None and lines < len(cells) + len(how_many) + len(notes) + 3:
        processes, notes = sorted(processes, key=urgency), notes[: lines // 4]
        cells, how_many = status_rows(processes, show_all=show_all)
    header, *rows = table(HEADERS, cells, ALIGN).split("\n")
    notes = [*(f"({line})" for line in how_many), *notes]
    if lines is not None and lines < len(rows) + len(notes) + 3:
        # without the title, the headers, the line of omitted rows, and the cursor
        shown = max(lines - len(notes) - 4, 1)
        notes = [f"… and {len(rows) - shown} more lines: `stepprof status` without --watch", *notes]
        rows = rows[:shown]
    coloured = Text("\n".join([header, *rows, *notes]))
    for word, style in _COLOURS.items():
        coloured.highlight_regex(rf"(?<=  )(?:was )?{word}(?=  |\n)", style)
    # a terminal that is too narrow wraps the lines itself; no column is cut
    title = Text(f"{_title(content)}\n", style="bold")
    return Text(no_wrap=True, overflow="ignore").append_text(title).append_text(coloured)


def _watch(
    path: Path, content: dict[str, Any], seconds: float, *, as_json: bool, show_all: bool
) -> dict[str, Any]:
    """Show the status until every process has ended. Return the last one shown."""
    if not as_json and sys.stdout.isatty() and _HAS_RICH:
        from rich.live import Live

        with Live(console=console(), auto_refresh=False, transient=True) as live:
            while _goes_on(content):
                live.update(_coloured(content, live.console.size.height, show_all=show_all), refresh=True)
                time.sleep(seconds)
                content = describe(path)
        _print(content, show_all=show_all)
        return content
    while True:
        if as_json:
            print_json(content)
        else:
            print_text(render(content, show_all=show_all))
        sys.stdout.flush()
        if not _goes_on(content):
            return content
        time.sleep(seconds)
        content = describe(path)


def _goes_on(content: Mapping[str, Any]) -> bool:
    """Return whether anything may still change. A run that has just started has no status yet."""
    return not content["processes"] or bool({LIVE, "stale"} & set(content["conditions"]))

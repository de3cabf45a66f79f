"""`stepprof …`: the command line.

A command is a module of `stepprof.cli.commands` with `add(parser)` and `run(args) -> int`. Only the
requested command is imported, so `stepprof ls` does not load the imports of `stepprof demo`.

Exit status: 0 success; 1 a problem was found and printed; 2 the command could not run (a wrong
argument, no such run); 130 interrupted. `report --fail-on-regression` also has 3 and 4.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import os
import re
import select
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

from stepprof.cli import commands
from stepprof.cli.output import any_encoding, print_lines
from stepprof.errors import StepprofError
from stepprof.version import VERSION

COMMANDS = {
    "demo": "train a small model with GRPO, record a step and show the result",
    "run": "run a training job and record steps of it, without a change to its code",
    "ls": "list the runs, or the steps of a run",
    "show": "show a step: what was recorded, the files, the recording overhead, time per region",
    "status": "show the state of every rank and engine of a running job",
    "follow": "next to a job: upload recordings, run a command, delete old artifacts",
    "trigger": "ask a running job to record a step",
    "spans": "show the time of windows and regions in every step; write them as a timeline",
    "check": "check every artifact against the manifests; fail if one is missing or damaged",
    "open": "show the timeline of a step in a browser",
    "analyse": "run torch_npu's analysis of captures from Ascend devices",
    "merge": "write one timeline of everything that was recorded in a step",
    "report": "report where the time of a step went: terminal, JSON or HTML; compare two steps or runs",
    "export": "write the steps, spans and slices of a run as Parquet files",
    "doctor": "check what can record on this machine, with a remedy for each problem",
}
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
EXIT_STATUS = "exit status: 0 success, 1 a problem was found, 2 the command could not run"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status.

    >>> main(["ls", "--output-dir", "no-such-folder"])
    no runs in no-such-folder
    0
    """
    with any_encoding():
        return _carry_out(_parsed(list(sys.argv[1:] if argv is None else argv)))


def _carry_out(args: argparse.Namespace) -> int:
    try:
        status = int(importlib.import_module(f"{commands.__name__}.{args.command}").run(args))
        sys.stdout.flush()
        return status
    except StepprofError as error:
        print_lines(f"stepprof {args.command}: {error}", file=sys.stderr)
        return 2
    except PermissionError as error:
        print_lines(f"stepprof {args.command}: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        if not _reader_has_gone():
            raise
        # `stepprof ls | head`: the reader has closed the pipe; the interpreter must not use it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in _DISK or error.filename is not None:
            raise
        what = (
            "a file cannot be read or written" if error.errno == errno.EIO else "the output cannot be written"
        )
        print_lines(f"stepprof {args.command}: {what}: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except KeyboardInterrupt:
        return 130


class _Parser(argparse.ArgumentParser):
    """Report an error in one line, like every other error of the command line."""

    def error(self, message: str) -> NoReturn:
        stop = "" if message.endswith("?") else ";"
        print_lines(f'{self.prog}: {message}{stop} "{self.prog} --help" shows its options', file=sys.stderr)
        self.exit(2)


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    command = next((argument for argument in arguments if not argument.startswith("-")), None)
    parser = _Parser(
        prog="stepprof", description="Record and analyse single steps of a training job.", epilog=EXIT_STATUS
    )
    parser.add_argument("--version", action="version", version=f"stepprof {VERSION}")
    if command is not None and command not in COMMANDS:
        parser.error(f'"{command}": unknown command{_nearest(command, COMMANDS)}')
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, help_text in COMMANDS.items():
        added = subparsers.add_parser(name, help=help_text)
        if name == command:
            importlib.import_module(f"{commands.__name__}.{name}").add(added)
    args, unknown = parser.parse_known_args(arguments)
    if args.command is None and not unknown:
        parser.print_help(sys.stderr)
        parser.exit(2)
    if unknown:
        chosen = parser if args.command is None else subparsers.choices[args.command]
        options = re.findall(r"--[a-z][a-z-]+", chosen.format_help())
        chosen.error(f'"{unknown[0]}": unknown option{_nearest(unknown[0].partition("=")[0], options)}')
    return args


def _reader_has_gone() -> bool:
    """Return whether the broken pipe is stdout. There are other pipes, such as those to workers."""
    if not hasattr(select, "poll"):  # Windows
        return True
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except OSError:  # no file at all
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f'; did you mean "{near[0]}"?' if near else ""

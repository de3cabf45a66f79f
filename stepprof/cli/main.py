"""`stepprof …`: the reading wing's command line.

A command is a module of `stepprof.cli.commands` with `add(parser)` and `run(args) -> int`. Only the one that was asked for is imported, so that `stepprof ls` does not pay for what
`stepprof demo` needs.

Exit status: 0 all is well; 1 a problem was found, and printed; 2 the command could not be carried out (a wrong argument, no such run); 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import importlib
import os
import re
import select
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

from stepprof import __version__
from stepprof.cli import commands
from stepprof.cli.output import any_encoding, say
from stepprof.errors import StepprofError

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "demo": "train a small model with GRPO, record a step of it, and show what was recorded",
    "ls": "list the runs, or the steps of a run",
    "show": "show a step: what was recorded, where it lies, what recording cost, time per region",
    "status": "show what every rank and engine of a running job does",
    "trigger": "ask a running job to record a step",
    "spans": "show what windows and regions took in every step; write them as a timeline",
    "check": "read artifacts to their ends, against manifests; fails where anything is missing or damaged",
    "open": "show the timeline of a step in a browser",
    "analyse": "have torch_npu make what it recorded on Ascend devices readable",
    "merge": "write one timeline of all that was recorded of a step",
    "report": "say where a step went: in the terminal, as JSON, as a page; compare two steps or runs",
    "doctor": "say what can record on this machine, and what stands in the way",
}
COLLECT = (200_000, 50, 1000)
"""When Python looks for cycles while a command runs. By default it walks all that was read of thousands of ranks again and again: `show` and `spans` took 1.15 times as long per rank of 4,096 as of 1,024, and
take 1.07 and 1.03 times so (Python 3.11)."""
EXIT_STATUS = "exit status: 0 all is well, 1 a problem was found, 2 the command could not be carried out"


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command; returns the exit status.

    >>> main(["ls", "--output-dir", "no-such-folder"])
    no runs in no-such-folder
    0
    """
    with any_encoding():
        return _carry_out(_parsed(list(sys.argv[1:] if argv is None else argv)))


def _carry_out(args: argparse.Namespace) -> int:
    before = gc.get_threshold()
    gc.set_threshold(*COLLECT)
    try:
        status = int(importlib.import_module(f"{commands.__name__}.{args.command}").run(args))
        sys.stdout.flush()
        return status
    except StepprofError as error:
        say(f"stepprof {args.command}: {error}", file=sys.stderr)
        return 2
    except PermissionError as error:
        say(f"stepprof {args.command}: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        if not _reader_has_gone():
            raise
        # `stepprof ls | head`: it has seen enough; the interpreter must not find the pipe again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    finally:
        gc.set_threshold(*before)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error of the command line does."""

    def error(self, message: str) -> NoReturn:
        stop = "" if message.endswith("?") else ";"
        say(f'{self.prog}: {message}{stop} "{self.prog} --help" says what it takes', file=sys.stderr)
        self.exit(2)


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    command = next((argument for argument in arguments if not argument.startswith("-")), None)
    parser = _Parser(
        prog="stepprof", description="Record and read single steps of a training job.", epilog=EXIT_STATUS
    )
    parser.add_argument("--version", action="version", version=f"stepprof {__version__}")
    if command is not None and command not in COMMANDS:
        parser.error(f'"{command}": no command{_nearest(command, COMMANDS)}')
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
        chosen.error(f'"{unknown[0]}": not known{_nearest(unknown[0].partition("=")[0], options)}')
    return args


def _reader_has_gone() -> bool:
    """Whether the pipe that broke is the one that is written to: there are others, such as those to workers."""
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

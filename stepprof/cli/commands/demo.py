"""`stepprof demo`: train a small model with GRPO on two ranks, record a step, and show the result.

The loop is examples/grpo.py. It runs as a user would run it: with torchrun, in separate processes,
configured by environment variables only. This module launches the loop and reads its run directory,
so any training loop can do what the demo does. This process imports neither torch nor transformers.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import stepprof
from stepprof.analysis.verify import verify_run
from stepprof.cli.commands.show import render_step
from stepprof.cli.common import add_output_dir, output_dir
from stepprof.cli.demo_launcher import launch
from stepprof.cli.make_outputs import make_report, make_timeline
from stepprof.cli.output import print_lines, print_text
from stepprof.cli.trace_options import report_console
from stepprof.config.config import Config, load
from stepprof.config.selection import Ranks, Steps
from stepprof.errors import ConfigError
from stepprof.formatting import install
from stepprof.run.manifest import read_step
from stepprof.run.names import safe_name
from stepprof.run.runs import steps as recorded_steps
from stepprof.run.spans import read_spans
from stepprof.run.summary import held_seconds

NEEDED = ("torch", "transformers")
READING = ("numpy", "msgspec", "rich", "isal")
"""Packages that timeline and report also need. Without them the demo trains, records and shows its
tables.
"""
WORLD_SIZE = 2
TRAIN_STEPS = 24
SHOWN_STEPS = 3


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `demo`."""
    parser.description = f"Train a small language model with GRPO on arithmetic, on {WORLD_SIZE} local ranks and without network access. Record a step and show the result."
    parser.epilog = "exit status: 0 trained and recorded, 1 the loop failed or a selected step is not recorded, 2 the demo could not start, 130 interrupted"
    parser.add_argument(
        "--steps", default="2", help='the steps to record: "2", "2,10-12", "every 10" (default 2)'
    )
    parser.add_argument("--ranks", default="all", help='the ranks to record: "0", "all" (default all)')
    parser.add_argument(
        "--train-steps",
        type=int,
        default=TRAIN_STEPS,
        metavar="N",
        help=f"number of training steps (default {TRAIN_STEPS})",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed of the weights, prompts and samples (default 0)"
    )
    add_output_dir(parser)


def run(args: argparse.Namespace) -> int:
    """Train, record, show. Return 0 if every selected step is recorded, else 1."""
    _refuse_without_libraries()
    if args.train_steps < 1:
        raise ConfigError(f"--train-steps = {args.train_steps}: must be >= 1")
    Steps.parse(args.steps, "--steps")
    Ranks.parse(args.ranks, "--ranks").check(WORLD_SIZE, "--ranks")
    folder = output_dir(args).absolute()
    environ = {
        **os.environ,
        "STEPPROF_STEPS": args.steps,
        "STEPPROF_RANKS": args.ranks,
        "STEPPROF_OUTPUT_DIR": str(folder),
    }
    config = load(None, environ)
    steps = _selected_steps(config, args.train_steps)
    path = _claim_run(folder, environ)
    environ["STEPPROF_RUN_ID"] = path.name

    print_lines(
        f"GRPO on small arithmetic, {WORLD_SIZE} ranks, {args.train_steps} steps; recording step {config.steps}, rank {config.ranks} in {path}"
    )
    began = time.monotonic()
    loop = [str(_loop(environ)), "--train-steps", str(args.train_steps), "--seed", str(args.seed)]
    try:
        status = launch(loop, environ, WORLD_SIZE)
    except (KeyboardInterrupt, SystemExit):
        print_lines(f"stopped; to see what was recorded: stepprof show {_shown(path)}", file=sys.stderr)
        raise
    print_lines(f"{time.monotonic() - began:.0f} s, start and imports included", "")
    if status:
        print_lines(f"stepprof demo: the loop ended with exit status {status}", file=sys.stderr)
    problems = _problems(path, steps)
    _report(path, steps)
    for problem in problems:
        print_lines(f"stepprof demo: {problem}", file=sys.stderr)
    return 1 if status or problems else 0


def _refuse_without_libraries() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the demo needs {' and '.join(NEEDED)}; not installed: {', '.join(missing)}; {install('demo')}"
        )


def _selected_steps(config: Config, train_steps: int) -> list[int]:
    """Return the steps that will be recorded. Raise ConfigError if one or all of them cannot be."""
    if config.off:
        raise ConfigError(
            "nothing would be recorded: STEPPROF=0 is set, or no step is selected; unset it, or select a step with --steps"
        )
    selection = config.policy(None).steps
    steps = [step for step in range(1, train_steps + 1) if step in selection]
    never = selection.without(steps)
    if never.is_none and not steps:
        never = selection
    if not never.is_none:
        raise ConfigError(
            f'steps = "{selection}": the demo trains steps 1 to {train_steps}, and "{never}" is never reached; select other steps, or raise --train-steps'
        )
    return steps


def _claim_run(folder: Path, environ: Mapping[str, str]) -> Path:
    """Return a new folder for this run: demo-1, demo-2, …, or the one named by $STEPPROF_RUN_ID."""
    given = safe_name(environ.get("STEPPROF_RUN_ID", ""))
    if given:
        return folder / given
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = folder / f"demo-{number}"
            with suppress(FileExistsError):
                path.mkdir()
                break
    except OSError as error:
        raise ConfigError(
            f'output_dir = "{folder}": cannot be made or written: {error.strerror}; name another with --output-dir'
        ) from error
    return path


def _loop(environ: dict[str, str]) -> Path:
    """Return the path of grpo.py: inside an installed package, or next to the package in a source tree."""
    package = Path(stepprof.__file__).parent
    inside = package / "examples" / "grpo.py"
    if inside.is_file():
        return inside
    paths = [str(package.parent), environ.get("PYTHONPATH", "")]
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return package.parent / "examples" / "grpo.py"


def _problems(path: Path, steps: Sequence[int]) -> list[str]:
    """Return the selected steps and artifacts that are missing or damaged."""
    recorded = recorded_steps(path)
    absent = [step for step in steps if step not in recorded]
    problems = [f"step {step} is not recorded" for step in absent]
    if recorded:
        problems += [f"{problem.where}: {problem.problem}" for problem in verify_run(path).problems]
    return problems


def _report(path: Path, steps: Sequence[int]) -> None:
    """Print the tables, the training progress and the next commands."""
    recorded = [step for step in steps if step in recorded_steps(path)]
    for step in recorded[:SHOWN_STEPS]:
        print_text(f"{render_step(path, step)}\n")
    analysed = all(importlib.util.find_spec(name) for name in READING)
    if recorded and analysed:
        _analyse(path, recorded[0])
    spans = [span for span in read_spans(path) if span["rank"] == 0]
    rewards = {
        span["step"]: span["value"] for span in spans if span.get("name") == "reward" and "value" in span
    }
    if rewards:
        first, last = min(rewards), max(rewards)
        print_lines(f"reward {rewards[first]:.3f} at step {first}, {rewards[last]:.3f} at step {last}")
    seconds = [span["dur"] / 1e9 for span in spans if span["kind"] == "window" and span["role"] is None]
    held = [_held_seconds(path, step) for step in recorded]
    if seconds and held:
        print_lines(
            f"recording delayed a rank by at most {max(held):.2f} s in a step; the median step on rank 0 takes {median(seconds):.2f} s"
        )
    if not recorded:
        return
    shown = f"{_shown(path)} --step {recorded[0]}"
    print_lines("", "next:", *(f"  stepprof {command} {shown}" for command in ("show", "report", "open")))
    if not analysed:
        print_lines(f"  timeline and report need more packages: {install('report')}")


def _analyse(path: Path, step: int) -> None:
    """Merge the step into one timeline and report on it: headlines here, everything on the page."""
    from msgspec.structs import replace

    from stepprof.analysis.report.terminal import print_report

    files = []
    try:
        files.append(("timeline", make_timeline([path], path.parent, step)))
    except ConfigError as error:
        print_lines(f"stepprof demo: {error}", file=sys.stderr)
    report, written = make_report(path, step)
    short = replace(
        report,
        rollout=[],
        skew=[],
        slack=[],
        idle=[],
        overlap=[],
        regions=[],
        ops=[],
        kernels=[],
        memory=[],
        overhead=[],
    )
    print_report(short, report_console())
    print_lines()
    for what, file in (*files, *zip(("report", ""), written, strict=False)):
        print_lines(f"{what:8}  {_shown(file)}")
    print_lines()


def _held_seconds(path: Path, step: int) -> float:
    """Return the longest delay of a rank by recording, in seconds."""
    held: defaultdict[object, float] = defaultdict(float)
    for window in read_step(path, step)["windows"]:
        held[window["rank"]] += held_seconds(window)
    return max(held.values(), default=0.0)


def _shown(path: Path) -> str:
    """Return a path quoted for a shell, relative if it lies below the current folder."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))

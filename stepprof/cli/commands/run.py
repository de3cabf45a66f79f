"""`stepprof run COMMAND`: start a job so that stepprof attaches to its training framework.

The job's code is unchanged. Every Python process below the command attaches the adapters at its start:
by the installation's `stepprof.pth`, or by our `sitecustomize` where stepprof is only on the path. Another
tool's `sitecustomize` may hide ours, and cannot hide the first. The exit status and the signals of the
job pass through.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from stepprof.cli.common import OUTPUT_DIR
from stepprof.cli.output import print_lines
from stepprof.config.config import load
from stepprof.config.loaders import CONFIG_VARIABLE, switched_off
from stepprof.config.validators import Mistakes
from stepprof.errors import ConfigError
from stepprof.follow.settings import settings
from stepprof.host.own_python import own_python
from stepprof.host.plain_files import resolved
from stepprof.integrations import bootstrap
from stepprof.integrations.activation import FRAMEWORKS
from stepprof.redaction.messages import quoted
from stepprof.run.announced import VARIABLE, announced, announced_off
from stepprof.run.layout import MANIFEST, step_folder
from stepprof.run.runs import list_runs, read_run, steps
from stepprof.run.summary import summarize_step

OPTIONS = {
    "steps": ("STEPPROF_STEPS", 'which steps to record, such as "10" or "10-12, every 100"'),
    "ranks": ("STEPPROF_RANKS", 'which ranks record, such as "0", "0-3" or "all"'),
    "backend": ("STEPPROF_BACKEND", "the profiler: torch, npu, nsys, memory, null"),
    "output_dir": ("STEPPROF_OUTPUT_DIR", f"the folder of the runs (default {OUTPUT_DIR})"),
    "config": ("STEPPROF_CONFIG", "a configuration file in TOML"),
}
"""Options, each with the variable that it sets."""
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `run`."""
    parser.description = "Run a training job and record steps of it, without a change to its code."
    parser.epilog = "exit status: that of the job; 126 or 127 if it cannot be started"
    for name, (variable, text) in OPTIONS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", metavar=name.upper(), help=f"{text}; sets ${variable}"
        )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="follow the runs of the job, as `stepprof follow` does, with the same configuration file",
    )
    parser.add_argument(
        "job", metavar="COMMAND", nargs=argparse.REMAINDER, help="the job, such as: python train.py --lr 1e-5"
    )


def run(args: argparse.Namespace) -> int:
    """Run the job, print what was recorded, and return the exit status of the job."""
    job = args.job[1:] if args.job[:1] == ["--"] else args.job
    if not job:
        raise ConfigError("COMMAND: is missing; for example: stepprof run --steps 10 -- python train.py")
    environ = environment(args, os.environ)
    check_options(args, environ)
    if args.follow:
        settings(None, environ)  # a mistake is reported before the job begins
    folder = Path(load(environ=environ).output_dir)
    before, began = recorded(list_runs(folder)), time.time()
    with tempfile.NamedTemporaryFile(prefix="stepprof-run-") as file:
        follower = start_follower(file.name, environ[CONFIG_VARIABLE]) if args.follow else None
        try:
            status = wait(job, {**environ, VARIABLE: file.name})
        except FileNotFoundError:
            print_lines(f"stepprof run: {job[0]}: command not found", file=sys.stderr)
            return 127
        except OSError as error:
            print_lines(f"stepprof run: {job[0]}: {error.strerror}", file=sys.stderr)
            return 126
        finally:
            if follower is not None:
                end_follower(follower)
        runs, off = announced(Path(file.name)), announced_off(Path(file.name))
    if switched_off(environ):
        off = ["$STEPPROF switches stepprof off"]
    if status:
        rest = "" if off else ", and no process with its environment on this machine had a session"
        off = [f"the job ended with {exit_of(status)}{rest}", *off]
    for line in outcome(folder, before, runs, began, off):
        print_lines(line, file=sys.stderr)
    return status if status >= 0 else end_like(-status)


def environment(args: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the job: the options and the switch of `stepprof.pth` as variables, and our folder first on the path."""
    job = dict(environ)
    for name, (variable, _) in OPTIONS.items():
        if (given := getattr(args, name)) is not None:
            job[variable] = given
    if not any(job.get(variable) for variable, _ in OPTIONS.values()):
        job["STEPPROF_OUTPUT_DIR"] = (
            OUTPUT_DIR  # nothing is selected: the job can still be asked with `stepprof trigger`
        )
    job["STEPPROF_AUTOLOAD"] = "1"
    folder = str(Path(bootstrap.__file__).parent)
    given = job.get("PYTHONPATH")  # "" has no entry; in "a:" and ":a" one is empty: the working directory
    rest = [each for each in given.split(os.pathsep) if each != folder] if given else []
    job["PYTHONPATH"] = os.pathsep.join([folder, *rest])
    return job


def check_options(args: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Refuse wrong values of options by the names of the options: the user typed no variable."""
    mistakes = Mistakes()
    for name, (variable, _) in OPTIONS.items():
        given = getattr(args, name)
        if not given or switched_off(environ):
            continue
        with mistakes.collected():
            try:
                load(given) if variable == CONFIG_VARIABLE else load(environ={variable: given})
            except ConfigError as error:
                problem = str(error) if variable == CONFIG_VARIABLE else error.problem
                raise ConfigError.at(f"--{name.replace('_', '-')}", given, problem) from error
    mistakes.report()


def start_follower(file: str, config: str) -> subprocess.Popen[bytes] | None:
    """Start `stepprof follow` for the runs that are announced in a file. It loads no module of the working
    directory. None: it cannot be started, and the job runs without it.
    """
    code = "import sys; from stepprof.cli.main import main; sys.exit(main())"
    try:
        return subprocess.Popen(  # noqa: S603 - this program
            own_python(code, "follow", "--announced", file, "--config", config),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the job; the follower ends after it
        )
    except OSError as error:
        print_lines(f"stepprof run: the follower cannot be started: {error.strerror}", file=sys.stderr)
        return None


def end_follower(follower: subprocess.Popen[bytes]) -> None:
    """Close the pipe to a follower: the job has ended. Wait for its end; Ctrl-C ends it at once."""
    assert follower.stdin is not None  # noqa: S101 - narrows a type; no input decides it
    follower.stdin.close()
    try:
        status = follower.wait()
    except KeyboardInterrupt:
        follower.send_signal(signal.SIGINT)
        status = follower.wait()
    if status:
        print_lines(
            f"stepprof run: the follower ended with exit status {status}; for what it left: stepprof follow RUN",
            file=sys.stderr,
        )


def wait(job: list[str], environ: Mapping[str, str]) -> int:
    """Run a command with the signals that this process gets, and return its exit status; negative: the signal that ended it.

    Raises:
        OSError: it cannot be started.
    """
    with held_back() as received:
        process = subprocess.Popen(job, env=environ, preexec_fn=received.restore)  # noqa: PLW1509, S603 - the user's own command; no thread runs here
        received.process = process
        return process.wait()


class Received:
    """Passes signals on to the job."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.before = {number: signal.getsignal(number) for number in FORWARDED}

    def forward(self, number: int, frame: FrameType | None) -> None:
        """Send a signal on, unless the terminal has sent it to the job as well."""
        if self.process is not None and not (number in (signal.SIGINT, signal.SIGQUIT) and in_foreground()):
            self.process.send_signal(number)

    def restore(self) -> None:
        """Handle signals as before, in this process or in the job."""
        for number, handler in self.before.items():
            signal.signal(number, handler)


@contextmanager
def held_back() -> Iterator[Received]:
    """Forward signals to the job inside the block."""
    received = Received()
    for number, handler in received.before.items():
        if handler is not signal.SIG_IGN:  # nohup
            signal.signal(number, received.forward)
    try:
        yield received
    finally:
        received.restore()


def in_foreground() -> bool:
    """Return whether this process belongs to the foreground of a terminal, which sends its signals to the job too."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def exit_of(status: int) -> str:
    """Return how a job ended, in words.

    >>> exit_of(1), exit_of(-9)
    ('exit status 1', 'SIGKILL')
    """
    names = {each.value: each.name for each in signal.Signals}
    return f"exit status {status}" if status > 0 else names.get(-status, f"signal {-status}")


def end_like(number: int) -> int:
    """End by the signal that ended the job, without a core file of our own; return the shell's status for it if that is not possible."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def recorded(runs: Iterable[Path]) -> dict[Path, dict[int, int]]:
    """Return the steps of each run, each with the time of its last change in Unix nanoseconds. No file is
    read: the runs may be many, and of other users.
    """
    return {run: {step: _changed(run, step) for step in steps(run)} for run in runs}


def _changed(run: Path, step: int) -> int:
    try:
        return (run / step_folder(step) / MANIFEST).stat().st_mtime_ns
    except OSError:  # nothing is recorded, or it was removed meanwhile
        return 0


def _new_occurrences(
    run: Path, before: Mapping[int, int], after: Mapping[int, int]
) -> Iterator[tuple[int, int]]:
    """Yield the step and occurrence of what was recorded; of a step that was recorded before, the last one."""
    for step in sorted(step for step in after if after[step] != before.get(step)):
        occurrences = sorted(each.occurrence for each in summarize_step(run, step))
        yield from ((step, occurrence) for occurrence in occurrences[-1 if step in before else 0 :])


def outcome(
    folder: Path,
    before: Mapping[Path, Mapping[int, int]],
    announced_runs: list[Path],
    began: float,
    off: Sequence[str] = (),
) -> Iterator[str]:
    """Yield lines about what the job has recorded, with the command that shows it.

    Args:
        folder: the folder of runs that the environment names.
        before: what its runs had before the job.
        announced_runs: the runs of the job's processes on this machine, wherever they are.
        began: when the job began, in Unix seconds.
        off: why there may be no run: how the job ended, or that its processes are off.
    """
    after = recorded(list_runs(folder))
    known = {resolved(run) for run in after}
    elsewhere = recorded(run for run in announced_runs if resolved(run) not in known and run.is_dir())
    earlier = {
        run: {step: changed for step, changed in seen.items() if changed < (began - 1) * 1e9}
        for run, seen in elsewhere.items()
    }
    after |= elsewhere
    runs = [run for run in after if run in elsewhere or after[run] != before.get(run)]
    before = {**before, **earlier}
    if not runs and off:
        yield quoted(f"stepprof: nothing was recorded: {'; '.join(off)}")
    elif not runs:
        yield f"stepprof: nothing was recorded in {folder}, and no process with the job's environment on this machine started a session in another folder"
        yield f"stepprof: `stepprof run` looks for {', '.join(FRAMEWORKS)}; stepprof doctor shows which of them it finds here"
        yield "stepprof: another loop calls stepprof.init() once, and has `with stepprof.profile_step(step):` around each step (docs/adopting.md)"
    for run in runs:
        new = list(_new_occurrences(run, before.get(run, {}), after[run]))
        for variable, value in ignored_in(run).items():
            yield quoted(
                f'stepprof: {option_of(variable)} "{value}" was ignored: the script passes its own configuration to stepprof.init; stepprof.init() without arguments reads the variables'
            )
        for name, adapter in sorted(adapters_of(run).items()):
            if adapter.get("status") != "attached":
                yield quoted(
                    f"stepprof: {name} {adapter.get('version', '')}: {adapter.get('status')}: {adapter.get('reason')}"
                )
        if not new:
            yield f"stepprof: no step was recorded in {run}; next: stepprof spans {shlex.quote(str(run))}"
        for step, occurrence in new:
            found = next(each for each in summarize_step(run, step) if each.occurrence == occurrence)
            counts = ", ".join(f"{count} {status}" for status, count in sorted(found.statuses.items()))
            yield f"stepprof: step {step} is recorded ({counts}); next: stepprof report {shlex.quote(str(run))} --step {step}"


def ignored_in(run: Path) -> dict[str, str]:
    """Return the variables that the configuration of the run's script contradicts, with their values."""
    found = read_run(run).get("ignored_variables")
    stated = found if isinstance(found, dict) else {}
    return {name: text for name, _ in OPTIONS.values() if isinstance(text := stated.get(name), str)}


def option_of(variable: str) -> str:
    """Return the option that sets a variable, and the variable."""
    option = next(name for name, (known, _) in OPTIONS.items() if known == variable)
    return f"--{option.replace('_', '-')} (${variable})"


def adapters_of(run: Path) -> Mapping[str, Mapping[str, str]]:
    """Return the status of the adapters in the run; {} if it has none."""
    found = read_run(run).get("adapters")
    stated = found.items() if isinstance(found, dict) else ()
    return {name: adapter for name, adapter in stated if isinstance(adapter, dict)}

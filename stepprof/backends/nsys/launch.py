"""Build the nsys command line that turns each window into a report, for the driver and for Ray's
workers.

The number of windows matters: with ``repeat:N`` nsys keeps every report back until the last range,
unless it can write them one by one (``:async``, in newer versions). So N is computed from the
configuration if possible; otherwise nsys repeats without limit. The help text of the installed nsys
shows what it supports.

``repeat-shutdown:N`` is never used. Its nsys writes reports no earlier, but exits with success
after the last one while the job goes on (2025.3.1), so that its parent considers the job finished.
Its last stop also takes twice as long.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepprof.backends.nsys.process import VARIABLE
from stepprof.config.config import Config, WatchOptions, load
from stepprof.config.options.nsys import ANY, NsysOptions
from stepprof.config.policy import Policy
from stepprof.errors import ConfigError
from stepprof.interrupts import ours
from stepprof.log import logger

HELP_SECONDS = 30.0
_SHELL = re.compile(r"[A-Za-z0-9._/@+=%:-]+", re.ASCII)
_CHARS = "letters, digits and ._/@+=%:-"


def nsys_command(
    config: Config | Mapping[str, object] | str | os.PathLike[str] | None = None,
    *,
    command: Sequence[str] = (),
    roles: Sequence[str] = (),
    rank: int | None = None,
    engine: bool = False,
    windows: int | str | None = None,
    output: str | os.PathLike[str] | None = None,
    nsys: str = "nsys",
) -> list[str]:
    """Return the command line that starts a process under nsys, so that each of its windows becomes a report in its step's folder.

    Args:
        config: the argument of `stepprof.init` in that process.
        command: the command to run. Empty: return only what to put before a command.
        roles: the roles of the windows that the process enters one after another in each step. Empty: one window around the step.
        rank: its global rank. For a rank that records nothing the command is returned unchanged.
        engine: the process serves an engine that another process attaches: its windows are those of ``roles``, whatever a rank captures of them.
        windows: the number of windows in the whole run, if it cannot be computed from the configuration; "any": not known.
        output: the reports' path before they are moved, without an extension; %p and %h are the process id and the host.
        nsys: the executable.

    >>> nsys_command({"steps": "2, 4", "backend": "nsys"}, nsys="/nowhere/nsys", output="/tmp/a_%p")[:3]
    ['/nowhere/nsys', 'profile', '--trace=cuda,nvtx']
    """
    settled, options = _settle(config, roles, rank, engine=engine)
    if settled is None:
        return [*command]
    if output is None:
        folder = Path(options.report_dir or Path(settled.output_dir) / "nsys").absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except ours(OSError) as error:
            raise ConfigError.at("output_dir", str(folder), f"cannot be made: {error.strerror}") from error
        output = folder / f"{'' if rank is None else f'rank-{rank}_'}%h_%p"
    path = _plain(str(Path(output).absolute()), "output")
    number = _windows(settled, options, windows, roles, rank, engine=engine)
    found, variable = _profile(options, number, path, nsys)
    arguments = [f"--{name}={value}" for name, value in found.items()]
    return [nsys, "profile", *arguments, f"--env-var={VARIABLE}={variable}", *command]


def ray_runtime_env(
    config: Config | Mapping[str, object] | str | os.PathLike[str] | None = None,
    *,
    roles: Sequence[str] = (),
    rank: int | None = None,
    engine: bool = False,
    windows: int | str | None = None,
    name: str = "stepprof",
    nsys: str = "nsys",
) -> dict[str, Any]:
    """Return the runtime environment of a Ray actor whose windows become reports. It takes effect when the actor is created; a live actor cannot be put under nsys.

    Ray runs ``nsys`` and ``python`` from the PATH of the actor's node and writes the reports below its session, from where they are moved.

    Args:
        config, roles, rank, engine, windows: as for `nsys_command`; an actor without a selected rank gets an empty environment.
        name: the name of its reports before they are moved.
        nsys: the executable here, which is asked for its options; on its nodes Ray runs its own nsys.

    >>> env = ray_runtime_env({"steps": "2, 4", "backend": "nsys"}, nsys="/nowhere/nsys")
    >>> env["_nsight"]["capture-range-end"]
    'repeat:2'
    """
    settled, options = _settle(config, roles, rank, engine=engine)
    if settled is None:
        return {}
    prefix = _plain(name, "name") + ("" if rank is None else f"_rank-{rank}")
    number = _windows(settled, options, windows, roles, rank, engine=engine)
    found, variable = _profile(options, number, f"{prefix}_%p", nsys)
    found["o"] = found.pop("output")
    return {"_nsight": found, "env_vars": {VARIABLE: variable}}


def count_windows(
    config: Config, roles: Sequence[str] = (), rank: int | None = None, *, engine: bool = False
) -> int | None:
    """Return how many captures a process makes in the whole run; None if it cannot be computed.
    Arguments as for `nsys_command`.

    >>> count_windows(Config(steps="2, 10-12", backend="nsys"))
    4
    >>> count_windows(Config(steps="2, 10-12", backend="nsys", join_steps=True))
    2
    >>> count_windows(Config(steps="every 100", backend="nsys")) is None
    True
    """
    total = 0
    base = config.policy(None)
    if engine:
        pass  # a capture for each window, regardless of what a rank captures
    elif base.join_steps:
        roles = roles[:1]
    elif base.capture_per == "role" and not roles:
        return None
    for role in roles or (None,):
        policy = config.policy(role)
        number = _of_engine(policy) if engine else _captures(policy, rank)
        if number is None:
            return None
        total += number
    watch = config.watch
    unforeseen = isinstance(watch, WatchOptions) and watch.enabled and watch.max_captures > 0
    return None if unforeseen else total


def _captures(policy: Policy, rank: int | None) -> int | None:
    if (
        policy.steps.is_none
        or "nsys" not in policy.backend
        or (rank is not None and rank not in policy.ranks)
    ):
        return 0
    if policy.steps.all or policy.steps.periods or policy.capture_per == "region":
        return None
    if policy.join_steps:
        return len(policy.steps.intervals)
    return _steps(policy) * (1 if policy.schedule is None else policy.schedule.repeat)


def _of_engine(policy: Policy) -> int | None:
    if policy.steps.is_none or "nsys" not in _backends(policy, engine=True):
        return 0
    return None if policy.steps.all or policy.steps.periods else _steps(policy)


def _steps(policy: Policy) -> int:
    return sum(last - first + 1 for first, last in policy.steps.intervals)


def _backends(policy: Policy, *, engine: bool) -> Sequence[str]:
    return (policy.engine.backend or ()) if engine else policy.backend


def _settle(
    config: Any, roles: Sequence[str], rank: int | None, *, engine: bool
) -> tuple[Config | None, NsysOptions]:
    """Return the configuration and the applicable options, if nsys records anything of this process."""
    settled = load(config)
    if engine and not roles:
        raise ConfigError.at("roles", (), 'an engine follows the windows of roles; such as ["rollout"]')
    policies = [settled.policy(role) for role in roles or (None,)]
    recording = [policy for policy in policies if "nsys" in _backends(policy, engine=engine)]
    mine = [policy for policy in recording if (rank is None or rank in policy.ranks) and policy.enabled]
    if not mine and recording:
        return None, policies[0].nsys
    if not mine:
        raise ConfigError.at(
            "backend",
            "+".join(policies[0].backend),
            'this process records nothing with nsys; did you mean "nsys"?',
        )
    return settled, mine[0].nsys


def _windows(
    config: Config,
    options: NsysOptions,
    given: int | str | None,
    roles: Sequence[str],
    rank: int | None,
    *,
    engine: bool,
) -> int | None:
    """Return the number of windows: as given, as configured, or as computed; None if unknown."""
    if isinstance(given, bool) or not (
        given is None or given == ANY or (isinstance(given, int) and given > 0)
    ):
        raise ConfigError.at("windows", given, f'expected a number of windows, or "{ANY}"; did you mean 1?')
    wanted = options.windows if given is None else given
    if wanted is None:
        return count_windows(config, roles, rank, engine=engine)
    return None if wanted == ANY else int(wanted)


def _profile(options: NsysOptions, number: int | None, output: str, nsys: str) -> tuple[dict[str, str], str]:
    """Return the options of ``nsys profile``, and what the process must know about them."""
    text = profile_help(nsys)
    one_by_one = writes_one_by_one(text)
    mode = "async" if one_by_one else "defer" if number is not None else "unknown"
    end = "repeat" if number is None else f"repeat:{number}"
    found = {
        "trace": ",".join(options.trace),
        "output": output,
        "force-overwrite": "true",
        "capture-range": "cudaProfilerApi",
        "capture-range-end": f"{end}:async" if one_by_one else end,
        "kill": "none",
        "cuda-graph-trace": options.cuda_graph_trace,
        "cuda-memory-usage": str(options.cuda_memory_usage).lower(),
    }
    if not options.sample:
        found |= {"sample": "none", "cpuctxsw": "none"}
    if options.domains is not None:
        found["nvtx-domain-include"] = ",".join(options.domains)
    reported = [
        f"output={output.replace('%p', '{pid}').replace('%h', '{host}')}",
        f"ranges={number or ANY}",
        f"mode={mode}",
    ]
    if not options.keep_environment and discards_environment(text):
        found["discard-environment"] = "true"
        reported.append("environment=left-out")
    return {**found, **options.extra}, ";".join(reported)


def writes_one_by_one(text: str) -> bool:
    """Return whether this nsys, by its help, can write each report when its range has ended."""
    return "[:mode]" in text


def discards_environment(text: str) -> bool:
    """Return whether this nsys, by its help, can leave the environment out of its reports."""
    return "--discard-environment" in text


@functools.lru_cache(maxsize=8)
def profile_help(nsys: str) -> str:
    """Return the output of ``nsys profile --help`` on this machine; empty without nsys."""
    found = shutil.which(nsys)
    if found is None:
        logger.warning("nsys.not_found", nsys=nsys, reason="only options that every version knows are used")
        return ""
    try:
        done = answer(found, "profile", "--help", seconds=HELP_SECONDS)
    except ours(OSError, subprocess.SubprocessError) as error:
        logger.warning("nsys.options_unknown", nsys=found, reason=str(error))
        return ""
    return done.stdout + done.stderr


def answer(nsys: str, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run nsys for at most some seconds. Raises OSError and SubprocessError."""
    return subprocess.run(  # noqa: S603 - the nsys of PATH, with fixed arguments
        [nsys, *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def _plain(text: str, key: str) -> str:
    """Return a name that no shell and no list of variables would misread."""
    if not _SHELL.fullmatch(text):
        raise ConfigError.at(key, text, f"nsys or a shell would misread it: only {_CHARS}")
    return text

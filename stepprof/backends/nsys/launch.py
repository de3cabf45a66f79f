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
    found = _settle(config, roles, rank, windows, engine=engine)
    if found is None:
        return [*command]
    settled, options, number = found
    if output is None:
        folder = Path(options.report_dir or Path(settled.output_dir) / "nsys").absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except ours(OSError) as error:
            raise ConfigError.at("output_dir", str(folder), f"cannot be made: {error.strerror}") from error
        output = folder / f"{'' if rank is None else f'rank-{rank}_'}%h_%p"
    path = _plain(str(Path(output).absolute()), "output")
    arguments, variable = _profile(options, number, path, nsys)
    arguments["env-var"] = f"{VARIABLE}={variable}"
    return [nsys, "profile", *(f"--{name}={value}" for name, value in arguments.items()), *command]


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
    found = _settle(config, roles, rank, windows, engine=engine)
    if found is None:
        return {}
    _, options, number = found
    prefix = _plain(name, "name") + ("" if rank is None else f"_rank-{rank}")
    arguments, variable = _profile(options, number, f"{prefix}_%p", nsys)
    arguments["o"] = arguments.pop("output")
    return {"_nsight": arguments, "env_vars": {VARIABLE: variable}}


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
    watch = config.watch
    if isinstance(watch, WatchOptions) and watch.enabled and watch.max_captures > 0:
        return None
    base = config.policy(None)
    if base.join_steps and not engine:
        roles = roles[:1]
    elif base.capture_per == "role" and not engine and not roles:
        return None
    total = 0
    for role in roles or (None,):
        number = _captures(config.policy(role), rank, engine=engine)
        if number is None:
            return None
        total += number
    return total


def _captures(policy: Policy, rank: int | None, *, engine: bool) -> int | None:
    """Return the captures of one role; of an engine, its windows: it records regardless of what a rank captures."""
    steps = policy.steps
    if steps.is_none or "nsys" not in _backends(policy, engine=engine):
        return 0
    if not engine and rank is not None and rank not in policy.ranks:
        return 0
    if steps.all or steps.periods:
        return None
    number = sum(last - first + 1 for first, last in steps.intervals)
    if engine:
        return number
    if policy.capture_per == "region":
        return None
    if policy.join_steps:
        return len(steps.intervals)
    return number * (1 if policy.schedule is None else policy.schedule.repeat)


def _backends(policy: Policy, *, engine: bool) -> Sequence[str]:
    return (policy.engine.backend or ()) if engine else policy.backend


def _settle(
    config: Any, roles: Sequence[str], rank: int | None, windows: int | str | None, *, engine: bool
) -> tuple[Config, NsysOptions, int | None] | None:
    """Return the configuration, the applicable options and the number of windows; None if this rank records nothing."""
    settled = load(config)
    if engine and not roles:
        raise ConfigError.at("roles", (), 'an engine follows the windows of roles; such as ["rollout"]')
    policies = [settled.policy(role) for role in roles or (None,)]
    recording = [policy for policy in policies if "nsys" in _backends(policy, engine=engine)]
    if not recording:
        value = "+".join(policies[0].backend)
        raise ConfigError.at("backend", value, 'this process records nothing with nsys; did you mean "nsys"?')
    for policy in recording:
        if policy.enabled and (rank is None or rank in policy.ranks):
            counted = count_windows(settled, roles, rank, engine=engine)
            return settled, policy.nsys, _windows(windows, policy.nsys, counted)
    return None


def _windows(given: int | str | None, options: NsysOptions, counted: int | None) -> int | None:
    """Return the number of windows: as given, as configured, or as counted; None if unknown."""
    is_number = isinstance(given, int) and not isinstance(given, bool) and given > 0
    if given is not None and given != ANY and not is_number:
        raise ConfigError.at("windows", given, f'expected a number of windows, or "{ANY}"; did you mean 1?')
    wanted = options.windows if given is None else given
    if wanted is None:
        return counted
    return None if wanted == ANY else int(wanted)


def _profile(options: NsysOptions, number: int | None, output: str, nsys: str) -> tuple[dict[str, str], str]:
    """Return the options of ``nsys profile``, and what the process must know about them."""
    text = profile_help(nsys)
    end = "repeat" if number is None else f"repeat:{number}"
    found = {
        "trace": ",".join(options.trace),
        "output": output,
        "force-overwrite": "true",
        "capture-range": "cudaProfilerApi",
        "capture-range-end": end,
        "kill": "none",
        "cuda-graph-trace": "graph",
    }
    reported = {
        "output": output.replace("%p", "{pid}").replace("%h", "{host}"),
        "ranges": str(number or ANY),
        "mode": "unknown" if number is None else "defer",
    }
    if writes_one_by_one(text):
        found["capture-range-end"] += ":async"
        reported["mode"] = "async"
    if not options.sample:
        found |= {"sample": "none", "cpuctxsw": "none"}
    if options.domains is not None:
        found["nvtx-domain-include"] = ",".join(options.domains)
    if not options.keep_environment and discards_environment(text):
        found["discard-environment"] = "true"
        reported["environment"] = "left-out"
    variable = ";".join(f"{key}={value}" for key, value in reported.items())
    return {**found, **options.extra}, variable


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

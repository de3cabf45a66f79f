"""Request a recording of a running job: choose a step that every rank can still reach, and write the
request.

`stepprof.trigger` and the command `stepprof trigger` share this module. Ranks are at different steps,
and their published status is some seconds old. So "next" is a step that no rank will have begun
before it has seen the request.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepprof.config.config import Config
from stepprof.config.validators import nearest
from stepprof.errors import ConfigError
from stepprof.formatting import ranges
from stepprof.host import real_time
from stepprof.host.own_files import own_uid
from stepprof.instrument.context import cell
from stepprof.run.reachable_steps import reachable_step
from stepprof.run.requests import Request, place_request
from stepprof.run.runs import is_folder
from stepprof.run.status import LIVE, read_statuses

NEXT = "next"


def trigger(
    run: str | Path | None = None,
    *,
    step: int | str = NEXT,
    count: int = 1,
    role: str | None = None,
    ranks: int | str | Sequence[int | str] | None = None,
    backend: str | Sequence[str] | None = None,
    **options: Any,
) -> Request:
    """Ask a running job to record a step, without restarting it.

    Returns at once. The ranks see the request within two seconds; ranks that are past its step say so in their status. Inside
    the job itself, call it on one rank for all.

    Args:
        run: the run directory. None: that of the session of this process.
        step: its number, or "next": the next step that every rank can still reach.
        count: how many consecutive steps.
        role: windows of this role only. None: of every role.
        ranks: which ranks record, as in the configuration. None: those of the configuration.
        backend: the backend. None: the configured one.
        options: any other key of a role's table: ``max_seconds=30``, ``torch={"with_stack": True}``.

    Returns:
        The request. Its ``name`` withdraws it; its ``step`` is the chosen number.

    Raises:
        ConfigError: a key or value is wrong, every rank is past that step, or no rank is running.
        OSError: the run directory is not writable.
    """
    session = cell.session
    if run is not None:
        path = Path(run)
    elif session is not None and session.path is not None:
        path = session.path
    else:
        raise ConfigError.at("run", None, "there is no session in this process; name the run's folder")
    return ask(path, step, count=count, role=role, ranks=ranks, backend=backend, **options)


def ask(path: Path, step: int | str, /, *, count: int, role: str | None, **changes: Any) -> Request:
    """Check a request against the run, and place it. Raise ConfigError and OSError."""
    if isinstance(step, str) and step != NEXT:
        raise ConfigError.at("step", step, f'expected a number or "{NEXT}"{nearest(step, [NEXT])}')
    number = 0 if isinstance(step, str) else step
    drafted = Request.make(number, count=count, role=role, **changes)
    if not is_folder(path):
        raise ConfigError.at("run", str(path), "no such folder")
    statuses = [status for status in read_statuses(path) if status["condition"] != "damaged"]
    living = [status for status in statuses if status["condition"] in (LIVE, "stale")]
    if not living and (statuses or step == NEXT):
        what = (
            "the run has ended: it has no live process"
            if statuses
            else "no rank has published its step; name the step, or see `stepprof status`"
        )
        raise ConfigError.at("run", path.name, what)
    _check_user(path, living)
    _check_against(path, drafted, living)
    if step == NEXT:
        drafted = Request.make(reachable_step(living), count=count, role=role, **changes)
    else:
        begun = max((status["step"] for status in living if status["step"] is not None), default=-1)
        if number <= begun:
            reachable = reachable_step(living)
            raise ConfigError.at(
                "step", number, f"rank {_rank_at(living, begun)} is at step {begun} already; the nearest that every rank can still reach is {reachable}"
            )  # fmt: skip
    place_request(path, drafted)
    return drafted


def answers(path: Path, name: str) -> dict[str, list[dict[str, Any]]]:
    """Return the answers of the live processes to a request, by outcome; "unseen" if there is none
    yet.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for status in read_statuses(path):
        seen = status["requests"].get(name)
        if seen is not None:
            found.setdefault(str(seen["outcome"]), []).append({"rank": status["rank"], **seen})
        elif status["condition"] == LIVE:
            found.setdefault("unseen", []).append({"rank": status["rank"], "reason": None})
    return found


def wait_for_answers(path: Path, name: str, seconds: float) -> dict[str, list[dict[str, Any]]]:
    """Return `answers` once every live process has answered, or after `seconds`."""
    deadline = real_time.monotonic() + seconds
    while True:
        found = answers(path, name)
        if (found and "unseen" not in found) or real_time.monotonic() >= deadline:
            return found
        time.sleep(0.1)


def _check_user(path: Path, statuses: Sequence[Mapping[str, Any]]) -> None:
    """Refuse another user's request, as the ranks would: its folder would be closed to the job."""
    users = {status["uid"] for status in statuses if status["uid"] is not None}
    if hasattr(os, "getuid") and users and os.getuid() not in users:
        uid = own_uid(path)
        if uid not in users:
            whose = " or ".join(str(user) for user in sorted(users))
            raise ConfigError.at(
                "run",
                path.name,
                f"only user {whose}, the owner of the job, may make requests; you are user {uid}",
            )


def _check_against(path: Path, request: Request, statuses: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a request that no rank of this run could fulfil."""
    from stepprof.run.runs import read_run  # not loaded into a job that never requests

    content = read_run(path)
    world = next((s["world_size"] for s in statuses if s["world_size"]), content.get("world_size"))
    engines = [engine for status in statuses for engine in status["engines"].values()]
    begun = {role for status in statuses for role in (*(status["roles"] or ()), status["role"]) if role}
    begun |= {role for engine in engines for role in (engine["roles"] or "").split(",") if role}
    try:
        known = Config.from_mapping(content.get("config"))
    except ConfigError:
        known = Config()  # damaged, or of another version of stepprof: the ranks check the request themselves
    roles = begun | set(known.roles)
    # before the first step no role is known, and a status is up to an interval old
    begun_steps = any(status["step"] is not None for status in statuses)
    if request.role is not None and (roles or begun_steps) and request.role not in roles:
        others = nearest(request.role, sorted(roles)) if roles else ", nor of any other one; leave role out"
        raise ConfigError.at("role", request.role, f"no window of this role has begun{others}")
    if not engines:  # the ranks of an engine's role are those of its replicas
        _check_ranks_of_role(request, statuses)
    for role in (None, request.role, *known.roles):
        if request.concerns(role):
            request.policy(known.policy(role))
    if request.ranks is not None and isinstance(world, int) and (request.role is None or not engines):
        request.ranks.check(world)


def _check_ranks_of_role(request: Request, statuses: Sequence[Mapping[str, Any]]) -> None:
    """Refuse ranks that had windows, but none of the requested role, if another rank had one.

    Windows of a driver count for the ranks that it leads, which then have no roles of their own.
    """
    if request.role is None or request.ranks is None:
        return
    roles: dict[Any, set[str]] = {}
    for status in statuses:  # several processes may have one rank
        roles.setdefault(status["rank"], set()).update({*(status["roles"] or ()), status["role"]} - {None})
    having = [rank for rank, of in roles.items() if request.role in of]
    asked = [of for rank, of in roles.items() if rank in request.ranks]
    is_elsewhere = having and asked and all(of and request.role not in of for of in asked)
    if is_elsewhere and all(isinstance(rank, int) for rank in having):
        where = f"it has in rank{'s' * (len(having) > 1)} {ranges(having)}"
        problem = f"no window of role {request.role} has begun there; {where}"
        raise ConfigError.at("ranks", str(request.ranks), problem)


def _rank_at(statuses: Sequence[Mapping[str, Any]], step: int) -> Any:
    return next(status["rank"] for status in statuses if status["step"] == step)

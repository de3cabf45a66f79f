"""Requests for a recording while a job runs, and their files in the run directory.

    <run>/requests/<name>.json           one request, readable by its user alone, never changed
    <run>/requests/<name>.withdrawn      the request is withdrawn

The process that makes a request checks it like a configuration, and each session that reads it
checks it again. A damaged file, or one of another user, is logged and ignored.
"""

from __future__ import annotations

import errno
import getpass
import json
import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepprof.config.policy import Policy, RolePolicy, arguments, resolve
from stepprof.config.selection import Ranks, Steps
from stepprof.config.validators import keys_of, made_of, nearest, role_name, under, whole
from stepprof.errors import ConfigError
from stepprof.host import real_time
from stepprof.host.atomic_files import write_exclusively
from stepprof.host.own_files import foreign_folder, read_own
from stepprof.host.plain_json import parse_json
from stepprof.instrument.scope import LARGEST_STEP
from stepprof.interrupts import ours
from stepprof.run.layout import REQUESTS

WITHDRAWN = ".withdrawn"

MAX_COUNT = 10_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_FIXED = ("enabled", "steps")


@dataclass(frozen=True, slots=True)
class Request:
    """Record these steps. Everything else is as configured, except for the ``changes``.

    >>> request = Request.make(7, count=2, role="actor", ranks="all", max_seconds=30)
    >>> str(request.steps), request.concerns("actor"), request.concerns("rollout")
    ('7-8', True, False)
    >>> Request.make(7, rank=0)
    Traceback (most recent call last):
      ...
    stepprof.errors.ConfigError: rank = 0: unknown key; did you mean "ranks"?
    """

    name: str
    step: int
    count: int = 1
    role: str | None = None
    """None: windows of every role, and those without one."""
    changes: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Changes to the configuration: keys of a role's table, as written."""
    reason: str = "trigger"
    """The reason for the request, for the log and for readers of the run."""
    made_unix_ns: int = 0
    by: str = ""
    """The requester, for readers. The owner of the file decides."""
    _laid: RolePolicy = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every field; raise ConfigError."""
        if not _is_name(self.name):
            raise ConfigError.at("name", self.name, 'not fit for a file name; did you mean "request-1"?')
        whole(0)(self.step, "step")
        whole(1)(self.count, "count")
        for key, value, most in (("step", self.step, LARGEST_STEP), ("count", self.count, MAX_COUNT)):
            if value > most:
                raise ConfigError.at(key, value, f"too large; did you mean {most}?")
        if self.role is not None:
            role_name(self.role)
        for key in self.changes:
            if key in _FIXED or (
                key not in keys_of(RolePolicy) and not isinstance(self.changes[key], Mapping)
            ):
                valid = [name for name in keys_of(RolePolicy) if name not in _FIXED]
                raise ConfigError.at(str(key), self.changes[key], f"unknown key{nearest(key, valid)}")
        object.__setattr__(self, "_laid", made_of(RolePolicy, *arguments(RolePolicy, self.changes)))

    @classmethod
    def make(
        cls,
        /,
        step: int,
        *,
        count: int = 1,
        role: str | None = None,
        reason: str = "trigger",
        **changes: object,
    ) -> Request:
        """Return a new request with a unique name; a change that is None is ignored. Raise ConfigError."""
        return cls(
            name=f"step-{step}-{secrets.token_hex(6)}",
            step=step,
            count=count,
            role=role,
            changes={key: value for key, value in changes.items() if value is not None},
            reason=reason,
            made_unix_ns=real_time.time_ns(),
            by=f"{_user()}@{socket.gethostname()}:{os.getpid()}",
        )

    @classmethod
    def read(cls, table: object) -> Request:
        """Return the request of a mapping that `to_dict` made. Raise ConfigError."""
        if not isinstance(table, Mapping):
            raise ConfigError.at("request", table, "expected an object")
        known = {key: value for key, value in table.items() if key != "schema_version"}
        texts = ("reason", "by")
        for key, value in known.items():
            if key not in keys_of(cls):
                raise ConfigError.at(str(key), value, f"unknown key{nearest(key, keys_of(cls))}")
            if key in texts and not isinstance(value, str):
                raise ConfigError.at(key, value, "expected a string")
        for key in ("name", "step"):
            if key not in known:
                raise ConfigError.at(key, None, "missing in the request")
        whole(0)(known.get("made_unix_ns", 0), "made_unix_ns")
        if not isinstance(known.get("changes", {}), Mapping):
            raise ConfigError.at("changes", known["changes"], "expected an object of the changed keys")
        return cls(**known)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-able data."""
        fields = {key: getattr(self, key) for key in keys_of(Request)}
        return {"schema_version": 1, **fields, "changes": dict(self.changes)}

    @property
    def last_step(self) -> int:
        """Return the last requested step."""
        return self.step + self.count - 1

    @property
    def steps(self) -> Steps:
        """Return the requested steps."""
        return Steps(((self.step, self.last_step),))

    @property
    def ranks(self) -> Ranks | None:
        """Return the requested ranks; None: the configured ones."""
        return self._laid.ranks if isinstance(self._laid.ranks, Ranks) else None

    def concerns(self, role: str | None) -> bool:
        """Return whether windows of this role are requested."""
        return self.role is None or self.role == role

    def policy(self, base: Policy) -> Policy:
        """Return the policy of the requested steps, by the configured one. Raise ConfigError for a conflict."""
        with under(f"request {self.name}"):
            policy = resolve(base, self._laid)
        return replace(policy, steps=self.steps) if policy.enabled else policy


def place_request(run: Path, request: Request) -> Path:
    """Write a request into the run directory, readable by its user alone. Raise OSError.

    A link, or the folder of another user, is refused.
    """
    folder = run / REQUESTS
    folder.mkdir(mode=0o700, exist_ok=True)
    reason = "it is a link" if folder.is_symlink() else foreign_folder(folder)
    if reason is not None:
        raise PermissionError(errno.EACCES, reason, str(folder))
    path = folder / f"{request.name}.json"
    if not write_exclusively(path, json.dumps(request.to_dict(), indent=1).encode(), mode=0o600):
        raise FileExistsError(f"{path} exists")
    return path


def withdraw_request(run: Path, name: str) -> bool:
    """Withdraw a request. Return False if it was already. Raise ConfigError if it is unknown, or OSError."""
    folder = run / REQUESTS
    if not _is_name(name) or not (folder / f"{name}.json").is_file():
        known = sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []
        raise ConfigError.at(
            "withdraw", name, f"no such request in {run}{nearest(name, known) if known else ''}"
        )
    return write_exclusively(folder / f"{name}{WITHDRAWN}", b"", mode=0o600)


def read_request(path: Path, uid: int | None) -> Request:
    """Return the request in a file of this user.

    Args:
        path: the file.
        uid: the required owner; None on systems without users.

    Raises:
        ConfigError: it belongs to another user, is too long, or is invalid.
        OSError: it is no plain file, or cannot be read.
    """
    data = read_own(path, uid)
    try:
        table = parse_json(data)
    except ours(ValueError) as error:
        raise ConfigError(f"{path.name}: not JSON: {error}") from None
    request = Request.read(table)
    if request.name != path.stem:
        raise ConfigError.at("name", request.name, f'must be that of its file, "{path.stem}"')
    return request


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _user() -> str:
    try:
        return getpass.getuser()
    except ours(OSError, KeyError, ImportError):  # a container without a name for its user
        return "unknown"

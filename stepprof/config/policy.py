"""Resolve the policy of one role: the differences of the role, applied to the base configuration.

`RolePolicy` is the user's input; in a `Policy` every value is set. `resolve` makes a `Policy` of it and
checks the combination.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from stepprof.config.options.engine import ENGINE_BACKENDS, EngineOptions
from stepprof.config.options.memory import MemoryOptions
from stepprof.config.options.npu import NpuOptions
from stepprof.config.options.nsys import NsysOptions
from stepprof.config.options.schedule import Schedule
from stepprof.config.options.torch import TorchOptions
from stepprof.config.plugins import backend_names, check_backends
from stepprof.config.selection import Ranks, Steps
from stepprof.config.validators import (
    NO_LIMIT,
    MemoryFloor,
    Mistakes,
    byte_size,
    checked,
    choice,
    keys_of,
    limit,
    memory_floor,
    read_table,
    seconds,
    settle,
    split_keys,
    texts,
    under,
)
from stepprof.errors import ConfigError

TABLES: dict[str, type[Any]] = {
    "torch": TorchOptions,
    "npu": NpuOptions,
    "nsys": NsysOptions,
    "memory": MemoryOptions,
    "engine": EngineOptions,
}
"""The tables of options that a role inherits key by key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The resolved configuration of one role, with every value set. Made by `Config.policy`."""

    enabled: bool
    steps: Steps
    ranks: Ranks
    backend: tuple[str, ...]
    capture_per: str
    regions: tuple[str, ...]
    join_steps: bool
    schedule: Schedule | None
    max_seconds: float | None
    max_bytes: int | None
    min_free_memory: MemoryFloor
    export: str
    engine_start_timeout_seconds: float
    engine_stop_timeout_seconds: float
    torch: TorchOptions
    npu: NpuOptions
    nsys: NsysOptions
    memory: MemoryOptions
    engine: EngineOptions
    plugins: Mapping[str, Mapping[str, object]] = field(hash=False)

    def options(self, backend: str) -> Any:
        """Return the options of `backend`: its dataclass, or the table as written for a plug-in
        backend.
        """
        return getattr(self, backend) if backend in TABLES else self.plugins.get(backend, {})

    def changed_options(self) -> dict[str, Any]:
        """Return the options of the backends and the schedule that are not the defaults, for the manifest."""
        found = {name: changed_from_default(self.options(name)) for name in self.backend}
        if self.schedule is not None:
            found["schedule"] = asdict(self.schedule)
        return {name: table for name, table in found.items() if table}


def changed_from_default(table: Any) -> dict[str, Any]:
    """Return the options of a table that are not the defaults; of a plug-in backend, all.

    >>> changed_from_default(TorchOptions(with_stack=True, activities=["cpu"]))
    {'activities': ['cpu'], 'with_stack': True}
    """
    if isinstance(table, Mapping):
        return dict(table)
    values = {each.name: getattr(table, each.name) for each in fields(table)}
    default = type(table)()
    return {
        name: list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
        for name, value in values.items()
        if value != getattr(default, name)
    }


def items(mapping: object, key: str) -> list[tuple[str, object]]:
    """Return the named tables at `key`; refuse a value that is not a mapping."""
    if not isinstance(mapping, Mapping):
        raise ConfigError.at(key, mapping, f"expected tables, such as [{key}.name]")
    return [(str(name), value) for name, value in mapping.items()]


def _schedule(value: object, key: str) -> object:
    return value if isinstance(value, Schedule) or value == NO_LIMIT else read_table(Schedule, value, key)


def _regions(value: object, key: str) -> tuple[str, ...]:
    return () if value in ((), []) else texts(value, key)


def _plugin_tables(value: object, key: str) -> dict[str, dict[str, object]]:
    tables: dict[str, dict[str, object]] = {}
    for name, table in items(value, key):
        if not isinstance(table, Mapping):
            raise ConfigError.at(f"{key}.{name}", table, "expected a table of options")
        tables[name] = dict(table)
    return tables


@dataclass(frozen=True, kw_only=True, slots=True)
class RolePolicy:
    """The keys that differ for one role; None inherits from the `Config`, which describes them.

    A mapping as a table of options changes single options of the inherited table. An options object
    replaces the table.

    >>> RolePolicy(ranks="all", engine={"max_iterations": 32}).ranks
    Ranks(intervals=(), all=True)
    """

    enabled: bool | None = None
    """False: nothing of the role is recorded."""
    steps: Steps | str | int | Sequence[int | str] | None = checked(None, Steps.parse)
    ranks: Ranks | str | int | Sequence[int | str] | None = checked(None, Ranks.parse)
    """The global ranks that record this role; for an engine's role: the replicas that own them."""
    backend: str | Sequence[str] | None = checked(None, check_backends)
    capture_per: str | None = checked(None, choice("step", "role", "region"))
    regions: Sequence[str] | None = checked(None, _regions)
    join_steps: bool | None = None
    schedule: Schedule | Mapping[str, object] | str | None = checked(None, _schedule)
    """A role's "none" is the whole window."""
    max_seconds: float | str | None = checked(None, limit(seconds))
    max_bytes: int | str | None = checked(None, limit(byte_size))
    min_free_memory: MemoryFloor | str | int | None = checked(None, memory_floor)
    export: str | None = checked(None, choice("auto", "inline", "fork", "thread"))
    engine_start_timeout_seconds: float | None = checked(None, seconds)
    engine_stop_timeout_seconds: float | None = checked(None, seconds)
    torch: TorchOptions | Mapping[str, object] | None = None
    npu: NpuOptions | Mapping[str, object] | None = None
    nsys: NsysOptions | Mapping[str, object] | None = None
    memory: MemoryOptions | Mapping[str, object] | None = None
    engine: EngineOptions | Mapping[str, object] | None = None
    """Options of this role's engines. A role with this table is an engine's: its ranks are checked
    against the attached engines.
    """
    plugins: Mapping[str, Mapping[str, object]] | None = checked(None, _plugin_tables)

    def __post_init__(self) -> None:
        """Check every given field."""
        mistakes = Mistakes()
        with mistakes.collected():
            settle(self)
        for name, table in TABLES.items():
            given = getattr(self, name)
            if given is not None and not isinstance(given, table):
                with mistakes.collected(), under(name):
                    present, wrong = split_keys(table, given)
                    Mistakes(wrong).report()
                    object.__setattr__(self, name, present)
        mistakes.report()


def resolve(base: Any, role: RolePolicy) -> Policy:
    """Apply the differences of a role to the base (a `Config`), and check the combination."""
    values = {
        item.name: _inherit(item.name, getattr(base, item.name), getattr(role, item.name))
        for item in fields(Policy)
    }
    if not (base.enabled and values["enabled"]):
        values |= {"enabled": False, "steps": Steps()}
    values["engine"] = _following(values["engine"], values["backend"])
    policy = Policy(**values)
    if policy.capture_per == "region":
        if not policy.regions:
            problem = 'needs regions; write regions = ["update_actor"], or did you mean capture_per = "role"?'
            raise ConfigError.at("capture_per", "region", problem)
        if policy.join_steps:
            problem = 'cannot join captures that are made per region; did you mean capture_per = "step"?'
            raise ConfigError.at("join_steps", True, problem)
    elif role.regions or (role.capture_per is None and policy.regions):
        problem = 'has no effect without capture_per = "region"; did you mean to set that?'
        raise ConfigError.at("regions", policy.regions, problem)
    return policy


def _following(engine: EngineOptions, backend: Sequence[str]) -> EngineOptions:
    """Return an engine's options with the backend of its role, if engines support it."""
    if engine.backend is not None:
        return engine
    known = [name for name in backend if name in ENGINE_BACKENDS]
    if "nsys" in known:
        known = [
            "nsys"
        ]  # a process can keep its allocator's history in addition; an engine takes one of the two
    return replace(engine, backend=tuple(known) or ("torch",))


def _inherit(name: str, base: Any, given: Any) -> Any:
    """Return the value for a role: `given` by the role, else of the base."""
    if NO_LIMIT in (given, base if given is None else None):
        return None
    if given is None:
        return base
    if name == "plugins":
        return {backend: {**base.get(backend, {}), **given.get(backend, {})} for backend in {**base, **given}}
    if name in TABLES and isinstance(given, Mapping):
        with under(name):
            return replace(base, **given)
    return given


def arguments(table: type[Any], mapping: object) -> tuple[dict[str, Any], list[ConfigError]]:
    """Return a mapping as arguments of the dataclass, and an error for each wrong key. A table named like a plug-in backend goes under
    `plugins`.
    """
    if isinstance(mapping, Mapping) and any(_may_be_plugin(table, *item) for item in mapping.items()):
        installed = backend_names()
        theirs = {
            name: value
            for name, value in mapping.items()
            if _may_be_plugin(table, name, value) and name in installed
        }
        rest = {name: value for name, value in mapping.items() if name not in theirs}
        return split_keys(table, {**rest, "plugins": {**rest.get("plugins", {}), **theirs}})
    return split_keys(table, mapping)


def _may_be_plugin(table: type[Any], name: object, value: object) -> bool:
    return isinstance(value, Mapping) and name not in keys_of(table)

"""The whole configuration: what to record, when, where, and within which limits. It is checked when it
is made.

`Config` accepts several forms of a value ("2, 10-12", [2, 10], "2GiB"). It resolves the policies of all
roles on construction, so a mistake raises at once, and the training loop only looks a policy up.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from stepprof.config import loaders
from stepprof.config.options.engine import EngineOptions
from stepprof.config.options.memory import MemoryOptions
from stepprof.config.options.npu import NpuOptions
from stepprof.config.options.nsys import NsysOptions
from stepprof.config.options.otel import OtelOptions
from stepprof.config.options.schedule import Schedule
from stepprof.config.options.torch import TorchOptions
from stepprof.config.options.watch import WatchOptions
from stepprof.config.policy import TABLES, Policy, RolePolicy, arguments, items, resolve
from stepprof.config.post_step_validators import command, upload_url
from stepprof.config.selection import Ranks, Steps
from stepprof.config.validators import (
    MemoryFloor,
    Mistakes,
    byte_size,
    checked,
    choice,
    folder,
    keys_of,
    made_of,
    read_table,
    role_name,
    seconds,
    settle,
    under,
    whole,
)
from stepprof.errors import ConfigError

__all__ = [
    "Config",
    "EngineOptions",
    "MemoryFloor",
    "MemoryOptions",
    "NpuOptions",
    "NsysOptions",
    "OtelOptions",
    "Policy",
    "RolePolicy",
    "Schedule",
    "TorchOptions",
    "WatchOptions",
    "load",
    "role_name",
]

OWN_TABLES: dict[str, type[Any]] = {"watch": WatchOptions, "otel": OtelOptions}
"""The tables of the whole process: they have no role."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The whole configuration. Every field has a default; the defaults record nothing.

    Raises:
        ConfigError: names the key, the value and a suggestion.

    >>> config = Config(steps="2, 10-12", roles={"rollout": {"ranks": "all"}, "ref": {"enabled": False}})
    >>> str(config.policy("actor").ranks), str(config.policy("rollout").ranks)
    ('0', 'all')
    >>> 2 in config.policy("actor").steps, 2 in config.policy("ref").steps
    (True, False)
    >>> Config(backend="Torch")
    Traceback (most recent call last):
      ...
    stepprof.errors.ConfigError: backend = "Torch": unknown backend; did you mean "torch"? (one of: torch, npu, nsys, memory, null)
    """

    enabled: bool = True
    """False switches everything off, in every role: no captures and no spans."""
    output_dir: str | os.PathLike[str] = checked("stepprof-runs", folder)
    """The folder of all runs."""
    steps: Steps | str | int | Sequence[int | str] = "none"
    """The steps to record, in the caller's own numbering."""
    ranks: Ranks | str | int | Sequence[int | str] = "0"
    """The global ranks that record."""
    backend: str | Sequence[str] = "torch"
    """The backend: torch, npu, nsys, memory, null, or a list of backends that can run together."""
    capture_per: str = "step"
    """The extent of one capture: "step" (the outermost window), "role", or "region" (each of the named
    regions).
    """
    regions: Sequence[str] = ()
    """With capture_per = "region": the names of the regions."""
    join_steps: bool = False
    """Record consecutive selected steps as one capture."""
    schedule: Schedule | Mapping[str, object] | str | None = None
    """The entries of a region inside a window that are captured; None: the whole window."""
    max_seconds: float | str = 600.0
    """Cap on one capture, in seconds of recording; "none": no cap."""
    max_bytes: int | str = "2GiB"
    """Cap on one artifact, if its size is known in advance; "none": no cap."""
    min_free_memory: MemoryFloor | str | int = "10%"
    """A capture ends when less of the host's memory than this is free: a share, a size, or "none"."""
    export: str = "auto"
    """Where export jobs run: "auto", "inline", "fork" or "thread"."""
    engine_start_timeout_seconds: float = 5.0
    """Timeout for the start of an engine's capture; training waits meanwhile."""
    engine_stop_timeout_seconds: float = 60.0
    """Timeout for the stop of an engine's capture."""
    spans: bool = True
    """Write the regions of every step to rolling files."""
    evidence: bool = True
    """Collect garbage collections, stacks and CPU times in recorded windows; requires spans."""
    strict: bool = False
    """Raise instead of logging and going on; for tests and CI."""
    on_complete: str | Sequence[str] | None = checked(None, command)
    """A command that `stepprof follow` runs when all ranks have recorded a step."""
    on_complete_when: str = checked("step", choice("step", "run"))
    """When on_complete runs: after each recorded "step", or once at the end of the "run"."""
    on_complete_timeout_seconds: float = checked(60.0, seconds)
    """Timeout of on_complete; then the command and everything it started are killed."""
    upload: str | None = checked(None, upload_url)
    """The URL that `stepprof follow` uploads artifacts and manifests to, such as "s3://bucket/prefix";
    needs the extra `upload`.
    """
    upload_timeout_seconds: float = checked(600.0, seconds)
    """Timeout for the upload of one artifact (if it is a folder, of all its files), with all tries."""
    keep_steps: int | None = checked(None, whole(1))
    """How many recorded steps keep their artifacts; `stepprof follow` deletes older ones."""
    keep_bytes: int | str | None = checked(None, byte_size)
    """How many bytes of artifacts `stepprof follow` keeps; the oldest steps are deleted first."""
    torch: TorchOptions | Mapping[str, object] = field(default_factory=TorchOptions)
    """Options of the torch backend."""
    npu: NpuOptions | Mapping[str, object] = field(default_factory=NpuOptions)
    """Options of the npu backend."""
    nsys: NsysOptions | Mapping[str, object] = field(default_factory=NsysOptions)
    """Options of the nsys backend."""
    memory: MemoryOptions | Mapping[str, object] = field(default_factory=MemoryOptions)
    """Options of the memory backend."""
    engine: EngineOptions | Mapping[str, object] = field(default_factory=EngineOptions)
    """Options of attached engines."""
    watch: WatchOptions | Mapping[str, object] = field(default_factory=WatchOptions)
    """Options of the watch of `stepprof follow`: alerts on slow steps, slow regions and growing memory."""
    otel: OtelOptions | Mapping[str, object] = field(default_factory=OtelOptions)
    """Options for sending spans to an OpenTelemetry collector, by `stepprof follow`."""
    plugins: Mapping[str, Mapping[str, object]] = field(default_factory=dict, hash=False)
    """Options of plug-in backends by name; in a file each is a table of its own."""
    roles: Mapping[str, RolePolicy | Mapping[str, object]] = field(default_factory=dict, hash=False)
    """Differences of single roles, by name."""
    _policies: Mapping[str | None, Policy] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every field, and resolve the policy of every role."""
        mistakes = Mistakes()
        put = object.__setattr__
        with mistakes.collected():
            settle(self, like=RolePolicy)
        for name, table in {**TABLES, **OWN_TABLES}.items():
            if not isinstance(given := getattr(self, name), table):
                with mistakes.collected():
                    put(self, name, read_table(table, given, name))
        roles: dict[str, RolePolicy] = {}
        with mistakes.collected():
            for name, role in items(self.roles, "roles"):
                with mistakes.collected():
                    roles[name] = _role(name, role)
        mistakes.report()
        put(self, "roles", roles)
        if not self.enabled:
            put(self, "spans", False)
        for name in OWN_TABLES:
            if self.enabled and not self.spans and getattr(self, name).enabled:
                problem = "requires spans: remove spans = false, or disable this table"
                raise ConfigError.at(f"{name}.enabled", True, problem)
        policies: dict[str | None, Policy] = {None: resolve(self, RolePolicy())}
        for name, role in self._role_policies():
            with under(f"roles.{name}"):
                policies[name] = resolve(self, role)
        put(self, "_policies", policies)

    def policy(self, role: str | None) -> Policy:
        """Return the policy of `role`; of a role that the configuration does not name, and of no role:
        the base.
        """
        return self._policies.get(role) or self._policies[None]

    @property
    def off(self) -> bool:
        """Return whether no step of any role can be captured."""
        return all(policy.steps.is_none or policy.ranks.is_none for policy in self._policies.values())

    @property
    def follow_keys(self) -> list[str]:
        """Return the keys that are set and that `stepprof follow` obeys."""
        tables = [name for name in OWN_TABLES if getattr(self, name).enabled]
        return [key for key in _FOLLOWED if getattr(self, key) is not None] + tables

    def check_world(self, world_size: int) -> None:
        """Refuse ranks that a world of `world_size` does not have.

        Roles with a table `engine` are not checked here: their ranks belong to engines, and are
        checked when those are attached.

        Raises:
            ConfigError: names the key, the value and the nearest valid rank.
        """
        self._policies[None].ranks.check(world_size)
        for name, role in self._role_policies():
            if isinstance(role.ranks, Ranks) and role.engine is None:
                with under(f"roles.{name}"):
                    role.ranks.check(world_size)

    def warnings(self) -> tuple[str, ...]:
        """Return one line for each expensive combination, with an estimate of its cost and a remedy."""
        from stepprof.config.cost_estimates import heavy_combinations, shared_device

        found: dict[str, str] = {}
        for role, policy in self._policies.items():
            for text in heavy_combinations(policy):
                found.setdefault(text, text if role is None else f"roles.{role}: {text}")
        for name, given in self._role_policies():
            if given.engine is not None:
                for text in shared_device(self._policies[name]):
                    found.setdefault(text, f"roles.{name}: {text}")
        return tuple(found.values())

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-able data; `from_mapping` makes an equal configuration of it."""
        data = {
            name: _plain(getattr(self, name)) for name in keys_of(Config) if name not in ("roles", "plugins")
        }
        data |= {name: dict(table) for name, table in self.plugins.items()}
        data["roles"] = {
            name: {
                key: _plain(value)
                for key in keys_of(RolePolicy)
                if key != "plugins" and (value := getattr(role, key)) is not None
            }
            | {key: dict(table) for key, table in (role.plugins or {}).items()}
            for name, role in self._role_policies()
        }
        return data

    @classmethod
    def from_mapping(cls, mapping: object) -> Config:
        """Read a mapping with the keys of a configuration file: a dict, or an OmegaConf node, whose interpolations are resolved."""
        table = loaders.plain(mapping)
        if not isinstance(table, Mapping):
            raise ConfigError.at("config", table, "expected a Config, a mapping, or the path of a TOML file")
        made: Config = made_of(cls, *arguments(cls, table))
        return made

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Config:
        """Read a TOML file. Errors name the file, and for a syntax error its line."""
        with loaders.named(path):
            return cls.from_mapping(loaders.read_toml(Path(path)))

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Config:
        """Read the file in $STEPPROF_CONFIG, if set, then apply the other STEPPROF_* variables."""
        mistakes = Mistakes([*loaders.misspelt(environ)])
        config = cls()
        path = environ.get(loaders.CONFIG_VARIABLE)
        if path:
            with mistakes.collected(), loaders.from_variable(loaders.CONFIG_VARIABLE, path):
                config = cls.from_toml(path)
        for variable, key, value in loaders.overrides(environ):
            with mistakes.collected(), loaders.from_variable(variable, value, key):
                config = replace(config, **{key: value})
        mistakes.report()
        return config

    def _role_policies(self) -> list[tuple[str, RolePolicy]]:
        return [(name, role) for name, role in self.roles.items() if isinstance(role, RolePolicy)]


_FOLLOWED = ("on_complete", "upload", "keep_steps", "keep_bytes")


def load(
    config: Config | Mapping[str, object] | str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Return the configuration for `stepprof.init`.

    A path is a TOML file. None: the environment. That is the file in $STEPPROF_CONFIG, then
    $STEPPROF_STEPS, $STEPPROF_RANKS, $STEPPROF_BACKEND and $STEPPROF_OUTPUT_DIR; without any of
    them no step is selected. STEPPROF=0 switches everything off. The configuration is not read
    then, so this also works if it is broken.

    >>> load({"steps": [2, 10]}, environ={}).off, load({"steps": [2, 10]}, environ={"STEPPROF": "0"}).off
    (False, True)
    """
    variables = os.environ if environ is None else environ
    if loaders.switched_off(variables):
        return Config(enabled=False)
    if config is None:
        return Config.from_env(variables)
    if isinstance(config, Config):
        return config
    if isinstance(config, str | os.PathLike):
        return Config.from_toml(config)
    return Config.from_mapping(config)


def ignored_variables(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a configuration which the program has passed contradicts, with their values.

    >>> ignored_variables(Config(steps="2"), {"STEPPROF_STEPS": "7", "STEPPROF_RANKS": "0"})
    {'STEPPROF_STEPS': '7'}
    """
    if loaders.switched_off(environ):
        return {}
    names = (loaders.CONFIG_VARIABLE, *loaders.KEY_OF_VARIABLE)
    given = {name: text for name in names if (text := environ.get(name, "").strip())}
    return {name: text for name, text in given.items() if not _agrees(config, name, text)}


def _agrees(config: Config, variable: str, text: str) -> bool:
    """Return whether a configuration has the values that a variable asks for."""
    try:
        asked = Config.from_env({variable: text})
    except ConfigError:
        return False
    if variable == loaders.CONFIG_VARIABLE:
        return asked == config
    key = loaders.KEY_OF_VARIABLE[variable]
    return bool(getattr(asked, key) == getattr(config, key))


def _role(name: str, role: object) -> RolePolicy:
    role_name(name, "roles")
    with under(f"roles.{name}"):
        if isinstance(role, RolePolicy):
            return role
        given = role if isinstance(role, Mapping) else {}
        misplaced = {key for key in given if key in keys_of(Config) and key not in keys_of(RolePolicy)}
        wrong = [
            ConfigError.at(key, given[key], "applies to the whole run; write it at the top level")
            for key in given
            if key in misplaced
        ]
        rest = {key: value for key, value in given.items() if key not in misplaced} if misplaced else role
        present, unknown = arguments(RolePolicy, rest)
        made: RolePolicy = made_of(RolePolicy, present, [*wrong, *unknown])
        return made


def _plain(value: object) -> object:
    """Return a checked value as JSON-able data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, Steps | Ranks | MemoryFloor | type):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float) else str(value)

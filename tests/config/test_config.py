"""The configuration: the settings of each role, and the error for each mistake."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepprof.config.config import (
    Config,
    EngineOptions,
    Policy,
    RolePolicy,
    Schedule,
    TorchOptions,
    role_name,
)
from stepprof.config.selection import Ranks, Steps
from stepprof.config.validators import MemoryFloor, byte_size, memory_floor
from stepprof.errors import ConfigError

MISTAKES: list[tuple[dict[str, Any], str]] = [
    # unknown keys
    ({"step": 2}, 'step = 2: unknown key; did you mean "steps"?'),
    ({"zzz": 2}, "zzz = 2: unknown key (one of: enabled, output_dir, steps,"),
    ({"torch": {"with_stak": True}}, 'torch.with_stak = true: unknown key; did you mean "with_stack"?'),
    (
        {"roles": {"actor": {"spans": False}}},
        "roles.actor.spans = false: applies to the whole run; write it at the top level",
    ),
    ({"torc": {"with_stack": True}}, "torc = {'with_stack': True}: unknown key; did you mean \"torch\"?"),
    ({"schedule": {"region": "x", "activ": 2}}, 'schedule.activ = 2: unknown key; did you mean "active"?'),
    ({"roles": {"rollout": {"rank": 0}}}, 'roles.rollout.rank = 0: unknown key; did you mean "ranks"?'),
    (
        {"roles": {"a": {"output_dir": "x"}}},
        'roles.a.output_dir = "x": applies to the whole run; write it at',
    ),
    (
        {"roles": {"a": {"torch": {"with_stak": 1}}}},
        'roles.a.torch.with_stak = 1: unknown key; did you mean "with_stack"?',
    ),
    # wrong types
    ({"torch": "x"}, 'torch = "x": expected a table of: activities, with_stack'),
    ({"roles": 3}, "roles = 3: expected tables, such as [roles.name]"),
    ({"roles": {"a": 3}}, "roles.a = 3: expected a table of: enabled, steps"),
    ({"roles": {"a": {"torch": 3}}}, "roles.a.torch = 3: expected a table of: activities"),
    ({"plugins": {"x": 3}}, "plugins.x = 3: expected a table of options"),
    ({"strict": "yes"}, 'strict = "yes": expected true or false; did you mean true?'),
    ({"spans": 0}, "spans = 0: expected true or false; did you mean false?"),
    ({"spans": 2}, "spans = 2: expected true or false"),
    ({"output_dir": 3}, 'output_dir = 3: expected a path, such as "stepprof-runs"'),
    ({"output_dir": " "}, 'output_dir = " ": not a path; did you mean "stepprof-runs"?'),
    ({"output_dir": "a\0b"}, "not a path"),
    ({"schedule": {"region": 3}}, 'schedule.region = 3: expected the name of a region, such as "mini_batch"'),
    ({"schedule": {"active": 2}}, 'schedule.region = None: missing; write region = "…" in this table'),
    (
        {"schedule": {"region": "x", "wait": "3"}},
        'schedule.wait = "3": expected an integer; did you mean 3?',
    ),
    ({"schedule": {"region": "x", "wait": 1.5}}, "schedule.wait = 1.5: expected an integer"),
    ({"schedule": {"region": "x", "wait": True}}, "schedule.wait = true: expected an integer"),
    ({"regions": "a,b"}, 'regions = ["a,b"]: has no effect without capture_per = "region"'),
    ({"regions": [1]}, 'regions = [1]: expected a list of names, such as ["a", "b"]'),
    ({"regions": ["a", "a"]}, 'regions = ["a", "a"]: "a" is named twice; once is enough'),
    ({"regions": [" "]}, "expected at least one name, and no empty ones"),
    ({"backend": 3}, "backend = 3: expected the name of a backend (one of: torch, npu, nsys, memory, null)"),
    ({"backend": []}, "backend = []: expected at least one name"),
    # wrong values
    (
        {"backend": "Torch"},
        'backend = "Torch": unknown backend; did you mean "torch"? (one of: torch, npu, nsys, memory, null)',
    ),
    (
        {"roles": {"rollout": {"backend": "Torch"}}},
        'roles.rollout.backend = "Torch": unknown backend; did you mean "torch"?',
    ),
    ({"backend": ["memory", "nys"]}, 'backend = "nys": unknown backend; did you mean "nsys"?'),
    (
        {"backend": ["torch", "npu"]},
        'backend = ["torch", "npu"]: torch and npu cannot record in one process together',
    ),
    (
        {"backend": ["torch", "nsys"]},
        'torch and nsys cannot record in one process together; did you mean "torch"?',
    ),
    ({"backend": ["npu", "nsys"]}, "npu and nsys cannot record in one process together"),
    ({"backend": ["npu", "memory"]}, 'did you mean "npu" with npu.profile_memory = true?'),
    ({"backend": "torch+memory"}, 'unknown backend; did you mean ["torch", "memory"]?'),
    ({"backend": "torch, memory"}, 'unknown backend; did you mean ["torch", "memory"]?'),
    ({"backend": ["null", "memory"]}, '"null" cannot be combined; did you mean "null"?'),
    ({"steps": "5-2"}, 'steps = "5-2": the range 5-2 is empty; did you mean "2-5"?'),
    ({"roles": {"a": {"steps": "5-2"}}}, 'roles.a.steps = "5-2": the range 5-2 is empty'),
    ({"ranks": "every 2"}, 'ranks = "every 2": cannot read "every 2"'),
    (
        {"export": "Fork"},
        'export = "Fork": not known; did you mean "fork"? (one of: auto, inline, fork, thread)',
    ),
    (
        {"capture_per": "steps"},
        'capture_per = "steps": not known; did you mean "step"? (one of: step, role, region)',
    ),
    ({"capture_per": 1}, "capture_per = 1: not known"),
    ({"max_seconds": 0}, "max_seconds = 0: expected a finite number of seconds above 0"),
    ({"max_seconds": float("nan")}, "max_seconds = nan: expected a finite number of seconds above 0"),
    ({"max_seconds": float("inf")}, "max_seconds = inf: expected a finite number of seconds above 0"),
    ({"max_seconds": "5 s"}, 'max_seconds = "5 s": expected a number of seconds; did you mean 5?'),
    (
        {"engine_start_timeout_seconds": "soon"},
        'engine_start_timeout_seconds = "soon": expected a number of seconds',
    ),
    (
        {"engine_stop_timeout_seconds": -1},
        "engine_stop_timeout_seconds = -1: expected a finite number of seconds above 0",
    ),
    ({"max_bytes": "2GBi"}, 'max_bytes = "2GBi": unknown unit "gbi"; did you mean "2GB"?'),
    ({"max_bytes": "7G"}, 'max_bytes = "7G": unknown unit "g"; did you mean "7GB"?'),
    ({"max_bytes": "7x"}, 'max_bytes = "7x": unknown unit "x"; did you mean "7GiB"?'),
    (
        {"max_bytes": "much"},
        'max_bytes = "much": cannot read the size; expected something like "2GiB" or "500MB"',
    ),
    ({"max_bytes": 0}, "max_bytes = 0: too small; did you mean 1?"),
    ({"max_bytes": "0.1B"}, 'max_bytes = "0.1B": too small; did you mean "1B"?'),
    ({"max_bytes": 1.5}, "max_bytes = 1.5: expected a number of bytes or a size"),
    (
        {"min_free_memory": 0.1},
        'min_free_memory = 0.1: expected a share such as "10%" or a size such as "2GiB"; did you mean "10%"?',
    ),
    ({"min_free_memory": 2.0}, 'min_free_memory = 2.0: expected a share such as "10%"'),
    (
        {"min_free_memory": "100%"},
        'min_free_memory = "100%": no capture could ever begin; did you mean "10%"?',
    ),
    (
        {"min_free_memory": "15"},
        'min_free_memory = "15": a floor of 15 bytes has no effect; did you mean "15%"?',
    ),
    ({"min_free_memory": False}, "min_free_memory = false: expected a number of bytes"),
    ({"schedule": {"region": "x", "active": 0}}, "schedule.active = 0: too small; did you mean 1?"),
    (
        {"schedule": {"region": "x", "skip_first": -1}},
        "schedule.skip_first = -1: too small; did you mean 0?",
    ),
    (
        {"torch": {"activities": ["CPU"]}},
        'torch.activities = ["CPU"]: "CPU" is not known; did you mean "cpu"?',
    ),
    ({"torch": {"activities": ["cpu", "gpu"]}}, '"gpu" is not known; did you mean "cuda"?'),
    ({"npu": {"level": "Level1"}}, 'npu.level = "Level1": not known; did you mean "level1"?'),
    ({"npu": {"activities": ["gpu"]}}, '"gpu" is not known; did you mean "npu"? (one of: cpu, npu)'),
    ({"memory": {"max_entries": 0}}, "memory.max_entries = 0: too small; did you mean 1?"),
    ({"engine": {"max_iterations": 0}}, 'engine.max_iterations = 0: did you mean "none", for no limit?'),
    (
        {"engine": {"max_iterations": "all"}},
        'engine.max_iterations = "all": did you mean "none", for no limit?',
    ),
    ({"engine": {"max_iterations": -3}}, "engine.max_iterations = -3: too small; did you mean 1?"),
    (
        {"engine": {"max_iterations": "8"}},
        'engine.max_iterations = "8": expected an integer; did you mean 8?',
    ),
    # names of roles
    (
        {"roles": {"../x": {}}},
        'roles = "../x": not fit for a file name (letters, digits, ".", "_" and "-", at most 64, no dot at the start); did you mean "x"?',
    ),
    ({"roles": {"step": {}}}, 'roles = "step": reserved for windows without a role'),
    # conflicting keys
    (
        {"torch": {"all_threads": True, "profile_memory": True}},
        "torch.all_threads = true: torch cannot record all threads together with profile_memory",
    ),
    (
        {"torch": {"all_threads": True}, "roles": {"a": {"torch": {"profile_memory": True}}}},
        "roles.a.torch.all_threads = true: torch cannot record all threads together with profile_memory",
    ),
    ({"capture_per": "region"}, 'capture_per = "region": needs regions; write regions = ["update_actor"]'),
    (
        {"capture_per": "region", "regions": ["a"], "join_steps": True},
        "join_steps = true: cannot join captures that are made per region",
    ),
    ({"roles": {"a": {"regions": ["x"]}}}, 'regions = ["x"]: has no effect without capture_per = "region"'),
]


class TestMistakes:
    @pytest.mark.parametrize(("mapping", "message"), MISTAKES, ids=[message[:60] for _, message in MISTAKES])
    def test_mistakes_name_key_value_and_suggestion(self, mapping: dict[str, Any], message: str) -> None:
        """A mistake raises a ConfigError that names the key, the value and, where possible, a suggestion."""
        with pytest.raises(ConfigError, match=re.escape(message)):
            Config.from_mapping(mapping)

    def test_one_error_names_all_mistakes(self, tmp_path: Path) -> None:
        """Unknown keys and wrong values are reported together, of the base, its tables, its roles and the environment."""
        mapping = {"stpes": 3, "backend": "tocrh", "torch": {"with_stac": True, "record_shapes": 5}, "roles": {"actor": {"ranks": "x", "output_dir": "y"}, "a/b": {}}}  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            Config.from_mapping(mapping)
        keys = ["stpes", "backend", "torch.with_stac", "torch.record_shapes", "roles.actor.output_dir", "roles.actor.ranks", "roles"]  # fmt: skip
        assert [part.key for part in caught.value.parts] == keys
        assert all(str(part) in str(caught.value) for part in caught.value.parts)
        with pytest.raises(ConfigError) as caught:
            Config.from_env({"STEPPROF_STEPS": "two", "STEPPROF_RANKS": "x", "STEPPROF_BACKEND": "null"})
        assert [part.key for part in caught.value.parts] == ["$STEPPROF_STEPS", "$STEPPROF_RANKS"]
        (tmp_path / "c.toml").write_text('stpes = 3\nbackend = "tocrh"\n')
        with pytest.raises(ConfigError, match=r"^[^\n]*c\.toml: stpes = 3: .*; also backend = .tocrh.: "):
            Config.from_toml(tmp_path / "c.toml")

    def test_the_error_carries_its_parts(self) -> None:
        """The error has the attributes key, value and problem, and is also a ValueError."""
        with pytest.raises(ValueError, match="unknown backend") as caught:
            Config(roles={"rollout": {"backend": "Torch"}})
        assert isinstance(caught.value, ConfigError)
        assert (caught.value.key, caught.value.value) == ("roles.rollout.backend", "Torch")
        assert caught.value.problem.startswith("unknown backend")

    def test_python_objects_get_the_same_errors(self) -> None:
        """A dataclass that is made in Python gets the same errors as a file."""
        with pytest.raises(ConfigError, match="max_iterations = 0: did you mean"):
            EngineOptions(max_iterations=0)
        with pytest.raises(ConfigError, match='backend = "Torch"'):
            RolePolicy(backend="Torch")
        with pytest.raises(ConfigError, match=r"torch\.x = 1: unknown key"):
            RolePolicy(torch={"x": 1})

    def test_no_cap_must_be_written_as_none(self) -> None:
        """A cap is removed with "none". None is refused."""
        with pytest.raises(ConfigError, match='max_seconds = None: did you mean "none"'):
            Config(max_seconds=None)  # type: ignore[arg-type]

    def test_a_long_value_is_shortened(self) -> None:
        """The error about a long value has fewer than 1,000 characters."""
        with pytest.raises(ConfigError) as caught:
            Config(steps="x" * 5000)
        assert len(str(caught.value)) < 1000

    def test_a_configuration_must_be_a_mapping(self) -> None:
        """A configuration that is no mapping is refused as a whole."""
        with pytest.raises(
            ConfigError, match="config = 3: expected a Config, a mapping, or the path of a TOML file"
        ):
            Config.from_mapping(3)


class TestDefaults:
    def test_record_nothing(self) -> None:
        """Without configuration, no step is selected, and each setting has its documented default."""
        config = Config()
        policy = config.policy(None)
        assert config.off
        assert (policy.steps, policy.ranks, policy.backend) == (Steps(), Ranks.parse("0"), ("torch",))
        assert (policy.max_seconds, policy.max_bytes, policy.export) == (600.0, 2 * 2**30, "auto")
        assert policy.min_free_memory.bytes_of(1000) == 100
        assert (policy.engine_start_timeout_seconds, policy.engine_stop_timeout_seconds) == (5.0, 60.0)
        assert (config.spans, config.strict, config.output_dir) == (True, False, Path("stepprof-runs"))
        assert policy.torch == TorchOptions()
        assert config.warnings() == ()


class TestPolicies:
    def test_a_role_inherits_unset_keys(self) -> None:
        """A role inherits the keys that it does not set. A role without a table
        has the settings of the base.
        """
        config = Config(steps="2", max_seconds=7, roles={"rollout": {"ranks": "all"}})
        assert config.policy("rollout").max_seconds == 7.0
        assert config.policy("rollout").ranks.all
        assert config.policy("critic") is config.policy(None)

    def test_options_are_inherited_key_by_key(self) -> None:
        """A table in a role changes single options. An options object replaces all of them."""
        config = Config(
            torch={"record_shapes": True},
            roles={
                "a": {"torch": {"with_flops": True}},
                "b": RolePolicy(torch=TorchOptions(with_flops=True)),
            },
        )
        assert config.policy("a").torch == TorchOptions(record_shapes=True, with_flops=True)
        assert config.policy("b").torch == TorchOptions(with_flops=True)

    def test_enabled_false_leaves_a_role_out(self) -> None:
        """A role with `enabled = false` has no steps, and the base keeps its own."""
        config = Config(steps="2", roles={"ref": {"enabled": False}})
        assert (
            2 in config.policy("ref").steps,
            config.policy("ref").enabled,
            2 in config.policy(None).steps,
        ) == (False, False, True)

    def test_a_config_that_is_not_enabled_is_off(self) -> None:
        """With `enabled = false` at the top level, nothing is recorded, even if a role is enabled."""
        config = Config(enabled=False, steps="2", roles={"a": {"enabled": True, "steps": "all"}})
        assert (config.off, config.spans, 2 in config.policy("a").steps) == (True, False, False)

    def test_a_role_with_steps_is_not_off(self) -> None:
        """If one role has a step to record, the configuration is not off."""
        assert not Config(roles={"a": {"steps": "2"}}).off
        assert Config(steps="2", ranks="none").off

    def test_none_removes_a_cap_or_a_schedule(self) -> None:
        """The value "none" removes a cap or a schedule, in the base and in a role."""
        config = Config(
            max_seconds="none",
            min_free_memory="none",
            schedule={"region": "mini_batch", "active": 2},
            roles={"a": {"max_bytes": "none", "schedule": "none", "max_seconds": 3}},
        )
        base, role = config.policy(None), config.policy("a")
        assert (base.max_seconds, base.max_bytes, base.schedule) == (
            None,
            2**31,
            Schedule(region="mini_batch", active=2),
        )
        assert (role.max_seconds, role.max_bytes, role.schedule) == (3.0, None, None)
        assert base.min_free_memory == MemoryFloor()

    def test_a_role_may_leave_the_regions_of_the_base(self) -> None:
        """A role with `capture_per = "step"` may inherit regions from a base that captures regions."""
        config = Config(
            capture_per="region", regions="update", roles={"a": {"capture_per": "step", "join_steps": True}}
        )
        assert (config.policy(None).regions, config.policy("a").capture_per) == (("update",), "step")

    def test_options_by_backend(self) -> None:
        """The options of a backend are found by its name. A backend without options has an empty mapping."""
        policy = Config(torch={"with_flops": True}).policy(None)
        assert policy.options("torch") == TorchOptions(with_flops=True)
        assert policy.options("null") == {}

    def test_every_field_of_a_policy_is_a_key_of_a_role(self) -> None:
        """Each setting of a policy can be set for a role and at the top level."""
        for name in Policy.__dataclass_fields__:
            assert name in RolePolicy.__dataclass_fields__
            assert name in Config.__dataclass_fields__


class TestWorld:
    def test_ranks_beyond_the_world_are_refused(self) -> None:
        """A rank beyond the world is refused, in the base and in a role, with its own key."""
        with pytest.raises(
            ConfigError,
            match=re.escape('ranks = "0-9": there is no rank 8 in a world of 8; did you mean 7?'),
        ):
            Config(ranks="0-9").check_world(8)
        with pytest.raises(
            ConfigError, match=re.escape('roles.actor.ranks = "99": there is no rank 99 in a world of 8')
        ):
            Config(roles={"actor": {"ranks": 99}}).check_world(8)

    def test_ranks_of_engines_are_checked_when_they_are_attached(self) -> None:
        """The ranks of a role with engine options may lie beyond this world."""
        assert (
            Config(
                roles={"rollout": {"ranks": "8-15", "engine": {"max_iterations": 3}}, "ref": {}}
            ).check_world(8)
            is None
        )


class TestPlainData:
    def test_reads_back_from_json(self) -> None:
        """A configuration that is written as JSON and read is equal."""
        config = Config(
            output_dir="~/x",
            steps="2,every 7",
            max_seconds="none",
            min_free_memory="1.5GiB",
            schedule={"region": "a"},
            torch={"activities": ["cpu"]},
            roles={
                "r": {"engine": {"max_iterations": 3}, "max_bytes": "none", "ranks": [0, 3]},
            },
        )
        again = Config.from_mapping(json.loads(json.dumps(config.to_dict())))
        assert again == config
        assert again.policy("r") == config.policy("r")

    def test_pickles_and_hashes(self) -> None:
        """A configuration can be pickled, and configurations and policies can be hashed."""
        config = Config(steps="2", roles={"a": {"ranks": "all"}})
        again = pickle.loads(pickle.dumps(config))
        assert (again, hash(again), hash(again.policy("a"))) == (
            config,
            hash(config),
            hash(config.policy("a")),
        )

    def test_none_in_a_mapping_counts_as_absent(self) -> None:
        """None in a mapping, as from YAML, means the default."""
        assert Config.from_mapping({"engine": {"activities": []}}).engine.activities == ()
        assert Config.from_mapping({"max_seconds": None, "torch": {"activities": None}}) == Config()


class TestSizes:
    @pytest.mark.parametrize(
        ("text", "size"),
        [
            ("2GiB", 2**31),
            ("500 MB", 500_000_000),
            ("1.5kib", 1536),
            ("7", 7),
            (7, 7),
            ("1TB", 10**12),
            ("3b", 3),
        ],
    )
    def test_units(self, text: object, size: int) -> None:
        """Sizes with binary and decimal units are read in upper or lower case, with or without a space."""
        assert size == byte_size(text, "max_bytes")

    @given(
        st.one_of(
            st.integers(1, 99).map(lambda n: f"{n}%"),
            st.integers(100, 10**15).map(str),
            st.just("none"),
            st.just(0),
        )
    )
    def test_a_floor_reads_back(self, value: object) -> None:
        """A memory floor that is written as a string and read is equal."""
        floor = memory_floor(value, "min_free_memory")
        assert floor == memory_floor(str(floor), "min_free_memory")

    def test_a_floor_is_returned_as_it_is(self) -> None:
        """A MemoryFloor object is accepted as it is."""
        assert Config(min_free_memory=MemoryFloor(bytes=5)).policy(None).min_free_memory.bytes_of(100) == 5


class TestRoleName:
    @pytest.mark.parametrize("name", ["actor", "actor.v2", "A_b-1", "_x", "x" * 64])
    def test_file_names_pass(self, name: str) -> None:
        """A role may consist of letters, digits, dots, underscores and hyphens."""
        assert name == role_name(name)

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("../x", "x"),
            ("a/b", "a_b"),
            (".hidden", "hidden"),
            ("a b", "a_b"),
            ("x" * 65, "x" * 64),
            ("", "actor"),
            ("a\n", "a"),
            ("é", "actor"),
        ],
    )
    def test_invalid_role_names_get_a_suggestion(self, name: str, meant: str) -> None:
        """A role that is not a plain file name is refused, and the suggestion is a valid role."""
        with pytest.raises(ConfigError, match=re.escape(f'did you mean "{meant}"?')):
            role_name(name)
        assert meant == role_name(meant)

    def test_a_role_must_be_a_string(self) -> None:
        """A number is refused as a role."""
        with pytest.raises(ConfigError, match='role = 3: expected the name of a role, such as "actor"'):
            role_name(3)

    @given(st.text(max_size=80))
    def test_no_valid_role_is_a_path(self, name: str) -> None:
        """Each valid role is one plain file name."""
        try:
            role_name(name)
        except ConfigError:
            return
        assert (Path(name).name, len(Path(name).parts)) == (name, 1)


class TestDocumentation:
    def test_every_key_and_default_is_documented(self) -> None:
        """The tables of docs/configuration.md have the keys and defaults of the
        dataclasses, in their order.
        """
        text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
        assert documented(text) == actual()


def documented(text: str) -> dict[str, list[tuple[str, str]]]:
    """Return the keys and defaults of each table in the page."""
    tables: dict[str, list[tuple[str, str]]] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ").strip("`")
        elif line.startswith("| `"):
            cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
            tables.setdefault(section, []).append((cells[0], cells[2]))
    return tables


def actual() -> dict[str, list[tuple[str, str]]]:
    """Return the keys and defaults of each dataclass."""
    plain: Mapping[str, Any] = Config().to_dict()
    given = {"max_bytes": "2GiB", "backend": "torch"}
    sizes = {"max_bytes": "2GiB", "memory_growth": "4GiB"}
    sections: dict[str, list[tuple[str, str]]] = {"Top level": []}
    for name, default in plain.items():
        if name in ("torch", "npu", "nsys", "memory", "engine", "watch", "otel"):
            sections[f"[{name}]"] = [(key, toml(sizes.get(key, value))) for key, value in default.items()]
        elif name != "roles":
            sections["Top level"].append((name, toml(given.get(name, default))))
    schedule = {
        key: value
        for key, value in Config(schedule={"region": "x"}).to_dict()["schedule"].items()
        if key != "region"
    }
    sections["schedule"] = [("region", "required"), *((key, toml(value)) for key, value in schedule.items())]
    return sections


def toml(value: object) -> str:
    """Return a default as the documentation writes it."""
    if value is None:
        return "not set"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value)

"""The configuration of verl's own profiler becomes the configuration of stepprof."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from stepprof.config.config import load
from stepprof.errors import ConfigError
from stepprof.integrations import verl_profiler


def configured(rollout=(), actor=(), **own):
    """Return the part of verl's configuration that its profiler reads."""
    role = {"tool": "torch", "enable": True, "all_ranks": False, "ranks": [], "tool_config": {"torch": {"contents": []}}}  # fmt: skip
    return OmegaConf.create(
        {
            "global_profiler": {"tool": "torch", "steps": [2], "profile_continuous_steps": False, **own},
            "actor_rollout_ref": {
                "actor": {"profiler": {**role, **dict(actor)}},
                "rollout": {"profiler": {**role, **dict(rollout)}},
            },
        }
    )


def read(*args, **kwargs):
    """Return the resulting configuration of stepprof."""
    return load(verl_profiler.as_configuration(configured(*args, **kwargs)))


class TestConfiguration:
    def test_steps_and_ranks(self) -> None:
        """The steps are verl's. Without ranks the first rank is recorded, as in verl."""
        config = read(steps=[2, 3], profile_continuous_steps=True)
        assert [step for step in range(5) if step in config.policy(None).steps] == [2, 3]
        assert config.policy(None).join_steps
        assert 0 in config.policy(None).ranks
        assert 1 not in config.policy(None).ranks

    def test_ranks_of_a_role(self) -> None:
        """The actor's ranks and the rollout's ranks are selected separately."""
        config = read(rollout={"all_ranks": True}, actor={"ranks": [1]})
        assert 1 in config.policy(None).ranks
        assert 0 not in config.policy(None).ranks
        assert config.policy("rollout").ranks.all

    def test_contents(self) -> None:
        """The words of `contents` become options of the torch backend and of the engine."""
        contents = {"tool_config": {"torch": {"contents": ["cpu", "stack", "shapes"]}}}
        config = read(rollout=contents, actor=contents)
        for options in (config.policy(None).torch, config.policy("rollout").engine):
            assert options.with_stack
            assert options.record_shapes
            assert tuple(options.activities) == ("cpu",)

    @pytest.mark.parametrize("options", [{"contents": ["stack"]}, SimpleNamespace(contents=["stack"])])
    def test_a_server_has_a_dataclass_of_tools(self, options) -> None:
        """The profiler of a server has a mapping of tools, whose options may be a mapping or an object."""
        profiler = SimpleNamespace(tool="torch", tool_config={"torch": options})
        assert verl_profiler.engine_options(profiler) == {"with_stack": True, "activities": ["cpu"]}

    def test_roles_that_are_off(self) -> None:
        """A role whose profiler is off records nothing."""
        config = read(rollout={"enable": False}, actor={"enable": False})
        assert not config.policy("rollout").enabled
        assert config.policy(None).backend == ("null",)

    @pytest.mark.parametrize(("own", "key"), [({"tool": "nsys"}, "tool"), ({"steps": None}, "steps")])
    def test_settings_without_a_counterpart_are_refused(self, own, key) -> None:
        """A tool that stepprof cannot replace, and missing steps, are refused; the error names the key."""
        with pytest.raises(ConfigError, match=f"global_profiler.{key}"):
            read(**own)

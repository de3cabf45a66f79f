"""The configuration of SkyRL's own profiler becomes the configuration of stepprof."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

import stepprof
from stepprof.config.config import load
from stepprof.errors import ConfigError
from stepprof.instrument.context import cell
from stepprof.integrations import skyrl_profiler

pytestmark = pytest.mark.torch


def trainer(total=20, **given):
    """Return a trainer whose own profiler records step 12 of its job, after ten steps and one of warm-up."""
    defaults = {
        "enable": True, "ranks": [0, 2], "activities": ["cpu", "CUDA"], "skip_first": 10, "wait": 0, "warmup": 1, "active": 1, "repeat": 1,
        "record_shapes": True, "with_stack": True, "with_flops": False, "with_modules": False,
    }  # fmt: skip
    own = SimpleNamespace(**{**defaults, **given})
    config = SimpleNamespace(trainer=SimpleNamespace(policy=SimpleNamespace(torch_profiler_config=own)))
    return SimpleNamespace(cfg=config, total_training_steps=total)


def own_of(found):
    return found.cfg.trainer.policy.torch_profiler_config


class TestConfiguration:
    @pytest.mark.parametrize(
        ("given", "steps"),
        [
            ({}, [12]),
            ({"active": 3}, [12, 13, 14]),
            ({"skip_first": 0, "warmup": 0, "repeat": 2, "wait": 4}, [5, 10]),
        ],
    )
    def test_steps(self, given, steps) -> None:
        """The selected steps are those of torch's schedule, counted from 1."""
        assert skyrl_profiler.as_configuration(trainer(**given))["steps"] == steps

    def test_the_configuration_is_valid(self) -> None:
        """The configuration is valid and has the ranks and options of SkyRL's profiler. Engines are off,
        because SkyRL's profiler does not record them.
        """
        config = load(skyrl_profiler.as_configuration(trainer()))
        assert config.torch.with_stack
        assert not config.torch.with_flops
        assert [rank for rank in range(4) if rank in config.policy(None).ranks] == [0, 2]
        assert not config.policy("rollout").enabled

    @pytest.mark.parametrize(("given", "total"), [({"enable": False}, 20), ({}, 5), ({}, None)])
    def test_no_steps(self, given, total) -> None:
        """If SkyRL's profiler would record no step, the error names its option."""
        with pytest.raises(ConfigError, match="torch_profiler_config"):
            skyrl_profiler.as_configuration(trainer(total, **given))


@pytest.fixture
def _session(tmp_path):
    cell.adapters["skyrl"] = {"status": "attached"}
    stepprof.init({"steps": [12], "backend": "null", "output_dir": str(tmp_path)})
    yield
    stepprof.shutdown()
    del cell.adapters["skyrl"]


@pytest.mark.usefixtures("_session")
class TestSettle:
    def test_stepprof_replaces_the_profiler(self) -> None:
        """SkyRL's profiler is switched off in the driver, so that no rank starts it. The adapter states
        the configuration that is used.
        """
        found = trainer()
        skyrl_profiler.settle(found, take_over=True)
        assert not own_of(found).enable
        assert cell.adapters["skyrl"]["configuration"] == "trainer.policy.torch_profiler_config"

    def test_steps_of_both_profilers_are_reported(self) -> None:
        """The steps that both profilers record are logged, and SkyRL's profiler stays on."""
        found = trainer()
        with capture_logs() as lines:
            skyrl_profiler.settle(found, take_over=False)
        assert [each["steps"] for each in lines if each["event"] == "adapter.other_profiler"] == [[12]]
        assert own_of(found).enable

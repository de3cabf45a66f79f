"""The configuration of MindSpeed-RL's own profiler becomes the configuration of stepprof."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

import stepprof
from stepprof.config.config import load
from stepprof.errors import ConfigError
from stepprof.instrument.context import cell
from stepprof.integrations.mindspeed_rl_profiler import OwnProfiler


def options(**given):
    """Return the options of a job that profiles the iterations 3 and 4."""
    defaults = {
        "profile": True, "stage": "all", "profile_step_start": 3, "profile_step_end": 5, "profile_ranks": "all", "profile_level": "level1",
        "profile_with_memory": False, "profile_record_shapes": True, "profile_with_module": False, "mstx": True,
    }  # fmt: skip
    return SimpleNamespace(**{**defaults, **given})


def made(own, *, by_position=False):
    """Return the profiler's state after a job has made two groups of workers with the same options."""
    found = OwnProfiler()
    for _ in range(2):
        found.group_begins(
            None, (None,) * 6 + (own,) if by_position else (), {} if by_position else {"profiler_config": own}
        )
    return found


@pytest.fixture
def _asked(monkeypatch):
    """Ask for the framework's configuration."""
    monkeypatch.setenv("STEPPROF_FROM", "framework")


@pytest.mark.usefixtures("_asked")
class TestTakeOver:
    @pytest.mark.parametrize("by_position", [False, True])
    def test_configuration(self, by_position) -> None:
        """The configuration is valid and has the steps and options of MindSpeed-RL's profiler, which is
        switched off.
        """
        own = options()
        config = load(made(own, by_position=by_position).as_configuration())
        assert [step for step in range(9) if step in config.policy(None).steps] == [3, 4]
        assert (config.npu.level, config.npu.record_shapes, config.npu.mstx) == ("level1", True, True)
        assert not own.profile

    def test_some_ranks_and_stages_can_be_selected(self) -> None:
        """Ranks can be selected. If a stage is selected, each iteration is its own capture."""
        found = made(options(profile_ranks=[0, 3], stage="actor_update")).as_configuration()
        assert (found["ranks"], found["join_steps"]) == ([0, 3], False)

    @pytest.mark.parametrize("own", [None, options(profile=False), options(profile_step_end=3)])
    def test_no_steps(self, own) -> None:
        """If the profiler would record no step, the error names its option."""
        with pytest.raises(ConfigError, match=r"profiler_config\.integrated"):
            made(own).as_configuration()


class TestBoth:
    def test_steps_of_both_profilers_are_reported(self, tmp_path) -> None:
        """The steps that both profilers record are logged, and MindSpeed-RL's profiler stays on."""
        cell.adapters["mindspeed_rl.timers"] = {"status": "attached"}
        stepprof.init({"steps": [4], "backend": "null", "output_dir": str(tmp_path)})
        own = options()
        with capture_logs() as lines:
            made(own).settle("mindspeed_rl.timers")
        stepprof.shutdown()
        cell.adapters.clear()
        assert own.profile
        assert [each["steps"] for each in lines if each["event"] == "adapter.other_profiler"] == [[4]]

    def test_a_profiler_that_is_off_is_not_read(self) -> None:
        """A profiler that is off has no configuration to read."""
        assert made(options(profile=False)).as_configuration() is None

"""The options of slime's own profiler become the configuration of stepprof."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

import stepprof
from stepprof.config.config import load
from stepprof.errors import ConfigError
from stepprof.integrations.slime_job import take_over


def options(**given):
    """Return the options of a job that profiles the trainings 3 and 4, counted from 0."""
    defaults = {"use_pytorch_profiler": True, "profile_target": ["train_overall"], "profile_step_start": 3, "profile_step_end": 5}  # fmt: skip
    return SimpleNamespace(**{**defaults, **given})


@pytest.fixture
def _asked(monkeypatch):
    """Ask for the framework's configuration."""
    monkeypatch.setenv("STEPPROF_FROM", "framework")


@pytest.mark.usefixtures("_asked")
class TestTakeOver:
    def test_steps(self) -> None:
        """The steps count from the first rollout of the job and end before `profile_step_end`. slime's
        profiler is switched off.
        """
        args = options()
        profiler = take_over(args)
        assert profiler.as_configuration(0)["steps"] == [4, 5]
        assert profiler.as_configuration(100)["steps"] == [104, 105]
        assert not args.use_pytorch_profiler

    def test_configuration(self) -> None:
        """The configuration is valid, with shapes and stacks. Engines are off, because slime's profiler
        does not record SGLang.
        """
        config = load(take_over(options()).as_configuration(0))
        assert config.torch.with_stack
        assert config.torch.record_shapes
        assert not config.policy("rollout").enabled

    @pytest.mark.parametrize(
        ("given", "key"),
        [
            ({"use_pytorch_profiler": False}, "--use-pytorch-profiler"),
            ({"profile_target": ["train_actor"]}, "--profile-target"),
            ({"profile_step_end": 3}, "--profile-step-end"),
        ],
    )
    def test_settings_without_a_counterpart_are_refused(self, given, key) -> None:
        """The error names the option, and slime's profiler is unchanged."""
        args = options(**given)
        before = args.use_pytorch_profiler
        with pytest.raises(ConfigError, match=key):
            take_over(args)
        assert args.use_pytorch_profiler is before


class TestBoth:
    @pytest.mark.parametrize(("begin", "reported"), [(3, [[3, 4]]), (0, [[3, 4]]), (4, [[4]]), (5, [])])
    def test_steps_of_both_profilers_are_reported(self, tmp_path, begin, reported) -> None:
        """The common steps are logged. slime's profiler also occupies the step before its range, in which
        it warms up.
        """
        stepprof.init({"steps": [3, 4], "backend": "null", "output_dir": str(tmp_path)})
        args = options(profile_step_start=begin, profile_step_end=6)
        with capture_logs() as lines:
            take_over(args).settle("slime", 0)
        stepprof.shutdown()
        assert args.use_pytorch_profiler
        assert [each["steps"] for each in lines if each["event"] == "adapter.other_profiler"] == reported

    def test_a_profiler_that_is_off_needs_no_settling(self) -> None:
        """If slime's profiler is off, there is no configuration to settle."""
        assert take_over(options(use_pytorch_profiler=False)) is None

"""The steps that torchtitan's own profiler would record, and failures of a job."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import stepprof
from stepprof.errors import ConfigError
from stepprof.instrument.context import cell
from stepprof.integrations import torchtitan


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Configure a job; end its session afterwards."""
    for name, value in (("STEPS", "9"), ("BACKEND", "null"), ("OUTPUT_DIR", str(tmp_path))):
        monkeypatch.setenv(f"STEPPROF_{name}", value)
    yield tmp_path
    torchtitan._jobs.clear()
    stepprof.shutdown()


def trainer(steps=30, **profiler):
    """Return a trainer with this number of steps, torchtitan's defaults and its profiler switched on."""
    own = dict.fromkeys(("profiler_repeat", "profiler_skip_first", "profiler_skip_first_wait"))
    own |= {"enable_profiling": True, "profile_freq": 10, "profiler_active": 1, "profiler_warmup": 3}
    config = SimpleNamespace(
        profiler=SimpleNamespace(**own | profiler), training=SimpleNamespace(steps=steps)
    )
    return SimpleNamespace(config=config, step=1)


class TestOwnSteps:
    @pytest.mark.torch
    @pytest.mark.parametrize(
        ("profiler", "steps"),
        [
            ({}, [10, 20, 30]),
            ({"profiler_repeat": 1}, [10]),
            ({"profiler_active": 2, "profiler_skip_first": 5}, [14, 15, 24, 25]),
            ({"enable_profiling": False}, []),
        ],
    )
    def test_steps_are_those_of_torchs_schedule(self, profiler, steps) -> None:
        """The steps are those of torch's schedule, counted from 1; there are none if the profiler is off."""
        assert torchtitan._own_steps(trainer(**profiler).config) == steps

    @pytest.mark.torch
    def test_a_profiler_without_steps_is_refused(self, environment, monkeypatch) -> None:
        """If torchtitan's profiler would record no step, the error names its option."""
        monkeypatch.setenv("STEPPROF_FROM", "framework")
        with pytest.raises(ConfigError, match=r"profiler\.enable_profiling"):
            torchtitan._training_begins(trainer(steps=5), (), {})
        assert cell.session is None


class TestSpans:
    @pytest.mark.torch
    def test_a_failed_step_is_closed(self, environment) -> None:
        """If the span of the step ends with an error, the step is closed. The end of the training ends the
        session.
        """
        begun = torchtitan._training_begins(trainer(enable_profiling=False), (), {})
        span = SimpleNamespace(base_name="step")
        torchtitan._span_begins(span, (), {})
        assert torchtitan._jobs[0].loop.step == 1
        torchtitan.close_kept(span, (RuntimeError, RuntimeError("the loss is not finite"), None), {})
        assert torchtitan._jobs[0].loop.step is None
        torchtitan._training_ends(begun, None)
        assert cell.session is None

    def test_without_a_session_a_span_records_nothing(self) -> None:
        """Without a session, a span is unchanged."""
        span = SimpleNamespace(base_name="optim")
        torchtitan._span_begins(span, (), {})
        torchtitan.close_kept(span, (None, None, None), {})
        assert vars(span) == {"base_name": "optim"}

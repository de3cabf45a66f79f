"""Jobs that ask for the steps of their framework's own profiler, and the settings that have priority over
them.
"""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf
from structlog.testing import capture_logs

import stepprof
from stepprof.errors import ConfigError
from stepprof.instrument.context import cell
from stepprof.integrations import own_profiler
from stepprof.run.runs import list_runs, read_run


class TestAsked:
    def test_only_the_variable_replaces_the_profiler(self, monkeypatch) -> None:
        """The framework's profiler is replaced only if STEPPROF_FROM is `framework`. Another value raises
        ConfigError.
        """
        assert not own_profiler.is_asked_for()
        monkeypatch.setenv("STEPPROF_FROM", "framework")
        assert own_profiler.is_asked_for()
        monkeypatch.setenv("STEPPROF_FROM", "verl")
        with pytest.raises(ConfigError, match="STEPPROF_FROM"):
            own_profiler.is_asked_for()


class TestOverrides:
    def test_variables_are_on_top(self, monkeypatch) -> None:
        """A variable has priority over the framework's configuration, as the output folder is often set
        for a whole cluster.
        """
        monkeypatch.setenv("STEPPROF_OUTPUT_DIR", "/shared")
        given = OmegaConf.create({"steps": [2], "output_dir": "here"})
        assert own_profiler.with_overrides(given) == {"steps": [2], "output_dir": "/shared"}

    def test_without_a_framework_configuration_the_environment_counts(self) -> None:
        """Without a configuration of the framework, no override is made, so the environment's own
        configuration is used.
        """
        assert own_profiler.with_overrides(None) is None


@pytest.fixture
def session(tmp_path):
    """Start a session that records steps 2 and 3."""
    cell.adapters["framework"] = {"status": "attached", "version": "1"}
    stepprof.init({"steps": [2, 3], "backend": "null", "output_dir": str(tmp_path)})
    yield tmp_path
    stepprof.shutdown()
    del cell.adapters["framework"]


class TestSettle:
    def test_a_replaced_profiler_is_recorded_in_the_run(self, session) -> None:
        """`run.json` states the option that the configuration is from."""
        own_profiler.settle("framework", "--steps", [2], take_over=True)
        stepprof.shutdown()
        (run,) = list_runs(session)
        assert read_run(run)["adapters"]["framework"]["configuration"] == "--steps"

    @pytest.mark.parametrize(("steps", "reported"), [([1, 2], [[2]]), ([4], [])])
    def test_steps_of_both_profilers_are_reported(self, session, steps, reported) -> None:
        """The steps that both profilers record are logged."""
        with capture_logs() as lines:
            own_profiler.settle("framework", "--steps", steps, take_over=False)
        assert [each["steps"] for each in lines if each["event"] == "adapter.other_profiler"] == reported

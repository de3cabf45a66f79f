"""The variables of NeMo-RL's own profiling become the configuration of stepprof."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

import stepprof
from stepprof.config.config import load
from stepprof.errors import ConfigError
from stepprof.integrations import nemo_rl_nsys


@pytest.fixture(autouse=True)
def _configured(monkeypatch):
    """Profile the steps 3 and 4."""
    monkeypatch.setenv(nemo_rl_nsys.RANGE, "3:5")
    monkeypatch.setenv(nemo_rl_nsys.PATTERNS, "*policy*")


@pytest.fixture
def _asked(monkeypatch):
    """Ask for the framework's configuration."""
    monkeypatch.setenv("STEPPROF_FROM", "framework")


READ = {nemo_rl_nsys.RANGE: "3:5", nemo_rl_nsys.PATTERNS: "*policy*"}


@pytest.fixture
def module(monkeypatch):
    """Return NeMo-RL's module that has read the variables."""
    found = SimpleNamespace(**READ)
    monkeypatch.setitem(sys.modules, "frame.nsys", found)
    return found


@pytest.mark.usefixtures("_asked")
class TestTakeOver:
    def test_steps(self) -> None:
        """The range 3:5 selects the steps 3 and 4, and the configuration is valid."""
        given = nemo_rl_nsys.as_configuration()
        assert given is not None
        assert given["steps"] == [3, 4]
        assert [each for each in range(9) if each in load(given).policy(None).steps] == [3, 4]

    def test_switching_off_forgets_both_variables(self, module) -> None:
        """`take_over` clears both variables in NeMo-RL's module."""
        nemo_rl_nsys.take_over("frame.nsys")
        assert vars(module) == dict.fromkeys(READ, "")

    @pytest.mark.parametrize("value", ["", "3", "5:5", "5:3", "a:b", "-1:2"])
    def test_an_empty_range_is_refused(self, monkeypatch, value) -> None:
        """An empty or invalid range is refused; the error names the variable."""
        monkeypatch.setenv(nemo_rl_nsys.RANGE, value)
        with pytest.raises(ConfigError, match=nemo_rl_nsys.RANGE):
            nemo_rl_nsys.as_configuration()

    def test_missing_patterns_are_refused(self, monkeypatch) -> None:
        """Missing patterns are refused, because NeMo-RL would profile nothing without them."""
        monkeypatch.delenv(nemo_rl_nsys.PATTERNS)
        with pytest.raises(ConfigError, match=nemo_rl_nsys.PATTERNS):
            nemo_rl_nsys.as_configuration()


class TestBeside:
    def test_an_unasked_job_keeps_its_own_profiling(self, module) -> None:
        """Without STEPPROF_FROM, NeMo-RL's own profiling is unchanged."""
        nemo_rl_nsys.take_over("frame.nsys")
        assert vars(module) == READ
        assert nemo_rl_nsys.as_configuration() is None

    @pytest.mark.parametrize(("steps", "reported"), [([4, 9], [[4]]), ([5], [])])
    def test_steps_of_both_profilers_are_reported(self, tmp_path, steps, reported) -> None:
        """The steps that both profilers record are logged."""
        stepprof.init({"steps": steps, "backend": "null", "output_dir": str(tmp_path)})
        with capture_logs() as lines:
            nemo_rl_nsys.settle("nemo_rl.nsys")
        stepprof.shutdown()
        assert [each["steps"] for each in lines if each["event"] == "adapter.other_profiler"] == reported

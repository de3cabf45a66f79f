"""Stages of verl's ranks, samples of its agent loops, and the environment of its processes on other nodes."""

from __future__ import annotations

import pytest

import stepprof
from stepprof.integrations import verl_processes
from stepprof.run.runs import list_runs
from stepprof.run.spans import read_spans


@pytest.fixture
def spans(tmp_path):
    """Return a function that ends the session and returns the spans of step 2."""
    stepprof.init({"steps": "9", "backend": "null", "output_dir": str(tmp_path)})

    def read():
        stepprof.shutdown()
        (run,) = list_runs(tmp_path)
        return list(read_spans(run, step=2))

    yield read
    stepprof.shutdown()


class TestSample:
    def test_has_a_number_and_a_step(self, spans) -> None:
        """A sample has the step that sent its prompt, and the number of its sample and rollout."""
        trajectory = {"step": 2, "sample_index": 5, "rollout_n": 0, "validate": False}
        token = verl_processes._sample_begins(None, ({}, trajectory), {"session_id": 1})
        verl_processes._sample_ends(token, None)
        (span,) = spans()
        assert (span["name"], span["step"], span["attrs"]) == ("agent_loop", 2, {"sample": "5.1"})

    @pytest.mark.parametrize("reported", [{"step": -1, "validate": False}, {"step": 7, "validate": True}])
    def test_a_sample_belongs_to_the_open_step(self, spans, reported) -> None:
        """If verl gives no usable step, as in fully asynchronous training or an evaluation, the sample
        belongs to the open window.
        """
        with stepprof.profile_step(2, role="rollout"):
            token = verl_processes._sample_begins(
                None, ({}, {"sample_index": 5, "rollout_n": 0, **reported}), {}
            )
            verl_processes._sample_ends(token, None)
        assert [(each["name"], each["role"]) for each in spans() if each["kind"] == "region"] == [
            ("agent_loop", "rollout")
        ]


class TestEnvironment:
    def test_variables_reach_other_nodes(self, monkeypatch) -> None:
        """The variables of stepprof are added to the environment of Ray's processes, because other nodes
        do not have the job's environment.
        """
        monkeypatch.setenv("STEPPROF_STEPS", "2")
        made = verl_processes.with_variables({"env_vars": {"A": "1"}}, (), {})
        assert made == {"env_vars": {"A": "1", "STEPPROF_STEPS": "2"}}

    def test_keys_of_hydra_become_variables(self) -> None:
        """The keys of `+stepprof` in Hydra's configuration become variables of the job's processes."""
        config = {"stepprof": {"steps": [2, 5], "ranks": "all"}}
        made = verl_processes.with_variables({"env_vars": {}}, (config,), {})
        assert made["env_vars"] == {"STEPPROF_STEPS": "2,5", "STEPPROF_RANKS": "all"}

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


def stage(name, role):
    """Run a stage as the patch does."""
    verl_processes._stage_ends(verl_processes._begin_stage(name, role), None)


class TestStage:
    def test_is_in_the_window_of_its_role(self, spans) -> None:
        """A rank hears of the windows of one role; the others begin in its stages."""
        with stepprof.profile_step(2):
            stage("ref_compute_log_prob", "ref")
            with stepprof.profile_step(2, role="actor"):
                stage("actor_update", "actor")
        found = [(each["name"], each["kind"], each["role"]) for each in spans()]
        assert sorted(found, key=str) == [
            ("actor", "window", "actor"),
            ("actor_update", "region", "actor"),
            ("ref", "window", "ref"),
            ("ref_compute_log_prob", "region", "ref"),
            ("step", "window", None),
        ]

    def test_outside_of_every_step(self, spans) -> None:
        """The first update of the weights comes before the first step: no window is opened for it."""
        stage("update_weights", "weight_sync")
        assert spans() == []


class TestSample:
    def test_has_a_number_and_a_step(self, spans) -> None:
        """A sample is of the step that sent its prompt, whatever step runs meanwhile."""
        trajectory = {"step": 2, "sample_index": 5, "rollout_n": 0, "validate": False}
        token = verl_processes._sample_begins(None, ({}, trajectory), {"session_id": 1})
        verl_processes._sample_ends(token, None)
        (span,) = spans()
        assert (span["name"], span["step"], span["attrs"]) == ("agent_loop", 2, {"sample": "5.1"})


class TestEnvironment:
    def test_variables_reach_other_nodes(self, monkeypatch) -> None:
        """Ray starts processes there without the environment of the job."""
        monkeypatch.setenv("STEPPROF_STEPS", "2")
        made = verl_processes.with_variables({"env_vars": {"A": "1"}}, (), {})
        assert made == {"env_vars": {"A": "1", "STEPPROF_STEPS": "2"}}

    def test_keys_of_hydra_become_variables(self) -> None:
        """`+stepprof.steps=[2,5]` switches the processes of the job on as well."""
        config = {"stepprof": {"steps": [2, 5], "ranks": "all"}}
        made = verl_processes.with_variables({"env_vars": {}}, (config,), {})
        assert made["env_vars"] == {"STEPPROF_STEPS": "2,5", "STEPPROF_RANKS": "all"}

"""Test a complete verl job on a CPU with verl's own SGLang servers. One environment variable
records ranks, engines and weight sync.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import verl_job

from stepprof.analysis.report.analyse import analyse
from stepprof.analysis.timeline.find import find
from stepprof.analysis.verify import verify_run
from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs, read_run, steps
from stepprof.run.spans import read_spans

pytestmark = pytest.mark.timeout(1200)

STUBS = Path(__file__).parents[1] / "sglang" / "stubs"
ADAPTERS = ("verl", "verl.v0", "verl.timers", "verl.workers", "verl.agent_loop", "verl.reward_loop")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Run a job of three steps, of which the second is recorded."""
    given = {"SGLANG_USE_CPU_ENGINE": "1", "STEPPROF_STEPS": "2", "STEPPROF_RANKS": "all"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(STUBS), prepend=os.pathsep)
        job = verl_job.run(tmp_path_factory.mktemp("verl") / "job", config="tiny_sglang", **given)
    assert job.code == 0, job.output[-8000:]
    return job


@pytest.fixture(scope="module")
def run(recorded):
    """Return the run directory of the job."""
    (found,) = list_runs(recorded.folder / "stepprof-runs")
    return found


def test_every_participant_is_recorded(run) -> None:
    """The requested step contains both ranks and both servers, and all are complete. No file that
    the manifest names is missing.
    """
    assert steps(run) == [2]
    manifest = read_step(run, 2)
    assert {each["status"] for each in manifest["windows"]} <= {"complete", "joined"}
    assert {each["rank"] for each in manifest["windows"]} >= {0, 1}
    rollout = [each for each in manifest["engines"] if each["role"] == "rollout"]
    assert {(each["kind"], each["replica"], each["status"]) for each in rollout} == {
        ("sglang", 0, "complete"),
        ("sglang", 1, "complete"),
    }
    assert all(each["name"].startswith("SGLangHttpServer:") for each in rollout)
    assert verify_run(run).problems == []


def test_phases_are_roles(run) -> None:
    """verl's phases open windows of their roles, in the recorded step and in another one."""
    for step in (2, 3):
        roles = {each["name"] for each in read_spans(run, step=step) if each["kind"] == "window"}
        assert roles >= {"rollout", "actor", "ref", "critic", "weight_sync"}


def test_the_report_has_the_forward_steps_of_both_servers(recorded, run) -> None:
    """The report has at least 16 forward steps of each server: the samples have 16 tokens each."""
    found = analyse(find([run], output_dir=recorded.folder, step=2), workers=1).rollout
    forward = {
        each.label: each.iterations for each in found if each.iterations and each.label != "all engines"
    }
    assert set(forward) == {"rollout/0 worker 0", "rollout/1 worker 0"}
    assert min(forward.values()) >= 16


def test_the_engines_have_the_weights_of_the_trainer(recorded) -> None:
    """In each step SGLang and the trainer compute the same token probabilities: verl's update of
    the weights also works while a step is recorded.
    """
    assert set(recorded.metrics) == {1, 2, 3}
    for metrics in recorded.metrics.values():
        assert metrics["training/rollout_probs_diff_max"] < 1e-4


def test_versions_are_noted(recorded, run) -> None:
    """`run.json` names the adapters that attached. The line about the step is logged although verl
    logs only from level WARNING on.
    """
    noted = read_run(run)["adapters"]
    assert {name: noted[name]["status"] for name in ADAPTERS} == dict.fromkeys(ADAPTERS, "attached")
    assert recorded.output.count("step 2 is recorded") == 1

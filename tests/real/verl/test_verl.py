"""Test a complete verl job on a CPU that one environment variable records: ranks, engines, agent
loop, reward, weight sync.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import verl_job

from stepprof.analysis.verify import verify_run
from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs, read_run, steps
from stepprof.run.spans import read_spans

pytestmark = pytest.mark.timeout(1200)

PHASES = {
    *("gen", "old_log_prob", "ref", "values", "adv"),
    *("update_critic", "update_actor", "update_weights"),
}
STAGES = {"actor_compute_log_prob", "ref_compute_log_prob", "actor_update", "train_batch", "update_weights"}
ROLES = {"rollout", "actor", "ref", "critic", "advantage", "weight_sync"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Run a job of three steps with an evaluation after the last. The second step is recorded."""
    folder = tmp_path_factory.mktemp("verl") / "job"
    job = verl_job.run(folder, "trainer.test_freq=3", STEPPROF_STEPS="2", STEPPROF_RANKS="all")
    assert job.code == 0, job.output[-5000:]
    return job


@pytest.fixture(scope="module")
def run(recorded):
    """Return the run directory of the job."""
    (found,) = list_runs(recorded.folder / "stepprof-runs")
    return found


def spans(run, step, **wanted):
    """Return the names of the spans of a step."""
    return {
        each["name"]
        for each in read_spans(run, step=step)
        if all(each.get(k) == v for k, v in wanted.items())
    }


class TestRecordedJob:
    def test_every_participant_is_recorded(self, run) -> None:
        """The requested step contains both ranks and both engines, and all are complete."""
        assert steps(run) == [2]
        manifest = read_step(run, 2)
        assert {each["status"] for each in manifest["windows"]} <= {"complete", "joined"}
        assert {each["status"] for each in manifest["engines"]} <= {"complete", "joined"}
        labels = {f"{each['role']}/{each['replica']}" for each in manifest["engines"]}
        assert labels >= {"rollout/0", "rollout/1"}
        assert {each["rank"] for each in manifest["windows"]} >= {0, 1}

    def test_phases_are_roles_and_regions(self, run) -> None:
        """Each of verl's timers is a region, and opens the window of its role."""
        names = spans(run, 2)
        assert names >= PHASES | STAGES | ROLES | {
            "agent_loop",
            "generate_sequences",
            "compute_score",
            "reward",
        }

    def test_steps_that_are_not_recorded_keep_their_spans(self, run) -> None:
        """The spans of the other steps have the phases, for comparison."""
        assert spans(run, 1) >= PHASES
        assert spans(run, 3) >= PHASES | STAGES | ROLES | {"agent_loop", "reward"}
        assert spans(run, 3, rank=0) >= STAGES | {"actor", "ref", "critic", "weight_sync"}

    def test_an_evaluation_has_a_role_of_its_own(self, run) -> None:
        """The evaluation has the role `eval`, so that its samples do not mix with those of the step
        before.
        """
        assert spans(run, 3, role="eval") >= {"eval", "testing", "agent_loop", "reward"}
        assert "eval" not in spans(run, 2)

    def test_check(self, run) -> None:
        """No file that the manifest names is missing."""
        assert verify_run(run).problems == []

    def test_samples_have_the_times_of_their_requests(self, recorded, run) -> None:
        """Each of the 16 samples is one request. Its tokens add up to verl's count, and its times
        are within the sample's own.
        """
        command = [sys.executable, "-m", "stepprof", "report", str(run), "--step", "2"]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=300, check=True)
        (found,) = [each for each in json.loads(done.stdout)["rollout"] if each["sample_seconds"]]
        assert found["first_token"]["count"] == found["generated_tokens"]["count"] == 16
        mean = recorded.metrics[2]["response_length/mean"]
        assert {each["requests"] for each in found["samples"]} == {1}
        assert len(found["samples"]) == 16
        assert sum(each["generated_tokens"] for each in found["samples"]) == pytest.approx(16 * mean)
        for each in found["samples"]:
            assert each["first_token"] > 0
            generating = each["first_token"] + (each["per_token"] or 0) * (each["generated_tokens"] - 1)
            assert 0 < generating < each["seconds"]["generate_sequences"]

    def test_report(self, run) -> None:
        """The report covers the ranks and the engines."""
        command = [sys.executable, "-m", "stepprof", "report", str(run), "--step", "2"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        assert "the step took" in done.stdout
        for reported in (
            "rank 0",
            "rank 1",
            "rollout/0",
            "rollout/1",
            "driver",
            "agent-loop",
            "first token",
            "per token",
        ):
            assert reported in done.stdout

    def test_versions_are_noted(self, run) -> None:
        """`run.json` names the adapters that attached."""
        noted = read_run(run)["adapters"]
        assert {name: entry["status"] for name, entry in noted.items() if name.startswith("verl")} == dict.fromkeys(
            ("verl", "verl.v0", "verl.timers", "verl.workers", "verl.agent_loop", "verl.reward_loop", "verl.vllm", "verl.requests", "verl.answers"), "attached"
        )  # fmt: skip

    def test_one_log_line_names_the_recorded_step(self, recorded) -> None:
        """verl logs only from level WARNING on. The line about the recorded step is logged
        nevertheless.
        """
        assert recorded.output.count("step 2 is recorded: 4 files") == 1


class TestUnrecordedJob:
    def test_learns_the_same(self, recorded, tmp_path) -> None:
        """A job that is not recorded has the same rewards and gradients as the recorded one."""
        job = verl_job.run(tmp_path / "job", "trainer.total_training_steps=2")
        assert job.code == 0, job.output[-5000:]
        for step, metrics in job.metrics.items():
            same = recorded.metrics[step]
            assert metrics["critic/rewards/mean"] == same["critic/rewards/mean"]
            for name in ("actor/grad_norm", "actor/kl_loss", "actor/entropy", "critic/grad_norm"):
                assert metrics[name] == pytest.approx(same[name], rel=1e-4)

    def test_nothing_is_patched(self, tmp_path) -> None:
        """Without a variable, verl's functions are not replaced, and stepprof is not imported."""
        verl_job.prepare(tmp_path)
        script = (
            "import sys, verl, verl.workers.engine_workers as workers\n"
            "assert workers.ActorRolloutRefWorker.update_actor.__code__.co_filename.startswith(verl.__path__[0])\n"
            "assert 'stepprof_verl' in sys.modules and 'stepprof' not in sys.modules\n"
        )
        command = [sys.executable, "-c", script]
        subprocess.run(command, cwd=tmp_path, env=verl_job.environment(tmp_path), check=True, timeout=300)

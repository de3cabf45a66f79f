"""Test verl's other trainers, each in a complete job of one rank and one replica. `nox -s verl`
runs the first, `nox -s verl_modes` runs all.
"""

from __future__ import annotations

import pytest
import verl_job

from stepprof.analysis.verify import verify_run
from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs, read_run, steps
from stepprof.run.spans import read_spans

pytestmark = pytest.mark.timeout(1000)

OF_RANKS = {"actor", "ref", "weight_sync"}
ROLES = {"rollout", "advantage"} | OF_RANKS
ONE_RANK = ("trainer.n_gpus_per_node=1", "trainer.test_freq=3")
EXPERIMENTAL = "verl.experimental"
NO_CRITIC = "algorithm.adv_estimator=reinforce_plus_plus"
"""The experimental trainers refuse a critic with FSDP2."""
STATISTICS = "actor_rollout_ref.rollout.disable_log_stats=False"
"""Makes vLLM return the times of requests."""

MODES = {
    # the adapter, the program, the configuration, its changes
    "separate_async": ("verl", "verl.trainer.main_ppo", "tiny_separate", (STATISTICS,)),
    "colocate_async": (
        "verl",
        "verl.trainer.main_ppo",
        "tiny",
        (*ONE_RANK, "trainer.v1.trainer_mode=colocate_async"),
    ),
    "v0": ("verl.v0", "verl.trainer.main_ppo", "tiny", (*ONE_RANK, "trainer.use_v1=False")),
    "one_step_off": (
        "verl.one_step_off",
        f"{EXPERIMENTAL}.one_step_off_policy.main_ppo",
        "tiny_separate",
        (NO_CRITIC,),
    ),
    "fully_async": (
        "verl.fully_async",
        f"{EXPERIMENTAL}.fully_async_policy.fully_async_main",
        "tiny_separate",
        (
            NO_CRITIC,
            "data.train_batch_size=0",
            "data.gen_batch_size=1",
            "+actor_rollout_ref.actor.use_rollout_log_probs=True",
            "algorithm.rollout_correction.bypass_mode=True",
        ),
    ),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_step_is_recorded(mode, tmp_path) -> None:
    """The step that the variable selects contains the rank and the engine. Every phase is a role,
    in the trainer and in the rank.
    """
    adapter, program, config, changes = MODES[mode]
    job = verl_job.run(
        tmp_path / "job", *changes, program=program, config=config, STEPPROF_STEPS="2", STEPPROF_RANKS="all"
    )
    assert job.code == 0, job.output[-5000:]
    (run,) = list_runs(tmp_path / "job" / "stepprof-runs")
    attached = read_run(run)["adapters"][adapter]
    assert (attached["status"], attached["version"]) == ("attached", "0.9.1")
    assert attached.get("model") in (None, str(tmp_path / "job" / "model"))
    assert steps(run) == [2]
    manifest = read_step(run, 2)
    assert {each["status"] for each in manifest["windows"]} <= {"complete", "joined"}
    engines = {(each["kind"], each["status"]) for each in manifest["engines"]}
    assert engines - {("vllm", "complete"), ("vllm", "partial")} == {("rank", "complete"), ("rank", "joined")}
    if mode == "v0":  # the others generate ahead: all samples of the step may already exist
        assert ("vllm", "complete") in engines
    critic = set() if NO_CRITIC in changes else {"critic"}
    found = {(each["role"], each["rank"]) for each in read_spans(run, step=2) if each["kind"] == "window"}
    assert found >= {(role, "driver") for role in ROLES | critic}
    assert found >= {(role, 0) for role in OF_RANKS | critic}
    if STATISTICS in changes:
        spans = [each for each in read_spans(run) if each["name"] == "request"]
        marks = [
            each["attrs"] for each in spans if "sample" in each["attrs"]
        ]  # the first ones begin before the session
        assert marks
        assert all(each["first_token_seconds"] > 0 for each in marks)
        assert all(each["decode_seconds"] > 0 for each in marks if each["generated_tokens"] > 1)
    assert verify_run(run).problems == []
    assert job.output.count("step 2 is recorded") == 1

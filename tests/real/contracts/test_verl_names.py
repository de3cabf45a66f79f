"""Test the adapters of verl with its wheel, including the modes and engines that no test runs."""

from __future__ import annotations

import ast

import pytest
from wheels import assigns, packages

from stepprof.integrations import verl, verl_actors, verl_requests
from stepprof.integrations.source_check import missing_in_source

V1 = "trainer/ppo/v1/trainer_base"
V0 = "trainer/ppo/ray_trainer"
ONE_STEP_OFF = "experimental/one_step_off_policy/ray_trainer"
FULLY_ASYNC = "experimental/fully_async_policy/fully_async_trainer"
ROLLOUTER = "experimental/fully_async_policy/fully_async_rollouter"
SEPARATION = "experimental/separation/ray_trainer"
GROUPS = set(verl_actors.GROUPS)

TIMERS = {
    V1: {"step", "gen", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor", "testing"},
    V0: {"step", "gen", "reward", "old_log_prob", "values", "adv", "update_critic", "update_actor", "update_weights", "testing"},
    SEPARATION: {"step", "reward", "old_log_prob", "values", "adv", "update_critic", "update_actor", "update_weights", "testing"},
    ONE_STEP_OFF: {"step", "gen"},
    FULLY_ASYNC: {"step", "gen", "timing_s/param_sync"},
}  # fmt: skip
"""The timers that open a window, in each file."""


@pytest.fixture
def wheel(monkeypatch):
    """Return the folder of verl's package."""
    monkeypatch.syspath_prepend(str(packages("verl")))
    return packages("verl") / "verl"


def entered(file):
    """Return the names of the timers that a file enters: the first argument of each `marked_timer(…)`."""
    calls = [each for each in ast.walk(ast.parse(file.read_bytes())) if isinstance(each, ast.Call)]
    timers = [each for each in calls if isinstance(each.func, ast.Name) and each.func.id == "marked_timer"]
    return {each.args[0].value for each in timers if isinstance(each.args[0], ast.Constant)}


class TestNames:
    def test_names_and_parameters(self, wheel) -> None:
        """The wheel has every name and parameter that the adapters need."""
        missing = {each.name: missing_in_source(each) for each in verl.ADAPTERS}
        # vLLM is not installed here; the tests of complete jobs have it
        assert missing.pop("verl.requests") in ([], [verl_requests.ENGINE])
        assert missing == {each: [] for each in missing}

    @pytest.mark.parametrize(
        ("file", "owner", "attributes"),
        [
            (V1, "PPOTrainer", {*GROUPS, "reward_loop_manager", "global_steps"}),
            (V0, "RayPPOTrainer", {*GROUPS, "reward_loop_manager", "llm_server_manager", "async_rollout_manager", "global_steps"}),
            (ONE_STEP_OFF, "OneStepOffRayTrainer", {"llm_server_manager", "async_rollout_manager", "global_steps"}),
            (FULLY_ASYNC, "FullyAsyncTrainer", {"rollouter", "checkpoint_manager", "hybrid_checkpoint_manager", "global_steps"}),
            (ROLLOUTER, "FullyAsyncRollouter", {"async_rollout_manager", "reward_loop_manager"}),
            ("checkpoint_engine/base", "CheckpointEngineManager", {"replicas"}),
            ("experimental/agent_loop/agent_loop", "AgentLoopManager", {"agent_loop_workers"}),
            ("workers/rollout/replica", "RolloutReplica", {"servers"}),
            ("workers/rollout/vllm_rollout/vllm_pd_replica", "vLLMPDReplica", {"servers", "_decode_servers"}),
            ("workers/rollout/sglang_rollout/sglang_pd_replica", "SGLangPDReplica", {"servers", "_decode_servers"}),
            ("workers/rollout/vllm_rollout/vllm_async_server", "vLLMHttpServer", {"engine"}),
            ("workers/rollout/sglang_rollout/async_sglang_server", "SGLangHttpServer", {"tokenizer_manager"}),
        ],
    )  # fmt: skip
    def test_attributes(self, wheel, file, owner, attributes) -> None:
        """Groups, managers and engines are attributes, which no signature shows. The wheel assigns
        them.
        """
        assert attributes <= assigns(wheel / f"{file}.py", owner)

    @pytest.mark.parametrize("file", TIMERS)
    def test_timers(self, wheel, file) -> None:
        """The trainers enter each timer that opens a window."""
        assert {*verl.ROLES, "step"} & entered(wheel / f"{file}.py") >= TIMERS[file]

    def test_a_fully_asynchronous_trainer_ends_by_an_exception(self, wheel) -> None:
        """The exception leaves the timer of the step, which ends the session."""
        text = (wheel / f"{FULLY_ASYNC}.py").read_text()
        assert "raise TrainingStopException" in text
        assert "except TrainingStopException" in text

"""Test the adapters of NeMo-RL, which has no wheel. Names are compared with its interface, and
windows come from a skeleton on a real Ray.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from interface import load, missing_in_interface
from running import run_job as run_skeleton

from stepprof.integrations import nemo_rl
from stepprof.run.manifest import read_step
from stepprof.run.runs import read_run, steps
from stepprof.run.spans import read_spans

pytestmark = pytest.mark.timeout(500)

DRIVER = "driver"
HERE = Path(__file__).parent
MODULES = ("algorithms/grpo", "distributed/worker_groups", "utils/nsys", "utils/timer")
MODELS = "nemo_rl.models"


class TestNames:
    @pytest.mark.parametrize("adapter", nemo_rl.ADAPTERS, ids=lambda each: each.name)
    def test_names_and_parameters(self, adapter) -> None:
        """The interface has every name that the adapters need."""
        assert missing_in_interface(adapter, load("nemo_rl")) == []

    @pytest.mark.parametrize("target", nemo_rl.TRAINERS)
    def test_each_loop_has_a_step_timer_and_known_parameters(self, target) -> None:
        """Each loop starts the timer of a step. All objects to attach are in known parameters."""
        module = f"nemo_rl.algorithms.{target.partition(':')[0]}"
        assert nemo_rl.STEP in load("nemo_rl")["timers"][module]
        assert {*nemo_rl.TRAINERS[target]} <= {*nemo_rl.GROUPS, *nemo_rl.GENERATIONS}

    def test_timers(self) -> None:
        """NeMo-RL starts each timer that is a role or an evaluation, or that has a special meaning."""
        started = {name for names in load("nemo_rl")["timers"].values() for name in names}
        assert {*nemo_rl.ROLES, *nemo_rl.EVALUATIONS, nemo_rl.SAMPLING, nemo_rl.TRAINING} <= started

    @pytest.mark.parametrize(
        ("module", "owner", "attributes"),
        [
            ("policy.lm_policy", "Policy", {"worker_group"}),
            ("policy.teacher_worker_group", "TeacherWorkerGroup", {"worker_group"}),
            ("value.lm_value", "Value", {"worker_group"}),
            ("generation.vllm.vllm_generation", "VllmGeneration", {"worker_group", "cfg"}),
            ("generation.vllm.vllm_worker", "BaseVllmGenerationWorker", {"llm"}),
        ],
    )
    def test_attributes(self, module, owner, attributes) -> None:
        """Groups of ranks and engines are attributes, which no signature shows. The interface has
        them.
        """
        assert attributes <= set(load("nemo_rl")["modules"][f"{MODELS}.{module}"][owner])

    def test_addresses(self) -> None:
        """The object that generates has a method that returns the URLs of SGLang's servers."""
        found = load("nemo_rl")["modules"][f"{MODELS}.generation.sglang.sglang_generation"]
        assert found["SGLangGeneration.get_rollout_engine_urls"] == []


def run_job(folder, *arguments, **environment):
    """Run a job of the skeleton and record its second step. Return its run and its output."""
    for module in MODULES:
        place = folder / "nemo_rl" / f"{module}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "skeletons" / "nemo_rl" / place.name, place)
    options = [] if environment else ["--steps", "2", "--ranks", "all"]
    found, done = run_skeleton(
        folder,
        "nemo_rl_job.py",
        *arguments,
        options=[*options, "--backend", "null"],
        trained="trained",
        **environment,
    )
    assert "adapter.failed" not in done.stderr, done.stderr
    return found, done


def spans(run, step, kind):
    """Return the windows or regions of a step in the order in which they begin."""
    found = [each for each in read_spans(run, step=step) if each["kind"] == kind]
    return sorted(found, key=lambda each: each["start"])


def roles(run, step):
    """Return the roles of the driver's windows in a step, in their order."""
    return [each["role"] for each in spans(run, step, "window") if each["rank"] == DRIVER]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run a job of three steps, and return its run."""
    return run_job(tmp_path_factory.mktemp("nemo_rl"))[0]


@pytest.mark.ray
class TestJob:
    def test_windows(self, run) -> None:
        """Each step has one window, and one of each timed phase. A step that samples twice is one
        step.
        """
        sampled = ["weight_sync", "rollout", "reward"]
        trained = ["experience", "advantage", "actor"]
        assert {step: roles(run, step) for step in range(4)} == {
            0: ["eval"],
            1: [None, *sampled, *trained],
            2: [None, *sampled, *sampled, *trained, "eval"],
            3: [None, *sampled, *trained],
        }

    def test_regions(self, run) -> None:
        """Other timers of the driver and of the ranks become regions."""
        found = Counter((each["name"], each["rank"] == DRIVER) for each in spans(run, 2, "region"))
        assert found == {
            ("data_processing", True): 2,
            ("prepare_for_generation/total", True): 2,
            ("dynamic_sampling", True): 2,
            ("checkpointing", True): 1,
            ("offload_before_refit", False): 4,
            ("get_logprobs", False): 2,
            ("train", False): 2,
        }

    def test_recorded_step(self, run) -> None:
        """Each rank records step 2 of NeMo-RL's log. The driver tries to start SGLang's server."""
        assert steps(run) == [2]
        manifest = read_step(run, 2)
        assert {each["status"] for each in manifest["windows"]} == {"complete", "joined"}
        found = Counter((each["role"], each["status"]) for each in manifest["engines"])
        assert found["actor", "complete"] == 2
        (error,) = {each["error"] for each in manifest["engines"] if each["role"] == "rollout"}
        assert "http://127.0.0.1:9 cannot be reached" in error

    def test_adapters(self, run) -> None:
        """The adapters of the imported modules are attached. A checkout has no version, so their
        status is `untested`.
        """
        assert {name: each["status"] for name, each in read_run(run)["adapters"].items()} == {
            **dict.fromkeys(("nemo_rl.timer", "nemo_rl.nsys", "nemo_rl.grpo"), "untested"),
            "ray": "attached",
        }

    def test_a_step_that_fails(self, tmp_path) -> None:
        """The windows of a failed step have the error, and the exception reaches the job."""
        run, done = run_job(tmp_path, "fails")
        assert "failed: out of memory" in done.stdout
        failed = [each["role"] for each in spans(run, 3, "window") if each.get("error")]
        assert failed == [None, "actor"]
        assert steps(run) == [2]

    def test_own_profiler(self, tmp_path) -> None:
        """With `STEPPROF_FROM=framework`, stepprof replaces NeMo-RL's own profiler. No worker
        starts under nsys.
        """
        own = {"NRL_NSYS_PROFILE_STEP_RANGE": "2:3", "NRL_NSYS_WORKER_PATTERNS": "*policy*"}
        run, done = run_job(tmp_path, STEPPROF_FROM="framework", **own)
        assert steps(run) == [2]
        assert read_run(run)["adapters"]["nemo_rl.nsys"]["configuration"] == "NRL_NSYS_PROFILE_STEP_RANGE"
        assert "own profiler" not in done.stdout
        assert "workers below nsys False" in done.stdout

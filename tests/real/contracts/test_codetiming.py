"""Test the adapters of ROLL and MindSpeed-RL, which have no wheel. Names are compared with their
interface, and windows come from a skeleton with codetiming's own timers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from interface import load, missing_in_interface
from running import run_job, spans
from skeleton import build
from wheels import packages

from stepprof.integrations import mindspeed_rl, roll
from stepprof.integrations.mindspeed_rl_profiler import FIELDS
from stepprof.integrations.source_check import missing_in_source
from stepprof.integrations.timed_job import CODETIMING
from stepprof.run.manifest import read_step
from stepprof.run.runs import read_run, steps

pytestmark = pytest.mark.timeout(500)

TIMERS = ["codetiming/__init__.py", "codetiming/_timer.py", "codetiming/_timers.py"]
SKELETONS = {
    "roll": {
        "roll/pipeline/rlvr/rlvr_pipeline.py": "rlvr_pipeline",
        "roll/pipeline/base_worker.py": "base_worker",
        "roll/distributed/executor/cluster.py": "cluster",
        "roll/utils/worker_state.py": "worker_state",
        "roll/configs/base_config.py": "base_config",
    },
    "mindspeed_rl": {
        "mindspeed_rl/trainer/base.py": "base",
        "mindspeed_rl/trainer/grpo_trainer_hybrid.py": "grpo_trainer_hybrid",
        "mindspeed_rl/workers/scheduler/launcher.py": "launcher",
    },
}


class TestNames:
    @pytest.mark.parametrize("adapter", [*roll.ADAPTERS, *mindspeed_rl.ADAPTERS], ids=lambda each: each.name)
    def test_names_and_parameters(self, adapter) -> None:
        """The interface of the frameworks has every name that the adapters need, except those of
        codetiming.
        """
        missing = missing_in_interface(adapter, load(adapter.name.partition(".")[0]))
        assert set(missing) <= set(CODETIMING)

    def test_codetiming(self, monkeypatch) -> None:
        """codetiming's timer has the names that the adapters patch."""
        monkeypatch.syspath_prepend(str(packages("codetiming")))
        (adapter,) = (each for each in roll.ADAPTERS if set(each.needs) == set(CODETIMING))
        assert missing_in_source(adapter) == []

    def test_timers_of_roll(self) -> None:
        """ROLL's pipelines enter each timer that is a role, the step or the evaluation."""
        entered = {name for names in load("roll")["timers"].values() for name in names}
        assert {*roll.ROLES, *roll.STEPS, *roll.EVALUATIONS} <= entered

    @pytest.mark.parametrize("target", mindspeed_rl.TRAINERS)
    def test_timer_of_mindspeed_rl(self, target) -> None:
        """Both trainers time the complete iteration."""
        assert load("mindspeed_rl")["timers"][target.partition(":")[0]] == [mindspeed_rl.STEP]

    def test_attributes(self) -> None:
        """Clusters, groups, their actors and the state are attributes, which no signature shows.
        The interface has them.
        """
        found = load("roll")["modules"]
        module, _, owner = roll.PIPELINES[0].partition(":")
        assert {"actor_train", "actor_infer", "critic", "references"} <= set(found[module][owner])
        assert {"workers", "worker_config"} <= set(found["roll.distributed.executor.cluster"]["Cluster"])
        assert "strategy" in found["roll.pipeline.base_worker"]["InferWorker"]
        module, _, owner = mindspeed_rl.GROUP.partition(":")
        assert "actor_handlers" in load("mindspeed_rl")["modules"][module][owner]

    def test_own_profiler_of_mindspeed_rl(self) -> None:
        """The options that stepprof reads are attributes of MindSpeed-RL's configuration. The group
        takes that configuration as its seventh argument.
        """
        found = load("mindspeed_rl")["modules"]
        assert set(FIELDS) <= set(found["mindspeed_rl.config_cls.mindstudio_config"]["ProfilerConfig"])
        module, _, owner = mindspeed_rl.GROUP.partition(":")
        assert found[module][f"{owner}.__init__"][6] == "profiler_config"


def run_of(folder, framework):
    """Run the job of a skeleton with its second step recorded, and return its run."""
    here = Path(__file__).parent
    stubs = {
        file: (here / "skeletons" / framework / f"{name}.py").read_text()
        for file, name in SKELETONS[framework].items()
    }
    build("codetiming", folder, TIMERS, stubs)
    return run_job(folder, f"{framework}_job.py")[0]


@pytest.fixture(scope="module")
def of_roll(tmp_path_factory):
    """Return the run of ROLL's skeleton."""
    return run_of(tmp_path_factory.mktemp("roll"), "roll")


@pytest.fixture(scope="module")
def of_mindspeed(tmp_path_factory):
    """Return the run of MindSpeed-RL's skeleton."""
    return run_of(tmp_path_factory.mktemp("mindspeed_rl"), "mindspeed_rl")


@pytest.mark.ray
class TestRoll:
    def test_windows(self, of_roll) -> None:
        """Each step has one window with the number of ROLL's log, from 0. The pipeline and the
        three ranks have it and the windows of their phases.
        """
        assert spans(of_roll, 3, "window") == {
            **dict.fromkeys(("rollout", "advantage"), 1),
            None: 4,
            "weight_sync": 3,
            "ref": 2,
            "actor": 6,
        }
        assert spans(of_roll, 0, "window")["rollout"] == spans(of_roll, 1, "window")["eval"] == 1

    def test_a_step_that_is_skipped(self, of_roll) -> None:
        """The window of a skipped step is closed, and the step keeps its own number."""
        assert spans(of_roll, 2, "window")["actor"] == 3
        assert spans(of_roll, 2, "window")[None] == 4

    def test_other_timers_are_regions(self, of_roll) -> None:
        """Other timers become regions with ROLL's names, in the pipeline and in the ranks."""
        found = spans(of_roll, 3, "region")
        assert (found["step_stop_server"], found["reward_postprocess"]) == (1, 1)
        assert (found["compute_log_probs"], found["train_step"]) == (3, 2)

    def test_the_recorded_step(self, of_roll) -> None:
        """The recorded step is step 2 of ROLL's log. It is complete and contains the selected
        ranks.
        """
        assert steps(of_roll) == [2]
        manifest = read_step(of_roll, 2)
        assert {each["status"] for each in manifest["windows"]} == {"complete", "joined"}
        ranks = {each["role"] for each in manifest["engines"] if each["status"] == "complete"}
        assert ranks == {"actor", "ref"}

    def test_adapters(self, of_roll) -> None:
        """A checkout has no version, so the status of the adapters is `untested`."""
        adapters = read_run(of_roll)["adapters"]
        found = {name: each["status"] for name, each in adapters.items() if name.startswith("roll.")}
        assert found == dict.fromkeys(("roll.RLVRPipeline", "roll.timers"), "untested")


class TestMindSpeed:
    def test_windows(self, of_mindspeed) -> None:
        """Each iteration has one window with the number of the log, also in a job that resumes."""
        assert spans(of_mindspeed, 1, "window") == {}
        assert spans(of_mindspeed, 2, "window") == spans(of_mindspeed, 3, "window") == {None: 1, "actor": 1}

    def test_calls_are_regions(self, of_mindspeed) -> None:
        """Calls of the groups become regions with the names of the methods."""
        assert spans(of_mindspeed, 3, "region") == dict.fromkeys(
            ("generate_sequences", "compute_rm_score", "compute_ref_log_prob", "compute_log_prob", "wait_all_ref_objs_run_over"),
            1,
        )  # fmt: skip

    def test_the_recorded_step(self, of_mindspeed) -> None:
        """The recorded step is step 2 of the log. The session ends before Ray does, so its windows
        are complete or joined.
        """
        assert steps(of_mindspeed) == [2]
        assert {each["status"] for each in read_step(of_mindspeed, 2)["windows"]} == {"complete", "joined"}

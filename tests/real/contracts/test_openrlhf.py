"""Test the adapter of OpenRLHF with its wheel: names and parameters by reading it, windows by
running its driver on a real Ray.
"""

from __future__ import annotations

import pytest
from running import SECOND_STEP, run_job
from skeleton import ANYTHING, build
from wheels import assigns, packages

from stepprof.integrations import openrlhf
from stepprof.integrations.source_check import missing_in_source
from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs, read_run, steps
from stepprof.run.spans import read_spans

pytestmark = pytest.mark.timeout(500)

KEPT = [
    f"openrlhf/{name}.py"
    for name in (
        *("trainer/ppo_trainer", "trainer/ppo_utils/samples_generator", "trainer/ppo_utils/experience_maker"),
        *(
            "trainer/ppo_utils/experience",
            "trainer/ppo_utils/kl_controller",
            "trainer/ppo_utils/length_penalty",
        ),
        *("trainer/ray/launcher", "trainer/ray/vllm_engine", "trainer/ray/utils"),
        *("models/utils", "utils/logging_utils", "utils/seqlen_balancing"),
    )
]
STRATEGY = """
class DeepspeedStrategy:
    def __init__(self, args): self.args = args
    def setup_dataloader(self, data, *args, **kwargs): return data
"""
DATASETS = """
class PromptDataset(list):
    def __init__(self, data, *args, **kwargs):
        super().__init__(("source", [f"prompt {each}"], ["label"], [None]) for each in data)
    collate_fn = None
    def state_dict(self): return {}
"""
BLENDING = """
class Rows(list):
    def select(self, which): return Rows(which)
def blending_datasets(*args, max_count=1, **kwargs): return Rows(range(max_count))
"""
TOKENIZER = """
import torch
class Tokenizer:
    pad_token_id = 0
    def decode(self, tokens, **_): return ["text"]
def get_tokenizer(*args, **kwargs): return Tokenizer()
def zero_pad_sequences(tensors, *args, **kwargs): return torch.cat(tensors)
"""
STUBS = {
    "deepspeed/__init__.py": ANYTHING,
    "vllm/__init__.py": ANYTHING,
    "vllm/inputs.py": ANYTHING,
    "vllm/utils.py": ANYTHING,
    "openrlhf/datasets/__init__.py": DATASETS,
    "openrlhf/datasets/utils.py": BLENDING,
    "openrlhf/models/__init__.py": ANYTHING,
    "openrlhf/utils/agent.py": ANYTHING,
    "openrlhf/utils/deepspeed.py": STRATEGY,
    "openrlhf/utils/utils.py": TOKENIZER,
}


@pytest.fixture(scope="module")
def wheel():
    """Return the folder of OpenRLHF's package."""
    return packages("openrlhf")


class TestNames:
    def test_names_and_parameters(self, wheel, monkeypatch) -> None:
        """The wheel has every name and parameter that the adapters need."""
        monkeypatch.syspath_prepend(str(wheel))
        assert {each.name: missing_in_source(each) for each in openrlhf.ADAPTERS} == {
            each.name: [] for each in openrlhf.ADAPTERS
        }

    @pytest.mark.parametrize(
        ("file", "owner", "attributes"),
        [
            ("trainer/ppo_trainer", "BasePPOTrainer", {*openrlhf.GROUPS, "vllm_engines", "args"}),
            ("trainer/ppo_trainer", "PPOTrainer", {"eval_dataloader"}),
            ("trainer/ray/launcher", "RayActorGroup", {"_actor_handlers"}),
            ("trainer/ray/vllm_engine", "RolloutRayActor", {"llm"}),
        ],
    )
    def test_attributes(self, wheel, file, owner, attributes) -> None:
        """Groups, their actors and the engine are attributes, which no signature shows. The wheel
        assigns them.
        """
        assert attributes <= assigns(wheel / f"openrlhf/{file}.py", owner)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Run a job of three steps with the second one recorded, and return its folder."""
    folder = tmp_path_factory.mktemp("openrlhf")
    build("openrlhf", folder, KEPT, STUBS)
    run_job(folder, "openrlhf_job.py", options=[*SECOND_STEP, "--ranks", "all"])
    return folder


@pytest.fixture
def run(job):
    """Return the run directory of the job."""
    (found,) = list_runs(job / "stepprof-runs")
    return found


def windows(run, step):
    """Return the roles of the windows of a step."""
    return [each["role"] for each in read_spans(run, step=step) if each["kind"] == "window"]


@pytest.mark.ray
class TestJob:
    def test_windows(self, run) -> None:
        """Each step has the number of OpenRLHF's log. Its phases are roles, in the trainer's
        process and in the ranks.
        """
        for step in (1, 2, 3):
            found = windows(run, step)
            assert found.count("rollout") == 1
            assert {each: found.count(each) for each in ("experience", "actor", "weight_sync")} == {
                "experience": 3,  # the trainer, the policy and the reference model
                "actor": 2,
                "weight_sync": 2,
            }

    def test_evaluation(self, run) -> None:
        """An evaluation is a role of the step before it, also after the last step."""
        assert "eval" in windows(run, 2)
        assert "eval" in windows(run, 3)

    def test_the_recorded_step(self, run) -> None:
        """The recorded step is step 2 of OpenRLHF's log. The groups are attached by their roles,
        and the adapter requests the engine's `llm`.
        """
        assert steps(run) == [2]
        manifest = read_step(run, 2)
        engines = manifest["engines"]
        assert {each["status"] for each in engines if each["kind"] == "rank"} <= {"complete", "joined"}
        assert {each["role"] for each in engines} >= {"actor", "ref", "rollout"}
        assert all("llm" in each["error"] for each in engines if each["role"] == "rollout")
        assert {each["status"] for each in manifest["windows"]} <= {"complete", "joined"}

    def test_the_adapter_attaches_in_the_actor(self, run) -> None:
        """The job's process pickles the trainer's class. Its base is patched in the process that
        unpickles it.
        """
        assert read_run(run)["adapters"]["openrlhf"] == {"status": "attached", "version": "0.11.2"}

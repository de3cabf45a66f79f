"""Test the adapter of SkyRL with its wheel: names and parameters by reading it, windows by running
its training loop.
"""

from __future__ import annotations

import pytest
from running import run_job, spans
from skeleton import ANYTHING, build
from wheels import assigns, packages, timers

from stepprof.integrations import skyrl, skyrl_profiler
from stepprof.integrations.source_check import missing_in_source
from stepprof.run.manifest import read_step
from stepprof.run.runs import read_run, steps

pytestmark = pytest.mark.timeout(500)

KEPT = [
    *("skyrl/train/trainer.py", "skyrl/train/utils/utils.py", "skyrl/train/utils/callbacks.py"),
    "skyrl/env_vars.py",
]
LOGGER = """
from unittest.mock import MagicMock
logger = MagicMock()
"""
TENSORS = """
class Float:
    def __class_getitem__(cls, shape): return cls
"""
CLIENT = """
class RemoteInferenceClient:
    def __init__(self, proxy_url, server_urls): ...
"""
RESUMING = """
class ResumeMode: NONE = "none"
"""
PREPARING = """
def prepare_generator_input(*args): return {}, []
"""
OWN_PROFILER = f"""
class TorchProfilerConfig:
    def __init__(self, {", ".join(skyrl_profiler.FIELDS)}): ...
"""
BACKENDS = "skyrl/backends/skyrl_train"
STUBS = {
    "loguru/__init__.py": LOGGER,
    "jaxtyping/__init__.py": TENSORS,
    f"{BACKENDS}/inference_servers/remote_inference_client.py": CLIENT,
    "skyrl/train/config/config.py": OWN_PROFILER + ANYTHING,
    "skyrl/train/utils/__init__.py": "from .utils import *\n",
    "skyrl/train/utils/trainer_utils.py": RESUMING + ANYTHING,
    "skyrl/train/generators/utils.py": PREPARING + ANYTHING,
    **dict.fromkeys(
        [
            *(f"{BACKENDS}/distributed/dispatch.py", f"{BACKENDS}/training_batch.py"),
            *(
                f"{BACKENDS}/{name}.py"
                for name in ("distributed/megatron/quantization_utils", "weight_sync/fp8")
            ),
            *(f"{BACKENDS}/inference_servers/{name}.py" for name in ("base", "engine_utils")),
            *(
                f"{BACKENDS}/utils/{name}.py"
                for name in ("io", "off_policy_correction_utils", "sample_support", "torch_utils")
            ),
            f"{BACKENDS}/utils/ppo_utils.py",
            *(f"{BACKENDS}/workers/{name}.py" for name in ("worker", "worker_dispatch", "worker_utils")),
            *(f"skyrl/train/{name}.py" for name in ("config/__init__", "evaluate")),
            *(
                f"skyrl/train/{name}.py"
                for name in ("dataset/__init__", "dataset/preprocess", "generators/base")
            ),
            *(
                f"skyrl/train/utils/{name}.py"
                for name in ("ray_gpu_monitor", "tracking", "trajectory_logging")
            ),
            "skyrl/train/utils/vllm_metrics_scraper.py",
        ],
        ANYTHING,
    ),
}


@pytest.fixture(scope="module", params=[0, -1], ids=["oldest", "latest"])
def which(request):
    """Return the index of the tested wheel."""
    return request.param


@pytest.fixture(scope="module")
def wheel(which):
    """Return the folder of SkyRL's package."""
    return packages("skyrl", which)


class TestNames:
    def test_names_and_parameters(self, wheel, monkeypatch) -> None:
        """The wheel has every name and parameter that the adapters need."""
        monkeypatch.syspath_prepend(str(wheel))
        assert {each.name: missing_in_source(each) for each in skyrl.ADAPTERS} == {
            each.name: [] for each in skyrl.ADAPTERS
        }

    def test_timers(self, wheel) -> None:
        """The two trainers enter each timer that is a role, the step or the evaluation."""
        entered = timers(wheel / "skyrl/train/trainer.py") | timers(
            wheel / "skyrl/train/fully_async_trainer.py"
        )
        assert entered >= {*skyrl.ROLES, skyrl.STEP, skyrl.EVAL, skyrl.TRAINING}

    @pytest.mark.parametrize(
        ("file", "owner", "attributes"),
        [
            ("train/trainer", "RayPPOTrainer", {*skyrl.GROUPS, "global_step", "inference_engine_client"}),
            ("train/utils/utils", "Timer", {"message"}),
            ("backends/skyrl_train/workers/worker", "PPORayActorGroup", {"_actor_handlers"}),
        ],
    )
    def test_attributes(self, wheel, file, owner, attributes) -> None:
        """Groups, their actors and the step are attributes, which no signature shows. The wheel
        assigns them.
        """
        assert attributes <= assigns(wheel / f"skyrl/{file}.py", owner)


@pytest.fixture(scope="module")
def run(tmp_path_factory, which):
    """Run a job of three steps with the second one recorded, and return its run."""
    folder = build("skyrl", tmp_path_factory.mktemp("skyrl"), KEPT, STUBS, which)
    return run_job(folder, "skyrl_job.py")[0]


class TestJob:
    def test_windows(self, run) -> None:
        """Each step has one window with SkyRL's number, and one of each phase."""
        once = dict.fromkeys(
            (None, "rollout", "experience", "advantage", "critic", "actor", "weight_sync"), 1
        )
        assert spans(run, 1, "window") == once
        assert spans(run, 3, "window") == {**once, "eval": 1}

    def test_dynamic_sampling(self, run) -> None:
        """A step that samples twice has one window with two rollouts."""
        found = spans(run, 2, "window")
        assert (found[None], found["rollout"], found["actor"], found["eval"]) == (1, 2, 1, 1)

    def test_other_timers_are_regions(self, run) -> None:
        """Other timers become regions with SkyRL's names."""
        names = {"postprocess_generator_output", "convert_to_training_input", "train_critic_and_policy"}
        assert names <= set(spans(run, 1, "region"))

    def test_the_recorded_step(self, run, which) -> None:
        """The recorded step is step 2 of SkyRL's count, and all its windows are complete or joined."""
        assert steps(run) == [2]
        assert {each["status"] for each in read_step(run, 2)["windows"]} == {"complete", "joined"}
        assert read_run(run)["adapters"]["skyrl"] == {
            "status": "attached",
            "version": ["0.3.0", "0.4.0"][which],
        }

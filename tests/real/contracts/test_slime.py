"""Test the adapters of slime and miles. Names are compared with the wheel of miles and the
interface of slime, and windows come from their loops on a real Ray.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from interface import load, missing_in_interface
from running import run_job as run_skeleton
from skeleton import build
from wheels import assigns, packages

from stepprof.integrations import slime, slime_job
from stepprof.integrations.source_check import missing_in_source
from stepprof.run.manifest import read_step
from stepprof.run.runs import read_run, steps
from stepprof.run.spans import read_spans

pytestmark = pytest.mark.timeout(500)

DRIVER = "driver"
SKELETON = Path(__file__).with_name("skeletons") / "slime"
KEPT = [
    f"miles/{name}.py"
    for name in ("ray/actor_group", "ray/placement_group", "ray/ray_actor", "ray/utils", "utils/timer", "utils/misc", "utils/async_utils", "utils/ray_utils")
]  # fmt: skip
STUBS = {
    "miles/ray/rollout.py": "from processes import RolloutManager\n",
    "miles/backends/megatron_utils/actor.py": "from processes import MegatronTrainRayActor\n",
    "miles/utils/http_utils.py": "def is_port_available(port): return True\n",
}


def adapters(package):
    """Return the adapters of one of the two packages."""
    return [each for each in slime.ADAPTERS if each.name.partition(".")[0] == package]


class TestNames:
    def test_miles(self, monkeypatch) -> None:
        """The wheel of miles has every name and parameter that its adapters need."""
        monkeypatch.syspath_prepend(str(packages("miles_rl")))
        assert {each.name: missing_in_source(each) for each in adapters("miles")} == {
            "miles": [],
            "miles.timer": [],
        }

    def test_miles_since(self) -> None:
        """The interface of a later commit of miles also has every name that its adapters need."""
        found = load("miles")
        assert [missing_in_interface(each, found) for each in adapters("miles")] == [[], []]
        assert "_actor_handles" in found["modules"]["miles.ray.actor_group"]["RayTrainGroup"]

    def test_slime(self) -> None:
        """The interface of slime has every name that its adapters need, except `ray.get`, which
        belongs to Ray.
        """
        found = load("slime")
        assert {each.name: missing_in_interface(each, found) for each in adapters("slime")} == {
            "slime": ["ray:get"],
            "slime.timer": [],
        }

    def test_attributes_of_miles(self) -> None:
        """The group of miles has its actors and its role, and its engine has an address."""
        folder = packages("miles_rl") / "miles"
        assert {"_actor_handles", "role"} <= assigns(folder / "ray/actor_group.py", "RayTrainGroup")
        engine = assigns(folder / "backends/sglang_utils/sglang_engine.py", "SGLangEngine")
        assert {"server_host", "server_port"} <= engine

    @pytest.mark.parametrize(
        ("package", "module"), [("slime", "ray.rollout"), ("miles", "ray.rollout.rollout_manager")]
    )
    def test_rollout_manager(self, package, module) -> None:
        """The rollout manager has the methods that the loop calls."""
        called = {f"RolloutManager.{name}" for name in (*slime_job.CALLS, "get_updatable_engines_and_lock")}
        assert called <= set(load(package)["modules"][f"{package}.{module}"])

    def test_attributes_of_slime(self) -> None:
        """The group of slime has its actors and its role, and its engine has an address."""
        modules = load("slime")["modules"]
        assert {"_actor_handlers", "role"} <= set(modules["slime.ray.actor_group"]["RayTrainGroup"])
        engine = modules["slime.backends.sglang_utils.sglang_engine"]["SGLangEngine"]
        assert {"server_host", "server_port"} <= set(engine)

    def test_timers(self) -> None:
        """slime's actor has the timer that the adapter ignores and those that the page names."""
        named = {slime.ACROSS_STEPS, "train", "actor_train", "data_preprocess", "ref_model_update"}
        assert named <= set(load("slime")["timers"]["slime.backends.megatron_utils.actor"])


def run_job(folder, package, *arguments, **environment):
    """Run a job with its second step recorded. Return its run and its process."""
    shutil.copy(SKELETON / "processes.py", folder)
    options = [] if environment else ["--steps", "2", "--ranks", "all"]
    return run_skeleton(
        folder,
        f"{package}_job.py",
        *arguments,
        options=[*options, "--backend", "null"],
        PACKAGE=package,
        **environment,
    )


def spans(run, step, kind, rank=None):
    """Return the number of windows (by role) or regions (by name) of a step, for one rank or all
    processes.
    """
    key = "role" if kind == "window" else "name"
    found = [each for each in read_spans(run, step=step) if each["kind"] == kind]
    return Counter(each[key] for each in found if rank in (None, each["rank"]))


def roles(run, step):
    """Return the roles of the driver's windows in a step, in their order."""
    found = [
        each for each in read_spans(run, step=step) if each["kind"] == "window" and each["rank"] == DRIVER
    ]
    return [each["role"] for each in sorted(found, key=lambda each: each["start"])]


@pytest.fixture
def folder(tmp_path):
    """Return the folder of a skeleton of slime."""
    return skeleton(tmp_path)


def skeleton(folder):
    """Put a skeleton of slime into a folder and return the folder."""
    for module in ("ray/actor_group", "ray/placement_group", "observability/timer"):
        place = folder / "slime" / f"{module}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SKELETON / place.name, place)
    return folder


@pytest.fixture(scope="module")
def slime_run(tmp_path_factory):
    """Run a job with a critic, and return its run."""
    return run_job(skeleton(tmp_path_factory.mktemp("slime")), "slime", "critic")[0]


@pytest.fixture(scope="module")
def miles_run(tmp_path_factory):
    """Run a job with the groups and factories of the wheel of miles, and return its run."""
    folder = build("miles_rl", tmp_path_factory.mktemp("miles"), KEPT, STUBS)
    return run_job(folder, "miles")[0]


@pytest.mark.ray
class TestSlime:
    def test_windows(self, slime_run) -> None:
        """Each rollout is a step with a window of each role. An evaluation belongs to the step before."""
        order = {step: roles(slime_run, step) for step in (0, 1, 2, 3)}
        once = [None, "rollout", "critic", "actor", "weight_sync"]
        assert order == {0: ["eval"], 1: once, 2: [*once, "eval"], 3: once}

    def test_regions(self, slime_run) -> None:
        """Other waits of the loop are regions of the driver, and the timers are regions of the
        ranks.
        """
        driver = dict.fromkeys(("offload", "clear_memory", "onload_weights", "onload_kv"), 1)
        ranks = {**dict.fromkeys(("train", "ref_log_probs", "actor_train"), 3), "update_weights": 2}
        assert spans(slime_run, 2, "region") == {**driver, **ranks}
        assert spans(slime_run, 3, "region", DRIVER) == {**driver, "save_model": 1}

    def test_recorded_step(self, slime_run) -> None:
        """Each rank of both groups records the step. The driver tries to start SGLang's server."""
        assert steps(slime_run) == [2]
        manifest = read_step(slime_run, 2)
        assert {each["status"] for each in manifest["windows"]} == {"complete", "joined"}
        found = Counter((each["role"], each["status"]) for each in manifest["engines"])
        assert (found["actor", "complete"], found["critic", "complete"]) == (2, 1)
        (engine,) = (each for each in manifest["engines"] if each["role"] == "rollout")
        assert "http://127.0.0.1:9 cannot be reached" in engine["error"]

    def test_async(self, folder) -> None:
        """A step begins with its training. The wait for the next rollout belongs to the step in
        which the loop waits.
        """
        run, _ = run_job(folder, "slime", "async")
        order = {step: roles(run, step) for step in (1, 2, 3)}
        assert order == {
            1: [None, "rollout", "actor", "rollout"],
            2: [None, "actor", "rollout", "weight_sync"],
            3: [None, "actor"],
        }

    def test_own_profiler(self, folder) -> None:
        """With `STEPPROF_FROM=framework`, stepprof replaces slime's own profiler, whose steps count
        from 0.
        """
        run, done = run_job(folder, "slime", "profile", STEPPROF_FROM="framework")
        assert steps(run) == [2]
        assert read_run(run)["adapters"]["slime"]["configuration"] == "--profile-step-start"
        assert "own profiler False" in done.stdout


@pytest.mark.ray
class TestMiles:
    def test_windows(self, miles_run) -> None:
        """In step 1 only the critic trains. From step 2 on, the policy trains, too."""
        assert {step: roles(miles_run, step) for step in (1, 2, 3)} == {
            1: [None, "rollout", "critic", "weight_sync"],
            2: [None, "rollout", "critic", "actor", "weight_sync", "eval"],
            3: [None, "rollout", "critic", "actor", "weight_sync"],
        }

    def test_recorded_step(self, miles_run) -> None:
        """Three ranks record the step, with the timers of miles as regions."""
        assert steps(miles_run) == [2]
        assert {each["status"] for each in read_step(miles_run, 2)["windows"]} == {"complete", "joined"}
        found = spans(miles_run, 2, "region")
        assert (found["train"], found["actor_train"], found["update_weights"]) == (3, 3, 2)
        assert spans(miles_run, 3, "region")["save_model"] == 3

    def test_adapters(self, miles_run) -> None:
        """The adapters are attached to the version of the tested wheel."""
        adapters = read_run(miles_run)["adapters"]
        assert adapters["miles"] == adapters["miles.timer"] == {"status": "attached", "version": "0.0.2"}

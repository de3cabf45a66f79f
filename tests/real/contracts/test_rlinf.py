"""Test the adapters of RLinf with its wheel: names and parameters by reading it, windows by running
a runner.
"""

from __future__ import annotations

import pytest
from running import run_job, spans
from skeleton import ANYTHING, build
from wheels import assigns, packages

from stepprof.integrations import rlinf
from stepprof.integrations.source_check import missing_in_source
from stepprof.run.manifest import read_step
from stepprof.run.runs import read_run, steps

pytestmark = pytest.mark.timeout(500)

ACCELERATORS = "rlinf/scheduler/hardware/accelerators"
KEPT = [
    *("rlinf/runners/embodied_runner.py", "rlinf/utils/distributed.py", "rlinf/utils/timers.py"),
    f"{ACCELERATORS}/accelerator.py",
]
WORKER = """
class Worker: ...
"""
GROUP = """
class WorkerGroup:
    worker_info_list = property(lambda self: [])
"""
METRICS = """
def compute_evaluate_metrics(found): return {}
def print_metrics_table(*args): ...
"""
PROGRESS = """
def check_progress(step, last, validate, save, *args, **kwargs): return step == validate, False, step == last
"""
HARDWARE = """
class Hardware:
    def register(**_): return lambda found: found
class HardwareConfig: ...
"""
STUBS = {
    "rlinf/scheduler/__init__.py": "from .worker.worker import Worker\n" + ANYTHING,
    "rlinf/scheduler/hardware/hardware.py": HARDWARE + ANYTHING,
    "rlinf/scheduler/worker/worker.py": "from ..hardware.accelerators import accelerator\n" + WORKER,
    "rlinf/scheduler/worker/worker_group.py": GROUP,
    "rlinf/utils/metric_utils.py": METRICS,
    "rlinf/utils/runner_utils.py": PROGRESS,
    "rlinf/utils/logging.py": ANYTHING,
    "rlinf/utils/metric_logger.py": ANYTHING,
}


@pytest.fixture(scope="module")
def wheel():
    """Return the folder of RLinf's package."""
    return packages("rlinf")


def timers(wheel):
    """Return the source of the runners, which start their timers by `self.timer("name")`."""
    return "".join(path.read_text() for path in (wheel / "rlinf/runners").glob("*_runner.py"))


class TestNames:
    def test_names_and_parameters(self, wheel, monkeypatch) -> None:
        """The wheel has every name and parameter that the adapters need."""
        monkeypatch.syspath_prepend(str(wheel))
        assert {each.name: missing_in_source(each) for each in rlinf.ADAPTERS} == {
            each.name: [] for each in rlinf.ADAPTERS
        }

    def test_own_profiler(self, wheel) -> None:
        """The runner that profiles keeps its steps in these attributes, and checks them before each
        step.
        """
        runner = wheel / "rlinf/runners/embodied_runner.py"
        assert {"_profile_steps", "_profile_all_steps", "max_steps"} <= assigns(runner, "EmbodiedRunner")
        assert "self._profile_all_steps or (" in runner.read_text()

    @pytest.mark.parametrize("timer", [rlinf.STEP, *rlinf.ROLES, "eval"])
    def test_timers(self, wheel, timer) -> None:
        """RLinf's runners enter each timer that is a role, the step or the evaluation."""
        assert f'self.timer("{timer}")' in timers(wheel)

    @pytest.mark.parametrize("runner", rlinf.RUNNERS)
    def test_attributes(self, wheel, runner) -> None:
        """The groups and the counter of finished steps are attributes, which no signature shows.
        The wheel assigns them.
        """
        counter, groups = rlinf.RUNNERS[runner]
        module, _, owner = runner.partition(":")
        assert {counter, *groups} <= assigns(wheel / f"{module.replace('.', '/')}.py", owner)

    def test_the_door_into_workers(self, wheel) -> None:
        """RLinf's source calls `register` of its extension module, which stepprof uses to enter the
        workers.
        """
        text = (wheel / "rlinf/scheduler/cluster/utils.py").read_text()
        assert "ext_module.register()" in text


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run a job of three steps with the second one recorded, and return its run."""
    folder = build("rlinf", tmp_path_factory.mktemp("rlinf"), KEPT, STUBS)
    return run_job(folder, "rlinf_job.py")[0]


class TestJob:
    def test_windows(self, run) -> None:
        """Each step has one window with the number of RLinf's checkpoints, and one of each timed
        phase.
        """
        phases = {None: 1, "rollout": 1, "advantage": 1, "weight_sync": 1}
        assert spans(run, 1, "window") == spans(run, 3, "window") == phases
        assert spans(run, 2, "window") == {**phases, "eval": 1}

    def test_ranges_are_regions(self, run) -> None:
        """The profiling ranges of RLinf's workers become regions with their names."""
        assert {"worker/generate", "worker/run_training"} <= set(spans(run, 1, "region"))

    def test_the_recorded_step(self, run) -> None:
        """The recorded step is step 2 of RLinf's count of finished steps."""
        assert steps(run) == [2]
        assert {each["status"] for each in read_step(run, 2)["windows"]} == {"complete", "joined"}
        attached = {"status": "attached", "version": "0.3.0"}
        assert read_run(run)["adapters"] == dict.fromkeys(
            ("rlinf.EmbodiedRunner", "rlinf.timers", "rlinf.workers"), attached
        )

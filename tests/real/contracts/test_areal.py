"""Test the adapters of AReaL with its wheel: names and parameters by reading it, windows by running
its training loop.
"""

from __future__ import annotations

import ast

import pytest
from running import run_job, spans
from skeleton import ANYTHING, build
from wheels import assigns, packages

from stepprof.integrations import areal
from stepprof.integrations.source_check import missing_in_source
from stepprof.run.manifest import read_step
from stepprof.run.runs import read_run, steps

pytestmark = pytest.mark.timeout(500)

TRAINERS = [f"areal/trainer/{name}_trainer.py" for name in ("rl", "sft", "rw", "dpo")]
KEPT = [*TRAINERS, "areal/trainer/__init__.py", "areal/utils/perf_tracer.py", "areal/utils/environ.py"]
LOGGING = """
from logging import getLogger
def setup_file_logging(*args): ...
"""
TIMINGS = """
import contextlib
def record_timing(name): return contextlib.nullcontext()
"""
JSON = """
import json
loads = json.loads
def dumps(value, *args, **kwargs): return json.dumps(value).encode()
"""
PLATFORM = """
from types import SimpleNamespace
current_platform = SimpleNamespace(synchronize=lambda: None)
"""
STUBS = {
    "orjson/__init__.py": JSON,
    "torchdata/__init__.py": ANYTHING,
    "torchdata/stateful_dataloader.py": ANYTHING,
    "areal/infra/__init__.py": PLATFORM + ANYTHING,
    "areal/utils/logging.py": LOGGING,
    "areal/utils/stats_tracker.py": TIMINGS,
    **dict.fromkeys(
        [
            *(f"areal/api/{name}.py" for name in ("__init__", "alloc_mode", "cli_args")),
            "areal/engine/__init__.py",
            "areal/experimental/inference_service/controller/controller.py",
            *(
                f"areal/infra/data_service/{name}.py"
                for name in ("__init__", "controller/config", "rdataset")
            ),
            "areal/infra/utils/concurrent.py",
            *(
                f"areal/utils/{name}.py"
                for name in ("data", "dataloader", "evaluator", "hf_utils", "recover")
            ),
            *(f"areal/utils/{name}.py" for name in ("saver", "seeding", "stats_logger")),
        ],
        ANYTHING,
    ),
}


@pytest.fixture(scope="module")
def wheel():
    """Return the folder of AReaL's package."""
    return packages("areal")


def scopes(file):
    """Return the names of the scopes that a file enters, if they are literals."""
    calls = (each for each in ast.walk(ast.parse(file.read_bytes())) if isinstance(each, ast.Call))
    entered = (each for each in calls if getattr(each.func, "attr", None) == "trace_scope")
    return {each.args[0].value for each in entered if isinstance(each.args[0], ast.Constant)}


class TestNames:
    def test_names_and_parameters(self, wheel, monkeypatch) -> None:
        """The wheel has every name and parameter that the adapters need."""
        monkeypatch.syspath_prepend(str(wheel))
        assert {each.name: missing_in_source(each) for each in areal.ADAPTERS} == {
            each.name: [] for each in areal.ADAPTERS
        }

    def test_scopes(self, wheel) -> None:
        """The trainers enter each scope that is a role. Every scope of the trainers has the prefix."""
        entered = set().union(*(scopes(wheel / file) for file in TRAINERS))
        assert entered >= {*areal.ROLES}
        assert {name[: len(areal.PREFIX)] for name in entered} == {areal.PREFIX}

    @pytest.mark.parametrize("name", ["local", "ray", "slurm"])
    def test_schedulers(self, wheel, name) -> None:
        """Each scheduler has its workers by role, and the roles that share the workers of another
        role.
        """
        owner = f"{name.capitalize()}Scheduler"
        assert {"_workers", "_colocated_roles"} <= assigns(wheel / f"areal/infra/scheduler/{name}.py", owner)

    def test_attributes(self, wheel) -> None:
        """The trainer's scheduler and servers are attributes, which no signature shows. The wheel
        assigns them.
        """
        assert {"scheduler", "rollout", "rollout_alloc", "config"} <= assigns(
            wheel / TRAINERS[0], "PPOTrainer"
        )
        controller = wheel / "areal/infra/controller/rollout_controller.py"
        assert "server_infos" in assigns(controller, "RolloutController")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Return a function that runs a job of three steps and returns its run."""
    folder = build("areal", tmp_path_factory.mktemp("areal"), KEPT, STUBS)
    null = ("--backend", "null")

    def run(output, *options, **environment):
        return run_job(folder, "areal_job.py", options=[*options, *null], output=output, **environment)[0]

    return run


@pytest.fixture(scope="module")
def driver(job):
    """Return the run of a job in which one process drives the others. Its second step is recorded."""
    return job("driver", "--steps", "2")


class TestDriver:
    def test_windows(self, driver) -> None:
        """Each step has one window with the number of AReaL's log, and the windows of its phases."""
        phases = {None: 1, "rollout": 1, "critic": 2, "ref": 1, "actor": 2, "advantage": 1, "weight_sync": 1}
        assert spans(driver, 1, "window") == spans(driver, 3, "window") == phases
        assert spans(driver, 2, "window") == {**phases, "eval": 1}

    def test_scopes_are_regions(self, driver) -> None:
        """Scopes become regions, also in modules that import the tracer's functions by name, and
        through its decorator.
        """
        names = {"train.save", "train.log_stats", "train.eval", "fsdp_engine.forward", "ppo_actor.ppo_update"}
        assert names <= set(spans(driver, 1, "region"))

    def test_work_before_the_rollout_belongs_to_the_next_step(self, driver) -> None:
        """A scope without a step number that comes before the first numbered scope belongs to the
        step that begins.
        """
        assert (
            spans(driver, 2, "region")["train.rollout_onload"] == 2
        )  # one before the rollout, one before the evaluation

    def test_the_recorded_step(self, driver) -> None:
        """The recorded step is step 2 of AReaL's log, and all its windows are complete or joined."""
        assert steps(driver) == [2]
        assert {each["status"] for each in read_step(driver, 2)["windows"]} == {"complete", "joined"}
        attached = {"status": "attached", "version": "1.0.4"}
        assert read_run(driver)["adapters"] == {"areal": attached, "areal.scopes": attached}


class TestOtherJobs:
    def test_each_rank_runs_the_loop(self, job) -> None:
        """Without a scheduler, the process is a rank and records its own windows."""
        run = job("ranks", "--steps", "2", AREAL_SPMD_MODE="1")
        assert {each["rank"] for each in read_step(run, 2)["windows"]} == {0}

    def test_steps_of_its_own_profiler(self, job) -> None:
        """With `STEPPROF_FROM=framework`, stepprof records the steps of
        `perf_tracer.profile_steps`, which counts from 0.
        """
        assert steps(job("own", STEPPROF_FROM="framework")) == [2]

"""Test Ray's own nsight plug-in with an executable on PATH that replaces nsys. Ranks in actors that
were created under it follow the driver's windows, and their reports are moved to the step's folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from nsys.tools import HERE, build, closed, read_log

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(180)]

JOB = """
import json, os, sys, warnings
import ray
import stepprof
from stepprof.backends.nsys import ray_runtime_env

warnings.simplefilter("ignore")
config = {
    "output_dir": "runs",
    "steps": "2, 4",
    "ranks": "all",
    "backend": "nsys",
    "engine_start_timeout_seconds": 30,
    "engine_stop_timeout_seconds": 30,
    "roles": {"ref": {"nsys": {"report_timeout_seconds": 1}}},
}

class Trainer:
    def update(self):
        with stepprof.region("update"):
            with stepprof.region("forward"):
                pass
            try:
                with stepprof.region("failing"):
                    raise ValueError
            except ValueError:
                pass
        return os.getpid()

class AsyncTrainer:
    async def update(self):
        async with stepprof.region("update"):
            pass
        return os.getpid()

class Rollout:
    def __init__(self, folder):
        sys.path.insert(0, folder)
        from nsys.engines import engine
        self.engine = engine()

    def generate(self):
        return os.getpid()

def made(cls, rank, role, *arguments, engine=False, **env):
    environment = ray_runtime_env(config, roles=[role], rank=rank, engine=engine)
    environment["env_vars"].update(env)
    return ray.remote(num_cpus=0, runtime_env=environment)(cls).remote(*arguments)

ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
actors = [made(Trainer, 0, "actor"), made(AsyncTrainer, 1, "actor", NSYS_STAND_IN="late 0.5")]
never = made(Trainer, 0, "ref", NSYS_STAND_IN="never")
ray.get([actor.update.remote() for actor in (*actors, never)])
rollouts = [
    made(Rollout, None, "rollout", sys.argv[1], engine=True, NSYS_STAND_IN="late 3"),
    made(Rollout, None, "rollout", sys.argv[1], engine=True, NSYS_STAND_IN="never"),
]
apart = os.path.join(os.getcwd(), "apart")
stepprof.init(config, run_id="job")
stepprof.attach(actors, role="actor", kind="rank")
stepprof.attach(never, role="ref", kind="rank")
stepprof.attach(rollouts[0], role="rollout", output_dir=apart)
stepprof.attach(rollouts[1], role="rollout")
pids = {}
for step in range(1, 5):
    with stepprof.profile_step(step, role="rollout"):
        pids["rollout"] = ray.get([actor.generate.remote() for actor in rollouts])
    with stepprof.profile_step(step, role="actor"):
        pids["actor"] = ray.get([actor.update.remote() for actor in actors])
    with stepprof.profile_step(step, role="ref"):
        pids["ref"] = [ray.get(never.update.remote())]
pending = stepprof.state().pending_exports
stepprof.shutdown(20)
assert any(label.startswith("rollout/") for label in pending), pending
print(json.dumps(pids))
nsight = os.path.join(ray._private.worker.global_worker.node.get_logs_dir_path(), "nsight")
print(json.dumps([name for name in os.listdir(nsight) if name.endswith("nsys-rep")]))
ray.shutdown()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Run the job once. Return its folder, the process ids that it printed, and the reports that it left."""
    folder = tmp_path_factory.mktemp("job")
    tools = build(tmp_path_factory.mktemp("tools"))
    (folder / "job.py").write_text(JOB)
    env = {
        **os.environ,
        "PATH": tools.path(),
        "NVTX_LOG": str(folder / "nvtx.jsonl"),
        "NSYS_STAND_IN_LOG": str(folder / "nsys.jsonl"),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    done = subprocess.run(
        [sys.executable, "job.py", str(HERE.parent)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pids, left = map(json.loads, done.stdout.splitlines()[-2:])
    return folder, pids, left


def windows(folder, role):
    return {
        (content["step"], window["rank"]): window
        for path in sorted(folder.glob("runs/job/step-*/manifest/*.json"))
        for content in [json.loads(path.read_text())]
        for window in content["windows"]
        if window["role"] == role and window["backend"] == "nsys"
    }


def engines(folder, replica):
    return {
        content["step"]: entry
        for path in sorted(folder.glob("runs/job/step-*/manifest/*.json"))
        for content in [json.loads(path.read_text())]
        for entry in content["engines"]
        if (entry["role"], entry["replica"]) == ("rollout", replica)
    }


class TestNsight:
    def test_reports_of_two_ranks(self, recorded):
        """A plain and an async actor record two steps. Each of the four reports is that of the
        right process, and none is left behind.
        """
        folder, pids, left = recorded
        found = windows(folder, "actor")
        assert found.keys() == {(step, rank) for step in (2, 4) for rank in (0, 1)}
        assert Counter(window["status"] for window in found.values()) == {"complete": 4}, found
        for (step, rank), window in found.items():
            assert window["pid"] == pids["actor"][rank]
            path = folder / f"runs/job/step-{step:06d}/actor/rank-{rank}.nsys-rep"
            assert json.loads(path.read_text()) == {"range": step // 2, "pid": window["pid"]}
        assert left == []

    def test_a_report_that_never_appears(self, recorded):
        """The windows are lost, and the error names the folder that was searched."""
        folder, _, _ = recorded
        found = windows(folder, "ref")
        assert [window["status"] for window in found.values()] == ["lost", "lost"]
        assert all(
            "nsys wrote no report to" in window["error"] and "logs/nsight" in window["error"]
            for window in found.values()
        )

    def test_reports_of_an_engine(self, recorded):
        """The engine is in an actor on another disk, and nsys writes its reports late. They are
        fetched once they exist, and the training loop does not wait.
        """
        folder, pids, _ = recorded
        found = engines(folder, 0)
        assert {step: entry["status"] for step, entry in found.items()} == {2: "complete", 4: "complete"}, (
            found
        )
        for step, entry in found.items():
            (artifact,) = entry["artifacts"]
            assert (entry["kind"], artifact["path"]) == ("vllm", "rollout/replica-0/engine.nsys-rep")
            path = folder / f"runs/job/step-{step:06d}" / artifact["path"]
            assert json.loads(path.read_text()) == {"range": step // 2, "pid": pids["rollout"][0]}
            assert entry["stop_seconds"] < 3

    def test_an_engine_s_report_that_never_appears(self, recorded):
        """The entries of the engine are lost, and the error of the actor names the missing report."""
        folder, _, _ = recorded
        found = engines(folder, 1)
        assert [entry["status"] for entry in found.values()] == ["lost", "lost"]
        assert all("nsys wrote no report to" in entry["error"] for entry in found.values()), found

    def test_ray_runs_nsys_with_our_options(self, recorded):
        """Ray runs nsys with stepprof's options for each actor."""
        folder, _, _ = recorded
        calls = [json.loads(line)["options"] for line in (folder / "nsys.jsonl").read_text().splitlines()]
        actors = [options for options in calls if not options["o"].endswith("/empty")]
        assert len(actors) == 5
        assert {options["capture-range-end"] for options in actors} == {"repeat:2:async"}
        assert {options["discard-environment"] for options in actors} == {"true"}
        assert {Path(options["o"]).name for options in actors} == {
            "stepprof_rank-0_%p",
            "stepprof_rank-1_%p",
            "stepprof_%p",
        }

    def test_ranges_of_the_actors(self, recorded):
        """Ranges are closed in order in each process. The range of a coroutine belongs to its
        process.
        """
        folder, pids, _ = recorded
        by_process = {
            pid: closed([event for event in read_log(folder / "nvtx.jsonl") if event["pid"] == pid])
            for pid in (*pids["actor"], *pids["ref"])
        }
        plain, coroutine = (by_process[pid] for pid in pids["actor"])
        assert plain.pushed == {"update": 2, "forward": 2, "failing": 2}
        assert coroutine.started == {"step 2 actor": 1, "step 4 actor": 1, "update": 2}
        assert plain.category("update") == "actor"

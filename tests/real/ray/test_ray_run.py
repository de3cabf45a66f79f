"""Test that `stepprof run` reaches the workers of a Ray that the job starts, and of a running
cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepprof.run.manifest import read_step

pytestmark = pytest.mark.ray

JOB = """
import json, ray
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)

@ray.remote
def look():
    import os, sys
    return ["stepprof_autoload" in sys.modules, "" in sys.path, os.environ["PYTHONPATH"].split(os.pathsep)]

print(json.dumps(ray.get(look.remote())))
"""


RUNNING = """
import json, os, sys
import ray

def look():
    import os, sys
    names = ("STEPPROF_STEPS", "STEPPROF_OUTPUT_DIR", "STEPPROF_RANKS", "THEIRS", "HOOKED")
    return {
        "adapters": "stepprof_autoload" in sys.modules,
        "theirs": any(each.endswith("their folder") for each in sys.path),
        "ray is not patched": "stepprof.integrations.ray" not in sys.modules,
        **{name: os.environ.get(name) for name in names},
    }

def hook():
    import os
    os.environ["HOOKED"] = "yes"

def main():
    runtime = RUNTIME
    ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False, runtime_env=runtime)
    print(json.dumps(ray.get(ray.remote(num_cpus=0, resources={sys.argv[2]: 0.01})(look).remote())))

if __name__ == "__main__":
    main()
"""
WITHOUT_STEPPROF = "raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)"


def run(folder: Path, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a job under `stepprof run`, and check that it succeeds."""
    (folder / "job.py").write_text(script)
    recorded = ("-m", "stepprof", "run", "--steps", "2", "--", sys.executable, "job.py")
    done = subprocess.run(
        [sys.executable, *recorded, *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


class TestRay:
    def test_a_worker_has_the_adapters(self, tmp_path: Path) -> None:
        """A worker inherits the path and the variables, so that the adapters are loaded. Its path has no empty
        entry, which would be a working directory before the standard library.
        """
        done = run(tmp_path, JOB, PYTHONPATH="")
        adapters, has_empty, path = json.loads(done.stdout.splitlines()[-1])
        assert adapters, done.stderr
        assert not has_empty
        assert all(path), path


class TestRunningCluster:
    """The workers of a running cluster inherit nothing from the job. They get the variables from
    the job's runtime environment.
    """

    def test_a_worker_has_the_adapters(self, cluster, tmp_path: Path) -> None:
        """The worker has the adapters, the steps, and the folder of the runs as an absolute path."""
        done = run(tmp_path, RUNNING.replace("RUNTIME", "None"), cluster.address, "second")
        found = json.loads(done.stdout.splitlines()[-1])
        assert (found["adapters"], found["STEPPROF_STEPS"]) == (True, "2")
        assert found["STEPPROF_OUTPUT_DIR"] == str(tmp_path / "stepprof-runs")
        assert found["ray is not patched"]

    def test_settings_of_the_job_are_kept(self, cluster, tmp_path: Path) -> None:
        """The job keeps its own variables, its own path, and its own hook in the workers."""
        theirs = '{"env_vars": {"THEIRS": "1", "STEPPROF_STEPS": "7", "PYTHONPATH": "their folder"}, "worker_process_setup_hook": hook}'
        done = run(tmp_path, RUNNING.replace("RUNTIME", theirs), cluster.address, "second")
        found = json.loads(done.stdout.splitlines()[-1])
        assert (found["THEIRS"], found["STEPPROF_STEPS"], found["HOOKED"]) == ("1", "7", "yes")
        assert found["theirs"]
        assert found["adapters"]

    def test_the_hook_of_the_job_runs(self, cluster, tmp_path: Path) -> None:
        """Ray calls the hook that `RAY_RUNTIME_ENV_HOOK` names, as without stepprof."""
        (tmp_path / "own_hook.py").write_text(
            "def hook(environment):\n    return {**(environment or {}), 'env_vars': {'THEIRS': 'hook'}}\n"
        )
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        job = RUNNING.replace("RUNTIME", "None")
        done = run(
            tmp_path, job, cluster.address, "second", RAY_RUNTIME_ENV_HOOK="own_hook.hook", PYTHONPATH=path
        )
        found = json.loads(done.stdout.splitlines()[-1])
        assert (found["THEIRS"], found["STEPPROF_STEPS"], found["adapters"]) == ("hook", "2", True)

    def test_a_configuration_that_is_wrong(self, cluster, tmp_path: Path) -> None:
        """A wrong configuration prints one line, and the environment of the job is not changed."""
        wrong = "os.environ.update(STEPPROF_BACKEND='nonsense') or {'env_vars': {'THEIRS': '1'}}"
        done = run(tmp_path, RUNNING.replace("RUNTIME", wrong), cluster.address, "second")
        found = json.loads(done.stdout.splitlines()[-1])
        assert (found["THEIRS"], found["STEPPROF_STEPS"], found["adapters"]) == ("1", None, False)
        assert done.stderr.count("nonsense") == 1


ATTACHED = """
import sys
import ray, stepprof

class Trainer:
    def update(self, step):
        import sys
        try:
            import stepprof
        except ImportError:
            return step, "without"
        return step, "with"

def main():
    ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
    stepprof.init({"steps": "2, 4", "ranks": "all", "backend": "null", "output_dir": "runs"}, run_id="job")
    made = ray.remote(num_cpus=0)(Trainer)
    trainers = [made.options(resources={node: 0.01}).remote() for node in ("second", "bare")]
    ray.get([each.__ray_ready__.remote() for each in trainers])
    stepprof.attach(trainers, role="actor", kind="rank")
    for step in range(1, 6):
        with stepprof.profile_step(step, role="actor"):
            print(*ray.get([each.update.remote(step) for each in trainers]))
    stepprof.shutdown()

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def bare(cluster, tmp_path: Path) -> Iterator[None]:
    """Add a node to the cluster whose Python has no stepprof."""
    folder = tmp_path / "without"
    folder.mkdir()
    for name in ("stepprof", "stepprof_autoload"):
        (folder / f"{name}.py").write_text(WITHOUT_STEPPROF)
    node = cluster.add_node(num_cpus=1, resources={"bare": 8}, env_vars={"PYTHONPATH": str(folder)})
    cluster.wait_for_nodes()
    yield
    cluster.remove_node(node)


@pytest.mark.usefixtures("bare")
class TestANodeWithoutStepprof:
    def test_workers_run_without_stepprof(self, cluster, tmp_path: Path) -> None:
        """The variables reach a worker without stepprof. It ignores them, and no traceback is
        printed.
        """
        job = RUNNING.replace("RUNTIME", "None")
        done = run(tmp_path, job, cluster.address, "bare")
        found = json.loads(done.stdout.splitlines()[-1])
        assert (found["adapters"], found["STEPPROF_STEPS"]) == (False, "2")
        assert "Traceback" not in done.stderr

    def test_one_line_names_the_actor_without_stepprof(self, run_script, cluster, tmp_path: Path) -> None:
        """One log line of the driver names the actor without stepprof. The job and the other rank
        continue.
        """
        ran = run_script(ATTACHED, cluster.address, env={"PYTHONWARNINGS": "ignore"}, timeout=110).check()
        assert ran.stdout.splitlines() == [f"({step}, 'with') ({step}, 'without')" for step in range(1, 6)]
        assert ran.stderr.count("cannot be imported there") == 1, ran.stderr
        for step in (2, 4):
            entries = read_step(tmp_path / "runs" / "job", step)["engines"]
            assert sorted((entry["status"], entry["health"]) for entry in entries) == [
                ("complete", "ok"),
                ("failed", "unconfigured"),
            ]

"""Several processes of one job agree on the run, record concurrently, and share one manifest."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import textwrap

import pytest

from stepprof.analysis.verify import verify_run
from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs, read_run

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def leave_at_once(warm):
    """Let the scripts end without waiting, because these tests do not depend on their end."""
    warm.leave = True


RANK = """
import os, sys, time, torch, torch.distributed as dist, stepprof
def main(ranks="all"):
    if "MASTER_ADDR" in os.environ and "--late" not in sys.argv:
        dist.init_process_group("gloo")
    session = stepprof.init({"steps": "2", "output_dir": "runs", "ranks": ranks, "capture_per": "role"})
    if "--late" in sys.argv:  # torch.distributed comes up after stepprof
        dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8)) if dist.is_initialized() else torch.nn.Linear(8, 8)
    for step in (1, 2, 3):
        with stepprof.profile_step(step):
            with stepprof.profile_step(step, role="rollout"):
                model(torch.ones(4, 8))
            with stepprof.profile_step(step, role="actor"):
                model(torch.ones(4, 8)).sum().backward()
    if dist.is_initialized():
        time.sleep(0.2)  # torch 2.13 hangs where gloo's thread still lets go of its last work: that wants the GIL, which destroying the group holds
        dist.destroy_process_group()
if __name__ == "__main__":
    main(*[argument for argument in sys.argv[1:] if argument[0] != "-"])
"""


QUICK = """
import sys, stepprof
stepprof.init({"steps": "2", "output_dir": "runs", "ranks": sys.argv[1], "backend": "null", "capture_per": "role"})
for step in (1, 2, 3):
    with stepprof.profile_step(step):
        for role in ("rollout", "actor"):
            with stepprof.profile_step(step, role=role):
                pass
assert "torch" not in sys.modules
"""
"""A rank without torch, because importing torch takes two seconds."""


def start(folder, *command):
    """Run Python in the folder, and check that it succeeds."""
    ran = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stderr


def torchrun(folder, *options, ranks="all", script=RANK):
    """Run two ranks under torchrun."""
    (folder / "rank.py").write_text(script)
    start(folder, "-m", "torch.distributed.run", "--nproc-per-node=2", *options, "rank.py", ranks)


def windows(run, step=2):
    """Return role, rank and status of the windows of a step."""
    manifest = read_step(run, step)
    assert manifest["findings"] == []
    return [(window["role"], window["rank"], window["status"]) for window in manifest["windows"]]


def stated(run, window, step=2):
    """Return the path of a window's only artifact, and its metadata."""
    (artifact,) = window["artifacts"]
    data = gzip.decompress((run / f"step-{step:06d}" / artifact["path"]).read_bytes())
    return artifact["path"], json.loads(data)["stepprof"]


class TestTorchrun:
    def test_both_ranks_agree_on_one_run(self, tmp_path):
        """Both ranks record into one run, and each trace names its role and rank in its path and metadata."""
        torchrun(tmp_path, "--standalone")
        (run,) = list_runs(tmp_path / "runs")
        assert read_run(run)["run_id_from"] == "torchelastic"
        assert windows(run) == [
            ("actor", 0, "complete"),
            ("actor", 1, "complete"),
            ("rollout", 0, "complete"),
            ("rollout", 1, "complete"),
        ]
        for window in read_step(run, 2)["windows"]:
            path, content = stated(run, window)
            assert path == f"{window['role']}/rank-{window['rank']}.trace.json.gz"
            expected = {
                "run_id": run.name,
                "step": 2,
                "role": window["role"],
                "rank": window["rank"],
                "world_size": 2,
            }
            assert {key: content[key] for key in expected} == expected
        assert verify_run(run).ok
        assert len(list((run / "spans").iterdir())) == 2

    def test_without_a_launcher_id_ranks_agree_by_its_process(self, tmp_path, warm):
        """If the launcher names no job, its ranks agree by its process. The next job with the same address
        is another run, whose ranks learn their world after `init`.
        """
        static = [
            "--nnodes=1",
            "--node-rank=0",
            "--rdzv-backend=static",
            "--master-addr=127.0.0.1",
            "--rdzv-id=none",
        ]
        torchrun(tmp_path, *static, "--master-port=29611", ranks="1", script=QUICK)
        (first,) = list_runs(tmp_path / "runs")
        assert read_run(first)["run_id_from"] == "launcher"
        assert windows(first) == [("actor", 1, "complete"), ("rollout", 1, "complete")]

        address = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29611",
            "WORLD_SIZE": "2",
            "OMP_NUM_THREADS": "1",
        }
        ranks = [
            warm.start(RANK, "--late", env={**address, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in (0, 1)
        ]
        for rank in ranks:
            rank.wait().check()
        second = list_runs(tmp_path / "runs")[-1]
        assert second != first
        assert [(rank, status) for _, rank, status in windows(second)] == [
            (0, "complete"),
            (1, "complete"),
        ] * 2
        assert verify_run(second).ok


SPAWNED = """
import os, sys, time, torch, torch.distributed as dist, stepprof
rank = int(sys.argv[2])
def begin():
    return stepprof.init({"steps": "2", "output_dir": "runs", "ranks": "all", "backend": "null"})
if sys.argv[1] == "before":
    session = begin()
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting", rank=rank, world_size=2)
if sys.argv[1] == "after":
    session = begin()
for step in (1, 2, 3):
    with stepprof.profile_step(step, role="actor"):
        dist.barrier()
time.sleep(2.5)
dist.barrier()
print(session.run_id, session.rank)
time.sleep(0.2)  # as in RANK
dist.destroy_process_group()
"""


class TestProcessGroup:
    """Ranks whose environment names no job, as of `mp.spawn`. The store of their process group is a file."""

    def ranks(self, warm, place):
        started = [warm.start(SPAWNED, place, str(rank)) for rank in (0, 1)]
        return [rank.wait().check() for rank in started]

    def test_init_after_the_process_group(self, warm):
        """Ranks that call `init` after their process group agree on one run, and leave no other folder."""
        ran = self.ranks(warm, "after")
        (run,) = list_runs(warm.folder / "runs")
        assert [rank.stdout for rank in ran] == [f"{run.name} 0\n", f"{run.name} 1\n"]
        assert read_run(run)["run_id_from"] in ("torch.distributed", "process")
        assert read_run(run)["world_size"] == 2
        assert windows(run) == [("actor", 0, "complete"), ("actor", 1, "complete")]
        assert [path for path in (warm.folder / "runs").iterdir() if path.name[0] != "."] == [run]
        assert "run.divided" not in ran[0].stderr + ran[1].stderr

    def test_init_before_the_process_group(self, warm):
        """Ranks that call `init` before their process group have a run each. One of them logs
        this once with the correction.
        """
        ran = self.ranks(warm, "before")
        runs = list_runs(warm.folder / "runs")
        assert len(runs) == 2
        (warning,) = [line for rank in ran for line in rank.stderr.splitlines() if "run.divided" in line]
        assert "run_id=" in warning
        assert "STEPPROF_RUN_ID" in warning
        assert all(run.name in warning for run in runs)
        assert sorted(read_run(run)["rank"] for run in runs) == [0, 1]
        assert [read_run(run)["world_size"] for run in runs] == [2, 2]

    def test_under_srun(self, warm):
        """Under srun, both ranks use the name of the job step, and no rank logs a divided run."""
        job = {"SLURM_JOB_ID": "78", "SLURM_STEP_ID": "1", "SLURM_NTASKS": "2"}
        started = [
            warm.start(SPAWNED, "before", str(rank), env={**job, "SLURM_PROCID": str(rank)})
            for rank in (0, 1)
        ]
        ran = [rank.wait().check() for rank in started]
        assert [rank.stdout for rank in ran] == ["slurm-78.1 0\n", "slurm-78.1 1\n"]
        assert "run.divided" not in ran[0].stderr + ran[1].stderr


STEP = """
session = stepprof.init({"steps": "2", "output_dir": "runs", "ranks": "all"})
with profile_step(2, role="actor"):
    work()
print(session.run_id, session.rank)
"""


class TestLaunchers:
    def test_slurm(self, warm):
        """The variables of srun give rank, world size and run. A requeued job has a run of its own."""
        job = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}
        ranks = [warm.start(STEP, env={**job, "SLURM_PROCID": str(rank)}) for rank in (0, 1)]
        said = [rank.wait().check().stdout for rank in ranks]
        assert said == ["slurm-77.0 0\n", "slurm-77.0 1\n"]
        assert windows(warm.run_path) == [("actor", 0, "complete"), ("actor", 1, "complete")]
        again = warm.run(STEP, env={**job, "SLURM_PROCID": "0", "SLURM_RESTART_COUNT": "1"}).check()
        assert again.stdout == "slurm-77.0.r1 0\n"

    def test_a_restart_that_repeats_a_step(self, warm):
        """If a restarted job repeats a step, its files get a number, and the first ones stay."""
        for _ in range(2):
            warm.run(STEP, env={"STEPPROF_RUN_ID": "job"}).check()
        manifest = read_step(warm.run_path, 2)
        paths = sorted(window["artifacts"][0]["path"] for window in manifest["windows"])
        assert paths == ["actor/rank-0.2.trace.json.gz", "actor/rank-0.trace.json.gz"]
        assert len(list((warm.run_path / "spans").iterdir())) == 2
        assert verify_run(warm.run_path).ok

    def test_run_names_are_unique_on_a_frozen_clock(self, warm):
        """With a frozen clock, names of runs and files are still unique."""
        frozen = textwrap.dedent("""
            for name in ("time", "time_ns"):
                setattr(time, name, lambda value=getattr(time, name)(): value)
            time.strftime = lambda *_, value=time.strftime("%Y%m%d-%H%M%S"): "20260102-030405"
        """)
        said = {warm.run(frozen + STEP).check().stdout for _ in range(2)}
        assert said == {"20260102-030405 0\n", "20260102-030405.2 0\n"}
        warm.run(
            frozen
            + """
stepprof.init({"steps": "2", "output_dir": "frozen"}, run_id="r")
for _ in range(3):
    with profile_step(2, role="actor"):
        work()
"""
        ).check()
        folder = warm.folder / "frozen" / "r" / "step-000002"
        assert sorted(file.name for file in (folder / "actor").iterdir()) == [
            "rank-0.2.trace.json.gz",
            "rank-0.3.trace.json.gz",
            "rank-0.trace.json.gz",
        ]

    def test_ray(self, warm):
        """With a stand-in for Ray, the driver and the actors share a run. The driver records nothing."""
        (warm.folder / "ray.py").write_text(
            textwrap.dedent("""
            import os
            def is_initialized():
                return True
            class Context:
                gcs_address = "127.0.0.1:6379"
                def get_session_name(self): return "session_2026-01-02_03-04-05_000006_7"
                def get_job_id(self): return "01000000"
                def get_actor_id(self): return os.environ.get("ACTOR")
                def get_worker_id(self): return "def"
                class worker: mode = 0
            WORKER_MODE = 1
            def get_runtime_context():
                return Context()
            """)
        )
        script = "import ray\n" + STEP + "print(stepprof.state().backend)\n"
        driver = warm.run(script).check().stdout
        actor = warm.run(script, env={"ACTOR": "abc"}).check().stdout
        ranked = warm.run(script, env={"ACTOR": "abc", "RANK": "1", "WORLD_SIZE": "2"}).check().stdout
        run_id = "ray-session_2026-01-02_03-04-05_000006_7-01000000"
        assert [text.split()[:2] for text in (driver, actor, ranked)] == [
            [run_id, "driver"],
            [run_id, "actor-abc"],
            [run_id, "1"],
        ]
        reported = {
            window["rank"]: (window["backend"], len(window["artifacts"])) for window in warm.windows()
        }
        assert reported == {"driver": ("null", 0), "actor-abc": ("torch", 1), 1: ("torch", 1)}

"""Test which rank and run processes of a real Slurm job get: batch scripts, `salloc`, `srun`, and `mpirun`.

A controller and one node run on the loopback interface, as this user.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from debian import program

from stepprof.run.runs import list_runs, read_run
from stepprof.run.status import read_statuses

pytestmark = pytest.mark.timeout(500)  # the first test may install Slurm

CONFIGURATION = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/builtin
SlurmdParameters=config_overrides
LaunchParameters=use_interactive_step
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES State=UP
"""
JOB = """
import os, sys, time
import stepprof
session = stepprof.init()
for step in (1, 2, 3):
    with stepprof.profile_step(step):
        time.sleep(float(sys.argv[2]))
os.write(1, f"{sys.argv[1]} {session.rank} {session.run_id}\\n".encode())  # one write: ranks share the file
"""
SPAWN = """
import os
import time
import torch.distributed as dist
import torch.multiprocessing as mp

def main(rank, port):
    import stepprof
    session = stepprof.init()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for step in (1, 2, 3):
        with stepprof.profile_step(step):
            dist.barrier()
    os.write(1, f"spawned {stepprof.state().rank} {session.run_id}\\n".encode())
    stepprof.shutdown()
    time.sleep(1)  # gloo fails the last barrier of a rank whose peer has ended meanwhile

if __name__ == "__main__":
    with __import__("socket").create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    mp.spawn(main, args=(port,), nprocs=2)
"""


class Cluster:
    """A cluster of one node, and a folder for its jobs."""

    def __init__(self, folder: Path, daemons: list[subprocess.Popen[bytes]]) -> None:
        self.folder = folder
        self.daemons = daemons

    def run(self, folder: Path, *command: str) -> list[tuple[str, str, str]]:
        """Run a command of Slurm, and return what its processes printed: name, rank and run, sorted."""
        (folder / "job.py").write_text(JOB)
        (folder / "spawn.py").write_text(SPAWN)
        ran = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **self.environ(folder)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        outputs = [ran.stdout, *(path.read_text() for path in folder.glob("batch.out"))]
        assert ran.returncode == 0, [ran.stderr, *outputs]
        assert "Traceback" not in "".join(outputs)
        lines = [line.split() for text in outputs for line in text.splitlines()]
        return sorted((line[0], line[1], line[2]) for line in lines if len(line) == 3)

    def batch(self, folder: Path, script: str, tasks: int = 2) -> list[tuple[str, str, str]]:
        """Run a batch script to its end."""
        (folder / "batch.sh").write_text(f"#!/bin/bash\nset -e\npython={sys.executable}\n{script}\n")
        # `sbatch --wait` itself looks every ten seconds
        wait = 'job=$(sbatch --parsable "$@") && while [ -n "$(squeue --noheader --jobs=$job)" ]; do sleep 0.3; done'
        options = (f"--ntasks={tasks}", "--output=batch.out", "batch.sh")
        return self.run(folder, "bash", "-c", wait, "bash", *options)

    def environ(self, folder: Path) -> dict[str, str]:
        """Return the variables of a job that records into a folder."""
        return {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "STEPPROF_OUTPUT_DIR": str(folder / "runs"),
            "STEPPROF_STEPS": "2",
            "STEPPROF_BACKEND": "null",
            "STEPPROF_RANKS": "all",
            "OMP_NUM_THREADS": "1",
        }


def free_ports(number: int) -> list[int]:
    """Return ports that are free now."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Start a controller and a node, and stop them at the end."""
    names = [program(name, "slurm-wlm") for name in ("slurmctld", "slurmd")]
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(host=host, user=getpass.getuser(), folder=folder, ports=free_ports(2))
    )
    environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    daemons = [subprocess.Popen([name, "-D"], env=environ, stderr=subprocess.DEVNULL) for name in names]
    try:
        deadline = time.monotonic() + 60
        while True:
            seen = subprocess.run(
                ["sinfo", "--noheader", "--format=%T"],
                env=environ,
                capture_output=True,
                text=True,
                check=False,
            )
            if seen.stdout.strip() == "idle":
                break
            logs = [(folder / f"{name}.log") for name in ("slurmctld", "slurmd")]
            assert time.monotonic() < deadline, [log.read_text()[-2000:] for log in logs if log.exists()]
            time.sleep(0.2)
        yield Cluster(folder, daemons)
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


class TestWithoutSrun:
    def test_one_job_after_the_other(self, cluster, tmp_path):
        """Two jobs of one batch script are two runs of one process each."""
        script = "$python job.py first 0.05; $python job.py second 0.1"
        (first, second) = cluster.batch(tmp_path, script)
        assert [first[:2], second[:2]] == [("first", "0"), ("second", "0")]
        assert first[2] != second[2]
        runs = list_runs(tmp_path / "runs")
        assert [read_run(run)["world_size"] for run in runs] == [1, 1]

    def test_two_jobs_at_once(self, cluster, tmp_path):
        """Two jobs that run at the same time in one batch script are two runs."""
        first, second = cluster.batch(tmp_path, "$python job.py first 0.2 & $python job.py second 0.2 & wait")
        assert first[2] != second[2]

    def test_spawned_ranks(self, cluster, tmp_path):
        """The process group decides about the ranks of `mp.spawn`, not the variables of the batch script."""
        ranks = cluster.batch(tmp_path, "$python spawn.py")
        assert [rank for _, rank, _ in ranks] == ["0", "1"]

    @pytest.mark.parametrize("command", [["salloc"], ["salloc", "srun", "--ntasks=1"]])
    def test_an_interactive_shell(self, cluster, tmp_path, command):
        """Two jobs in the shell of an allocation, or of a step of one task, are two runs of rank 0 of 1."""
        shell = f"{sys.executable} job.py first 0.05; {sys.executable} job.py second 0.05"
        first, second = cluster.run(tmp_path, command[0], "--ntasks=2", *command[1:], "bash", "-c", shell)
        assert first[2] != second[2]
        runs = list_runs(tmp_path / "runs")
        assert [read_run(run)["world_size"] for run in runs] == [1, 1]

    def test_open_mpi(self, cluster, tmp_path):
        """The ranks of `mpirun` in a batch script are the ranks of one run."""
        program("mpirun.openmpi", "openmpi-bin")
        mpirun = "mpirun.openmpi --allow-run-as-root --oversubscribe -n 2"
        ranks = cluster.batch(tmp_path, f"{mpirun} $python job.py mpi 0.05")
        assert [rank for _, rank, _ in ranks] == ["0", "1"]
        assert len({run for _, _, run in ranks}) == 1


class TestSrun:
    def test_the_tasks_of_a_step_are_one_run(self, cluster, tmp_path):
        """Each `srun` is a run, named by its step, with the ranks of its tasks."""
        ranks = cluster.batch(tmp_path, "srun $python job.py a 0.05; srun $python job.py b 0.05")
        assert [(name, rank) for name, rank, _ in ranks] == [("a", "0"), ("a", "1"), ("b", "0"), ("b", "1")]
        names = [run for _, _, run in ranks]
        assert names[0] == names[1] != names[2] == names[3]
        assert [name.rpartition(".")[2] for name in names] == ["0", "0", "1", "1"]
        (first, _) = list_runs(tmp_path / "runs")
        assert [status["world_size"] for status in read_statuses(first)] == [2, 2]

    def test_tasks_that_do_two_jobs(self, cluster, tmp_path):
        """If each task runs one job after the other, the second is another run: the first has ended in order."""
        both = "touch done-$SLURM_PROCID; until [ -e done-0 -a -e done-1 ]; do sleep 0.1; done"
        shell = f"{sys.executable} job.py first 0.2; {both}; {sys.executable} job.py second 0.2"
        ranks = cluster.batch(tmp_path, f"srun bash -c '{shell}'")
        assert [rank for _, rank, _ in ranks] == ["0", "1", "0", "1"]
        names = [run for _, _, run in ranks]
        assert names[0] == names[1] != names[2] == names[3]

    def test_ranks_that_a_task_spawns(self, cluster, tmp_path):
        """The process group decides also about the ranks that one task of a step starts."""
        ranks = cluster.batch(tmp_path, "srun --ntasks=1 $python spawn.py")
        assert [rank for _, rank, _ in ranks] == ["0", "1"]

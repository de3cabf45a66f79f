"""How a process finds the run to which it belongs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from stepprof.errors import ConfigError
from stepprof.run import rendezvous
from stepprof.run.layout import open_run
from stepprof.run.names import safe_name
from stepprof.run.rendezvous import Launcher, claim_for_launcher, claim_for_process, current_launcher
from stepprof.run.run_id import agree_on_run

WORKER = """
import os, sys, pathlib, time
from stepprof.run.run_id import agree_on_run
root, meeting = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
(meeting / f"ready-{os.getpid()}").touch()
while not (meeting / "go").exists():
    time.sleep(0.0005)
run = agree_on_run(root, run_id=None, world_size=int(os.environ["WORLD_SIZE"]), environ=os.environ)
os.write(1, f"{run.run_id} {run.source}\\n".encode())
"""
# A launcher like torchrun: it starts all ranks, waits for them, and repeats this as in an elastic restart.
# The ranks look for their run at the same moment.
LAUNCHER = """
import os, pathlib, subprocess, sys, tempfile, time
worker, output_dir, ranks, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": str(ranks)}
for _ in range(rounds):
    with tempfile.TemporaryDirectory() as meeting:
        workers = [
            subprocess.Popen([sys.executable, "-c", worker, output_dir, meeting], env={**common, "RANK": str(rank)})
            for rank in range(ranks)
        ]
        while len(os.listdir(meeting)) < ranks:
            time.sleep(0.005)
        pathlib.Path(meeting, "go").touch()
        if any([one.wait(timeout=200) for one in workers]):
            sys.exit(1)
"""


SRUN = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}


def agree(output_dir, *, run_id=None, world_size=1, **environ):
    return agree_on_run(output_dir, run_id=run_id, world_size=world_size, environ=environ)


def start_launcher(output_dir, ranks, rounds=1):
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, WORKER, str(output_dir), str(ranks), str(rounds)],
        stdout=subprocess.PIPE,
        text=True,
    )


def names(launcher):
    out = launcher.communicate(timeout=100)[0]
    assert launcher.returncode == 0
    return [line.split()[0] for line in out.splitlines()]


class TestOrderOfAuthority:
    def test_the_argument_wins_over_everything(self, tmp_path):
        """The run id that the caller passes has priority over the environment."""
        assert agree(tmp_path, run_id="mine", STEPPROF_RUN_ID="env").run_id == "mine"

    @pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a b", "x" * 101])
    def test_a_run_id_that_is_not_a_plain_name(self, tmp_path, name):
        """The error suggests a valid name."""
        with pytest.raises(
            ConfigError, match=r'run_id = ".*": not a plain name; use .*; did you mean "[^"]+"\?'
        ):
            agree(tmp_path, run_id=name)

    @pytest.mark.parametrize(
        ("environ", "run_id", "source"),
        [
            ({"STEPPROF_RUN_ID": "x", "SLURM_JOB_ID": "7"}, "x", "STEPPROF_RUN_ID"),
            ({**SRUN, "TORCHELASTIC_RUN_ID": "t"}, "slurm-7.0", "slurm"),
            ({**SRUN, "SLURM_STEP_ID": "1", "SLURM_RESTART_COUNT": "2"}, "slurm-7.1.r2", "slurm"),
            ({**SRUN, "SLURM_RESTART_COUNT": "0"}, "slurm-7.0", "slurm"),
            ({**SRUN, "SLURM_STEP_NUM_TASKS": "1", "TORCHELASTIC_RUN_ID": "t"}, "torchrun-t", "torchelastic"),
            ({"TORCHELASTIC_RUN_ID": "t"}, "torchrun-t", "torchelastic"),
            ({"TORCHELASTIC_RUN_ID": "t", "REPLICA_GROUP_ID": "1"}, "torchrun-t-group-1", "torchelastic"),
            ({"STEPPROF_RUN_ID": "x", "REPLICA_GROUP_ID": "0"}, "x-group-0", "STEPPROF_RUN_ID"),
            (
                {"STEPPROF_RUN_ID": "x", "REPLICA_GROUP_ID": "0", "NUM_REPLICA_GROUPS": "1"},
                "x",
                "STEPPROF_RUN_ID",
            ),
            ({"STEPPROF_RUN_ID": "x", "REPLICA_GROUP_ID": "../x"}, "x", "STEPPROF_RUN_ID"),
        ],
    )
    def test_the_launchers_own_name(self, tmp_path, environ, run_id, source):
        """If the launcher names its job, this is the run id, and no file is written."""
        agreement = agree(tmp_path / "none", **environ)
        assert (agreement.run_id, agreement.source) == (run_id, source)
        assert not (tmp_path / "none").exists()

    def test_names_of_the_environment_are_made_safe(self, tmp_path):
        """A path in a variable becomes a plain name, so that the run stays in output_dir."""
        assert agree(tmp_path, STEPPROF_RUN_ID="../../etc").run_id.startswith("etc-")

    def test_a_name_of_dots_is_ignored(self, tmp_path):
        """A run id that consists of dots is ignored, and the next source is used."""
        assert agree(tmp_path, STEPPROF_RUN_ID="..", **SRUN).run_id == "slurm-7.0"

    @pytest.mark.parametrize(
        "environ",
        [{}, {"TORCHELASTIC_RUN_ID": "none"}, {"MASTER_ADDR": "h"}, {"MASTER_ADDR": "h", "MASTER_PORT": "1"}],
    )
    def test_a_process_of_its_own(self, tmp_path, environ):
        """If no launcher is known, or the world has one rank, each process gets a run of its own."""
        first, second = agree(tmp_path, **environ), agree(tmp_path, **environ)
        assert first.source == second.source == "process"
        assert first.run_id != second.run_id


class TestRay:
    def test_is_never_started(self, tmp_path, monkeypatch):
        """If Ray is imported and not initialised, no run id is taken from it."""
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
        assert agree(tmp_path).source == "process"

    def test_a_half_imported_ray_is_ignored(self, tmp_path, monkeypatch):
        """If Ray is still being imported and has no attributes, it is ignored."""
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
        assert agree(tmp_path).source == "process"

    def test_a_ray_that_fails(self, tmp_path, monkeypatch, caplog):
        """If Ray raises an error, the process gets a run of its own, and the log names the error."""

        def lost():
            raise RuntimeError("the head node is gone")

        ray = SimpleNamespace(
            is_initialized=lambda: True, get_runtime_context=lost, _private=SimpleNamespace()
        )
        monkeypatch.setitem(sys.modules, "ray", ray)
        assert agree(tmp_path).source == "process"
        assert "the head node is gone" in caplog.text

    @pytest.mark.ray
    @pytest.mark.parametrize("submitted", ["", "raysubmit_abc"])
    def test_driver_and_worker_agree(self, tmp_path, submitted):
        """The driver and a worker find the same run id: the submission id, or
        else the session with the job.
        """
        script = (
            "import json, os, pathlib, sys, ray\n"
            "from stepprof.run.run_id import agree_on_run\n"
            "look = lambda: agree_on_run(pathlib.Path(sys.argv[1]), run_id=None, world_size=None, environ={}).run_id\n"
            "ray.init('local', num_cpus=1, include_dashboard=False, logging_level='ERROR')\n"
            "print(json.dumps([look(), ray.get(ray.remote(look).remote())]))\n"
        )
        environ = {
            "PYTHONPATH": ":".join(path for path in sys.path if path),
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
        }
        if submitted:
            metadata = {"metadata": {"job_submission_id": submitted}, "runtime_env": {}}
            environ["RAY_JOB_CONFIG_JSON_ENV_VAR"] = json.dumps(metadata)
        done = subprocess.run(
            [sys.executable, "-c", script, tmp_path],
            capture_output=True,
            text=True,
            timeout=110,
            env=environ,
            check=True,
        )
        driver, worker = json.loads(done.stdout.splitlines()[-1])
        assert driver == worker
        assert driver == submitted or (not submitted and driver.startswith("ray-session_"))

    @pytest.mark.parametrize(
        ("variable", "run_id"),
        [
            ('{"metadata": {"job_submission_id": "s1"}}', "s1"),
            ('{"metadata": {}}', "ray-10.0.0.1-6379-01000000"),
            ("[1]", "ray-10.0.0.1-6379-01000000"),
            ("{", "ray-10.0.0.1-6379-01000000"),
        ],
    )
    def test_a_ray_with_other_internals(self, tmp_path, monkeypatch, variable, run_id):
        """If Ray lacks an internal, the run id comes from the driver's environment or
        from the address of the cluster.
        """
        context = SimpleNamespace(gcs_address="10.0.0.1:6379", get_job_id=lambda: "01000000")
        ray = SimpleNamespace(
            is_initialized=lambda: True,
            get_runtime_context=lambda: context,
            _private=SimpleNamespace(worker=SimpleNamespace(global_worker=SimpleNamespace())),
        )
        monkeypatch.setitem(sys.modules, "ray", ray)
        agreement = agree(tmp_path, RAY_JOB_CONFIG_JSON_ENV_VAR=variable)
        assert agreement.source == "ray"
        assert agreement.run_id.startswith(run_id)

    @pytest.mark.parametrize(
        ("metadata", "run_id"),
        [({"job_submission_id": "raysubmit_1"}, "raysubmit_1"), ({}, "ray-session_x-01000000")],
    )
    def test_the_job_id_comes_from_the_jobs_metadata(self, tmp_path, monkeypatch, metadata, run_id):
        """The submission id in the job's metadata is used, not the environment's, which may be another
        job's. Without one, the session and the job are used.
        """
        context = SimpleNamespace(get_session_name=lambda: "session_x", get_job_id=lambda: "01000000")
        worker = SimpleNamespace(
            core_worker=SimpleNamespace(get_job_config=lambda: SimpleNamespace(metadata=metadata))
        )
        ray = SimpleNamespace(
            is_initialized=lambda: True,
            get_runtime_context=lambda: context,
            _private=SimpleNamespace(worker=SimpleNamespace(global_worker=worker)),
        )
        monkeypatch.setitem(sys.modules, "ray", ray)
        stale = '{"metadata": {"job_submission_id": "stale"}}'
        assert agree(tmp_path, RAY_JOB_CONFIG_JSON_ENV_VAR=stale).run_id == run_id


CHILD = """
import os, pathlib, sys
from stepprof.run.run_id import agree_on_run
run = agree_on_run(pathlib.Path(sys.argv[1]), run_id=None, world_size=2, environ=os.environ)
print(run.run_id, run.source)
"""


def opened(output_dir, run_id=None):
    """Return the id of the run that this process opens, as `init` does."""
    description = {"created_unix_ns": time.time_ns()}
    return open_run(
        output_dir, run_id=run_id, rank=0, world_size=1, environ={}, description=description
    ).run_id


class TestStartedByRank:
    """Ranks that rank 0 starts itself, as in Lightning."""

    def child(self, output_dir, **environ):
        """Return the run id and its source that a child process of this one finds."""
        environ = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
            "WORLD_SIZE": "2",
            "NODE_RANK": "0",
            **environ,
        }
        command = [sys.executable, "-c", CHILD, str(output_dir)]
        ran = subprocess.run(
            command, env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True, check=True, timeout=200
        )
        return ran.stdout.split()

    def test_the_others_join_it(self, tmp_path):
        """A child process finds the run of its parent."""
        alone = opened(tmp_path)
        assert self.child(tmp_path, LOCAL_RANK="1") == [alone, "parent"]

    def test_the_run_that_was_opened_last(self, tmp_path):
        """If the parent has opened two runs, its child joins the second one."""
        opened(tmp_path)
        last = opened(tmp_path)
        assert self.child(tmp_path, LOCAL_RANK="1") == [last, "parent"]

    @pytest.mark.parametrize(
        "environ", [{"LOCAL_RANK": "0"}, {"LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none"}]
    )
    def test_another_program_that_a_rank_starts(self, tmp_path, environ):
        """A child that is a rank 0, or that torchrun has started, does not join its parent's run."""
        alone = opened(tmp_path)
        assert self.child(tmp_path, **environ)[0] != alone

    def test_a_run_that_the_parent_shares_by_name(self, tmp_path):
        """A run with a given name is not joined through the parent."""
        opened(tmp_path, run_id="mine")
        assert self.child(tmp_path, LOCAL_RANK="1")[0] != "mine"

    def test_the_first_processes_of_two_nodes(self, tmp_path, monkeypatch):
        """The first processes of two nodes have the same address and find one run, as does a
        rank that one of them starts.
        """
        address = {"MASTER_ADDR": "node-0", "MASTER_PORT": "1"}
        first = agree(tmp_path, world_size=None, NODE_RANK="0", **address)
        monkeypatch.setattr(rendezvous.socket, "gethostname", lambda: "node-1")
        second = agree(tmp_path, world_size=None, NODE_RANK="1", **address)
        assert (first.source, second.source) == ("launcher", "launcher")
        assert first.run_id == second.run_id
        monkeypatch.undo()
        assert self.child(tmp_path, LOCAL_RANK="1", WORLD_SIZE="4", **address) == [first.run_id, "launcher"]


class TestSafeName:
    def test_safe_names_are_unchanged(self):
        """A plain name is unchanged."""
        assert safe_name("grpo-7b_v1.2") == "grpo-7b_v1.2"

    def test_different_texts_stay_different(self):
        """Different strings become different names of at most 100 characters, also if they differ only in
        replaced characters or beyond the limit.
        """
        texts = ["a/b", "a:b", "a-b", "x" * 200 + "1", "x" * 200 + "2"]
        safe = [safe_name(text) for text in texts]
        assert len(set(safe)) == len(texts)
        assert all(len(name) <= 100 for name in safe)


class TestClaimForLauncher:
    def launcher(self, host="h1", token="L1", started=1000.0):
        return Launcher(host=host, token=token, started=started)

    def test_eight_ranks_racing_agree(self, tmp_path):
        """Eight ranks of one launcher look for their run at the same moment and find one."""
        found = names(start_launcher(tmp_path, ranks=8))
        assert len(found) == 8
        assert len(set(found)) == 1
        assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == [found[0]]

    def test_two_jobs_on_one_port_are_two_runs(self, tmp_path):
        """Two launchers with the same address and port, as of two users of one machine, get two runs."""
        launchers = [start_launcher(tmp_path, ranks=4) for _ in range(2)]
        first, second = (set(names(launcher)) for launcher in launchers)
        assert len(first) == len(second) == 1
        assert first != second

    def test_an_elastic_restart_keeps_the_run(self, tmp_path):
        """After a restart of the workers under the same launcher, the run is the same."""
        found = names(start_launcher(tmp_path, ranks=2, rounds=2))
        assert len(found) == 4
        assert len(set(found)) == 1

    def test_an_address_of_this_host_alone(self, tmp_path):
        """For 127.0.0.1 the host is part of the key, because it is another machine on each machine."""
        environ = {"MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "none"}
        local = agree(tmp_path, MASTER_ADDR="localhost", **environ)
        assert local == agree(tmp_path, MASTER_ADDR="localhost", **environ)
        assert local != agree(tmp_path, MASTER_ADDR="node-1", **environ)
        assert local.source == "launcher"

    def test_a_launcher_of_another_host_joins(self, tmp_path):
        """A launcher on another host that begins within ten minutes joins the claim."""
        one = claim_for_launcher(tmp_path, "k", self.launcher(), 4)
        other = claim_for_launcher(tmp_path, "k", self.launcher("h2", "L2", 1500.0), 4)
        assert one == other

    @pytest.mark.parametrize(
        ("host", "started", "world_size", "key"),
        [("h2", 2000.0, 4, "k"), ("h1", 1000.0, 4, "k"), ("h2", 1000.0, 8, "k"), ("h2", 1000.0, 4, "k2")],
    )
    def test_another_job_does_not_join(self, tmp_path, host, started, world_size, key):
        """A launcher founds another run if it began more than ten minutes later, is on the same
        host, or has another size or key.
        """
        one = claim_for_launcher(tmp_path, "k", self.launcher(), 4)
        other = claim_for_launcher(tmp_path, key, self.launcher(host, "L2", started), world_size)
        assert one != other

    def test_the_nearest_launcher_is_joined(self, tmp_path):
        """If a job was restarted within ten minutes, the launcher of the second
        host joins the restarted one.
        """
        claim_for_launcher(tmp_path, "k", self.launcher(), 4)
        again = claim_for_launcher(tmp_path, "k", self.launcher(token="L1b", started=1200.0), 4)
        other = claim_for_launcher(tmp_path, "k", self.launcher("h2", "L2b", 1201.0), 4)
        assert other == again

    def test_the_host_is_already_there(self, tmp_path):
        """A claim that already has another launcher of the host is not joined. The launchers of a restarted
        job agree on the next claim.
        """
        runs = [
            claim_for_launcher(tmp_path, "k", self.launcher(host, host + start, float(start)), 4)
            for start in ("1000", "1100")
            for host in ("h1", "h2")
        ]
        assert runs[0] == runs[1] != runs[2] == runs[3]

    def test_a_damaged_claim_is_passed_over(self, tmp_path, monkeypatch):
        """If a claim is damaged, the launcher makes one with the next number."""
        monkeypatch.setattr(rendezvous, "_UNREADABLE_SECONDS", 0.01)
        run = claim_for_launcher(tmp_path, "k", self.launcher(), 4)
        (folder,) = (tmp_path / ".claims").iterdir()
        for path in folder.iterdir():
            path.write_text("[1]" if path.name[0] == "l" else "{")
        (folder / "note.txt").touch()
        again = claim_for_launcher(tmp_path, "k", self.launcher(), 4)
        assert again != run
        assert sorted(path.name for path in folder.glob("0*[0-9].json"))[-1] == "000002.json"

    def test_a_claim_that_lost_its_numbers(self, tmp_path):
        """A launcher of another host does not join a claim without a start time."""
        claim_for_launcher(tmp_path, "k", self.launcher(), 4)
        (folder,) = (tmp_path / ".claims").iterdir()
        (folder / "000001.json").write_text('{"run_id": "r", "world_size": 4}')
        assert claim_for_launcher(tmp_path, "k", self.launcher("h2", "L2"), 4) != "r"

    def test_a_founder_that_died_before_it_registered(self, tmp_path):
        """If the founder died before it registered, the next rank of its launcher uses the
        claim, whatever its world size.
        """
        run = claim_for_launcher(tmp_path, "k", self.launcher(), 4)
        (folder,) = (tmp_path / ".claims").iterdir()
        for path in folder.glob("launcher-*"):
            path.unlink()
        assert claim_for_launcher(tmp_path, "k", self.launcher(), None) == run

    def test_a_host_whose_member_file_is_damaged(self, tmp_path, monkeypatch):
        """If a host's member file is damaged, a new launcher of that host founds another run."""
        monkeypatch.setattr(rendezvous, "_UNREADABLE_SECONDS", 0.01)
        run = claim_for_launcher(tmp_path, "k", self.launcher(), 4)
        (folder,) = (tmp_path / ".claims").iterdir()
        (member,) = folder.glob("000001.*.json")
        member.write_text("{")
        assert claim_for_launcher(tmp_path, "k", self.launcher(token="L2"), 4) != run

    def interleave(self, monkeypatch, *others):
        """Call the given functions after each reading of the claims, as if processes ran at the same time."""
        look, waiting = rendezvous._claims, list(others)

        def look_and_be_overtaken(folder):
            found = look(folder)
            if waiting:
                waiting.pop(0)()
            return found

        monkeypatch.setattr(rendezvous, "_claims", look_and_be_overtaken)

    def test_overtaken_by_a_rank_of_ours(self, tmp_path, monkeypatch):
        """If another rank of the launcher founds the run first, this rank uses it and
        leaves no folder of its own.
        """
        found = []
        self.interleave(
            monkeypatch, lambda: found.append(claim_for_launcher(tmp_path, "k", self.launcher(), 4))
        )
        assert claim_for_launcher(tmp_path, "k", self.launcher(), 4) == found[0]
        assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == found

    def test_overtaken_by_another_job(self, tmp_path, monkeypatch):
        """If another launcher of this host founds a run at the same moment, there are two runs."""
        found = []
        self.interleave(
            monkeypatch, lambda: found.append(claim_for_launcher(tmp_path, "k", self.launcher(token="L2"), 4))
        )
        assert claim_for_launcher(tmp_path, "k", self.launcher(), 4) != found[0]

    def test_our_own_claim_taken_by_another_job(self, tmp_path, monkeypatch):
        """If another launcher of this host joins the claim that this rank has just founded,
        this rank founds another run.
        """
        register, found = rendezvous._register, []

        def register_late(folder, claim, launcher):
            if not found:
                found.append(None)
                found.append(claim_for_launcher(tmp_path, "k", self.launcher(token="L2"), 4))
            return register(folder, claim, launcher)

        monkeypatch.setattr(rendezvous, "_register", register_late)
        assert claim_for_launcher(tmp_path, "k", self.launcher(), 4) not in found

    def test_ranks_with_different_claims(self, tmp_path, monkeypatch):
        """If two ranks of one launcher have found different runs, both use the one that was written first."""
        monkeypatch.setattr(rendezvous, "_join_or_found", self.once(tmp_path))
        assert claim_for_launcher(tmp_path, "k", self.launcher(), 4) == "first"

    def once(self, tmp_path):
        runs = iter(["second", "first"])

        def join_or_found(*_):
            run = next(runs)
            if run == "second":
                claim_for_launcher(tmp_path, "k", self.launcher(), 4)
            return run

        return join_or_found

    def test_without_proc_the_current_time_is_used(self, monkeypatch, tmp_path):
        """If the start of the launcher or of the machine cannot be read, the current time is used."""
        monkeypatch.setattr(rendezvous, "_BOOT", tmp_path / "none")
        assert current_launcher().started > 1_600_000_000
        monkeypatch.setattr(rendezvous, "process_start", lambda _: None)
        assert current_launcher().started > 1_600_000_000

    def test_a_launchers_start_is_in_wall_clock_time(self):
        """The start of this test's launcher lies in the past, by less than 100 days."""
        import time

        assert time.time() - 100 * 24 * 3600 < current_launcher().started < time.time() + 2


class TestClaimForProcess:
    def test_the_folder_makes_the_run_id_unique(self, tmp_path):
        """Three processes get three run ids, and a folder exists for each."""
        found = [claim_for_process(tmp_path / "runs") for _ in range(3)]
        assert len(set(found)) == 3
        assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(found)

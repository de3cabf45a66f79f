"""The temporary files of killed processes are removed, and those of living processes stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import runs

import stepprof
from stepprof.host import atomic_files
from stepprof.host.atomic_files import is_left_over, temporary
from stepprof.recording.leftover_files import remove_leftovers
from stepprof.run.manifest import read_step

WRITING = """
import os, signal, sys, time
from pathlib import Path
from stepprof.host.atomic_files import write_temporary
print(write_temporary(Path(sys.argv[1]), b"half"), flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""


def writing(final, fate):
    """Start a process that writes a temporary file and is then killed or goes on; return it and the file."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITING, str(final), fate], stdout=subprocess.PIPE, text=True
    )
    return process, type(final)(process.stdout.readline().strip())


@pytest.fixture
def run(tmp_path):
    run = runs.make_run(tmp_path)
    runs.record(run, rank=1)
    (run.path / "status").mkdir(exist_ok=True)
    return run


@pytest.fixture
def left(run):
    """Leave files of killed processes in all folders of a run, and one of a living process."""
    places = [
        "run.json",
        "status/rank-3.json",
        "step-000002/manifest/actor-rank-3.json",
        "step-000002/actor/x.gz",
    ]
    dead = []
    for place in places:
        process, file = writing(run.path / place, "killed")
        process.communicate()
        dead.append(file)
    living, file = writing(run.path / "status" / "rank-4.json", "living")
    yield dead, file
    living.kill()
    living.communicate()


class TestRemove:
    def test_leftovers_of_dead_processes_are_removed(self, run, left):
        """Leftovers of dead processes are removed. Files of living processes, of other
        machines and with other names stay.
        """
        dead, living = left
        others = [
            run.path / "status" / f".rank-5.json.{os.getpid()}-00000000-1-1.tmp",
            run.path / "status" / ".rank-6.json.123-4.tmp",
            run.path / "status" / f"{dead[1].name[1:]}",
            temporary(run.path / "run.json"),
        ]
        for file in others:
            file.write_bytes(b"")
        assert all(file.exists() for file in dead)
        assert remove_leftovers(run.path, 10.0) == len(dead)
        assert not any(file.exists() for file in dead)
        assert all(file.exists() for file in [living, *others])
        assert read_step(run.path, 2)["windows"]

    def test_a_slow_listing_leaves_the_remaining_files(self, run, left):
        """If the time for the search is over, no file is removed."""
        assert remove_leftovers(run.path, -1.0) == 0

    def test_a_run_that_is_gone(self, tmp_path):
        """If the run does not exist, no file is removed."""
        assert remove_leftovers(tmp_path / "none", 1.0) == 0

    def test_a_reused_process_id(self, tmp_path):
        """If another process has the writer's process id, the file is left over."""
        name = temporary(tmp_path / "a.json").name
        assert not is_left_over(name)
        pid, machine, start, number = name.removeprefix(".a.json.").split("-")
        assert is_left_over(f".a.json.{pid}-{machine}-{int(start, 16) - 1:x}-{number}")

    def test_a_forked_child_is_a_process_of_its_own(self, tmp_path):
        """The temporary file of a forked child names the child, and is left
        over once the child was killed.
        """
        process = atomic_files._process(os.getpid())
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, temporary(tmp_path / "a").name.encode())
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        name = os.read(reader, 1000).decode()
        assert process not in name
        assert is_left_over(name)


class TestSession:
    @pytest.mark.parametrize(("rank", "stays"), [(0, False), (1, True)])
    def test_only_one_process_of_a_run_looks_for_leftovers(self, tmp_path, rank, stays):
        """Rank 0 removes the leftovers and rank 1 does not, because each would
        read the folders of all ranks.
        """
        session = stepprof.init({"output_dir": str(tmp_path), "backend": "null"}, rank=rank, world_size=2)
        process, file = writing(session.path / "status" / "rank-3.json", "killed")
        process.communicate()
        stepprof.shutdown()
        assert file.exists() == stays

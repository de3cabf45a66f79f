"""Workers: processes that read sources, the script that starts them, and what kills them."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from runs import make_run, record, region, write_spans

from stepprof.analysis.timeline.workers import Failed, each_in_worker

BASE = 1_700_000_000_000_000_000


def pid_of(number: int) -> tuple[int, int]:
    time.sleep(0.05)
    return number, os.getpid()


def die(number: int, how: str = "kill") -> int:
    if number == 1 and how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 1 and how == "exit":
        os.write(2, b"no such luck\n")
        os._exit(7)
    return number


def die_once(number: int, marker: str) -> int:
    if number == 1 and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def raises(number: int) -> int:
    if number == 1:
        raise PermissionError(13, "Permission denied", "a.json")
    if number == 2:
        raise MemoryError
    if number == 3:
        raise ValueError("no number")
    return number


def prints(number: int) -> int:
    print("said by a library", flush=True)
    os.write(1, b"said by C\n")
    return number


def run_in_workers(function, tasks, workers=2, **options):
    return each_in_worker(function, tasks, sizes=[1] * len(tasks), workers=workers, **options)


class TestEachInWorker:
    def test_results_are_in_order_and_of_other_processes(self):
        """Each task runs in one of `workers` processes, and none in this one."""
        seen = []
        results = run_in_workers(pid_of, [(k,) for k in range(6)], progress=lambda *done: seen.append(done))
        assert [number for number, _ in results] == list(range(6))
        pids = {pid for _, pid in results}
        assert os.getpid() not in pids
        assert len(pids) == 2
        assert seen == [(k, 6) for k in range(1, 7)]

    def test_small_sources_and_one_worker_need_no_process(self):
        """Without `workers`, small sources are read in this process; so is everything with one worker."""
        tasks = [(1,), (2,)]
        assert {pid for _, pid in each_in_worker(pid_of, tasks, sizes=[9, 9])} == {os.getpid()}
        assert {pid for _, pid in run_in_workers(pid_of, tasks, workers=1)} == {os.getpid()}

    @pytest.mark.parametrize(
        ("how", "said"), [("kill", "was killed by SIGKILL"), ("exit", "exit status 7: no such luck")]
    )
    def test_a_task_that_kills_its_worker_fails_alone(self, how, said):
        """The other tasks succeed. The reason names the signal, or the exit status and the last output."""
        first, failed, *rest = run_in_workers(die, [(k, how) for k in range(4)])
        assert (first, rest) == (0, [2, 3])
        assert isinstance(failed, Failed)
        assert failed.unread
        assert said in failed.reason

    def test_a_task_whose_worker_was_killed_runs_again(self, tmp_path):
        """The kernel may have killed the worker because of another one: alone, the task succeeds."""
        assert run_in_workers(die_once, [(k, str(tmp_path / "died")) for k in range(3)]) == [0, 1, 2]

    def test_errors_of_a_source_and_of_the_machine(self):
        """An error of the content fails its task; an error of the system is raised here."""
        memory, content, fine = run_in_workers(raises, [(2,), (3,), (4,)])
        assert (memory.unread, content, fine) == (True, Failed("ValueError: no number"), 4)
        with pytest.raises(PermissionError) as raised:
            run_in_workers(raises, [(1,), (4,)])
        assert raised.value.filename == "a.json"

    def test_output_of_a_library_is_no_answer(self):
        assert run_in_workers(prints, [(1,), (2,)]) == [1, 2]

    def test_threads_at_the_same_time(self):
        """Several threads read at once, each with workers of its own."""
        with ThreadPoolExecutor(3) as threads:
            found = list(threads.map(lambda _: run_in_workers(pid_of, [(1,), (2,)]), range(3)))
        assert [[number for number, _ in each] for each in found] == [[1, 2]] * 3

    def test_where_no_worker_can_start_this_process_reads(self, monkeypatch, tmp_path):
        """The interpreter is missing, does something else, or is a frozen program: the result is the same."""
        other = tmp_path / "python"
        other.write_text("#!/bin/sh\necho started the program again\n")
        other.chmod(0o755)
        for executable in ("", str(tmp_path / "missing"), str(other)):
            monkeypatch.setattr(sys, "executable", executable)
            assert {pid for _, pid in run_in_workers(pid_of, [(1,), (2,)])} == {os.getpid()}
        monkeypatch.undo()
        monkeypatch.setattr(sys, "frozen", True, raising=False)
        assert {pid for _, pid in run_in_workers(pid_of, [(1,), (2,)])} == {os.getpid()}

    def test_no_worker_is_left_after_an_interruption(self):
        """An exception of `progress`, as Ctrl-C raises one, ends all workers."""

        def interrupt(done, total):
            raise KeyboardInterrupt

        before = threading.active_count(), children_of(os.getpid())
        with pytest.raises(KeyboardInterrupt):
            run_in_workers(pid_of, [(k,) for k in range(50)], progress=interrupt)
        assert (threading.active_count(), children_of(os.getpid())) == before


def children_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def trace(events: int) -> bytes:
    slices = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"op {k % 7}",
            "pid": 7,
            "tid": 7,
            "ts": k * 10 + 0.5,
            "dur": 5.25,
        }
        for k in range(events)
    ]
    content = {"schemaVersion": 1, "baseTimeNanoseconds": BASE, "traceEvents": slices}
    return gzip.compress(json.dumps(content).encode(), 0)


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """Return a run whose traces are so large that workers read them."""
    made = make_run(tmp_path_factory.mktemp("large"), "r")
    for rank in (0, 1):
        record(made, rank=rank, data=trace(25_000))
        write_spans(made, rank, region("update", 1.0))
    return made.path


SCRIPT = """
print("the script runs")
import stepprof
step = stepprof.open_run({run!r}).step(2)
report = step.report
print(len(report["sources"]), "sources", report["problems"], sum(each["events"] for each in report["sources"]) > 50000)
import pyarrow
assert pyarrow.table(step.findings).num_rows
"""
READ = "the script runs\n4 sources [] True\n"


class TestAScriptWithoutAMainGuard:
    """Reading in a script runs the script once, however Python was given it."""

    @pytest.fixture
    def python(self, large, tmp_path):
        def run(*arguments, stdin=None, cwd=tmp_path):
            done = subprocess.run(
                [sys.executable, *map(str, arguments)],
                cwd=cwd,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert (done.returncode, done.stderr) == (0, "")
            return done.stdout

        return run

    @pytest.fixture
    def script(self, large):
        return SCRIPT.format(run=str(large))

    def test_from_standard_input_and_from_the_command_line(self, python, script):
        assert python("-", stdin=script) == READ
        assert python("-c", script) == READ

    @pytest.mark.parametrize("name", ["read.py", "profile.py"])
    def test_a_file(self, python, script, tmp_path, name):
        """Its name may be that of a module of the standard library, which a worker imports."""
        (tmp_path / name).write_text(script)
        assert python(tmp_path / name, cwd="/") == READ

    def test_a_package_and_a_folder(self, python, script, tmp_path):
        (tmp_path / "package").mkdir()
        (tmp_path / "package" / "__init__.py").touch()
        (tmp_path / "package" / "__main__.py").write_text(script)
        assert python("-m", "package") == READ
        assert python("package") == READ

    def test_next_to_files_of_the_names_of_modules(self, python, script, tmp_path):
        """Files next to the script that a worker could import are not run again by it."""
        for name in ("torch", "multiprocessing", "selectors", "tempfile"):
            (tmp_path / f"{name}.py").write_text("print('imported')\n")
        (tmp_path / "read.py").write_text("import sys; here = sys.path.pop(0)\n" + script)
        assert python(tmp_path / "read.py") == READ
        assert python("-I", "-c", script) == READ

    def test_in_a_daemonic_process(self, python, script, tmp_path):
        """A daemonic process of multiprocessing may have no processes of its own there, and may read."""
        (tmp_path / "reader.py").write_text(f"def read():\n    exec({script!r})\n")
        (tmp_path / "main.py").write_text(
            "import multiprocessing\nfrom reader import read\n"
            "if __name__ == '__main__':\n"
            "    process = multiprocessing.get_context('spawn').Process(target=read, daemon=True)\n"
            "    process.start(); process.join(); raise SystemExit(process.exitcode)\n"
        )
        assert python(tmp_path / "main.py") == READ

    def test_a_package_that_is_found_by_pythonpath(self, python, script, tmp_path, monkeypatch):
        """stepprof may lie in a folder of PYTHONPATH, or in one that the script adds itself."""
        home = Path(sys.modules["stepprof"].__file__).parents[1]
        (tmp_path / "copy").mkdir()
        (tmp_path / "copy" / "stepprof").symlink_to(home / "stepprof")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "copy"))
        where = "\nassert stepprof.__file__.startswith(sys.argv[1] + '/copy'), stepprof.__file__"
        assert python("-c", script + "import sys" + where, tmp_path) == READ
        monkeypatch.delenv("PYTHONPATH")
        added = "import sys; sys.path.insert(0, sys.argv[1] + '/copy')\n"
        assert python("-c", added + script + where, tmp_path) == READ


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="finds the worker that reads a file by /proc")
class TestAWorkerThatIsKilled:
    """The reader names the source and the signal, reports the others, and its exit status is not 0."""

    @pytest.fixture
    def read(self, large, tmp_path):
        def run(*arguments):
            process = subprocess.Popen(
                [sys.executable, "-m", "stepprof", *arguments],
                cwd=tmp_path,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            stopped = threading.Event()
            killer = threading.Thread(
                target=kill_readers, args=(process.pid, "rank-1.trace.json.gz", stopped)
            )
            killer.start()
            out, err = process.communicate(timeout=120)
            stopped.set()
            killer.join()
            return process.returncode, out, err

        return run

    def test_report(self, read, large, tmp_path):
        status, out, err = read("report", large, "--workers", "2", "--json", tmp_path / "report.json")
        assert status == 1
        assert "rank-1.trace.json.gz: is not in the report" in err
        assert (
            "rank-1.trace.json.gz: not in the report: the process that read it was killed by SIGKILL" in out
        )
        assert "damaged" not in out
        report = json.loads((tmp_path / "report.json").read_text())
        assert [each["path"] for each in report["sources"] if not each["events"]] == [
            "step-000002/actor/rank-1.trace.json.gz"
        ]
        assert [each["status"] for each in report["shortfalls"]] == ["unread"]

    def test_merge(self, read, large, tmp_path):
        status, out, err = read("merge", large, "--workers", "2", "--output", tmp_path / "t.pftrace")
        assert (status, err) == (
            1,
            "step-000002/actor/rank-1.trace.json.gz: no event of it is in the timeline\n",
        )
        assert "not in the timeline: the process that read it was killed by SIGKILL" in out
        assert (tmp_path / "t.pftrace").stat().st_size > 100_000

    def test_gate(self, read, tmp_path):
        """The steps of both runs are equal, but a source was not read: the gate does not pass."""
        runs = [make_run(tmp_path / name, name) for name in ("a", "b")]
        for run in runs:
            for rank in (0, 1):
                record(run, rank=rank, data=trace(25_000))
                windows = [
                    region("actor", 1.0, step, kind="window", start=(1_700_000_000 + 2 * step) * 10**9)
                    for step in range(1, 13)
                ]
                write_spans(run, rank, *windows, pid=7 + rank)
        sides = [run.path for run in runs]
        status, out, err = read("report", *sides, "--fail-on-regression", "5%", "--workers", "2", "--json")
        assert (status, json.loads(out)["gate"]["verdict"]) == (4, "none")
        assert "rank-1.trace.json.gz: is not in the comparison" in err

    def test_check(self, read, large):
        status, out, _ = read("check", large, "--workers", "2")
        assert status == 1
        assert "rank-1.trace.json.gz: could not be checked: the process that read it was killed" in out
        assert "1 problem" in out

    def test_export(self, read, large, tmp_path):
        status, _, err = read("export", large, "--parquet", tmp_path / "tables")
        assert status == 1
        assert "rank-1.trace.json.gz: is not in the findings" in err


def kill_readers(reader: int, name: str, stopped: threading.Event) -> None:
    """Kill each child of a process that has opened a file of this name, as the kernel does if memory runs out."""
    while not stopped.wait(0.001):
        for pid in children_of(reader):
            try:
                files = [file.readlink() for file in Path(f"/proc/{pid}/fd").iterdir()]
            except OSError:  # it has ended
                continue
            if any(file.name == name for file in files):
                os.kill(pid, signal.SIGKILL)

"""Export jobs in real child processes. Code that could end the test's process runs in a separate one."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import gc
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
from pytest_mock import MockerFixture

from stepprof.backends.base import Export, ExportError
from stepprof.recording.export import deadlock, executor, fork
from stepprof.recording.export.executor import Exporter
from stepprof.recording.export.job import ExportResult
from stepprof.run.model import Artifact

Runner = Callable[..., object]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def artifact(path: str = "actor/rank-0.trace.json.gz", events: int | None = 5) -> Artifact:
    return Artifact(path=path, kind="torch-trace", bytes=17, events=events)


def outcome(thunk: Callable[[], tuple[Artifact, ...]], mode: str = "fork") -> ExportResult:
    results: list[ExportResult] = []
    exporter = Exporter()
    exporter.submit("actor/0", thunk, mode, results.append)
    assert exporter.wait(30)
    (result,) = results
    return result


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds. Fail after 30 s."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lives(pid: int) -> bool:
    """Return whether a process, or a process of a group (negative), exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class TestModes:
    @pytest.mark.parametrize("mode", ["fork", "thread", "inline"])
    def test_delivers_the_artifacts(self, mode: str) -> None:
        """Each mode returns the artifacts, without an error or a note."""
        result = outcome(lambda: (artifact(), artifact("x", None)), mode)
        assert result.artifacts == (artifact(), artifact("x", None))
        assert result.error is None
        assert result.note is None
        assert result.seconds >= 0

    @pytest.mark.parametrize("mode", ["fork", "thread", "inline"])
    def test_a_failure_keeps_the_existing_artifacts(self, mode: str) -> None:
        """If an export fails, its error and the finished artifacts are returned,
        and its leftovers are removed.
        """
        removed: list[str] = []

        class Job(Export):
            def __call__(self) -> tuple[Artifact, ...]:
                raise ExportError("disk\nfull 漢", (artifact(),))

            def discard(self) -> None:
                removed.append("leftovers")

        result = outcome(Job(), mode)
        assert result.error == "ExportError: disk\nfull 漢"
        assert result.artifacts == (artifact(),)
        assert removed == ["leftovers"]

    def test_inline_is_all_stall(self) -> None:
        """In the mode `inline`, `submit` returns after the export, and the stall is the whole time."""
        results: list[ExportResult] = []
        exporter = Exporter()
        exporter.submit("a", lambda: time.sleep(0.05) or (), "inline", results.append)
        assert results[0].stall_seconds >= 0.05
        assert exporter.pending() == ()

    def test_a_child_leaves_its_parent_free(self, tmp_path: Path) -> None:
        """`submit` returns while the child works, and the job is pending until the child has ended."""
        gate = tmp_path / "gate"

        def job() -> tuple[Artifact, ...]:
            while not gate.exists():
                time.sleep(0.01)
            return (artifact(str(os.getpid())),)

        results: list[ExportResult] = []
        exporter = Exporter()
        exporter.submit("actor/0", job, "fork", results.append)
        assert exporter.pending() == ("actor/0",)
        assert not exporter.wait(0.05)
        gate.touch()
        assert exporter.wait(30)
        assert exporter.pending() == ()
        assert results[0].artifacts[0].path != str(os.getpid())
        assert 0 < results[0].stall_seconds < results[0].seconds + 1


class TestQueue:
    def test_at_most_two_children_run_at_a_time(self, tmp_path: Path) -> None:
        """Three threads submit 12 jobs. At most two children run at the same time, and each job ends once."""
        running = tmp_path / "running"
        running.mkdir()

        def job() -> tuple[Artifact, ...]:
            mine = running / str(os.getpid())
            mine.touch()
            count = len(list(running.iterdir()))
            time.sleep(0.05)
            mine.unlink()
            return (artifact(events=count),)

        results: list[ExportResult] = []
        exporter = Exporter()
        threads = [
            threading.Thread(
                target=lambda: [exporter.submit("x", job, "fork", results.append) for _ in range(4)]
            )
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert exporter.wait(60)
        assert len(results) == 12
        assert {result.error for result in results} == {None}
        assert max(result.artifacts[0].events or 0 for result in results) <= executor.CHILDREN

    def test_memory_of_a_job_is_freed_when_its_child_has_ended(self) -> None:
        """The exporter keeps a job until its child has ended, and frees it afterwards."""

        class Job:
            def __call__(self) -> tuple[Artifact, ...]:
                return ()

        job = Job()
        seen = weakref.ref(job)
        alive: list[bool] = []
        exporter = Exporter()
        exporter.submit("x", job, "fork", lambda _: alive.append(seen() is not None))
        del job
        assert exporter.wait(30)
        gc.collect()
        assert seen() is None

    def test_a_callback_may_submit_and_may_fail(self) -> None:
        """If the callback submits another job and raises an error, that job is still exported."""
        results: list[ExportResult] = []
        exporter = Exporter()

        def again(_: ExportResult) -> None:
            exporter.submit("second", lambda: (), "fork", results.append)
            raise RuntimeError("callback")

        exporter.submit("first", lambda: (), "fork", again)
        assert exporter.wait(30)
        assert len(results) == 1

    def test_pipes_beyond_1023_work(self) -> None:
        """An export works if its pipe has a descriptor above 1023."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < 3000:
            pytest.skip("too few descriptors allowed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3000), hard))
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1200)]
        try:
            assert outcome(lambda: (artifact(),)).artifacts == (artifact(),)
        finally:
            for descriptor in held:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class TestBadEnds:
    @pytest.mark.parametrize(
        ("end", "message"),
        [
            (lambda: os.kill(os.getpid(), signal.SIGSEGV), "killed by SIGSEGV"),
            (lambda: os.kill(os.getpid(), signal.SIGRTMIN + 1), f"killed by signal {signal.SIGRTMIN + 1}"),
            (lambda: os._exit(3), "exited with status 3"),
            (lambda: sys.exit(0), "exited with status 71"),
        ],
    )
    def test_the_error_says_how_the_child_ended(self, end: Callable[[], None], message: str) -> None:
        """If a child dies, the error names its signal or exit status."""

        def job() -> tuple[Artifact, ...]:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            faulthandler.disable()
            end()
            return ()

        assert message in str(outcome(job).error)

    @pytest.mark.parametrize("kills", [None, 1])
    def test_the_kernel_kills_it_for_lack_of_memory(
        self, monkeypatch: pytest.MonkeyPatch, kills: int | None
    ) -> None:
        """If the kernel has killed a process for lack of memory meanwhile, or if that is unknown, the job
        fails: it needs memory.
        """
        counted = iter([0, kills])
        monkeypatch.setattr(executor, "out_of_memory_kills", lambda: next(counted))
        parent = os.getpid()

        def job() -> tuple[Artifact, ...]:
            assert os.getpid() != parent
            os.kill(os.getpid(), signal.SIGKILL)
            return ()

        assert "killed by SIGKILL (is the host out of memory?)" in str(outcome(job).error)

    def test_a_child_that_hangs_is_killed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A child that exceeds the time limit is killed, and its job fails."""
        monkeypatch.setattr(executor, "EXPORT_TIMEOUT_SECONDS", 0.2)
        monkeypatch.setattr(executor, "_LOOK_SECONDS", 0.05)
        assert "SIGKILL" in str(outcome(lambda: time.sleep(60) or ()).error)

    def test_a_child_that_other_code_reaps_is_still_reported(self, tmp_path: Path) -> None:
        """If SIGCHLD is ignored, the exit status is lost. The child's report suffices. The job of a child
        without one runs again in another child, as it could end this process too.
        """
        begun = tmp_path / "begun"

        def job() -> tuple[Artifact, ...]:
            if not begun.exists():
                begun.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return (artifact(),)

        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            assert outcome(lambda: (artifact(),)).artifacts == (artifact(),)
            for end in (lambda: os._exit(3), lambda: sys.exit(0)):
                ended = outcome(end)
                assert str(ended.error).startswith(
                    "the export process ended before its file was complete, twice"
                )
            killed = outcome(job)
            assert (killed.artifacts, killed.error) == ((artifact(),), None)
            assert killed.note == "exported again: the first export process ended without a result"
        finally:
            signal.signal(signal.SIGCHLD, before)

    def test_the_pipe_held_open_by_another_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If a process that the child forked keeps the pipe open, the job still ends with the child."""
        monkeypatch.setattr(executor, "_LOOK_SECONDS", 0.05)

        read, write = os.pipe()

        def job() -> tuple[Artifact, ...]:
            if os.fork() == 0:  # keeps the inherited pipe open until this test ends
                os.close(write)
                os.read(read, 1)
                os._exit(0)
            os._exit(5)

        try:
            assert "status 5" in str(outcome(job).error)
        finally:
            os.close(write)
            os.close(read)

    @pytest.mark.parametrize("failure", [OSError(errno.ENOMEM, "no memory"), RuntimeError("shutting down")])
    def test_fork_fails(self, mocker: MockerFixture, failure: Exception) -> None:
        """If `fork` fails, the export runs in place, and the note gives the reason."""
        mocker.patch.object(fork.system, "fork", side_effect=failure)
        result = outcome(lambda: (artifact(),))
        assert result.artifacts == (artifact(),)
        assert str(failure) in str(result.note)

    def test_no_fork_on_this_system(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a system without `fork`, the export runs in place."""
        monkeypatch.delattr(os, "fork")
        assert "cannot fork" in str(outcome(lambda: (artifact(),)).note)

    @pytest.mark.parametrize("mode", ["fork", "thread"])
    def test_thread_start_fails(self, mocker: MockerFixture, mode: str) -> None:
        """If no thread can be started, as at the end of the interpreter, the export runs in place."""
        mocker.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread"))
        result = outcome(lambda: (artifact(),), mode)
        assert (result.artifacts, result.note) == (
            (artifact(),),
            "exported in place: can't start new thread",
        )

    def test_a_queued_job_without_a_fork(self, mocker: MockerFixture, tmp_path: Path) -> None:
        """If the fork of a queued job fails, the watcher thread exports it."""
        gate = tmp_path / "gate"

        def job() -> tuple[Artifact, ...]:
            while not gate.exists():
                time.sleep(0.01)
            return (artifact(),)

        results: list[ExportResult] = []
        exporter = Exporter()
        for _ in range(3):
            exporter.submit("x", job, "fork", results.append)
        mocker.patch.object(fork.system, "fork", side_effect=OSError(errno.EAGAIN, "no process"))
        gate.touch()
        assert exporter.wait(30)
        assert [result.artifacts for result in results] == [(artifact(),)] * 3
        assert sum("exported in a thread" in str(result.note) for result in results) == 1

    def test_a_time_out_of_the_job_before_the_fork(self) -> None:
        """A time-out of the job reaches it, although it is an OSError. The export does not run on the job's thread."""

        def look(frame: FrameType, event: str, argument: object) -> None:
            if event == "call" and frame.f_code is Exporter._watch.__code__:
                sys.settrace(None)
                raise TimeoutError

        results: list[ExportResult] = []
        before = sys.gettrace()
        sys.settrace(look)
        try:
            with pytest.raises(TimeoutError):
                Exporter().submit("x", lambda: (artifact(),), "fork", results.append)
        finally:
            sys.settrace(before)
        assert [(result.artifacts, result.error) for result in results] == [
            ((), "interrupted by TimeoutError")
        ]

    def test_an_interrupt_at_the_fork(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An interrupt during the fork reaches the program. Its job fails, and the next job still runs."""

        def interrupt() -> int:
            raise KeyboardInterrupt

        results: list[ExportResult] = []
        exporter = Exporter()
        with monkeypatch.context() as patch:
            patch.setattr(fork.system, "fork", interrupt)
            for _ in range(3):
                with pytest.raises(KeyboardInterrupt):
                    exporter.submit("x", lambda: (artifact(),), "fork", results.append)
        assert [result.error for result in results] == ["interrupted by KeyboardInterrupt"] * 3
        exporter.submit("x", lambda: (artifact(),), "fork", results.append)
        assert exporter.wait(30)
        assert results[3].artifacts == (artifact(),)


def compute(_: Path) -> None:
    end = time.process_time() + 0.6
    while time.process_time() < end:
        pass


def write_to_a_slow_reader(fifo: Path) -> None:
    with fifo.open("wb", buffering=0) as file:
        file.write(bytes(1 << 18))  # four times the size of a pipe, in one call


def wait_for_a_thread(_: Path) -> None:
    done = threading.Lock()
    done.acquire()
    threading.Thread(target=lambda: (time.sleep(0.6), done.release()), daemon=True).start()
    done.acquire()


def wait_for_a_process(_: Path) -> None:
    subprocess.run(["sleep", "0.6"], check=True)


def wait_for_a_time(_: Path) -> None:
    lock = threading.Lock()
    lock.acquire()
    assert not lock.acquire(timeout=0.6)


@contextlib.contextmanager
def held() -> Iterator[threading.Lock]:
    """Yield a lock that another thread holds."""
    lock, taken, let_go = threading.Lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            let_go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    yield lock
    let_go.set()
    thread.join()


def fork_and_warn(pids: list[int]) -> Callable[[], int]:
    """Return a fork that raises in the parent after the child exists, and adds the child to a list."""
    fork = os.fork

    def forked() -> int:
        pid = fork()
        if pid:
            pids.append(pid)
            raise DeprecationWarning("multi-threaded")
        return 0

    return forked


class TestKilledChild:
    def test_its_job_runs_again_in_the_parent(self, tmp_path: Path) -> None:
        """If another process kills a child, as Ray does at the end of a worker, the parent removes its
        leftovers and exports in a thread.
        """
        parent = os.getpid()

        class Job(Export):
            def __call__(self) -> tuple[Artifact, ...]:
                (tmp_path / "file").touch(exist_ok=False)
                if os.getpid() != parent:
                    os.kill(os.getpid(), signal.SIGKILL)
                return (artifact(str(os.getpid())),)

            def discard(self) -> None:
                (tmp_path / "file").unlink()

        result = outcome(Job())
        assert (result.artifacts, result.error, result.outcome) == (
            (artifact(str(parent)),),
            None,
            "complete",
        )
        assert result.note == "exported in a thread: another process has killed the export process"


linux = pytest.mark.skipif(deadlock._FUTEX is None, reason="no system call numbers of this processor")


class TestHungChild:
    @linux
    def test_runs_again_in_the_parent(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """If a child waits for a lock that a thread of its parent holds, the parent removes its leftovers
        and exports in a thread. The queued jobs do the same.
        """
        monkeypatch.setattr(executor, "HANG_SECONDS", 0.2)
        parent = os.getpid()
        results: list[ExportResult] = []

        class Job(Export):
            def __init__(self, number: int) -> None:
                self.file = tmp_path / str(number)

            def __call__(self) -> tuple[Artifact, ...]:
                self.file.touch(exist_ok=False)
                if os.getpid() != parent:
                    lock.acquire()
                return (artifact(str(os.getpid())),)

            def discard(self) -> None:
                self.file.unlink()

        exporter = Exporter()
        with held() as lock:
            for number in range(3):
                exporter.submit("x", Job(number), "fork", results.append)
            assert exporter.finish(30)
        assert [result.artifacts for result in results] == [(artifact(str(parent)),)] * 3
        assert {(result.error, result.outcome) for result in results} == {(None, "complete")}
        assert all("exported in a thread: the export process hung" in str(result.note) for result in results)

    @linux
    def test_a_child_whose_threads_all_hang_is_killed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A child whose threads all wait for locks is killed as well, and the parent exports."""
        monkeypatch.setattr(executor, "HANG_SECONDS", 0.2)
        parent = os.getpid()

        def job() -> tuple[Artifact, ...]:
            if os.getpid() != parent:
                thread = threading.Thread(target=lock.acquire)
                thread.start()
                thread.join()
            return (artifact(),)

        with held() as lock:
            result = outcome(job)
        assert (result.artifacts, result.error) == ((artifact(),), None)
        assert "hung" in str(result.note)

    @linux
    def test_a_child_that_hangs_after_its_report_exports_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If a child hangs after its report, its artifacts count, and the export is not repeated."""
        monkeypatch.setattr(executor, "HANG_SECONDS", 0.2)
        results: list[ExportResult] = []
        exporter = Exporter()
        with held() as lock:
            exporter.submit(
                "x",
                lambda: (artifact(str(os.getpid())),),
                "fork",
                results.append,
                in_child=lambda _: lock.acquire(),
            )
            assert exporter.wait(30)
        assert (results[0].error, results[0].note) == (None, None)
        assert results[0].artifacts[0].path != str(os.getpid())

    @linux
    @pytest.mark.parametrize("pid_is_lost", [False, True])
    def test_a_child_that_hangs_at_its_end_has_reported(
        self, pid_is_lost: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A child that hangs in a replaced `os._exit` after its report is killed. Its job is
        complete, and the next jobs run.
        """
        monkeypatch.setattr(executor, "HANG_SECONDS", 0.2)
        pids: list[int] = []
        if pid_is_lost:
            monkeypatch.setattr(fork.system, "fork", fork_and_warn(pids))

        def job() -> tuple[Artifact, ...]:
            fork.system._exit = lambda _: lock.acquire()
            return (artifact(str(os.getpid())),)

        results: list[ExportResult] = []
        exporter = Exporter()
        with held() as lock, warnings.catch_warnings():
            for _ in range(3):
                exporter.submit("x", job, "fork", results.append)
            assert exporter.wait(30)
        assert {(result.error, result.note, result.outcome) for result in results} == {
            (None, None, "complete")
        }
        assert len({result.artifacts[0].path for result in results} - {str(os.getpid())}) == 3
        for pid in pids:
            with pytest.raises(ChildProcessError):
                os.waitpid(pid, 0)

    @pytest.mark.parametrize(
        "work", [compute, write_to_a_slow_reader, wait_for_a_thread, wait_for_a_process, wait_for_a_time]
    )
    def test_a_slow_child_is_left_alone(
        self, work: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A child that computes, or waits for a pipe, a thread, a process or a time, is not killed."""
        monkeypatch.setattr(executor, "HANG_SECONDS", 0.1)
        monkeypatch.setattr(executor, "_LOOK_SECONDS", 0.05)
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)

        def job() -> tuple[Artifact, ...]:
            work(fifo)
            return (artifact(str(os.getpid())),)

        results: list[ExportResult] = []
        exporter = Exporter()
        exporter.submit("x", job, "fork", results.append)
        if work is write_to_a_slow_reader:
            with fifo.open("rb", buffering=0) as file:
                while file.read(1 << 16):
                    time.sleep(0.3)
        assert exporter.wait(30)
        assert (results[0].error, results[0].note) == (None, None)
        assert results[0].artifacts[0].path != str(os.getpid())

    def test_without_proc_a_hung_child_is_killed_at_its_limit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without `/proc`, a hung child is not detected. It is killed at the
        time limit, and its job fails.
        """
        monkeypatch.setattr(deadlock, "_PROC", tmp_path)
        monkeypatch.setattr(executor, "HANG_SECONDS", 0.0)
        monkeypatch.setattr(executor, "EXPORT_TIMEOUT_SECONDS", 0.5)
        monkeypatch.setattr(executor, "_LOOK_SECONDS", 0.05)
        with held() as lock:
            result = outcome(lambda: lock.acquire() and ())
        assert "SIGKILL" in str(result.error)
        assert result.note is None


class TestTheChild:
    def test_runs_no_handler_and_finishes(self, tmp_path: Path) -> None:
        """In the child, signals of a terminal or launcher do not end the export, and no signal
        handler of the program runs.
        """
        ran = tmp_path / "handler"
        before = signal.signal(signal.SIGUSR1, lambda *_: ran.touch())

        def job() -> tuple[Artifact, ...]:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
                os.kill(os.getpid(), number)
            return (artifact(),)

        try:
            assert outcome(job).artifacts == (artifact(),)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert not ran.exists()

    def test_keeps_no_connection_open(self) -> None:
        """If the parent closes a socket, its peer notices at once, although the child still runs."""
        ours, theirs = socket.socketpair()
        exporter = Exporter()
        exporter.submit("x", lambda: time.sleep(3) or (), "fork", lambda _: None)
        time.sleep(0.3)
        ours.close()
        theirs.settimeout(2)
        with theirs:
            assert theirs.recv(1) == b""
        exporter.wait(30)

    def test_runs_no_finalizer_and_no_atexit(self, run_script: Callable[..., object]) -> None:
        """The child runs no finalizer and no `atexit` function, and prints no buffered
        text. The parent does each once.
        """
        ran = run_script(
            """
            import atexit, gc, os, sys
            from stepprof.recording.export.executor import Exporter

            class Noisy:
                def __del__(self): os.write(1, b"finalized\\n")

            gc.set_threshold(10_000)
            noisy = Noisy(); noisy.me = noisy; del noisy
            atexit.register(lambda: os.write(1, b"atexit\\n"))
            # a hook of the program, which allocates: coverage has one, too
            os.register_at_fork(after_in_child=lambda: [[] for _ in range(100_000)])
            sys.stdout.write("buffered\\n")
            exporter = Exporter()
            exporter.submit("x", lambda: tuple([] for _ in range(0)), "fork", print)
            assert exporter.wait(30)
            assert gc.isenabled()
            """
        ).check()
        lines = ran.stdout.splitlines()
        assert (lines.count("buffered"), lines.count("atexit"), lines.count("finalized")) == (1, 1, 1)

    def test_a_child_finishes_after_its_parent_was_killed(
        self, run_script: Callable[..., object], tmp_path: Path
    ) -> None:
        """If the parent is killed, the child still finishes the export."""
        ran = run_script(
            """
            import os, pathlib, signal, time
            from stepprof.recording.export.executor import Exporter

            def job():
                time.sleep(0.5)
                pathlib.Path("done").touch()
                return ()

            Exporter().submit("x", job, "fork", print)
            os.kill(os.getpid(), signal.SIGKILL)
            """
        )
        assert ran.returncode == -signal.SIGKILL
        eventually((tmp_path / "done").exists)

    def test_under_warnings_as_errors(self, run_script: Callable[..., object]) -> None:
        """If warnings are errors, Python's warning about a fork with threads neither
        fails the export nor is printed.
        """
        ran = run_script(
            """
            import threading
            from stepprof.recording.export.executor import Exporter
            stop = threading.Event()
            threading.Thread(target=stop.wait).start()
            results = []
            exporter = Exporter()
            for _ in range(4):
                exporter.submit("x", lambda: (), "fork", results.append)
            assert exporter.wait(30)
            stop.set()
            print([result.error or result.note for result in results])
            """
        ).check()
        assert ran.stdout == "[None, None, None, None]\n"
        assert ran.stderr == ""

    def test_a_child_is_found_by_the_pid_in_its_report(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If the warning still raises an error in the parent, the child's report is read,
        and its pid is used to reap it.
        """
        pids: list[int] = []
        monkeypatch.setattr(fork.system, "fork", fork_and_warn(pids))
        with warnings.catch_warnings():
            assert outcome(lambda: (artifact(),)).artifacts == (artifact(),)
        with pytest.raises(ChildProcessError):
            os.waitpid(pids[0], 0)

    def test_a_signal_at_the_fork_reaches_the_parent(self) -> None:
        """A signal during the fork is delivered to the parent afterwards."""
        got: list[int] = []
        before = signal.signal(signal.SIGUSR1, lambda number, _: got.append(number))
        try:
            with fork.signals_held():
                signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
                assert got == []
            assert got == [signal.SIGUSR1]
        finally:
            signal.signal(signal.SIGUSR1, before)

    @pytest.mark.parametrize("hook", ["before", "after_in_parent"])
    def test_a_handler_that_raises_in_a_hook_of_the_fork_reaches_the_job(self, hook: str) -> None:
        """Python drops exceptions of these hooks. Another thread receives the signal, which this one blocks."""
        ended = subprocess.run(
            [sys.executable, "-c", TIME_OUT_AT_THE_FORK, hook], capture_output=True, text=True, timeout=60
        )
        assert (ended.stdout, ended.stderr, ended.returncode) == ("the child ended, TimedOut\n", "", 0)


TIME_OUT_AT_THE_FORK = """
import os, signal, sys, threading, time
from stepprof.recording.export import fork

class TimedOut(Exception):
    pass

def expired(*_):
    raise TimedOut

def send():
    if os.getpid() == parent:
        os.kill(parent, signal.SIGALRM)
        time.sleep(0.1)
        len([each for each in range(10)])  # the handler runs here

parent = os.getpid()
signal.signal(signal.SIGALRM, expired)
os.register_at_fork(**{sys.argv[1]: send})
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
try:
    with fork.signals_held() as mask:
        pid, pipe = fork.fork_for(lambda send: None, mask)
        ended = os.waitpid(pid, 0) == (pid, 0)
except TimedOut:
    print("the child ended," if ended else "", "TimedOut")
"""


class TestForkOfTheUser:
    def test_a_child_of_the_user_owns_no_job(self, tmp_path: Path) -> None:
        """After a fork by the program, the child has no pending job, and can export on its own."""
        exporter = Exporter()
        exporter.submit("x", lambda: time.sleep(0.5) or (), "fork", lambda _: None)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                seen = [exporter.pending() == (), exporter.wait(0.01)]
                results: list[ExportResult] = []
                exporter.submit("y", lambda: (artifact(),), "fork", results.append)
                seen += [exporter.wait(20), bool(results) and results[0].artifacts == (artifact(),)]
                (tmp_path / "seen").write_text(json.dumps(seen))
                code = 0
            finally:
                os._exit(code)
        assert exporter.pending() == ("x",)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert exporter.wait(30)
        assert json.loads((tmp_path / "seen").read_text()) == [True, True, True, True]


@pytest.fixture
def below_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a process that Ray has started."""
    monkeypatch.setenv("RAY_RAYLET_PID", "1")


@linux
@pytest.mark.usefixtures("below_ray")
class TestOrphan:
    """The child of a process whose children Ray kills is no child of it, and in a session of its own."""

    def test_exports_in_a_session_of_its_own(self) -> None:
        """It has another parent and another session, its result arrives, and no zombie is left."""

        def job() -> tuple[Artifact, ...]:
            return (artifact(f"{os.getppid()} {os.getsid(0)} {os.getpgid(0)}"),)

        result = outcome(job)
        assert (result.error, result.note) == (None, None)
        parent, session, group = map(int, result.artifacts[0].path.split())
        assert parent != os.getpid()
        assert session == group
        assert session not in (os.getsid(0), os.getpgid(0))
        with pytest.raises(ChildProcessError):
            os.waitpid(session, 0)

    def test_finishes_after_its_process_group_was_killed(
        self, run_script: Callable[..., object], tmp_path: Path
    ) -> None:
        """If the worker and its group of processes are killed while the export runs, it still finishes."""
        ran = run_script(
            """
            import os, pathlib, signal, time
            from stepprof.recording.export.executor import Exporter

            os.setpgid(0, 0)
            os.environ["RAY_RAYLET_PID"] = "1"
            def job():
                pathlib.Path("begun").touch()
                time.sleep(0.5)
                pathlib.Path("done").touch()
                return ()

            Exporter().submit("x", job, "fork", print)
            while not pathlib.Path("begun").exists():
                time.sleep(0.01)
            os.killpg(0, signal.SIGKILL)
            """
        )
        assert ran.returncode == -signal.SIGKILL
        eventually((tmp_path / "done").exists)

    def test_that_is_killed_exports_again(self, tmp_path: Path) -> None:
        """If another process kills it, its leftovers are removed, and another child exports."""

        class Job(Export):
            def __call__(self) -> tuple[Artifact, ...]:
                (tmp_path / "file").touch(exist_ok=False)
                if not (tmp_path / "begun").exists():
                    (tmp_path / "begun").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return (artifact(),)

            def discard(self) -> None:
                (tmp_path / "file").unlink()

        result = outcome(Job())
        assert (result.artifacts, result.error) == ((artifact(),), None)
        assert result.note == "exported again: the first export process ended without a result"

    def test_that_takes_too_long_is_killed(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """At the time limit it is killed with the processes that it has started, and its job fails."""
        monkeypatch.setattr(executor, "_LOOK_SECONDS", 0.05)
        begun = tmp_path / "begun"

        def job() -> tuple[Artifact, ...]:
            begun.write_text(str(os.getpgid(0)))
            begun.rename(tmp_path / "group")
            time.sleep(300)
            return ()

        results: list[ExportResult] = []
        exporter = Exporter()
        exporter.submit("x", job, "fork", results.append)
        eventually((tmp_path / "group").exists)
        monkeypatch.setattr(executor, "EXPORT_TIMEOUT_SECONDS", 0.0)
        assert exporter.wait(30)
        assert results[0].error == "the export process ended before its file was complete"
        group = int((tmp_path / "group").read_text())
        eventually(lambda: not lives(-group))

    def test_that_hangs_on_a_lock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If it waits for a lock that was locked at the fork, it is killed, and the parent exports in a thread."""
        monkeypatch.setattr(executor, "HANG_SECONDS", 0.2)
        parent = os.getpid()

        def job() -> tuple[Artifact, ...]:
            if os.getpid() != parent:
                lock.acquire()
            return (artifact(),)

        with held() as lock:
            result = outcome(job)
        assert (result.artifacts, result.error) == ((artifact(),), None)
        assert "the export process hung" in str(result.note)

    def test_without_a_second_process(self, mocker: MockerFixture) -> None:
        """If the child can start no process, it exports itself."""
        parent, forked = os.getpid(), os.fork

        def once() -> int:
            if os.getpid() != parent:
                raise OSError(errno.EAGAIN, "no process")
            return forked()

        mocker.patch.object(fork.system, "fork", once)
        result = outcome(lambda: (artifact(str(os.getppid())),))
        assert (result.artifacts, result.error) == ((artifact(str(parent)),), None)

    def test_is_found_by_its_first_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If a warning as an error loses the pid at the fork, the child that has started it is reaped."""
        pids: list[int] = []
        monkeypatch.setattr(fork.system, "fork", fork_and_warn(pids))
        with warnings.catch_warnings():
            assert outcome(lambda: (artifact(),)).artifacts == (artifact(),)
        with pytest.raises(ChildProcessError):
            os.waitpid(pids[0], 0)


REPLACED = """
    import atexit, os, posix, sys
    if sys.argv[1] == "both": posix._exit = sys.exit
    os._exit = sys.exit  # as Scalene does
    os.fork = None
    from stepprof.recording.export.executor import Exporter

    me, log = os.getpid(), os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    def note(what): os.write(log, f"{what} {'job' if os.getpid() == me else 'child'}, ".encode())
    def export():
        note("export")
        return ()
    atexit.register(note, "atexit")
    try:
        exporter, results = Exporter(), []
        exporter.submit("x", export, "fork", results.append)
        assert exporter.wait(30) and results[0].error is None, results
    finally:
        note("finally")
"""


class TestReplacedFunctions:
    @pytest.mark.parametrize("replaced", ["os", "both"])
    def test_the_child_runs_no_code_of_the_job(self, run_script, tmp_path: Path, replaced: str) -> None:
        """Where a tool has replaced `os._exit`, the child ends without the `finally` and the exit functions of the job."""
        run_script(REPLACED, replaced).check()
        assert (tmp_path / "log").read_text() == "export child, finally job, atexit job, "

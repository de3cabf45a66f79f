"""Run export jobs after a stop, away from the training thread where possible.

torch's export holds the GIL all the time, so a thread would not help. A forked child already has
the captured events in its memory, and writes them while the parent trains. A job is a callable that
runs in a forked child (two at a time, the others queue), in a thread, or in place. A child reports
its result as one line of JSON through a pipe. The fork blocks the caller for 10 to 55 ms (page
tables). A child that hangs on a lock is killed, and its job runs again in a thread
(`stepprof.recording.export.deadlock`). So does the job of a child that another process has killed:
a worker of Ray that ends in order kills its child processes first. So there the export runs in a
child of the child, which is no child of the worker any more.

A job's memory is released when its child has ended. The results of 100,000 ops are freed in 0.14 to
0.24 s then, but in 1.2 to 1.5 s right after the fork, because each shared page must be copied first
(torch 2.13; the GIL is held in both cases).
"""

from __future__ import annotations

import collections
import os
import threading
import weakref
from collections.abc import Callable

from stepprof.backends.base import Export, ExportCall
from stepprof.host import real_time
from stepprof.host.memory import out_of_memory_kills
from stepprof.host.readable import readable
from stepprof.interrupts import ignored, ours
from stepprof.log import logger
from stepprof.recording.export import fork
from stepprof.recording.export.child import Child
from stepprof.recording.export.job import (
    ExportJob,
    ExportResult,
    OnDone,
    perform,
    report,
)
from stepprof.run.model import Artifact, Outcome

CHILDREN = 2
"""Maximum number of children; more would compete for the disk and for the cores that train."""
EXPORT_TIMEOUT_SECONDS = float(fork.LIFE_SECONDS)
"""A child is killed after this, whatever it does."""
HANG_SECONDS = 2.0
"""A child that has waited for a lock for so long, and has done nothing else, is killed."""
HURRY_SECONDS = 0.5
"""A job that must end keeps this many seconds for its own report."""
_LOOK_SECONDS = (
    0.5  # how often a child is checked besides its pipe, whose write end another fork may hold open
)
_END_SECONDS = 0.01
"""How often a child is checked that has written all it will write."""


class Exporter:
    """Runs export jobs and reports the result of each. Any thread may submit; nothing here raises.

    `on_done` is called exactly once per job: before `submit` returns (inline), or on a thread of the exporter.
    """

    def __init__(self) -> None:
        self._reset()
        _exporters.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._jobs: dict[ExportJob, None] = {}
        self._queue: collections.deque[ExportJob] = collections.deque()
        self._children: list[Child] = []
        self._forking = 0
        self._watching = False
        self._wake: tuple[int, int] | None = None

    def _forget(self) -> None:
        """In a forked process: drop the parent's jobs, but keep their objects. Freeing them would copy
        all their pages.
        """
        _inherited.append((self._jobs, self._queue, self._children))
        self._reset()

    def submit(
        self,
        label: str,
        thunk: ExportCall,
        mode: str,
        on_done: OnDone,
        *,
        in_child: OnDone | None = None,
        on_child: Callable[[int], None] | None = None,
    ) -> None:
        """Run `thunk` by `mode` (``fork``, ``thread``, ``inline``). If that is impossible, run it in
        place, with a note in the result. A job whose child hangs, or is killed by another process, runs
        again in a thread, also with a note.

        `in_child` is called in a forked child with its result, before the parent gets it: the parent may have died.
        `on_child` is called in the parent with the pid of the process that exports, on a thread of the exporter.
        """
        job = ExportJob(label, thunk, on_done, real_time.perf_counter(), in_child=in_child, on_child=on_child)
        try:
            with self._lock:
                self._jobs[job] = None
            if mode == "fork":
                self._submit_fork(job)
            elif mode == "thread":
                self._submit_thread(job)
            else:
                self._run(job)
        except BaseException as interrupt:
            if not self._is_accounted_for(job):
                self._finish(job, (), f"interrupted by {type(interrupt).__name__}", job.stall_seconds)
            raise

    def _is_accounted_for(self, job: ExportJob) -> bool:
        """Return whether a job whose caller was interrupted has a thread, a child or a place in the queue, or has ended."""
        with self._lock:
            children = any(child.job is job for child in self._children)
            return job.threaded or children or job in self._queue or job not in self._jobs

    def pending(self) -> tuple[str, ...]:
        """Return the labels of the pending jobs, oldest first."""
        with self._lock:
            return tuple(job.label for job in self._jobs)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until every job has ended (True), or for `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs, timeout)

    def finish(self, timeout: float) -> bool:
        """Final wait at shutdown. Jobs that block on an external tool get the deadline through `hurry()`."""
        until = real_time.monotonic() + timeout
        with self._lock:
            thunks = [job.thunk for job in self._jobs]
        for thunk in thunks:
            if isinstance(thunk, Export):
                thunk.hurry(until - min(HURRY_SECONDS, timeout / 2))
        return self.wait(max(until - real_time.monotonic(), 0.0))

    # -- in place, and in a thread

    def _run(self, job: ExportJob, *, stalls: bool = True) -> None:
        began = real_time.perf_counter()
        artifacts, error, outcome = perform(job.thunk)
        ended = real_time.perf_counter()
        if stalls:
            job.stall_seconds = ended - job.submitted
        self._finish(job, artifacts, error, ended - began, outcome)

    def _submit_thread(self, job: ExportJob) -> None:
        thread = threading.Thread(
            target=self._run, args=(job,), kwargs={"stalls": False}, name="stepprof-export", daemon=True
        )
        try:
            job.stall_seconds = real_time.perf_counter() - job.submitted
            job.threaded = True
            thread.start()
        except ours(RuntimeError) as error:  # no more threads, or the interpreter is shutting down
            job.threaded = False
            self._run_in_place(job, error)

    def _run_in_place(self, job: ExportJob, reason: object) -> None:
        job.note = f"exported in place: {reason}"
        logger.warning("export.in_place", label=job.label, reason=str(reason))
        self._run(job)

    def _run_in_watcher(self, job: ExportJob, reason: object) -> None:
        """Run a job on the watcher's thread: the other children wait meanwhile, but they write on."""
        job.note = f"exported in a thread: {reason}"
        logger.warning("export.in_thread", label=job.label, reason=str(reason))
        self._run(job, stalls=False)

    # -- in a child

    def _submit_fork(self, job: ExportJob) -> None:
        if not hasattr(os, "fork"):
            self._run_in_place(job, "this system cannot fork")
            return
        try:
            self._watch()
        except ours(OSError, RuntimeError) as error:
            # no pipe or no thread: without a watcher the end of the child would be missed
            self._run_in_place(job, error)
            return
        with self._lock:
            if len(self._children) + self._forking >= CHILDREN:
                self._queue.append(job)
                return
            self._forking += 1
        self._fork(job, on_caller=True)

    def _fork(self, job: ExportJob, *, on_caller: bool) -> None:
        """Start a child for `job`, in the reserved place."""
        child, failure = None, None
        try:
            with fork.signals_held() as mask:
                try:
                    kills, orphan = out_of_memory_kills(), fork.loses_children()
                    pid, pipe = fork.fork_for(lambda send: report(job, send), mask, orphan=orphan)
                    began = real_time.perf_counter()
                    child = Child(job, pid, pipe, began, orphan, out_of_memory_before=kills)
                except ours(OSError, RuntimeError) as error:
                    failure = error
                finally:
                    if on_caller:
                        job.stall_seconds = real_time.perf_counter() - job.submitted
                    with self._lock:
                        self._forking -= 1
                        if child is not None:
                            self._children.append(child)
        except BaseException as interrupt:
            if child is None and not on_caller:
                self._finish(job, (), f"interrupted by {type(interrupt).__name__}", job.stall_seconds)
            raise
        self._nudge()
        if child is not None:
            return
        if on_caller:
            self._run_in_place(job, failure)
        else:
            self._run_in_watcher(job, failure)

    def _watch(self) -> None:
        """Start the watcher at the first child: one daemon thread for all children."""
        with self._lock:
            if self._watching:
                return
            self._wake = self._wake or os.pipe()
            threading.Thread(target=self._attend, name="stepprof-exports", daemon=True).start()
            self._watching = True

    def _nudge(self) -> None:
        with self._lock:
            wake = self._wake
        if wake is not None:
            with ignored(OSError):  # the watcher looks by itself soon enough
                os.write(wake[1], b".")

    def _attend(self) -> None:
        while True:
            with self._lock:
                wake, children = self._wake, tuple(self._children)
            if wake is None:  # pragma: no cover - only in a forked process, which has no such thread
                return
            pipes = [wake[0], *(child.pipe for child in children if not child.at_end)]
            seconds = _END_SECONDS if any(child.at_end for child in children) else _LOOK_SECONDS
            ready = readable(pipes, seconds if children else None)
            if wake[0] in ready:
                os.read(wake[0], 4096)
            for child in children:
                if child.pipe in ready:
                    known = child.worker
                    child.read()
                    if child.worker is not None and known is None and child.job.on_child is not None:
                        child.job.on_child(child.worker.pid)
                self._look_after(child)
            while (job := self._next()) is not None:
                self._fork(job, on_caller=False)

    def _next(self) -> ExportJob | None:
        with self._lock:
            if not self._queue or len(self._children) + self._forking >= CHILDREN:
                return None
            self._forking += 1
            return self._queue.popleft()

    def _look_after(self, child: Child) -> None:
        late = real_time.perf_counter() - child.began > EXPORT_TIMEOUT_SECONDS
        status = child.status(late=late)
        if status is fork.RUNNING:
            if late or child.look(HANG_SECONDS):
                child.late = late
                child.kill()
            return
        child.received += fork.drained(child.pipe)
        child.late = child.late or late
        with ignored(OSError):
            os.close(child.pipe)
        with self._lock:
            self._children.remove(child)
        if (verdict := child.verdict()) is not None:
            self._finish(child.job, verdict.artifacts, verdict.error, verdict.seconds, verdict.outcome)
        elif child.hung:
            self._run_again(child.job, "the export process hung on a lock that was locked when it was forked")
        elif not child.was_killed_by_others(status, out_of_memory_kills()):
            error = f"the export process {fork.how_it_ended(status)} before its file was complete"
            self._finish(child.job, (), error, real_time.perf_counter() - child.began)
        elif fork.is_killed(status):
            self._run_again(child.job, "another process has killed the export process")
        else:
            self._fork_again(child)

    def _fork_again(self, child: Child) -> None:
        """Run the job of a child whose exit status is unknown once more, in another child: here it could end this process."""
        job = child.job
        if job.forked_again:
            error = (
                "the export process ended before its file was complete, twice; its exit status is not known"
            )
            self._finish(job, (), error, real_time.perf_counter() - child.began)
            return
        job.forked_again, job.note = True, "exported again: the first export process ended without a result"
        logger.warning("export.again", label=job.label)
        if isinstance(job.thunk, Export):
            job.thunk.discard()
        with self._lock:
            self._queue.append(job)

    def _run_again(self, job: ExportJob, reason: str) -> None:
        """Run the job of a child that was killed, here in the parent."""
        if isinstance(job.thunk, Export):
            job.thunk.discard()
        self._run_in_watcher(job, reason)

    def _finish(
        self,
        job: ExportJob,
        artifacts: tuple[Artifact, ...],
        error: str | None,
        seconds: float,
        outcome: Outcome = "failed",
    ) -> None:
        if error is not None and isinstance(job.thunk, Export):
            job.thunk.discard()
        job.thunk = None
        result = ExportResult(artifacts, error, seconds, job.stall_seconds, job.note, outcome)
        try:
            job.on_done(result)
        except ours(Exception) as failure:  # the watcher serves other jobs too
            logger.warning("export.callback_failed", label=job.label, reason=repr(failure))
        finally:
            # not the condition's own enter and exit: they are Python, and an interrupt between them would leave it locked
            with self._lock:
                self._jobs.pop(job, None)
                self._changed.notify_all()


_inherited: list[object] = []
_exporters: weakref.WeakSet[Exporter] = weakref.WeakSet()


def _forget_all() -> None:
    for exporter in tuple(_exporters):
        exporter._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)

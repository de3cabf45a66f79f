"""Test the end of a run with actors that do not answer. The role's stop timeout limits it, and the
actor is free afterwards.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from actor_engine import Server
from driving import until, workers_path

import stepprof
from stepprof.host.process_identity import process_start
from stepprof.instrument.context import cell

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]

STOP_SECONDS = 2
BOUND = 15
"""Well above the stop timeout, the start timeout and the time that Ray takes; far below the 120 s
for exports.
"""


class Rank(Server):
    """A trainer that may hold an engine."""

    def pid(self):
        return os.getpid()

    def run_id(self):
        """Return the run of the session in this process."""
        return None if cell.session is None else cell.session.run_id


@pytest.fixture
def short(ray_here, tmp_path, request):
    """Start a session with a stop timeout of two seconds. The start timeout is long enough for an
    actor's first call on a busy machine.
    """
    yield stepprof.init(
        {
            "output_dir": str(tmp_path / "runs"),
            "steps": "2",
            "ranks": "all",
            "backend": "null",
            "engine_start_timeout_seconds": getattr(request, "param", 60),
            "engine_stop_timeout_seconds": STOP_SECONDS,
        },
        run_id="job",
    )
    stepprof.shutdown(5)


@pytest.fixture
def stopped():
    """Return a function that stops processes; they continue after the test."""
    pids = []

    def stop(pid):
        os.kill(pid, signal.SIGSTOP)
        pids.append(pid)

    def go_on():
        while pids:
            os.kill(pids.pop(), signal.SIGCONT)

    stop.go_on = go_on
    yield stop
    go_on()


def seconds_of_shutdown():
    """Return the duration of `stepprof.shutdown()` as a script calls it at its end."""
    began = time.monotonic()
    stepprof.shutdown()
    return time.monotonic() - began


class TestShutdown:
    """`shutdown()` without an argument."""

    @pytest.mark.parametrize("short", [1], indirect=True)
    @pytest.mark.parametrize("kind", ["rank", "engine"])
    def test_an_actor_that_is_never_scheduled(self, short, start, log, kind):
        """No node has the resources of the actor. The driver has sent nothing to it, so the
        shutdown does not wait for it.
        """
        stepprof.attach(start(Rank, {"resources": {"nowhere": 1}}), kind=kind)
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert seconds_of_shutdown() < BOUND

    @pytest.mark.parametrize("kind", ["rank", "engine"])
    def test_a_stopped_process(self, ray_here, short, start, log, stopped, kind):
        """The process of an actor is stopped while it records. One log line says that the shutdown
        waits, and for how long.
        """
        handle = start(Rank)
        pid = ray_here.get(handle.pid.remote())
        stepprof.attach(handle, kind=kind)
        with stepprof.profile_step(2, role="rollout"):
            stopped(pid)
            window_began = time.monotonic()
        assert time.monotonic() - window_began < BOUND
        assert seconds_of_shutdown() < BOUND
        [line] = [line for line in log if line["event"] == "shutdown.waiting"]
        assert line["targets"] == "rollout/0"
        assert line["answer_seconds"] == STOP_SECONDS

    def test_a_stopped_process_is_free_after_it_continues(self, ray_here, short, start, stopped):
        """The shutdown has sent the end of the attachment. A process that continues has no session
        of the ended run.
        """
        handle = start(Rank)
        pid = ray_here.get(handle.pid.remote())
        stepprof.attach(handle, kind="rank")
        with stepprof.profile_step(2, role="rollout"):
            assert ray_here.get(handle.run_id.remote()) == "job"
        stopped(pid)
        assert seconds_of_shutdown() < BOUND
        stopped.go_on()
        until(lambda: ray_here.get(handle.run_id.remote()) is None)

    @pytest.mark.parametrize("short", [1], indirect=True)
    def test_an_actor_inside_a_method(self, ray_here, short, start):
        """A plain actor that processes the arm call after the end of the run starts no session for it."""

        handle = start(Rank)
        ray_here.get(handle.pid.remote())
        sleeping = handle.sleep.remote(4)
        stepprof.attach(handle, kind="rank")
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert seconds_of_shutdown() < BOUND
        ray_here.get(sleeping)
        until(lambda: ray_here.get(handle.run_id.remote()) is None)


def test_an_attachment_inside_a_recorded_window(ray_here, short, start, log):
    """The log says from which window on the actor takes part: here none, because no later step is
    selected.
    """
    handle = start(Rank)
    with stepprof.profile_step(2, role="rollout"):
        stepprof.attach(handle, kind="rank")
    [line] = [line for line in log if line["event"] == "attach.inside_window"]
    assert line["takes_part_from"] == "no window: no later step is selected"


class Trainer:
    """An actor that starts a session itself, and records step 2."""

    def train(self, folder, name):
        import torch

        stepprof.init({"output_dir": folder, "steps": "2", "ranks": "all"}, run_id="own", name=name)
        for step in (1, 2):
            with stepprof.profile_step(step, role="actor"):
                for _ in range(50):
                    torch.ones(4, 4) @ torch.ones(4, 4)

    def leave(self):
        import ray

        ray.actor.exit_actor()


class AsyncTrainer(Trainer):
    """The same in the event loop of an asynchronous actor."""

    async def ping(self):
        return 1


class KilledTrainer(Trainer):
    """Its export lasts until some seconds after its end: until then Ray kills the processes that it can find."""

    def train(self, folder, name):
        session, actor, begun = os.getsid(0), os.getpid(), Path(folder) / "begun"

        def outlive():
            if os.getsid(0) != session:
                begun.touch()
                until(lambda: process_start(actor) is None)
                time.sleep(3)

        os.register_at_fork(after_in_child=outlive)
        super().train(folder, name)
        until(begun.exists)


class TestOwnSession:
    """Actors without a rank that call `stepprof.init` themselves, and end in order right after the
    recorded step: Ray kills the child that exports it.
    """

    @pytest.mark.parametrize("end", ["terminated", "left", "dropped", "asynchronous"])
    def test_the_trace_is_kept(self, ray_here, tmp_path, end):
        """However the actor ends, its window is complete, and the trace has the ops of the step."""
        cls = AsyncTrainer if end == "asynchronous" else Trainer
        handle = ray_here.remote(num_cpus=0)(cls).remote()
        ray_here.get(handle.train.remote(str(tmp_path), end))
        if end == "left":
            with pytest.raises(ray_here.exceptions.RayActorError):
                ray_here.get(handle.leave.remote())
        elif end != "dropped":
            handle.__ray_terminate__.remote()
        del handle
        folder = tmp_path / "own" / "step-000002"
        manifest = folder / "manifest" / f"actor-rank-{end}.json"
        until(lambda: json.loads(manifest.read_text())["windows"][0]["status"] != "lost")
        [window] = json.loads(manifest.read_text())["windows"]
        assert (window["status"], window["backend"], window["error"]) == ("complete", "torch", None)
        [artifact] = window["artifacts"]
        events = json.loads(gzip.decompress((folder / artifact["path"]).read_bytes()))["traceEvents"]
        assert sum(event["name"] == "aten::mm" for event in events) == 50

    def test_an_export_outlives_its_actor(self, ray_here, tmp_path):
        """Ray Train and Tune kill a worker while it exports its last step. Its trace is complete, as after `ray.kill`."""
        handle = ray_here.remote(num_cpus=0)(KilledTrainer).remote()
        ray_here.get(handle.train.remote(str(tmp_path), "killed"))
        manifest = tmp_path / "own" / "step-000002" / "manifest" / "actor-rank-killed.json"
        assert json.loads(manifest.read_text())["windows"][0]["status"] == "lost"
        ray_here.kill(handle)
        until(lambda: json.loads(manifest.read_text())["windows"][0]["status"] == "complete")

    @pytest.mark.parametrize("kind", ["task", "actor"])
    def test_a_worker_without_a_rank_has_a_name_of_its_own(self, ray_here, tmp_path, kind):
        """A task or an actor that starts a session, with neither a rank nor a name, is no driver: it records, under the id of its worker or actor."""

        def train(folder):
            Trainer().train(folder, None)
            name = cell.session.rank
            stepprof.shutdown()
            return name

        class Actor:
            def train(self, folder):
                return train(folder)

        if kind == "actor":
            handle = ray_here.remote(num_cpus=0)(Actor).remote()
            name = ray_here.get(handle.train.remote(str(tmp_path)))
        else:
            name = ray_here.get(ray_here.remote(num_cpus=0)(train).remote(str(tmp_path)))
        assert name.startswith("worker-" if kind == "task" else "actor-")
        manifest = tmp_path / "own" / "step-000002" / "manifest" / f"actor-rank-{name}.json"
        [window] = json.loads(manifest.read_text())["windows"]
        assert (window["status"], window["backend"]) == ("complete", "torch")

    def test_a_driver_that_drives_nothing(self, ray_here, tmp_path, log):
        """A driver without an attached actor records no trace, and the log says so once."""
        stepprof.init({"output_dir": str(tmp_path), "steps": "2-3", "backend": "torch"})
        for step in (1, 2, 3):
            with stepprof.profile_step(step):
                pass
        assert "pass rank=0" in str(stepprof.state().last_error)
        stepprof.shutdown(5)
        assert [line["event"] for line in log].count("window.not_recorded") == 1


SCRIPT = """
import os, signal, sys, time, ray, stepprof
from test_ray_endings import Rank
address, output, start_seconds = sys.argv[1:]
ray.init(address=address, logging_level="ERROR", log_to_driver=False)
stepprof.init({
    "output_dir": output, "steps": "2", "ranks": "all", "backend": "null",
    "engine_start_timeout_seconds": float(start_seconds), "engine_stop_timeout_seconds": 2,
}, run_id="job")
"""

STOPPED = """
handle = ray.remote(num_cpus=0)(Rank).remote()
pid = ray.get(handle.pid.remote())
print(pid, flush=True)
stepprof.attach(handle, kind="rank")
stepprof.profile_step(2, role="rollout").start()
os.kill(pid, signal.SIGSTOP)
print(time.time(), flush=True)
"""

NEVER_SCHEDULED = """
stepprof.attach(ray.remote(num_cpus=0, resources={"nowhere": 1})(Rank).remote(), kind="rank")
stepprof.profile_step(2, role="rollout").start()
print(time.time(), flush=True)
"""


class TestExit:
    """The exit of the interpreter without a `shutdown()`. The script ends inside a recorded window,
    and its process ends soon after.
    """

    @pytest.fixture
    def leave(self, cluster, plugin, tmp_path):
        """Return a function that runs a script until it ends, and returns its output, its log, and
        the time at which its process ended.
        """

        def leave(script, start_seconds):
            env = {**os.environ, "PYTHONPATH": workers_path(plugin)}
            arguments = [cluster.address, str(tmp_path / "runs"), str(start_seconds)]
            ran = subprocess.run(
                [sys.executable, "-c", SCRIPT + script, *arguments],
                capture_output=True,
                text=True,
                env=env,
                timeout=100,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr
            return ran.stdout.split(), ran.stderr, time.time()

        return leave

    def test_a_stopped_process(self, leave):
        """The process of an actor is stopped while it records. One log line says that the end of
        the run waits for engines.
        """
        (pid, began), log, ended = leave(STOPPED, 60)
        os.kill(int(pid), signal.SIGCONT)
        assert ended - float(began) < BOUND + 10
        assert log.count("the end of the run waits for engines") == 1

    def test_an_actor_that_is_never_scheduled(self, leave):
        """No node has the resources of the actor. The process ends within the time limit."""
        (began,), _, ended = leave(NEVER_SCHEDULED, 1)
        assert ended - float(began) < BOUND + 10

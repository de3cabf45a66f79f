"""Test detached actors, which outlive the job that drives them. Their recording ends with their
driver, and the next job can use them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from actor_engine import Server
from driving import until, workers_path

import stepprof
from stepprof.instrument.context import cell

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]

DRIVER = """
import sys, time, ray, stepprof
address, output, name, kind, run_id = sys.argv[1:]
ray.init(address=address, namespace="leases", logging_level="ERROR", log_to_driver=False)
handle = ray.get_actor(name)
config = {"output_dir": output, "steps": "2", "ranks": "all", "backend": "null", "max_seconds": 300}
stepprof.init(config, run_id=run_id)
stepprof.attach(handle, kind=kind)
window = stepprof.profile_step(2, role="rollout").start()
ray.get(handle.generate.remote("x"))
print("open", flush=True)
time.sleep(600)
"""


class Detached(Server):
    """An actor that may hold an engine, and returns the run for which it records."""

    def run_id(self):
        return None if cell.session is None else cell.session.run_id


class DetachedAsync(Detached):
    """The same actor with an event loop."""

    async def run_id(self):
        return Detached.run_id(self)


@pytest.fixture
def actor(ray_here, start):
    """Return a function that makes a detached actor, and returns its name and handle."""

    def actor(cls=Detached):
        name = f"{cls.__name__}-{time.monotonic_ns()}"
        handle = start(cls, {"name": name, "namespace": "leases", "lifetime": "detached"})
        ray_here.get(handle.generate.remote("warm"))
        return name, handle

    return actor


@pytest.fixture
def drive_in_process(cluster, plugin, tmp_path):
    """Start a driver in its own process that records step 2 until it is killed."""
    made = []

    def begin(name, kind, run_id="dead"):
        command = [sys.executable, "-c", DRIVER, cluster.address, str(tmp_path / "runs"), name, kind, run_id]
        env = {**os.environ, "PYTHONPATH": workers_path(plugin)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        made.append(process)
        assert process.stdout.readline().strip() == "open"
        return process

    yield begin
    for process in made:
        process.kill()
        process.wait()
        process.stdout.close()


def record_next(tmp_path, handle, kind):
    """Run the next job, and return the manifest of its step 2."""
    import ray

    session = stepprof.init(
        {"output_dir": str(tmp_path / "runs"), "steps": "2", "ranks": "all", "backend": "null"}, run_id="next"
    )
    stepprof.attach(handle, kind=kind)
    with stepprof.profile_step(2, role="rollout"):
        ray.get(handle.generate.remote("y"))
    stepprof.shutdown(20)
    return written(session.path)


def written(run):
    """Return all fragments of step 2 by name."""
    folder = run / "step-000002" / "manifest"
    return {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}


class TestRank:
    """A rank whose driver is killed or stopped."""

    @pytest.mark.parametrize("cls", [Detached, DetachedAsync])
    def test_a_killed_driver(self, ray_here, actor, drive_in_process, tmp_path, cls):
        """The killed driver's run keeps the window as partial, its session in the actor ends, and
        the next job records.
        """
        name, handle = actor(cls)
        driver = drive_in_process(name, "rank")
        assert ray_here.get(handle.run_id.remote()) == "dead"
        driver.kill()
        until(lambda: ray_here.get(handle.run_id.remote()) is None)

        def dead():
            [only] = written(tmp_path / "runs" / "dead")["rollout-rank-0.json"]["windows"]
            return only

        until(lambda: dead()["status"] != "lost")  # the status before the stop
        assert (dead()["status"], dead()["error"]) == (
            "partial",
            "the process that drives this one has ended",
        )
        found = record_next(tmp_path, handle, "rank")
        [window] = found["rollout-rank-0.json"]["windows"]
        assert window["status"] == "complete"
        [entry] = found["rollout-engines-rank-driver.json"]["engines"]
        assert entry["status"] == "complete"

    def test_a_job_that_starts_immediately_after(self, ray_here, actor, drive_in_process, tmp_path):
        """The next job records at once, before the actor itself has noticed the end of its driver."""
        name, handle = actor()
        driver = drive_in_process(name, "rank")
        driver.kill()
        driver.wait()
        [entry] = record_next(tmp_path, handle, "rank")["rollout-engines-rank-driver.json"]["engines"]
        assert (entry["status"], entry["error"]) == ("complete", None)

    def test_a_stopped_driver(self, ray_here, actor, drive_in_process, tmp_path):
        """A driver that does not respond for 5 s keeps its recording. Another job is refused, with
        the run and process of that driver.
        """
        name, handle = actor()
        driver = drive_in_process(name, "rank")
        driver.send_signal(signal.SIGSTOP)
        try:
            time.sleep(5)
            assert ray_here.get(handle.run_id.remote()) == "dead"
            [entry] = record_next(tmp_path, handle, "rank")["rollout-engines-rank-driver.json"]["engines"]
            assert (entry["status"], entry["health"]) == ("failed", "busy")
            assert f"run dead, whose driver is alive (pid {driver.pid}" in entry["error"]
        finally:
            driver.send_signal(signal.SIGCONT)


class TestProof:
    """Ray's answer about a driver whose process does not exist on this machine."""

    class Holder:
        def hold(self, lease):
            self.lease = lease

        def is_over(self):
            return self.lease.is_over

    SCRIPT = """
import dataclasses, sys, time, ray
from stepprof.remote.core.lease import new_lease
ray.init(address=sys.argv[1], namespace="leases", logging_level="ERROR", log_to_driver=False)
lease = new_lease()
ray.get(ray.get_actor("holder").hold.remote(dataclasses.replace(lease, owner={**lease.owner, "host": "elsewhere"})))
print("open", flush=True)
time.sleep(600)
"""

    def test_the_end_of_a_driver(self, cluster, ray_here, start, plugin):
        """The lease holds while the driver runs or is stopped. Once the driver is killed, the lease
        ends.
        """
        options = {
            "name": "holder",
            "namespace": "leases",
            "lifetime": "detached",
            "resources": {"second": 1},
        }
        handle = start(self.Holder, options)
        env = {**os.environ, "PYTHONPATH": workers_path(plugin)}
        with subprocess.Popen(
            [sys.executable, "-c", self.SCRIPT, cluster.address], stdout=subprocess.PIPE, text=True, env=env
        ) as driver:
            try:
                assert driver.stdout.readline().strip() == "open"
                assert not ray_here.get(handle.is_over.remote())
                driver.send_signal(signal.SIGSTOP)
                assert not ray_here.get(handle.is_over.remote())
            finally:
                driver.kill()
        until(lambda: ray_here.get(handle.is_over.remote()))


class TestEngine:
    """An engine in an actor."""

    def test_a_killed_driver(self, ray_here, actor, drive_in_process, tmp_path):
        """The capture of the engine ends when its driver is killed, not after `max_seconds`. The
        next job records.
        """
        name, handle = actor()
        driver = drive_in_process(name, "engine")
        assert ray_here.get(handle.count.remote())[2]
        driver.kill()
        until(lambda: not ray_here.get(handle.count.remote())[2])
        [entry] = record_next(tmp_path, handle, "engine")["rollout-engines-rank-driver.json"]["engines"]
        assert entry["status"] == "complete"

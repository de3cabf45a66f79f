"""Test synchronous windows in a process with a running event loop, and actors that are busy or were
restarted. The tests check the recorded data and the manifest.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import time

import pytest
from actor_engine import AsyncServer, Server
from driving import fragments, until

import stepprof

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]

MATRICES = 200


class Rank:
    """A trainer whose matrix products are counted in its trace."""

    def update(self, count=MATRICES):
        import torch

        with stepprof.region("update"):
            for _ in range(count):
                torch.ones(8, 8) @ torch.ones(8, 8)
        return os.getpid()


class AsyncRank:
    """The same trainer on an event loop."""

    async def update(self, count=MATRICES):
        return Rank.update(self, count)


def configuration(output_dir):
    """Return the configuration of a session. Its start timeout allows ranks to load torch's
    profiler.
    """
    return {
        "output_dir": str(output_dir),
        "steps": "2, 4, 6",
        "ranks": "all",
        "backend": "torch",
        "engine_start_timeout_seconds": 60,
    }


class Driver:
    """A driver that is an asynchronous actor. All its methods run on its event loop."""

    def __init__(self, output_dir, servers, ranks):
        self.servers, self.ranks = servers, ranks
        stepprof.init(configuration(output_dir), run_id="job")
        stepprof.attach(servers, find="engine")
        stepprof.attach(ranks, role="actor", kind="rank")

    async def coroutine(self, step):
        """Run a step in synchronous windows of a coroutine."""
        with stepprof.profile_step(step, role="rollout"):
            await asyncio.gather(*(handle.generate.remote(step) for handle in self.servers))
        with stepprof.profile_step(step, role="actor"):
            await asyncio.gather(*(handle.update.remote() for handle in self.ranks))

    def method(self, step):
        """Run a step in a synchronous method, in the windows of callbacks."""
        import ray

        assert asyncio.get_running_loop().is_running()
        window = stepprof.profile_step(step, role="rollout").start()
        ray.get([handle.generate.remote(step) for handle in self.servers])
        window.stop()
        window = stepprof.profile_step(step, role="actor").start()
        ray.get([handle.update.remote() for handle in self.ranks])
        window.stop()

    async def decorated(self, step):
        """Run a step through decorated functions."""
        rollout = stepprof.profile_step(step, role="rollout")(self.generate)
        await asyncio.gather(*rollout(step))
        update = stepprof.profile_step(step, role="actor")(self.update)
        update()

    def generate(self, step):
        """Call `generate` of the engines and wait for the results."""
        import ray

        asked = [handle.generate.remote(step) for handle in self.servers]
        ray.wait(asked, num_returns=len(asked))
        return asked

    def update(self):
        """Call `update` of the ranks and wait for the results."""
        import ray

        ray.get([handle.update.remote() for handle in self.ranks])

    async def end(self):
        """Shut down on the running loop."""
        stepprof.shutdown(30)


def steps_of(path, steps, engines, ranks):
    """Return for each step the outcomes of its engines with the events of their traces, and the outcomes of
    its ranks with their matrix products.
    """
    found = {}
    for step in steps:
        folder = path / f"step-{step:06d}"
        reported = fragments(folder)
        by_engine = next(
            reported[name]["engines"] for name in reported if name.startswith("rollout-engines-")
        )
        windows = [reported[f"actor-rank-{rank}.json"]["windows"][0] for rank in range(ranks)]
        asked = next(reported[name]["engines"] for name in reported if name.startswith("actor-engines-"))
        assert [entry["status"] for entry in asked] == ["complete"] * ranks, asked
        assert len(by_engine) == engines
        found[step] = (
            [(entry["status"], entry["artifacts"][0]["events"]) for entry in by_engine],
            [(window["status"], products(folder, window)) for window in windows],
        )
    return found


def products(folder, window):
    """Return the number of matrix products in a rank's trace."""
    content = json.loads(gzip.decompress((folder / window["artifacts"][0]["path"]).read_bytes()))
    return sum(event.get("name") == "aten::mm" for event in content["traceEvents"])


@pytest.fixture
def make(ray_here, start):
    """Return a function that makes actors and waits until they run. The session ends before the
    actors do.
    """

    def make(cls, actor_options=None, **options):
        handle = start(cls, actor_options, **options)
        ray_here.get(handle.__ray_ready__.remote())
        return handle

    yield make
    stepprof.shutdown(20)


@pytest.mark.torch
class TestRunningLoop:
    @pytest.fixture
    def targets(self, ray_here, make):
        """Return plain and asynchronous engines and ranks that have already run once."""
        servers, ranks = [make(Server), make(AsyncServer)], [make(Rank), make(AsyncRank)]
        ray_here.get([handle.generate.remote("warm") for handle in servers])
        ray_here.get([handle.update.remote(1) for handle in ranks])
        return servers, ranks

    def test_from_a_coroutine_of_the_program(self, targets, tmp_path):
        """The traces contain every call of the body, and no other call."""
        servers, ranks = targets
        session = stepprof.init(configuration(tmp_path), run_id="job")
        stepprof.attach(servers, find="engine")
        stepprof.attach(ranks, role="actor", kind="rank")

        async def loop():
            for step in range(1, 6):
                with stepprof.profile_step(step, role="rollout"):
                    await asyncio.gather(*(handle.generate.remote(step) for handle in servers))
                with stepprof.profile_step(step, role="actor"):
                    await asyncio.gather(*(handle.update.remote() for handle in ranks))

        asyncio.run(loop())
        stepprof.shutdown(30)
        expected = [("complete", 2)] * 2, [("complete", MATRICES)] * 2
        assert steps_of(session.path, (2, 4), 2, 2) == {2: expected, 4: expected}

    def test_from_an_asynchronous_actor(self, ray_here, targets, start, tmp_path):
        """The driver is an asynchronous actor. It opens windows in a coroutine, in a synchronous
        method and with decorated functions.
        """
        driver = start(Driver, output_dir=str(tmp_path), servers=targets[0], ranks=targets[1])
        for step, method in ((2, driver.coroutine), (4, driver.method), (6, driver.decorated)):
            ray_here.get(driver.coroutine.remote(step - 1), timeout=120)
            ray_here.get(method.remote(step), timeout=120)
        ray_here.get(driver.end.remote(), timeout=200)
        expected = [("complete", 2)] * 2, [("complete", MATRICES)] * 2
        assert steps_of(tmp_path / "job", (2, 4, 6), 2, 2) == dict.fromkeys((2, 4, 6), expected)


class Threads(Server):
    """An actor with two threads for its methods."""


class TestHealth:
    def test_a_busy_actor_is_not_called_hung(self, ray_here, make, session):
        """An actor whose threads are all busy cannot be distinguished from a hung one. The entry
        says that its threads are inside methods.
        """
        handle = make(Threads, {"max_concurrency": 2})
        ray_here.get(handle.generate.remote("warm"))
        stepprof.attach(handle, find="engine")
        with stepprof.profile_step(1, role="rollout"):
            pass
        until(lambda: stepprof.state().engines == {"rollout/0": "armed"})
        busy = [handle.sleep.remote(6) for _ in range(2)]
        with stepprof.profile_step(2, role="rollout"):
            until(lambda: "all its threads are inside methods" in error_of(session))
        until(lambda: stepprof.state().engines == {"rollout/0": "unknown"})
        ray_here.get(busy)

    @pytest.mark.torch
    @pytest.mark.parametrize("waits", [True, False])
    def test_a_restarted_rank_is_not_dead(self, ray_here, make, session, waits):
        """A rank that restarts loses its recording. It answers again, even if the stop was sent
        during the restart, and records the next selected step.
        """
        handle = make(Rank, {"max_restarts": 2})
        pid = ray_here.get(handle.update.remote(1))
        stepprof.attach(handle, role="actor", kind="rank", rank=0)
        with stepprof.profile_step(2, role="actor"):
            os.kill(pid, 9)
            if waits:
                until(lambda: alive(ray_here, handle))
        until(lambda: alive(ray_here, handle))
        until(lambda: stepprof.state().engines == {"actor/0": "unknown"})
        with stepprof.profile_step(3, role="actor"):
            pass
        until(lambda: stepprof.state().engines == {"actor/0": "armed"})
        with stepprof.profile_step(4, role="actor"):
            ray_here.get(handle.update.remote())
        stepprof.shutdown(30)
        (entry,) = fragments(session.path / "step-000002")["actor-engines-rank-driver.json"]["engines"]
        # Ray fails calls that were sent during the restart; later ones reach another process
        assert (entry["status"], entry["health"]) in (("lost", "unknown"), ("failed", "unreachable"))
        assert "restarted" in entry["error"] or "it restarts" in entry["error"]
        folder = session.path / "step-000004"
        (window,) = fragments(folder)["actor-rank-0.json"]["windows"]
        assert (window["status"], products(folder, window)) == ("complete", MATRICES)


def error_of(session):
    """Return the error of the only engine of step 2."""
    reported = fragments(session.path / "step-000002").get("rollout-engines-rank-driver.json")
    return "" if reported is None else str(reported["engines"][0]["error"])


def alive(ray, handle):
    """Return whether an actor answers."""
    try:
        ray.get(handle.update.remote(1), timeout=30)
    except ray.exceptions.RayActorError:
        time.sleep(0.2)
        return False
    return True

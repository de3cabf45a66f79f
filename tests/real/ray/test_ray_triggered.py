"""Test requests to a Ray driver while its loop runs: for one step, for a past step, and withdrawn
ones. Actors are attached late or die before the step.
"""

from __future__ import annotations

import pytest
from actor_engine import Server
from driving import fragments, kill, until

import stepprof
from stepprof.run.manifest import read_step
from stepprof.run.requests import Request, place_request, withdraw_request
from stepprof.run.runs import steps
from stepprof.run.status import read_statuses

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


class Trainer:
    """An actor that opens a region while the driver's window is open."""

    def update(self):
        with stepprof.region("update"):
            pass


@pytest.fixture
def make(ray_here, start):
    """Return a function that makes actors and waits until they run. The session ends before the
    actors do.
    """

    def make(cls):
        handle = start(cls)
        ray_here.get(handle.__ray_ready__.remote())
        return handle

    yield make
    stepprof.shutdown(20)


class Loop:
    """The loop of a driver, step by step. Its actors may change between steps."""

    def __init__(self, ray, make):
        self.ray = ray
        self.servers = [make(Server)]
        self.trainers = [make(Trainer) for _ in range(2)]
        self.step = 0
        stepprof.attach(self.servers[0], role="rollout", find="engine")
        stepprof.attach(self.trainers, role="actor", kind="rank")

    def until(self, step, meanwhile=lambda: None):
        """Run the loop to the end of a step, and call `meanwhile` in the middle of that step."""
        while self.step < step:
            self.step += 1
            with stepprof.profile_step(self.step, role="rollout"):
                self.ray.get([server.generate.remote(self.step) for server in self.servers])
                if self.step == step:
                    meanwhile()
            with stepprof.profile_step(self.step, role="actor"):
                self.ray.get([trainer.update.remote() for trainer in self.trainers])


def outcomes(session):
    """Return the outcome of each request according to the driver."""
    return {name: seen["outcome"] for name, seen in session.live.control.outcomes().items()}


@pytest.mark.parametrize("session", ["null"], indirect=True)
class TestTriggered:
    def test_concurrent_past_and_withdrawn_requests(self, ray_here, make, session):
        """Requests are placed in the middle of a step. Each has its own outcome, and an engine that
        is attached later records the requested step.
        """
        loop = Loop(ray_here, make)
        made = {}

        def published():
            return {role for status in read_statuses(session.path) for role in status["roles"]}

        def ask():
            # the status is published every two seconds, and a role that no status names is refused
            until(lambda: {"rollout", "actor"} <= published())
            made["rollout"] = stepprof.trigger(step=20, role="rollout")
            made["actor"] = stepprof.trigger(step=20, role="actor")
            made["withdrawn"] = stepprof.trigger(step=22)
            made["past"] = Request.make(3)
            place_request(session.path, made["past"])
            until(lambda: len(outcomes(session)) == 4)
            withdraw_request(session.path, made["withdrawn"].name)
            until(lambda: outcomes(session)[made["withdrawn"].name] == "withdrawn")

        loop.until(6, ask)
        late = make(Server)
        stepprof.attach(late, role="rollout", find="engine")
        loop.servers.append(late)
        loop.until(24)
        stepprof.shutdown(20)

        assert {what: outcomes(session)[request.name] for what, request in made.items()} == {
            "rollout": "reached",
            "actor": "reached",
            "withdrawn": "withdrawn",
            "past": "missed",
        }
        assert steps(session.path) == [2, 4, 20]
        manifest = read_step(session.path, 20)
        recorded = sorted((entry["role"], entry["replica"], entry["status"]) for entry in manifest["engines"])
        assert recorded == [("actor", 0, "complete"), ("actor", 1, "complete"), ("rollout", 0, "complete"), ("rollout", 1, "complete")]  # fmt: skip
        reported = {status["rank"]: status for status in read_statuses(session.path)}
        assert reported["driver"]["condition"] == "ended"
        for rank in (0, 1):
            said = reported[rank]["requests"]
            assert said[made["actor"].name]["outcome"] == "reached"
            assert said[made["rollout"].name]["outcome"] == "not here"

    def test_a_rank_that_dies_before_the_step(self, ray_here, make, session):
        """One rank dies before the requested step. The others record it, and the loop continues."""
        loop = Loop(ray_here, make)
        made = []

        def ask():
            made.append(stepprof.trigger(step=14))
            until(lambda: outcomes(session) == {made[0].name: "accepted"})

        loop.until(6, ask)
        kill(loop.trainers.pop())
        loop.until(16)
        stepprof.shutdown(20)

        assert outcomes(session) == {made[0].name: "reached"}
        reported = {
            (entry["role"], entry["replica"]): entry["status"]
            for entry in read_step(session.path, 14)["engines"]
        }
        assert (reported["rollout", 0], reported["actor", 0]) == ("complete", "complete")
        assert reported["actor", 1] != "complete"
        (window,) = fragments(session.path / "step-000014")["actor-rank-0.json"]["windows"]
        assert window["status"] == "complete"

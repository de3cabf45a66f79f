"""Test trainers, agent loops and reward servers as actors whose own sessions follow the windows of
the driver.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import time

import pytest
from driving import drive, fragments, kill, until

import stepprof
from stepprof.analysis.verify import verify_run
from stepprof.remote.base import EngineFailure

without_torch = pytest.mark.parametrize("session", ["null"], indirect=True)

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


class Trainer:
    """A rank whose methods run torch operators. One of them opens its own window."""

    def update(self):
        import torch

        with stepprof.region("update"):
            for _ in range(3):
                torch.ones(8, 8) @ torch.ones(8, 8)
        return os.getpid()

    def bracketed(self, step):
        with stepprof.profile_step(step, role="actor"):
            self.update()

    def own_session(self, config, **options):
        stepprof.init(config, **options)

    def set(self, name, value):
        os.environ[name] = value

    def state(self):
        return str(stepprof.state())

    def current_step(self):
        return stepprof.current_step()

    def end(self):
        stepprof.shutdown()


class AsyncTrainer:
    """The same trainer on an event loop."""

    async def update(self):
        return Trainer.update(self)

    async def state(self):
        return str(stepprof.state())

    async def current_step(self):
        return stepprof.current_step()

    async def end(self):
        stepprof.shutdown()


ACTORS = {
    "plain": (Trainer, {}),
    "async": (AsyncTrainer, {}),
    "groups": (Trainer, {"concurrency_groups": {"io": 1}}),
    "threads": (Trainer, {"max_concurrency": 2}),
}


@pytest.fixture(scope="module")
def pool(cluster):
    """Return actors that have loaded torch, for tests that do not change them: the load takes
    seconds per actor.
    """
    made: dict[str, list] = {}
    yield made
    made.clear()


@pytest.fixture
def trainers(ray_here, pool):
    """Return a function that returns trainers of a kind. Their sessions end with the test."""
    used = []

    def trainers(count=1, kind="plain"):
        cls, extra = ACTORS[kind]
        there = pool.setdefault(kind, [])
        there += [ray_here.remote(num_cpus=0, **extra)(cls).remote() for _ in range(count - len(there))]
        ray_here.get([handle.update.remote() for handle in there])
        used.extend(there)
        return there[:count]

    yield trainers
    ray_here.get([handle.end.remote() for handle in used if any(handle in kept for kept in pool.values())])


@pytest.fixture
def make(start):
    """Return a function that makes actors."""

    def make(cls=Trainer, **options):
        return start(cls, options)

    return make


def settled(session, step, name, timeout=30):
    """Return the windows in a fragment once no export is pending."""
    deadline = time.monotonic() + timeout
    while True:
        found = fragments(session.path / f"step-{step:06d}").get(name)
        if found is not None and all(w["status"] not in ("lost",) for w in found["windows"]):
            return found["windows"]
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def ops(session, step, path):
    """Return the names in a rank's trace, and its metadata."""
    content = json.loads(gzip.decompress((session.path / f"step-{step:06d}" / path).read_bytes()))
    return [event.get("name") for event in content["traceEvents"]], content["stepprof"]


def spans(session, rank):
    """Return the spans of a rank from all its files."""
    return [
        json.loads(line)
        for path in sorted((session.path / "spans").glob(f"rank-{rank}.*.jsonl"))
        for line in path.read_text().splitlines()[1:]
    ]


class TestRanks:
    @pytest.mark.parametrize("kind", ACTORS)
    def test_ranks_record_two_steps_in_a_row(self, ray_here, trainers, connect, session, windows, kind):
        """Ranks record the methods between the start and the stop, in two selected steps. Each rank
        writes its own manifest.
        """
        ranks = range(2 if kind == "plain" else 1)
        handles = trainers(len(ranks), kind)
        drivers = [connect(handle, kind="rank") for handle in handles]
        for step in (2, 4):
            here = [windows.make(step, "actor", replica=n, stem="") for n in ranks]
            for driver, window in zip(drivers, here, strict=True):
                drive(driver.arm(window))
            ray_here.get([handle.update.remote() for handle in handles])
            for driver, window in zip(drivers, here, strict=True):
                drive(driver.start(window))
            assert "recording" in ray_here.get(handles[-1].state.remote())
            ray_here.get([handle.update.remote() for handle in handles])
            for driver, window in zip(drivers, here, strict=True):
                assert drive(driver.stop(window)).artifacts == ()
            for rank in ranks:
                (window,) = settled(session, step, f"actor-rank-{rank}.json")
                assert (window["status"], window["rank"], window["role"]) == ("complete", rank, "actor")
                assert window["start_unix_ns"] < window["end_unix_ns"]
                assert window["start_seconds"] > 0
                assert window["cpu_seconds"] > 0
                if (
                    kind == "plain"
                ):  # other kinds run methods on other threads than the calls that begin and end the window
                    assert window["thread_cpu_seconds"] > 0
                names, stated = ops(session, step, window["artifacts"][0]["path"])
                assert names.count("aten::mm") == 3
                assert (stated["step"], stated["rank"]) == (step, rank)
        for driver in drivers:
            drive(driver.close(20, 20))
        assert [span["step"] for span in spans(session, ranks[-1]) if span["name"] == "update"] == [
            None,
            2,
            None,
            4,
        ]

    def test_a_window_of_the_actor_joins(self, ray_here, trainers, connect, session, windows):
        """If the actor opens its own window inside the driver's, it joins the capture."""
        (handle,) = trainers()
        driver, window = connect(handle, kind="rank", rank=3), windows.make(2, "actor", stem="")
        drive(driver.arm(window))
        drive(driver.start(window))
        ray_here.get(handle.bracketed.remote(2))
        drive(driver.stop(window))
        found = settled(session, 2, "actor-rank-3.json")
        assert [w["status"] for w in found] == ["complete", "joined"]

    @pytest.mark.parametrize("kind", ["plain", "async"])
    def test_a_role_inside_a_step(self, ray_here, trainers, session, kind):
        """A window of a role inside the window of the step reaches the rank. Its regions have the
        role, and `check` finds no problem.
        """
        (handle,) = trainers(1, kind)
        stepprof.attach(handle, role="rollout", kind="rank")
        with stepprof.profile_step(2):
            ray_here.get(handle.update.remote())
            with stepprof.profile_step(2, role="rollout"):
                ray_here.get(handle.update.remote())
            ray_here.get(handle.update.remote())
        stepprof.shutdown(30)
        roles = [span["role"] for span in spans(session, 0) if span["name"] == "update"]
        assert roles == [None, "rollout", None]
        own = settled(session, 2, "step-rank-0.json")
        assert [(window["role"], window["status"]) for window in own] == [
            (None, "complete"),
            ("rollout", "joined"),
        ]
        found = fragments(session.path / "step-000002")
        reported = [entry for each in found.values() for entry in each["engines"]]
        assert sorted(entry["status"] for entry in reported) == ["complete", "joined"]
        assert verify_run(session.path).problems == []

    @pytest.mark.parametrize("kind", ["plain", "async"])
    def test_every_step_is_announced(self, ray_here, trainers, session, kind):
        """Every step is announced, recorded or not. The regions of the actor have their step and
        role, and each window has one span.
        """
        (handle,) = trainers(1, kind)
        attached = stepprof.attach(handle, role=["actor", "ref"], kind="rank")
        until(lambda: attached.targets[0].driver._listening._joined)
        for step in (1, 2, 3):
            with stepprof.profile_step(step):
                for role in ("ref", "actor"):
                    with stepprof.profile_step(step, role=role):
                        if kind == "async":  # it may run a call without arguments first
                            until(lambda step=step: ray_here.get(handle.current_step.remote()) == step)
                        ray_here.get(handle.update.remote())
                        assert ray_here.get(handle.current_step.remote()) == step
            until(lambda: ray_here.get(handle.current_step.remote()) is None)
        stepprof.shutdown(30)
        own = spans(session, 0)
        roles = [(step, role) for step in (1, 2, 3) for role in ("ref", "actor")]
        assert [(span["step"], span["role"]) for span in own if span["name"] == "update"] == roles
        windows = [(span["step"], span["role"]) for span in own if span["kind"] == "window"]
        whole = [(step, None) for step in (1, 2, 3)]
        assert sorted(windows, key=str) == sorted(roles + whole, key=str)
        assert verify_run(session.path).problems == []

    def test_the_line_after_a_recorded_step(self, trainers, tmp_path, log):
        """The driver logs the line with the number of files of the ranks that follow it, even if
        the driver has another name.
        """
        handles = trainers(2)
        config = {
            "output_dir": str(tmp_path),
            "steps": "2",
            "ranks": "all",
            "engine_start_timeout_seconds": 60,
        }
        stepprof.init(config, run_id="job", name="main")
        stepprof.attach(handles, role="actor", kind="rank")
        for step in (2, 3):
            with stepprof.profile_step(step, role="actor"):
                pass
        stepprof.shutdown(30)
        (line,) = [line for line in log if line["event"] == "step.recorded"]
        assert (line["step"], line["files"], line["rank"]) == (2, "2 files", "main")

    def test_the_actors_own_session_is_followed(self, ray_here, trainers, connect, session, windows):
        """If the actor has its own session, that session follows the driver. It does not end with
        the attachment.
        """
        (handle,) = trainers()
        config = {"output_dir": str(session.path.parent), "steps": [2]}
        ray_here.get(handle.own_session.remote(config, rank=0, run_id="job"))
        driver, window = connect(handle, kind="rank"), windows.make(2, "actor", stem="")
        drive(driver.arm(window))
        drive(driver.start(window))
        ray_here.get(handle.update.remote())
        drive(driver.stop(window))
        drive(driver.close(20, 20))
        assert ray_here.get(handle.state.remote()) == "idle rank=0"
        assert settled(session, 2, "actor-rank-0.json")[0]["status"] == "complete"

    @pytest.mark.parametrize(
        ("own", "options", "message"),
        [
            (
                {"steps": [2]},
                {"run_id": "other", "rank": 0},
                r"into the run other, not into job.*run_id=\"job\"",
            ),
            ({"steps": [3]}, {"run_id": "job", "rank": 0}, r"does not select step 2 of rank 0 \(steps = 3"),
            ({"steps": [2]}, {"run_id": "job", "rank": 1}, r"does not select step 2 of rank 1"),
            ({"steps": [2]}, {"run_id": "job"}, r"has no rank"),
        ],
    )
    def test_a_session_that_does_not_fit(
        self, ray_here, make, connect, session, windows, own, options, message
    ):
        """The error of the arm call names the difference, and nothing is started."""
        handle = make()
        ray_here.get(
            handle.own_session.remote(
                {"output_dir": str(session.path.parent), "backend": "null", **own}, **options
            )
        )
        with pytest.raises(EngineFailure, match=message) as caught:
            drive(connect(handle, kind="rank").arm(windows.make(2, "actor", stem="")))
        assert caught.value.health == "unconfigured"

    @without_torch
    def test_a_rank_that_differs_from_the_attached_one_is_refused(
        self, ray_here, make, connect, session, windows
    ):
        """The arm call fails if the attached rank differs from the rank of the actor's session."""
        handle = make()
        config = {"output_dir": str(session.path.parent), "steps": [2], "ranks": "all", "backend": "null"}
        ray_here.get(handle.own_session.remote(config, rank=5, run_id="job"))
        with pytest.raises(EngineFailure, match="attached as rank 2, but its session is that of rank 5"):
            drive(connect(handle, kind="rank", rank=2).arm(windows.make(2, "actor", stem="")))

    @without_torch
    def test_an_actor_with_stepprof_off_is_named(self, ray_here, make, connect, session, windows):
        """STEPPROF=0 in the actor's environment keeps the actor off, and the error says so."""
        handle = make()
        ray_here.get(handle.set.remote("STEPPROF", "0"))
        with pytest.raises(EngineFailure, match="switched off in the actor"):
            drive(connect(handle, kind="rank").arm(windows.make(2, "actor", stem="")))

    @without_torch
    def test_the_rank_comes_from_the_variable_or_the_position(
        self, ray_here, make, connect, session, windows
    ):
        """Without a given rank, the rank comes from $RANK rather than from the position among the
        attached actors.
        """
        handle = make()
        ray_here.get(handle.set.remote("RANK", "6"))
        driver = connect(handle, kind="rank")
        drive(driver.arm(windows.make(2, "actor", replica=1, stem="")))
        assert driver._facts.rank == 6

    def test_abort(self, ray_here, trainers, connect, session, windows):
        """An aborted window is closed, and its recording is kept as partial."""
        (handle,) = trainers()
        driver, window = connect(handle, kind="rank"), windows.make(2, "actor", stem="")
        drive(driver.arm(window))
        drive(driver.start(window))
        ray_here.get(handle.update.remote())
        drive(driver.abort())
        (found,) = settled(session, 2, "actor-rank-0.json")
        assert found["status"] == "partial"
        assert found["error"].startswith("the driver process aborted the window")

    def test_a_cap(self, ray_here, trainers, connect, session, windows):
        """If `max_seconds` of the actor's own session ended the capture before the window, the stop
        reports that limit.
        """
        (handle,) = trainers()
        config = {"output_dir": str(session.path.parent), "steps": [2], "max_seconds": 0.2}
        ray_here.get(handle.own_session.remote(config, rank=0, run_id="job"))
        driver, window = connect(handle, kind="rank"), windows.make(2, "actor", stem="")
        drive(driver.arm(window))
        drive(driver.start(window))
        time.sleep(1)
        ray_here.get(handle.update.remote())
        assert drive(driver.stop(window)).capped_by == "max_seconds"

    def test_a_capture_bound_to_its_thread(self, ray_here, trainers, connect, session, windows):
        """A capture bound to one thread is refused if methods run on other threads than control
        calls. It would be empty.
        """
        (handle,) = trainers(1, "threads")
        config = {"output_dir": str(session.path.parent), "steps": [2], "torch": {"profile_memory": True}}
        ray_here.get(handle.own_session.remote(config, rank=0, run_id="job"))
        with pytest.raises(EngineFailure, match="bound to one thread"):
            drive(connect(handle, kind="rank").arm(windows.make(2, "actor", stem="")))

    @pytest.fixture
    def leaving(self, ray_here, trainers, connect, windows, pool):
        """Return a trainer that has recorded and now exports, with its driver. No other test uses
        it.
        """
        (handle,) = trainers()
        driver, window = connect(handle, kind="rank"), windows.make(2, "actor", stem="")
        drive(driver.arm(window))
        drive(driver.start(window))
        ray_here.get(handle.update.remote())
        pool["plain"].remove(handle)
        drive(driver.stop(window))
        return handle, driver

    def test_an_actor_that_ends_while_exporting_keeps_its_outcome(self, leaving, session):
        """An actor is ended while its export runs, and Ray kills the children of an ended worker.
        The manifest has the outcome.
        """
        handle, _ = leaving
        handle.__ray_terminate__.remote()
        (found,) = settled(session, 2, "actor-rank-0.json")
        assert found["status"] == "complete" or "the export process was killed" in found["error"]

    def test_detached_while_it_exports(self, leaving, session):
        """If the actor is detached first, its export is complete before the actor is ended."""
        handle, driver = leaving
        drive(driver.close(20, 20))
        handle.__ray_terminate__.remote()
        (found,) = settled(session, 2, "actor-rank-0.json")
        assert (found["status"], found["error"]) == ("complete", None)

    @without_torch
    def test_a_rank_killed_while_recording_is_lost(self, ray_here, make, connect, session, windows):
        """The manifest, which was written ahead, says that the window is lost."""
        handle = make()
        driver, window = connect(handle, kind="rank"), windows.make(2, "actor", stem="")
        drive(driver.arm(window))
        drive(driver.start(window))
        kill(handle)
        with pytest.raises(EngineFailure, match="dead"):
            drive(driver.stop(window))
        assert fragments(session.path / "step-000002")["actor-rank-0.json"]["windows"][0]["status"] == "lost"


class AgentLoop:
    """An actor with many concurrent rollouts, each with a tool call."""

    def __init__(self):
        self.go = asyncio.Event()

    @stepprof.profile_step(role="rollout")
    async def rollout(self, uid):
        with stepprof.bind(uid=uid):
            async with stepprof.region("generate"):
                await self.go.wait()
            async with stepprof.region("tool_call", tool="search"):
                await asyncio.sleep(0.001)

    async def waiting(self):
        return sum(task.get_name().startswith("Task") for task in asyncio.all_tasks()) - 1

    async def release(self):
        self.go.set()


class Reward:
    """A plain actor that opens no window itself."""

    def score(self, uid):
        with stepprof.region("score", uid=uid):
            return uid

    def state(self):
        return str(stepprof.state())


class TestSpans:
    def test_a_thousand_coroutines(self, ray_here, make, connect, session):
        """1,000 rollouts belong to two overlapping steps. The spans of each rollout have its own step."""
        handle = make(AgentLoop, max_concurrency=1200)
        driver = connect(handle, kind="spans")
        drive(driver.announce(1, [(1, "rollout")]))
        first = [handle.rollout.remote(uid) for uid in range(500)]
        while ray_here.get(handle.waiting.remote()) < 500:
            time.sleep(0.05)
        drive(driver.announce(2, [(2, "rollout")]))
        second = [handle.rollout.remote(uid) for uid in range(500, 1000)]
        while ray_here.get(handle.waiting.remote()) < 1000:
            time.sleep(0.05)
        ray_here.get(handle.release.remote())
        ray_here.get(first + second)
        drive(driver.close(20, 20))
        found = spans(session, f"AgentLoop-{handle._actor_id.hex()[:8]}")
        for name in ("generate", "tool_call"):
            regions = [span for span in found if span["name"] == name]
            assert len(regions) == 1000
            for span in regions:
                uid = span["attrs"]["uid"]
                assert (span["step"], span["role"]) == (1 if uid < 500 else 2, "rollout")
        assert len({span["task"] for span in found if span["name"] == "tool_call"}) > 900

    def test_regions_without_a_window(self, ray_here, make, connect, session):
        """Regions outside any window have the step that was announced last."""
        handle = make(Reward)
        driver = connect(handle, kind="spans")
        for step in (1, 2, 3):
            drive(driver.announce(step, [(step, "rollout")]))
            ray_here.get(handle.score.remote(step))
        drive(driver.close(20, 20))
        found = spans(session, f"Reward-{handle._actor_id.hex()[:8]}")
        scores = [span for span in found if span["name"] == "score"]
        assert [(span["step"], span["attrs"]["uid"]) for span in scores] == [(1, 1), (2, 2), (3, 3)]
        assert ray_here.get(handle.state.remote()).startswith("idle")
        assert not (session.path / "step-000002").exists()

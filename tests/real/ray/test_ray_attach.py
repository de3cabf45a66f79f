"""Test complete windows: `attach` and `profile_step` in the driver, real actors as engines and
ranks, and the manifests.
"""

from __future__ import annotations

import asyncio
import copy
import json
import time

import pytest
from actor_engine import AsyncServer, Server
from driving import fragments, kill, until, workers_path

import stepprof
from stepprof.host.process_identity import writer_identity
from stepprof.run.spans import read_spans
from stepprof.run.status import read_statuses

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


class Colocated(Server):
    """A trainer that holds the engine with which it generates."""

    def update(self):
        with stepprof.region("update"):
            time.sleep(0.001)

    def load(self):
        import torch

        return torch.__version__


class Reward:
    def score(self, uid):
        with stepprof.region("score", uid=uid):
            return uid

    def step(self):
        """Return the current step, according to the announcements that this process has received."""
        return stepprof.current_step()


@pytest.fixture
def make(ray_here, start):
    """Return a function that makes actors and waits until they run. The session ends before the
    actors do.
    """

    def make(cls=Server, *, actor_options=None, **options):
        handle = start(cls, actor_options, **options)
        ray_here.get(handle.__ray_ready__.remote())
        return handle

    yield make
    stepprof.shutdown(20)


def ask(handle):
    """A task that fails because another task fails."""
    import ray

    ray.get(handle.fail.remote())


def engines(session, step, role="rollout", timeout=10):
    """Return the entries of the engines of a step once none is pending. Before that, the manifest
    says that they are lost.
    """
    deadline = time.monotonic() + timeout
    while True:
        found = fragments(session.path / f"step-{step:06d}").get(f"{role}-engines-rank-driver.json")
        if found is not None and not any(entry["pending"] for entry in found["engines"]):
            return found["engines"]
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


class TestWindows:
    def test_two_of_five_steps_are_recorded_in_every_kind_of_actor(self, ray_here, make, session):
        """Engines in actors of different kinds record two of five steps, each into its own folder."""
        handles = [make(Server), make(AsyncServer)]
        ray_here.get([handle.generate.remote("warm") for handle in handles])
        stepprof.attach(handles, find="engine")
        for step in range(1, 6):
            with stepprof.profile_step(step, role="rollout"):
                ray_here.get([handle.generate.remote(step, step) for handle in handles])
        stepprof.shutdown(20)
        for step in (2, 4):
            found = engines(session, step)
            assert [entry["status"] for entry in found] == ["complete", "complete"]
            assert [entry["replica"] for entry in found] == [0, 1]
            assert [entry["artifacts"][0]["events"] for entry in found] == [step, step]
            for entry in found:
                assert entry["host"]
                assert entry["boot_id"] == writer_identity()["boot_id"]
                assert (session.path / f"step-{step:06d}" / entry["artifacts"][0]["path"]).is_file()
            clocks = fragments(session.path / f"step-{step:06d}")["rollout-engines-rank-driver.json"][
                "clocks"
            ]
            assert {clock["method"] for clock in clocks} == {"local", "same-host"}
        assert not (session.path / "step-000003").exists()

    def test_a_rollout_ends_before_its_engine_has_written(self, ray_here, make, session):
        """The window of the rollout ends while its engine writes its file. The window of the step
        ends when the file exists.
        """
        handle = make(Server, slow=1)
        ray_here.get(handle.generate.remote("warm"))
        stepprof.attach(handle, find="engine")
        with stepprof.profile_step(2):
            with stepprof.profile_step(2, role="rollout"):
                ray_here.get(handle.generate.remote("x"))
            found = fragments(session.path / "step-000002")["rollout-engines-rank-driver.json"]["engines"]
            assert [entry["pending"] for entry in found] == [True]
        assert [entry["status"] for entry in engines(session, 2)] == ["complete"]

    def test_a_callable_is_asked_at_each_recorded_step(self, ray_here, make, session):
        """A callable is called at each recorded step. An actor that still exists keeps its number,
        even if its handle is another object.
        """
        handles = [make(), make()]
        there = list(handles)
        stepprof.attach(lambda: [copy.copy(handle) for handle in there], find="engine")
        with stepprof.profile_step(2, role="rollout"):
            ray_here.get([handle.generate.remote("x") for handle in there])
        there[:] = [make(), handles[1]]
        with stepprof.profile_step(4, role="rollout"):
            ray_here.get([handle.generate.remote("x") for handle in there])
        stepprof.shutdown(20)
        names = [{entry["name"]: entry["replica"] for entry in engines(session, step)} for step in (2, 4)]
        second = f"Server:{handles[1]._actor_id.hex()[:8]}"
        assert names[0][second] == names[1][second] == 1
        assert [entry["status"] for step in (2, 4) for entry in engines(session, step)] == ["complete"] * 4

    def test_a_body_that_raises_what_a_task_raised(self, ray_here, make, session):
        """The manifest has the exception of the task, not Ray's colored traceback around it. The
        caller gets the exception of Ray.
        """
        handle = make()
        stepprof.attach(handle, find="engine")
        outer = ray_here.remote(num_cpus=0)(ask)
        with pytest.raises(ZeroDivisionError), stepprof.profile_step(2, role="rollout"):
            ray_here.get(outer.remote(handle))
        stepprof.shutdown(20)
        [entry] = engines(session, 2)
        assert entry["body_error"] == "ZeroDivisionError: no batch"

    def test_two_of_three_engines_record_if_one_is_dead(self, ray_here, make, session):
        """The two other engines record, and the body does not wait for the dead one."""
        handles = [make() for _ in range(3)]
        ray_here.get([handle.generate.remote("warm") for handle in handles])
        stepprof.attach(handles, find="engine")
        kill(handles[1])
        began = time.monotonic()
        with stepprof.profile_step(2, role="rollout"):
            assert time.monotonic() - began < 3
            ray_here.get([handles[n].generate.remote("x") for n in (0, 2)])
        stepprof.shutdown(20)
        found = engines(session, 2)
        assert [(entry["status"], entry["health"]) for entry in found] == [
            ("complete", "ok"),
            ("failed", "dead"),
            ("complete", "ok"),
        ]
        assert "the actor is dead" in found[1]["error"]

    def test_an_actor_killed_while_recording_is_lost(self, ray_here, make, session):
        """The capture of the killed actor is lost in the manifest, and the next step reports that
        the actor is dead.
        """
        handle = make()
        ray_here.get(handle.generate.remote("warm"))
        stepprof.attach(handle, find="engine")
        with stepprof.profile_step(2, role="rollout"):
            kill(handle)
        with stepprof.profile_step(4, role="rollout"):
            pass
        assert [
            (entry["status"], entry["health"]) for entry in (engines(session, 2) + engines(session, 4))
        ] == [
            ("lost", "dead"),
            ("failed", "dead"),
        ]

    def test_a_busy_actor(self, ray_here, make, session):
        """A busy actor delays the body for at most the timeout of the start. The manifest says that
        the actor is inside a method.
        """
        handle = make()
        ray_here.get(handle.generate.remote("warm"))
        stepprof.attach(handle, find="engine")
        with stepprof.profile_step(1, role="rollout"):
            pass
        time.sleep(0.5)  # it is armed
        busy = handle.sleep.remote(7)
        late = handle.generate.remote("late")
        began = time.monotonic()
        with stepprof.profile_step(2, role="rollout"):
            assert time.monotonic() - began < 6
            (entry,) = engines(session, 2)
            assert entry["status"] == "failed"
            assert "inside a method" in entry["error"]
        ray_here.get([busy, late])

    def test_the_body_raises(self, ray_here, make, session):
        """The engine is stopped, its trace is kept, and its entry has the exception."""
        handle = make()
        stepprof.attach(handle, find="engine")
        with pytest.raises(ZeroDivisionError), stepprof.profile_step(2, role="rollout"):
            raise ZeroDivisionError(len(ray_here.get([handle.generate.remote("x")])))
        stepprof.shutdown(20)
        (entry,) = engines(session, 2)
        assert (entry["status"], entry["body_error"]) == ("complete", "ZeroDivisionError: 1")

    def test_a_wrong_attachment_is_reported_in_the_manifest(self, ray_here, make, session):
        """The manifest says what is wrong and how to correct it. The step continues."""
        stepprof.attach(make(), find="llm")
        with stepprof.profile_step(2, role="rollout"):
            pass
        (entry,) = engines(session, 2)
        assert (entry["status"], entry["health"]) == ("failed", "unconfigured")
        assert (
            'Server has no attribute "llm" (it has: count, engine, fail, generate, sleep)' in entry["error"]
        )

    @pytest.mark.parametrize("session", ["null"], indirect=True)
    def test_an_actor_that_is_engine_and_rank(self, ray_here, make, session):
        """A colocated actor is an engine and a rank. Its engine leaves a trace, and its own session
        a manifest.
        """
        handle = make(Colocated)
        ray_here.get(handle.generate.remote("warm"))
        stepprof.attach(handle, kind="both", find="engine", rank=0)
        with stepprof.profile_step(2, role="rollout"):
            ray_here.get([handle.generate.remote("x"), handle.update.remote()])
        stepprof.shutdown(20)
        found = {entry["kind"]: entry for entry in engines(session, 2)}
        assert {entry["status"] for entry in found.values()} == {"complete"}
        assert sum(len(entry["artifacts"]) for entry in found.values()) == 1
        (own,) = fragments(session.path / "step-000002")["rollout-rank-0.json"]["windows"]
        assert (own["status"], own["rank"], own["backend"]) == ("complete", 0, "null")
        (spans,) = (session.path / "spans").glob("rank-0.*.jsonl")
        assert '"update"' in spans.read_text()

    def test_an_engine_in_the_actors_own_process(self, ray_here, make, session):
        """An engine inside the actor's own process fails at the first step, and the error names
        `kind="both"`. At the next step it is not started.
        """
        stepprof.attach(make(inside=True), find="engine")
        with stepprof.profile_step(2, role="rollout"):
            pass
        with stepprof.profile_step(4, role="rollout"):
            pass
        assert 'kind="both"' in engines(session, 2)[0]["error"]
        assert engines(session, 4)[0]["status"] == "joined"

    def test_a_detached_actor_takes_no_part(self, ray_here, make, session):
        """A detached actor records nothing in the next window."""
        handle = make(Reward)
        attached = stepprof.attach(handle, kind="rank", rank=0, role="reward")
        stepprof.detach(attached)
        with stepprof.profile_step(2, role="reward"):
            ray_here.get(handle.score.remote(1))
        assert not (session.path / "step-000002" / "manifest" / "reward-engines-rank-driver.json").exists()

    def test_spans_of_every_step(self, ray_here, make, session):
        """An actor with `kind="spans"` records no capture. Its regions have the steps of all
        windows of the driver.
        """
        handle = make(Reward)
        stepprof.attach(handle, kind="spans", role="rollout")
        for step in (1, 2, 3):
            with stepprof.profile_step(step, role="rollout"):
                # meanwhile the driver announces the step to the actor
                until(lambda step=step: ray_here.get(handle.step.remote()) == step)
                ray_here.get(handle.score.remote(step))
        stepprof.shutdown(20)
        (file,) = (session.path / "spans").glob("rank-Reward-*.jsonl")
        spans = [json.loads(line) for line in file.read_text().splitlines()[1:]]
        scores = [span for span in spans if span["name"] == "score"]
        assert [(span["step"], span["role"]) for span in scores] == [(n, "rollout") for n in (1, 2, 3)]

    def test_a_window_ends_where_it_ends(self, ray_here, make, session):
        """An actor that receives announcements of windows also receives their ends, before the next
        window begins.
        """
        handle = make(Reward)
        attached = stepprof.attach(handle, kind="spans", role="rollout", name="loop")
        until(lambda: attached.targets[0].driver._listening._joined)
        for step in (1, 2):
            with stepprof.profile_step(step):
                with stepprof.profile_step(step, role="rollout"):
                    ray_here.get(handle.score.remote(step))
                time.sleep(1)
            assert ray_here.get(handle.step.remote()) is None
        stepprof.shutdown(20)
        windows = [
            span for span in read_spans(session.path) if (span["rank"], span["kind"]) == ("loop", "window")
        ]
        lasted = {(each["step"], each["role"]): each["dur"] / 1e9 for each in windows}
        assert sorted(lasted, key=str) == sorted(
            [(n, role) for n in (1, 2) for role in (None, "rollout")], key=str
        )
        assert max(lasted[n, "rollout"] for n in (1, 2)) < 1 < min(lasted[n, None] for n in (1, 2))

    def test_names(self, ray_here, make, session):
        """Actors without a rank have the name of the attachment, with a number in a list: in their
        files, status and spans.
        """
        handles = [make(Reward), make(Reward)]
        with pytest.raises(stepprof.errors.ConfigError, match=r"name = \"a b\": .* did you mean a-b-"):
            stepprof.attach(handles[0], kind="spans", name="a b")
        stepprof.attach(handles, kind="spans", role="reward", name="reward-worker")
        with stepprof.profile_step(3, role="reward"):
            until(lambda: all(step == 3 for step in ray_here.get([each.step.remote() for each in handles])))
            ray_here.get([handle.score.remote(1) for handle in handles])
        stepprof.shutdown(20)
        names = ["reward-worker-0", "reward-worker-1"]
        assert [status["rank"] for status in read_statuses(session.path)] == ["driver", *names]
        assert sorted({span["rank"] for span in read_spans(session.path) if span["name"] == "score"}) == names
        assert all((session.path / "spans" / f"rank-{name}.000001.jsonl").exists() for name in names)


class Driver:
    """A driver that is an async actor itself."""

    def __init__(self, output_dir, handles):
        stepprof.init(
            {"output_dir": output_dir, "steps": "2, 4", "ranks": "all", "backend": "null"},
            rank=0,
            run_id="job",
        )
        self.handles = handles
        stepprof.attach(handles, find="engine")

    async def rollout(self, step):
        async with stepprof.profile_step(step, role="rollout"):
            await asyncio.gather(*(handle.generate.remote(step) for handle in self.handles))
        return str(stepprof.state())

    def blocking(self, step):
        with stepprof.profile_step(step, role="rollout"):
            return asyncio.get_running_loop().is_running()

    async def beat(self):
        return time.time()

    async def end(self):
        await asyncio.to_thread(stepprof.shutdown, 20)


class TestFromAnAsyncActor:
    def test_windows_in_coroutines_and_synchronous_methods(self, ray_here, make, tmp_path):
        """An async actor opens windows in a coroutine and in a synchronous method, which runs on
        its event loop. Nothing deadlocks, and the loop continues.
        """
        servers = [make(Server, slow=0.5), make(AsyncServer, slow=0.5)]
        ray_here.get([handle.generate.remote("warm") for handle in servers])
        driver = ray_here.remote(num_cpus=0)(Driver).remote(str(tmp_path), servers)
        ray_here.get(driver.beat.remote())
        rollout = driver.rollout.remote(2)
        gaps, last = [], time.time()
        while not ray_here.wait([rollout], timeout=0)[0]:
            ray_here.get(driver.beat.remote())
            gaps.append(time.time() - last)
            last = time.time()
        assert len(gaps) > 5  # it answered while its engines, half a second each, started and stopped
        ray_here.get(rollout)
        assert ray_here.get(driver.blocking.remote(4), timeout=30)
        ray_here.get(driver.end.remote(), timeout=200)
        ray_here.kill(driver)
        found = fragments(tmp_path / "job" / "step-000002")["rollout-engines-rank-0.json"]["engines"]
        assert [(entry["status"], entry["artifacts"][0]["events"]) for entry in found] == [
            ("complete", 2)
        ] * 2
        statuses = [
            entry["status"]
            for entry in fragments(tmp_path / "job" / "step-000004")["rollout-engines-rank-0.json"]["engines"]
        ]
        assert len(statuses) == 2
        assert "lost" not in statuses


SCRIPT = """
import stepprof
from stepprof.instrument.context import cell
from stepprof.instrument.scope import newest
from stepprof.run.status import read_statuses
import os, sys, time
session = stepprof.init({{"output_dir": "runs", "steps": [2], "ranks": "all", "backend": "{backend}", "engine_start_timeout_seconds": 60}}, run_id="job")
import ray
ray.init(address="{address}", logging_level="ERROR", log_to_driver=False)
from actor_engine import Server
from test_ray_attach import Colocated
server, trainer = ray.remote(num_cpus=0)(Server).remote(), ray.remote(num_cpus=0)(Colocated).remote()
ray.get([server.generate.remote("warm"), trainer.update.remote()])
if "{backend}" == "torch":
    ray.get(trainer.load.remote())
stepprof.attach(server, find="engine")
stepprof.attach(trainer, kind="rank", rank=1)
window = stepprof.profile_step(2, role="rollout").start()
ray.get([server.generate.remote("in"), trainer.update.remote()])
print("recording", flush=True)
{end}
"""


@pytest.mark.torch
class TestTheDriverLeaves:
    @pytest.fixture
    def leave(self, run_script, plugin, cluster):
        """Return a function that runs a driver until it ends in the given way."""

        def leave(end, backend="null"):
            # Ray itself warns when it is imported and when it ends
            script = "import warnings; warnings.simplefilter('ignore')\n" + SCRIPT
            script = script.format(end=end, backend=backend, address=cluster.address)
            return run_script(script, env={"PYTHONPATH": workers_path(plugin)}, timeout=110)

        return leave

    def test_a_silent_end_of_the_script_keeps_everything(self, leave, tmp_path):
        """The driver initialises before it imports Ray, and its script ends while it records. All
        captures are stopped and kept before Ray ends.
        """
        leave("", "torch").check()
        step = tmp_path / "runs" / "job" / "step-000002"
        found = fragments(step)
        entries = {entry["kind"]: entry for entry in found["rollout-engines-rank-0.json"]["engines"]}
        assert [(entry["status"], entry["health"]) for entry in entries.values()] == [("partial", "ok")] * 2
        assert (step / entries["simulated"]["artifacts"][0]["path"]).is_file()
        (own,) = found["rollout-rank-1.json"]["windows"]
        assert own["status"] in ("complete", "partial")
        assert (step / own["artifacts"][0]["path"]).is_file()

    def test_a_killed_driver(self, leave, tmp_path):
        """No process is left to stop the captures. The manifests, which were written ahead, say
        that they are lost.
        """
        ran = leave("os.kill(os.getpid(), 9)")
        assert ran.returncode == -9
        found = fragments(tmp_path / "runs" / "job" / "step-000002")
        assert {entry["status"] for entry in found["rollout-engines-rank-0.json"]["engines"]} == {"lost"}
        assert found["rollout-rank-1.json"]["windows"][0]["status"] == "lost"

    def test_ray_shut_down_before_stepprof(self, leave, tmp_path):
        """After ray.shutdown() the driver sends no call, because a call would start another Ray.
        The manifest says that Ray has been shut down.
        """
        ran = leave("ray.shutdown(); window.stop(); print(ray.is_initialized())").check()
        assert ran.stdout.split() == ["recording", "False"]
        found = fragments(tmp_path / "runs" / "job" / "step-000002")["rollout-engines-rank-0.json"]["engines"]
        assert {entry["status"] for entry in found} == {"failed"}
        assert all("Ray has been shut down" in entry["error"] for entry in found)


class TestTrigger:
    def test_engines_and_ranks_of_a_driver(self, ray_here, make, session):
        """While the loop runs, a request selects a step that is not configured. Every engine and
        rank records it.
        """
        server, trainers = make(Server), [make(Colocated) for _ in range(2)]
        ray_here.get(server.generate.remote("warm"))
        stepprof.attach(server, find="engine")
        stepprof.attach(trainers, role="actor", kind="rank")
        asked, step, deadline = None, 0, time.monotonic() + 60
        while asked is None or (step <= asked.step and time.monotonic() < deadline):
            step += 1
            with stepprof.profile_step(step, role="rollout"):
                ray_here.get(server.generate.remote(step))
            with stepprof.profile_step(step, role="actor"):
                ray_here.get([handle.update.remote() for handle in trainers])
            time.sleep(0.3)
            if asked is None and session.path.joinpath("status", "rank-driver.json").exists() and step > 4:
                asked = stepprof.trigger(session.path, backend="null")
        stepprof.shutdown(20)
        (entry,) = engines(session, asked.step)
        assert (entry["status"], entry["kind"]) == ("complete", "simulated")
        reported = fragments(session.path / f"step-{asked.step:06d}")
        for rank in (0, 1):
            (window,) = reported[f"actor-rank-{rank}.json"]["windows"]
            assert (window["status"], window["backend"]) == ("complete", "null")
        by_rank = {status["rank"]: status for status in read_statuses(session.path)}
        assert by_rank["driver"]["requests"][asked.name]["outcome"] == "reached"
        assert set(by_rank["driver"]["engines"]) == {"rollout/0", "actor/0", "actor/1"}


WORKING_DIR = """
import os, ray, stepprof
class Driver:
    def init(self):
        stepprof.init({{"steps": "1", "backend": "null"}}, run_id="job")
        stepprof.shutdown()
        return os.getcwd(), stepprof.state().run
def main():
    runtime = {{"working_dir": "empty", "env_vars": {{"HOME": os.getcwd()}}}}
    ray.init(address="{address}", logging_level="ERROR", log_to_driver=False, runtime_env=runtime)
    print(*ray.get(ray.remote(num_cpus=0)(Driver).remote().init.remote()))
main()
"""


def test_a_driver_whose_working_directory_is_temporary(run_script, plugin, cluster, tmp_path):
    """If the working directory is temporary, the run is below the home directory. `state` returns
    its path.
    """
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "file").touch()
    script = "import warnings; warnings.simplefilter('ignore')\n" + WORKING_DIR.format(
        address=cluster.address
    )
    ran = run_script(script, env={"PYTHONPATH": workers_path(plugin)}, timeout=110).check()
    here, run = ran.stdout.split()[-2:]
    assert "runtime_resources" in here
    assert run == str(tmp_path / "stepprof-runs" / "job")
    assert (tmp_path / "stepprof-runs" / "job" / "run.json").exists()


def test_an_actor_that_profiles_itself_with_stacks(ray_here, make, tmp_path) -> None:
    """An actor that is attached and recorded inside its own torch profile gets this profile, as without stepprof.

    The profiled thread executes only the two modules that keep the code of their bodies. The actor has a worker of its own,
    because another worker may have loaded stepprof.
    """

    class Profiled:
        def begin(self):
            import sys
            import threading

            import torch

            self.executed, self.thread = [], threading.current_thread()

            def note(event, arguments):
                if event == "exec" and getattr(arguments[0], "co_name", "") == "<module>":
                    is_traced = threading.current_thread() is self.thread
                    self.executed.append((is_traced, arguments[0].co_filename))

            self.profile = torch.profiler.profile(with_stack=True).__enter__()
            sys.addaudithook(note)
            return "stepprof" in sys.modules

        def end(self):
            import torch

            torch.ones(4) + 1
            self.profile.__exit__(None, None, None)
            return sum(event.name == "aten::ones" for event in self.profile.events())

        def modules(self):
            from pathlib import Path

            import stepprof

            folder = str(Path(stepprof.__file__).parent) + "/"
            return {
                (traced, path[len(folder) :]) for traced, path in self.executed if path.startswith(folder)
            }

    handle = make(Profiled, actor_options={"runtime_env": {"env_vars": {"WORKER_OF": "profiled"}}})
    assert not ray_here.get(handle.begin.remote())
    session = stepprof.init({"output_dir": str(tmp_path), "steps": "2", "ranks": "all", "backend": "null"})
    stepprof.attach(handle, role="actor", kind="rank", rank=0)
    with stepprof.profile_step(2, role="actor"):
        pass
    assert ray_here.get(handle.end.remote()) == 1
    executed = ray_here.get(handle.modules.remote())
    assert {path for traced, path in executed if traced} == {"__init__.py", "untraced.py"}
    assert (False, "remote/ray/inside/follower.py") in executed
    stepprof.shutdown(20)
    found = [
        window for each in fragments(session.path / "step-000002").values() for window in each["windows"]
    ]
    assert (0, "complete") in [(window["rank"], window["status"]) for window in found]

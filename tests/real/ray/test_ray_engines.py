"""Test engines inside Ray actors. In every kind of actor, the driver finds, starts and stops them
through the actor's handle.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import time

import pytest
from actor_engine import AsyncServer, Server, SimulatedEngine
from driving import drive, kill, until

from stepprof.errors import ConfigError
from stepprof.host.process_identity import writer_identity
from stepprof.remote.base import EngineFailure
from stepprof.remote.ray.clock import ping_pong
from stepprof.remote.ray.driver import ActorDriver
from stepprof.remote.ray.inside import messages
from stepprof.remote.ray.kind import RayKind

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


class Plain(Server):
    """An actor that runs one call at a time, on the main thread."""

    def __init__(self, **options):
        super().__init__(**options)
        self.nothing = None

    def renew(self):
        self.engine = SimulatedEngine()

    @property
    def broken(self):
        raise RuntimeError("not now")


class Helper:
    """An actor that holds no engine."""

    def ping(self):
        return os.getpid()


ACTORS = {
    "plain": (Plain, {}),
    "async": (AsyncServer, {}),
    "groups": (Plain, {"concurrency_groups": {"io": 2, "compute": 1}}),
    "async groups": (AsyncServer, {"concurrency_groups": {"io": 2}}),
    "threads": (Plain, {"max_concurrency": 3}),
}


@pytest.fixture
def make(start):
    """Return a function that makes actors of a kind, or of a class."""

    def make(kind, *, actor_options=None, **options):
        cls, extra = ACTORS[kind] if isinstance(kind, str) else (kind, {})
        return start(cls, {**extra, **(actor_options or {})}, **options)

    return make


def names(window, artifact):
    """Return the names in a trace, and its metadata."""
    content = json.loads(gzip.decompress((window.folder / artifact.path).read_bytes()))
    return [event["name"] for event in content["traceEvents"]], content["stepprof"]


class TestRecording:
    @pytest.mark.parametrize("kind", ACTORS)
    def test_each_window_has_exactly_its_own_forward_steps(self, ray_here, make, connect, windows, kind):
        """The trace of a window has exactly its own forward steps, in any kind of actor. The class
        of the actor has no method of stepprof.
        """
        handle = make(kind)
        driver = connect(handle, find="engine")
        for step in (2, 4):
            window = windows.make(step)
            drive(driver.arm(window))
            ray_here.get(handle.generate.remote("before"))
            drive(driver.start(window))
            ray_here.get(handle.generate.remote(f"in {step}"))
            stopped = drive(driver.stop(window))
            ray_here.get(handle.generate.remote("after"))
            (artifact,) = stopped.artifacts
            events, stated = names(window, artifact)
            assert events == [f"forward in {step}"] * 2
            assert (stated["step"], stated["rank"]) == (step, 0)
        assert (driver.kind, driver.name.partition(":")[0]) == ("simulated", ACTORS[kind][0].__name__)
        assert driver.host is not None
        clock = drive(driver.clock())
        assert (clock.method, clock.boot_id) == ("same-host", writer_identity()["boot_id"])

    @pytest.mark.parametrize("kind", ["async", "async groups", "groups", "threads"])
    def test_a_slow_start_does_not_block_methods(self, ray_here, make, connect, windows, kind):
        """A start that takes seconds blocks no method of an actor that has more than one thread or
        a loop.
        """
        handle = make(kind, slow=2.0)
        ray_here.get(handle.count.remote())
        driver, window = connect(handle, find="engine"), windows.make(2)
        drive(driver.arm(window))
        starting = drive(driver.start(window), wait=False)
        until(lambda: ray_here.get(handle.count.remote())[0] == 1)
        assert not starting.done()
        starting.result(30)

    def test_calls_keep_their_order(self, ray_here, make, connect, windows):
        """A plain actor starts recording before the methods that are called afterwards, and stops
        after those that were called before.
        """
        handle = make("plain")
        driver, window = connect(handle, find="engine"), windows.make(2)
        drive(driver.arm(window))
        drive(driver.start(window))
        work = handle.generate.remote("late", 50)
        stopped = drive(driver.stop(window))
        assert stopped.artifacts[0].events == 50
        ray_here.get(work)

    def test_a_rebuilt_engine_is_found_again(self, ray_here, make, connect, windows):
        """An engine that was rebuilt between two windows is found again."""
        handle = make("plain")
        driver = connect(handle, find="engine")
        for step in (2, 4):
            window = windows.make(step)
            drive(driver.arm(window))
            drive(driver.start(window))
            ray_here.get(handle.generate.remote("x", step))
            assert drive(driver.stop(window)).artifacts[0].events == step
            ray_here.get(handle.renew.remote())

    def test_abort(self, ray_here, make, connect, windows):
        """The abort discards a running recording. A second abort is accepted."""
        handle = make("async")
        driver, window = connect(handle, find="engine"), windows.make(2)
        drive(driver.arm(window))
        drive(driver.start(window))
        drive(driver.abort())
        drive(driver.abort())
        assert ray_here.get(handle.count.remote()) == (1, 2, False)

    def test_refusals(self, found, connect, windows):
        """The engine refuses a stop without a start, and a second start. The error has the engine's
        own message after the name of the actor.
        """
        driver, window = connect(found, find="engine", name="head"), windows.make(2)
        drive(driver.arm(window))
        with pytest.raises(EngineFailure, match=r"^head: nothing runs$"):
            drive(driver.stop(window))
        drive(driver.start(window))
        with pytest.raises(EngineFailure, match=r"^head: a profiler runs already$") as caught:
            drive(driver.start(window))
        assert caught.value.health == "busy"


@pytest.fixture(scope="module")
def found(cluster):
    """Return one actor for all tests that do not change it."""
    import ray

    handle = ray.remote(num_cpus=0)(Plain).remote()
    yield handle
    ray.kill(handle)


class TestFinding:
    @pytest.mark.parametrize("find", ["engine", "self.engine", lambda actor: actor.engine, None])
    def test_an_engine_is_found_by_path_callable_or_alone(self, found, connect, windows, find):
        """An engine is found by a path of attributes, by a callable, or because it is the only one."""
        options = {} if find is None else {"find": find}
        driver = connect(found, **options)
        drive(driver.arm(windows.make(2)))
        assert driver.kind == "simulated"

    @pytest.mark.parametrize(
        ("find", "message"),
        [
            ("engin", 'Plain has no attribute "engin"; did you mean "engine"?'),
            ("nothing", 'find = "nothing" is None: a headless node'),
            ("broken", "broken raised RuntimeError: not now"),
            (lambda actor: 1 / 0, "find raised ZeroDivisionError"),
            ("engine.starts", "returned no engine that can be recorded"),
        ],
    )
    def test_each_missing_engine_has_its_own_message(self, found, connect, windows, find, message):
        """Each reason has its own message, and the health is `unconfigured`."""
        with pytest.raises(EngineFailure) as caught:
            drive(connect(found, find=find).arm(windows.make(2)))
        assert message in str(caught.value)
        assert caught.value.health == "unconfigured"

    def test_no_engine_at_all(self, make, connect, windows):
        """An actor without an engine is refused. The message lists the possible kinds of an actor."""
        with pytest.raises(
            EngineFailure, match=r'kind="engine" with find.*kind="rank".*kind="both".*kind="spans"'
        ):
            drive(connect(make(Helper)).arm(windows.make(2)))

    def test_the_worker_is_the_actor(self, make, connect, windows):
        """An engine inside the actor's own process is refused: the capture of that process contains
        it.
        """
        driver = connect(make("plain", inside=True), find="engine")
        with pytest.raises(EngineFailure, match='kind="both"'):
            drive(driver.arm(windows.make(2)))
        assert driver.inside

    def test_options(self, found):
        """Wrong options are refused when they are given, and the message names what is allowed."""
        handle = found
        with pytest.raises(ConfigError, match="fetch_bytes"):
            RayKind().connect(handle, fetch_byte=1)
        with pytest.raises(ConfigError, match='"engine", "rank"'):
            RayKind().connect(handle, kind="trainer")
        with pytest.raises(ConfigError, match='kind = "engine"'):
            RayKind().connect(handle, kind="spans", find="engine")
        with pytest.raises(ConfigError, match="rank"):
            RayKind().connect(handle, kind="rank", rank=-1)

    def test_keys(self, found):
        """The driver of an engine and the driver of a rank in one actor have different keys."""
        keys = {RayKind().connect(found, kind=kind).key for kind in ("engine", "rank")}
        assert len(keys) == 2

    def test_engine_options(self, found, connect, windows):
        """The options reach the engine's own driver, which refuses unknown ones."""
        handle = found
        drive(connect(handle, find="engine", engine_options={"flavour": "sour"}).arm(windows.make(2)))
        with pytest.raises(EngineFailure, match="did you mean flavour"):
            drive(connect(handle, find="engine", engine_options={"flavor": "sour"}).arm(windows.make(4)))

    def test_ray_client(self):
        """The kind recognises and refuses a handle of Ray Client, which cannot run a function in an
        actor. The error names `ray job submit`.
        """
        handle = type("ClientActorHandle", (), {"__module__": "ray.util.client.common"})()
        assert RayKind().recognises(handle)
        assert not RayKind().recognises("http://localhost:8000")
        with pytest.raises(ConfigError, match="ray job submit"):
            RayKind().connect(handle)


class TestTrouble:
    def test_killed_before_the_start(self, ray_here, make, connect, windows):
        """A call to a killed actor fails with the health `dead`, and so does every later call."""
        handle = make("plain")
        driver, window = connect(handle, find="engine"), windows.make(2)
        drive(driver.arm(window))
        kill(handle)
        for verb in (driver.start, driver.arm, driver.stop):
            with pytest.raises(EngineFailure, match="dead") as caught:
                drive(verb(window))
            assert (caught.value.health, caught.value.owes_stop) == ("dead", False)
        with pytest.raises(EngineFailure, match="dead"):
            drive(driver.abort())

    @pytest.mark.parametrize("kind", ["plain", "async"])
    def test_the_stop_says_that_the_actor_is_dead(self, ray_here, make, connect, windows, kind):
        """The stop reports that the actor is dead."""
        handle = make(kind)
        driver, window = connect(handle, find="engine"), windows.make(2)
        drive(driver.arm(window))
        drive(driver.start(window))
        os.kill(ray_here.get(handle.generate.remote("x")), 9)
        with pytest.raises(EngineFailure, match=r"^\w+:\w+: the actor is dead") as caught:
            drive(driver.stop(window))
        assert caught.value.health == "dead"

    def test_a_restarted_actor_is_prepared_anew(self, ray_here, make, connect, windows):
        """The start prepares an actor that Ray restarted again. If it restarts while it records,
        the capture is lost.
        """
        handle = make("plain", actor_options={"max_restarts": 2})
        driver, window = connect(handle, find="engine"), windows.make(2)
        drive(driver.arm(window))
        os.kill(ray_here.get(handle.generate.remote("x")), 9)
        pid = alive(ray_here, handle)
        drive(driver.start(window))
        ray_here.get(handle.generate.remote("anew"))
        assert drive(driver.stop(window)).artifacts[0].events == 2
        window = windows.make(4)
        drive(driver.arm(window))
        drive(driver.start(window))
        os.kill(pid, 9)
        alive(ray_here, handle)
        with pytest.raises(EngineFailure, match="restarted") as caught:
            drive(driver.stop(window))
        assert (caught.value.health, caught.value.lost) == ("unknown", True)  # the restarted actor answers

    def test_a_busy_actor_answers_after_its_method(self, ray_here, make, connect, windows):
        """A plain actor inside a method answers the start after it. Until then, the driver reports
        that reason.
        """
        handle = make("plain")
        driver, window = connect(handle, find="engine"), windows.make(2)
        drive(driver.arm(window))
        working = handle.sleep.remote(3)
        starting = drive(driver.start(window), wait=False)
        until(lambda: "inside a method" in (driver.waiting or ""))
        assert not starting.done()
        starting.result(30)
        assert driver.waiting is None
        ray_here.get(working)
        with pytest.raises(EngineFailure, match=r"without events|no events"):
            drive(driver.stop(window))

    def test_a_hung_engine_frees_its_actor(self, ray_here, make, connect, windows):
        """An engine that never answers its start blocks a plain actor only until the start timeout.
        Then its methods run again.
        """
        handle = make("plain", hang=True)
        driver, window = connect(handle, find="engine"), windows.make(2)
        drive(driver.arm(window))
        starting = drive(driver.start(window), wait=False)
        until(lambda: ray_here.get(handle.count.remote(), timeout=30) == (1, 0, False))
        assert not starting.done()

    def test_an_actor_without_stepprof_is_not_configured(self, ray_here, make, connect, windows):
        """If an actor's environment has no stepprof, its health is `unconfigured`."""

        class Alone:
            """Pickled by value, so that no module of the tests is imported for it."""

            def hide(self):
                import sys

                for name in [name for name in sys.modules if name.partition(".")[0] == "stepprof"]:
                    del sys.modules[name]
                sys.modules["stepprof"] = None

        Alone.__module__ = "__main__"
        handle = make(Alone)
        ray_here.get(handle.hide.remote())
        with pytest.raises(EngineFailure, match="cannot be imported there") as caught:
            drive(connect(handle, find="engine").arm(windows.make(2)))
        assert caught.value.health == "unconfigured"


class TestClocks:
    def test_clocks_are_measured_once_per_machine(self, found, connect, windows, monkeypatch):
        """The clock of another machine is measured through one of its actors. The clock of this
        machine is not measured.
        """
        drivers = [connect(found, find="engine") for _ in range(3)]
        for driver in drivers:
            drive(driver.arm(windows.make(2)))
        assert drive(drivers[0].clock()).error_ns == 0
        monkeypatch.setattr(messages, "boot_id", lambda: "another machine")
        asked = []
        measure = ActorDriver._measure

        def noting(self, facts):
            asked.append(self)
            return measure(self, facts)

        monkeypatch.setattr(ActorDriver, "_measure", noting)

        async def all_at_once():
            return await asyncio.gather(*(driver.clock() for driver in drivers))

        clocks = drive(all_at_once())
        assert len(asked) == 1
        assert {clock.method for clock in clocks} == {"ping-pong"}
        assert {clock.boot_id for clock in clocks} == {writer_identity()["boot_id"]}
        assert abs(clocks[0].offset_ns) <= clocks[0].error_ns + 1_000_000

    def test_a_shifted_clock(self, found):
        """The measured offset is right within its stated error."""
        from stepprof.remote.ray.calls import call

        clock = drive(ping_pong("elsewhere", lambda: call(found, "actor", shifted)))
        assert abs(clock.offset_ns - SHIFT_NS) <= clock.error_ns + 1_000_000
        assert 0 < clock.error_ns < 50_000_000
        assert clock.method == "ping-pong"


SHIFT_NS = 5_000_000_000


def shifted(actor):
    """Return the time of a clock that is ahead."""
    return (time.time_ns() + SHIFT_NS,)


def alive(ray, handle):
    """Wait until the actor answers (again), and return its process id."""
    while True:
        try:
            return ray.get(handle.generate.remote("up", 0))
        except ray.exceptions.RayActorError:
            time.sleep(0.1)

"""Test several nodes: files on another node's disk, the loss of a node, and calls through one agent
per node.
"""

from __future__ import annotations

import gzip
import json
import time

import pytest
from actor_engine import Server
from driving import drive, fragments, kill

import stepprof
from stepprof.remote.base import EngineFailure
from stepprof.remote.ray import calls, files

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


class Rank:
    def update(self):
        with stepprof.region("update"):
            time.sleep(0.001)


@pytest.fixture
def make(start):
    """Return a function that makes actors, by default on the second node."""

    def make(cls, resources=None, **options):
        return start(cls, {"resources": {"second": 0.01} if resources is None else resources}, **options)

    return make


def recorded(ray, driver, handle, window, steps=2):
    """Record a complete window."""
    drive(driver.arm(window))
    drive(driver.start(window))
    ray.get(handle.generate.remote("in", steps))
    return drive(driver.stop(window))


class TestEngineFiles:
    def test_files_of_an_engine_are_fetched(self, cluster, make, connect, windows, tmp_path, monkeypatch):
        """A trace on the other node's disk is fetched in pieces, complete, to its place in the run."""
        import ray

        monkeypatch.setattr(files, "PIECE_BYTES", 100_000)
        there = tmp_path / "disk of the second node"
        handle = make(Server, large=100_000)
        driver, window = connect(handle, find="engine", output_dir=str(there)), windows.make(2)
        stopped = recorded(ray, driver, handle, window)
        (artifact,) = stopped.artifacts
        final = window.folder / artifact.path
        assert final.stat().st_size == artifact.bytes > 5 * files.PIECE_BYTES
        assert len(json.loads(gzip.decompress(final.read_bytes()))["traceEvents"]) == 100_002
        assert stopped.partial is None
        assert [path.name for path in final.parent.iterdir()] == [final.name]
        assert (there / "job" / "step-000002" / artifact.path).exists()

    @pytest.mark.parametrize(
        ("options", "reason"),
        [({"fetch": False}, "fetch = False"), ({"fetch_bytes": 100}, "larger than fetch_bytes = 100")],
    )
    def test_files_stay_on_their_host_as_configured(
        self, cluster, make, connect, windows, tmp_path, options, reason
    ):
        """The error has the host, the path and the reason."""
        import ray

        handle = make(Server)
        driver, window = (
            connect(handle, find="engine", output_dir=str(tmp_path / "disk"), **options),
            windows.make(2),
        )
        stopped = recorded(ray, driver, handle, window)
        assert stopped.artifacts == ()
        assert reason in stopped.partial
        assert f"was left on {driver.host} at {tmp_path / 'disk'}" in stopped.partial

    def test_a_shared_folder(self, cluster, make, connect, windows, tmp_path):
        """If `trace_dir` names a folder that both nodes see, the trace is moved from there and does
        not pass through Ray.
        """
        import ray

        shared = tmp_path / "shared"
        handle = make(Server)
        driver, window = connect(handle, find="engine", fetch=False), windows.make(2, trace_dir=shared)
        stopped = recorded(ray, driver, handle, window)
        (artifact,) = stopped.artifacts
        assert (window.folder / artifact.path).is_file()
        assert [path for path in shared.rglob("*") if path.is_file()] == []

    def test_an_actor_killed_before_its_files_are_fetched(
        self, cluster, make, connect, windows, tmp_path, monkeypatch
    ):
        """The agent of the node outlives the actor, so the files are fetched nevertheless."""
        import ray

        handle = make(Server)
        driver, window = connect(handle, find="engine", output_dir=str(tmp_path / "disk")), windows.make(2)
        carrier = driver._carrier

        def kill_first(facts):
            kill(handle)
            return carrier(facts)

        monkeypatch.setattr(driver, "_carrier", kill_first)
        stopped = recorded(ray, driver, handle, window)
        assert len(stopped.artifacts) == 1
        assert (window.folder / stopped.artifacts[0].path).exists()

    def test_a_folder_that_cannot_be_made(self, cluster, make, connect, windows, tmp_path):
        """The arm call fails and names the host on which the folder cannot be created."""
        (tmp_path / "file").touch()
        driver = connect(make(Server), find="engine", output_dir=str(tmp_path / "file"))
        with pytest.raises(EngineFailure, match=r"cannot be made on .*output_dir") as caught:
            drive(driver.arm(windows.make(2)))
        assert caught.value.health == "unconfigured"


def fragment_of(session, name, timeout=20):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = fragments(session.path / "step-000002").get(name)
        if found is not None:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{name} has not come")


@pytest.mark.torch
class TestRankFiles:
    def record(self, handle, driver, windows):
        import ray

        window = windows.make(2, "actor", stem="")
        drive(driver.arm(window))
        drive(driver.start(window))
        ray.get(handle.update.remote())
        drive(driver.stop(window))
        return window

    def test_files_of_a_rank_are_fetched(self, cluster, make, connect, session, windows, tmp_path):
        """The manifest, the trace and the spans of a rank are fetched from its node after the
        export. The stop does not wait for them.
        """
        handle = make(Rank)
        driver = connect(handle, kind="rank", output_dir=str(tmp_path / "disk"))
        self.record(handle, driver, windows)
        (window,) = fragment_of(session, "actor-rank-0.json")["windows"]
        assert (window["status"], window["error"]) == ("complete", None)
        (artifact,) = window["artifacts"]
        trace = session.path / "step-000002" / artifact["path"]
        assert json.loads(gzip.decompress(trace.read_bytes()))["stepprof"]["rank"] == 0
        drive(driver.close(20, 20))
        (spans,) = (session.path / "spans").glob("rank-0.*.jsonl")
        assert "update" in spans.read_text()

    @pytest.mark.parametrize("session", ["null"], indirect=True)
    def test_a_rank_killed_before_its_files_are_fetched(
        self, cluster, make, connect, session, windows, tmp_path
    ):
        """If the process is killed before its files are fetched, its manifest is fetched and
        reports them as lost.
        """
        handle = make(Rank)
        driver = connect(handle, kind="rank", output_dir=str(tmp_path / "disk"))
        window = windows.make(2, "actor", stem="")
        drive(driver.arm(window))
        drive(driver.start(window))
        kill(handle)
        with pytest.raises(EngineFailure, match="dead"):
            drive(driver.stop(window))
        (found,) = fragment_of(session, "actor-rank-0.json")["windows"]
        assert found["status"] == "lost"

    @pytest.mark.parametrize("session", ["null"], indirect=True)
    def test_a_node_goes_away(self, cluster, make, connect, session, windows, tmp_path):
        """If a node is lost, its actors count as dead or unreachable. The manifest says where the
        files of a rank were.
        """
        import ray

        node = cluster.add_node(num_cpus=1, resources={"third": 1})
        cluster.wait_for_nodes()
        engine, rank = make(Server, {"third": 0.1}), make(Rank, {"third": 0.1})
        disk = str(tmp_path / "disk")
        drivers = [
            connect(engine, find="engine", output_dir=disk),
            connect(rank, kind="rank", output_dir=disk),
        ]
        here = [windows.make(2), windows.make(2, "actor", stem="")]
        for driver, window in zip(drivers, here, strict=True):
            drive(driver.arm(window))
            drive(driver.start(window))
        ray.get([engine.generate.remote("x"), rank.update.remote()])
        cluster.remove_node(node)
        for driver, window in zip(drivers, here, strict=True):
            with pytest.raises(EngineFailure, match=r"dead|does not answer") as caught:
                drive(driver.stop(window))
            assert caught.value.health in ("dead", "unreachable")
        (found,) = fragment_of(session, "actor-rank-0.json")["windows"]
        assert found["status"] == "lost"
        assert f"on {drivers[1].host} at {disk}" in found["error"]


class TestTree:
    def test_through_agents(self, cluster, make, connect, windows, monkeypatch):
        """Above a number of actors, calls pass through one agent per node. The results are the
        same, also for a dead actor.
        """
        import ray

        monkeypatch.setattr(calls, "TREE_ABOVE", 3)
        handles = [make(Server, {"first": 0.01} if n % 2 else None) for n in range(6)]
        drivers = [connect(handle, find="engine") for handle in handles]
        here = [windows.make(2, replica=n) for n in range(6)]
        for driver, window in zip(drivers, here, strict=True):
            drive(driver.arm(window))
        kill(handles[5])
        asked = []
        through = calls.Agents.call

        def noting(self, node, *arguments, **options):
            asked.append(node)
            return through(self, node, *arguments, **options)

        monkeypatch.setattr(calls.Agents, "call", noting)
        futures = [
            drive(driver.start(window), wait=False) for driver, window in zip(drivers, here, strict=True)
        ]
        errors = [future.exception(30) for future in futures]
        assert errors[:5] == [None] * 5
        assert (errors[5].health, "dead" in str(errors[5])) == ("dead", True)
        assert len(asked) >= 6
        assert len(set(asked)) == 2
        ray.get([handle.generate.remote(n) for n, handle in enumerate(handles[:5])])
        for driver, window in zip(drivers[:5], here, strict=False):
            assert drive(driver.stop(window)).artifacts[0].events == 2

"""Servers attached by their URL: their kind, the workers of a router, the clock, and sessions whose
servers do not answer.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
import time
from types import SimpleNamespace

import pytest
from serving import serving
from simulated import read_entries

import stepprof
from stepprof.config.options.engine import EngineOptions
from stepprof.errors import ConfigError
from stepprof.remote.base import Clock, EngineDriver, EngineFailure, EngineWindow, Stopped
from stepprof.remote.engine_process import ServerProcess
from stepprof.remote.http import kind as http
from stepprof.remote.http import workers
from stepprof.remote.http.kind import Client, HttpKind, HttpServer, expand, identify
from stepprof.remote.ray.driver import ActorDriver
from stepprof.remote.sglang.driver import SglangDriver
from stepprof.remote.vllm.driver import VllmDriver
from stepprof.run.model import Window

VLLM = {"/version": {"version": "0.32.0"}}
SGLANG = {"/server_info": {"tp_size": 1, "version": "0.5.23", "internal_states": []}}
OLD_SGLANG = {"/get_server_info": {"tp_size": 1, "model_path": "m"}}


def router(*urls):
    """Return the answers of SGLang's router 0.3.2."""
    workers = [
        {"id": "d6c7", "url": url, "worker_type": "regular", "is_healthy": True, "connection_mode": "HTTP"}
        for url in urls
    ]
    return {
        "/workers": {"workers": workers, "total": len(workers), "stats": {"regular_count": len(workers)}},
        "/get_server_info": {"router_manager": True, "routers_count": 1, "workers_count": len(workers)},
    }


def old_router(*urls):
    """Return the answers of older routers."""
    return {"/list_workers": {"urls": list(urls)}, **OLD_SGLANG}


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Forget the servers of earlier tests, because ports are used again."""
    monkeypatch.setattr(http, "_known", {})


@pytest.fixture
def window(tmp_path):
    return EngineWindow(Window(2, "rollout"), 0, tmp_path, "rollout/replica-0", EngineOptions())


class Recorder(EngineDriver):
    """Replace the driver of a kind: it uses the routes that both kinds have."""

    workers = 4

    def __init__(self, client):
        self.client = client
        self.kind = "vllm"
        self.name, self.key, self.host = client.name, client.key, None

    @classmethod
    def of_server(cls, client):
        return cls(client)

    async def ask(self, method, path):
        reply = await self.client.request(method, path)
        if not reply.ok:
            raise self.client.failure(reply, path)

    async def arm(self, window):
        await self.ask("GET", "/health")

    async def start(self, window):
        await self.ask("POST", "/start_profile")

    async def stop(self, window):
        await self.ask("POST", "/stop_profile")
        return Stopped()

    async def abort(self):
        await self.ask("POST", "/stop_profile")


class Other(Recorder):
    def __init__(self, client):
        super().__init__(client)
        self.kind = "sglang"


@pytest.fixture
def recorders(monkeypatch):
    monkeypatch.setattr(http, "SERVERS", {"vllm": f"{__name__}:Recorder", "sglang": f"{__name__}:Other"})


class TestIdentify:
    @pytest.mark.parametrize(
        ("routes", "kind"),
        [
            (VLLM, "vllm"),
            ({"/server_info": {"vllm_config": {}}}, "vllm"),
            (SGLANG, "sglang"),
            (OLD_SGLANG, "sglang"),
            (router("http://a:1"), "sglang-router"),
            (old_router("http://a:1"), "sglang-router"),
            (router(), "sglang-router"),
        ],
    )
    async def test_each_kind_of_server_is_identified(self, routes, kind):
        """Each kind of server is identified by GET requests only."""
        with serving(routes) as server:
            assert await identify(Client(server.url)) == kind
            assert {asked.method for asked in server.asked} == {"GET"}

    @pytest.mark.parametrize("routes", [{}, {"/version": "ok"}, {"/version": {"version": 3}, "/workers": []}])
    async def test_another_server_is_refused(self, routes):
        """For an unknown kind of server the failure names the requests, the answers, and the option that
        states the kind.
        """
        with serving(routes) as server:
            with pytest.raises(EngineFailure, match=r'/version \d+, /workers \d+.*kind="vllm"') as failure:
                await identify(Client(server.url))
            assert server.url in str(failure.value)
        assert failure.value.health == "unconfigured"

    async def test_the_address_of_its_api(self):
        """The address that clients of the API use ends with `/v1`. The failure says to leave it out."""
        with serving(VLLM) as server, pytest.raises(EngineFailure, match=rf"{server.url}, without /v1"):
            await identify(Client(f"{server.url}/v1/"))

    async def test_a_server_that_requires_a_key(self):
        """Without a key the kind is unknown; the failure names the option `api_key`."""
        with (
            serving({"/version": (401, {"error": "Unauthorized"})}) as server,
            pytest.raises(EngineFailure, match="api_key"),
        ):
            await identify(Client(server.url))

    async def test_a_server_that_hangs(self, monkeypatch):
        """A server that does not answer within the timeout is unreachable."""
        monkeypatch.setattr(http, "PROBE_SECONDS", 0.2)
        slow = {"/version": lambda _: time.sleep(0.6) or {}}
        with serving(slow) as server, pytest.raises(EngineFailure, match="did not answer") as failure:
            await identify(Client(server.url))
        assert failure.value.health == "unreachable"


class TestExpand:
    @pytest.mark.parametrize("kind", [router, old_router])
    async def test_the_workers_of_a_router(self, kind):
        """Each worker is listed once, however many ranks the router lists for it. Workers behind gRPC are
        left out.
        """
        urls = ["http://a:1/", "http://b:2@0", "http://b:2@1", "grpc://c:3"]
        with serving(kind(*urls)) as server:
            assert await expand(Client(server.url)) == ["http://a:1", "http://b:2"]

    async def test_no_router(self):
        """The expansion of a server that is not a router fails with its status 404."""
        with serving(VLLM) as server, pytest.raises(EngineFailure, match="404"):
            await expand(Client(server.url))


class TestKind:
    @pytest.mark.parametrize(
        ("target", "is_one"),
        [("http://a", True), (" HTTPS://a", True), ("a:8000", True), ("grpc://a", False), (7, False)],
    )
    def test_urls_are_recognised(self, target, is_one):
        """URLs, and hosts with a port, are recognised without a request."""
        assert HttpKind().recognises(target) is is_one

    @pytest.mark.parametrize(
        ("target", "name"),
        [
            ("node-3:8000", "http://node-3:8000"),
            ("10.0.0.1:80", "http://10.0.0.1"),
            ("[::1]:81", "http://[::1]:81"),
        ],
    )
    def test_a_host_and_a_port(self, target, name):
        """A host with a port is accepted as an address, because frameworks store addresses in this form."""
        assert HttpKind().connect(target).name == name

    @pytest.mark.parametrize("target", ["node-3", "me:s3cret@node-3"])
    def test_no_url(self, target):
        """A host without a port is refused; the error suggests a URL and does not show the password."""
        with pytest.raises(ConfigError, match='did you mean "http://node-3"') as refused:
            HttpKind().connect(target)
        assert "s3cret" not in str(refused.value)

    def test_an_unknown_kind(self):
        """The error for an unknown kind lists the known kinds."""
        with pytest.raises(ConfigError, match="vllm, sglang, sglang-router"):
            HttpKind().connect("http://a", kind="tgi")

    def test_an_unknown_option(self, recorders):
        """The error names the nearest option, and never shows a key."""
        with pytest.raises(ConfigError, match="did you mean api_key") as refused:
            HttpKind().connect("http://a", apikey="s3cret")
        assert "s3cret" not in str(refused.value)

    def test_no_request_before_the_first_window(self, recorders):
        """`connect` sends no request, so a server that is not up yet can be attached."""
        driver = HttpKind().connect("http://me:s3cret@127.0.0.1:1", api_key="k", name="first")
        assert (driver.kind, driver.name, driver.inside, driver.loop) == ("http", "first", False, None)
        assert driver.key == f"http://{socket.gethostname()}:1"
        assert "s3cret" not in repr(driver)


class TestServer:
    async def test_the_driver_of_its_kind_is_used(self, recorders, window):
        """The server is identified once, at the first arm. Then all calls go to the driver of its kind."""
        routes = {**VLLM, "/health": 200, "/start_profile": 200, "/stop_profile": 200}
        with serving(routes) as server:
            driver = HttpKind().connect(server.url)
            for _ in range(2):
                await driver.arm(window)
                await driver.start(window)
                assert await driver.stop(window) == Stopped()
            assert (driver.kind, driver.workers, driver.host) == ("vllm", 4, socket.gethostname())
            paths = [asked.path for asked in server.asked]
            assert paths == ["/version", *["/health", "/start_profile", "/stop_profile"] * 2]

    async def test_the_kind_can_be_stated(self, recorders, window):
        """If the kind is stated, no request is sent to find it."""
        with serving({"/health": 200}) as server:
            driver = HttpKind().connect(server.url, kind="sglang")
            await driver.arm(window)
            assert [asked.path for asked in server.asked] == ["/health"]
            assert driver.kind == "sglang"

    async def test_restarted_as_something_else(self, recorders, window):
        """After a failure the server is identified again, because it may have been restarted as another
        kind.
        """
        routes = {**VLLM, "/health": 200}
        with serving(routes) as server:
            driver = HttpKind().connect(server.url)
            await driver.arm(window)
            routes["/health"] = 500
            with pytest.raises(EngineFailure):
                await driver.arm(window)
            del routes["/version"]
            routes.update({**SGLANG, "/health": 200})
            await driver.arm(window)
            assert driver.kind == "sglang"

    async def test_abort_before_anything(self, window):
        """An abort before the first start sends no request."""
        await HttpKind().connect("http://127.0.0.1:1").abort()

    async def test_a_router_becomes_its_workers(self, recorders, window):
        """A router expands to its current workers, and the router's key is sent to them. Known workers
        keep their driver. If the router is down, the last list is used.
        """
        with serving({**VLLM, "/health": 200}) as one, serving({**SGLANG, "/health": 200}) as two:
            routes = router(one.url)
            with serving(routes) as server:
                driver = HttpKind().connect(server.url, api_key="k", workers="127.0.0.1")
                [first] = await driver.expand()
                assert first.name == one.url
                routes.update(router(one.url, two.url))
                both = await driver.expand()
                assert both[0] is first
                for each in both:
                    await each.arm(window)
                assert [each.kind for each in both] == ["vllm", "sglang"]
                assert {asked.headers["authorization"] for asked in one.asked} == {"Bearer k"}
            assert await driver.expand() == both

    async def test_a_router_without_workers(self, recorders, window):
        """A router without workers is its own target, and arming it fails with that reason."""
        with serving(router()) as server:
            driver = HttpKind().connect(server.url)
            assert await driver.expand() == [driver]
            with pytest.raises(EngineFailure, match="router without a worker"):
                await driver.arm(window)

    async def test_workers_elsewhere_are_not_followed(self, recorders, window, log):
        """Only workers on named hosts are used and get the router's key. Each refused worker is logged once."""
        with serving({**VLLM, "/health": 200}) as one, serving(VLLM) as two:
            listed = [
                {"url": "http://169.254.169.254/latest"},
                "http://[::1",
                7,
                {"url": None},
                None,
                f"{two.url}/other/path",
                "http://198.51.100.7:8000",
                {"url": one.url},
                "http://evil.example\n[forged]",
                [[]],
            ]
            with serving({"/workers": {"workers": listed}}) as server:
                driver = HttpKind().connect(server.url, api_key="canary-0123", workers="127.0.0.1")
                for _ in range(2):
                    [first] = await driver.expand()
                    assert first.name == one.url
                await first.arm(window)
            assert not two.asked
            assert {asked.headers["authorization"] for asked in one.asked} == {"Bearer canary-0123"}
        refused = [line for line in log if line["event"] == "worker.refused"]
        assert len(refused) == len({line["worker"] for line in refused}) == 8
        [elsewhere] = [line for line in refused if "198.51" in line["worker"]]
        assert 'workers=["198.51.100.7"]' in elsewhere["reason"]

    async def test_workers_that_were_named(self, recorders):
        """Only workers that the option `workers` names are used; without it, none, not even on the router's host."""
        with serving(VLLM) as one, serving(router(one.url)) as server:
            [worker] = await HttpKind().connect(server.url, workers=["127.0.0.0/8"]).expand()
            assert worker.name == one.url
            for options in ({"workers": "node-*"}, {}):
                driver = HttpKind().connect(server.url, **options)
                assert await driver.expand() == [driver]

    async def test_no_worker_may_be_followed(self, recorders, window):
        """If no worker is accepted, the failure shows the option `workers` to write."""
        with serving(router("http://198.51.100.7:8000")) as server:
            driver = HttpKind().connect(server.url)
            await driver.expand()
            with pytest.raises(EngineFailure, match=r'workers=\["198\.51\.100\.7"\]') as failure:
                await driver.arm(window)
            assert failure.value.health == "unconfigured"

    async def test_a_router_behind_a_router(self, recorders):
        """The list of a router behind a router is not read, because a chain of routers might never end."""
        asked = []
        with serving(router("http://127.0.0.1:1")) as inner, serving(router(inner.url)) as outer:
            [worker] = await HttpKind().connect(outer.url, workers="127.0.0.1").expand()
            assert (worker.name, worker.kind) == (inner.url, "sglang-router")
            asked = [each.path for each in inner.asked]
        assert asked == ["/version", "/workers"]

    async def test_a_router_with_too_many_workers(self, recorders, monkeypatch, log):
        """Workers beyond the limit are refused, and a limited number of log lines gives their count."""
        monkeypatch.setattr(workers, "MOST_WORKERS", 3)
        with serving(router(*(f"http://127.0.0.1:{port}" for port in range(1, 100)))) as server:
            driver = HttpKind().connect(server.url, workers="127.0.0.1")
            assert len(await driver.expand()) == 3
        refused = [line for line in log if line["event"] == "worker.refused"]
        assert len(refused) == http.MOST_LOGGED
        assert {line["refused"] for line in refused} == {96}

    async def test_a_router_that_hangs(self, recorders, monkeypatch):
        """If the router hangs, the previous workers are used after a short wait. A late answer is used the
        next time.
        """
        with serving(VLLM) as one:
            routes = router(one.url)
            with serving(routes) as server:
                driver = HttpKind().connect(server.url, workers="127.0.0.1")
                [worker] = await driver.expand()
                monkeypatch.setattr(http, "EXPAND_SECONDS", 0.3)
                listed = routes["/workers"]
                routes["/workers"] = lambda _: time.sleep(2) or {**listed, "workers": []}
                began = time.perf_counter()
                assert await driver.expand() == [worker]
                assert time.perf_counter() - began < 1.8
                await asyncio.sleep(2.5)
                assert await driver.expand() == [driver]

    async def test_a_server_that_is_not_a_router(self, recorders):
        """A server that is not a router is its own target. If it is down later, it keeps its kind."""
        with serving(VLLM) as server:
            driver = HttpKind().connect(server.url)
            assert await driver.expand() == [driver]
        again = HttpKind().connect(server.url)
        assert await again.expand() == [again]
        assert (again.kind, again.key) == ("vllm", driver.key)


class TestClock:
    async def test_a_server_on_this_host(self):
        """A server on this host has the clock of this host. That of any other server is not known before its first trace."""
        with serving(VLLM) as server:
            driver = HttpKind().connect(server.url)
            assert await driver.clock() is None
            await driver.expand()
            client = Client(server.url)
            await client.request("GET", "/version")
            assert await ServerProcess(client).clock() == Clock(socket.gethostname(), 0, 0, "same-host")
            client.same_host = False
            assert await ServerProcess(client).clock() is None


class TestSession:
    """Attached servers and a recorded window."""

    @pytest.fixture
    def recorded(self, start):
        def recorded(url, seconds=5.0, **options):
            session = start(
                steps="2", backend="null", roles={"rollout": {"ranks": "all"}}, engine_start_timeout_seconds=3
            )
            stepprof.attach(url, role="rollout", **options)
            began = time.perf_counter()
            with stepprof.profile_step(2, role="rollout"):
                took = time.perf_counter() - began
            deadline = time.monotonic() + seconds
            while True:
                session.background.round()
                entries = read_entries(session)
                if entries and all(entry.status != "lost" for entry in entries):
                    break
                assert time.monotonic() < deadline
                time.sleep(0.02)
            return SimpleNamespace(
                entries=entries, took=took, text=json.dumps([vars(entry) for entry in entries])
            )

        return recorded

    def test_a_server_that_is_down(self, recorded):
        """The window runs. The manifest says that the server is unreachable, and contains no secret."""
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        done = recorded(f"http://me:s3cret@127.0.0.1:{port}", api_key="t0ken")
        [entry] = done.entries
        assert (entry.status, entry.health, entry.name) == (
            "failed",
            "unreachable",
            f"http://127.0.0.1:{port}",
        )
        assert "is the server up?" in entry.error
        assert "s3cret" not in done.text
        assert "t0ken" not in done.text

    @pytest.mark.parametrize("kind", ["vllm", "sglang"])
    def test_the_end_of_a_run_with_a_server_that_never_answers(self, start, log, kind):
        """The server accepts connections but never answers. The window and the end of the run wait no
        longer than the timeouts of the role.
        """
        with socket.create_server(("127.0.0.1", 0)) as silent:
            start(
                steps="2",
                backend="null",
                roles={"rollout": {"ranks": "all"}},
                engine_start_timeout_seconds=0.3,
                engine_stop_timeout_seconds=1,
            )
            stepprof.attach(f"http://127.0.0.1:{silent.getsockname()[1]}", role="rollout", kind=kind)
            began = time.monotonic()
            with stepprof.profile_step(2, role="rollout"):
                pass
            stepprof.shutdown()
            assert time.monotonic() - began < 15

    @pytest.mark.parametrize("driver", [VllmDriver, SglangDriver, HttpServer, ActorDriver])
    def test_a_driver_is_closed_as_the_contract_says(self, driver):
        """`close` of each driver takes the timeout for exports and the timeout for an engine that does not
        answer.
        """
        assert list(inspect.signature(driver.close).parameters) == ["self", "timeout", "answer_seconds"]

    def test_the_end_of_a_run_closes_a_server(self, recorded, log):
        """The end of the run closes all connections and logs no warning."""
        with serving({**VLLM, "/health": 200, "/start_profile": 200, "/stop_profile": 200}) as server:
            recorded(server.url)
            stepprof.shutdown()
        assert not [line for line in log if line["event"] == "engine.not_closed"]

    def test_a_server_of_unknown_kind(self, recorded):
        """No start is sent, and the manifest explains how to state the server's kind."""
        with serving({}) as server:
            [entry] = recorded(server.url).entries
            assert {asked.method for asked in server.asked} == {"GET"}
        assert (entry.status, entry.health) == ("failed", "unconfigured")
        assert "kind=" in entry.error

    def test_the_workers_of_a_router_are_replicas(self, recorded, recorders):
        """Each worker is a replica with its own entry, under its own address."""
        routes = {**VLLM, "/health": 200, "/start_profile": 200, "/stop_profile": 200}
        with (
            serving(dict(routes)) as one,
            serving(dict(routes)) as two,
            serving(router(one.url, two.url)) as server,
        ):
            entries = recorded(server.url, workers="127.0.0.1").entries
            for worker in (one, two):
                assert [asked.path for asked in worker.asked if asked.method == "POST"] == [
                    "/start_profile",
                    "/stop_profile",
                ]
        assert [(entry.replica, entry.name, entry.kind) for entry in entries] == [
            (0, one.url, "vllm"),
            (1, two.url, "vllm"),
        ]


async def test_calls_run_at_once():
    """Thirty servers that each answer after 0.3 s are identified in less than 6 s, because the requests
    are concurrent.
    """
    with serving({"/version": lambda _: time.sleep(0.3) or {"version": "0.32.0"}}) as server:
        began = time.perf_counter()
        await asyncio.gather(*(identify(Client(server.url)) for _ in range(30)))
        assert time.perf_counter() - began < 6

"""Windows over servers that answer badly, from `attach` through the drivers of vLLM and SGLang to the
manifest. The servers here are simulated; tests/real has the real ones.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from serving import serving
from simulated import read_entries

import stepprof
from stepprof.analysis.verify import verify_run
from stepprof.remote.http import kind

KEY = "s3cret"
EVENTS = [{"name": "execute_context_0(0)_generation_1(1)", "ph": "X", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]
PROFILE = {"output_dir", "start_step", "num_steps", "activities", "with_stack", "record_shapes"}


def write(path, rank=0):
    """Write a trace as torch does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        gzip.compress(
            json.dumps(
                {
                    "distributedInfo": {"rank": rank},
                    "baseTimeNanoseconds": 1_700_000_000_000_000_000,
                    "traceEvents": EVENTS,
                }
            ).encode()
        )
    )


class VllmLike:
    """Answer as vLLM 0.32 does; write a trace when the server is stopped."""

    def __init__(self, folder):
        self.folder = folder
        self.prefix = ""
        folder.mkdir()
        self.options = {"trace_dir": folder}
        self.routes = {
            "/version": {"version": "0.32.0"},
            "GET /start_profile": 405,
            "/health": 200,
            "POST /start_profile": self.start,
            "POST /stop_profile": self.stop,
        }

    def start(self, handler):
        return 200

    def stop(self, handler):
        write(self.folder / f"rank0.{time.time_ns()}.pt.trace.json.gz")
        return 200


class SglangLike:
    """Answer as SGLang 0.5.23 does; write a trace into the requested folder when the server is stopped."""

    def __init__(self, folder):
        self.options = {}
        schema = {
            "properties": {key: {} for key in (*PROFILE, "profile_by_stage", "profile_id", "profile_prefix")}
        }
        self.routes = {
            "/server_info": {
                "tp_size": 1,
                "version": "0.5.23",
                "internal_states": [],
                "device": "cpu",
                "sleep_on_idle": True,
            },
            "/openapi.json": {"components": {"schemas": {"ProfileReq": schema}}},
            "/health": 200,
            "POST /start_profile": self.start,
            "POST /stop_profile": self.stop,
        }

    def start(self, handler):
        return 200

    def stop(self, handler):
        asked = next(each for each in reversed(self.asked) if each.path == "/start_profile").json
        write(Path(asked["output_dir"]) / f"{asked.get('profile_id', 'x')}-TP-0.trace.json.gz")
        return 200


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Forget the servers of earlier tests, because ports are used again."""
    monkeypatch.setattr(kind, "_known", {})


@pytest.fixture(params=[VllmLike, SglangLike], ids=["vllm", "sglang"])
def server(request, tmp_path):
    """A server of each kind that answers all requests. Its routes can be changed."""
    like = request.param(tmp_path / "traces")
    with serving(like.routes) as made:
        like.asked = made.asked
        yield SimpleNamespace(
            url=made.url,
            routes=like.routes,
            like=like,
            posts=lambda: [
                asked.path for asked in made.asked if asked.method == "POST" and not begins_nothing(asked)
            ],
            a_start=lambda answer: lambda handler: 200 if begins_nothing(made.asked[-1]) else answer(handler),
        )


def begins_nothing(asked):
    """Return whether a request is SGLang's start for a step that never comes. It shows whether the server
    records.
    """
    return bool(asked.json) and "start_step" in asked.json


@pytest.fixture
def recorded(start):
    """Return a function that records one window over a server; it returns the outcome and the waits."""

    def recorded(server, until=("complete", "partial", "failed", "skipped"), seconds=15.0, **config):
        session = start(steps="2", backend="null", roles={"rollout": {"ranks": "all"}}, **config)
        stepprof.attach(server.url, role="rollout", api_key=KEY, **server.like.options)
        began = time.perf_counter()
        with stepprof.profile_step(2, role="rollout"):
            entered = time.perf_counter() - began
        left = time.perf_counter() - began
        deadline = time.monotonic() + seconds
        while True:
            session.background.round()
            entries = read_entries(session)
            if entries and all(entry.status in until for entry in entries):
                break
            assert time.monotonic() < deadline, entries
            time.sleep(0.02)
        assert KEY not in json.dumps([vars(entry) for entry in entries])
        [entry] = entries
        return SimpleNamespace(entry=entry, entered=entered, left=left, session=session)

    return recorded


class TestServers:
    def test_all_is_well(self, server, recorded):
        """The server gets one start and one stop. Its file is in the step's folder and passes the check."""
        done = recorded(server)
        assert (done.entry.status, done.entry.error, done.entry.health) == ("complete", None, "ok")
        assert [each["path"] for each in done.entry.artifacts] == ["rollout/replica-0/rank-0.trace.json.gz"]
        assert server.posts() == ["/start_profile", "/stop_profile"]
        stepprof.shutdown()
        result = verify_run(done.session.path)
        assert (result.problems, result.engines, result.artifacts) == ([], 1, 1)

    @pytest.mark.parametrize(
        ("status", "health"),
        [(401, "unconfigured"), (403, "unconfigured"), (404, None), (409, None), (500, None)],
    )
    def test_a_start_that_is_refused(self, server, recorded, status, health):
        """The entry has the status and the server's message. Only a start that may have begun is followed
        by a stop.
        """
        server.routes["POST /start_profile"] = (status, {"error": f"no, {KEY} will not do"})
        done = recorded(server)
        assert done.entry.status == "failed"
        assert str(status) in done.entry.error
        assert done.entry.health != "ok"
        assert health in (None, done.entry.health)
        stepprof.shutdown()  # the stop is sent while the body runs
        assert server.posts().count("/start_profile") == (1 if "vllm" in done.entry.kind else 0)
        assert server.posts().count("/stop_profile") == (
            1 if status >= 500 and "vllm" in done.entry.kind else 0
        )

    @pytest.mark.parametrize(
        "described",
        [
            [],
            {"components": []},
            {"components": {"schemas": [1]}},
            {"components": {"schemas": {"ProfileReq": []}}},
            {"components": {"schemas": {"ProfileReq": {"properties": "x"}}}},
            "[" * 200_000,
        ],
    )
    @pytest.mark.parametrize("server", [SglangLike], indirect=True)
    def test_an_invalid_description(self, server, recorded, described):
        """SGLang is not started if its description does not list the arguments of its start."""
        server.routes["/openapi.json"] = described
        done = recorded(server)
        assert (done.entry.status, done.entry.health) == ("failed", "unconfigured")
        assert "does not list the arguments of its start" in done.entry.error
        assert server.posts() == []

    @pytest.mark.parametrize("status", [401, 500])
    def test_a_stop_that_is_refused(self, server, recorded, status):
        """If the server refuses the stop, the entry is failed, has an error and lists no files."""
        server.routes["POST /stop_profile"] = (status, {"error": "no"})
        done = recorded(server)
        assert done.entry.status == "failed"
        assert done.entry.artifacts == []
        assert done.entry.error

    def test_a_start_that_takes_too_long(self, server, recorded):
        """Training waits no longer than the timeout. The late start is stopped at once, and its files are
        kept.
        """
        go = threading.Event()
        server.routes["POST /start_profile"] = server.a_start(lambda _: go.wait(8) and 200)
        threading.Timer(3.0, go.set).start()
        done = recorded(server, until=("partial",), engine_start_timeout_seconds=0.4)
        assert done.entered < 2.5
        assert "beginning of the window is missing" in done.entry.error
        assert server.posts() == ["/start_profile", "/stop_profile"]
        assert len(done.entry.artifacts) == 1

    def test_a_stop_that_takes_too_long(self, server, recorded):
        """Training continues after the timeout. The files still arrive, and the entry becomes complete."""
        stop = server.like.stop
        server.routes["POST /stop_profile"] = lambda handler: time.sleep(3) or stop(handler)
        done = recorded(server, engine_stop_timeout_seconds=0.3)
        assert done.left < 2.5
        assert done.entry.status == "complete"
        assert len(done.entry.artifacts) == 1

    def test_a_server_that_hangs_from_the_first_request(self, server, recorded):
        """Training waits no longer than the timeout, and no start is sent to the server."""
        for path in list(server.routes):
            server.routes[path] = lambda _: time.sleep(4) or 200
        done = recorded(server, engine_start_timeout_seconds=0.5)
        assert done.left < 3.5
        assert (done.entry.status, server.posts()) == ("failed", [])

    def test_a_connection_that_breaks_in_the_start(self, server, recorded):
        """If the connection breaks, the server may have started, so a stop is sent."""

        def lost(handler):
            handler.close_connection = True

        server.routes["POST /start_profile"] = server.a_start(lost)
        done = recorded(server)
        assert (done.entry.status, done.entry.health) == ("failed", "unknown")
        stepprof.shutdown()  # waits for the stop; the window did not wait for it
        assert server.posts() == ["/start_profile", "/stop_profile"]

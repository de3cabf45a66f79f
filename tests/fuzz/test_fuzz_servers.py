"""For any answers of an engine's server or a router, the drivers end in time, with a health and a
reason, and disclose no key.

`FUZZ_SERVERS` and `FUZZ_SEED` in the environment select the number of servers and the seed; `nox -s
fuzz` sets both.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import time

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from serving import serving
from simulated import read_entries

import stepprof
from fuzz.hostile import CANARY, KINDS, USER, Routes
from stepprof.config.options.engine import EngineOptions
from stepprof.redaction.messages import hide
from stepprof.remote.base import EngineFailure, EngineWindow
from stepprof.remote.http import client, kind
from stepprof.run.model import Window

CASES = int(os.environ.get("FUZZ_SERVERS", "100"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
SESSIONS = max(CASES // 40, 1)
"""Number of servers that are tested from `attach` to the manifest."""
REQUEST_SECONDS = 0.1
CASE_SECONDS = 20
"""Time limit of a case: at most fifteen requests of 0.1 s, on a busy machine."""
MORE_KILOBYTES = 256 << 10
"""Kilobytes by which one case may raise the peak memory of the process."""
PARTS = max(CASES // 1000, 1)
"""Several parts, because hypothesis keeps all drawn values until a test ends."""
pytestmark = pytest.mark.timeout(120 + CASES // PARTS)
HEALTHS = ("ok", "busy", "unconfigured", "unreachable", "unknown", "dead")


def fuzzed(cases):
    """Run the requested number of examples. A failure is printed, and the same seed reproduces it."""
    return settings(
        max_examples=cases,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )


@pytest.fixture(scope="module")
def routes():
    """Return the answers of a server that becomes a different server for each case."""
    changing = Routes()
    with serving(changing) as server:
        changing.url = server.url
        changing.asked = server.asked
        yield changing


@pytest.fixture(autouse=True)
def short(monkeypatch, tmp_path):
    """Shorten requests, use the test's folder, and forget servers of other cases."""
    real = client.Client.request

    async def request(self, method, path, json=None, timeout=10.0):
        return await real(self, method, path, json, min(timeout, REQUEST_SECONDS))

    monkeypatch.setattr(client.Client, "request", request)
    monkeypatch.setattr(kind, "_known", {})
    monkeypatch.chdir(tmp_path)


def grown():
    """Return the peak memory of the process in kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Case:
    """One server, from attach to abort. Any exception except `EngineFailure` fails the test."""

    def __init__(self, routes, window, by):
        kind._known.clear()
        routes.asked.clear()
        hide(CANARY, USER)  # the fixture that forgets keys runs between tests and not between cases
        url = (
            routes.url
            if by == "key"
            else routes.url.replace("//", "//" + USER.replace("/", "%2F").replace("+", "%2B") + "@")
        )
        self.driver = kind.HttpKind().connect(url, **({"api_key": CANARY} if by == "key" else {}))
        self.window = window
        self.leaked = routes.leaked

    async def go_through(self):
        drivers = await self.driver.expand()
        assert 1 <= len(drivers) <= 1024
        for driver in drivers[:3]:
            if await self.ended(driver.arm(self.window)):
                await self.ended(driver.clock())
                assert (driver.workers or 1) <= 1 << 16
                if await self.ended(driver.start(self.window)):
                    await self.ended(driver.stop(self.window))
                else:
                    await self.ended(driver.abort())
            await self.ended(driver.close(0.1, 0.1))
            assert not self.leaked(f"{driver!r} {driver.name} {driver.kind} {driver.host}")

    async def ended(self, work):
        try:
            await work
        except EngineFailure as error:
            failure = error
        else:
            return True
        assert failure.health in HEALTHS
        assert 0 < len(str(failure)) <= 2001
        assert not self.leaked(str(failure))
        return False


class TestDrivers:
    @pytest.mark.parametrize("part", range(PARTS))
    def test_drivers_survive_any_answer(self, routes, tmp_path, log, part):
        """Each verb ends within its bounds of time and memory. A failure has a health and a reason,
        and no part of the key is logged.
        """
        loop = asyncio.new_event_loop()
        window = EngineWindow(Window(2, "rollout"), 0, tmp_path, "rollout/replica-0", EngineOptions())
        window.output.mkdir(parents=True)

        @seed(SEED + part)
        @fuzzed(CASES // PARTS)
        @given(st.data())
        def one(data):
            routes.become(data.draw, data.draw(st.sampled_from(sorted(KINDS))))
            by = data.draw(st.sampled_from(["key", "name"]))
            log.clear()
            began, before = time.monotonic(), grown()
            loop.run_until_complete(Case(routes, window, by).go_through())
            assert time.monotonic() - began < CASE_SECONDS
            assert grown() - before < MORE_KILOBYTES
            for line in log:
                assert not any(routes.leaked(str(value)) for value in line.values())

        try:
            one()
        finally:
            for task in asyncio.all_tasks(
                loop
            ):  # a task that shows that the holder of an engine with a failed stop is alive
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()


class TestWindows:
    def test_windows_survive_any_answer(self, routes, start, log):
        """The body runs and no exception is raised. The manifest has a status, a health and a
        reason, without the key.
        """
        session = start(
            steps="every 1",
            backend="null",
            roles={"rollout": {"ranks": "all"}},
            engine_start_timeout_seconds=1,
            engine_stop_timeout_seconds=1,
        )
        steps = iter(range(1, 1_000_000))

        @seed(SEED)
        @fuzzed(SESSIONS)
        @given(st.data())
        def one(data):
            routes.become(data.draw, data.draw(st.sampled_from(sorted(KINDS))))
            step = next(steps)
            kind._known.clear()
            log.clear()
            engine = stepprof.attach(routes.url, role="rollout", api_key=CANARY, workers="127.0.0.1")
            began = time.monotonic()
            with stepprof.profile_step(step, role="rollout"):
                body = True
            stepprof.detach(engine)
            assert body
            assert time.monotonic() - began < CASE_SECONDS
            text = self.manifest(session, step)
            assert not routes.leaked(text)
            assert not any(routes.leaked(str(value)) for line in log for value in line.values())

        one()

    def manifest(self, session, step):
        """Return the entries of a step's engines as soon as they are final."""
        deadline = time.monotonic() + CASE_SECONDS
        while True:
            session.background.round()
            entries = read_entries(session, step)
            if entries and all(entry.status != "lost" or entry.end_unix_ns for entry in entries):
                break
            assert time.monotonic() < deadline, entries
            time.sleep(0.01)
        for entry in entries:
            assert entry.health in HEALTHS
            assert entry.status in ("complete", "joined") or entry.error
        return json.dumps([vars(entry) for entry in entries], default=str, allow_nan=False)

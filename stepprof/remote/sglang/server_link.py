"""Send requests to an SGLang server.

A refused stop is a bare 500, whether the capture has ended by itself, was never started, or failed:
only its files show which. A server that cannot write its trace ends its whole process. So it only
gets a folder that is known to be the same on its host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.interrupts import ours
from stepprof.redaction.messages import quoted
from stepprof.remote.base import EngineFailure
from stepprof.remote.core.engine_files import writers
from stepprof.remote.core.statistics import SGLANG, served
from stepprof.remote.engine_process import ServerProcess
from stepprof.remote.loop import in_thread
from stepprof.remote.sglang.request import Facts

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow
    from stepprof.remote.core.statistics import Sample
    from stepprof.remote.http.client import Client
    from stepprof.remote.http.reply import Reply

START_SECONDS = 600.0
STOP_SECONDS = 3600.0
"""Time limit of a stop: a server writes its files even if the request has timed out."""

_REQUESTS = ("ProfileReqInput", "ProfileReq")
"""The name of the body's schema of a start: before 0.5.15, and since."""


class ServerLink:
    """Requests to one server."""

    runs_loop = False
    loop = None
    answers = True
    late = None

    def __init__(self, client: Client) -> None:
        self.name = client.name
        self.key = client.key
        self.process = ServerProcess(client)
        self._client = client
        self._fields: frozenset[str] | None = None
        self._version: str | None = None
        self._limit: int | None = None
        """Maximum number of requests that its schedulers run at a time, if it reports it."""

    def allow(self, seconds: float) -> None:
        """Do nothing: its event loop is in another process."""

    async def release(self) -> None:
        """Do nothing."""

    def withdraw(self) -> bool:
        """Return False: a start is sent at once."""
        return False

    def describe(self) -> None:
        """Return None: it must be asked for its properties."""

    async def facts(self, window: EngineWindow) -> Facts:
        """Ask for its properties; refuse a folder that it may not have."""
        reported = await self._settings()
        version = str(reported.get("version", ""))
        self._limit = _most_requests(reported)
        if self._fields is None or version != self._version:  # it may have been restarted
            self._fields, self._version = await self._takes(), version
        if window.trace_dir is None:
            await self._require_same_files(reported)
        return Facts.of(
            self.name,
            reported,
            version,
            self._fields,
            answers="with_stack" in self._fields,
            users=writers(await self.process.user()),
        )

    async def records(self, fields: Mapping[str, Any]) -> str | None:
        """Return how a start for a step that never comes is refused: with a 500."""
        reply = await self._client.request("POST", "/start_profile", json=dict(fields), timeout=START_SECONDS)
        if not reply.ok and reply.status != 500:
            raise self._refused(reply, "start")
        return None if reply.ok else f"it answered 500 to such a start: {reply.text}"

    async def statistics(self) -> Sample | None:
        """Return the counters of ``GET /metrics``."""
        found = await served(self._client, SGLANG)
        return None if found is None else replace(found, limit=self._limit)

    async def start(self, fields: Mapping[str, Any]) -> None:
        """Send ``POST /start_profile``: answered when it records."""
        reply = await self._client.request("POST", "/start_profile", json=dict(fields), timeout=START_SECONDS)
        if not reply.ok:
            raise self._refused(reply, "start")

    async def stop(self) -> bool | None:
        """Send ``POST /stop_profile``: answered when the files are written. None: it refused without a reason."""
        try:
            reply = await self._client.request("POST", "/stop_profile", timeout=STOP_SECONDS)
        except EngineFailure as error:
            if await self._is_gone():
                raise EngineFailure(f"{self.name} died while it was recording: {error}", "dead") from error
            raise
        if reply.status == 500:
            return None
        if not reply.ok:
            raise self._refused(reply, "stop")
        return True

    async def _settings(self) -> Mapping[str, Any]:
        """Return its own description; it asks its scheduler for that, so that a dead one is noticed."""
        for path in ("/server_info", "/get_server_info"):
            reply = await self._client.request("GET", path)
            if reply.status != 404:
                break
        if not reply.ok:
            raise self._client.failure(reply, f"GET {path}", "unreachable")
        reported = reply.json()
        if not isinstance(reported, dict):
            raise EngineFailure(f"{self.name} is not an SGLang server: {reply.text}", "unreachable")
        return reported

    async def _takes(self) -> frozenset[str]:
        """Return the fields of the body of its start: it ignores others without a message."""
        reply = await self._client.request("GET", "/openapi.json")
        for name in _REQUESTS:
            properties = reply.table("components", "schemas", name, "properties")
            if properties:
                return frozenset(properties)
        raise EngineFailure(
            f"{self.name} does not list the arguments of its start (GET /openapi.json: {reply.status}); is it an SGLang server?",
            "unconfigured",
        )

    async def _require_same_files(self, reported: Mapping[str, Any]) -> None:
        """Refuse a server that may not see the run's folder, because it could not write there."""
        model = str(reported.get("model_path") or "")
        if not self.process.same_host:
            reason = "runs on another host"
        elif model.startswith("/") and not await in_thread(_exists, model):
            reason = f"has other files than this host (its model {quoted(model, 200)} is not here): in a container, or behind a tunnel"
        else:
            return
        raise EngineFailure(
            f"{self.name} {reason}, and SGLang kills its whole process when it cannot write its trace: name a folder that both see: "
            "attach(…, trace_dir=…)",
            "unconfigured",
        )

    async def _is_gone(self) -> bool:
        """Return whether nothing listens there any longer."""
        try:
            await self._client.request("GET", "/health", timeout=2.0)
        except EngineFailure as error:
            return error.health == "unreachable"
        return False

    def _refused(self, reply: Reply, verb: str) -> EngineFailure:
        return self._client.failure(reply, f"POST /{verb}_profile")


def _most_requests(reported: Mapping[str, Any]) -> int | None:
    """Return the sum of what its schedulers run at a time: its arguments may allow more than its memory."""
    states = reported.get("internal_states")
    if not isinstance(states, list) or not states:
        return None
    each = [
        state.get("effective_max_running_requests_per_dp") if isinstance(state, dict) else None
        for state in states
    ]
    known = [count for count in each if isinstance(count, int) and 0 < count < 1 << 31]
    return sum(known) if len(known) == len(each) else None


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except ours(OSError, ValueError):  # an invalid path
        return False

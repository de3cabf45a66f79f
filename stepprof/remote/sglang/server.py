"""SGLang's servers, spoken to over HTTP.

What only this module knows: what a server tells of itself, and what its answers leave open. A refused stop is a bare 500, whether the
capture has ended by itself, was never begun, or failed: what it wrote has to tell. And a server that dies of what it is asked takes its
whole process with it, so that a folder is only named to it where it is known to be the same there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.redaction import quoted
from stepprof.remote.base import Clock, EngineDriver, EngineFailure, Stopped
from stepprof.remote.core.engine_files import user_of_server, writers
from stepprof.remote.core.owner_slots import FileSlot, beside_runs, digest
from stepprof.remote.loop import in_thread
from stepprof.remote.nsys.engine import Started
from stepprof.remote.nsys.server import NsysServer
from stepprof.remote.sglang.capture import SglangCapture
from stepprof.remote.sglang.request import Facts

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow
    from stepprof.remote.core.owner_slots import Slot
    from stepprof.remote.http.client import Client
    from stepprof.remote.http.reply import Reply

__all__ = ["SglangServer"]

START_SECONDS = 600.0
STOP_SECONDS = 3600.0
"""How long a stop may take: a server that is given up on half-way has written its files all the same."""

_REQUESTS = ("ProfileReqInput", "ProfileReq")
"""What the body of a start is called: before 0.5.15, and since."""


class SglangServer(EngineDriver):
    """Speaks to a server.

    Args:
        client: sends the requests; has the address and the keys.
    """

    kind = "sglang"

    def __init__(self, client: Client) -> None:
        self._client = client
        self._capture = SglangCapture(_ServerLink(client), client.name)
        self.name = client.name
        self.key = client.key
        self.host = client.host

    @property
    def workers(self) -> int | None:
        """How many ranks of its own it has, once it has said so."""
        return self._capture.workers

    async def arm(self, window: EngineWindow) -> None:
        """See that it answers, and would survive what it is going to be asked for."""
        await self._capture.arm(window)
        self.host = self._client.host

    async def start(self, window: EngineWindow) -> None:
        """Begin."""
        await self._capture.start(window)

    async def stop(self, window: EngineWindow) -> Stopped:
        """Stop, and bring its files to the run."""
        return await self._capture.stop(window)

    async def abort(self) -> None:
        """Stop whatever was begun, and throw it away."""
        await self._capture.abort()

    @property
    def writes_to(self) -> Path | None:
        """Where the capture that runs is written."""
        return self._capture.writes_to

    async def close(self, timeout: float, answer_seconds: float) -> None:
        """Stop what is still open, and keep it as partial."""
        await self._capture.close(answer_seconds)

    def retire(self) -> None:
        """Take no more part; what is still open is left to the next driver."""
        self._capture.retire()

    async def clock(self) -> Clock | None:
        """Compare its clock with ours by what HTTP tells of it."""
        from stepprof.remote.http.clock import clock

        return await clock(self._client)


class _ServerLink:
    """Requests to a server."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._nsys = NsysServer(client)
        self._fields: frozenset[str] | None = None
        self._version: str | None = None

    async def facts(self, window: EngineWindow) -> Facts:
        """Ask it what it is; refuse a folder that it may not have."""
        told = await self._told()
        version = str(told.get("version", ""))
        if self._fields is None or version != self._version:  # it may have been started anew
            self._fields, self._version = await self._takes(), version
        if window.trace_dir is None:
            await self._require_same_files(told)
        return Facts.of(
            self._client.name,
            told,
            version,
            self._fields,
            answers="with_stack" in self._fields,
            users=await in_thread(self._users),
        )

    def _users(self) -> frozenset[int] | None:
        """Return whose files count as the server's; None: every user's, as on another host. Blocks."""
        return writers(user_of_server(self._client.address.port)) if self._client.same_host else None

    async def nsys(self, window: EngineWindow) -> Started:
        """How the process that listens there was started under nsys."""
        return await self._nsys.started(window)

    def answers(self) -> bool:
        """Return that a server answers at any time."""
        return True

    def slot(self, window: EngineWindow) -> Slot:
        """Return a file in the folder that is shared with the engine's host; without one, next to the runs."""
        if window.trace_dir is None:
            return beside_runs(window, self._client.key)
        return FileSlot(window.trace_dir / f".stepprof-{digest(self._client.key)}.json")

    async def records(self, fields: Mapping[str, Any]) -> str | None:
        """Return how a start for a step that never comes is refused: with a 500."""
        reply = await self._client.request("POST", "/start_profile", json=dict(fields), timeout=START_SECONDS)
        if not reply.ok and reply.status != 500:
            raise self._refused(reply, "start")
        return None if reply.ok else f"it answered 500 to such a start: {reply.text}"

    async def start(self, fields: Mapping[str, Any]) -> None:
        """``POST /start_profile``: answered when it records."""
        reply = await self._client.request("POST", "/start_profile", json=dict(fields), timeout=START_SECONDS)
        if not reply.ok:
            raise self._refused(reply, "start")

    async def stop(self) -> bool | None:
        """``POST /stop_profile``: answered when the files are written."""
        try:
            reply = await self._client.request("POST", "/stop_profile", timeout=STOP_SECONDS)
        except EngineFailure as error:
            if await self._is_gone():
                raise EngineFailure(
                    f"{self._client.name} died while it was recording: {error}", "dead"
                ) from error
            raise
        if reply.status == 500:
            return None
        if not reply.ok:
            raise self._refused(reply, "stop")
        return True

    def withdraw(self) -> bool:
        """What was sent cannot be taken back."""
        return False

    async def _told(self) -> Mapping[str, Any]:
        """What it tells of itself; it asks its scheduler for that, so that a dead one shows."""
        for path in ("/server_info", "/get_server_info"):
            reply = await self._client.request("GET", path)
            if reply.status != 404:
                break
        if not reply.ok:
            raise self._client.failure(reply, f"GET {path}", "unreachable")
        told = reply.json()
        if not isinstance(told, dict):
            raise EngineFailure(f"{self._client.name} is no SGLang server: {reply.text}", "unreachable")
        return told

    async def _takes(self) -> frozenset[str]:
        """What the body of its start may hold: what it does not know, it leaves out without a word."""
        reply = await self._client.request("GET", "/openapi.json")
        for name in _REQUESTS:
            properties = reply.table("components", "schemas", name, "properties")
            if properties:
                return frozenset(properties)
        raise EngineFailure(
            f"{self._client.name} does not say what its start takes (GET /openapi.json: {reply.status}); is it an SGLang server?",
            "unconfigured",
        )

    async def _require_same_files(self, told: Mapping[str, Any]) -> None:
        """Refuse a server that may not see the run's folder: it would be asked to write where it cannot."""
        model = str(told.get("model_path") or "")
        if not self._client.same_host:
            reason = "runs on another host"
        elif model.startswith("/") and not await in_thread(_exists, model):
            reason = f"has other files than this host (its model {quoted(model, 200)} is not here): in a container, or behind a tunnel"
        else:
            return
        raise EngineFailure(
            f"{self._client.name} {reason}, and SGLang kills its whole process when it cannot write its trace: name a folder that both see: "
            "attach(…, trace_dir=…)",
            "unconfigured",
        )

    async def _is_gone(self) -> bool:
        """Whether nothing listens there any more."""
        try:
            await self._client.request("GET", "/health", timeout=2.0)
        except EngineFailure as error:
            return error.health == "unreachable"
        return False

    def _refused(self, reply: Reply, verb: str) -> EngineFailure:
        return self._client.failure(reply, f"POST /{verb}_profile")


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # no path can be like this
        return False

"""Send requests to a vLLM server, which has the routes of a profiler only if it was started with one.

``GET /start_profile`` is answered with 405 where the route exists, and with 404 where it does not: this changes nothing. The folder of the traces is
``trace_dir`` of the attachment, or the folder that a server of this host names in development mode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from stepprof.remote.base import EngineFailure
from stepprof.remote.core.engine_backends import by_nsys
from stepprof.remote.core.engine_files import check_named_folder, writers
from stepprof.remote.core.statistics import VLLM, served
from stepprof.remote.engine_process import ServerProcess
from stepprof.remote.loop import in_thread
from stepprof.remote.vllm.arguments import Settings
from stepprof.remote.vllm.files import Workers
from stepprof.remote.vllm.folder import TraceFolder
from stepprof.remote.vllm.link import Facts, Link

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow
    from stepprof.remote.core.statistics import Sample
    from stepprof.remote.http.client import Client
    from stepprof.remote.http.reply import Reply

STOP_SECONDS = 3600.0
"""Time limit of a stop: a server writes its files even if the request has timed out."""

START_SECONDS = 600.0

_PER_CAPTURE = (0, 32)
"""The first version whose start accepts limits and a prefix."""

_BODY = frozenset({"profile_prefix", "delay_iterations", "max_iterations"})

_TYPES = {
    "profiler": str,
    "torch_profiler_dir": str,
    "torch_profiler_with_stack": bool,
    "torch_profiler_record_shapes": bool,
    "torch_profiler_activities": list,
    "delay_iterations": int,
    "max_iterations": int,
}

_UNKNOWN_SETTINGS = Settings(folder=None, profiler=None)

_FRONT_END = (
    "a server started without --profiler-config.ignore_frontend=true can crash when it is recorded, and this one does not report its arguments; "
    "serve_args leaves the front end out"
)


class ServerLink(Link):
    """Requests to one server."""

    loop = None
    inside = False
    dead = False
    """Whether it is known to be dead: only a request finds that out."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.name, client.key, f"the server {client.name}")
        self.process = ServerProcess(client)
        self._client = client

    @property
    def elsewhere(self) -> str:
        """Where its traces are."""
        return (
            f"its traces are on {self._client.host}, in the torch_profiler_dir that the server was started with; attach(…, trace_dir=…) names the folder "
            "as it is seen from here"
        )

    def require_alive(self) -> None:
        """Do nothing: see `dead`."""

    def processes(self) -> Workers:
        """Return nothing known: a server reports none of its processes."""
        return Workers()

    async def is_asleep(self) -> bool:
        """Return False: it is unknown."""
        return False

    async def facts(self, window: EngineWindow) -> Facts:
        """Check that it answers and was started with a profiler that the window can use; return its settings."""
        reply = await self._client.request("GET", "/start_profile")
        if reply.status == 404:
            raise self._unconfigured()
        if reply.status != 405:
            raise self._client.failure(reply, "GET /start_profile", "unreachable")
        health = await self._client.request("GET", "/health")
        if health.status == 503:
            raise self._dead(health)
        takes, settings = await self._takes(), await self._ask_settings()
        wanted = "cuda" if by_nsys(window.options) else "torch"
        if settings.profiler not in (None, wanted):
            raise EngineFailure(
                f'{self.called} was started with profiler "{settings.profiler}", and the role\'s backend needs "{wanted}": '
                "start it with stepprof.remote.vllm.serve_args(folder, options)",
                "unconfigured",
            )
        return Facts(settings, takes)

    async def place(self, window: EngineWindow, settings: Settings) -> TraceFolder | None:
        """Return the folder of its traces; None: it is not visible from here. Raises EngineFailure."""
        folder = window.trace_dir
        if folder is None and settings.folder and self.process.same_host:
            folder = Path(settings.folder)
        if folder is None:
            self.warn(self.elsewhere)
            return None
        user = await self.process.user()
        if window.trace_dir is None:
            await in_thread(check_named_folder, folder, user)
        place = TraceFolder(folder, self.key, lambda: True, shared=True, users=writers(user))
        await in_thread(place.prepare)
        if settings.profiler is None and place.link is None:
            self.warn(_FRONT_END)
        return place

    async def statistics(self) -> Sample | None:
        """Return the counters of ``GET /metrics``."""
        return await served(self._client, VLLM)

    async def start(self, given: Mapping[str, object]) -> None:
        """Send ``POST /start_profile``."""
        reply = await self._client.request("POST", "/start_profile", json=given, timeout=START_SECONDS)
        if not reply.ok:
            raise self._refused(reply, "start")

    async def stop(self) -> None:
        """Send ``POST /stop_profile``."""
        await self._post_stop()

    async def leave(self) -> None:
        """Send ``POST /stop_profile`` to a server that may have no such route."""
        await self._post_stop(404)

    async def _post_stop(self, harmless: int | None = None) -> None:
        reply = await self._client.request("POST", "/stop_profile", timeout=STOP_SECONDS)
        if not reply.ok and reply.status != harmless:
            raise self._refused(reply, "stop")

    # -- its properties

    async def _takes(self) -> frozenset[str]:
        """Return the fields of the body of its start. Older versions have none, and ignore a body."""
        reply = await self._client.request("GET", "/version")
        numbers = re.match(r"(\d{1,9})\.(\d{1,9})", str(reply.table().get("version", "")))
        if numbers and (int(numbers[1]), int(numbers[2])) >= (0, 8):
            return _BODY if (int(numbers[1]), int(numbers[2])) >= _PER_CAPTURE else frozenset()
        described = await self._client.request("GET", "/openapi.json")  # built from source: 0.1.dev1
        return frozenset(name for name in _BODY if f'"{name}"'.encode() in described.body)

    async def _ask_settings(self) -> Settings:
        """Return its start arguments, which a server reports only in development mode (VLLM_SERVER_DEV_MODE)."""
        reply = await self._client.request("GET", "/server_info?config_format=json")
        profiler = reply.table("vllm_config", "profiler_config")
        if not profiler:
            return _UNKNOWN_SETTINGS
        if profiler.get("profiler") == "torch" and profiler.get("ignore_frontend") is False:
            raise EngineFailure(
                f"{self.called} was started without ignore_frontend: vLLM's front-end profiler can crash it. Start it with "
                "--profiler-config.ignore_frontend=true, as stepprof.remote.vllm.serve_args does",
                "unconfigured",
            )
        return Settings.of_config(SimpleNamespace(**_believed(profiler)))

    def _refused(self, reply: Reply, verb: str) -> EngineFailure:
        """Return the failure for an answer."""
        doing = f"POST /{verb}_profile"
        if reply.status == 404:
            return self._unconfigured()
        if reply.status == 409:
            return EngineFailure(
                f"another client records {self.called}: it answered 409 to {doing}; it is left alone. If no client does (a job that died may "
                f"have left it so), send POST {self.name}/stop_profile once",
                "busy",
            )
        if "EngineDead" in reply.text or reply.status == 503:
            return self._dead(reply)
        failure = self._client.failure(reply, doing)
        failure.owes_stop = verb == "start" and reply.status >= 500
        return failure

    def _dead(self, reply: Reply) -> EngineFailure:
        return EngineFailure(f"the engine of {self.called} is dead: {reply.text}", "dead")

    def _unconfigured(self) -> EngineFailure:
        return EngineFailure(
            f"{self.called} has no route /start_profile (404): it was started without a profiler, and it cannot be switched on later. Start "
            "it with what stepprof.remote.vllm.serve_args(folder) returns (vllm serve … --profiler-config …; up to vLLM 0.12 with the "
            "variables of environment(folder)) and attach it with trace_dir=folder/engine-1. A server of trl vllm-serve has no such route at all",
            "unconfigured",
        )


def _believed(reported: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a profiler that have the right type."""
    kept: dict[str, Any] = {
        key: value for key, kind in _TYPES.items() if isinstance(value := reported.get(key), kind)
    }
    activities = kept.get("torch_profiler_activities", ())
    if not all(isinstance(name, str) for name in activities) or len(activities) > 8:
        kept.pop("torch_profiler_activities")
    if not kept.get("torch_profiler_dir", "").isprintable():
        kept.pop("torch_profiler_dir")
    return kept

"""A vLLM server, spoken to over HTTP: it has the routes of a profiler only if it was started with one.

What only this module knows: what can be learnt of a server without changing it (``GET /start_profile`` is 405 where the route exists
and 404 where it does not), and which of its answers mean what. Where its traces lie is not among that: ``trace_dir`` of the
attachment says it, or the server itself if it runs in development mode on this host.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from stepprof.log import logger
from stepprof.remote.base import EngineDriver, EngineFailure, Stopped
from stepprof.remote.core.engine_backends import by_nsys, refuse_backends
from stepprof.remote.core.engine_files import check_named_folder, user_of_server, writers
from stepprof.remote.core.owner_slots import beside_runs
from stepprof.remote.core.ownership import Hold
from stepprof.remote.loop import in_thread
from stepprof.remote.nsys.engine import NsysPart
from stepprof.remote.nsys.server import NsysServer
from stepprof.remote.vllm.arguments import Settings
from stepprof.remote.vllm.capabilities import bound_of, differences, outcome, start_arguments
from stepprof.remote.vllm.files import Workers, bring
from stepprof.remote.vllm.folder import Session, TraceFolder, new_prefix

if TYPE_CHECKING:
    from stepprof.remote.base import Clock, EngineWindow
    from stepprof.remote.core.owner_slots import Finisher, Held
    from stepprof.remote.http.client import Client
    from stepprof.remote.http.reply import Reply

__all__ = ["VllmServer"]

STOP_SECONDS = 3600.0
"""How long a stop may take: a server that is given up on half-way has written its files all the same."""

START_SECONDS = 600.0

_PER_CAPTURE = (0, 32)
"""The version from which on bounds and a prefix can be given with each start."""

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

_NOT_TOLD = Settings(folder=None, profiler=None)

_FRONT_END = (
    "a server started without --profiler-config.ignore_frontend=true can crash when it is recorded, and this one does not say how it was started; "
    "serve_args leaves the front end out"
)


class VllmServer(EngineDriver):
    """Speaks to a server.

    Args:
        client: sends the requests; has the address and the keys.
    """

    kind = "vllm"

    def __init__(self, client: Client) -> None:
        self._client = client
        self._prefix = new_prefix()
        self._place: TraceFolder | None = None
        self._session: Session | None = None
        self._nsys = NsysServer(client)
        self._part: NsysPart | None = None
        self._known: frozenset[str] = frozenset()
        self._settings = _NOT_TOLD
        self._told: set[str] = set()
        self.name = client.name
        self.key = client.key
        self.host = client.host
        self._hold = Hold(f"the server {self.name}")

    async def arm(self, window: EngineWindow) -> None:
        """See that it answers, was started with a profiler, takes the bounds, and that its folder can be used."""
        reply = await self._client.request("GET", "/start_profile")
        if reply.status == 404:
            raise self._unconfigured()
        if reply.status != 405:
            raise self._client.failure(reply, "GET /start_profile", "unreachable")
        self.host = self._client.host
        health = await self._client.request("GET", "/health")
        if health.status == 503:
            raise EngineFailure(f"the engine of the server {self.name} is dead: {health.text}", "dead")
        self._known = await self._takes()
        self._settings = await self._ask_settings()
        refuse_backends(self.kind, window.options, self.name)
        self._refuse_other_profiler(window)
        start_arguments(window, self._settings, self._known, self._prefix)
        for line in differences(window, self._settings, self._known):
            self._tell(line)
        self._place = await self._find_place(window)
        if self._hold.held is None:
            self._hold.slot = beside_runs(window, self.key) if self._place is None else self._place.slot
        await self._hold.settle(self._finisher)

    async def _find_place(self, window: EngineWindow) -> TraceFolder | None:
        """Return the folder of its traces; None: it cannot be seen from here, or holds none. Raises EngineFailure."""
        if by_nsys(window.options):
            return None
        folder = self._folder(window)
        if folder is None:
            self._tell(self._elsewhere())
            return None
        user = await in_thread(user_of_server, self._client.address.port) if self._client.same_host else None
        if window.trace_dir is None:
            await in_thread(check_named_folder, folder, user)
        place = TraceFolder(folder, self.key, lambda: True, shared=True, users=writers(user))
        await in_thread(place.prepare)
        if self._settings.profiler is None and place.link is None:
            self._tell(_FRONT_END)
        return place

    async def start(self, window: EngineWindow) -> None:
        """Lead its folder to this window, and start it."""
        place = self._place
        given = start_arguments(window, self._settings, self._known, self._prefix)
        await self._hold.settle(self._finisher)
        session = Session(Path()) if place is None else await in_thread(place.begin, window)
        noted = {"prefix": self._prefix, **({} if place is None else place.note(session))}
        try:
            await self._hold.take(window, state=noted)
            await self._begin(window, session, given)
        except BaseException as error:
            if not getattr(error, "owes_stop", True):
                await self._hold.give()
                if place is not None:
                    await in_thread(place.end, session)
            raise

    async def _begin(self, window: EngineWindow, session: Session, given: Mapping[str, object]) -> None:
        if by_nsys(window.options):
            started = await self._nsys.started(window)
            self._part = await NsysPart.begin(window, started, lambda: self._send_start(given))
            return
        if self._place is not None:
            await in_thread(self._place.lead, session)
        try:
            await self._send_start(given)
        except EngineFailure as error:
            if error.owes_stop:
                self._session = session
            raise
        self._session = session

    async def stop(self, window: EngineWindow) -> Stopped:
        """Stop it, and take what it wrote, where that can be seen from here."""
        return await self._hold.stop(window, lambda: self._stop(window), self._forget)

    async def _stop(self, window: EngineWindow) -> Stopped:
        if self._part is not None:
            stopped = await self._part.end(self._send_stop)
            self._part = None
            await self._hold.give()
            return stopped
        return await self._end(window, send=True)

    async def finish(self, window: EngineWindow) -> Stopped:
        """End a capture whose stop failed, or never came; it is left alone where another stop has ended it."""
        place, session = self._place, self._session
        if by_nsys(window.options):
            await self._leave()
            self._forget()
            await self._hold.give()
            return Stopped()
        over = (
            place is not None
            and session is not None
            and await in_thread(place.is_over, session, window, self._prefix)
        )
        return await self._end(window, send=not over)

    async def _end(self, window: EngineWindow, *, send: bool) -> Stopped:
        session, place = self._session, self._place
        if session is None:
            raise EngineFailure("stop without start: nothing was sent to the server", "ok")
        early = place is not None and bool(await in_thread(place.traces, session, self._prefix))
        sent_ns = time.time_ns()
        failure: EngineFailure | None = None
        try:
            if send:
                await self._send_stop()
        except EngineFailure as error:
            failure = error  # it may still be open: the next start stops it first
        if failure is None:
            self._session = None
            await self._hold.give()
        if place is None:
            if failure is not None:
                raise failure
            return Stopped(partial=self._elsewhere())
        over = failure is None
        brought = await in_thread(lambda: bring(place, session, window, self._prefix, Workers(), over=over))
        if failure is not None:
            if brought.artifacts:  # what a bound of its own had ended before
                return Stopped(tuple(brought.artifacts), partial=str(failure))
            raise failure
        if self._client.same_host:
            early = early or any(written < sent_ns for written in brought.written_ns)
        bound = bound_of(window, self._settings, self._known)
        return outcome(window, brought, Workers(), early=early, asleep=False, name=self.name, bound=bound)

    async def abort(self) -> None:
        """Stop what was begun here, and throw it away. Another driver's capture goes on."""
        if self._hold.held is None:
            return
        if not await self._hold.is_taken():
            await self._leave()
        session = self._session
        self._forget()
        await self._hold.give()
        if self._place is not None and session is not None:
            await in_thread(self._place.discard, session, self._prefix)

    @property
    def writes_to(self) -> Path | None:
        """Where the capture that runs is written, if that can be seen from here."""
        return None if self._session is None or self._place is None else self._session.folder

    async def close(self, timeout: float, answer_seconds: float) -> None:
        """Stop what is still open, and keep it as partial; another driver may have the engine then."""
        await self._hold.close(self._finisher, answer_seconds)

    def retire(self) -> None:
        """Take no more part; what is still open is left to the next driver."""
        self._hold.retire()

    def _finisher(self, held: Held) -> Finisher:
        """Return what can end a capture: this driver its own, another one that of a driver that is gone."""
        if held is self._hold.held:
            return self
        made = VllmServer(self._client)
        made._prefix, made._place = held.state["prefix"], self._place
        made._known, made._settings = self._known, self._settings
        made._session = Session(Path())
        if self._place is not None:
            made._session = self._place.again(held.state, made._prefix)
        made._hold = Hold.of(self.name, self._hold.slot, held)
        return made

    async def clock(self) -> Clock | None:
        """Compare its clock with ours by what HTTP tells of it."""
        from stepprof.remote.http.clock import clock

        return await clock(self._client)

    def _forget(self) -> None:
        part, self._part, self._session = self._part, None, None
        if part is not None:
            part.abandon()

    async def _send_start(self, given: Mapping[str, object]) -> None:
        reply = await self._client.request("POST", "/start_profile", json=given, timeout=START_SECONDS)
        if not reply.ok:
            raise self._refused(reply, "start")

    async def _send_stop(self) -> None:
        reply = await self._client.request("POST", "/stop_profile", timeout=STOP_SECONDS)
        if not reply.ok:
            raise self._refused(reply, "stop")

    # -- what can be learnt of it

    async def _takes(self) -> frozenset[str]:
        """What its start takes in a body. Older ones have none: what is sent is ignored."""
        reply = await self._client.request("GET", "/version")
        numbers = re.match(r"(\d{1,9})\.(\d{1,9})", str(reply.table().get("version", "")))
        if numbers and (int(numbers[1]), int(numbers[2])) >= (0, 8):
            return _BODY if (int(numbers[1]), int(numbers[2])) >= _PER_CAPTURE else frozenset()
        described = await self._client.request("GET", "/openapi.json")  # built from source: 0.1.dev1
        return frozenset(name for name in _BODY if f'"{name}"'.encode() in described.body)

    async def _ask_settings(self) -> Settings:
        """How it was started: it tells only in development mode (VLLM_SERVER_DEV_MODE)."""
        reply = await self._client.request("GET", "/server_info?config_format=json")
        profiler = reply.table("vllm_config", "profiler_config")
        if not profiler:
            return _NOT_TOLD
        if profiler.get("profiler") == "torch" and profiler.get("ignore_frontend") is False:
            raise EngineFailure(
                f"the server {self.name} was started without ignore_frontend: vLLM's front-end profiler can crash it. Start it with "
                "--profiler-config.ignore_frontend=true, as stepprof.remote.vllm.serve_args does",
                "unconfigured",
            )
        return Settings.of_config(SimpleNamespace(**_believed(profiler)))

    def _refuse_other_profiler(self, window: EngineWindow) -> None:
        """Refuse a server that says that it was started for another profiler than is asked for. Raises EngineFailure."""
        wanted = "cuda" if by_nsys(window.options) else "torch"
        if self._settings.profiler not in (None, wanted):
            raise EngineFailure(
                f'the server {self.name} was started with profiler "{self._settings.profiler}", and the role\'s backend asks for "{wanted}": '
                "start it with stepprof.remote.vllm.serve_args(folder, options)",
                "unconfigured",
            )

    def _folder(self, window: EngineWindow) -> Path | None:
        """Where its traces can be found from here; None: the caller did not say."""
        if window.trace_dir is not None:
            return window.trace_dir
        if self._settings.folder and self._client.same_host:
            return Path(self._settings.folder)
        return None

    # -- what it says

    async def _leave(self) -> None:
        reply = await self._client.request("POST", "/stop_profile", timeout=STOP_SECONDS)
        if not reply.ok and reply.status != 404:
            raise self._refused(reply, "stop")

    def _refused(self, reply: Reply, verb: str) -> EngineFailure:
        """The failure that an answer amounts to."""
        doing = f"POST /{verb}_profile"
        if reply.status == 404:
            return self._unconfigured()
        if reply.status == 409:
            return EngineFailure(
                f"another client records the server {self.name}: it answered 409 to {doing}; it is left alone. If none does (a job that died may "
                f"have left it so), send POST {self.name}/stop_profile once",
                "busy",
            )
        if "EngineDead" in reply.text or reply.status == 503:
            return EngineFailure(f"the engine of the server {self.name} is dead: {reply.text}", "dead")
        failure = self._client.failure(reply, doing)
        failure.owes_stop = verb == "start" and reply.status >= 500
        return failure

    def _unconfigured(self) -> EngineFailure:
        return EngineFailure(
            f"the server {self.name} has no route /start_profile (404): it was started without a profiler, and it cannot be switched on later. Start "
            "it with what stepprof.remote.vllm.serve_args(folder) returns (vllm serve … --profiler-config …; up to vLLM 0.12 with the "
            "variables of environment(folder)) and attach it with trace_dir=folder/engine-1. A server of trl vllm-serve has no such route at all",
            "unconfigured",
        )

    def _elsewhere(self) -> str:
        return (
            f"its traces are on {self.host}, in the torch_profiler_dir that the server was started with; attach(…, trace_dir=…) names the folder where "
            "it can be seen from here"
        )

    def _tell(self, reason: str) -> None:
        if reason not in self._told:
            self._told.add(reason)
            logger.warning("engine.limited", name=self.name, reason=reason)


def _believed(told: Mapping[str, Any]) -> dict[str, Any]:
    """What a server says of its profiler, as far as it is of the right type."""
    kept: dict[str, Any] = {
        key: value for key, kind in _TYPES.items() if isinstance(value := told.get(key), kind)
    }
    activities = kept.get("torch_profiler_activities", ())
    if not all(isinstance(name, str) for name in activities) or len(activities) > 8:
        kept.pop("torch_profiler_activities")
    if not kept.get("torch_profiler_dir", "").isprintable():
        kept.pop("torch_profiler_dir")
    return kept

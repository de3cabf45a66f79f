"""Identify the server at a URL, and use the driver of its kind.

A URL does not show which server answers. So a driver is made without a request, and asks before a
window. It stays the same driver if the server is restarted, or turns out to be of another kind. A
router records nothing itself: its current workers replace it.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from stepprof.errors import ConfigError
from stepprof.log import logger
from stepprof.remote.base import EngineDriver, EngineFailure
from stepprof.remote.http.client import Client
from stepprof.remote.http.reply import Reply
from stepprof.remote.http.workers import Choice, Hosts
from stepprof.remote.kinds import check_options
from stepprof.untraced import untraced

if TYPE_CHECKING:
    from pathlib import Path

    from stepprof.remote.base import Clock, EngineWindow, Stopped

__all__ = ["Client", "HttpKind", "HttpServer", "Reply", "expand", "identify"]

ROUTER = "sglang-router"
SERVERS = {
    "vllm": "stepprof.remote.vllm.driver:VllmDriver",
    "sglang": "stepprof.remote.sglang.driver:SglangDriver",
}
KINDS = (*SERVERS, ROUTER)
OWN_OPTIONS = ("api_key", "admin_key", "ca_file", "workers")
PROBE_SECONDS = 3.0
EXPAND_SECONDS = 1.0
MOST_LOGGED = 8
"""Number of refused workers of one router that are logged one by one."""

_ADDRESS = re.compile(r"\s*https?://", re.IGNORECASE)
_HOST_AND_PORT = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):\d{1,5}")
"""The form in which frameworks keep the addresses of their servers."""
_WITH_RANK = re.compile(r"@\d+$")
_known: dict[str, str] = {}
"""The last known kind of each server, by its key: a callable may return the same URL again and again."""


class HttpKind:
    """Recognises URLs."""

    def recognises(self, target: object) -> bool:
        """Return whether it is the address of a server, with or without its scheme."""
        return isinstance(target, str) and (bool(_ADDRESS.match(target)) or "://" not in target)

    def connect(self, target: object, **options: object) -> EngineDriver:
        """Return a driver, without contacting the server. Raises ConfigError for an invalid address and for unknown options."""
        url = str(target).strip()
        if _HOST_AND_PORT.fullmatch(url):
            url = f"http://{url}"
        if not _ADDRESS.match(url):
            shown = url.rpartition("@")[2]  # everything before the @ may be a password
            raise ConfigError.at("target", shown, f'not a URL; did you mean "http://{shown}"?')
        kind, name = options.pop("kind", None), options.pop("name", None)
        if kind not in (None, "engine", *KINDS):
            raise ConfigError.at("kind", kind, f"must be one of {', '.join(KINDS)} for a URL, or omitted")
        own = {key: cast("Any", options.pop(key)) for key in OWN_OPTIONS if key in options}
        check_options(dict.fromkeys(options, "…"), OWN_OPTIONS, "a server")  # a misspelt value may be a key
        hosts = Hosts.parse(own.pop("workers")) if "workers" in own else None
        stated = str(kind) if kind in KINDS else None
        return HttpServer(Client(url, **own), stated, None if name is None else str(name), hosts)


class HttpServer(EngineDriver):
    """A server, driven by the driver of its kind.

    Args:
        client: speaks to it.
        kind: its kind; None: the server is asked.
        name: its name; None: its URL without secrets.
        hosts: the hosts on which workers of a router are followed; None: no host.
    """

    def __init__(
        self,
        client: Client,
        kind: str | None = None,
        name: str | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        self._client = client
        self._stated = kind
        self._driver: EngineDriver | None = None
        self._hosts = hosts or Hosts()
        self._workers: dict[str, HttpServer] = {}
        self._refused: Mapping[str, str] = {}
        self._logged: set[str] = set()
        self._asking: asyncio.Future[None] | None = None
        self._doubted = False
        self.name = name or client.name
        self.key = client.key

    def __repr__(self) -> str:
        return f"<HttpServer {self.kind} {self.name}>"

    @property
    def kind(self) -> str:  # type: ignore[override]
        """Return ``vllm`` or ``sglang``; ``http`` until it has answered."""
        return self._stated or _known.get(self.key, "http")

    @property
    def host(self) -> str | None:  # type: ignore[override]
        """Return its host."""
        return self._client.host if self._driver is None else self._driver.host or self._client.host

    @property
    def workers(self) -> int | None:
        """Return the number of the engine's own ranks, if it has reported it."""
        return None if self._driver is None else self._driver.workers

    async def expand(self) -> Sequence[EngineDriver]:
        """Return itself, or the current workers of a router. Raises nothing: a server that does not
        answer fails when it is armed.

        A server that hangs delays the others only for a moment; its later answer counts the next
        time.
        """
        if self.kind in ("http", ROUTER):
            if self._asking is None or self._asking.done():
                self._asking = asyncio.ensure_future(self._look())
            await asyncio.wait({self._asking}, timeout=EXPAND_SECONDS)
        return list(self._workers.values()) or [self]

    async def _look(self, *, follows: bool = True) -> None:
        """Identify the server, and the workers of a router with their kinds. If a server does not
        answer, its last known kind stays. A worker that is a router is not followed further.
        """
        choice = Choice()
        try:
            if await self._identified() == ROUTER and follows:
                choice = Choice.among(await expand(self._client), self._hosts)
        except EngineFailure as error:
            logger.debug("engine.query_failed", name=self.name, reason=str(error))
            return
        before = self._workers
        self._workers = {url: before.get(url) or HttpServer(self._client.for_url(url)) for url in choice.urls}
        self._log_refused(choice.refused)
        new = [worker for worker in self._workers.values() if worker.kind == "http"]
        await asyncio.gather(*(worker._look(follows=False) for worker in new))

    def _log_refused(self, refused: Mapping[str, str]) -> None:
        """Log each worker that is not followed once, up to a limit."""
        self._refused = refused
        new = [url for url in refused if url not in self._logged][: MOST_LOGGED - len(self._logged)]
        self._logged.update(new)
        for url in new:
            logger.warning(
                "worker.refused", name=self.name, worker=url, reason=refused[url], refused=len(refused)
            )

    async def arm(self, window: EngineWindow) -> None:
        """Identify the server if its kind is unknown, then arm with the driver of its kind."""
        kind = await self._identified()
        if kind == ROUTER:
            raise self._without_workers()
        self._doubted = True  # until it has armed: a restarted server may be of another kind
        await self._as(kind).arm(window)
        self._doubted = False

    def _without_workers(self) -> EngineFailure:
        for url, reason in self._refused.items():
            return EngineFailure(
                f"{self.name} is a router, and none of its workers is followed ({len(self._refused)} refused). {url}: {reason}",
                "unconfigured",
            )
        return EngineFailure(
            f"{self.name} is a router without a worker: attach the engines' own addresses", "unreachable"
        )

    async def start(self, window: EngineWindow) -> None:
        """Begin the capture."""
        await self._as(await self._identified()).start(window)

    async def stop(self, window: EngineWindow) -> Stopped:
        """End the capture."""
        return await self._as(self.kind).stop(window)

    async def abort(self) -> None:
        """Leave any state; a server that was never armed has none."""
        if self._driver is not None:
            await self._driver.abort()

    @property
    def writes_to(self) -> Path | None:
        """Return the folder that the running capture is written to."""
        return None if self._driver is None else self._driver.writes_to

    async def close(self, timeout: float, answer_seconds: float) -> None:
        """Stop what is still open, and keep it as partial."""
        if self._driver is not None:
            await self._driver.close(timeout, answer_seconds)

    def retire(self) -> None:
        """Leave; anything open is left to the next driver."""
        if self._driver is not None:
            self._driver.retire()

    async def clock(self) -> Clock | None:
        """Return the clock of this host if the server is here; None: not known."""
        return None if self._driver is None else await self._driver.clock()

    async def _identified(self) -> str:
        if self._stated is None and (self._doubted or self.key not in _known):
            _known[self.key] = await identify(self._client)
        return self.kind

    def _as(self, kind: str) -> EngineDriver:
        """Return the driver of that kind, made at its first use."""
        if self._driver is None or self._driver.kind != kind:
            module, _, name = SERVERS[kind].partition(":")
            found: EngineDriver = getattr(untraced(partial(importlib.import_module, module)), name).of_server(
                self._client
            )
            self._driver = found
        return self._driver


async def identify(client: Client) -> str:
    """Return the kind of the server at a URL: ``vllm``, ``sglang`` or ``sglang-router``.

    Raises:
        EngineFailure: it cannot be reached, needs a key, or is of another kind.
    """
    seen = []
    for path, kind_of in (
        ("/version", _as_vllm),
        ("/workers", _as_router),
        ("/list_workers", _as_router),
        ("/server_info", _as_server),
        ("/get_server_info", _as_server),
    ):
        reply = await client.request("GET", path, timeout=PROBE_SECONDS)
        if reply.status in (401, 403):
            raise client.failure(reply, f"GET {path}")
        content = reply.json() if reply.ok else None
        kind = kind_of(content) if isinstance(content, dict) else None
        if kind is not None:
            return kind
        seen.append(f"{path} {reply.status}")
    answered = f"{client.name} answers, but not as vLLM, SGLang or a router ({', '.join(seen)})"
    if client.address.path.endswith("/v1"):
        raise EngineFailure(
            f"{answered}: attach the address of the server itself, {client.name.removesuffix('/v1')}, without /v1",
            "unconfigured",
        )
    raise EngineFailure(f'{answered}; if it is one, say which: attach(…, kind="vllm")', "unconfigured")


async def expand(client: Client) -> list[object]:
    """Return the URLs of the workers that a router lists, each engine once; workers behind gRPC
    cannot record and are omitted.

    Raises:
        EngineFailure: it cannot be reached, or lists none.
    """
    for path in ("/workers", "/list_workers"):
        reply = await client.request("GET", path, timeout=PROBE_SECONDS)
        if reply.status in (401, 403):
            raise client.failure(reply, f"GET {path}")
        content = reply.json() if reply.ok else None
        if isinstance(content, dict) and _as_router(content):
            return _urls(content)
    raise client.failure(reply, "GET /workers")


def _urls(content: Mapping[str, Any]) -> list[object]:
    listed = content.get("workers", content.get("urls"))
    urls = (entry.get("url") if isinstance(entry, dict) else entry for entry in listed or ())
    # a router that knows of data parallelism lists one URL for each rank of an engine
    plain = (
        _WITH_RANK.sub("", url).rstrip("/") if isinstance(url, str) else f"<{type(url).__name__}>"
        for url in urls
    )
    return [url for url in dict.fromkeys(plain) if not url.lower().startswith("grpc")]


def _as_vllm(content: Mapping[str, Any]) -> str | None:
    return "vllm" if isinstance(content.get("version"), str) else None


def _as_router(content: Mapping[str, Any]) -> str | None:
    listed = content.get("workers", content.get("urls"))
    return ROUTER if isinstance(listed, list) else None


def _as_server(content: Mapping[str, Any]) -> str | None:
    if "vllm_config" in content:
        return "vllm"
    return "sglang" if "internal_states" in content or "tp_size" in content else None

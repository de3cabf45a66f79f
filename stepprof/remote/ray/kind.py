"""Recognise the handles of Ray actors, connect drivers to them, and end the attachments at exit.

A driver (`stepprof.remote.ray.driver`) only forwards calls. In the actor's process,
`stepprof.remote.ray.inside.entry` finds the engine and runs the driver that would run here, or
makes the actor's own session follow. At interpreter exit Ray ends before stepprof, but after exit
handlers that were registered later than Ray's.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import sys
from typing import Any

from stepprof.errors import ConfigError
from stepprof.recording import exit_handlers
from stepprof.remote.base import EngineDriver
from stepprof.remote.kinds import check_options
from stepprof.remote.loop import remote_loop
from stepprof.remote.ray.driver import CLOSE_SECONDS, ActorDriver, agents, drivers

OPTIONS = (
    "kind",
    "find",
    "name",
    "rank",
    "world_size",
    "fetch",
    "fetch_bytes",
    "output_dir",
    "engine_options",
)

_HANDLE = "ray.actor.ActorHandle"
_CLIENT = "ray.util.client.common.ClientActorHandle"


class RayKind:
    """Recognises actors' handles."""

    def recognises(self, target: object) -> bool:
        """Return whether it is an actor's handle, of Ray or of Ray Client."""
        names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(target).__mro__}
        return not names.isdisjoint((_HANDLE, _CLIENT))

    def connect(self, target: object, **options: Any) -> EngineDriver:
        """Return a driver for the actor.

        Args:
            target: its handle.
            options: ``kind``: "engine", "rank" or "spans"; None: "engine". ``find``: the attribute
                path of the engine, or a callable that takes the actor's instance; None: the one
                attribute that is an engine. ``rank``, ``world_size``: of a trainer; None:
                its own values, else its number among those attached. ``output_dir``: where the actor's host keeps its files, if
                not in the run's folder. ``fetch`` (True) and ``fetch_bytes`` (256 MiB): whether files that are not visible here are
                fetched, and up to which size. ``engine_options``: for the engine's own driver, such as ``api_key``.

        Raises:
            ConfigError: an option is unknown or wrong.
        """
        if f"{type(target).__module__}.{type(target).__qualname__}" == _CLIENT:
            raise ConfigError(
                "attach: the handle is one of Ray Client, over which a function cannot be run in an actor; run the driver of the job inside "
                "the cluster (ray job submit), or attach the engine by its URL"
            )
        check_options(options, OPTIONS, "a Ray actor")
        kind = options.get("kind") or "engine"
        if kind not in ("engine", "rank", "spans"):
            raise ConfigError.at("kind", kind, 'expected "engine", "rank", "both" or "spans"')
        if kind == "spans" and options.get("find") is not None:
            raise ConfigError.at(
                "find",
                options["find"],
                'only applies to an engine; did you mean kind = "engine" or kind = "both"?',
            )
        _drain_before_ray()
        made = ActorDriver(target, kind, options)
        drivers.add(made)
        return made


# -- the end


@functools.cache
def _drain_before_ray() -> None:
    """End the session before Ray ends: handlers run last to first, and Ray registered its own when it was imported."""
    atexit.register(_drain)


def _drain() -> None:
    """End the session at exit, then every attachment, while Ray is still running."""
    exit_handlers._at_exit()
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or not drivers:
        return
    concurrent.futures.wait([remote_loop().submit(_close_all())], timeout=CLOSE_SECONDS)


async def _close_all() -> None:
    closing = (driver.close(CLOSE_SECONDS, driver.stop_seconds) for driver in list(drivers))
    await asyncio.gather(*closing)
    agents.close()

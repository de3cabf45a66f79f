"""Call an SGLang engine of this process, on the event loop where each call is answered.

A task on the loop that the engine was first used on reads the answers of SGLang's scheduler. So a call on another loop is never answered, and a first call on another loop ties the
engine to that loop: code that generates then waits for ever. Hence:

* an engine that has been used is called on its loop; if that loop runs (asynchronous use), nothing more is needed;
* if it does not run (a synchronous ``Engine`` between two calls), a thread of stepprof runs it until the answer is there, for less than the caller's time-out: the caller waits
  meanwhile, and would find its loop busy afterwards;
* an engine that has not been used is started with its first use: the first steps of that first window may be missing.

So the thread that generates enters and exits the windows around a synchronous ``Engine``. No call is cancelled: after that, 0.5.16 and older answer each call with the answer of the one before.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepprof.interrupts import ours
from stepprof.remote.base import EngineFailure
from stepprof.remote.core.engine_files import writers
from stepprof.remote.core.statistics import SGLANG, metrics_of
from stepprof.remote.engine_process import OwnProcess
from stepprof.remote.loop import in_thread, running_loop
from stepprof.remote.sglang.loop_runs import runs_of
from stepprof.remote.sglang.request import Facts, refuse_environment

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow
    from stepprof.remote.core.statistics import Sample

LOOK_SECONDS = 0.02
"""How often the engine's life is checked while a call waits for its answer and does not run the loop."""

FIRST_USE_SECONDS = 0.002
"""How often an unused engine is checked while a window waits for it."""

NOT_RECORDING = "not in progress"
"""SGLang's answer to a stop without a start."""

LATE = "the engine had never been used before this window: its first forward steps may be missing"


class ObjectLink:
    """Calls to an ``Engine`` or a ``TokenizerManager``."""

    runs_loop = True
    """Whether a call may run the engine's event loop."""

    def __init__(self, engine: object, name: str) -> None:
        self._manager: Any = getattr(engine, "tokenizer_manager", engine)
        self.name = name
        self.key = f"object:{id(engine)}"
        self.process = OwnProcess(f"object:{id(self._manager)}")
        self._own_loop: asyncio.AbstractEventLoop | None = getattr(engine, "loop", None)
        self._attached_on = running_loop()
        self._first: _FirstUse | None = None
        self._runs = runs_of(self._manager)

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that it was first used on; until then, the loop of the code that attached it."""
        return self.home() or self._attached_on

    def allow(self, seconds: float) -> None:
        """For this many seconds from now on, calls may run the engine's loop themselves if it is not running.

        0: they may not, because the caller may use the engine at any moment.
        """
        self._runs.allow(seconds)

    async def release(self) -> None:
        """Run the engine's loop no longer, for any call: the caller continues, and may run it at once."""
        await self._runs.release()

    @property
    def answers(self) -> bool:
        """Whether a call would be answered without running the engine's loop from here."""
        home = self.home()
        return home is None or home.is_running() or self._runs.seconds_left > 0

    def home(self) -> asyncio.AbstractEventLoop | None:
        """Return the loop on which its answers are read; None: it has not been used."""
        loop: asyncio.AbstractEventLoop | None = getattr(self._manager, "event_loop", None)
        if loop is not None:
            return loop
        for task in tuple(getattr(self._manager, "asyncio_tasks", None) or ()):  # 0.4.6
            first: asyncio.AbstractEventLoop = task.get_loop()
            return first
        own = self._own_loop  # made inside a running loop, it will be used on that loop
        return own if own is not None and own.is_running() else None

    @property
    def late(self) -> str | None:
        """Why a capture that began with the engine's first use may be incomplete."""
        return None if self._first is None else LATE

    def describe(self) -> Facts:
        """Return the engine's properties, from its arguments and the signature of its start."""
        args = getattr(self._manager, "server_args", None)
        known = {
            key: getattr(args, key, None)
            for key in ("device", "sleep_on_idle", "tp_size", "pp_size", "dp_size", "enable_dp_attention")
        }
        answers = inspect.iscoroutinefunction(getattr(self._manager, "stop_profile", None))
        return Facts.of(
            self.name,
            known,
            _version(),
            _fields(self._manager),
            answers=answers,
            users=writers(os.geteuid()),
        )

    async def facts(self, window: EngineWindow) -> Facts:
        """Return its properties. Raises EngineFailure: it must not be started."""
        refuse_environment()
        if not callable(getattr(self._manager, "start_profile", None)):
            raise EngineFailure(
                f"{self.name} has no tokenizer manager in this process (SGLang's Rust server or gRPC mode): attach the URL of its server",
                "unconfigured",
            )
        self._require_alive()
        home = self.home()
        if home is not None and home.is_closed():
            raise EngineFailure(
                f"the event loop that {self.name} was first used on is closed: no call to it is answered any more",
                "dead",
            )
        return self.describe()

    def _require_alive(self) -> None:
        """Raise EngineFailure if a process of the engine has died: a dead scheduler leaves calls open for ever. SGLang knows its processes since 0.5.10."""
        watchdog = getattr(self._manager, "_subprocess_watchdog", None)
        for process in getattr(watchdog, "_processes", None) or ():
            if process.exitcode not in (None, 0):
                raise EngineFailure(
                    f"a process of {self.name} has died ({process.name}, pid {process.pid}, exit code {process.exitcode}); SGLang ends its "
                    "whole process at the next use: build a new engine",
                    "dead",
                )

    async def statistics(self) -> Sample | None:
        """Return the counters that its processes keep in their common folder; None: it was built without ``enable_metrics``."""
        args = getattr(self._manager, "server_args", None)
        folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        if not getattr(args, "enable_metrics", False) or not folder:
            return None
        found = metrics_of(SGLANG, await in_thread(_counted, folder))
        pending = getattr(self._manager, "rid_to_state", None)
        if found is None:
            return None
        # a counter without a value has not counted anything yet
        counts = {**dict.fromkeys(_countable(), 0.0), **found.counts}
        return replace(found, counts=counts, idle=None if pending is None else not pending)

    async def records(self, fields: Mapping[str, Any]) -> str | None:
        """Find out whether the engine records, by a start for a step that never comes.

        Returns:
            Its refusal: it records already. None: it accepted the start, or was never used.
        """
        if self.home() is None:
            return None
        try:
            await self._call(lambda: _start(self._manager, fields))
        except EngineFailure:
            raise
        except ours(
            RuntimeError
        ) as error:  # an answer without success: such a request is refused for one reason
            return str(error)
        return None

    async def start(self, fields: Mapping[str, Any]) -> None:
        """Start it, or arrange its start at its first use."""
        self._first = None
        if self.home() is None:
            self._first = _FirstUse(self, fields)
            return
        await self.send_start(fields)

    async def send_start(self, fields: Mapping[str, Any]) -> None:
        """Send the start on its loop."""
        try:
            await self._call(lambda: _start(self._manager, fields))
        except EngineFailure:
            raise
        except ours(RuntimeError) as error:
            raise EngineFailure(f"{self.name} refused to start: {error}") from error

    async def stop(self) -> bool | None:
        """Stop it on its loop. True: it recorded; False: it reports that it did not."""
        if self._first is not None:
            await self._first.done()
        try:
            await self._call(lambda: _stop(self._manager))
        except EngineFailure:
            raise
        except ours(RuntimeError) as error:
            if NOT_RECORDING in str(error):
                return False
            raise EngineFailure(f"{self.name} refused to stop: {error}") from error
        return True

    def withdraw(self) -> bool:
        """Withdraw a start that still waits for the engine's first use."""
        return self._first is not None and self._first.withdraw()

    async def _call(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        loop = self.home()
        if loop is None or loop.is_closed():
            raise EngineFailure(
                f"the event loop that {self.name} was first used on is closed: no call to it is answered any more",
                "dead",
            )
        answer = asyncio.run_coroutine_threadsafe(_shielded(make), loop)
        while not answer.done():
            self._require_alive()
            if loop.is_running() or self._runs.seconds_left <= 0:
                await asyncio.wait([asyncio.wrap_future(answer)], timeout=LOOK_SECONDS)
            elif loop.is_closed():
                raise EngineFailure(
                    f"the event loop of {self.name} was closed before the answer came", "dead"
                )
            else:
                await self._runs.run(loop, answer)
        if answer.cancelled():
            raise EngineFailure(f"the event loop of {self.name} ended before the answer came", "unreachable")
        return answer.result()


class _FirstUse:
    """A start that waits until its engine is first used: only then is its event loop known."""

    def __init__(self, link: ObjectLink, fields: Mapping[str, Any]) -> None:
        self._sent = False
        self._withdrawn = False
        self._task = asyncio.ensure_future(self._begin(link, fields))

    async def _begin(self, link: ObjectLink, fields: Mapping[str, Any]) -> None:
        while link.home() is None:
            await asyncio.sleep(FIRST_USE_SECONDS)
            if self._withdrawn:
                return
        self._sent = True
        await link.send_start(fields)

    def withdraw(self) -> bool:
        """Withdraw it, unless it was sent."""
        self._withdrawn = not self._sent
        return self._withdrawn

    async def done(self) -> None:
        """Wait until it has begun. Raises what the start raised."""
        await self._task


async def _shielded(make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return await asyncio.shield(asyncio.ensure_future(make()))


async def _start(manager: Any, fields: Mapping[str, Any]) -> None:
    if "req" in inspect.signature(manager.start_profile).parameters:
        await manager.start_profile(req=_request_type()(**fields))
    else:
        await manager.start_profile(**fields)


async def _stop(manager: Any) -> None:
    answer: Awaitable[Any] | None = manager.stop_profile()
    if inspect.isawaitable(answer):
        await answer


def _fields(manager: Any) -> frozenset[str]:
    """Return the parameters of its start: keywords before 0.5.15, a request object since."""
    start = getattr(manager, "start_profile", None)
    if start is None:
        return frozenset()
    parameters = inspect.signature(start).parameters
    if "req" in parameters:
        parameters = inspect.signature(_request_type()).parameters
    return frozenset(parameters)


def _request_type() -> Any:
    return importlib.import_module("sglang.srt.managers.io_struct").ProfileReq


def _version() -> str:
    return str(getattr(importlib.import_module("sglang"), "__version__", ""))


def _counted(folder: str) -> list[tuple[str, float]]:
    """Return names and values of the metrics of all processes; of the ranks of one engine, the first one counts."""
    client: Any = importlib.import_module("prometheus_client")
    multiprocess: Any = importlib.import_module("prometheus_client.multiprocess")
    registry = client.CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, path=folder)
    return [
        (sample.name, sample.value)
        for metric in registry.collect()
        for sample in metric.samples
        if all(sample.labels.get(key, "0") == "0" for key in ("tp_rank", "pp_rank"))
    ]


def _countable() -> list[str]:
    """Return the figures whose counters exist in the installed version, by the names in its code."""
    module: Any = sys.modules.get("sglang.srt.observability.metrics_collector")
    named: set[object] = set()
    for name in ("SchedulerMetricsCollector", "TokenizerMetricsCollector"):
        code = getattr(getattr(getattr(module, name, None), "__init__", None), "__code__", None)
        named.update(getattr(code, "co_consts", ()))
    return [figure for figure, names in SGLANG.counters.items() if named.intersection(names)]

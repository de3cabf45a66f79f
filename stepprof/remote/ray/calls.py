"""Send calls to actors: their time-outs, the meaning of Ray's errors, and one agent for each node.

A call is awaited by its future, on stepprof's loop. No call is cancelled, and nothing calls ``ray.get``. A process that is not connected makes no call: Ray would start a cluster.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepprof.host import real_time
from stepprof.host.plain_files import open_plain, read_plain
from stepprof.host.plain_json import parse_json
from stepprof.host.process_identity import is_alive
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.remote.base import EngineFailure, Health
from stepprof.remote.ray.inside import entry
from stepprof.run.manifest_writer import describe_error
from stepprof.run.reasons import is_pending
from stepprof.untraced import Reference

TREE_ABOVE = 64
"""With more actors than this, one agent per node reaches them: the calls of one process are sent
one after another, at 0.3 ms each.
"""


def library() -> Any:
    """Return Ray, if the program has connected it. Raises EngineFailure."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        raise EngineFailure(
            "Ray has been shut down in this process: the actor can no longer be reached", "unreachable"
        )
    return ray


async def call(handle: Any, name: str, act: Any, *arguments: object, owes_stop: bool = False) -> Any:
    """Run a function in an actor, and await what it returns.

    Args:
        act: gets the actor and the arguments.
        owes_stop: the call is a start: if its answer is lost, it may have arrived.

    Raises:
        EngineFailure: with the state of the actor that follows from the failure.
    """
    ray = library()
    try:
        return await asyncio.wrap_future(handle.__ray_call__.remote(Reference(act), *arguments).future())
    except asyncio.CancelledError:
        raise
    except ours(Exception) as error:  # any exception becomes a health and a message
        raise _failure(ray, error, name, owes_stop) from None


def _failure(ray: Any, error: Exception, name: str, owes_stop: bool) -> EngineFailure:
    if isinstance(error, EngineFailure):
        return error
    known = ray.exceptions
    health: Health = "unknown"
    lost = False
    if isinstance(error, known.RayTaskError):
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, ImportError) or "No module named 'stepprof" in str(cause):
            why = str(cause).partition("\n")[0]
            what = f"stepprof cannot be imported there: {why}; install it in the actor's environment"
            health = "unconfigured"
        else:
            what, lost = f"the call failed there: {_first_line(cause)}", True
    elif isinstance(error, known.ActorUnavailableError):
        what, health, lost = (
            f"the actor does not answer (it restarts, or its node is away): {_first_line(error)}",
            "unreachable",
            True,
        )
    elif isinstance(error, known.RayActorError):
        what, health = f"the actor is dead: {_why_dead(error)}", "dead"
    elif isinstance(error, known.PendingCallsLimitExceeded):
        what, health = "the actor has as many calls waiting as its max_pending_calls allows", "busy"
    elif isinstance(error, AttributeError):
        what, health = (
            f"its handle has no __ray_call__ ({error}): recent versions of Ray 2 have it, Ray Client does not",
            "unconfigured",
        )
    elif isinstance(error, known.RayError):
        what, health, lost = _first_line(error), "unreachable", True
    else:
        what, lost = describe_error(error), True
    return EngineFailure(f"{name}: {what}", health, owes_stop=owes_stop and lost)


def _first_line(error: BaseException) -> str:
    return describe_error(error).partition("\\n")[0][:300]  # it shows the end of a line as an escape sequence


def _why_dead(error: BaseException) -> str:
    """Return the line of Ray's report that gives the reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [
        line for line in lines if line.startswith(("The actor is dead because", "The actor died because"))
    ]
    return (reasons or lines or [type(error).__name__])[0][:300]


class NodeAgent:
    """One actor of ours per node: it reaches the actors of its node, and reads files there. It
    takes no CPU and holds no state but handles.
    """

    def __init__(self) -> None:
        self._handles: dict[str, Any] = {}

    async def hold(self, handles: Mapping[str, Any]) -> None:
        """Keep these handles: later calls name them."""
        self._handles.update(handles)

    async def drop(self, key: str) -> None:
        """Release a handle, so that Ray may end its actor."""
        self._handles.pop(key, None)

    async def call(
        self, calls: Sequence[tuple[str, str, tuple[Any, ...], bool]]
    ) -> AsyncIterator[list[tuple[int, Any]]]:
        """Make all these calls at once, and yield the answers as they arrive: a call that hangs does not delay the others."""
        come: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()

        async def one(number: int, key: str, name: str, arguments: tuple[Any, ...], owes_stop: bool) -> None:
            try:
                result = await call(self._handles[key], name, entry.serve, *arguments, owes_stop=owes_stop)
            except EngineFailure as failure:
                result = failure.with_traceback(None)
            except ours(Exception) as error:
                # an answer that never arrives would keep the others' stream open
                result = EngineFailure(f"{name}: {describe_error(error)}", owes_stop=owes_stop)
            await come.put((number, result))

        running = [asyncio.ensure_future(one(number, *what)) for number, what in enumerate(calls)]
        awaited = len(running)
        while awaited:
            batch = [await come.get()]
            while not come.empty():
                batch.append(come.get_nowait())
            awaited -= len(batch)
            yield batch

    async def read(self, path: str, offset: int, size: int) -> bytes:
        """Return a piece of a file. Raises OSError."""

        def piece() -> bytes:
            with open_plain(path) as file:
                file.seek(offset)
                return file.read(size)

        return await asyncio.to_thread(piece)

    async def size(self, path: str) -> int | None:
        """Return the size of a file; None if it does not exist."""
        try:
            return (await asyncio.to_thread(Path(path).stat)).st_size
        except ours(OSError):
            return None

    async def settled(self, fragment: str, timeout: float) -> bytes:
        """Return a fragment once no export of its windows is pending, its writer is dead, or the
        timeout has passed. Raises OSError.
        """
        deadline = real_time.monotonic() + timeout
        while True:
            data = await asyncio.to_thread(read_plain, fragment)
            content = parse_json(data)
            if not any(map(is_pending, content["windows"])) or real_time.monotonic() > deadline:
                return data
            if is_alive(content["writer"]) is False:
                return await asyncio.to_thread(read_plain, fragment)
            await asyncio.sleep(0.1)


class Agents:
    """The agents of this process, one per node, made when first needed. Calls through them are gathered per turn of the loop."""

    def __init__(self) -> None:
        self._agents: dict[str, Any] = {}
        self._known: dict[str, set[str]] = {}
        self._waiting: dict[
            str, list[tuple[str, Any, tuple[str, str, tuple[Any, ...], bool], asyncio.Future[Any]]]
        ] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, node: str) -> Any:
        """Return the agent on a node. If it cannot be made there, its first call fails."""
        ray = library()
        if node not in self._agents:
            strategy = sys.modules["ray.util.scheduling_strategies"].NodeAffinitySchedulingStrategy(
                node, soft=False
            )
            options = {
                "num_cpus": 0,
                "max_restarts": 0,
                "max_concurrency": 10_000,
                "scheduling_strategy": strategy,
            }
            self._agents[node] = ray.remote(NodeAgent).options(**options).remote()
            self._known[node] = set()
        return self._agents[node]

    async def ask(self, node: str, method: str, *arguments: object) -> Any:
        """Call a method of the agent on a node. Raises EngineFailure."""
        ray = library()
        try:
            agent = self.of(node)
            return await asyncio.wrap_future(getattr(agent, method).remote(*arguments).future())
        except asyncio.CancelledError:
            raise
        except ours(Exception) as error:  # as in `call`
            if isinstance(error, ray.exceptions.RayActorError):
                self._forget(node)
            cause = getattr(error, "cause", None)
            if isinstance(cause, OSError):
                raise cause from None
            raise _failure(ray, error, f"the agent on node {node[:8]}", False) from None

    async def call(
        self, node: str, key: str, handle: Any, name: str, arguments: tuple[Any, ...], *, owes_stop: bool
    ) -> Any:
        """Call an actor through the agent of its node: the calls of one turn of the loop are one message."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._send)
        self._waiting.setdefault(node, []).append((key, handle, (key, name, arguments, owes_stop), answer))
        result = await answer
        if isinstance(result, EngineFailure):
            raise result
        return result

    def forget(self, node: str | None, key: str) -> None:
        """Release the handle of a detached actor in its agent."""
        if node in self._agents and key in self._known[node]:
            self._known[node].discard(key)
            self._agents[node].drop.remote(key)

    def close(self) -> None:
        """Release all agents; Ray ends them."""
        self._agents.clear()
        self._known.clear()

    def _forget(self, node: str) -> None:
        self._agents.pop(node, None)
        self._known.pop(node, None)

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for node, calls in waiting.items():
            task = asyncio.ensure_future(self._through(node, calls))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _through(self, node: str, calls: list[Any]) -> None:
        answers = [answer for _, _, _, answer in calls]
        try:
            agent = self.of(node)
            new = {key: handle for key, handle, _, _ in calls if key not in self._known[node]}
            if new:
                await asyncio.wrap_future(agent.hold.remote(new).future())
                self._known[node].update(new)
            stream = agent.call.options(num_returns="streaming").remote([what for _, _, what, _ in calls])
            async for piece in stream:
                for number, result in await asyncio.wrap_future(piece.future()):
                    answers[number].set_result(result)
        except ours(Exception) as error:  # every waiting call gets it
            self._forget(node)
            reason = _first_line(error)
            logger.warning("agent.lost", node=node, reason=reason)
            for (_, _, (_, name, _, owes_stop), _), answer in zip(calls, answers, strict=True):
                if not answer.done():
                    failure = EngineFailure(
                        f"{name}: the agent on its node is gone: {reason}", "unreachable", owes_stop=owes_stop
                    )
                    answer.set_result(failure)

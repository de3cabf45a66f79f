"""The driver of one actor: calls into its process, and the files that it leaves. It handles
restarted processes, actors whose only thread is inside a method, and files on another node's disk.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import uuid
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.config.validators import byte_size
from stepprof.errors import ConfigError
from stepprof.host import process_identity
from stepprof.host.rank import SHORT_ID
from stepprof.instrument.context import cell
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.recording.session import current_session
from stepprof.remote.base import Clock, EngineDriver, EngineFailure, EngineWindow, Stopped
from stepprof.remote.core.lease import new_lease
from stepprof.remote.loop import drop_result, in_thread
from stepprof.remote.ray import calls
from stepprof.remote.ray.calls import Agents
from stepprof.remote.ray.clock import Clocks, ping_pong
from stepprof.remote.ray.files import Carrier, lost_fragment, marked, take_over
from stepprof.remote.ray.inside import entry as inside
from stepprof.remote.ray.inside import messages
from stepprof.remote.ray.inside.messages import Answer, Attachment, Facts, Inside, Report, Unknown
from stepprof.remote.ray.late_files import ActorsLater
from stepprof.remote.ray.listening import Listening
from stepprof.run.layout import step_folder
from stepprof.run.manifest_writer import describe_error
from stepprof.run.names import process_name, safe_name
from stepprof.run.schema import WindowEntry
from stepprof.untraced import Reference

if TYPE_CHECKING:
    from stepprof.recording.session import Session
    from stepprof.run.model import Window

FETCH_BYTES = 256 * 2**20
"""A larger file stays on its node, unless an argument of `attach` allows it."""

CLOSE_SECONDS = 30.0
"""How long the exit of the interpreter waits for actors that are still attached."""

_MAKE_SESSIONS = ("arm", "join")

RECOVERY_SECONDS = 0.2
"""Seconds before an unreachable actor is asked again; doubled each time."""

LONGEST_RECOVERY_SECONDS = 10.0
"""Maximum of that pause."""

drivers: weakref.WeakSet[ActorDriver] = weakref.WeakSet()
"""The open drivers of this process."""
agents = Agents()
_clocks = Clocks()


class ActorDriver(EngineDriver):
    """One actor: its engine, or its own session as a rank."""

    inside: bool = False
    rank: int | None
    workers: int | None = None
    waiting: str | None = None

    def __init__(self, handle: Any, kind: str, options: Mapping[str, Any]) -> None:
        self.kind = "ray" if kind == "engine" else kind
        actor_id = handle._actor_id.hex()
        # an engine and a rank in one actor are two targets: driving one does not drive the other
        self.key = f"ray:{actor_id}" if kind == "engine" else f"ray:{actor_id}:{kind}"
        self.name = options.get("name") or f"{_class_name(handle)}:{actor_id[:SHORT_ID]}"
        self._label = None if kind != "spans" else _label(handle, options.get("name"))
        rank = _whole("rank", options.get("rank"))
        self.rank = None if kind == "engine" else rank
        self.stop_seconds = CLOSE_SECONDS
        """How long its role waits for the answer to a stop."""
        self._handle = handle
        self._as = kind
        self._find = options.get("find")
        self._world_size = _whole("world_size", options.get("world_size"))
        self._own_dir = options.get("output_dir")
        self._fetch = options.get("fetch", True)
        self._limit = byte_size(options.get("fetch_bytes", FETCH_BYTES), "fetch_bytes")
        self._engine_options = dict(options.get("engine_options") or {})
        self._token = f"{actor_id}:{uuid.uuid4().hex[:12]}"
        self._facts: Facts | None = None
        self._asked = False
        """Whether a session may have been made in the actor: then it must be closed when this attachment ends."""
        self._run = Path()
        self._fragment: str | None = None
        self._bringing: set[asyncio.Task[None]] = set()
        self.listens = kind != "engine"
        self._listening = Listening(self.name, self._join, self._announce_windows, is_recorded=kind == "rank")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._as} {self.name}>"

    # -- the contract

    async def arm(self, window: EngineWindow) -> None:
        """Find the engine or make the session in the actor; find out where its files are."""
        run = window.folder.parent if window.stem else window.folder
        async with marked(run) as marker:
            try:
                self._learn(await self._ask("arm", self._attachment(run, window, marker), window))
            except Inside:
                self.inside = True
                raise

    async def start(self, window: EngineWindow) -> None:
        """Start the capture; an actor whose process was restarted after it was armed is armed first."""
        self._fragment = None
        try:
            self._fragment = await self._ask("start", window)
        except Unknown:
            logger.info("actor.restarted", name=self.name, step=window.window.step)
            await self.arm(window)
            self._fragment = await self._ask("start", window)

    async def stop(self, window: EngineWindow) -> Stopped:
        """Stop the capture. Files on another node's disk are fetched; those of a rank in the background, after its export."""
        facts = self._known()
        try:
            report: Report = await self._ask("stop", window)
        except EngineFailure:
            self._bring_later(facts, self._fragment, window)
            raise
        if report.folder is None:
            self._bring_later(facts, report.fragment, window)
            return report.stopped
        source = Path(report.folder)
        if report.awaited:
            later = ActorsLater(
                lambda seconds: self._ask("collect", window, seconds),
                lambda stopped: self._brought(facts, stopped, source, window),
            )
            return replace(report.stopped, later=later)
        return await self._brought(facts, report.stopped, source, window)

    async def _brought(self, facts: Facts, stopped: Stopped, source: Path, window: EngineWindow) -> Stopped:
        """Return the result of a stop, with an engine's files moved to the run."""
        if facts.visible:
            return stopped
        if window.trace_dir is not None:
            return await in_thread(take_over, stopped, source, window.folder)
        return await self._carrier(facts).engine_files(stopped, source, window.folder)

    async def enter(self, window: EngineWindow) -> None:
        """Make a rank enter a role's window inside the recorded one."""
        await self._ask("enter", window)

    async def exit(self, window: EngineWindow) -> None:
        """Make it exit that window."""
        await self._ask("exit", window)

    async def announce(self, number: int, windows: Sequence[tuple[int, str | None]]) -> None:
        """Announce the open windows to the session in the actor; make the session if there is none."""
        await self._listening.announce(number, windows)

    def announce_now(self, number: int, windows: Sequence[tuple[int, str | None]]) -> bool:
        """Announce by one call that is sent at once, if the session is known to exist."""
        return self._listening.announce_now(number, windows)

    def _announce_windows(
        self, number: int, windows: Sequence[tuple[int, str | None]]
    ) -> concurrent.futures.Future[Answer]:
        """Send an announcement on the calling thread."""
        calls.library()
        sent = self._handle.__ray_call__.remote(
            Reference(inside.serve), self._token, "announce", number, windows
        )
        answer: concurrent.futures.Future[Answer] = sent.future()
        return answer

    async def _join(self) -> None:
        """Make the session ahead of the first recorded step, so that nothing before it is missed."""
        session = cell.session
        if session is None or session.path is None:
            raise EngineFailure("there is no session in this process", "unconfigured")
        async with marked(session.path) as marker:
            attachment = self._attachment(session.path, None, marker)
            self._learn(await self._ask("join", attachment))

    async def abort(self) -> None:
        """Leave any state. Raises EngineFailure if the actor is dead, or refuses."""
        await self._ask("abort")

    async def clock(self) -> Clock | None:
        """Return the actor's clock; on this machine it is the same."""
        facts = self._facts
        if facts is None:
            return None
        if facts.boot_id == messages.boot_id():
            return Clock(facts.host, 0, 0, "same-host", process_identity.boot_id())
        return await _clocks.of(facts.boot_id, lambda: self._measure(facts))

    async def recovered(self) -> None:
        """Wait until the actor answers again: Ray fails every call that was sent during a restart.
        Raises EngineFailure: it is dead.
        """
        pause = RECOVERY_SECONDS
        while self in drivers:
            calls.library()
            try:
                await calls.call(self._handle, self.name, inside.now)
            except EngineFailure as failure:
                if failure.health != "unreachable":
                    raise
            else:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_RECOVERY_SECONDS)
        raise EngineFailure(f"{self.name}: it was detached", "unknown")

    async def _measure(self, facts: Facts) -> Clock:
        clock = await ping_pong(facts.host, lambda: calls.call(self._handle, self.name, inside.now))
        # without a boot id of the system, the actor has sent another identity of its process
        return clock if process_identity.boot_id() is None else replace(clock, boot_id=facts.boot_id)

    async def close(self, timeout: float, answer_seconds: float) -> None:
        """End the attachment: wait for the actor's exports, fetch its last files, end the session
        that was made there. Never raises.
        """
        facts, self._facts = self._facts, None
        asked, self._asked = self._asked, False
        self._listening.reset()
        drivers.discard(self)
        if not asked:
            return
        closing = asyncio.ensure_future(self._close(facts, timeout, answer_seconds))
        if facts is None:  # no answer so far: this call waits behind the previous one; nothing to fetch
            closing.add_done_callback(drop_result)
            await asyncio.sleep(0)
            return
        await asyncio.wait({closing}, timeout=timeout + 1)
        if not closing.done():
            reason = f"its exports have not ended within {timeout:.3g} s"
        elif closing.exception() is not None:
            reason = describe_error(closing.exception() or EOFError())
        else:
            return
        logger.warning("actor.not_closed", name=self.name, actor_host=facts.host, reason=reason)

    async def _close(self, facts: Facts | None, timeout: float, answer_seconds: float) -> None:
        spans = await self._ask("leave", timeout, answer_seconds=answer_seconds)
        if facts is None:
            return
        if self._bringing:
            await asyncio.wait(self._bringing, timeout=timeout)
        for path in map(Path, spans):
            problem = await self._carrier(facts).plain_file(path, self._run / "spans" / path.name)
            if problem is not None:
                logger.warning("spans.not_collected", name=self.name, actor_host=facts.host, reason=problem)
        agents.forget(facts.node_id, self._token)

    # -- the way there

    async def _ask(self, verb: str, *arguments: object, answer_seconds: float | None = None) -> Any:
        """Call one verb in the actor. If the actor must not be delayed, poll its answer, each time
        for at most ``answer_seconds``.
        """
        owes_stop = verb == "start"
        self._asked = self._asked or verb in _MAKE_SESSIONS
        self.waiting = _why_waiting(self._facts)
        try:
            answer = await self._answered(self._send(verb, *arguments, owes_stop=owes_stop), answer_seconds)
            pause = 0.001
            while answer.ticket is not None:
                self.waiting = "the call is under way in the actor"
                await asyncio.sleep(pause)
                pause = min(pause * 1.6, 0.1)
                asking = self._send("answer", answer.ticket, owes_stop=owes_stop)
                answer = await self._answered(asking, answer_seconds)
        finally:
            self.waiting = None
        failure = answer.failure
        if failure is not None:
            failure.args = (f"{self.name}: {failure}",)
            raise failure
        return answer.value

    async def _answered(self, asking: Coroutine[Any, Any, Answer], seconds: float | None) -> Answer:
        """Await an answer. Raises EngineFailure on timeout; nothing is cancelled."""
        task = asyncio.ensure_future(asking)
        if seconds is not None and not (await asyncio.wait({task}, timeout=seconds))[0]:
            task.add_done_callback(drop_result)
            raise EngineFailure(f"no answer within {seconds:.3g} s: {self.waiting}", "unknown")
        return await task

    async def _send(self, verb: str, *arguments: object, owes_stop: bool) -> Answer:
        what = (self._token, verb, *arguments)
        node = None if self._facts is None else self._facts.node_id
        if node is not None and len(drivers) > calls.TREE_ABOVE:
            through: Answer = await agents.call(
                node, self._token, self._handle, self.name, what, owes_stop=owes_stop
            )
            return through
        direct: Answer = await calls.call(self._handle, self.name, inside.serve, *what, owes_stop=owes_stop)
        return direct

    def _attachment(self, run: Path, window: EngineWindow | None, marker: str) -> Attachment:
        session = current_session()
        if session is None:
            raise EngineFailure("there is no session in this process", "unconfigured")
        policy = session.config.policy(None if window is None else window.window.role)
        own_dir = self._own_dir
        if own_dir is None and window is not None and window.trace_dir is not None:
            own_dir = window.trace_dir
        self._run = run
        self.stop_seconds = policy.engine_stop_timeout_seconds
        return Attachment(
            kind=self._as,
            find=self._find,
            rank=self.rank,
            position=self.position if window is None else window.replica,
            world_size=self._world_size,
            config=session.config.to_dict() if self._as != "engine" else {},
            run_id=run.name,
            output_dir=str(run.parent),
            own_dir=None if own_dir is None else str(own_dir),
            marker=marker,
            max_seconds=policy.max_seconds,
            start_seconds=policy.engine_start_timeout_seconds,
            stop_seconds=policy.engine_stop_timeout_seconds,
            options=self._engine_options,
            job=session.job,
            lease=new_lease(),
            name=self._label,
            requests=() if window is None else _requests(session, window.window),
        )

    def _learn(self, facts: Facts) -> None:
        self._facts, self.host = facts, facts.host
        if facts.kind is not None:
            self.kind, self.workers = facts.kind, facts.workers

    def _known(self) -> Facts:
        if self._facts is None:
            raise EngineFailure(f"{self.name}: it was detached", "unknown")
        return self._facts

    # -- files

    def _carrier(self, facts: Facts) -> Carrier:
        return Carrier(agents, facts.node_id or "", facts.host, self._fetch, self._limit)

    def _bring_later(self, facts: Facts, fragment: str | None, window: EngineWindow) -> None:
        if facts.visible or fragment is None:
            return
        task = asyncio.ensure_future(self._bring_rank(facts, Path(fragment), window))
        self._bringing.add(task)
        task.add_done_callback(self._bringing.discard)

    async def _bring_rank(self, facts: Facts, fragment: Path, window: EngineWindow) -> None:
        of = window.window
        entry = WindowEntry(
            role=of.role,
            occurrence=of.occurrence,
            visit=of.visit,
            rank=facts.rank,
            host=facts.host,
            pid=facts.pid,
        )
        lost = lost_fragment(window.folder.name, of.step, of.version, [entry.to_dict()])
        try:
            await self._carrier(facts).rank_files(fragment, window.folder, step_folder(of.step), lost)
        except ours(OSError) as error:
            logger.warning(
                "actor.files_not_collected",
                name=self.name,
                actor_host=facts.host,
                reason=describe_error(error),
            )


def _requests(session: Session, window: Window) -> tuple[Mapping[str, object], ...]:
    """Return the requests of the running job that concern this window."""
    return tuple(
        request.to_dict()
        for request in session.selector.requests
        if window.step in request.steps and request.concerns(window.role)
    )


def _why_waiting(facts: Facts | None) -> str:
    """Return why a call may have no answer yet. From outside, a busy actor looks like one that hangs."""
    if facts is None:
        return "the actor has not answered: it is starting, is inside a method, or hangs"
    if facts.plain:
        return (
            "the actor runs one call at a time: it is inside a method, behind which this call waits, or its process hangs "
            "(an actor with max_concurrency > 1, or an async one, would answer)"
        )
    return "the actor has not answered: all its threads are inside methods, it blocks its event loop, or it hangs"


def _class_name(handle: Any) -> str:
    described = getattr(handle, "_ray_actor_creation_function_descriptor", None)
    return str(getattr(described, "class_name", None) or type(handle).__name__).rpartition(".")[2]


def _label(handle: Any, name: str | None) -> str:
    """Return the name of an actor without a rank. Raises ConfigError if it is not plain."""
    if name is not None:
        return process_name(name)
    return safe_name(f"{_class_name(handle)}-{handle._actor_id.hex()[:SHORT_ID]}")


def _whole(key: str, value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise ConfigError.at(key, value, "expected an integer >= 0")

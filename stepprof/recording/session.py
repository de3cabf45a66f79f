"""The session, one per process: turn windows into requests on the local target, and publish its
state.

The session knows which steps are selected on this rank, so that an unselected window costs a
comparison; the target handles selected ones. `init` creates it, `shutdown` ends it, and nothing in
between raises (unless ``strict``).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from stepprof.config.config import Config, Policy
from stepprof.errors import ConfigError, StepprofError
from stepprof.host import real_time
from stepprof.host.rank import Identity
from stepprof.instrument.context import cell
from stepprof.instrument.span_recorder import Recorder
from stepprof.instrument.state import State
from stepprof.interrupts import ours
from stepprof.log import bind_session, bound, logger
from stepprof.recording import exit_handlers
from stepprof.recording.background_worker import Background
from stepprof.recording.control.live_status import Live
from stepprof.recording.engine_ports import EngineHost, EngineRegistry, Join, WindowEngines, waiting
from stepprof.recording.evidence.collector import Evidence
from stepprof.recording.export.executor import Exporter
from stepprof.recording.leftover_files import remove_leftovers
from stepprof.recording.local_target import LocalTarget
from stepprof.recording.misuse import Refusals
from stepprof.recording.oom_snapshots import OutOfMemory
from stepprof.recording.pending_stops import PendingStops
from stepprof.recording.rank_discovery import Joining
from stepprof.recording.selector import Selector
from stepprof.recording.span_files import SpanFile
from stepprof.recording.step_notice import StepNotice
from stepprof.recording.window_handle import EarlyEngines, LeftOpen, Ticket
from stepprof.run.entry_times import Timing
from stepprof.run.layout import RunDir
from stepprof.run.manifest_writer import Origin, describe_error
from stepprof.run.run_id import job_key

if TYPE_CHECKING:
    from stepprof.run.job_store import JobStore
    from stepprof.run.model import Window

T = TypeVar("T")

EXPORT_SECONDS = 120.0
"""How long the end of a run waits for its export jobs, unless `shutdown` gets a timeout."""

ANNOUNCE_SECONDS = 0.2
"""How long a recorded window waits until other sessions know its step: work that is sent to them
afterwards must not overtake the announcement.
"""

OWNER_SECONDS = 2.0
"""How long the end of a run waits for the thread that alone can stop a capture."""

LEFTOVER_SECONDS = 1.0
"""How long the end of a session looks for temporary files of killed processes. Listing the files of thousands of ranks takes less."""


class Session:
    """The session that `init` returns. Public attributes: ``run_id``, ``path`` (the run directory;
    None if everything is off) and ``rank``."""

    def __init__(
        self, config: Config, identity: Identity, run: RunDir | None, store: JobStore | None = None
    ) -> None:
        self.config = config
        self._identity = identity
        self.run_id = None if run is None else run.run_id
        self.path = None if run is None else run.path
        self.lent = False
        """Whether it was made for a driver process that this one follows: a later `init` of the job's code returns it."""
        self.by_adapter = False
        """Whether an adapter of a framework started it: it prints a line after a recorded step, and
        the job's own `init` replaces it.
        """
        self.asked_run_id: str | None = None
        """The name of the run that the caller of `init` gave; None: it gave none."""
        self._closed = run is None
        if run is None:
            return
        self.last_step: int | None = None
        self.fleet: EngineRegistry | None = None
        """The attached engines; None: none were attached."""
        self.selector = Selector(config, identity, self._rank_found, self._attached)
        self.quiet = self.selector.quiet
        self.calm = True
        self._stops = PendingStops()
        self._driver_reported = False
        self.refusals = Refusals(lambda: self.rank, strict=config.strict)
        # reentrant: a signal handler may interrupt
        self._publishing = threading.RLock()
        self.recorder = Recorder(keep=config.spans)
        self.exporter = Exporter()
        header = {"run_id": run.run_id, "rank": identity.rank, "world_size": identity.world_size}
        origin = Origin(run, identity.rank, identity.world_size)
        origin.job = job_key(os.environ, identity.world_size)
        self._spans = SpanFile(
            lambda: run.spans_path(origin.rank),
            header | {key: origin.writer[key] for key in ("host", "pid", "boot_id", "pid_namespace")},
            origin.anchor,
        )
        self.background = Background(self._chores)
        self.recorder.wake = self.background.wake
        self._origin = origin
        self.local = LocalTarget(
            origin, self.recorder, self.exporter, self.background, strict=config.strict, changed=self.publish
        )
        if config.evidence and config.spans:
            self.local.capturer.evidence = Evidence(self.recorder, self.background.post, self._spans.write)
        self._engine_host = EngineHost(origin, self.selector, self.background.post, self.publish)
        self.out_of_memory = OutOfMemory(origin, self.background.post, self._place)
        self._notice = StepNotice(
            str(run.path),
            self._logs_for_job,
            lambda: self.by_adapter,
            lambda: self.selector.identity.world_size in (None, 1),
        )
        origin.observers.append(self._notice.take)
        self.live = Live(self, run)
        self._spans.observers.append(self.live.pace.see)
        self._run = run
        self._joining = None if store is None else Joining(store, run.run_id, self.selector)

    @property
    def rank(self) -> int | str:
        """Return the global rank of this process, or the name of a process without one."""
        return self._identity.rank if self.path is None else self.selector.identity.rank

    @property
    def job(self) -> str | None:
        """Return the id of the job of this process, the same in each of its processes. None: unknown."""
        return self._origin.job

    def follow_job(self, job: str | None) -> None:
        """Record as a process of the job that the driver belongs to."""
        self._origin.job = job

    def __repr__(self) -> str:
        return f"<stepprof.Session run={self.run_id} rank={self.rank} path={str(self.path)!r}>"

    def start(self) -> None:
        """Become the session of this process."""
        for policy in self.selector.policies():
            if self.selector.selects_rank(policy) and not policy.steps.is_none:
                self.local.capturer.backends.probe(policy)
        self.out_of_memory.begin(self.selector)
        self._guard(self.live.look)  # requests from before this process started
        self.background.start()
        cell.session = self
        self._bind_log()
        self.publish()
        exit_handlers.watch(self)
        cell.recorder = self.recorder
        logger.info("run.opened", path=str(self.path))
        if self.config.follow_keys and self.rank in (0, "driver"):
            logger.info("follow.needed", keys=", ".join(self.config.follow_keys), path=str(self.path))
        while waiting:
            self.attach(waiting.pop(next(iter(waiting))))

    # -- attached engines

    def attach(self, join: Join) -> None:
        """Add an engine: it takes part from the next arm or window on.

        Args:
            join: adds it to the registry of engines.

        Raises:
            ConfigError: the configuration asks for ranks that the engine does not have.
        """
        self.fleet = join(self._engine_host, self.fleet)
        self.selector.drives_others()
        self.quiet.clear()
        self.publish()

    def _attached(self, role: str | None) -> bool:
        return self.fleet is not None and self.fleet.follows(role)

    # -- windows

    def enter(
        self, step: int, role: str | None, version: int | str | None, early: EarlyEngines | None
    ) -> Ticket | None:
        """Enter a window that may be selected; return its ticket if it is."""
        ticket: Ticket | None = None
        try:
            try:
                self._close_left_open()
                policy = self._announced(step, role)
                if policy is None:
                    return None
                ticket = self._ticket(step, role, version, policy, early)
                self._stops.opened(ticket)
                if self.selector.selects_rank(policy):
                    self._say_if_nothing_records(ticket.window)
                    most = policy.engine_stop_timeout_seconds - ticket.timing.waited_seconds
                    with bound(ticket.window.fields):
                        self.local.enter(ticket, wait_seconds=max(most, 0.0))
                    self.publish()
            except ours(Exception) as error:  # raised again only if strict
                self._failed(error)
                if ticket is not None:
                    self.abandon(ticket, error)
                return None
            finally:
                self._act_over()
        except BaseException as interrupt:  # the window will not get its ticket
            if ticket is not None:
                self.abandon(ticket, interrupt)
            raise
        return ticket

    def _close_left_open(self) -> None:
        """Close the windows whose task or notebook cell has failed: they would hold the captures of later steps."""
        for window, reason in self.refusals.started.of_failed_owners():
            if window._after and self.recorder.running_loop() is not None:
                window._after.awaits_engines = True  # the event loop must not be blocked
            window.stop(reason)

    def _announced(self, step: int, role: str | None) -> Policy | None:
        """Return the policy of a selected window, once other sessions know its step; None: it is not selected."""
        policy = self._select(step, role)
        announcements = (
            () if self.fleet is None else self.fleet.pass_by(step, role, is_recorded=policy is not None)
        )
        if announcements and policy is not None:
            concurrent.futures.wait(announcements, ANNOUNCE_SECONDS)
        if policy is None and not self.calm:
            self.local.pass_by(step)
        return policy

    def _say_if_nothing_records(self, window: Window) -> None:
        """Log once that a driver of Ray records nothing itself, if nothing is attached that records instead of it."""
        selector = self.selector
        if selector.identity.records or self.fleet is not None or self._driver_reported:
            return
        if self.config.policy(window.role).backend == ("null",):
            return
        self._driver_reported = True
        self.local.capturer.note(
            "a driver of Ray records nothing itself, and nothing is attached to it; "
            "pass rank=0 to stepprof.init if it computes, or attach those that do",
            window,
        )

    def _ticket(
        self,
        step: int,
        role: str | None,
        version: int | str | None,
        policy: Policy,
        early: EarlyEngines | None,
    ) -> Ticket:
        """Return the ticket of a selected window, with its engines, which have been started."""
        early = EarlyEngines() if early is None else early
        bracket, window = early.take(), early.window
        if window is None:
            window = self.selector.window(step, role, version)
            if self.fleet is not None and self.fleet.follows(role):
                for stopping in self._stops.before(role, self.fleet):
                    stopping.wait_stopped()
                with bound(window.fields):
                    loop = self.recorder.running_loop()
                    bracket = self.fleet.enter(window, policy, loop, strict=self.config.strict)
        return Ticket(
            window, policy, Timing(real_time.perf_counter_ns(), early.waited_seconds), bracket=bracket
        )

    def abandon(self, ticket: Ticket, interrupt: BaseException) -> None:
        """Close a window whose entry or exit was interrupted, because nothing else will."""
        self.background.post(self.local.capturer.exports.submit_all)
        if ticket.closed:
            return
        self.local.abandon(ticket, interrupt)
        self._stops.abandoned(ticket)
        if ticket.bracket is not None:
            ticket.bracket.send_stops(None, partial=describe_error(interrupt))

    async def prepare_enter(
        self, step: object, role: object, version: int | str | None
    ) -> EarlyEngines | None:
        """Before a coroutine enters a selected window, start its engines and wait for a stop on
        another thread, without blocking the event loop.

        A coroutine that is cancelled here has no exit, so its engines are stopped at once.
        """
        if self.recorder.running_loop() is None:
            return None  # the event loop of another library: the enter itself waits
        if self.local.calm and self.fleet is None:
            return None
        number = self.refusals.step_number(step, self.last_step)
        if number is None or not (role is None or isinstance(role, str)):
            return None
        policy = self._guard(lambda: self._select(number, role))
        if policy is None:
            return None
        fleet = self.fleet
        early = EarlyEngines()
        try:
            announcements = () if fleet is None else fleet.pass_by(number, role, is_recorded=True)
            if announcements:
                await asyncio.wait([*map(asyncio.wrap_future, announcements)], timeout=ANNOUNCE_SECONDS)
            if fleet is not None and fleet.follows(role):
                for stopping in self._stops.before(role, fleet):
                    await stopping.stopped()
                early.window = self.selector.window(number, role, version)
                with bound(early.window.fields):
                    early.bracket = fleet.begin(early.window, policy)
                await early.bracket.started()
                self.publish()
            began = real_time.perf_counter()
            most = policy.engine_stop_timeout_seconds
            while self.local.capturer.access.held_elsewhere and real_time.perf_counter() - began < most:
                await asyncio.sleep(0.005)
            early.waited_seconds = real_time.perf_counter() - began
        except BaseException:
            early.cancel("the coroutine was cancelled while its window was entered")
            raise
        return early

    def is_quiet(self, step: object, role: object) -> bool:
        """Return whether a window certainly has nothing to wait for."""
        quiet = self.quiet.get(role) if role is None or role.__class__ is str else None
        return quiet is not None and isinstance(step, int) and quiet[0] <= step < quiet[1] and self.calm

    def exit(self, ticket: Ticket, error: BaseException | None) -> None:
        """Exit a selected window: send the stops of its engines, stop the own capture, then wait
        for the engines, unless a coroutine does.
        """
        bracket = ticket.bracket
        try:
            with bound(ticket.window.fields):
                try:
                    if bracket is not None:
                        self._send_stops(bracket, ticket, error)
                finally:
                    self.local.exit(ticket, error)
                    for stopping in self._stops.closed(ticket):
                        if not ticket.awaits_engines:
                            stopping.wait_stopped()
        except ours(Exception) as failure:  # raised again only if strict
            self._failed(failure)
        finally:
            self._act_over()

    def _send_stops(self, bracket: WindowEngines, ticket: Ticket, error: BaseException | None) -> None:
        left_open = isinstance(error, LeftOpen)
        bracket.send_stops(
            None if left_open else error,
            partial=str(error) if left_open else None,
            blocked=None if ticket.awaits_engines else self.recorder.running_loop(),
        )

    def left(self) -> None:
        """Note that a window has ended: announce it to the processes that follow this one, before anything is stopped."""
        fleet = self.fleet
        if fleet is not None:
            self._guard(fleet.left)

    def tick(self) -> None:
        """Apply caps and requests that only this thread can apply."""
        self.local.tick()

    def approach(self, step: int, role: str | None) -> None:
        """Arm for a selected step when the step before it is over in this role."""
        policy = self.selector.policy_at(step, role)
        if policy is None:
            return
        if self.fleet is not None and self.fleet.follows(role):
            self.fleet.arm(step, role, policy)
        if self.selector.selects_rank(policy):
            self._guard(lambda: self.local.arm(step, role, policy))

    def _guard(self, act: Callable[[], T]) -> T | None:
        """Log errors inside the block; raise them into the training loop only if ``strict``."""
        try:
            return act()
        except ours(Exception) as error:  # raised again only if strict
            self._failed(error)
        finally:
            self._act_over()
        return None

    acts = frozenset({enter.__code__, exit.__code__, _guard.__code__})  # noqa: A003
    """The code objects that call `after_act` at their end. A signal handler that finds one on the
    stack leaves the rest to that call.
    """

    def _failed(self, error: Exception) -> None:
        """Log an error of an act of the session. Raise it only if ``strict``."""
        if self.config.strict:
            raise error
        if isinstance(error, StepprofError):
            logger.warning("window.not_recorded", reason=str(error))
        else:
            logger.warning("internal.error", reason=describe_error(error), exc_info=True)

    def _act_over(self) -> None:
        if not self._closed:
            exit_handlers.after_act()

    def _select(self, step: int, role: str | None) -> Policy | None:
        """Return the policy of a selected window, or None. An invalid role name is logged once."""
        try:
            return self.selector.select(step, role)
        except ConfigError as error:
            self.refusals.refuse_once(str(error))
            return None

    def _rank_found(self) -> None:
        identity = self.selector.identity
        rank, world_size = identity.rank, identity.world_size
        self._origin.rank, self._origin.world_size = rank, world_size
        if cell.session is self:
            self._bind_log()
        self.local.capturer.machine.target = f"rank-{rank}"
        self._spans.restate(rank=rank, world_size=world_size)
        self.background.post(lambda: self._run.restate(rank=rank, world_size=world_size))
        self.publish()

    def note_adapters(self) -> None:
        """Publish and write the status of the framework adapters."""
        self.publish()
        self.background.post(lambda: self._run.restate(adapters=dict(cell.adapters)))

    def _bind_log(self) -> None:
        bind_session(run_id=self.run_id, rank=self.rank, host=self._origin.host)

    def _logs_for_job(self) -> bool:
        """Return whether no lower rank is selected, so that one rank of a job reports for all."""
        rank = self.rank
        if self.lent or not isinstance(rank, int):
            return not self.lent and (rank == "driver" or self.fleet is not None)
        wanted = [policy.ranks for policy in self.selector.policies() if not policy.steps.is_none]
        return not any(lower in ranks for ranks in wanted for lower in range(rank))

    def _place(self) -> tuple[int, str | None]:
        """Return the step and role of this thread, or of the window that was entered last."""
        where = self.recorder.where()
        if where is not None and where.number is not None:
            return where.number, where.role
        return self.last_step or 0, None

    # -- what shows

    def publish(self) -> None:
        """Publish the current state for `stepprof.state`."""
        with self._publishing:
            capturer = self.local.capturer
            machine = capturer.machine
            fleet = self.fleet
            self.calm = self.local.calm and (fleet is None or fleet.calm)
            cell.state = State(
                status=machine.state,
                step=machine.step,
                role=machine.role,
                rank=self.rank,
                backend=capturer.backend.name if capturer.backend is not None else None,
                since=machine.since,
                engines={} if fleet is None else fleet.statuses(),
                pending_exports=capturer.exports.pending + (() if fleet is None else fleet.awaited()),
                last_error=capturer.last_error,
                recorded_steps=capturer.exports.recorded,
                adapters=dict(cell.adapters),
                run=None if self.path is None else str(self.path),
            )
        exit_handlers.guard(capturer.holds)

    def _chores(self) -> None:
        self.recorder.look_for_torch()
        self.recorder.look_for_tasks()
        if self._joining is not None:
            self._joining.look()
        self._spans.drain(self.recorder)
        self._notice.look(self.last_step)
        self.local.capturer.look_at_caps()
        self.live.look()

    # -- the end

    def disown(self) -> None:
        """Leave the session to the parent, in a forked child."""
        self._closed = True
        evidence = self.local.capturer.evidence
        if evidence is not None:
            evidence.forget()

    def shutdown(
        self,
        timeout: float | None = None,
        *,
        reason: str = "the run ended while it was recording",
        failed: bool = False,
    ) -> None:
        """Close open windows, wait ``timeout`` seconds for the exports, and write the rest. Idempotent.

        A process that ``failed``, or that calls this while an exception passes, may be started again.
        """
        if self._closed:
            return
        self._closed = True
        failed = failed or sys.exc_info()[0] is not None
        if cell.session is self and self.recorder.keep:
            self._guard(lambda: self.recorder.pending.extend(self.local.unfinished()))
        limit = EXPORT_SECONDS if timeout is None else timeout
        deadline = real_time.monotonic() + limit
        fleet = self.fleet
        if fleet is not None:
            fleet.send_stops(reason, self.recorder.running_loop())
        self._guard(lambda: self.local.ask_owner(reason, min(limit / 2, OWNER_SECONDS)))
        if cell.session is self:
            cell.clear()
        self._guard(self.out_of_memory.end)
        self.local.over = True
        self._guard(lambda: self.local.abort(reason, max(limit, 0.1)))
        self._guard(self.local.capturer.exports.submit_all)
        if fleet is not None:
            fleet.close(reason, max(deadline - real_time.monotonic(), 0.0), self.recorder.running_loop())
        if not self.exporter.finish(max(deadline - real_time.monotonic(), 0.0)):
            logger.warning("export.unfinished", exports=self.exporter.pending(), seconds=limit)
        for role, steps in () if self.lent else self.selector.never_entered():  # else the driver reports it
            logger.warning("step.not_reached", steps=str(steps), role=role, rank=self.rank)
        for mistake in self.selector.matched_nothing():
            logger.warning("rank.nonexistent", reason=mistake)
        self.background.stop(max(deadline - real_time.monotonic(), 1.0))
        evidence = self.local.capturer.evidence
        if evidence is not None:
            evidence.close()
        self._guard(self._notice.close)
        self._spans.drain(self.recorder)
        self._spans.close()
        self.publish()
        self._guard(lambda: self.live.close(failed=failed))
        path = self.path
        if self.rank == 0 and path is not None:  # one process of the run: each would list the files of all
            self._guard(lambda: remove_leftovers(path, LEFTOVER_SECONDS))
        exit_handlers.unwatch(self)
        if cell.session is None:
            bind_session()


def current_session() -> Session | None:
    """Return the session of this process; None: there is none."""
    session = cell.session
    return session if isinstance(session, Session) else None

"""The session: one per process. Turns windows into requests on the local target, and shows its state.

It knows which steps are selected on this rank, so that a window that is not costs a comparison; everything else of a selected
one is the target's. `init` makes it, `shutdown` ends it, and between the two nothing but these two raises (unless ``strict``).
"""

from __future__ import annotations

import asyncio
import operator
import threading
import time
from typing import Any

from stepprof import ending
from stepprof.background import Background
from stepprof.capture import LeftOpen, Ticket
from stepprof.config import Config, Policy
from stepprof.current import cell
from stepprof.environment import Identity
from stepprof.errors import ConfigError, StateError, StepprofError
from stepprof.export import Exporter
from stepprof.local import LocalTarget
from stepprof.log import logger
from stepprof.records import Origin, describe_error
from stepprof.rundir import RunDir
from stepprof.selecting import Selector
from stepprof.spans import Recorder, SpanFile
from stepprof.status import State
from stepprof.window import Window

__all__ = ["EXPORT_SECONDS", "Session"]

EXPORT_SECONDS = 120.0
"""How long the end of a run waits for its export jobs, unless `shutdown` is told otherwise."""

OWNER_SECONDS = 2.0
"""How long the end of a run waits for the thread that alone can stop a capture."""

TOLD = 64
"""Wrong steps and roles that a session tells of, each once; more would be a line per step."""


class Session:
    """What `init` returns. ``run_id``, ``path`` (the run directory; None where everything is off) and ``rank`` are for the caller."""

    def __init__(self, config: Config, identity: Identity, run: RunDir | None) -> None:
        self.config = config
        self._identity = identity
        self.run_id = None if run is None else run.run_id
        self.path = None if run is None else run.path
        self._closed = run is None
        if run is None:
            return
        self.last_step: int | None = None
        self.selector = Selector(config, identity, self._rank_found)
        self.quiet = self.selector.quiet
        self.calm = True
        self._occurrences: dict[tuple[int, str | None], int] = {}
        self._left_open: dict[tuple[int, str | None], Any] = {}
        self._told: set[str] = set()
        # reentrant: a signal handler may come in between
        self._publishing = threading.RLock()
        self.recorder = Recorder(keep=config.spans)
        self.exporter = Exporter()
        header = {"run_id": run.run_id, "rank": identity.rank, "world_size": identity.world_size}
        origin = Origin(run, identity.rank, identity.world_size)
        self._spans = SpanFile(
            lambda: run.spans_path(origin.rank), {**header, "host": origin.host, "pid": origin.pid}
        )
        self.background = Background(self._chores)
        self.recorder.wake = self.background.wake
        self._origin = origin
        self.local = LocalTarget(
            origin, self.recorder, self.exporter, self.background, strict=config.strict, changed=self.publish
        )

    @property
    def rank(self) -> int | str:
        """The global rank of this process, or what a process without one is called."""
        return self._identity.rank if self.path is None else self.selector.identity.rank

    def __repr__(self) -> str:
        return f"<stepprof.Session run={self.run_id} rank={self.rank} path={str(self.path)!r}>"

    def start(self) -> None:
        """Become the session of this process."""
        for policy in self.selector.policies():
            if self.selector.selects_rank(policy) and not policy.steps.is_none:
                self.local.capturer.probe(policy)
        self.background.start()
        cell.session = self
        self.publish()
        ending.watch(self)
        cell.recorder = self.recorder

    # -- windows

    def enter(
        self, step: int, role: str | None, version: int | str | None, waited_seconds: float
    ) -> Ticket | None:
        """A window that may be selected comes in; its ticket, if it is."""
        ticket: Ticket | None = self._guard(lambda: self._enter(step, role, version, waited_seconds))
        return ticket

    def _enter(
        self, step: int, role: str | None, version: int | str | None, waited_seconds: float
    ) -> Ticket | None:
        policy = self._select(step, role)
        if policy is None:
            if not self.calm:
                self.local.pass_by(step)
            return None
        window = self._window(step, role, version)
        bound = max(policy.engine_stop_timeout_seconds - waited_seconds, 0.0)
        return self.local.enter(window, policy, wait_seconds=bound, waited_seconds=waited_seconds)

    async def handed_over(self, step: object, role: object) -> float:
        """Before a selected window: wait, without blocking the event loop, until no other thread hands a capture over.

        Returns:
            The seconds that took.
        """
        if self.recorder.running_loop() is None:
            return 0.0  # another library's event loop: what waits is the enter itself
        number = self.step_number(step)
        if number is None or not (role is None or isinstance(role, str)):
            return 0.0
        policy: Policy | None = self._guard(lambda: self._select(number, role))
        if policy is None:
            return 0.0
        began = time.perf_counter()
        bound = policy.engine_stop_timeout_seconds
        while self.local.capturer.turn.taken and time.perf_counter() - began < bound:
            await asyncio.sleep(0.005)
        return time.perf_counter() - began

    def next_selected(self, step: int, role: str | None) -> float:
        """The next selected step after this one, as far as it matters for arming."""
        return self.selector.next_selected(step, role)

    def exit(self, ticket: Ticket, error: BaseException | None, end_ns: int) -> None:
        """A selected window goes out."""
        self._guard(lambda: self.local.exit(ticket, error, end_ns))

    def approach(self, step: int, role: str | None) -> None:
        """The step before a selected one is over in this role: arm for it."""
        policy = self.selector.policy(role)
        if policy.enabled and step in policy.steps and self.selector.selects_rank(policy):
            self._guard(lambda: self.local.arm(step, role, policy))

    def _window(self, step: int, role: str | None, version: int | str | None) -> Window:
        with self._publishing:
            self.selector.note(step, role)
            occurrence = self._occurrences.get((step, role), 0) + 1
            if len(self._occurrences) > 256:
                self._occurrences = {
                    key: count for key, count in self._occurrences.items() if key[0] >= step - 8
                }
            self._occurrences[step, role] = occurrence
        return Window(step=step, role=role, occurrence=occurrence, version=version)

    def _guard(self, act: Any) -> Any:
        """What goes wrong in here is logged; it reaches the training loop only if ``strict``."""
        try:
            return act()
        except StepprofError:
            if self.config.strict:
                raise
            logger.warning("not recorded", exc_info=True)
        except Exception:
            if self.config.strict:
                raise
            logger.warning("internal error", exc_info=True)
        finally:
            if not self._closed:
                ending.after_act()
        return None

    def _select(self, step: int, role: str | None) -> Policy | None:
        """The policy of a selected window, or None; a role that is no name is told once."""
        try:
            return self.selector.select(step, role)
        except ConfigError as error:
            self._refuse_once(str(error))
            return None

    def _rank_found(self) -> None:
        identity = self.selector.identity
        self._origin.rank, self._origin.world_size = identity.rank, identity.world_size
        self.local.capturer.machine.target = f"rank-{identity.rank}"
        self.publish()

    # -- what is refused

    def refuse(self, what: str, reason: str) -> None:
        """Something illegal was asked for: told, and raised only if ``strict``."""
        logger.warning("refused", what=what, rank=self.rank, reason=reason)
        if self.config.strict:
            raise StateError(f"{what}: {reason}")

    def refuse_window(self, step: object, role: object, *, already_open: bool) -> None:
        """A window that cannot be one."""
        if already_open:
            self.refuse("start", f"this window of step {step} is already open")
        elif step is not None:
            self._refuse_once(f"role = {role!r}: expected a name or None")

    def _refuse_once(self, reason: str) -> None:
        if self.config.strict or (reason not in self._told and len(self._told) < TOLD):
            self._told.add(reason)
            self.refuse("window", reason)

    # -- windows left open by start()

    def close_left_open(self, window: Any, role: object) -> None:
        """The next start() of a role in this thread or task: what the one before left open is closed as partial."""
        if not (role is None or isinstance(role, str)):
            return
        key = (self.recorder.task_id() or threading.get_ident(), role)
        left = self._left_open.get(key)
        if left is not None and left is not window and left._start:
            left.stop(LeftOpen("the window was left open, and closed by the next start of its role"))
        self._left_open[key] = window
        window._key = key

    def forget_left_open(self, window: Any) -> None:
        """A window that start() opened was stopped."""
        key: Any = getattr(window, "_key", None)
        if self._left_open.get(key) is window:
            self._left_open.pop(key, None)

    def step_number(self, step: object) -> int | None:
        """A step as a plain number: numpy's and torch's integers too. None, told once, for what is none."""
        try:
            number = self.last_step if step is None else int(operator.index(step))  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - a text, a tensor of two elements, what a step callable raised
            what = (
                f"what finds it raised {describe_error(step)}" if isinstance(step, Exception) else f"{error}"
            )
            self._refuse_once(f"step: expected a whole number: {what}")
            return None
        if number is None:
            self._refuse_once("step = None: no step was entered in this process before")
        elif number < 0:
            self._refuse_once("step: a negative number; expected one from 0 on")
            return None
        return number

    # -- what shows

    def publish(self) -> None:
        """Make `stepprof.state` show what is."""
        with self._publishing:
            capturer = self.local.capturer
            machine = capturer.machine
            self.calm = self.local.calm
            cell.state = State(
                status=machine.state,
                step=capturer.step,
                role=capturer.role,
                rank=self.rank,
                backend=capturer.backend.name if capturer.backend is not None else None,
                since=machine.since,
                pending_exports=tuple(capturer.exporting.copy().values()),
                last_error=capturer.last_error,
                recorded_steps=capturer.recorded,
            )
        ending.guard(capturer.holds)

    def _chores(self) -> None:
        self.recorder.look_for_torch()
        self._spans.drain(self.recorder)
        self.local.capturer.look_at_caps()

    # -- the end

    def disown(self) -> None:
        """In a forked child: this is the parent's session."""
        self._closed = True

    def shutdown(
        self, timeout: float | None = None, *, reason: str = "the run ended while it was recording"
    ) -> None:
        """Close what is open, wait ``timeout`` seconds for the exports, write what is left. Idempotent."""
        if self._closed:
            return
        self._closed = True
        bound = EXPORT_SECONDS if timeout is None else timeout
        deadline = time.monotonic() + bound
        self._guard(lambda: self.local.ask_owner(reason, min(bound / 2, OWNER_SECONDS)))
        if cell.session is self:
            cell.clear()
        self._guard(lambda: self.local.abort(reason, max(bound, 0.1)))
        self._guard(self.local.capturer.submit_owed)
        if not self.exporter.wait(max(deadline - time.monotonic(), 0.0)):
            logger.warning("exports unfinished", exports=self.exporter.pending(), seconds=bound)
        for role, steps in self.selector.never_came():
            logger.warning("selected steps never came", steps=str(steps), role=role, rank=self.rank)
        self.background.stop(max(deadline - time.monotonic(), 1.0))
        self._spans.drain(self.recorder)
        self._spans.close()
        self.publish()
        ending.unwatch(self)

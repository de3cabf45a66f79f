"""The session: one per process. Turns windows into requests on the local target, and shows its state.

It knows which steps are selected on this rank, so that a window that is not costs a comparison; everything else of a selected
one is the target's. `init` makes it, `shutdown` ends it, and between the two nothing but these two raises (unless ``strict``).
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import operator
import os
import platform
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from stepprof import ending
from stepprof.background import Background
from stepprof.capture import LeftOpen, Ticket
from stepprof.config import Config, Policy, load, role_name
from stepprof.current import cell
from stepprof.environment import Identity, find_identity
from stepprof.errors import ConfigError, StateError, StepprofError
from stepprof.export import Exporter
from stepprof.local import LocalTarget
from stepprof.log import logger
from stepprof.records import Origin, describe_error
from stepprof.rundir import RunDir, open_run
from stepprof.sources import KEY_OF_VARIABLE
from stepprof.spans import Recorder, SpanFile
from stepprof.status import State
from stepprof.window import Window

__all__ = ["EXPORT_SECONDS", "Session", "init", "shutdown"]

EXPORT_SECONDS = 120.0
"""How long the end of a run waits for its export jobs, unless `shutdown` is told otherwise."""

OWNER_SECONDS = 2.0
"""How long the end of a run waits for the thread that alone can stop a capture."""

ALWAYS_QUIET = (0, sys.maxsize)

TOLD = 64
"""Wrong steps and roles that a session tells of, each once; more would be a line per step."""

_starting = threading.Lock()


class Session:
    """What `init` returns. ``run_id``, ``path`` (the run directory; None where everything is off) and ``rank`` are for the caller."""

    def __init__(self, config: Config, identity: Identity, run: RunDir | None) -> None:
        self.config = config
        self.identity = identity
        self.run_id = None if run is None else run.run_id
        self.path = None if run is None else run.path
        self._closed = run is None
        if run is None:
            return
        self.last_step: int | None = None
        self.quiet: dict[str | None, tuple[int, int]] = {}
        self.calm = True
        self._occurrences: dict[tuple[int, str | None], int] = {}
        self._came: dict[str | None, set[int]] = {}
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
        return self.identity.rank

    def __repr__(self) -> str:
        return f"<stepprof.Session run={self.run_id} rank={self.rank} path={str(self.path)!r}>"

    def start(self) -> None:
        """Become the session of this process."""
        for policy in self._policies():
            if self._selects_rank(policy) and not policy.steps.is_none:
                self.local.capturer.probe(policy)
        self.background.start()
        cell.session = self
        self.publish()
        ending.watch(self)
        cell.recorder = self.recorder

    # -- windows

    def select(self, step: int, role: str | None) -> Policy | None:
        """The policy of a selected window, or None; notes for how many steps on nothing else has to be asked."""
        try:
            if role is not None:
                role_name(role)
        except ConfigError as error:
            self._refuse_once(str(error))
            return None
        policy = self.policy(role)
        if (
            policy.steps.is_none
            or not policy.enabled
            or (self.identity.final and not self._selects_rank(policy))
        ):
            self.quiet[role] = ALWAYS_QUIET
            return None
        if step not in policy.steps:
            following = policy.steps.next_after(step)
            # the step before a selected one is not quiet: at its end the target is armed
            self.quiet[role] = (step, sys.maxsize if following is None else following - 1)
            return None
        self._look_for_rank()
        policy = self.policy(role)
        return policy if self._selects_rank(policy) else None

    def policy(self, role: str | None) -> Policy:
        """What holds for a role in this process: one that has nothing to record takes part with the null backend."""
        policy = self.config.policy(role)
        return policy if self.identity.records else dataclasses.replace(policy, backend=("null",))

    def enter(
        self, step: int, role: str | None, version: int | str | None, waited_seconds: float
    ) -> Ticket | None:
        """A window that may be selected comes in; its ticket, if it is."""
        ticket: Ticket | None = self._guard(lambda: self._enter(step, role, version, waited_seconds))
        return ticket

    def _enter(
        self, step: int, role: str | None, version: int | str | None, waited_seconds: float
    ) -> Ticket | None:
        policy = self.select(step, role)
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
        policy: Policy | None = self._guard(lambda: self.select(number, role))
        if policy is None:
            return 0.0
        began = time.perf_counter()
        bound = policy.engine_stop_timeout_seconds
        while self.local.capturer.turn.taken and time.perf_counter() - began < bound:
            await asyncio.sleep(0.005)
        return time.perf_counter() - began

    def next_selected(self, step: int, role: str | None) -> float:
        """The next selected step after this one, as far as it matters for arming."""
        following = self.config.policy(role).steps.next_after(step)
        return math.inf if following is None else following

    def exit(self, ticket: Ticket, error: BaseException | None, end_ns: int) -> None:
        """A selected window goes out."""
        self._guard(lambda: self.local.exit(ticket, error, end_ns))

    def approach(self, step: int, role: str | None) -> None:
        """The step before a selected one is over in this role: arm for it."""
        policy = self.policy(role)
        if policy.enabled and step in policy.steps and self._selects_rank(policy):
            self._guard(lambda: self.local.arm(step, role, policy))

    def _window(self, step: int, role: str | None, version: int | str | None) -> Window:
        with self._publishing:
            self._came.setdefault(role, set()).add(step)
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

    # -- who this is

    def _policies(self) -> list[Policy]:
        return [self.policy(role) for role in (None, *self.config.roles)]

    def _selects_rank(self, policy: Policy) -> bool:
        rank = self.identity.rank
        return policy.enabled and (
            rank in policy.ranks if isinstance(rank, int) else not policy.ranks.is_none
        )

    def _look_for_rank(self) -> None:
        """Asked again at each selected step: torch.distributed may have come up since `init`."""
        if self.identity.final:
            return
        identity = find_identity(None, None, os.environ)
        if not identity.final:
            return
        logger.info("rank known", rank=identity.rank, world_size=identity.world_size, source=identity.source)
        self.identity = identity
        self._origin.rank, self._origin.world_size = identity.rank, identity.world_size
        self.local.capturer.machine.target = f"rank-{identity.rank}"
        self.publish()
        if identity.world_size is not None:
            try:
                self.config.check_world(identity.world_size)
            except ConfigError as error:  # too late to refuse it: the ranks that there are record
                logger.warning("ranks that do not exist", reason=str(error))

    def refuse(self, what: str, reason: str) -> None:
        """Something illegal was asked for: told, and raised only if ``strict``."""
        logger.warning("refused", what=what, rank=self.identity.rank, reason=reason)
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
                rank=self.identity.rank,
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
        self._tell_what_never_came()
        self.background.stop(max(deadline - time.monotonic(), 1.0))
        self._spans.drain(self.recorder)
        self._spans.close()
        self.publish()
        ending.unwatch(self)

    def _tell_what_never_came(self) -> None:
        """Steps asked for by number of which no window came in; for a role that the configuration names, none of that role."""
        told = None
        for role in (None, *self.config.roles):
            policy = self.config.policy(role)
            came = set().union(*self._came.values()) if role is None else self._came.get(role, set())
            missing = policy.steps.without(came)
            if self._selects_rank(policy) and not missing.is_none and missing != told:
                logger.warning(
                    "selected steps never came", steps=str(missing), role=role, rank=self.identity.rank
                )
                told = told or missing


def init(
    config: Config | Mapping[str, object] | str | os.PathLike[str] | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    run_id: str | None = None,
) -> Session:
    """Make the session of this process: from here on windows and regions are recorded as configured.

    Args:
        config: a `Config`, a mapping (an OmegaConf node too), the path of a TOML file, or None: ``$STEPPROF_CONFIG``, then the
            ``STEPPROF_*`` variables, then off.
        rank: the global rank; None: torch.distributed, where it is initialised, then the launcher's variables, else 0 of 1.
        world_size: the number of ranks, where ``rank`` is given.
        run_id: what the run is called; None: what the launcher says, so that all ranks agree.

    Returns:
        The session. A second call with the same configuration returns the same one.

    Raises:
        ConfigError: the configuration is wrong, cannot match this job, or differs from that of the running session; or
            ``output_dir`` cannot be written.
    """
    settled = load(config)
    configured = config is not None or any(
        os.environ.get(name) for name in ("STEPPROF_CONFIG", *KEY_OF_VARIABLE)
    )
    with _starting:
        session = cell.session
        if session is not None:
            if session.config != settled:
                raise ConfigError(_difference(session.config, settled))
            return session
        identity = find_identity(rank, world_size, os.environ)
        if not configured or not settled.enabled or (settled.off and not settled.spans):
            return Session(settled, identity, None)
        if identity.world_size is not None and (identity.final or world_size is not None):
            settled.check_world(identity.world_size)
        for warning in settled.warnings():
            logger.warning("heavy configuration", reason=warning)
        run = open_run(
            settled.output_dir,  # type: ignore[arg-type]
            run_id=run_id,
            rank=identity.rank,
            world_size=identity.world_size,
            environ=os.environ,
            description=_describe(settled),
        )
        session = Session(settled, identity, run)
        session.start()
        return session


def shutdown(timeout: float | None = None) -> None:
    """End the session: closes open windows, waits ``timeout`` seconds (None: 120) for the exports. Idempotent; runs at exit too.

    >>> shutdown()
    """
    session = cell.session
    if session is not None:
        session.shutdown(timeout)


def _difference(before: Config, after: Config) -> str:
    old, new = before.to_dict(), after.to_dict()
    keys = [key for key in old if old[key] != new.get(key)]
    return f"init() was already called with another configuration (different: {', '.join(keys)}); call stepprof.shutdown() first"


def _describe(config: Config) -> dict[str, object]:
    versions = {"python": platform.python_version()}
    for name in ("stepprof", "torch", "torch_npu", "ray", "vllm", "sglang", "transformers"):
        found = getattr(sys.modules.get(name), "__version__", None)
        if found is not None:
            versions[name] = str(found)
    return {
        "created_unix_ns": time.time_ns(),
        "argv": sys.argv[:1],
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": versions,
        "config": config.to_dict(),
    }

"""The session of an actor that follows the windows of another process: trainer ranks, agent loops, reward servers.

Windows are entered as if the actor's own code had entered them, so that its capture, spans and manifest are those of any rank. Windows that the actor opens meanwhile join.
A session that was made for this purpose ends with the last attachment that uses it. A session of the actor's own code is never ended.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.backends import make_backend
from stepprof.config.config import load
from stepprof.errors import ConfigError, StepprofError
from stepprof.instrument.announced_window import AnnouncedWindows
from stepprof.instrument.step import StepWindow, profile_step
from stepprof.recording.lifecycle import open_session
from stepprof.recording.session import Session, current_session
from stepprof.recording.window_handle import LeftOpen, Ticket
from stepprof.remote.base import EngineFailure
from stepprof.remote.ray.inside.messages import Key, key_of
from stepprof.run.requests import Request
from stepprof.untraced import untraced

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow
    from stepprof.remote.ray.inside.messages import Attachment

_users: dict[Session, set[Follower]] = {}
"""The sessions that were made for followers, and their users."""
_making = threading.Lock()

CLOSE_SECONDS = 5.0
"""How long the end of a session waits for another thread that is just stopping its capture."""


class Follower:
    """One attachment's part in the session of this process."""

    def __init__(self, attachment: Attachment) -> None:
        self._spans = attachment.kind == "spans"
        self._session: Session | None = None
        self._open: dict[Key, StepWindow] = {}
        self._announced = AnnouncedWindows()

    @property
    def rank(self) -> int | str | None:
        """The rank of the session, once it exists."""
        return None if self._session is None else self._session.rank

    # requests of the driver process

    def join(self, attachment: Attachment, run: Path) -> Path:
        """Make or find the session of this process. Return the run's folder that it writes to."""
        session = self._ensure(attachment, run)
        if session.path is None:
            raise EngineFailure(
                f"stepprof is switched off in the actor (STEPPROF = {os.environ.get('STEPPROF')!r}, or enabled = false there)",
                "unconfigured",
            )
        if session.run_id != attachment.run_id:
            raise EngineFailure(
                f"the actor's own session records into the run {session.run_id}, not into {attachment.run_id}: "
                f'call stepprof.init(…, run_id="{attachment.run_id}") there, or leave the session to this attachment',
                "unconfigured",
            )
        return session.path

    def arm(self, attachment: Attachment, window: EngineWindow) -> None:
        """Prepare for a window."""
        session = self._here()
        self._ask(session, attachment)
        self._check(session, attachment, window)
        session.approach(window.window.step, window.window.role)

    def start(self, window: EngineWindow) -> str | None:
        """Enter the window on this thread, as the actor's own code would. Return the path of its manifest."""
        session = self._here()
        key = key_of(window)
        if key in self._open:
            raise EngineFailure(f"the window of step {key[0]} is open in the actor already", "busy")
        heard = self._announced.drop(key[:2])
        entered = profile_step(window.window.step, window.window.role, version=window.window.version)
        entered.__enter__()
        self._open[key] = entered
        ticket = _ticket(entered)
        problem = None
        if ticket is None:
            problem = _not_selected(session, window)
        elif ticket.record is not None and ticket.record.status in ("failed", "skipped"):
            problem = str(ticket.record.error)
        if problem is not None:
            self._close(key)
            if heard:
                self._announced.enter(key[:2], session)
            busy = session.local.capturer.health == "busy"
            raise EngineFailure(problem, "busy" if busy else "unconfigured")
        return _fragment_path(ticket)

    def enter(self, window: EngineWindow) -> None:
        """Enter a role's window inside the recorded one: later regions belong to the role."""
        self._here()
        key = key_of(window)
        if key not in self._open:
            self._announced.drop(key[:2])
            inner = profile_step(window.window.step, window.window.role, version=window.window.version)
            self._open[key] = inner.__enter__()

    def exit(self, window: EngineWindow) -> None:
        """Exit the role's window, if it is open."""
        if key_of(window) in self._open:
            self._close(key_of(window))

    def stop(self, window: EngineWindow) -> tuple[str | None, str | None]:
        """Exit the window. Return the path of its manifest, and what capped its capture."""
        self._here()
        key = key_of(window)
        if key not in self._open:
            raise EngineFailure(f"no window of step {key[0]} is open in the actor's session", "unknown")
        ticket = self._close(key)
        record = None if ticket is None else ticket.record
        if record is None:
            return None, None
        if record.status == "failed":
            raise EngineFailure(str(record.error), "unknown")
        return _fragment_path(ticket), record.capped_by

    def abort(self, reason: str) -> None:
        """Close every window of this driver; what was recorded is kept as partial."""
        for key in list(self._open):
            self._close(key, LeftOpen(reason))

    def follow(self, number: int, windows: Sequence[tuple[int, str | None]]) -> bool:
        """Note which windows are open in the other process: regions without a window of their own carry the last one's step and role.

        Returns:
            Whether there is a session here.
        """
        session = self._session
        if session is None or current_session() is not session:
            return False
        self._announced.follow(number, windows, {key[:2] for key in list(self._open)}, session)
        return True

    @property
    def is_open(self) -> bool:
        """Whether a window of the other process is open here."""
        return bool(self._open)

    def close(self, reason: str) -> None:
        """End every window on this thread, and what the session keeps open, if it ends with this attachment."""
        self.abort(reason)
        session = self._session
        self._announced.end_all(session)
        if session is None or current_session() is not session:
            return
        with _making:
            ours = _users.get(session) == {self}
        if ours:
            session.local.ask_owner(reason, CLOSE_SECONDS)
            session.local.abort(reason, CLOSE_SECONDS)

    def leave(self, timeout: float) -> list[str]:
        """Wait for the exports after `close`, and end the session if it was made for this attachment. Returns its span files."""
        session, self._session = self._session, None
        if session is None or session.path is None:
            return []
        files = session.path / "spans"
        with _making:
            users = _users.get(session, set())
            users.discard(self)
            ours = session in _users and not users
            if ours:
                _users.pop(session)
        if ours and current_session() is session:
            session.shutdown(timeout)
        else:
            session.exporter.wait(timeout)
        return sorted(map(str, files.glob(f"rank-{session.rank}.*.jsonl")))

    # -- the session

    def _ensure(self, attachment: Attachment, run: Path) -> Session:
        """Return the session of this process; make it if there is none."""
        with _making:
            session = current_session()
            if session is None:
                config = {**attachment.config, "output_dir": str(run.parent)}
                rank, is_final = (attachment.rank, True) if self._spans else _rank(attachment)
                try:
                    session = untraced(
                        lambda: open_session(
                            load(spans_only(config) if self._spans else config),
                            rank=rank,
                            world_size=attachment.world_size or _distributed()[1],
                            run_id=attachment.run_id,
                            name=attachment.name,
                        )
                    )
                except StepprofError as error:
                    raise EngineFailure(f"no session in the actor: {error}", "unconfigured") from None
                if session.path is not None:
                    if not is_final:  # torch.distributed may be initialised later; its answer is better
                        session.selector.identity = replace(session.selector.identity, final=False)
                    _users[session] = set()
                    session.lent = True
                    session.follow_job(attachment.job)
            if session in _users:
                _users[session].add(self)
            self._session = session
            return session

    @staticmethod
    def _ask(session: Session, attachment: Attachment) -> None:
        """Apply the requests of the driver process."""
        for table in attachment.requests:
            try:
                session.selector.request(Request.read(table))
            except ConfigError as error:
                raise EngineFailure(
                    f"the request cannot be met in the actor: {error}", "unconfigured"
                ) from None

    def _check(self, session: Session, attachment: Attachment, window: EngineWindow) -> None:
        """Refuse in advance what this session cannot record."""
        policy = session.selector.select(window.window.step, window.window.role)  # looks for the rank again
        known, _ = _distributed()
        expected = attachment.rank if attachment.rank is not None else known
        if not isinstance(session.rank, int):
            raise EngineFailure(
                f"the actor's own session has no rank ({session.rank}): call stepprof.init(…, rank=…) there, "
                "or leave the session to this attachment",
                "unconfigured",
            )
        if expected is not None and session.rank != expected:
            who = "was attached as" if attachment.rank is not None else "is, as torch.distributed says,"
            raise EngineFailure(
                f"the actor {who} rank {expected}, but its session is that of rank {session.rank}; attach with rank = {expected}",
                "unconfigured",
            )
        if policy is None:
            raise EngineFailure(_not_selected(session, window), "unconfigured")
        reason = session.local.capturer.backends.probe(policy)
        if reason is not None:
            raise EngineFailure(
                f"{'+'.join(policy.backend)} cannot record in the actor: {reason}", "unconfigured"
            )
        if make_backend(policy).thread_bound and threading.current_thread() is not threading.main_thread():
            raise EngineFailure(
                f"a capture by {'+'.join(policy.backend)} is bound to one thread (profile_memory, all_threads = false), but "
                "this actor runs its methods and its control calls on different threads: use a plain actor, or call "
                "profile_step in its own method",
                "unconfigured",
            )

    def _here(self) -> Session:
        session = self._session
        if session is None or current_session() is not session:
            raise EngineFailure("the actor's session has ended", "unconfigured")
        return session

    def _close(self, key: Key, error: BaseException | None = None) -> Ticket | None:
        entered = self._open.pop(key)
        ticket = _ticket(entered)
        entered.__exit__(None if error is None else type(error), error, None)
        return ticket


def spans_only(config: Mapping[str, object]) -> dict[str, object]:
    """Return the configuration of a process that captures nothing, but whose regions belong to the run."""
    return {"output_dir": config["output_dir"], "spans": True, "backend": "null"}


def _ticket(entered: StepWindow) -> Ticket | None:
    ticket = entered._after or None
    return ticket if isinstance(ticket, Ticket) else None


def _fragment_path(ticket: Ticket | None) -> str | None:
    """Return the path of the manifest of a window; write it if necessary."""
    if ticket is None or ticket.fragment is None:
        return None
    if ticket.fragment.claim is None:
        ticket.fragment.write()
    claim = ticket.fragment.claim
    return None if claim is None else str(claim.fragment)


def _not_selected(session: Session, window: EngineWindow) -> str:
    policy = session.config.policy(window.window.role)
    return (
        f"the actor's session does not select step {window.window.step} of rank {session.rank} "
        f"(steps = {policy.steps}, ranks = {policy.ranks})"
    )


def _rank(attachment: Attachment) -> tuple[int, bool]:
    """Return the rank, and whether it is final: given, else torch.distributed's, else $RANK, else
    for now the position in the attach. A launcher's other variables are those of Ray's own
    process.
    """
    if attachment.rank is not None:
        return attachment.rank, True
    known, _ = _distributed()
    if known is not None:
        return known, True
    variable = os.environ.get("RANK", "")
    return (int(variable), True) if variable.isdecimal() else (attachment.position, False)


def _distributed() -> tuple[int | None, int | None]:
    """Return rank and world size of torch.distributed, if it is initialised."""
    distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None, None
    return int(distributed.get_rank()), int(distributed.get_world_size())

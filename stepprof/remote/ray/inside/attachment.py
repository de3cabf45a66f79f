"""One attachment inside an actor: an engine that it holds, or a session that follows the windows of another process."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.errors import ConfigError
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.remote.base import EngineFailure, EngineWindow, Stopped
from stepprof.remote.core.lease import watch
from stepprof.remote.loop import remote_loop
from stepprof.remote.ray.inside.find_engine import locate, only_engine, same_url, shown
from stepprof.remote.ray.inside.messages import Attachment, Facts, Inside, Report, Unknown, boot_id, node_id
from stepprof.remote.ray.late_files import PendingReports
from stepprof.run.layout import step_folder
from stepprof.run.manifest_writer import describe_error
from stepprof.untraced import untraced

if TYPE_CHECKING:
    from stepprof.remote.base import EngineDriver
    from stepprof.remote.ray.inside.follower import Follower

DETACHED = "the process that drives this one has detached it"
GONE = "the process that drives this one has ended"

EXPORT_SECONDS = 120.0
"""How long the exports of an actor may take after its driver has ended."""

GRACE_SECONDS = 30.0
"""How much longer than its limit an engine's capture may run without a stop: the process that started it has ended."""


class Guest:
    """One attachment in this process: an engine, or a session that follows the other process's windows."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.turn = threading.Lock()
        self.plain = False
        self.pending = PendingReports()
        """The pending reports of its engine."""
        self.attachment: Attachment | None = None
        self._engine: EngineDriver | None = None
        self._target: object = None
        self._follower: Follower | None = None
        self._run = Path()
        self._visible = True
        self._forgotten: threading.Timer | None = None
        self._closed = False
        self._recording: EngineWindow | None = None
        """The window that its engine records."""

    # -- the verbs

    def arm(self, actor: object, attachment: Attachment, window: EngineWindow) -> Facts:
        """Find the requested engine or session, and prepare it."""
        self._take(attachment)
        self._run, self._visible = attachment.place()
        if attachment.kind == "engine":
            self._find_engine(actor, attachment)
            self._on_loop(self._driver.arm, self._local(window, make=True))
        else:
            self._follow(attachment).arm(attachment, window)
        return self._facts()

    def start(self, window: EngineWindow) -> str | None:
        """Begin. Return where the manifest of a rank's window is."""
        self._known("start")
        if self._follower is not None:
            return self._follower.start(window)
        self._on_loop(self._driver.start, self._local(window))
        self._recording = window
        self._watch_over(window)
        return None

    def stop(self, window: EngineWindow) -> Report:
        """End. The files are on this host."""
        self._known("stop")
        self._unwatch()
        self._recording = None
        if self._follower is not None:
            fragment, capped_by = self._follower.stop(window)
            return Report(Stopped(capped_by=capped_by), fragment=fragment)
        stopped = self._on_loop(self._driver.stop, self._local(window))
        folder = str(self._local(window).folder)
        if stopped.later is None:
            return Report(stopped, folder=folder)
        self.pending.begin(window, stopped.later)
        return Report(replace(stopped, later=None), folder=folder, awaited=True)

    def enter(self, window: EngineWindow) -> None:
        """Enter a role's window inside the recorded one."""
        self._known("enter")
        if self._follower is not None:
            self._follower.enter(window)

    def exit(self, window: EngineWindow) -> None:
        """Leave it."""
        if self._follower is not None:
            self._follower.exit(window)

    def abort(self) -> None:
        """Leave any state."""
        self._unwatch()
        self._recording = None
        if self._follower is not None:
            self._follower.abort("the driver process aborted the window")
        elif self._engine is not None:
            self._on_loop(self._engine.abort)

    def join(self, attachment: Attachment) -> Facts:
        """Make a session in this process, for announcements of open windows."""
        if self.attachment is None:
            self._run, self._visible = attachment.place()
        self._take(attachment)
        self._follow(attachment)
        return self._facts()

    def follow(self, number: int, windows: Sequence[tuple[int, str | None]]) -> bool:
        """Note which windows are open now; return whether there is a session to note it. Waits for no other call."""
        follower = self._follower
        return follower is not None and not self._closed and follower.follow(number, windows)

    def close(self, reason: str = DETACHED) -> None:
        """Take no more windows; end the open ones, if possible on the thread that entered them."""
        self._closed = True
        watch.remove(self.token)
        if self._follower is not None:  # an engine may be recorded for another attachment by now
            self._follower.close(reason)

    def leave(self, timeout: float) -> list[str]:
        """Wait for exports after `close`, and end the session. Return the span files that the other process cannot see."""
        follower, self._follower = self._follower, None
        spans = [] if follower is None else follower.leave(timeout)
        return [] if self._visible else spans

    def close_and_leave(self, timeout: float) -> list[str]:
        """Call `close` and `leave`, if any thread may."""
        self.close()
        return self.leave(timeout)

    def _take(self, attachment: Attachment) -> None:
        if self._closed:
            raise EngineFailure("it was detached before the actor ran this call", "ok")
        self._make_room(attachment)
        self.attachment = attachment
        if attachment.lease is not None:
            watch.add(self.token, attachment.lease, self._is_open, self.end_with_driver)

    def _make_room(self, attachment: Attachment) -> None:
        """End the attachments of drivers that have ended, and those of an earlier run of this driver.
        Raises EngineFailure if a living driver's session occupies the process.
        """
        lease = attachment.lease
        for other in list(guests.values()):
            theirs = other.attachment
            if other is self or theirs is None or lease is None or theirs.lease is None:
                continue
            same_run = theirs.run_id == attachment.run_id
            if theirs.lease == lease and same_run:
                continue
            if theirs.lease == lease or theirs.lease.is_over:
                other.end_with_driver(waits=True)
            elif attachment.kind != "engine" and other._follower is not None and not same_run:
                raise EngineFailure(
                    f"the actor follows the windows of run {theirs.run_id}, whose driver is alive ({theirs.lease}): "
                    "end that job, or have it detach the actor",
                    "busy",
                )

    # -- the lease

    def _is_open(self) -> bool:
        follower = self._follower
        return self._recording is not None or (follower is not None and follower.is_open)

    def end_with_driver(self, *, waits: bool = False) -> None:
        """Keep what is recorded as partial after the driver has ended, and end a session that was made for it. Raises nothing.

        Args:
            waits: the main thread of a plain actor waits meanwhile, on behalf of the next
                attachment. Only then may a synchronous engine, whose event loop no other thread runs,
                be stopped.
        """
        attachment, window = self.attachment, self._recording
        runs_loop = self._engine is not None and self._engine.runs_loop
        if window is not None and self.plain and not waits and runs_loop:
            return  # a stop would run the engine's event loop, which blocks the actor's own call
        if window is not None:
            self._end_forgotten(window)
        with self.turn:
            if attachment is None or self._closed:
                return
            logger.warning("lease.ended", run_id=attachment.run_id, driver=str(attachment.lease))
            try:
                self.close(GONE)
                self.leave(EXPORT_SECONDS)
            except ours(Exception) as error:  # a plug-in may raise anything; no caller is left to get it
                logger.warning("lease.not_ended", run_id=attachment.run_id, reason=describe_error(error))
            guests.pop(self.token, None)

    # -- a session

    def _follow(self, attachment: Attachment) -> Follower:
        if self._follower is None:
            module = untraced(partial(import_module, "stepprof.remote.ray.inside.follower"))
            self._follower = module.Follower(attachment)
        self._run = self._follower.join(attachment, self._run)
        self._visible = self._visible or bool(attachment.marker and (self._run / attachment.marker).exists())
        return self._follower

    # -- the engine

    @property
    def _driver(self) -> EngineDriver:
        if self._engine is None:
            raise EngineFailure("no engine was found in the actor", "unconfigured")
        return self._engine

    def _find_engine(self, actor: object, attachment: Attachment) -> None:
        """Return the current engine: it may have been rebuilt since the last window."""
        find = only_engine(actor) if attachment.find is None else attachment.find
        target = locate(actor, find)
        if self._engine is None or not (target is self._target or same_url(target, self._target)):
            from stepprof.remote.kinds import recognise

            try:
                self._engine = recognise(target, **attachment.options)
            except ConfigError as error:
                what = f"find = {shown(find)} returned no engine that can be recorded"
                raise EngineFailure(f"{what}: {error}", "unconfigured") from None
            self._target = target
        if self._engine.inside:
            raise Inside(
                "the engine's worker is the actor's own process; its work is in that process's own capture where the "
                'actor is attached with kind="both" or "rank", and in none otherwise',
                "unconfigured",
            )

    def _local(self, window: EngineWindow, *, make: bool = False) -> EngineWindow:
        """Return the window with the folder that this host sees."""
        if self._visible:
            return window
        local = replace(window, folder=self._run / step_folder(window.window.step), trace_dir=None)
        if make:
            try:
                local.output.mkdir(parents=True, exist_ok=True)
            except ours(OSError) as error:
                raise EngineFailure(
                    f"{local.output} cannot be made on {socket.gethostname()}: {error.strerror}; "
                    "attach with output_dir = a folder that the actor can write",
                    "unconfigured",
                ) from None
        return local

    def _on_loop(self, call: Callable[..., Any], *arguments: object) -> Any:
        """Call the engine's driver on stepprof's loop, and wait for it as long as necessary: no
        method of the actor runs on this thread.
        """
        return remote_loop().submit(call(*arguments)).result()

    def waits(self, verb: str, attachment: Attachment | None) -> float | None:
        """Return how long a call may block a plain actor while another thread works; None: the call
        does the work itself, because a session's capture may be bound to its thread.
        """
        known = attachment or self.attachment
        if known is None or known.kind != "engine" or verb not in ("arm", "start", "stop", "abort"):
            return None
        return known.start_seconds if verb == "start" else known.stop_seconds

    def _known(self, verb: str) -> Attachment:
        if self.attachment is None:
            raise Unknown(
                f"the actor's process (pid {os.getpid()}) was not prepared: it has been restarted", "unknown"
            )
        return self.attachment

    def _facts(self) -> Facts:
        engine = self._engine
        return Facts(
            host=socket.gethostname(),
            pid=os.getpid(),
            boot_id=boot_id(),
            node_id=node_id(),
            plain=self.plain,
            visible=self._visible,
            kind=None if engine is None else engine.kind,
            workers=None if engine is None else engine.workers,
            rank=None if self._follower is None else self._follower.rank,
        )

    # the process that started it may have ended: an engine's capture would then grow without limit

    def _watch_over(self, window: EngineWindow) -> None:
        attachment = self._known("start")
        if attachment.max_seconds is None:
            return
        self._forgotten = threading.Timer(
            attachment.max_seconds + GRACE_SECONDS, self._end_forgotten, (window,)
        )
        self._forgotten.daemon = True
        self._forgotten.start()

    def _unwatch(self) -> None:
        if self._forgotten is not None:
            self._forgotten.cancel()
            self._forgotten = None

    def retire(self) -> None:
        """Leave an engine to the next attachment, which stops anything still open."""
        if self._engine is not None:
            self._engine.retire()

    def _end_forgotten(self, window: EngineWindow) -> None:
        logger.warning(
            "capture.stop_missing", step=window.window.step, role=window.window.role, pid=os.getpid()
        )
        with self.turn:
            try:
                self.stop(window)
            except ours(Exception) as error:  # a plug-in may raise anything; the result is not awaited
                logger.warning("capture.stop_failed", step=window.window.step, reason=describe_error(error))


guests: dict[str, Guest] = {}
"""The attachments of this process, by their tokens."""

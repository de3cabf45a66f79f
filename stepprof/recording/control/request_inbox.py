"""Read the requests of a run, on the background thread. Accept those in time and report the others as
missed.

The background thread checks the modification time of the folder once a second, and reads the folder
only if it has changed. An accepted request becomes a part of the selection (`Selector.request`), so
the training thread does no more work than before. The outcome of each request is in the status of
this process.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stepprof.config.selection import Steps
from stepprof.errors import ConfigError
from stepprof.host import real_time
from stepprof.host.own_files import foreign_folder, own_uid, read_own
from stepprof.interrupts import ignored, ours
from stepprof.log import logger
from stepprof.run.layout import REQUESTS
from stepprof.run.requests import WITHDRAWN, Request, read_request

if TYPE_CHECKING:
    from stepprof.config.config import Policy
    from stepprof.recording.selector import Selector

LOOK_SECONDS = 0.9
"""Minimum seconds between two looks at the folder: one per quiet round of the background thread."""

SETTLED_SECONDS = 3.0
"""A folder that changed less than this ago is read again: two changes within one tick of a file
system's clock look like one.
"""

AGAIN_SECONDS = 30.0
"""The folder is always read again after this: some file systems do not update its modification time."""

TRIES = 20
"""Maximum number of attempts to read a listed file, one per second: a network file system may list a
name before its file.
"""

_FOR_GOOD = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR, errno.ENXIO})
"""Errors that no retry removes: another user's file, a link, a file that is not plain."""

KEPT = 64
"""Number of latest requests whose outcome stays in the status."""

KNOWN = 4096
"""Maximum number of files to read in a run: people make fewer requests."""

LOGGED = 8
"""Number of refused files that are logged one by one; then one line whenever their number has doubled."""

OVERLAP = 8
"""In asynchronous training, windows of a step may be entered until this many later steps have begun."""

Outcome = Literal["accepted", "reached", "missed", "refused", "withdrawn", "not here"]
"""``accepted``: pending; ``reached``: a window of every step was entered and passed to the capture;
``not here``: for other ranks.
"""


@dataclass(slots=True)
class _Seen:
    """A request and its outcome in this process."""

    outcome: Outcome
    reason: str | None = None
    request: Request | None = None
    missed: str | None = None
    """The steps that were already past, as text."""
    early: bool = False
    """The request was there before the first step of this process."""


class Control:
    """The requests of one run, in one process.

    Args:
        run: the run directory.
        selector: receives accepted requests.
        probe: performs a backend's slow imports; returns why it cannot record here, or None.
        last_step: returns the last step that was entered here.
        elsewhere: returns why no window of this process can match a request; None: one may. Its flag says whether the request was there before the
            first step.
    """

    def __init__(
        self,
        run: Path,
        selector: Selector,
        probe: Callable[[Policy], str | None],
        last_step: Callable[[], int | None],
        elsewhere: Callable[[Request, bool], str | None] = lambda request, early: None,
    ) -> None:
        self._folder = run / REQUESTS
        self._selector = selector
        self._probe = probe
        self._last_step = last_step
        self._elsewhere = elsewhere
        self._uid = os.getuid() if hasattr(os, "getuid") else None
        self._uid_is_sure = self._uid is None
        self._seen: dict[str, _Seen] = {}
        self._files: set[str] = set()
        self._unread: dict[str, int] = {}
        """Attempts for each file that could not be read yet."""
        self._looked = -LOOK_SECONDS
        self._read_at: tuple[int, float] = (0, 0.0)
        self._failed: str | None = None
        self._unprepared: list[Policy] = []
        self._refused = 0
        """Number of refused files."""
        self._refusals_logged = 0

    def outcomes(self) -> dict[str, dict[str, Any]]:
        """Return the outcomes of the latest requests by name, JSON-able."""
        latest = list(self._seen.items())[-KEPT:]
        return {
            name: {
                "outcome": seen.outcome,
                "reason": seen.reason,
                "missed": seen.missed,
                "steps": None if seen.request is None else str(seen.request.steps),
                "role": None if seen.request is None else seen.request.role,
            }
            for name, seen in latest
        }

    def look(self) -> None:
        """Read new requests and update the outcomes, at most once a second."""
        now = real_time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        self._conclude()
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return  # there are no requests
        except ours(OSError) as error:
            self._fail(str(error))
            return
        read_ns, read_at = self._read_at
        age = now - read_at
        if changed_ns == read_ns and SETTLED_SECONDS < age < AGAIN_SECONDS and not self._unread:
            return
        if changed_ns != read_ns or age >= AGAIN_SECONDS:
            self._read_at = changed_ns, now
        self._read()

    def prepare(self) -> None:
        """Load the backends of accepted requests, which takes seconds the first time. It follows the
        publication of the answer.
        """
        while self._unprepared:
            self._probe(self._unprepared.pop(0))

    def _read(self) -> None:
        reason = "it is a link" if self._folder.is_symlink() else foreign_folder(self._folder)
        if reason is not None:
            self._fail(f"{self._folder}: {reason}; the requests in it are ignored")
            return
        try:
            with os.scandir(self._folder) as entries:
                names = {entry.name for entry, _ in zip(entries, range(4 * KNOWN), strict=False)}
        except ours(OSError) as error:
            self._fail(str(error))
            self._read_at = (0, 0.0)  # the folder was not read, so its modification time does not count
            return
        for name in sorted(names - self._files):
            if name.startswith("."):
                continue  # being written
            if len(self._files) >= KNOWN:
                self._fail(f"more than {KNOWN} files; the others are ignored")
                return
            if name.endswith(WITHDRAWN):
                self._look_into(name, self._withdraw)
            elif name.endswith(".json"):
                self._look_into(name, self._take)
        self._unread = {name: tries for name, tries in self._unread.items() if name in names - self._files}
        if self._refused >= 2 * max(self._refusals_logged, LOGGED):
            self._log_refusals()

    def _look_into(self, name: str, act: Callable[[Path], None]) -> None:
        """Read a file once; repeat only if it could not be read."""
        path = self._folder / name
        try:
            act(path)
        except ConfigError as error:
            self._refuse(path, str(error))
        except ours(OSError) as error:
            tries = self._unread[name] = self._unread.get(name, 0) + 1
            if tries < TRIES and error.errno not in _FOR_GOOD:
                return
            self._refuse(path, str(error))
        self._files.add(name)

    def _refuse(self, path: Path, reason: str) -> None:
        self._refused += 1
        is_logged = self._refused <= LOGGED
        self._refusals_logged += is_logged
        if path.suffix != WITHDRAWN:
            self._settle(path.stem[:100], _Seen("refused", reason), is_logged=is_logged)
        elif is_logged:
            logger.warning("request.withdrawal_refused", request=path.stem[:100], reason=reason)

    def _log_refusals(self) -> None:
        """Log the number of further refused files, in one line."""
        more, self._refusals_logged = self._refused - self._refusals_logged, self._refused
        logger.warning("request.more_refused", files=more, in_all=self._refused, folder=str(self._folder))

    def _user(self, path: Path) -> int | None:
        """Return the user that a request must belong to.

        If a request has another owner than this process, the file system may map owners: the folder
        is asked then.
        """
        if not self._uid_is_sure and path.lstat().st_uid != self._uid:
            self._uid, self._uid_is_sure = own_uid(self._folder), True
        return self._uid

    def _take(self, path: Path) -> None:
        request = read_request(path, self._user(path))
        withdrawn = path.with_suffix(WITHDRAWN)
        if withdrawn.name in self._files or withdrawn.exists():
            with ignored(ConfigError, OSError):  # logged or retried by itself
                read_own(withdrawn, self._user(withdrawn))
                self._settle(request.name, _Seen("withdrawn", None, request))
                return
        self._settle(request.name, self._ask(request))

    def _ask(self, request: Request) -> _Seen:
        """Select the steps of a request that are still to come."""
        try:
            policies = self._selector.asked_of(request)
            past = self._last_step()
            while True:
                left, missed = _still_to_come(request, past)
                if left is None:
                    elsewhere = self._elsewhere(request, False) if policies else "for other ranks"
                    if elsewhere is not None:
                        return _Seen("not here", elsewhere, request)
                    reason = f"this rank was at step {past} when it saw the request"
                    return _Seen("missed", reason, request, missed)
                self._selector.request(left)
                if (
                    not policies and self._selector.identity.final
                ):  # an engine that is attached later may record it
                    return _Seen("not here", "for other ranks", request)
                past = self._last_step()
                if (
                    past is None
                    or past < left.step
                    or not policies
                    or left.step in self._selector.entered_steps()
                ):
                    self._unprepared += [p for p in policies if self._selector.selects_rank(p)]
                    return _Seen("accepted", None, request, missed, early=past is None)
                # the step was entered meanwhile: only a part of it would be recorded
                self._selector.withdraw(left.name)
        except ConfigError as error:
            return _Seen("refused", str(error), request)

    def _withdraw(self, path: Path) -> None:
        read_own(path, self._user(path))
        name = path.stem
        self._selector.withdraw(name)
        seen = self._seen.get(name)
        if seen is not None and seen.outcome == "accepted":
            self._settle(name, _Seen("withdrawn", None, seen.request, seen.missed))

    # -- outcomes

    def _conclude(self) -> None:
        """Update requests whose steps were recorded or are past."""
        last = self._last_step()
        if last is None:
            return
        for name, seen in self._seen.items():
            if seen.outcome == "accepted" and seen.request is not None:
                outcome = self._outcome(seen, seen.request)
                if outcome.outcome == "reached" or last > seen.request.last_step + 1:
                    self._settle(name, outcome)
        for request in self._selector.requests:
            if last > request.last_step + OVERLAP:
                self._selector.withdraw(request.name)

    def _outcome(self, seen: _Seen, request: Request) -> _Seen:
        missing = request.steps.without(self._selector.entered_steps(request.role))
        if missing.is_none:
            return replace(seen, outcome="reached")
        if not self._selector.asked_of(request):
            return replace(seen, outcome="not here", reason="for other ranks", missed=None)
        reason = self._elsewhere(request, seen.early)
        if reason is not None:
            return replace(seen, outcome="not here", reason=reason, missed=None)
        if str(missing) == seen.missed:
            reason = "this rank was past these steps when it saw the request"
        else:
            reason = "no window of these steps began after the request"
        return replace(seen, outcome="missed", reason=reason, missed=str(missing))

    def close(self) -> None:
        """End of the run: pending requests are missed."""
        if self._refused > self._refusals_logged:
            self._log_refusals()
        for name, seen in self._seen.items():
            if seen.outcome == "accepted" and seen.request is not None:
                outcome = self._outcome(seen, seen.request)
                if outcome.outcome == "missed" and outcome.missed != seen.missed:
                    outcome.reason = "the session ended before these steps"
                self._settle(name, outcome)

    def _settle(self, name: str, seen: _Seen, *, is_logged: bool = True) -> None:
        self._seen[name] = seen
        if not is_logged:
            return
        fields = {"request": name, "reason": seen.reason, "missed": seen.missed}
        if seen.request is not None:
            fields |= {"steps": str(seen.request.steps), "role": seen.request.role, "by": seen.request.by}
        known = {key: value for key, value in fields.items() if value is not None}
        if seen.outcome == "refused":
            logger.warning("request.refused", **known)
        elif seen.outcome == "missed" or seen.missed:
            logger.warning("request.missed", **known)
        else:
            logger.info("request.changed", outcome=seen.outcome, **known)

    def _fail(self, reason: str) -> None:
        if self._failed != reason:
            self._failed = reason
            logger.warning("request.unreadable", folder=str(self._folder), reason=reason)


def _still_to_come(request: Request, past: int | None) -> tuple[Request | None, str | None]:
    """Split a request into the steps after the last entered one, and the others."""
    if past is None or past < request.step:
        return request, None
    if past >= request.last_step:
        return None, str(request.steps)
    left = replace(request, step=past + 1, count=request.last_step - past)
    return left, str(Steps(((request.step, past),)))

"""Captures that a process requests by itself: of the next step, by an ordinary request, within the
budget of the run.

The used budget is in the run directory, so it holds for all ranks together and after a restart:

    <run>/watch/000001.json          what was unusual, where, and which step is recorded for it

Only one process can create a file, and the numbers end at the budget. If several ranks find the
same step slow, that is one event, and the first rank records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.errors import ConfigError
from stepprof.formatting import size
from stepprof.host.atomic_files import write_atomically, write_exclusively
from stepprof.host.plain_files import read_table
from stepprof.host.process_identity import is_alive, writer_identity
from stepprof.interrupts import ignored, ours
from stepprof.log import logger
from stepprof.run.layout import MANIFEST, PRUNED, step_folder
from stepprof.run.requests import Request, place_request

if TYPE_CHECKING:
    from stepprof.config.config import Policy
    from stepprof.config.options.watch import WatchOptions
    from stepprof.recording.selector import Selector

WATCH = "watch"
TRIES = 4
"""Maximum number of steps to request, if each has begun before its request was accepted."""


@dataclass(eq=False)
class AutoCaptures:
    """The captures that this process requests."""

    run: Path
    """The run directory."""
    options: WatchOptions
    """The budget."""
    selector: Selector
    """Selects the steps of this process."""
    probe: Callable[[Policy], str | None]
    """Returns why a policy's backend cannot record here, or None; performs its slow imports."""
    _asked: Request | None = field(default=None, init=False)
    _claim: tuple[Path, dict[str, Any]] | None = field(default=None, init=False)
    _tries: int = field(default=0, init=False)

    def record(
        self, what: str, facts: Mapping[str, object], role: str | None, next_step: Callable[[], int]
    ) -> str:
        """Request the next step of the role because of a finding. Return the result as text; never raise."""
        if self._asked is not None:
            return f"none: the capture of step {self._asked.step} is pending"
        try:
            return self._try_to_record(what, facts, role, next_step)
        except ours(OSError, ConfigError) as error:
            return f"none: {error}"

    def _try_to_record(
        self, what: str, facts: Mapping[str, object], role: str | None, next_step: Callable[[], int]
    ) -> str:
        if not self.options.max_captures:
            return "none: max_captures = 0"
        policy = self.selector.policy(role)
        if not policy.enabled:
            return f'none: the role "{role}" is disabled by the configuration'
        problem = self.probe(policy)
        if problem is not None:
            return f"none: {'+'.join(policy.backend)} cannot record here: {problem}"
        rank = self.selector.identity.rank
        request = self._request(what, role, next_step(), policy, rank)
        claim = self._take(what, facts, request, rank)
        if isinstance(claim, str):
            return claim
        self._claim, self._tries = claim, 1
        self._ask(request)
        return f"step {request.step}"

    def record_elsewhere(self, what: str, facts: Mapping[str, object], rank: int, step: int) -> str:
        """Request this step of another rank, as a person would; never raise."""
        if not self.options.max_captures:
            return "none: max_captures = 0"
        try:
            request = self._request(what, None, step, self.selector.policy(None), rank)
            claim = self._take(what, facts, request, rank)
            if isinstance(claim, str):
                return claim
            place_request(self.run, request)
        except ours(OSError, ConfigError) as error:
            return f"none: {error}"
        return f"step {step}"

    def _request(self, what: str, role: str | None, step: int, policy: Policy, rank: int | str) -> Request:
        changes: dict[str, Any] = {}
        left = self._left()
        if isinstance(rank, int):
            changes["ranks"] = str(rank)
        if left is not None and (policy.max_bytes is None or policy.max_bytes > left):
            changes["max_bytes"] = max(left, 1)
        return Request.make(step, role=role, reason=f"watch: {what}", **changes)

    @staticmethod
    def _target(request: Request, rank: int | str) -> dict[str, Any]:
        return {"capture_step": request.step, "capture_rank": rank, "request": request.name}

    def _ask(self, request: Request) -> None:
        self.selector.request(request)
        self._asked = request

    # -- the budget

    def _take(
        self, what: str, facts: Mapping[str, object], request: Request, rank: int | str
    ) -> tuple[Path, dict[str, Any]] | str:
        """Take the next part of the budget, or return why there is none for the step of the finding."""
        step = facts["step"]
        content = {"what": what, **facts, "writer": writer_identity(), **self._target(request, rank)}
        left = self._left()
        if left is not None and left <= 0:
            return f"none: the captures of this run have used up max_bytes = {size(self._limit)}"
        folder = self.run / WATCH
        folder.mkdir(exist_ok=True)
        for number in range(1, self.options.max_captures + 1):
            path = folder / f"{number:06d}.json"
            if not path.exists() and write_exclusively(path, _dump(content)):
                return path, content
            claim = _read(path)
            if claim.get("step") == step and not _is_over(claim.get("writer")):
                return f"none: another rank records for step {step}"
        return f"none: max_captures = {self.options.max_captures} of this run are used up"

    @property
    def _limit(self) -> int | None:
        return self.options.max_bytes if isinstance(self.options.max_bytes, int) else None

    def _left(self) -> int | None:
        """Return the remaining bytes; None: unlimited."""
        if self._limit is None:
            return None
        claims = (_read(path) for path in sorted((self.run / WATCH).glob("*.json")))
        return self._limit - sum(self._bytes_of(claim) for claim in claims)

    def _bytes_of(self, claim: Mapping[str, Any]) -> int:
        step, rank = claim.get("capture_step"), claim.get("capture_rank")
        if not isinstance(step, int) or step < 0:
            return 0
        # a process without a rank records its attached engines
        pattern = f"*/rank-{rank}.*" if isinstance(rank, int) else "*/**/*"
        # deleted artifacts count too
        total = _pruned_bytes(self.run / step_folder(step) / MANIFEST / PRUNED)
        for file in (self.run / step_folder(step)).glob(pattern):
            with ignored(OSError):  # deleted meanwhile: it uses no budget
                total += file.stat().st_size if file.parent.name != "manifest" and file.is_file() else 0
        return total

    # -- the result

    def look(self, last: int | None, next_step: Callable[[str | None], int]) -> None:
        """Check whether the requested step was recorded, or had begun before the request.

        Args:
            last: the last completed step.
            next_step: returns the next step of a role that has not begun.
        """
        asked, claim = self._asked, self._claim
        if asked is None or claim is None or last is None or last <= asked.step:
            return
        self._asked = None
        self.selector.withdraw(asked.name)
        if self.selector.was_entered(asked.step):
            return
        if self._tries >= TRIES:
            logger.warning(
                "window.not_recorded", step=asked.step, role=asked.role, reason="the step had begun already"
            )
            return
        self._tries += 1
        path, content = claim
        changes: dict[str, Any] = dict(asked.changes)
        again = Request.make(next_step(asked.role), role=asked.role, reason=asked.reason, **changes)
        try:
            content = {**content, **self._target(again, content["capture_rank"])}
            write_atomically(path, _dump(content))
            self._claim = (path, content)
            self._ask(again)
        except ours(OSError, ConfigError) as error:
            logger.warning("window.not_recorded", step=again.step, role=again.role, reason=str(error))


def _dump(content: Mapping[str, Any]) -> bytes:
    return json.dumps({"schema_version": 1, **content}, indent=1, default=str).encode()


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a claim; empty if unreadable, which still counts."""
    try:
        return read_table(path)
    except ours(OSError, ValueError):
        return {}


def _is_over(writer: object) -> bool:
    """Return whether a claim was made by an earlier job that reached the same step."""
    return isinstance(writer, Mapping) and is_alive(writer) is False


def _pruned_bytes(path: Path) -> int:
    entries = _read(path).get("pruned")
    known = (
        [entry.get("bytes") for entry in entries if isinstance(entry, dict)]
        if isinstance(entries, list)
        else []
    )
    return sum(each for each in known if isinstance(each, int))

"""Captures that the watch requests: of the next step, by an ordinary request, within the budget of the run.

The used budget is in the run directory, so it also holds after a restart:

    <run>/watch/000001.json          what was unusual, where, and which step is recorded for it
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepprof.config.config import Config
from stepprof.config.options.watch import WatchOptions
from stepprof.errors import ConfigError
from stepprof.follow.below import unlinked
from stepprof.formatting import size
from stepprof.host import real_time
from stepprof.host.atomic_files import write_exclusively
from stepprof.host.own_files import is_foreign
from stepprof.host.plain_files import json_files, read_table
from stepprof.host.process_identity import writer_identity
from stepprof.log import logger
from stepprof.run.layout import MANIFEST, PRUNED, step_folder
from stepprof.run.status import LIVE
from stepprof.run.trigger import NEXT, ask

WATCH = "watch"
PENDING_SECONDS = 600.0
"""A capture is not awaited longer: its rank may be gone, or hang."""


class Captures:
    """The captures of one run.

    Args:
        run: the run directory.
        config: the configuration of the follower.
        options: the budget.
    """

    def __init__(self, run: Path, config: Config, options: WatchOptions) -> None:
        self._run = run
        self._config = config
        self._options = options
        self._pending: dict[str, Any] | None = None
        self._since = 0.0

    def record(self, what: str, facts: Mapping[str, object], role: str | None, rank: int | str) -> str:
        """Request the next step of a rank because of a finding. Return the result as text; never raise."""
        if self._pending is not None:
            return f"none: the capture of step {self._pending['capture_step']} is pending"
        try:
            return self._try_to_record(what, facts, role, rank)
        except (OSError, ConfigError) as error:
            return f"none: {error}"

    def _try_to_record(
        self, what: str, facts: Mapping[str, object], role: str | None, rank: int | str
    ) -> str:
        most = self._options.max_captures
        if not most:
            return "none: max_captures = 0"
        policy = self._config.policy(role)
        if not policy.enabled:
            return f'none: the role "{role}" is disabled by the configuration'
        claims = self._claims()
        if len(claims) >= most:
            return f"none: max_captures = {most} of this run are used up"
        changes: dict[str, Any] = {"ranks": str(rank)} if isinstance(rank, int) else {}
        limit = self._options.max_bytes
        if isinstance(limit, int):
            left = limit - sum(map(self._bytes_of, claims))
            if left <= 0:
                return f"none: the captures of this run have used up max_bytes = {size(limit)}"
            if policy.max_bytes is None or policy.max_bytes > left:
                changes["max_bytes"] = left
        folder = self._run / WATCH
        unlinked(self._run, folder / "x").parent.mkdir(
            exist_ok=True
        )  # before the request: without a claim there is no capture
        request = ask(self._run, NEXT, count=1, role=role, reason=f"watch: {what}", **changes)
        content = {
            "schema_version": 1,
            "what": what,
            **facts,
            "writer": writer_identity(),
            "capture_step": request.step,
            "capture_rank": rank,
            "request": request.name,
        }
        number = 1
        while not write_exclusively(folder / f"{number:06d}.json", _dump(content)):
            number += 1
        self._pending, self._since = content, real_time.monotonic()
        return f"step {request.step}"

    def look(self, statuses: Sequence[Mapping[str, Any]]) -> None:
        """Check whether the requested step has passed on its rank. If it was not recorded, that costs no budget."""
        if self._pending is None:
            return
        step, rank = self._pending["capture_step"], self._pending["capture_rank"]
        waits = real_time.monotonic() - self._since < PENDING_SECONDS
        if waits and any(
            (status["step"] or 0) <= step
            for status in statuses
            if status["condition"] in (LIVE, "stale")
            and (status["rank"] == rank or not isinstance(rank, int))
        ):
            return
        if not self._has_folder(step):
            answers = [status["requests"].get(self._pending["request"]) or {} for status in statuses]
            reasons = [each["reason"] for each in answers if each.get("reason")]
            logger.warning(
                "window.not_recorded", step=step, reason=reasons[0] if reasons else "it has passed"
            )
        self._pending = None

    def _claims(self) -> list[dict[str, Any]]:
        """Return the used parts of the budget: captures whose step has a folder, and unreadable ones."""
        try:
            claims = [_read(path) for path in json_files(self._run / WATCH) if not is_foreign(path)]
        except FileNotFoundError:
            return []
        return [claim for claim in claims if self._has_folder(claim.get("capture_step"))]

    def _has_folder(self, step: object) -> bool:
        return not isinstance(step, int) or step < 0 or (self._run / step_folder(step)).is_dir()

    def _bytes_of(self, claim: Mapping[str, Any]) -> int:
        step, rank = claim.get("capture_step"), claim.get("capture_rank")
        if not isinstance(step, int) or step < 0:
            return 0
        folder = self._run / step_folder(step)
        # a process without a rank records its attached engines
        pattern = f"*/rank-{rank}.*" if isinstance(rank, int) else "*/**/*"
        total = _pruned_bytes(folder / MANIFEST / PRUNED)  # deleted artifacts count too
        for file in folder.glob(pattern):
            try:
                total += file.stat().st_size if file.parent.name != MANIFEST and file.is_file() else 0
            except OSError:  # deleted meanwhile
                continue
        return total


def _dump(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1, default=str).encode()


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_table(path)
    except (OSError, ValueError):
        return {}


def _pruned_bytes(path: Path) -> int:
    entries = _read(path).get("pruned")
    tables = [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    return sum(each["bytes"] for each in tables if isinstance(each.get("bytes"), int))

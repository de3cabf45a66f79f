"""Watch the processes of a run: what is unusual is one log line and a mark in the spans, and the next
step is recorded within the budget of the run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from stepprof.config.config import Config
from stepprof.config.options.watch import WatchOptions
from stepprof.follow.below import unlinked
from stepprof.follow.captures import Captures
from stepprof.follow.tail import Line
from stepprof.follow.watcher import Watcher
from stepprof.host import real_time
from stepprof.log import logger
from stepprof.run.layout import SPANS, RunDir, step_folder
from stepprof.run.status import LIVE

LEAST_RANKS = 3
"""Minimum number of ranks to find one that lags: of two, neither is the usual one."""

_Process = tuple[Any, Any, Any]
"""(host, pid, rank)."""


class Watch:
    """The watch of one run.

    Args:
        run: the run directory.
        config: the configuration of the follower.
        options: its table `watch`.
    """

    def __init__(self, run: Path, config: Config, options: WatchOptions) -> None:
        self._run = run
        self._options = options
        self._captures = Captures(run, config, options)
        self._watchers: dict[_Process, Watcher] = {}
        self._headers: dict[_Process, Mapping[str, Any]] = {}
        self._read: dict[str, object] = {}
        """The last status whose memory was read, by its file."""
        self._recorded: set[int] = set()
        self._behind: set[_Process] = set()

    def take(self, line: Line) -> None:
        """Add a line of a span file."""
        process = _process(line.header)
        if process[2] is None:
            return
        if process not in self._watchers:
            self._watchers[process] = Watcher(self._options, self._is_recorded)
        self._watchers[process].take(line.span, is_old=line.is_old)
        self._headers[process] = line.header

    def look(self, statuses: Sequence[Mapping[str, Any]]) -> None:
        """Report what is new, after the lines of a look.

        Args:
            statuses: of all processes.
        """
        self._captures.look(statuses)
        memory = dict(map(self._memory, statuses))
        for process, watcher in self._watchers.items():
            for finding in watcher.findings(*memory.get(process, (None, None))):
                facts, rank = finding.facts, process[2]
                outcome = self._captures.record(finding.what, facts, finding.role, rank)
                self._mark(process, finding.what, finding.at_unix_ns, {**facts, "capture": outcome})
                logger.warning("watch.alert", what=finding.what, **facts, rank=rank, capture=outcome)
        if isinstance(self._options.lag_seconds, float):
            self._compare(statuses, self._options.lag_seconds)

    def _is_recorded(self, step: int) -> bool:
        """Return whether a step has a folder: then it was recorded."""
        if step in self._recorded:
            return True
        there = os.path.isdir(self._run / step_folder(step)) if step >= 0 else False  # noqa: PTH112 - quicker
        if there:
            self._recorded.add(step)
        return there

    def _memory(self, status: Mapping[str, Any]) -> tuple[_Process, tuple[int | None, int | None]]:
        """Return a process and its memory; no memory if it has published nothing new."""
        file, at = str(status["file"]), status["published_unix_ns"]
        if status["condition"] != LIVE or self._read.get(file) == at:
            return _process(status), (None, None)
        self._read[file] = at
        return _process(status), (status["resident_bytes"], status["device_bytes"])

    def _compare(self, statuses: Sequence[Mapping[str, Any]], lag_seconds: float) -> None:
        """Look for ranks behind the median of all live ones: steps times the usual seconds of a step. A rank
        is reported once, until it has caught up.
        """
        live = [each for each in statuses if each["condition"] == LIVE and isinstance(each["rank"], int)]
        live = [each for each in live if each["step"] is not None]
        seconds = [each["step_seconds"] for each in live if each["step_seconds"] is not None]
        if len(live) < LEAST_RANKS or not seconds:
            return
        usual, pace = int(median(each["step"] for each in live)), median(seconds)
        behind = {_process(each): each for each in live if (usual - each["step"]) * pace >= lag_seconds}
        new = [process for process in behind if process not in self._behind]
        self._behind = set(behind)
        if not new:
            return
        worst = min(new, key=lambda process: behind[process]["step"])
        facts: dict[str, object] = {
            "step": behind[worst]["step"],
            "median_step": usual,
            "seconds_behind": round((usual - behind[worst]["step"]) * pace, 3),
            "ranks_behind": len(behind),
        }
        outcome = self._captures.record("rank lags", facts, None, worst[2])
        self._mark(worst, "rank lags", real_time.time_ns(), {**facts, "capture": outcome})
        logger.warning("watch.rank_lags", lagging_rank=worst[2], **facts, capture=outcome)

    def _mark(self, process: _Process, name: str, at_unix_ns: int, facts: Mapping[str, object]) -> None:
        """Write a mark into a span file of its own, which continues those of the process."""
        header = self._headers.get(process)
        if header is None:
            return
        span = {"name": name, "kind": "mark", "thread": 0, "task": None, "step": facts.get("step")}
        span |= {"role": facts.get("role"), "start": at_unix_ns, "dur": 0, "attrs": facts}
        try:
            unlinked(self._run, self._run / SPANS / "x")
            path = RunDir(self._run, self._run.name).spans_path(process[2])
            path.write_text(f"{json.dumps(header)}\n{json.dumps(span, default=str)}\n")
        except OSError as error:
            logger.warning("spans.not_written", reason=str(error), spans=1)


def _process(content: Mapping[str, Any]) -> _Process:
    """Return the process of a status or of a span file: ranks may be equal, those of replica groups for example."""
    return content.get("host"), content.get("pid"), content.get("rank")

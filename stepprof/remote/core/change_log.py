"""Gather the changes of a session's engines, then publish and log them together: a thousand engines answer one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from stepprof.log import logger
from stepprof.remote.loop import remote_loop

GATHER_SECONDS = 0.01

MOST_LOGGED = 8
"""Up to this many engines with the same change of health get a log line each; more share one line."""


class ChangeLog:
    """The changes of all engines of a session.

    Args:
        post: runs a job on another thread than stepprof's loop.
        publish: updates what ``stepprof.state`` returns.
    """

    def __init__(self, post: Callable[[Callable[[], object]], None], publish: Callable[[], object]) -> None:
        self.publish = publish
        self.version = object()
        """Replaced by another object after each change."""
        self._post = post
        self._gathering = False
        self._transitions: list[dict[str, object]] = []
        self._health: list[dict[str, str | None]] = []

    def changed(self) -> None:
        """Note that the result of ``stepprof.state`` has changed: it is published soon, once for many changes."""
        self.version = object()
        if not self._gathering:
            self._gathering = True
            remote_loop().call(self._show_soon)

    def add_transition(self, line: dict[str, object]) -> None:
        """Log a transition soon, on another thread: a thousand lines would delay the calls."""
        self._transitions.append(line)

    def add_health(self, line: dict[str, str | None]) -> None:
        """Log a change of an engine's health soon, together with others of the same kind."""
        self._health.append(line)

    def _show_soon(self) -> None:
        asyncio.get_running_loop().call_later(GATHER_SECONDS, self.show)

    def show(self) -> None:
        """Publish and log the gathered changes."""
        self._gathering = False
        self.publish()
        lines, self._transitions = self._transitions, []
        if lines:
            self._post(partial(_log_transitions, lines))
        changes, self._health = self._health, []
        for health in dict.fromkeys(change["health"] for change in changes):
            _log_health([change for change in changes if change["health"] == health])


def _log_transitions(lines: list[dict[str, object]]) -> None:
    for line in lines:
        logger.info("state.changed", **line)


def _log_health(lines: Sequence[Mapping[str, object]]) -> None:
    """Log one line for each of a few engines, one line for many."""
    first = lines[0]
    if len(lines) > MOST_LOGGED:
        labels = ", ".join(str(line["target"]) for line in lines[:MOST_LOGGED])
        many = {"count": len(lines), "target": f"{labels}, …"}
        lines = [{**many, "health": first["health"], "reason": first["reason"]}]
    for line in lines:
        if first["health"] == "ok":
            logger.info("engine.healthy", **line)
        else:
            logger.warning("engine.unhealthy", **line)

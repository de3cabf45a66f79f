"""The logger: structlog where the application has configured it, else the standard logger ``stepprof``.

A library must neither call ``structlog.configure`` nor print: unconfigured structlog writes debug lines to stdout, into the
middle of a progress bar. Where neither is configured, the standard library writes warnings to stderr, as one sentence each.
The destination is chosen at each call, since applications configure their logging late. If the configured structlog cannot write a
line from synchronous code, the standard logger does. Lines are rare: transitions of recorded
steps and failures, never one per region.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar, Token
from typing import Any

import structlog

from stepprof.interrupts import ignored, ours
from stepprof.log.events import EVENTS
from stepprof.redaction.messages import redacted

_standard = logging.getLogger("stepprof")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}
_session: dict[str, object] = {}
_capture: ContextVar[Mapping[str, object]] = ContextVar("stepprof_log_fields", default={})  # noqa: B039 - never changed in place
_NOT_PRINTED = ("event", "reason", "run_id", "host", "exception")
"""Fields that a sentence does not repeat in its brackets."""


def bind_session(**fields: object) -> None:
    """Give each later line of this process these fields, instead of those of the previous session."""
    global _session
    _session = fields


class bound:  # noqa: N801 - a block, named like the function it reads as
    """Give the lines of this context, and of tasks that start in it, these fields; those that are None are left out."""

    __slots__ = ("_fields", "_token")

    _token: Token[Mapping[str, object]]

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields

    def __enter__(self) -> None:
        self._token = _capture.set({**_capture.get(), **self._fields})

    def __exit__(self, *_: object) -> None:
        _capture.reset(self._token)


class _Logger:
    """Chooses the destination at each call. Each event must be listed in `stepprof.log.events.EVENTS`."""

    def __init__(self) -> None:
        self._standard = structlog.wrap_logger(
            _standard,
            processors=[structlog.stdlib.filter_by_level, structlog.processors.format_exc_info, _render],
            wrapper_class=structlog.stdlib.BoundLogger,
            cache_logger_on_first_use=True,
        )

    @staticmethod
    def is_enabled(level: str) -> bool:
        """Return whether a line of this level is kept. Check it before many lines: a thousand
        engines change their state four times in a window.
        """
        return structlog.is_configured() or _standard.isEnabledFor(_LEVELS[level])

    def _write(self, level: str, event: str, fields: dict[str, object]) -> None:
        if not self.is_enabled(level):
            return
        line = _attributed(fields)
        if structlog.is_configured() and _has_written(structlog.get_logger("stepprof"), level, event, line):
            return
        with ignored(Exception):  # the application's handlers
            getattr(self._standard, level)(event, **line)

    def debug(self, event: str, **fields: object) -> None:
        self._write("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write("warning", event, fields)

    def notice(self, event: str, *, loud: bool = False, **fields: object) -> None:
        """Log at level info; where no logging is configured, on stderr too, unless the logger ``stepprof`` has a higher level.

        Args:
            event: the event.
            loud: write to stderr even if the root logger is configured and drops lines of this level. For a job whose user
                wrote no line of stepprof, this line is the only sign of it.
            fields: of the event.
        """
        last = logging.lastResort
        kept = _is_shown(logging.INFO) if loud else _standard.hasHandlers()
        if structlog.is_configured() or kept or last is None:
            self._write("info", event, fields)
        elif _standard.level <= logging.INFO and _standard.manager.disable < logging.INFO:
            with ignored(Exception):
                text = sentence({"event": event, **_attributed(fields)})
                last.handle(_standard.makeRecord(_standard.name, logging.INFO, "", 0, text, (), None))


def _has_written(target: Any, level: str, event: str, line: dict[str, object]) -> bool:
    """Write a line with the application's structlog. Return whether that was possible: its wrapper may lack the
    method, be asynchronous, or raise.
    """
    try:
        bound_logger = target.bind()
        method = getattr(getattr(bound_logger, "sync_bl", bound_logger), level)
        written = method(event, **line)
    except ours(Exception):  # of the application's processors: the standard logger is left
        return False
    if not inspect.iscoroutine(written):
        return True
    written.close()  # nothing here could await it
    return False


def _is_shown(level: int) -> bool:
    """Return whether a handler of the application writes lines of this level."""
    where: logging.Logger | None = _standard
    while where is not None and _standard.isEnabledFor(level):
        if any(handler.level <= level for handler in where.handlers):
            return True
        where = where.parent if where.propagate else None
    return False


def _attributed(fields: dict[str, object]) -> dict[str, object]:
    ambient = {key: value for key, value in {**_session, **_capture.get()}.items() if value is not None}
    return {
        key: redacted(value)
        for key, value in {**fields, **{k: v for k, v in ambient.items() if k not in fields}}.items()
    }


def _render(_: object, __: str, line: MutableMapping[str, Any]) -> str:
    """Return a line as ``key=value`` for the application's handlers, or as a sentence where there are none."""
    return _as_fields(_, __, line) if _standard.hasHandlers() else sentence(line)


_as_fields = structlog.processors.KeyValueRenderer(key_order=["event"], repr_native_str=False)


class _Named(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return f"({key} unknown)"


def sentence(line: Mapping[str, Any]) -> str:
    """Return a line as a sentence.

    >>> sentence({"event": "engine.not_started", "target": "rollout/0", "reason": "busy", "step": 2})
    'stepprof: rollout/0 was not started: busy (step=2)'
    """
    known = EVENTS.get(line["event"])
    said = line["event"] if known is None else known.sentence  # a plug-in may have events of its own
    text = said.format_map(_Named(line))
    if line.get("reason"):
        text += f": {line['reason']}"
    rest = [
        f"{k}={v}"
        for k, v in line.items()
        if k not in _NOT_PRINTED and v is not None and f"{{{k}}}" not in said
    ]
    text += f" ({', '.join(rest)})" if rest else ""
    return "\n".join(filter(None, (f"stepprof: {text}", line.get("exception"))))


logger = _Logger()

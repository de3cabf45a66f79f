"""The logger. Where the application has configured structlog it speaks through that, else through the standard logger ``stepprof``.

A library must neither call ``structlog.configure`` nor print: unconfigured structlog writes debug lines to stdout, into the
middle of a progress bar. The choice is made anew at each line, since applications configure their logging late; lines are rare
(transitions of recorded steps, failures), never per region.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog

from stepprof.redaction import redacted

__all__ = ["logger"]


_standard = logging.getLogger("stepprof")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


class _Logger:
    """Chooses the destination at each call."""

    def __init__(self) -> None:
        self._standard = structlog.wrap_logger(
            _standard,
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.processors.format_exc_info,
                structlog.processors.KeyValueRenderer(key_order=["event"], repr_native_str=False),
            ],
            wrapper_class=structlog.stdlib.BoundLogger,
            cache_logger_on_first_use=True,
        )

    def _target(self) -> Any:
        return structlog.get_logger("stepprof") if structlog.is_configured() else self._standard

    @staticmethod
    def tells(level: str) -> bool:
        """Whether a line of this level may go anywhere: a thousand engines change their state four times in a window."""
        return structlog.is_configured() or _standard.isEnabledFor(_LEVELS[level])

    def _say(self, level: str, event: str, fields: dict[str, object]) -> None:
        if not self.tells(level):
            return
        try:  # noqa: SIM105 - contextlib would be one more frame below a signal handler
            getattr(self._target(), level)(event, **{key: redacted(value) for key, value in fields.items()})
        except Exception:  # noqa: BLE001, S110 - the application's own processor or stream refuses the line: there is nowhere to tell it, and it must not end a training loop
            pass

    def debug(self, event: str, **fields: object) -> None:
        self._say("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._say("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._say("warning", event, fields)


logger = _Logger()

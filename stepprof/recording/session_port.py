"""The protocol of a session for its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path
    from types import CodeType

    from stepprof.config.config import Config
    from stepprof.instrument.span_recorder import Recorder
    from stepprof.recording.engine_ports import EngineRegistry
    from stepprof.recording.local_target import LocalTarget
    from stepprof.recording.selector import Selector


class RunningSession(Protocol):
    """A session that records."""

    config: Config
    path: Path | None
    run_id: str | None
    lent: bool
    last_step: int | None
    fleet: EngineRegistry | None
    local: LocalTarget
    recorder: Recorder
    selector: Selector
    acts: frozenset[CodeType]
    """The code of the acts that call `stepprof.recording.exit_handlers.after_act` at their end."""

    @property
    def rank(self) -> int | str:
        """Return the global rank of the process, or its name if it has none."""

    def disown(self) -> None:
        """Take no further part: this is a forked child, and the session is its parent's."""

    def shutdown(self, timeout: float | None = None, *, reason: str = ..., failed: bool = False) -> None:
        """Close open windows, wait for the exports and write the rest."""

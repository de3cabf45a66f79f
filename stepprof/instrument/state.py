"""The value that `stepprof.state` returns, made anew at each change. Alone in its module, because
`import stepprof` needs no other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from stepprof.host import real_time

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST = 6
"""The number of ranges of engines per state in the line for a log."""

Status = Literal["idle", "armed", "recording", "flushing"]


@dataclass(frozen=True, slots=True)
class State:
    """What the profiler of this process is doing. ``str(state)`` is one short line for a log, for any number of engines.

    ``rank`` is the global rank. ``engines`` maps labels to states. ``pending_exports`` names the running export jobs.
    ``recorded_steps`` are the steps of which this process has at least one complete capture. ``adapters`` maps frameworks to
    ``status``, ``version`` and, where the status is not "attached", the ``reason``. ``run`` is the absolute path of the run's folder.

    >>> str(State())
    'idle'
    >>> str(State(status="recording", step=2, role="actor", rank=0, backend="torch"))
    'recording step=2 role=actor rank=0 backend=torch'
    >>> str(State(engines={f"rollout/{n}": "armed" if n == 5 else "idle" for n in range(8)}))
    'idle engines=rollout/0-4,6-7:idle,rollout/5:armed'
    """

    status: Status = "idle"
    step: int | None = None
    role: str | None = None
    rank: int | str | None = None
    backend: str | None = None
    since: float = field(default_factory=real_time.monotonic)
    engines: Mapping[str, str] = field(default_factory=dict)
    pending_exports: tuple[str, ...] = ()
    last_error: str | None = None
    recorded_steps: tuple[int, ...] = ()
    adapters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    run: str | None = None

    @property
    def since_seconds(self) -> float:
        """Return for how many seconds the status has lasted."""
        return real_time.monotonic() - self.since

    def __str__(self) -> str:
        parts: list[str] = [self.status]
        for key in ("step", "role", "rank", "backend"):
            value = getattr(self, key)
            if value is not None:
                parts.append(f"{key}={value}")
        if self.engines:
            from stepprof.formatting import label_ranges

            alike: dict[str, list[str]] = {}
            for label, status in self.engines.items():
                alike.setdefault(status, []).append(label)
            shown = (f"{label_ranges(labels, MOST)}:{status}" for status, labels in alike.items())
            parts.append("engines=" + ",".join(shown).replace(", ", ","))
        if self.pending_exports:
            parts.append(f"exporting={len(self.pending_exports)}")
        return " ".join(parts)

"""Messages between a driver and the inside of an actor: plain values, pickled."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepprof.remote.base import EngineFailure, Stopped
from stepprof.remote.core.lease import Lease
from stepprof.run.model import Outcome

__all__ = ["Answer", "Attachment", "Collected", "Facts", "Inside", "Report", "Unknown", "boot_id", "node_id"]


@dataclass(frozen=True, slots=True)
class Attachment:
    """What the other process wants of this actor: sent with each arm, since actors are restarted."""

    kind: str
    """``engine``, ``rank`` or ``spans``."""
    find: object
    rank: int | None
    position: int
    """Its number among the ranks that were attached: its rank, unless the job states another one."""
    world_size: int | None
    config: Mapping[str, object]
    run_id: str
    output_dir: str
    own_dir: str | None = None
    """Where this host keeps its files, if not in ``output_dir``."""
    marker: str = ""
    """A file in the run's folder: where it is seen, so are ours."""
    max_seconds: float | None = None
    start_seconds: float = 5.0
    """How long a plain actor is held up by the start of its engine, at most."""
    stop_seconds: float = 60.0
    """The same, for everything else."""
    options: Mapping[str, object] = field(default_factory=dict)
    job: str | None = None
    """The other process's job."""
    lease: Lease | None = None
    """Who drives the actor; with the end of that process the attachment ends."""
    name: str | None = None
    """What the actor's process is called if it has no rank."""
    requests: tuple[Mapping[str, object], ...] = ()
    """What was asked for while the job runs, and holds in this window: the actor may not see the folder where it lies."""

    def place(self) -> tuple[Path, bool]:
        """Return the run's folder on this host, and whether the other process sees it."""
        if self.own_dir is not None:
            return Path(self.own_dir) / self.run_id, False
        run = Path(self.output_dir) / self.run_id
        return run, bool(self.marker) and (run / self.marker).exists()


@dataclass(frozen=True, slots=True)
class Facts:
    """What an arm finds out about the actor."""

    host: str
    pid: int
    boot_id: str
    node_id: str | None
    plain: bool
    """It runs one call at a time, on its main thread."""
    visible: bool
    """Its files lie where the other process sees them."""
    kind: str | None = None
    """The engine's."""
    name: str | None = None
    workers: int | None = None
    rank: int | str | None = None
    """The session's."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a stop brought, and where on this host it lies: the engine's files below ``folder``, the rank's by its fragment."""

    stopped: Stopped
    folder: str | None = None
    fragment: str | None = None
    awaited: bool = False
    """More is to come: it has to be asked for."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What came after a stop; or, with an ``outcome``, why nothing did."""

    stopped: Stopped = field(default_factory=Stopped)
    outcome: Outcome | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """``value`` or ``failure``; with a ``ticket`` neither is there yet."""

    value: Any = None
    failure: EngineFailure | None = None
    ticket: int | None = None


class Unknown(EngineFailure):
    """This process has not been armed: it is another one than was."""

    lost = True


class Inside(EngineFailure):
    """The engine's worker is the actor's own process."""


def boot_id() -> str:
    """Return the boot of this machine: processes with the same one read the same clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{socket.gethostname()}-{os.getpid()}"


def node_id() -> str | None:
    """Return which node of Ray this process is on, if any."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    return str(ray.get_runtime_context().get_node_id())

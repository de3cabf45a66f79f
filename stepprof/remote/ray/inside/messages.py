"""Messages between a driver and the inside of an actor: plain values, pickled."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.host import process_identity
from stepprof.remote.base import EngineFailure, Stopped
from stepprof.remote.core.lease import Lease
from stepprof.run.model import Outcome

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow


Key = tuple[int, "str | None", int]


def key_of(window: EngineWindow) -> Key:
    """Return what identifies a window in an actor: its step, its role and its occurrence."""
    return window.window.step, window.window.role, window.window.occurrence


@dataclass(frozen=True, slots=True)
class Attachment:
    """The driver's description of an attachment, sent with each arm, because actors are restarted."""

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
    """A file in the run's folder. If it is visible here, our files are visible there."""
    max_seconds: float | None = None
    start_seconds: float = 5.0
    """Maximum seconds that the start of its engine may block a plain actor."""
    stop_seconds: float = 60.0
    """Maximum seconds that any other call to its engine may block a plain actor."""
    options: Mapping[str, object] = field(default_factory=dict)
    job: str | None = None
    """The job of the driver process."""
    lease: Lease | None = None
    """The driver process; the attachment ends with it."""
    name: str | None = None
    """The name of the actor's process if it has no rank."""
    requests: tuple[Mapping[str, object], ...] = ()
    """The requests of the running job that concern this window: the actor may not see their folder."""

    def place(self) -> tuple[Path, bool]:
        """Return the run's folder on this host, and whether the driver process sees it."""
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
    """Whether it runs one call at a time, on its main thread."""
    visible: bool
    """Whether the driver process sees its files."""
    kind: str | None = None
    """The kind of the engine."""
    workers: int | None = None
    rank: int | str | None = None
    """The rank of the session."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a stop, and where it is on this host: the engine's files below ``folder``, the rank's by its fragment."""

    stopped: Stopped
    folder: str | None = None
    fragment: str | None = None
    awaited: bool = False
    """Whether a further part must be polled."""


@dataclass(frozen=True, slots=True)
class Collected:
    """A result that arrived after a stop; with an ``outcome``, why there is none."""

    stopped: Stopped = field(default_factory=Stopped)
    outcome: Outcome | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """``value`` or ``failure``; with a ``ticket`` neither is known yet."""

    value: Any = None
    failure: EngineFailure | None = None
    ticket: int | None = None


class Unknown(EngineFailure):
    """This process has not been armed: it replaced the one that was."""

    lost = True


class Inside(EngineFailure):
    """The engine's worker is the actor's own process."""


def boot_id() -> str:
    """Return the boot of this machine: processes with the same one read the same clock."""
    return process_identity.boot_id() or f"{socket.gethostname()}-{os.getpid()}"


def node_id() -> str | None:
    """Return the Ray node of this process, if any."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    return str(ray.get_runtime_context().get_node_id())

"""Plain values: windows, artifacts, annotations, captures.

They own no file, no lock and no profiler. So the session, the export job and the log can use them
without sharing state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Outcome = Literal["complete", "joined", "partial", "skipped", "failed", "lost"]

WHOLE_STEP = "step"
"""The name of a window without a role in labels and paths; reserved as a role name."""


@dataclass(frozen=True, slots=True)
class Window:
    """One (step, role, occurrence), from the enter to the exit of ``profile_step``."""

    step: int
    role: str | None
    occurrence: int = 1
    version: int | str | None = None
    visit: int = 1
    """The number of the loop's visit to this step number: 2 in a second epoch that uses it again."""

    @property
    def name(self) -> str:
        """Return the role of the window, or ``step`` for the whole step.

        >>> Window(step=2, role=None).name
        'step'
        """
        return self.role or WHOLE_STEP

    @property
    def fields(self) -> dict[str, object]:
        """Return the fields of the window's log lines.

        >>> Window(step=2, role="actor").fields
        {'step': 2, 'role': 'actor', 'occurrence': 1}
        """
        return {"step": self.step, "role": self.role, "occurrence": self.occurrence}


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of a capture. ``path`` is relative to the step's folder, with forward slashes."""

    path: str
    kind: str
    bytes: int
    events: int | None = None
    ended_ns: int | None = field(default=None, compare=False)
    """The end of the recording, on the clock of the recording process; None: not in the file."""
    written_ns: int | None = field(default=None, compare=False)
    """When the file was written, on the clock of the file system."""
    began_ns: int | None = field(default=None, compare=False)
    """The start of the recording, on the clock of the recording process; None: not in the file."""
    forward_steps: int = field(default=0, compare=False)
    """Number of an engine's forward steps in it, by the names that vLLM and SGLang give them."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """An annotation that a backend cannot hold on a thread's stack (coroutines, attributes,
    windows). The export job adds it to the trace.

    ``kind`` is ``region``, ``window``, ``mark`` or ``counter``, or ``attributes``: those of a region that is
    on the stack of its thread. Times are nanoseconds since the Unix epoch;
    ``thread`` is the thread id of the operating system.
    """

    name: str
    kind: str
    start_unix_ns: int
    end_unix_ns: int
    thread: int
    attributes: Mapping[str, object]
    error: bool = False


@dataclass(frozen=True, slots=True)
class Capture:
    """The description of a capture for its backend: the window, and the place of its artifacts.

    ``folder`` is the step's folder and exists. ``stem`` (``actor/rank-0``) is the claimed path of the
    artifact below it, without a suffix; its parent exists. ``metadata`` is written into the
    artifact.
    """

    window: Window
    folder: Path
    stem: str
    metadata: Mapping[str, object]

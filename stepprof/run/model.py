"""The values that everybody passes around.

A window or an artifact is a fact at a moment: it owns no file, no lock and no profiler. Keeping them apart from
what acts on them is what lets the recording side, the export job and the log speak of the same thing without sharing state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["WHOLE_STEP", "Annotation", "Artifact", "Capture", "Outcome", "Window"]

Outcome = Literal["complete", "joined", "partial", "skipped", "failed", "lost"]

WHOLE_STEP = "step"
"""What a window without a role is called in labels and paths; reserved as a role name."""


@dataclass(frozen=True, slots=True)
class Window:
    """One (step, role, occurrence), from the enter to the exit of ``profile_step``."""

    step: int
    role: str | None
    occurrence: int = 1
    version: int | str | None = None
    visit: int = 1
    """How often the loop had come to this step number by then: 2 where it was used again, as in a second epoch."""

    @property
    def name(self) -> str:
        """What the window is called: its role, or ``step`` for the whole step.

        >>> Window(step=2, role=None).name
        'step'
        """
        return self.role or WHOLE_STEP

    @property
    def fields(self) -> dict[str, object]:
        """Return what attributes a log line to the window.

        >>> Window(step=2, role="actor").fields
        {'step': 2, 'role': 'actor', 'occurrence': 1}
        """
        return {"step": self.step, "role": self.role, "occurrence": self.occurrence}


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a capture left: ``path`` is relative to the step's folder, with forward slashes."""

    path: str
    kind: str
    bytes: int
    events: int | None = None
    ended_ns: int | None = field(default=None, compare=False)
    """When its recording ended, by the clock of the process that recorded it; None: the file does not say."""
    written_ns: int | None = field(default=None, compare=False)
    """When that process had written it, by the clock of the file system."""
    began_ns: int | None = field(default=None, compare=False)
    """When its recording began, by the clock of the process that recorded it; None: the file does not say."""
    forward_steps: int = field(default=0, compare=False)
    """How many forward steps of an engine are in it, by the names that vLLM and SGLang give them."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """What a backend cannot hold on a thread's stack (coroutines, attributes, windows): the export job writes it in.

    ``kind`` is ``region``, ``window``, ``mark`` or ``counter``; times are nanoseconds since the Unix epoch; ``thread`` is the
    operating system's thread id.
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
    """What a backend is given: which window, and where its artifacts belong.

    ``folder`` is the step's folder and exists. ``stem`` (``actor/rank-0``) is the claimed path of the artifact below it, without
    a suffix; its parent exists. ``metadata`` is what the artifact states about itself.
    """

    window: Window
    folder: Path
    stem: str
    metadata: Mapping[str, object]

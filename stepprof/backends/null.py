"""Records nothing: windows and spans without a profiler.

For processes that take part in windows but have nothing to record (a Ray driver), and for trying out a configuration. It is also the
smallest example of a `Backend`.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepprof.backends.base import Backend, ExportCall
from stepprof.run.model import Annotation, Artifact, Capture


class NullBackend(Backend):
    """A backend whose captures are empty."""

    name = "null"

    def __init__(self, options: object = None) -> None:
        self.options = options

    def probe(self) -> str | None:
        """Return None: it can record nothing in every process."""
        return None

    def arm(self) -> None:
        """Do nothing: nothing is slow."""

    def start(self, capture: Capture) -> None:
        """Do nothing."""

    def stop(self, capture: Capture, annotations: Sequence[Annotation]) -> ExportCall:
        """Return an export without artifacts."""
        return _nothing

    def abort(self) -> None:
        """Do nothing: nothing is held."""


def _nothing() -> tuple[Artifact, ...]:
    return ()

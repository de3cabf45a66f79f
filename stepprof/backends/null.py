"""Records nothing: the whole machinery around a capture without a profiler.

For processes that take part in windows but have nothing to record (a Ray driver), and for trying out a configuration.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepprof.backends.base import Export
from stepprof.run.model import Annotation, Artifact, Capture

__all__ = ["NullBackend"]


class NullBackend:
    """A backend whose captures are empty."""

    name = "null"
    thread_bound = False

    def __init__(self, options: object = None) -> None:
        self.options = options

    def probe(self) -> str | None:
        """It can always record nothing."""
        return None

    def arm(self) -> None:
        """Nothing is slow."""

    def start(self, capture: Capture) -> None:
        """Nothing begins."""

    def stop(self, capture: Capture, annotations: Sequence[Annotation]) -> Export:
        """Nothing was recorded, so that there is nothing to export."""
        return _nothing

    def abort(self) -> None:
        """Nothing is held."""

    def mark(self, name: str) -> None:
        """Regions are in the spans."""

    def bytes_so_far(self) -> int | None:
        """No artifact."""
        return 0

    def export_mode(self) -> str:
        """Nothing to export, so nothing is forked for it."""
        return "inline"


def _nothing() -> tuple[Artifact, ...]:
    return ()

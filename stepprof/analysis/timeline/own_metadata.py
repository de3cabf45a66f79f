"""What a source in a timeline in JSON states about itself, in events of metadata that viewers pass over: which track each row is, and what was found when it was read."""

from __future__ import annotations

from typing import Any

import msgspec

from stepprof.analysis.timeline.model import TrackKind
from stepprof.analysis.timeline.salvage import DECODE_ERRORS

__all__ = ["SOURCE", "StatedRow", "StatedSource", "stated_source"]

SOURCE = "stepprof_source"
"""The name of the event that holds a `StatedSource`."""


class StatedRow(msgspec.Struct, array_like=True, frozen=True):
    """The track that a row belongs to; several rows are the lanes of one."""

    kind: TrackKind
    number: int
    name: str
    order: int


class StatedSource(msgspec.Struct):
    """A source, besides its events."""

    metadata: dict[str, Any] = {}
    findings: list[str] = []
    whole: bool = True


_source = msgspec.json.Decoder(StatedSource)


def stated_source(args: bytes) -> StatedSource | None:
    """Return what an event called `SOURCE` says; None where it is damaged."""
    try:
        return _source.decode(args)
    except DECODE_ERRORS:
        return None

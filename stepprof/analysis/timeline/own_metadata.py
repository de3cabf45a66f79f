"""Store facts about a source in a JSON timeline as metadata events, which viewers ignore: the track
of each row, and the findings.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stepprof.analysis.timeline.model import TrackKind
from stepprof.analysis.timeline.salvage import DECODE_ERRORS

SOURCE = "stepprof_source"
"""The name of the event that holds a `StatedSource`."""


class StatedRow(msgspec.Struct, array_like=True, frozen=True):
    """The track of a row; several rows are the lanes of one track."""

    kind: TrackKind
    number: int
    name: str
    order: int


class StatedSource(msgspec.Struct):
    """A source without its events."""

    metadata: dict[str, Any] = {}
    findings: list[str] = []
    whole: bool = True


_source = msgspec.json.Decoder(StatedSource)


def stated_source(args: bytes) -> StatedSource | None:
    """Return the content of an event called `SOURCE`; None if it is damaged."""
    try:
        return _source.decode(args)
    except DECODE_ERRORS:
        return None

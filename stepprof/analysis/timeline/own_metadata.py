"""Store facts about a source in a JSON timeline: the track of each row and the findings as metadata events, which viewers
ignore, and the coroutine of a region among its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from stepprof.analysis.timeline.model import Args, Indices, TrackKind
from stepprof.analysis.timeline.salvage import DECODE_ERRORS

SOURCE = "stepprof_source"
"""The name of the event that holds a `StatedSource`."""


TASK = "stepprof_task"
"""The argument that has the number of the coroutine of a region."""
_TASK = re.compile(rb'"%b": ?(\d{1,9})(?!\d)' % TASK.encode())


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


def stated_tasks(args: Sequence[Args]) -> Indices | None:
    """Return the coroutine of each slice of a span file, by its arguments; -1: in none. None: no slice states one.

    >>> stated_tasks([b'{"role":"actor","stepprof_task":3}', b'{"role":"actor"}', None]).tolist()
    [3, -1, -1]
    """
    found = [None if each is None else _TASK.search(each) for each in args]
    if not any(found):
        return None
    return np.array([-1 if match is None else int(match[1]) for match in found], np.int32)

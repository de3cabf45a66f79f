"""Store and read the head of a JSON timeline, so that it can be read again as the sources that it
was made of.

The head names the sources and their positions in the file. Each source is a member of gzip and a
process of its own. Metadata events in it state the track of each row and facts about the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepprof.analysis.timeline.capture_window import CaptureWindow
from stepprof.analysis.timeline.manifest_sources import Input
from stepprof.analysis.timeline.model import Alignment, Origin, Piece
from stepprof.analysis.timeline.raw import read_header

_LARGEST_MANIFESTS = 4 << 20
"""Bytes. The reader accepts a head of 8 MiB."""
_WITHOUT_MANIFESTS = "the step's manifests are too large for a timeline's header: reports on this file lack the figures from them"


class _Member(msgspec.Struct):
    piece: Piece
    origin: Origin
    alignment: Alignment
    status: str | None = None
    window: CaptureWindow | None = None


class Timeline(msgspec.Struct):
    """The head of a timeline, below its key `stepprof`."""

    timeline: list[_Member]
    run_id: str | None = None
    step: int | None = None
    left_out: str = ""
    """The filters that removed slices."""
    manifests: list[dict[str, Any]] = []
    findings: list[tuple[str | None, str]] = []


def described(
    inputs: Sequence[Input],
    alignments: Sequence[Alignment],
    sizes: Sequence[int],
    behind: int,
    about: Mapping[str, Any],
) -> dict[str, object]:
    """Return the content of the head.

    Args:
        inputs: the sources, in the order of their members.
        alignments: the alignment of each with the common clock.
        sizes: bytes of each member.
        behind: bytes after the last one.
        about: the other fields of `Timeline`.
    """
    members = []
    end = behind + sum(sizes)
    for number, (each, alignment, size) in enumerate(zip(inputs, alignments, sizes, strict=True)):
        piece = Piece(number + 1, end, size, alignment.offset_ns)
        members.append(_Member(piece, each.origin, alignment, each.status, each.window))
        end -= size
    if len(msgspec.json.encode(about.get("manifests"))) > _LARGEST_MANIFESTS:
        about = {**about, "manifests": [], "findings": [*about["findings"], (None, _WITHOUT_MANIFESTS)]}
    return {"timeline": msgspec.to_builtins(members), **about}


def read_timeline(path: Path) -> tuple[Timeline, list[Input]] | None:
    """Return the head of a timeline and its sources; None for any other file."""
    header, _ = read_header(path)
    stated = header.get("stepprof")
    if not isinstance(stated, dict) or "timeline" not in stated:
        return None
    try:
        known = msgspec.convert(stated, Timeline)
    except msgspec.ValidationError:
        return None
    inputs = [
        Input(
            each.origin,
            (str(path),),
            each.piece.bytes,
            each.status,
            each.alignment,
            window=each.window,
            piece=each.piece,
        )
        for each in known.timeline
    ]
    return known, inputs

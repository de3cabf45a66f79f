"""How large a timeline becomes, and what a browser opens."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from stepprof.analysis.timeline.find import Input
from stepprof.analysis.timeline.parts import Format

__all__ = ["estimate", "too_large"]

_INFLATE = {".gz": 11, ".db": 2}
"""Times as large as its gzip is the JSON of a trace (docs/performance.md), and as the database of torch_npu's that holds the same."""
_OF_TEXT: dict[Format, float] = {"perfetto": 0.17, "json": 0.1}
"""Bytes of a timeline per byte of uncompressed JSON."""
_BROWSER: dict[Format, int] = {"perfetto": 1 << 30, "json": 100 << 20}
"""The Perfetto UI holds a trace several times over in a memory of 4 GB; of JSON it inflates all."""


def estimate(inputs: Iterable[Input], format_: Format) -> int:
    """The bytes that a timeline of these will have at most, roughly; filters make it smaller."""
    text = sum(each.bytes * _INFLATE.get(PurePath(each.paths[0]).suffix, 1) for each in inputs)
    return int(text * _OF_TEXT[format_])


def too_large(bytes_: int, format_: Format) -> str | None:
    """A sentence about a timeline that a browser will not open; None: it will."""
    if bytes_ <= _BROWSER[format_]:
        return None
    other = "" if format_ == "perfetto" else "--format perfetto, "
    return f"larger than what a browser opens (about {_BROWSER[format_] >> 20} MB); reduce it with {other}--ranks, --roles, --from and --to, --min-us or --no-cpu-ops"

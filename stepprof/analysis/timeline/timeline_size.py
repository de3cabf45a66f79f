"""Estimate the size of a timeline, and the largest size that a browser opens."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from stepprof.analysis.timeline.find import Input
from stepprof.analysis.timeline.parts import Format

__all__ = ["estimate", "too_large"]

_INFLATE = {".gz": 11, ".db": 2}
"""The ratio of a trace's JSON, or of the same data in a database of torch_npu, to its gzip
(docs/performance.md).
"""
_OF_TEXT: dict[Format, float] = {"perfetto": 0.17, "json": 0.1, "archive": 0.11}
"""Bytes of a timeline per byte of uncompressed JSON."""
_BROWSER: dict[Format, int] = {"perfetto": 1 << 30, "json": 100 << 20, "archive": 100 << 20}
"""The Perfetto UI holds a trace several times in a memory of 4 GB, and inflates all JSON."""


def estimate(inputs: Iterable[Input], format_: Format) -> int:
    """Return a rough upper bound of the bytes of a timeline of these inputs. Filters make it
    smaller.
    """
    text = sum(each.bytes * _INFLATE.get(PurePath(each.paths[0]).suffix, 1) for each in inputs)
    return int(text * _OF_TEXT[format_])


def too_large(bytes_: int, format_: Format) -> str | None:
    """Return a sentence about a timeline that is too large for a browser; None if it is not."""
    if bytes_ <= _BROWSER[format_]:
        return None
    other = "" if format_ == "perfetto" else "--format perfetto, "
    filters = "" if format_ == "archive" else ", --from and --to, --min-us or --no-cpu-ops"
    return f"larger than what a browser opens (about {_BROWSER[format_] >> 20} MB); reduce it with {other}--ranks or --roles{filters}"

"""Number and name the sources of a timeline, with ids that are unique in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from stepprof.analysis.timeline.model import Alignment, Origin, Source
from stepprof.formats.npu_folder import is_database


@dataclass(frozen=True, slots=True)
class Place:
    """One of `count` sources.

    Everything that must be unique in the timeline follows from `index`. So sources are written
    independently of each other.
    """

    index: int
    """From 0."""
    count: int
    suffix: str = ""
    """The suffix that distinguishes it from another source of the same name."""
    above: int = 0
    """How many of the sources that have a higher index are drawn above it."""

    @property
    def row(self) -> int:
        """Its place from top to bottom."""
        return self.index + self.above


def process_name(source: Source, place: Place) -> str:
    """Return the role, rank or replica, and host."""
    origin = source.origin
    host = f" · {origin.host}" if origin.host else ""
    return f"{origin.label}{place.suffix}{host}"


def suffixes(origins: Sequence[Origin]) -> list[str]:
    """Return the suffix that distinguishes each source from others of its name and host: its
    content, its file only if necessary, and the path of this file if two have its name.

    >>> suffixes([Origin("spans", "spans/rank-0.jsonl", rank=0), Origin("rank", "step/rank-0.trace.json.gz", rank=0)])
    [' · spans', ' · torch']
    >>> suffixes([Origin("rank", "a/rank-0.json"), Origin("rank", "b/rank-0.json")])
    [' (a/rank-0.json)', ' (b/rank-0.json)']
    """
    names = [(origin.label, origin.host) for origin in origins]
    contents = [_content(origin) for origin in origins]
    held = Counter(name for name, _ in set(zip(names, contents, strict=True)))
    like = Counter(zip(names, contents, strict=True))
    files = [PurePath(origin.path).name for origin in origins]
    alike = Counter(zip(names, contents, files, strict=True))
    return [
        (f" · {content}" if held[name] > 1 else "")
        + (f" ({origin.path if alike[name, content, file] > 1 else file})" if like[name, content] > 1 else "")
        for origin, name, content, file in zip(origins, names, contents, files, strict=True)
    ]


def _content(origin: Origin) -> str:
    if origin.kind == "spans":
        return "spans"
    name = PurePath(origin.path).name
    return "torch_npu" if name.startswith("trace_view") or is_database(name) else "torch"


def clock_text(alignment: Alignment) -> str:
    """Return the alignment of a source with the common clock in words, with its error.

    >>> clock_text(Alignment("ping-pong", 2_000_000_000, 120_000))
    'ping-pong, its clock is 2.000000 s ahead, ±0.120 ms'
    >>> clock_text(Alignment("unmeasured", 0, None))
    'unmeasured, error unknown'
    """
    parts = [alignment.method]
    if alignment.offset_ns:
        parts.append(
            f"its clock is {abs(alignment.offset_ns) / 1e9:.6f} s {'ahead' if alignment.offset_ns > 0 else 'behind'}"
        )
    parts.append("error unknown" if alignment.error_ns is None else f"±{alignment.error_ns / 1e6:.3f} ms")
    return ", ".join(parts)

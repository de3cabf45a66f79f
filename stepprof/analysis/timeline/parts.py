"""Write the part of a timeline for one source: the work of a worker, here or on the node of the
source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import BinaryIO

from stepprof.analysis.timeline import perfetto
from stepprof.analysis.timeline.arguments import Shortened
from stepprof.analysis.timeline.clocks import never_compared
from stepprof.analysis.timeline.cutting import cut
from stepprof.analysis.timeline.filters import Filters
from stepprof.analysis.timeline.find import Input
from stepprof.analysis.timeline.load import load
from stepprof.analysis.timeline.model import Alignment, Source
from stepprof.analysis.timeline.placement import Place, process_name
from stepprof.analysis.timeline.profiler_stalls import with_held_slices


@dataclass(frozen=True, slots=True)
class Job:
    """The settings of a merge, equal for all its workers."""

    filters: Filters = field(default_factory=Filters)
    assume: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """The result for one source."""

    label: str
    path: str
    alignment: Alignment
    slices: int = 0
    instants: int = 0
    counters: int = 0
    flows: int = 0
    """Flows in the source. Those that connect no slices are not drawn."""
    first_ns: int | None = None
    last_ns: int | None = None
    bytes: int = 0
    findings: tuple[str, ...] = ()
    """Problems of the source."""
    whole: bool = True
    """Whether its file was read to the end."""

    @property
    def events(self) -> int:
        """Slices, instants and values of counters."""
        return self.slices + self.instants + self.counters

    @classmethod
    def of(cls, source: Source, place: Place, bytes_: int = 0) -> Part:
        """Return the result for a source that was read, with the bytes that were written."""
        first, last = source.extent or (None, None)
        return cls(
            process_name(source, place),
            source.origin.path,
            source.alignment,
            len(source.slices),
            len(source.instants),
            len(source.counters),
            len(source.flows),
            first,
            last,
            bytes_,
            tuple(source.findings),
            source.whole,
        )

    @classmethod
    def failed(cls, wanted: Input, place: Place, finding: str) -> Part:
        """Return the result for a source that could not be read."""
        origin = wanted.origin
        return cls(origin.label + place.suffix, origin.path, wanted.alignment, findings=(finding,))


def write_part(wanted: Input, place: Place, job: Job, file: BinaryIO) -> Part:
    """Read one source and write its part of a timeline.

    Args:
        wanted: the source.
        place: its place among the others.
        job: the filters.
        file: receives the part.
    """
    source = load(wanted, args=Shortened(), assume=job.assume)
    filters = job.filters
    if (filters.from_ns, filters.to_ns) == (None, None):
        source = cut(source, wanted.window).source
    source = with_held_slices(source, wanted.held)
    source.findings += never_compared(source.origin, source.alignment)
    if wanted.within is not None and (filters.from_ns, filters.to_ns) == (None, None):
        start, end = (edge - source.alignment.offset_ns for edge in wanted.within)
        filters = replace(filters, from_ns=start, to_ns=end)
        source.findings.append(
            "its capture spans several steps or roles: cut to the selected windows; use --from and --to to see more"
        )
    return write_source(filters.apply(source), place, file)


def write_source(source: Source, place: Place, file: BinaryIO) -> Part:
    """Write the part of a source that was read.

    Args:
        source: on the common clock.
        place: its place among the others.
        file: receives the part.
    """
    return Part.of(source, place, sum(map(file.write, perfetto.encode(source, place))))


_INFLATE = {".gz": 11, ".db": 2}
"""The ratio of a trace's JSON, or of the same data in a database of torch_npu, to its gzip (docs/performance.md)."""
_OF_TEXT = 0.17
"""Bytes of a timeline per byte of uncompressed JSON."""
_BROWSER = 1 << 30
"""The Perfetto UI holds a trace several times in a memory of 4 GB."""


def estimate(inputs: Iterable[Input]) -> int:
    """Return a rough upper bound of the bytes of a timeline of these inputs. Filters make it smaller."""
    text = sum(each.bytes * _INFLATE.get(PurePath(each.paths[0]).suffix, 1) for each in inputs)
    return int(text * _OF_TEXT)


def too_large(bytes_: int) -> str | None:
    """Return a sentence about a timeline that is too large for a browser; None if it is not."""
    if bytes_ <= _BROWSER:
        return None
    return f"larger than what a browser opens (about {_BROWSER >> 20} MB); reduce it with --ranks or --roles, --from and --to, --min-us or --no-cpu-ops"

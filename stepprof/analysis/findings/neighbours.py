"""Read how long regions took in the steps around the recorded one, from the spans of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from stepprof.analysis.timeline.model import Origin
from stepprof.analysis.timeline.span_sources import SpanFiles, span_files
from stepprof.run.layout import SPANS
from stepprof.run.span_lines import parse_span, span_lines

AROUND = 4
"""Number of steps to read before and after the recorded one."""
MOST_BYTES = 256 << 20
"""Spans of one process with more bytes than this are not read."""

Times = dict[tuple["str | None", str], float]


class Neighbours:
    """The steps around a step of a run.

    Args:
        runs: folders of the run.
        step: the recorded step.
    """

    def __init__(self, runs: Sequence[Path], step: int) -> None:
        self._files = [files for run in runs for files in files_of(run)]
        self._steps = {number for number in range(step - AROUND, step + AROUND + 1) if number != step}
        self._of = lru_cache(maxsize=64)(self._read)

    def seconds(self, origin: Origin, role: str | None, region: str) -> dict[int, float]:
        """Return how long a process was in a region in each of these steps that it had."""
        times = self._of(origin.rank, origin.host, origin.pid)
        return {step: of.get((role, region), 0.0) for step, of in times.items()}

    def _read(self, rank: int | str | None, host: str | None, pid: int | None) -> dict[int, Times]:
        found: dict[int, Times] = defaultdict(lambda: defaultdict(float))
        for files in self._files:
            if (files.rank, files.host, files.pid) != (rank, host, pid):
                continue
            if sum(file.stat().st_size for file in files.files) > MOST_BYTES:
                continue
            for file in files.files:
                for line in span_lines(file, self._steps):
                    span = parse_span(line)
                    if span and span.get("step") in self._steps and span.get("kind") in ("region", "window"):
                        name = (span.get("role"), str(span.get("name")))
                        found[span["step"]][name] += span.get("dur", 0) / 1e9
        return {step: dict(times) for step, times in found.items()}


def files_of(run: Path) -> list[SpanFiles]:
    """Return the span files of a run; [] if they cannot be read."""
    try:
        return span_files(run / SPANS)
    except OSError:
        return []

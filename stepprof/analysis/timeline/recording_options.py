"""Compare the options with which torch recorded two sets of traces: some of them make a step longer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stepprof.analysis.timeline.file_names import header_of
from stepprof.analysis.timeline.manifest_sources import Input

OPTIONS = ("with_stack", "profile_memory", "record_shapes", "with_flops", "with_modules")
"""Options of torch.profiler that the head of a trace states if they are on."""


def unlike_options(a: Sequence[Input], b: Sequence[Input]) -> str | None:
    """Return which options only one of two sets of traces has that stepprof did not record; None: both have the same."""
    one, two = ({name for each in side for name in _options(each)} for side in (a, b))
    texts = [
        f"{name} was recorded with {', '.join(sorted(alone))}"
        for name, alone in (("A", one - two), ("B", two - one))
        if alone
    ]
    return f"{', and '.join(texts)}: this makes a step longer" if texts else None


def _options(wanted: Input) -> list[str]:
    if wanted.origin.kind != "trace":
        return []
    header, _ = header_of(Path(wanted.paths[0]))
    return [name for name in OPTIONS if header.get(name)]

"""Tell whether an argument names traces that stepprof did not record, or a run."""

from __future__ import annotations

import os
from pathlib import Path

from stepprof.formats.recognise import has_trace_suffix, is_trace_name, not_a_trace, shows_events
from stepprof.host.plain_files import resolved
from stepprof.run.layout import step_number
from stepprof.run.runs import is_folder, is_run, named_run


def names_traces(folder: Path, text: str, *, sure: bool = False) -> bool:
    """Return whether a text names a file, or a folder that is no run and has traces.

    Args:
        folder: of the runs: a run id is no trace.
        text: the argument.
        sure: whether a folder must itself hold a file that shows events; else one that may be a damaged
            trace is enough, also in a folder below.
    """
    if named_run(folder, text) is not None:
        return False
    if is_file(text):
        return True
    place = resolved(text)
    if not is_folder(place):
        return False
    if step_number(place.name) is not None and is_run(place.parent):
        return False
    if sure:
        return any(_may_be_trace(each) and shows_events(each) for each in place.glob("*"))
    return any(_may_be_trace(each) for each in place.glob("**/*"))


def left_beside(run: Path, text: Path) -> str | None:
    """Return the sentence about traces in a folder of runs, of which a command reads one run; None: there are none, or the text names the run."""
    if run.name == text.name:
        return None
    there = sorted(each for each in run.parent.glob("*") if _may_be_trace(each))
    first = next(filter(shows_events, there), None)
    if first is None:
        return None
    return f'traces there, such as "{first.name}", are of no run and are left out: name the files to read them, as in `stepprof report {first}`'


def is_file(text: str | Path) -> bool:
    """Return whether there is such a file."""
    return os.path.isfile(text)  # noqa: PTH113 - Path.is_file() raises for a name that is too long


def _may_be_trace(path: Path) -> bool:
    named = has_trace_suffix(path.name) and is_trace_name(path.name)
    return named and is_file(path) and not_a_trace(path) is None

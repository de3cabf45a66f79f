"""Tell whether an argument names traces that stepprof did not record, or a run."""

from __future__ import annotations

import os
from pathlib import Path

from stepprof.formats.npu_folder import is_database
from stepprof.formats.recognise import not_a_trace
from stepprof.host.plain_files import resolved
from stepprof.run.layout import step_number
from stepprof.run.runs import is_run, named_run

SHALLOW, DEEP = "*", "**/*"


def names_traces(folder: Path, text: str, pattern: str = DEEP) -> bool:
    """Return whether a text names a file, or a folder that is no run and has traces.

    Args:
        folder: of the runs: a run id is no trace.
        text: the argument.
        pattern: which files of a folder are looked at.
    """
    if named_run(folder, text) is not None:
        return False
    if is_file(text):
        return True
    if not os.path.isdir(text):  # noqa: PTH112 - as in `is_file`
        return False
    place = resolved(text)
    if step_number(place.name) is not None and is_run(place.parent):
        return False
    return any(_may_be_trace(each) for each in place.glob(pattern))


def is_file(text: str) -> bool:
    """Return whether there is such a file."""
    return os.path.isfile(text)  # noqa: PTH113 - Path.is_file() raises for a name that is too long


def _may_be_trace(path: Path) -> bool:
    return (path.name.endswith((".json", ".json.gz")) or is_database(path.name)) and not_a_trace(path) is None

"""The folders of torch_npu, ``…_ascend_pt``: the host's part, CANN's part, and the output of an
analysis.

Only names are read here, so the recording side, `stepprof check` and the readers share it without
torch_npu.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

KIND = "npu-profile"
"""The artifact's kind in the manifest; its path is a folder."""
SUFFIX = ".npu"
FOLDER = "_ascend_pt"
"""Suffix of the folders of torch_npu."""
NOT_YET = "not analysed yet"
OUTPUT = "ASCEND_PROFILER_OUTPUT"
"""The folder that an analysis writes."""

_TRACE = "trace_view.json"
_DATABASE = re.compile(r"(?:ascend_pytorch_profiler(?:_\d+)?|msprof_\d+)\.db")
_DONE = "analyse.done"
_CANN = re.compile(r"PROF_\d+_\d+_[0-9a-zA-Z]+")


def missing_parts(folder: Path, *, on_host: bool | None = None, on_device: bool | None = None) -> str | None:
    """Return what is missing from a recording, in a sentence; None if it is complete.

    Only the presence of data is checked, not its content.
    """
    if not any(folder.glob("profiler_info*.json")):
        return "torch_npu did not end the recording: there is no profiler_info.json"
    host = any((folder / "FRAMEWORK").glob("*"))
    device = any(child.is_dir() and _CANN.fullmatch(child.name) for child in folder.iterdir())
    if on_device and not device:
        return "the device recorded nothing: CANN made no PROF_ folder (see its log: ~/ascend/log)"
    if on_host and not host:
        return "torch_npu recorded no operation of the host: FRAMEWORK is empty"
    return None if host or device else "it has no operations of the host or the device"


def is_analysed(folder: Path) -> bool:
    """Return whether an analysis has finished there."""
    return (folder / OUTPUT / _DONE).is_file()


def is_database(name: str) -> bool:
    """Return whether a file is a database of torch_npu or msprof with events; ``analysis.db`` only
    has sums.
    """
    return _DATABASE.fullmatch(name) is not None


def trace_of(folder: Path) -> Path | None:
    """Return the analysis result that a timeline can be made from: the JSON, else the database."""
    trace = folder / OUTPUT / _TRACE
    if trace.is_file():
        return trace
    return next((path for path in sorted((folder / OUTPUT).glob("*.db")) if is_database(path.name)), None)


def analysis_of(folder: Path) -> str:
    """Return the state of a folder's analysis, for people: the files to open."""
    output = folder / OUTPUT
    made = sorted(path.name for path in output.glob("*") if path.name == _TRACE or path.suffix == ".db")
    if made:
        return f"analysed: {', '.join(made)}"
    return "analysed, but without a trace or database" if is_analysed(folder) else NOT_YET


def recorded_folders(step: Path, entries: Iterable[Mapping[str, Any]]) -> list[Path]:
    """Return torch_npu's folders below a step's folder that windows and engines of its manifest
    name.

    An engine's entry may name a file in such a folder.
    """
    paths = (step / artifact["path"] for entry in entries for artifact in entry["artifacts"])
    found = (each for path in paths for each in (path, *path.parents) if each.name.endswith(FOLDER))
    return [folder for folder in dict.fromkeys(found) if folder.is_dir()]


def profile_folders(below: Path) -> Iterator[Path]:
    """Return torch_npu's folders below a folder, or that folder itself."""
    if below.name.endswith(FOLDER):
        yield below
        return
    for path in sorted(below.rglob(f"*{FOLDER}")):
        if path.is_dir():
            yield path

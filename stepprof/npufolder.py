"""What torch_npu leaves: a folder ``…_ascend_pt`` with the host's part, CANN's part and, once it was analysed, what people look at.

Read here by names alone, so that the recording side, `stepprof check` and the readers agree on it without torch_npu.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["FOLDER", "KIND", "OUTPUT", "SUFFIX", "TRACE", "is_analysed", "missing_parts", "profile_folders"]

KIND = "npu-profile"
"""The artifact's kind in the manifest; its path is a folder."""
SUFFIX = ".npu"
FOLDER = "_ascend_pt"
"""How the name of a folder of torch_npu's ends."""
OUTPUT = "ASCEND_PROFILER_OUTPUT"
"""Where an analysis writes."""
TRACE = f"{OUTPUT}/trace_view.json"

_DONE = "analyse.done"
_CANN = re.compile(r"PROF_\d+_\d+_[0-9a-zA-Z]+")


def missing_parts(folder: Path, *, on_host: bool | None = None, on_device: bool | None = None) -> str | None:
    """What is not there of a recording, in a sentence; None where all of it is. Without a word on what was recorded, only that there is something."""
    if not any(folder.glob("profiler_info*.json")):
        return "torch_npu did not end the recording: there is no profiler_info.json"
    host = any((folder / "FRAMEWORK").glob("*"))
    device = any(child.is_dir() and _CANN.fullmatch(child.name) for child in folder.iterdir())
    if on_device and not device:
        return "the device recorded nothing: CANN made no PROF_ folder (its log may say why: ~/ascend/log)"
    if on_host and not host:
        return "torch_npu recorded no operation of the host: there is nothing in FRAMEWORK"
    return None if host or device else "neither the host's operations nor the device's are in it"


def is_analysed(folder: Path) -> bool:
    """Whether an analysis has ended there."""
    return (folder / OUTPUT / _DONE).is_file()


def profile_folders(below: Path) -> Iterator[Path]:
    """The folders that torch_npu left below another one, or that folder itself."""
    if below.name.endswith(FOLDER):
        yield below
        return
    for path in sorted(below.rglob(f"*{FOLDER}")):
        if path.is_dir():
            yield path

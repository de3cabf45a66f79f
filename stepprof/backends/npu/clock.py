"""The one time that torch_npu gets wrong: at the end of a recording it writes down CLOCK_MONOTONIC, and later reads it as CLOCK_MONOTONIC_RAW, by which its operations are timed (2.1 to 2.14).

Between the two lies what the clock has been slewed by since the machine was started: 0.2 s after nine hours, seconds after a month. By so much the operations of a recording without a device would lie
beside everything else; with one, CANN's own start time is taken. So the number is put right before anybody analyses.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

from stepprof.host.atomic_files import write_atomically

__all__ = ["correct_end"]

_RAW = getattr(time, "CLOCK_MONOTONIC_RAW", None)


def correct_end(folder: Path) -> None:
    """Put it right in a folder that was just recorded on this machine; a file that is not as expected is left as it is."""
    if _RAW is None:
        return
    raw, plain, wall = time.clock_gettime_ns(_RAW), time.monotonic_ns(), time.time_ns()
    for file in folder.glob("profiler_info*.json"):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            told = json.loads(file.read_text(encoding="utf-8"))
            end = told["end_info"]
            since = wall - end["collectionTimeEnd"]
            was = end["MonotonicTimeEnd"]
            if abs(was - (plain - since)) < abs(was - (raw - since)):
                end["MonotonicTimeEnd"] = was - (plain - raw)
                write_atomically(file, json.dumps(told, indent=4, ensure_ascii=False).encode())

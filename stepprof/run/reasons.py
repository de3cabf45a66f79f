"""Reason codes of manifest entries: programs compare these, the message next to a code is for people only.

An entry is written ahead as `lost`, so that it is correct if its process dies. While it is `pending`, that process will replace it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class ReasonCode(str, Enum):
    """The `reason_code` of an entry.

    >>> ReasonCode.BUSY == "busy"
    True
    """

    RECORDING = "recording"
    """Written ahead: the process ended before the capture was stopped."""
    EXPORTING = "exporting"
    """Written ahead: the process ended before the capture was exported."""
    REPORT_PENDING = "report_pending"
    """Written ahead: the process ended before the report of the engine arrived."""
    STOP_UNANSWERED = "stop_unanswered"
    """The engine did not answer its stop in time."""
    START_UNANSWERED = "start_unanswered"
    """The engine was not ready in time, or did not answer its start in time."""
    BACKEND_UNAVAILABLE = "backend_unavailable"
    """The backend cannot record on this machine."""
    BACKEND_FAILED = "backend_failed"
    """The backend failed to start or to stop."""
    EXPORT_FAILED = "export_failed"
    """The export failed, or could not write all of the capture."""
    ENGINE_FAILED = "engine_failed"
    """A call of the engine's driver failed; `health` is the state of the engine."""
    ENGINES_UNKNOWN = "engines_unknown"
    """The engines of the role could not be determined or reached."""
    BUSY = "busy"
    """Another profiler or capture, or another user of the device, was active."""
    NOT_READY = "not_ready"
    """The engine could not be started in time for the window; nothing was sent to it."""
    CAPTURE_ENDED = "capture_ended"
    """The capture of this step, or the run, had already ended when the window began."""
    REGION_NOT_ENTERED = "region_not_entered"
    """None of the regions to be captured was entered."""
    DRIVEN_ELSEWHERE = "driven_elsewhere"
    """Another process controls this engine and has the entry with its outcome."""
    SAME_PROCESS = "same_process"
    """The engine works in this process, whose own capture contains its work."""
    OUTLIVED_CAPTURE = "outlived_capture"
    """The window continued after its capture had ended."""
    ENDED_EARLY = "ended_early"
    """The capture ended before its window: by a signal, an interrupt, the end of the run, or a window left open."""
    INCOMPLETE = "incomplete"
    """The files do not contain all of the window."""
    RECOVERED = "recovered"
    """A later stop produced the files, because the capture's own stop failed."""
    NOT_COLLECTED = "not_collected"
    """Files were left on another host."""
    OUT_OF_MEMORY = "out_of_memory"
    """A snapshot taken when CUDA ran out of memory."""


def is_pending(entry: Mapping[str, object]) -> bool:
    """Return whether the process that wrote the entry of a window or engine will replace it, if it lives.

    Args:
        entry: as read from a manifest. Without `pending`, as in older versions, every `lost` entry counts as pending.

    >>> is_pending({"status": "lost", "pending": False}), is_pending({"status": "lost"})
    (False, True)
    """
    pending = entry.get("pending")
    return pending if isinstance(pending, bool) else entry.get("status") == "lost"

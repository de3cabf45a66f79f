"""Count the bytecode instructions that Python executes. Unlike a time, the count is the same on a
busy machine and on an idle one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


def instructions_of(function: Callable[..., object], *arguments: object, **keywords: object) -> int:
    """Return the number of bytecode instructions of a call on this thread, without the work inside
    compiled libraries.
    """
    count = _monitored if sys.version_info >= (3, 12) else _traced
    return count(lambda: function(*arguments, **keywords))


def _monitored(call: Callable[[], object]) -> int:
    # a trace function of Python 3.13.0 misses the opcodes of code that it has not traced before
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    thread, count = threading.get_ident(), 0

    def executed(*_: object) -> None:
        nonlocal count
        count += threading.get_ident() == thread

    tool, event = monitoring.PROFILER_ID, monitoring.events.INSTRUCTION
    monitoring.use_tool_id(tool, "counting")
    monitoring.register_callback(tool, event, executed)
    monitoring.set_events(tool, event)
    try:
        call()
    finally:
        monitoring.set_events(tool, monitoring.events.NO_EVENTS)
        monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)
    return count


def _traced(call: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if event == "call":
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count

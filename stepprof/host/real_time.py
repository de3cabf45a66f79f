"""The interpreter's own clocks, whatever a library has put in their place.

freezegun and its like replace the functions of `time`, and each reference to them in imported modules. With a frozen clock a
deadline never comes, and spans have no length. A fresh copy of the built-in module has functions of its own, which no library knows.
"""

from __future__ import annotations

from importlib.machinery import BuiltinImporter
from importlib.util import module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from time import (
        monotonic,
        monotonic_ns,
        perf_counter,
        perf_counter_ns,
        process_time_ns,
        thread_time_ns,
        time,
        time_ns,
    )
else:
    _spec = BuiltinImporter.find_spec("time")
    _module = module_from_spec(_spec)
    BuiltinImporter.exec_module(_module)
    monotonic, monotonic_ns = _module.monotonic, _module.monotonic_ns
    perf_counter, perf_counter_ns = _module.perf_counter, _module.perf_counter_ns
    process_time_ns, thread_time_ns = _module.process_time_ns, _module.thread_time_ns
    time, time_ns = _module.time, _module.time_ns

__all__ = [
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time_ns",
    "thread_time_ns",
    "time",
    "time_ns",
]

"""Name the call of the device's runtime in which a host stood while its device had nothing to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepprof.analysis.report.host_calls import HostCalls
from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.wording import quoted, seconds_text

MOST_OF_IT = 0.5
"""A call is the reason if it has at least this share of the time."""
_ADVICE = (
    (re.compile(r".*Memcpy.*|.*Memset.*"), "copy from pinned memory with non_blocking=True, or once for many tensors"),
    (re.compile(r".*Synchronize.*"), "remove the synchronisation (.item(), .cpu(), printing a tensor), or synchronise once a step"),
    (re.compile(r".*(?:Malloc|HostAlloc|MemCreate|MemMap).*"), "take the memory once, before the step"),
)  # fmt: skip
_OF_OVERHEAD = (
    (re.compile(r".*Loading.*"), "kernels are loaded at their first use: warm up before the recording, or load all of them at the start (CUDA_MODULE_LOADING=EAGER)"),
    (re.compile(r".*Compiler.*"), "the driver compiled kernels: ship code for the architecture of the device, or warm up before the recording"),
    (re.compile(r".*(?:Buffer Request|Buffer Flush|Instrumentation).*"), "it is of the profiler, and not there without it: record less, or a shorter time"),
)  # fmt: skip
_ONCE = "it may be the first use of the device or of a kernel: if later steps lack it, warm up before the recording"


@dataclass(frozen=True, slots=True)
class RuntimeCall:
    """The calls of one function during some time."""

    name: str
    nanoseconds: int
    is_overhead: bool = False
    """Whether the trace calls it overhead; it does not say whose then."""

    def sentence(self, hosts: int = 1) -> str:
        """Say how long the host was in it, or several hosts."""
        if self.is_overhead:
            return f"{'its trace has' if hosts == 1 else 'their traces have'} {quoted(self.name)} as overhead for {seconds_text(self.nanoseconds / 1e9)} of it"
        return f"{'its host was' if hosts == 1 else 'their hosts were'} in {quoted(self.name)} for {seconds_text(self.nanoseconds / 1e9)} of it"

    def advice(self) -> str:
        """Return what to try."""
        of = _OF_OVERHEAD if self.is_overhead else _ADVICE
        return next((advice for names, advice in of if names.fullmatch(self.name)), _ONCE)

    @property
    def is_of_profiler(self) -> bool:
        """Whether a run without the profiler has none of it."""
        return self.is_overhead and _OF_OVERHEAD[-1][0].fullmatch(self.name) is not None


def longest_call(hosts: Sequence[HostCalls], when: Intervals) -> RuntimeCall | None:
    """Return the function that the host was in for most of some time; None: it was in none. What the trace calls overhead is within
    such calls, and says more.
    """
    for is_overhead in (True, False):
        found = [
            RuntimeCall(call.name, (Intervals.unpack(call.when) & when).total, is_overhead)
            for host in hosts
            for call in (host.overheads if is_overhead else host.calls)
        ]
        longest = max(found, key=lambda call: call.nanoseconds, default=None)
        if longest is not None and longest.nanoseconds >= MOST_OF_IT * when.total > 0:
            return longest
    return None

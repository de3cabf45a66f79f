"""Name the call of the device's runtime in which a host stood while its device had nothing to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
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
_ONCE = "it may be the first use of the device or of a kernel: if later steps lack it, warm up before the recording"


@dataclass(frozen=True, slots=True)
class RuntimeCall:
    """The calls of one function during some time."""

    name: str
    nanoseconds: int

    def sentence(self, hosts: int = 1) -> str:
        """Say how long the host was in it, or several hosts."""
        return f"{'its host was' if hosts == 1 else 'their hosts were'} in {quoted(self.name)} for {seconds_text(self.nanoseconds / 1e9)} of it"

    def advice(self) -> str:
        """Return what to try."""
        return next((advice for names, advice in _ADVICE if names.fullmatch(self.name)), _ONCE)


def longest_call(hosts: Iterable[HostCalls], when: Intervals) -> RuntimeCall | None:
    """Return the function that the host was in for most of some time; None: it was in none."""
    found = [
        RuntimeCall(call.name, (Intervals.unpack(call.when) & when).total)
        for host in hosts
        for call in host.calls
    ]
    longest = max(found, key=lambda call: call.nanoseconds, default=None)
    return longest if longest is not None and longest.nanoseconds >= MOST_OF_IT * when.total > 0 else None

"""Which call of the device's runtime a host was in."""

from __future__ import annotations

import pytest

from stepprof.analysis.findings.host_waits import RuntimeCall, longest_call
from stepprof.analysis.report.host_calls import HostCall, HostCalls
from stepprof.analysis.report.intervals import EMPTY, Intervals


def host(**calls: tuple[int, int]) -> HostCalls:
    return HostCalls([HostCall(name, 1, Intervals.one(*edges).pack()) for name, edges in calls.items()])


class TestLongestCall:
    def test_it_has_at_least_half_of_the_time(self) -> None:
        """Of all processes' calls, the longest one within the time counts."""
        hosts = [host(cudaFree=(0, 40)), host(cudaStreamSynchronize=(40, 100))]
        assert longest_call(hosts, Intervals.one(0, 100)) == RuntimeCall("cudaStreamSynchronize", 60)
        assert longest_call(hosts, Intervals.one(0, 30)) == RuntimeCall("cudaFree", 30)
        assert longest_call(hosts[:1], Intervals.one(0, 100)) is None

    def test_no_time_has_no_call(self) -> None:
        assert longest_call([host(cudaFree=(0, 40))], EMPTY) is None
        assert longest_call([], Intervals.one(0, 1)) is None


class TestRuntimeCall:
    @pytest.mark.parametrize(
        ("name", "advice"),
        [
            ("cudaMemcpyAsync", "copy from pinned memory"),
            ("hipEventSynchronize", "remove the synchronisation"),
            ("cudaMallocHost", "take the memory once"),
            ("cuModuleLoadData", "it may be the first use"),
        ],
    )
    def test_the_advice_is_of_its_kind(self, name: str, advice: str) -> None:
        assert RuntimeCall(name, 5_000_000).advice().startswith(advice)
        assert RuntimeCall(name, 5_000_000).sentence() == f"its host was in `{name}` for 5 ms of it"

"""What a trace shows of the host of a device."""

from __future__ import annotations

from digested import MS, T0, trace

from stepprof.analysis.report.digest import digest
from stepprof.analysis.report.host_calls import HostCalls
from stepprof.analysis.report.intervals import Intervals


class TestHostCalls:
    def test_calls_of_the_runtime(self) -> None:
        """Each function is one row, the longest first. A launch counts if it does more than launch."""
        made = digest(
            trace(
                0,
                ("thread", "cuda_runtime", "cudaLaunchKernel", 0, 0.9),
                ("thread", "cuda_runtime", "cudaLaunchKernel", 1, 5),
                ("thread", "overhead", "Lazy Function Loading", 1, 4),
                ("thread", "cuda_runtime", "cudaFree", 50, 10),
                ("thread", "cuda_driver", "cuStreamSynchronize", 60, 15),
                ("thread", "cuda_driver", "cuStreamSynchronize", 80, 15),
                ("thread", "cpu_op", "aten::mm", 0, 90),
                ("stream", "kernel", "gemm", 10, 5),
            )
        ).host
        assert [(call.name, call.count) for call in made.calls] == [
            ("cuStreamSynchronize", 2),
            ("cudaFree", 1),
            ("cudaLaunchKernel", 1),
        ]
        assert [(call.name, call.count) for call in made.overheads] == [("Lazy Function Loading", 1)]
        assert Intervals.unpack(made.calls[1].when).pairs() == [(T0 + 50 * MS, T0 + 60 * MS)]
        assert (made.connected, made.graphs) == (False, False)

    def test_graphs_are_noted(self) -> None:
        """A process that captures or launches one uses them."""
        call = ("thread", "cuda_runtime", "cudaStreamBeginCapture", 0, 1)
        assert digest(trace(0, call, ("stream", "kernel", "gemm", 10, 5))).host.graphs

    def test_a_process_without_a_device_has_none(self) -> None:
        assert digest(trace(0, ("thread", "cuda_runtime", "cudaFree", 0, 50))).host == HostCalls()

"""Devices without work, of hand-made steps."""

from __future__ import annotations

import pytest
from combined import found, report, stacks, topics
from digested import manifest, spans, trace, window


class TestHostBound:
    @pytest.mark.parametrize(
        ("more", "idle"), [({}, 600), ({"capped_by": "max_seconds"}, 0), ({"status": "partial"}, 0)]
    )
    def test_a_kernel_that_ran_when_the_capture_ended_is_not_in_its_trace(self, more, idle):
        """The device has a kernel until 0.4 s, and the capture ends at 1 s, with its window or before that ends: then
        nothing shows that no kernel ran at its end.
        """
        made = report(
            spans(0, ("window", "actor", 0, 2000 if more else 1000, "actor")),
            trace(
                0,
                ("thread", "cpu_op", "aten::mm", 0, 10),
                (("stream", "20"), "kernel", "gemm", 0, 100),
                (("stream", "20"), "kernel", "gemm", 300, 100),
            ),
            manifests=[manifest(window(end=1000, **more))],
        )
        assert sum(seconds for *_, seconds, _ in found(made, "host")) == pytest.approx((200 + idle) / 1e3)


@pytest.mark.parametrize("region", ["load_batch", "collect"])
@pytest.mark.parametrize("cause", ["stacks", "cudaMalloc"])
def test_a_host_keeps_nothing_waiting_while_its_device_works(cause, region):
    """For 300 ms the host waits for something, or for memory, and the device has kernels for all of that time, or but for 200 ms."""
    call = ("thread", "cuda_runtime", "cudaMalloc" if cause == "cudaMalloc" else "cudaLaunchKernel")
    for idle in (0, 200):
        made = report(
            spans(0, ("window", "actor", 0, 1000, "actor"), ("region", region, 100, 300, "actor")),
            trace(
                0,
                (*call, 100, 300) if cause == "cudaMalloc" else (*call, 10, 1),
                (("stream", "20"), "kernel", "gemm", 0, 400 - idle),
                (("stream", "20"), "kernel", "gemm", 400, 600),
            ),
            manifests=[manifest(window(end=1000))],
            evidence=[stacks(0, (100, 300, "sock.recv", 0.0))] if cause == "stacks" else [],
        )
        expected = "memory" if cause == "cudaMalloc" else "data" if region == "load_batch" else "io"
        assert topics(made) == ([expected] if idle else [])
        assert [each[2:] for each in found(made, expected)] == ([(0.2, 0.2)] if idle else [])

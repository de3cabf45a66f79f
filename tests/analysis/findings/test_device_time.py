"""Devices without work, of hand-made steps."""

from __future__ import annotations

import pytest
from combined import found, report
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

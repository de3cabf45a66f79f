"""Launches and kernels that state one number."""

from __future__ import annotations

from digested import MS, T0, trace

from stepprof.analysis.timeline.correlations import Numbered, lacks_arrows, with_launches
from stepprof.analysis.timeline.event import Event


def captured(*more):
    return trace(
        0,
        ("thread", "cuda_runtime", "cudaGraphLaunch", 1, 1, {"correlation": 9}),
        ("stream", "kernel", "one", 5, 2, {"correlation": 9}),
        ("stream", "kernel", "two", 8, 2, {"correlation": 9}),
        ("stream", "kernel", "lost", 11, 2, {"correlation": 4}),
        *more,
    )


class TestWithLaunches:
    def test_kernels_get_the_launch_of_their_number(self):
        """A kernel whose launch was not recorded gets none."""
        source = captured()
        assert lacks_arrows(source)
        flows = with_launches(source).flows
        assert (flows.start - T0).tolist() == [1 * MS, 1 * MS]
        assert (flows.end - T0).tolist() == [5 * MS, 8 * MS]
        assert [source.tracks[at].kind for at in (flows.start_track[0], flows.end_track[0])] == [
            "thread",
            "stream",
        ]

    def test_a_known_arrow_is_not_repeated(self):
        once = with_launches(captured())
        assert len(with_launches(once).flows) == 2

    def test_without_a_device_nothing_lacks(self):
        assert not lacks_arrows(trace(0, ("thread", "cuda_runtime", "cudaFree", 1, 1)))


class TestNumbered:
    def test_arguments_of_launches_and_kernels_are_kept(self):
        """Those of others are kept if another selection keeps them."""
        events = [Event("X", cat, args=b"{}") for cat in ("Kernel", "cuda_runtime", "cpu_op")]
        assert Numbered(None)(events) == [b"{}", b"{}", None]
        assert Numbered(lambda events: [None, None, b"1"])(events) == [b"{}", b"{}", b"1"]

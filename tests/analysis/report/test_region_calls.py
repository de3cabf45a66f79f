"""The region that contains a call: by time for a thread, and by the annotations of its stream for a
kernel.
"""

from __future__ import annotations

from digested import trace

from stepprof.analysis.report.region_calls import NONE, regions_around
from stepprof.analysis.report.slice_kinds import Chosen

WORKER = ("thread", "worker")
STREAM = ("stream", "20")
KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def regions(*slices):
    """Return the region of each call, ordered by the begin of the calls."""
    source = trace(0, *slices)
    chosen = Chosen(source)
    names = regions_around(source, chosen)
    order = source.slices.start[chosen.calls].argsort()
    return [None if names[at] == NONE else source.names[names[at]] for at in order]


class TestThreads:
    def test_the_innermost_region_that_holds_all_of_the_call(self):
        """An asynchronous call may end after its region. Such a region does not contain the call."""
        assert regions(
            ("thread", "user_annotation", "update", 0, 100),
            ("thread", "user_annotation", "sync", 10, 30),
            ("thread", "user_annotation", "launch", 50, 10),
            ("thread", "cpu_op", "c10d::allreduce_", 11, 1),
            (WORKER, "user_annotation", "gloo:all_reduce", 12, 20),
            (WORKER, "user_annotation", "gloo:all_reduce", 55, 30),
            (WORKER, "user_annotation", "gloo:all_reduce", 99, 30),
        ) == ["sync", "update", None]

    def test_a_call_that_is_closed_a_little_late_is_still_in_its_region(self):
        """The thread continues before gloo's worker has closed the annotation."""
        assert regions(
            ("thread", "user_annotation", "sync", 10, 30),
            (WORKER, "user_annotation", "gloo:barrier", 12, 28.5),
        ) == ["sync"]

    def test_regions_of_other_threads_do_not_count(self):
        """Only the thread that starts collectives counts; the trace shows which one that is."""
        assert regions(
            ("thread", "user_annotation", "update", 0, 100),
            ("thread", "cpu_op", "c10d::allreduce_", 11, 1),
            (("thread", "loader"), "user_annotation", "prefetch", 5, 40),
            (WORKER, "user_annotation", "gloo:all_reduce", 12, 20),
        ) == ["update"]


class TestKernels:
    def test_a_kernel_belongs_to_the_annotation_of_its_stream(self):
        """The host is already in the optimizer while the kernels of backward run."""
        assert regions(
            ("thread", "user_annotation", "backward", 0, 10),
            ("thread", "user_annotation", "optimizer", 10, 100),
            (("annotations", "20"), "gpu_user_annotation", "update", 20, 70),
            (("annotations", "20"), "gpu_user_annotation", "backward", 20, 40),
            (("annotations", "7"), "gpu_user_annotation", "forward", 0, 100),
            (STREAM, "kernel", KERNEL, 30, 20),
            (STREAM, "kernel", KERNEL, 65, 20),
        ) == ["backward", "update"]

    def test_without_annotations_the_region_is_unknown(self):
        """Without annotations on the stream, the region is unknown rather than guessed from the host."""
        assert regions(
            ("thread", "user_annotation", "optimizer", 10, 100), (STREAM, "kernel", KERNEL, 30, 20)
        ) == [None]

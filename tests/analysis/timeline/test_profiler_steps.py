"""Steps that torch's profiler marked."""

from __future__ import annotations

from digested import MS, T0, trace

from stepprof.analysis.timeline.profiler_steps import MarkedStep, cut_to_step, marked_steps, median_step


def marked(*slices):
    return trace(
        0,
        ("thread", "user_annotation", "ProfilerStep#3", 0, 10),
        ("thread", "user_annotation", "ProfilerStep#4", 12, 10),
        ("thread", "cpu_op", "aten::mm", 13, 2),
        *slices,
    )


class TestMarkedSteps:
    def test_a_step_lasts_until_the_next_one(self):
        """The last one lasts until the end of the trace. Copies of the marks on a device are none."""
        source = marked(
            ("stream", "kernel", "gemm", 5, 30),
            ("annotations", "gpu_user_annotation", "ProfilerStep#3", 2, 9),
        )
        assert marked_steps(source) == [
            MarkedStep(3, T0, T0 + 12 * MS),
            MarkedStep(4, T0 + 12 * MS, T0 + 35 * MS),
        ]

    def test_marks_of_another_thread_are_left_out(self):
        """A merged file may have the marks of several processes: those of the first thread count."""
        source = marked((("thread", "other"), "user_annotation", "ProfilerStep#3", 1, 10))
        assert [step.number for step in marked_steps(source)] == [3, 4]

    def test_a_last_mark_without_work_is_no_step(self):
        """The last `profiler.step()` of a loop begins it. The end of the profile calls the device's driver in it."""
        source = marked(
            ("thread", "user_annotation", "ProfilerStep#5", 24, 1),
            ("thread", "cuda_runtime", "cudaDeviceSynchronize", 24.5, 0.2),
            ("stream", "kernel", "gemm", 14, 10.5),
        )
        assert [step.number for step in marked_steps(source)] == [3, 4]
        assert marked_steps(source)[-1].end == T0 + 25 * MS
        last = ("thread", "user_annotation", "ProfilerStep#5", 24, 1)
        late = ("stream", "kernel", "gemm", 24.6, 9)  # launched by a step before it
        assert [step.number for step in marked_steps(marked(last, late))] == [3, 4]
        assert [
            step.number for step in marked_steps(marked(last, ("thread", "cpu_op", "aten::mm", 24.5, 0.1)))
        ] == [3, 4, 5]

    def test_a_trace_of_devices_alone(self):
        """Without operators of a host, kernels show that the last step has work."""
        marks = [("thread", "user_annotation", f"ProfilerStep#{number}", 10 * number, 9) for number in (1, 2)]
        kernels = [("stream", "kernel", "gemm", 10 * number + 1, 5) for number in (1, 2)]
        assert [step.number for step in marked_steps(trace(0, *marks, *kernels))] == [1, 2]

    def test_a_trace_without_marks(self):
        assert marked_steps(trace(0, ("thread", "user_annotation", "ProfilerStep", 0, 10))) == []


class TestMedianStep:
    def test_the_shorter_one_of_two_in_the_middle(self):
        steps = [MarkedStep(number, 0, length) for number, length in enumerate((50, 52, 80, 51))]
        assert median_step(steps) == 3
        assert median_step(steps[:1]) == 0


class TestCutToStep:
    def test_slices_are_cut_and_neighbours_left_out(self):
        """What ends when the step begins is not in it, nor what begins when it ends."""
        source = marked(
            ("stream", "kernel", "gemm", 5, 10),
            ("thread", "cpu_op", "before", 11, 1),
            ("thread", "cpu_op", "empty", 12, 0),
        )
        part = cut_to_step(source, marked_steps(source)[1])
        assert sorted(
            (part.names[name], (start - T0) / MS, duration / MS)
            for name, start, duration in zip(
                part.slices.name, part.slices.start.tolist(), part.slices.duration.tolist(), strict=True
            )
        ) == [("ProfilerStep#4", 12, 10), ("aten::mm", 13, 2), ("empty", 12, 0), ("gemm", 12, 3)]

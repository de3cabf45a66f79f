"""The digest of a source: the part of its content that the report needs."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from digested import MS, T0, engine, source, spans, trace
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprof.analysis.report import collectives, rollout
from stepprof.analysis.report import digest as digest_module
from stepprof.analysis.report.collectives import (
    columns_of,
    is_device_communication,
    is_host_communication,
    kind_of,
)
from stepprof.analysis.report.digest import Digest, digest
from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.ops import OpTable, OpTime, merge_ops
from stepprof.analysis.report.rollout import Curve, collect_samples, total_curve
from stepprof.analysis.timeline.model import Alignment, Origin


def ms(intervals):
    return [((start - T0) / MS, (end - T0) / MS) for start, end in intervals.pairs()]


class TestOps:
    def test_self_time_of_operators_and_not_of_annotations(self):
        made = digest(
            trace(
                0,
                ("thread", "user_annotation", "forward", 0, 100),
                ("thread", "cpu_op", "aten::linear", 10, 50),
                ("thread", "cpu_op", "aten::addmm", 20, 30),
                ("thread", "cpu_op", "aten::linear", 70, 10),
                (("thread", "other"), "cpu_op", "aten::addmm", 15, 5),
            )
        )
        assert made.ops == OpTable(
            [OpTime("aten::addmm", 2, 35 * MS, 35 * MS), OpTime("aten::linear", 2, 60 * MS, 30 * MS)], 65 * MS
        )
        assert [(region.name, region.covered) for region in made.regions] == [("forward", 100 * MS)]

    def test_the_costliest_names_are_kept_and_the_sum_covers_all(self, monkeypatch):
        monkeypatch.setattr("stepprof.analysis.report.ops.MOST_NAMES", 2)
        made = digest(trace(0, *(("thread", "cpu_op", f"op{n}", 10 * n, n + 1) for n in range(5))))
        assert [time.name for time in made.ops.times] == ["op4", "op3"]
        assert made.ops.own == 15 * MS

    def test_processes_are_added_up_and_shares_are_of_everything(self):
        one = OpTable([OpTime("mm", 3, 300, 200), OpTime("add", 1, 10, 10)], 300)
        other = OpTable([OpTime("mm", 1, 100, 100)], 100)
        (mm, add) = merge_ops([("rank 0", one), ("rank 1", other), ("rank 1", other)], "op")
        assert (mm.name, mm.calls, mm.seconds, mm.self_seconds, mm.share) == ("mm", 5, 500e-9, 400e-9, 0.8)
        assert [(time.label, time.seconds, time.calls) for time in mm.per_process] == [
            ("rank 0", 200e-9, 3),
            ("rank 1", 200e-9, 2),
        ]
        assert add.share == 0.02


class TestWork:
    def test_a_device_is_its_streams(self):
        made = digest(
            trace(
                0,
                ("thread", "cpu_op", "aten::mm", 0, 100),
                (("stream", "7"), "kernel", "gemm", 10, 20),
                (("stream", "7"), "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 40, 5),
                (("stream", "20"), "kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 20, 30),
                (("async", "notes"), "gpu_user_annotation", "forward", 0, 90),
                (("stream", "7"), "overhead", "Buffer Flush", 60, 30),
            )
        )
        (work,) = made.works
        assert (work.device, work.compute, work.communication, work.overlapped, work.busy) == (
            "gpu", 20 * MS, 30 * MS, 10 * MS, 40 * MS,
        )  # fmt: skip
        assert ms(Intervals.unpack(work.computing)) == [(10, 30), (40, 45)], (
            "copies and kernels, also while a collective runs: then nobody waits in it"
        )
        assert ms(Intervals.unpack(work.communicating)) == [(20, 50)]
        assert [time.name for time in made.kernels.times][:2] == [
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
            "gemm",
        ]
        assert made.regions == []

    def test_without_a_device_operators_compute_and_gloo_communicates(self):
        (work,) = digest(
            trace(
                0,
                ("thread", "cpu_op", "c10d::allreduce_", 0, 2),
                ("thread", "user_annotation", "gloo:all_reduce", 1, 20),
                ("thread", "cpu_op", "aten::mm", 10, 20),
            )
        ).works
        assert (work.device, work.compute, work.communication, work.overlapped, work.busy) == (
            "cpu", 20 * MS, 20 * MS, 11 * MS, 29 * MS,
        )  # fmt: skip

    def test_closed_gaps_are_counted(self, monkeypatch):
        monkeypatch.setattr(digest_module, "MOST_STRETCHES", 2)
        (work,) = digest(trace(0, *(("thread", "cpu_op", "mm", at, 1) for at in (0, 2, 9)))).works
        assert ms(Intervals.unpack(work.computing)) == [(0, 3), (9, 10)]
        assert (work.busy, work.closed) == (3 * MS, 1 * MS)

    def test_a_trace_of_annotations_alone_works_at_nothing(self):
        assert digest(trace(0, ("thread", "user_annotation", "forward", 0, 1))).works == []

    @pytest.mark.parametrize(
        ("name", "communicates"),
        [
            ("ncclKernel_AllGather_RING_LL_Sum_int8_t", True),
            ("hcom_allReduce__123_0_1", True),
            ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>", True),
            ("mscclKernel_Sum_float_Simple(mscclDevCommAndChannelStorage)", True),
            ("void at::native::reduce_kernel<512>", False),
            ("Broadcast_elementwise", False),
        ],
    )
    def test_communication_is_recognised_by_name(self, name, communicates):
        assert is_device_communication(name) is communicates

    def test_two_devices_of_one_process_are_two_works(self):
        """Each device has its own busy time. One sum could exceed the length of the capture."""
        works = digest(
            trace(
                0,
                (("stream", "7", "0"), "kernel", "gemm", 0, 30),
                (("stream", "7", "1"), "kernel", "gemm", 10, 40),
                (("stream", "20", "1"), "kernel", "ncclDevKernel_AllReduce", 40, 20),
            )
        ).works
        assert [(work.number, work.compute, work.communication, work.overlapped, work.busy) for work in works] == [
            ("0", 30 * MS, 0, 0, 30 * MS),
            ("1", 40 * MS, 20 * MS, 10 * MS, 50 * MS),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("ncclDevKernel_AllGather_RING_LL(x)", "all_gather"),
            ("gloo:reduce_scatter", "reduce_scatter"),
            ("gloo:reduce", "reduce"),
            ("gloo:scatter", "scatter"),
            ("gloo:gather", "gather"),
            ("hcom_broadcast__1", "broadcast"),
            ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>", "all_reduce"),
            ("ncclDevKernel_SendRecv(x)", "point_to_point"),
            ("gloo:recv", "point_to_point"),
        ],
    )
    def test_kinds_of_collectives(self, name, kind):
        assert kind_of(name) == kind

    def test_host_collectives(self):
        assert is_host_communication("gloo:all_reduce")
        assert not is_host_communication("c10d::allreduce_")


class TestRegionsAndWindows:
    def test_windows_and_regions_have_the_role_of_their_args(self):
        made = digest(
            spans(
                0,
                ("window", "actor", 0, 100, "actor"),
                ("region", "update", 10, 30, "actor"),
                ("region", "update", 30, 30, "actor"),
                ("region", "update", 80, 5, None),
            )
        )
        assert [(window.role, window.start - T0, window.end - T0) for window in made.windows] == [
            ("actor", 0, 100 * MS)
        ]
        (in_role, without) = made.regions
        assert (in_role.role, in_role.calls, in_role.covered) == ("actor", 2, 50 * MS)
        assert (in_role.first - T0, in_role.last - T0) == (10 * MS, 60 * MS)
        assert ms(Intervals.unpack(in_role.when)) == [(10, 60)]
        assert (without.role, without.covered) == (None, 5 * MS)

    def test_an_attribute_named_role_is_not_a_role(self):
        made = digest(spans(0, ("window", "actor", 0, 9, "actor"), ("region", "turn", 1, 2, "assistant")))
        assert [region.role for region in made.regions] == [None]

    def test_damaged_args_lose_only_the_role(self):
        broken = spans(0, ("region", "update", 0, 1, "actor"), args=[b"{"])
        assert [(region.name, region.role) for region in digest(broken).regions] == [("update", None)]

    def test_the_longest_regions_are_kept_and_the_others_counted(self, monkeypatch):
        monkeypatch.setattr(digest_module, "MOST_REGIONS", 2)
        made = digest(spans(0, *(("region", f"r{n}", 10 * n, n + 1, "actor") for n in range(4))))
        assert [region.name for region in made.regions] == ["r3", "r2"]
        assert made.findings == ["2 shorter regions with other names are omitted"]

    def test_a_region_inside_itself_counts_once(self):
        """A recursive call, or an annotation of torch with the same name, is part of one call. On
        another thread it is a separate call.
        """
        made = digest(
            trace(
                0,
                ("thread", "user_annotation", "update", 0, 30),
                ("thread", "user_annotation", "update", 0, 30),
                ("thread", "user_annotation", "update", 5, 10),
                ("thread", "user_annotation", "update", 30, 10),
                (("thread", "other"), "user_annotation", "update", 5, 10),
            )
        )
        (region,) = made.regions
        assert (region.name, region.calls, region.covered) == ("update", 3, 40 * MS)

    def test_steps_of_engines_and_profilers_are_not_regions(self):
        made = digest(
            trace(
                0,
                ("thread", "user_annotation", "ProfilerStep#3", 0, 9),
                ("thread", "user_annotation", "step[DECODE bs=1]", 0, 9),
                ("thread", "user_annotation", "execute_context_0(0)_generation_2(2)", 0, 9),
            )
        )
        assert made.regions == []


class TestBounds:
    def test_events_outside_the_step_are_left_out_by_the_sources_clock(self):
        """One capture covers several steps. Only events in this step count, and slices are cut to it."""
        shifted = trace(
            0,
            ("thread", "cpu_op", "before", 0, 10),
            ("thread", "cpu_op", "across", 5, 10),
            ("thread", "cpu_op", "inside", 20, 10),
            ("thread", "cpu_op", "after", 50, 10),
            marks=[("early", 1), ("late", 25)],
            counters=[("memory allocated CPU", 2, 900), ("memory allocated CPU", 22, 100)],
            alignment=Alignment("ping-pong", 3_000 * MS, 10),
        )
        made = digest(shifted, (T0 + 3_010 * MS, T0 + 3_040 * MS))
        assert {time.name: time.total for time in made.ops.times} == {
            "across": 5 * MS,
            "inside": 10 * MS,
            "before": 0,
        }
        assert [(peak.device, peak.peak, peak.at - T0) for peak in made.memory] == [
            ("CPU, allocated", 100, 22 * MS)
        ]
        assert (made.start - T0, made.end - T0) == (10 * MS, 30 * MS)

    def test_slices_inside_the_step_are_unchanged(self):
        whole = trace(0, ("thread", "cpu_op", "mm", 10, 10))
        assert digest(whole, (T0, T0 + 100 * MS)) == digest(whole)

    def test_args_go_with_their_slices(self):
        made = digest(
            spans(
                0, ("region", "early", 0, 1, "a"), ("window", "b", 10, 5, "b"), ("region", "late", 11, 2, "b")
            ),
            (T0 + 9 * MS, T0 + 20 * MS),
        )
        assert [(region.name, region.role) for region in made.regions] == [("late", "b")]


class TestRollout:
    def test_the_iterations_of_a_worker(self):
        batches = digest(engine(0, (0, 9, 4), (10, 9, 4), (20, 10, 1))).batches
        curve = batches.curve()
        assert (batches.iterations, batches.peak) == (3, 4)
        assert ((curve.time - T0) / MS).tolist() == [0, 10, 20, 30]
        assert curve.value.tolist() == [4, 4, 1]

    def test_a_forward_step_without_a_request_is_not_counted(self):
        """vLLM runs forward steps without requests after its last request has ended."""
        batches = digest(engine(0, (0, 9, 4), (10, 9, 0), (20, 10, 1), (30, 10, 0))).batches
        assert (batches.iterations, batches.peak) == (2, 4)

    def test_below_half_and_tail(self):
        curve = digest(engine(0, (0, 10, 8), (10, 20, 3), (30, 30, 5), (60, 40, 1))).batches.curve()
        row = rollout.rollout("rollout/0", curve, T0, iterations=4, peak=8)
        assert (row.seconds, row.peak_batch) == (0.1, 8)
        assert row.below_half == 0.6
        assert row.tail == 0.04
        assert row.mean_batch == pytest.approx((8 * 10 + 3 * 20 + 5 * 30 + 40) / 100)
        assert row.curve == [(0.0, 8), (0.01, 3), (0.03, 5), (0.06, 1), (0.1, 0)]

    @pytest.mark.parametrize("more", [0, 1])
    def test_a_merged_file_counts_one_of_its_workers(self, more):
        """The workers run the same steps at about the same times, but one of them may have stopped
        one step later.
        """
        steps, counters = [], []
        for worker, count in enumerate((3, 3 + more)):
            at = [10 * n + 0.1 * worker for n in range(count + 1)]
            steps += [
                (("iterations", f"w{worker}"), "iteration", "step[DECODE bs=2]", each, 9) for each in at[:-1]
            ]
            counters += [(f"w{worker}: batch size", each, 2) for each in at[:-1]]
            counters.append((f"w{worker}: batch size", at[-1], 0))
        made = digest(source(Origin("trace", "merged.json"), *steps, counters=counters))
        assert (made.batches.peak, made.batches.iterations) == (2, 3 + more)

    def test_two_schedulers_in_one_merged_file_are_added_up(self):
        """With data parallelism each scheduler has its own batches. The batch of the engine is
        their sum, and its forward steps are those of both.
        """
        steps = [
            (("iterations", f"dp{w}"), "iteration", "step[DECODE]", 10 * n, 10)
            for w in range(2)
            for n in range(2)
        ]
        counters = [
            *(("dp0: batch size", at, value) for at, value in ((0, 4), (10, 2), (20, 0))),
            *(("dp1: batch size", at, value) for at, value in ((0, 8), (10, 8), (20, 0))),
        ]
        batches = digest(source(Origin("trace", "merged.json"), *steps, counters=counters)).batches
        assert (batches.iterations, batches.peak) == (4, 12)
        assert batches.curve().value.tolist() == [12, 10]

    def test_a_source_without_iterations_has_no_batches(self):
        assert digest(trace(0, ("thread", "cpu_op", "mm", 0, 1))).batches is None
        assert digest(trace(0, counters=[("batch size", 0, 1)])).batches is None
        lone = source(
            Origin("trace", "x"),
            (("iterations", "i"), "iteration", "step[DECODE bs=1]", 0, 1),
            counters=[("batch size", 0, 1)],
        )
        assert digest(lone).batches is None

    def test_samples_have_seconds_by_region(self):
        made = digest(
            spans(
                0,
                ("region", "other", 0, 1, "rollout"),
            )
        )
        assert made.samples is None
        on = [
            (("sample", "a"), "region", "trajectory", 0, 100),
            (("sample", "a"), "region", "generate", 0, 60),
            (("sample", "a"), "region", "tool_call", 60, 30),
            (("sample", "b"), "region", "generate", 10, 20),
        ]
        samples = digest(source(Origin("spans", "s"), *on)).samples
        assert samples.times.count == 2
        longest = samples.longest[0]
        assert (longest.sample, longest.start - T0, longest.end - T0) == ("a", 0, 100 * MS)
        assert longest.spent == {"trajectory": 10 * MS, "generate": 60 * MS, "tool_call": 30 * MS}
        assert samples.curve().value.tolist() == [1, 2, 1]

    @settings(deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=12))
    def test_in_flight_counts_the_samples_at_each_moment(self, raw):
        names = [str(number) for number in range(len(raw))]
        start = np.array([begin for begin, _ in raw], np.int64)
        duration = np.array([length for _, length in raw], np.int64)
        number = np.arange(len(raw), dtype=np.int32)
        curve = collect_samples(
            names, ["x"], sample=number, name=number * 0, start=start, duration=duration
        ).curve()
        for at in range(61):
            expected = sum(begin <= at < begin + length for begin, length in raw)
            where = int(np.searchsorted(curve.time, at, side="right")) - 1
            assert (curve.value[where] if 0 <= where < len(curve.value) else 0) == expected

    def test_a_long_curve_is_reduced_without_changing_its_area(self):
        curve = Curve(np.arange(0, 1001, dtype=np.int64) * 10, np.arange(1000.0))
        reduced = curve.reduced(100)
        assert len(reduced.value) == 100
        assert (reduced.value * reduced.lengths).sum() == pytest.approx((curve.value * curve.lengths).sum())
        assert reduced.value[0] == pytest.approx(4.5)

    def test_the_sum_of_curves(self):
        one = Curve(np.array([0, 10, 20]), np.array([4.0, 2.0]))
        other = Curve(np.array([5, 30]), np.array([1.0]))
        total = total_curve([one, other])
        assert total.time.tolist() == [0, 5, 10, 20, 30]
        assert total.value.tolist() == [4, 5, 3, 1]

    def test_an_empty_phase_has_no_rollout(self):
        assert rollout.rollout("x", Curve(np.array([5, 5]), np.array([1.0])), 0) is None


class TestCalls:
    """The communication calls of one source, packed for the report."""

    def test_calls_are_sorted_with_region_kind_and_arguments(self):
        made = digest(
            trace(
                1,
                ("thread", "user_annotation", "update", 0, 50),
                ("thread", "user_annotation", "backward", 5, 25),
                (("thread", "w"), "user_annotation", "gloo:barrier", 60, 5, {"finished": False}),
                (("thread", "w"), "user_annotation", "gloo:all_reduce", 10, 5, {}),
                (("thread", "w"), "user_annotation", "gloo:all_reduce", 20, 15, {}),
                world=4,
                groups=[(0, 1), (2, 3)],
            )
        )
        columns = columns_of([("actor", made.calls)])
        assert ((columns.start - T0) / MS).tolist() == [10, 20, 60]
        assert [columns.kinds[kind] for kind in columns.kind] == ["all_reduce", "all_reduce", "barrier"]
        assert columns.finished.tolist() == [True, True, False]
        assert [*(columns.regions[at] for at in columns.region[:2]), columns.region[2]] == [
            "backward",
            "update",  # it lasts longer than the backward pass
            -1,
        ]
        assert (made.calls.world, made.calls.rank, made.calls.configured) == (4, 1, ["0-3", "0-1"])

    def test_regions_of_unrelated_threads_contain_no_collectives(self):
        made = digest(
            trace(
                0,
                (("thread", "loader"), "user_annotation", "load", 0, 100),
                (("thread", "main"), "user_annotation", "update", 0, 50),
                (("thread", "main"), "cpu_op", "c10d::allreduce_", 9, 1),
                (("thread", "w"), "user_annotation", "gloo:all_reduce", 10, 5),
            )
        )
        assert made.calls.regions == ["update"]

    def test_without_arguments_groups_are_unknown(self):
        """Some trace formats have no arguments. Then the groups are unknown and every call counts
        as finished.
        """
        made = digest(trace(0, ("thread", "user_annotation", "gloo:all_reduce", 0, 1)))
        columns = columns_of([(None, made.calls)])
        assert (columns.groups, columns.finished.tolist()) == ([], [True])

    def test_host_collectives_of_a_rank_with_a_device_are_calls(self):
        """gloo moves data on threads next to a GPU with kernels. NCCL's annotation on a thread only
        starts a kernel, so it is no call.
        """
        made = digest(
            trace(
                0,
                (("stream", "7"), "kernel", "gemm", 0, 10),
                (("stream", "20"), "kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 10, 10),
                ("thread", "user_annotation", "nccl:all_reduce", 9, 2),
                (("thread", "w"), "user_annotation", "gloo:barrier", 30, 5),
            )
        )
        columns = columns_of([("actor", made.calls)])
        assert [columns.kinds[kind] for kind in columns.kind] == ["all_reduce", "barrier"]
        assert columns.on_host.tolist() == [False, True]

    def test_too_many_calls_are_dropped_from_the_digest(self, monkeypatch):
        monkeypatch.setattr(collectives, "MOST_CALLS", 1)
        calls = digest(
            trace(0, *(("thread", "user_annotation", "gloo:all_reduce", at, 1) for at in (0, 2)), world=2)
        ).calls
        assert (calls.left_out, len(calls), calls.world) == (2, 0, 2)


def test_a_digest_goes_through_json():
    made = digest(engine(0, (0, 9, 4), (10, 9, 4)))
    assert msgspec.json.decode(msgspec.json.encode(made), type=Digest) == made


def test_a_source_without_events_keeps_its_findings():
    made = digest(trace(0, findings=["damaged: empty"]))
    assert (made.events, made.start, made.findings) == (0, None, ["damaged: empty"])


def test_an_npu_is_known_by_its_communication():
    made = digest(
        trace(
            0,
            (("stream", "7"), "kernel", "MatMulV2", 0, 20),
            (("stream", "9"), "communication", "send_recv__1", 10, 20),
        )
    )
    (work,) = made.works
    assert (work.device, work.compute, work.communication, work.overlapped) == (
        "npu", 20 * MS, 20 * MS, 10 * MS,
    )  # fmt: skip


def test_a_profilers_step_is_not_an_operator():
    """torch_npu writes a profiler step as an operator. It would take as long as all the others together."""
    made = digest(
        trace(0, ("thread", "cpu_op", "ProfilerStep#1", 0, 90), ("thread", "cpu_op", "aten::mm", 10, 20))
    )
    assert [time.name for time in made.ops.times] == ["aten::mm"]
    assert made.works[0].compute == 20 * MS


def test_a_sample_is_in_flight_only_in_its_generating_role():
    on = [
        (("thread", "main"), "window", "rollout", 0, 50, "rollout"),
        (("thread", "main"), "window", "reward", 50, 50, "reward"),
        (("sample", "a"), "region", "generate", 0, 50, "rollout"),
        (("sample", "a"), "region", "grade", 90, 1, "reward"),
    ]
    samples = digest(source(Origin("spans", "s"), *on)).samples
    assert ((samples.longest[0].end - T0) / MS, samples.longest[0].spent) == (50, {"generate": 50 * MS})


def test_events_at_impossible_times_are_left_out_and_reported():
    """One flipped bit in a time must not make the step a century long."""
    odd = trace(
        0,
        *(("thread", "cpu_op", "mm", at, 1) for at in range(4)),
        ("thread", "cpu_op", "far", 0, 1),
        ("thread", "cpu_op", "endless", 0, 1),
        counters=[("memory allocated CPU", 1, 7), ("memory allocated CPU", 2, float("nan"))],
    )
    odd.slices.start[4] = 2**62
    odd.slices.duration[5] = 2**62
    made = digest(odd)
    assert ((made.start - T0) / MS, (made.end - T0) / MS) == (0, 4)
    assert [time.name for time in made.ops.times] == ["mm"]
    assert [peak.peak for peak in made.memory] == [7]
    assert made.findings[0].startswith("3 events lie months from the others")

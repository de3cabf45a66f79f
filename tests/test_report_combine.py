"""The report of a step from the digests of its sources: every figure here can be computed in the head."""

from __future__ import annotations

import msgspec
import pytest
from digested import MS, T0, engine, source, spans, trace
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprof.report.combine import combine
from stepprof.report.digest import digest
from stepprof.report.schema import Finding, Report
from stepprof.timeline.model import Alignment, Origin


def report(*sources, **more):
    return combine([digest(each) for each in sources], step=2, run_id="r", **more)


def seconds(rows):
    return {row.label: round(row.seconds, 6) for row in rows}


def manifest(*windows, engines=(), version=None):
    return {"windows": list(windows), "engines": list(engines), "version": version}


def window(rank=0, role="actor", start=0, end=100, **more):
    return {
        "role": role,
        "occurrence": 1,
        "rank": rank,
        "host": "h",
        "pid": 100 + rank if isinstance(rank, int) else 99,
        "status": "complete",
        "backend": "torch",
        "start_unix_ns": T0 + start * MS,
        "end_unix_ns": T0 + end * MS,
        "stall_seconds": None,
        "wait_seconds": None,
        "export_seconds": None,
        "artifacts": [{"path": "x", "kind": "torch-trace", "bytes": 1, "events": 1}],
        **more,
    }


def engine_entry(replica=0, **more):
    return {
        "role": "rollout",
        "occurrence": 1,
        "replica": replica,
        "rank": None,
        "kind": "sglang",
        "name": f"e{replica}",
        "host": "h",
        "status": "complete",
        "error": None,
        "start_unix_ns": None,
        "end_unix_ns": None,
        "start_seconds": 0.25,
        "stop_seconds": 0.5,
        "artifacts": [{"path": "x", "kind": "trace", "bytes": 1, "events": 1}],
        **more,
    }


class TestTimes:
    def test_roles_and_regions_by_process_and_on_the_clock(self):
        made = report(
            spans(0, ("window", "step", 0, 100, None), ("window", "actor", 10, 50, "actor"), ("region", "update", 20, 10, "actor")),
            spans(1, ("window", "actor", 40, 40, "actor"), ("region", "update", 25, 10, "actor"), ("region", "update", 70, 5, "actor")),
        )  # fmt: skip
        assert (made.start_unix_ns, made.seconds) == (T0, 0.1)
        (whole, actor) = made.roles
        assert (whole.role, whole.seconds, whole.share) == (None, 0.1, 1.0)
        assert (actor.role, actor.seconds, actor.share) == ("actor", 0.07, 0.7)
        assert [(time.label, time.seconds, time.calls, time.end) for time in actor.per_process] == [
            ("actor rank 0", 0.05, 1, 0.06),
            ("actor rank 1", 0.04, 1, 0.08),
        ]
        (update,) = made.regions
        assert (update.role, update.region, update.seconds) == ("actor", "update", 0.02)
        assert [(time.calls, time.seconds) for time in update.per_process] == [(1, 0.01), (2, 0.015)]

    def test_spans_have_all_regions_of_a_process_and_its_traces_add_none(self):
        made = report(
            spans(0, ("window", "actor", 0, 100, "actor"), ("region", "update", 20, 10, "actor")),
            trace(0, ("thread", "user_annotation", "update", 20, 10), ("thread", "cpu_op", "mm", 21, 3)),
        )
        assert [(row.region, row.per_process[0].calls) for row in made.regions] == [("update", 1)]
        assert [(row.label, row.kind) for row in made.gantt] == [("actor rank 0", "rank")]
        assert [op.per_process[0].label for op in made.ops] == ["actor rank 0"]

    def test_without_spans_the_manifest_has_the_windows_and_the_trace_the_regions(self):
        shifted = trace(
            0,
            ("thread", "user_annotation", "update", 20, 10),
            alignment=Alignment("ping-pong", 5_000 * MS, 10),
        )
        made = report(shifted, manifests=[manifest(window(start=5_010, end=5_060), version=7)])
        assert (made.start_unix_ns, made.seconds, made.version) == (T0 + 10 * MS, 0.05, 7)
        assert [row.region for row in made.regions] == ["update"]
        assert seconds(made.roles[0].per_process) == {"actor rank 0": 0.05}

    def test_traces_that_stepprof_did_not_record(self):
        made = report(source(Origin("trace", "a.json"), ("thread", "cpu_op", "mm", 10, 30)))
        assert (made.start_unix_ns, made.seconds, made.roles) == (T0 + 10 * MS, 0.03, [])
        assert [row.label for row in made.gantt] == ["a.json"]

    def test_nothing_at_all(self):
        made = combine([], step=2, findings=[Finding(None, "no source")])
        assert (made.seconds, made.headlines, made.findings) == (0.0, [], [Finding(None, "no source")])

    def test_processes_of_one_name_are_told_apart(self):
        far = spans(0, ("window", "actor", 0, 10, "actor"), host="far")
        near = spans(0, ("window", "actor", 0, 10, "actor"))
        assert [row.label for row in report(far, near).gantt] == ["actor rank 0 (far)", "actor rank 0 (h)"]

    def test_ranks_that_do_the_same_stand_together_in_the_order_in_which_they_begin(self):
        made = report(
            *(spans(rank, ("window", "actor", 50 + rank, 10, "actor"), host="a") for rank in range(2)),
            *(spans(rank, ("window", "critic", 20 - rank, 10, "critic"), host="c") for rank in range(2)),
        )
        assert [row.label for row in made.gantt] == [
            "critic rank 0",
            "critic rank 1",
            "actor rank 0",
            "actor rank 1",
        ]

    def test_a_driver_comes_first_and_engines_after_the_ranks(self):
        made = report(
            engine(0, (0, 10, 4)),
            spans(1, ("window", "actor", 0, 10, "actor")),
            spans(0, ("window", "actor", 0, 10, "actor")),
            spans("driver", ("window", "step", 0, 10, None)),
        )
        assert [row.label for row in made.gantt] == [
            "driver",
            "actor rank 0",
            "actor rank 1",
            "rollout/0 worker 0",
        ]


class TestSkew:
    def test_who_ended_last_and_how_long_the_others_waited(self):
        made = report(
            *(spans(rank, ("window", "actor", 0, end, "actor")) for rank, end in enumerate((50, 52, 90, 51)))
        )
        (row,) = made.skew
        assert (row.straggler, row.spread, row.behind_median, row.significant) == (
            "actor rank 2",
            0.04,
            0.039,
            True,
        )
        assert seconds(row.waited) == {"actor rank 0": 0.04, "actor rank 3": 0.039, "actor rank 1": 0.038}
        assert made.headlines[1].text == "actor rank 2 finished 39 ms after the others in actor"

    def test_a_spread_within_the_clocks_error_is_not_significant(self):
        rough = {"alignment": Alignment("ping-pong", 0, 30 * MS), "host": "far"}
        made = report(
            spans(0, ("window", "actor", 0, 50, "actor")),
            spans(1, ("window", "actor", 0, 70, "actor"), **rough),
        )
        assert [(row.spread, row.significant) for row in made.skew] == [(0.02, False)]
        assert "straggler" not in [headline.topic for headline in made.headlines]

    def test_clocks_that_were_never_compared_compare_nothing_but_on_one_host(self):
        unknown = {"alignment": Alignment("unmeasured", 0, None), "host": "far"}
        first, second = (
            spans(rank, ("window", "actor", 0, 50 + 20 * rank, "actor"), **unknown) for rank in (1, 2)
        )
        near = spans(0, ("window", "actor", 0, 50, "actor"))
        assert [row.significant for row in report(near, second).skew] == [False]
        assert [row.significant for row in report(first, second).skew] == [True]

    def test_ranks_that_wait_in_collectives_end_together(self):
        def rank(number, starts):
            calls = [("thread", "user_annotation", "gloo:all_reduce", at, 30 - at) for at in starts]
            return [
                spans(number, ("window", "actor", 0, 40, "actor")),
                trace(number, *calls, ("thread", "cpu_op", "mm", 0, min(starts))),
            ]

        made = report(*rank(0, [5]), *rank(1, [25]), *rank(2, [10]))
        (row,) = [row for row in made.skew if row.basis == "collectives"]
        assert (row.role, row.straggler, row.spread, row.behind_median) == (
            "actor",
            "actor rank 1",
            0.02,
            0.0175,
        )
        assert seconds(row.waited) == {"actor rank 0": 0.02, "actor rank 2": 0.015}
        idle = {each.label: each for each in made.idle}
        assert idle["actor rank 0"].causes == {"collective": 0.02}
        assert idle["actor rank 0"].busy == 0.02
        assert "inside the collectives of actor, actor rank 0 waited 20 ms, mostly for actor rank 1" in [
            headline.text for headline in made.headlines
        ]


class TestIdle:
    def test_busy_and_causes_are_the_wall_time(self):
        """Rank 0 trains, is held up by the profiler, waits for the rollout, for the other role, and for nothing that is known."""
        made = report(
            spans(0, ("window", "actor", 0, 20, "actor")),
            spans(1, ("window", "critic", 60, 20, "critic"), ("region", "last", 99, 1, None)),
            engine(0, (30, 20, 4)),
            manifests=[manifest(window(end=20, stall_seconds=0.005), engines=[engine_entry()])],
        )
        rows = {row.label: row for row in made.idle}
        assert rows["actor rank 0"].busy == 0.02
        assert rows["actor rank 0"].causes == pytest.approx(
            {"flush": 0.005, "rollout": 0.02, "other_role": 0.02, "unknown": 0.035}
        )
        assert rows["rollout/0 worker 0"].busy == 0.02
        for row in made.idle:
            assert row.busy + sum(row.causes.values()) == pytest.approx(row.wall)
            assert row.wall == 0.1

    def test_a_rank_in_the_window_of_a_role_that_engines_do_waits_for_them(self):
        made = report(
            spans(0, ("window", "rollout", 0, 50, "rollout"), ("window", "actor", 50, 50, "actor")),
            engine(0, (5, 40, 4)),
        )
        rows = {row.label: row for row in made.idle}
        assert (rows["rank 0"].busy, rows["rank 0"].causes) == (0.05, {"rollout": 0.05})

    def test_the_job_waits_for_an_engine_to_begin_and_to_hand_over(self):
        """By the clock of the process that drives it: the first 10 ms for its start, 30 ms after the rollout for its stop."""
        entry = engine_entry(
            start_unix_ns=T0 + 10 * MS,
            start_seconds=0.01,
            end_unix_ns=T0 + 50 * MS,
            stop_seconds=0.03,
            fragment="rollout-engines-rank-driver.json",
        )
        made = report(
            spans("driver", ("window", "step", 0, 100, None), ("window", "rollout", 10, 40, "rollout")),
            spans(0, ("window", "actor", 80, 20, "actor")),
            manifests=[manifest(engines=[entry])],
        )
        (row,) = made.idle
        assert (row.busy, row.causes) == (0.02, {"rollout": 0.04, "flush": 0.04})
        assert "40 ms per process were spent on handing recordings over; rollout/0 took 30 ms" in [
            headline.text for headline in made.headlines
        ]

    def test_a_rank_that_generates_itself_is_busy(self):
        (row,) = report(spans(0, ("window", "rollout", 0, 50, "rollout"))).idle
        assert (row.busy, row.causes) == (0.05, {})

    def test_a_device_waits_for_its_host(self):
        made = report(
            spans(0, ("window", "actor", 0, 100, "actor")),
            trace(0, ("thread", "cpu_op", "mm", 0, 100), (("stream", "7"), "kernel", "gemm", 20, 30)),
        )
        (row,) = made.idle
        assert (row.busy, row.causes) == (0.03, {"host": 0.07})
        (overlap,) = made.overlap
        assert (overlap.device, overlap.busy_share) == ("gpu", 0.3)
        assert "the GPUs were busy for 30% of what was captured" in [
            headline.text for headline in made.headlines
        ]

    def test_a_device_that_was_captured_over_the_rollout_waits_for_that(self):
        made = report(
            spans(
                0,
                ("window", "step", 0, 100, None),
                ("window", "rollout", 0, 50, "rollout"),
                ("window", "actor", 50, 50, "actor"),
            ),
            trace(0, ("thread", "cpu_op", "mm", 0, 100), (("stream", "7"), "kernel", "gemm", 60, 30)),
            engine(0, (5, 40, 4)),
        )
        (row, _) = made.idle
        assert (row.busy, row.causes) == (0.03, {"rollout": 0.05, "host": 0.02})

    def test_the_captures_of_a_process_are_one_row(self):
        kernels = [
            (("stream", "7"), "kernel", "gemm", 0, 10),
            (("stream", "8"), "kernel", "ncclDevKernel_AllReduce", 5, 15),
        ]
        later = [(("stream", "7"), "kernel", "gemm", 50, 10), (("thread", "t"), "cpu_op", "mm", 50, 30)]
        made = report(
            trace(0, *kernels),
            trace(0, *later, role="ref"),
            trace(0, ("thread", "cpu_op", "mm", 90, 5), role="reward"),
        )
        (row,) = made.overlap
        assert (row.label, row.device, row.compute, row.communication) == ("rank 0", "gpu", 0.02, 0.015)
        assert (row.overlapped, row.exposed, row.busy_share) == (0.005, 0.01, 0.03 / 0.05)

    def test_a_trace_alone_has_a_host_from_its_first_event_to_its_last(self):
        made = report(
            source(
                Origin("trace", "a.json"),
                ("thread", "cpu_op", "mm", 0, 50),
                (("stream", "7"), "kernel", "gemm", 10, 30),
            )
        )
        assert (made.idle[0].busy, made.idle[0].causes) == (0.03, {"host": 0.02})

    def test_gaps_that_did_not_travel_are_idle_all_the_same(self, monkeypatch):
        monkeypatch.setattr("stepprof.report.digest.MOST_STRETCHES", 2)
        kernels = [(("stream", "7"), "kernel", "gemm", at, 1) for at in (0, 2, 9)]
        (row,) = report(spans(0, ("window", "actor", 0, 10, "actor")), trace(0, *kernels)).idle
        assert (row.busy, row.causes) == (0.003, {"host": 0.007})

    def test_a_driver_only_waits_and_has_no_row(self):
        assert report(spans("driver", ("window", "step", 0, 10, None))).idle == []


class TestRollout:
    def test_engines_and_all_of_them_together(self):
        made = report(
            engine(0, (0, 50, 8), (50, 50, 2)),
            engine(0, (0, 50, 8), (50, 50, 2), rank=1),
            engine(1, (0, 40, 8)),
        )
        assert [(row.label, row.iterations, row.peak_batch) for row in made.rollout] == [
            ("rollout/0 worker 0", 2, 8),
            ("rollout/1 worker 0", 1, 8),
            ("all engines", 3, 16),
        ]
        whole = made.rollout[-1]
        assert (whole.below_half, whole.tail) == (0.5, 0.05)
        text = "generation ran below half of its peak batch for 50% of the rollout, the last 50 ms without a break"
        assert made.headlines[0].text == text

    def test_samples_of_the_process_that_bound_them(self):
        driver = Origin("spans", "spans/rank-driver.000001.jsonl", None, "driver", None, "h", 99)
        samples = [(("sample", str(n)), "region", "generate", 0, 10) for n in range(7)]
        long = [
            (("sample", "7"), "region", "generate", 0, 10),
            (("sample", "7"), "region", "tool_call", 10, 90),
        ]
        made = report(source(driver, *samples, *long))
        (row,) = made.rollout
        assert (row.label, row.iterations, row.below_half, row.tail) == ("samples of driver", 0, 0.9, 0.09)
        assert (row.samples[0].sample, row.samples[0].seconds) == ("7", {"generate": 0.01, "tool_call": 0.09})
        texts = [headline.text for headline in made.headlines]
        assert "the longest sample, 7, took 100 ms, 90% of it in tool_call" in texts

    def test_samples_of_several_processes_together(self):
        def two(rank, took):
            slices = [(("sample", f"{rank}/{n}"), "region", "generate", 0, took + n) for n in range(2)]
            return source(Origin("spans", f"s{rank}", rank=rank, host="h", pid=rank), *slices)

        rows = report(two(0, 10), two(1, 90)).rollout
        assert [(row.label, row.peak_batch) for row in rows] == [
            ("samples of rank 0", 2),
            ("samples of rank 1", 2),
            ("all samples", 4),
        ]
        assert [sample.sample for sample in rows[-1].samples] == ["1/1", "1/0", "0/1", "0/0"]
        assert rows[-1].tail == 0.001


class TestRecordingItself:
    def test_overhead_by_process_and_engine(self):
        made = report(
            spans(0, ("window", "actor", 0, 100, "actor")),
            manifests=[
                manifest(
                    window(stall_seconds=0.04, wait_seconds=0.01, export_seconds=1.0),
                    window(role="ref", stall_seconds=0.03),
                    engines=[engine_entry(), engine_entry(status="joined", name="e0")],
                )
            ],
        )
        assert [
            (row.label, row.stall, row.wait, row.export, row.start, row.stop) for row in made.overhead
        ] == [
            ("actor rank 0", 0.07, 0.01, 1.0, None, None),
            ("rollout/0", None, None, None, 0.25, 0.5),
        ]
        assert "the recording itself held actor rank 0 up for 80 ms" in [
            headline.text for headline in made.headlines
        ]

    def test_captures_that_brought_no_trace_are_sources_without_events(self):
        made = report(
            spans(0, ("window", "actor", 0, 100, "actor")),
            manifests=[
                manifest(
                    window(rank=1, status="lost", artifacts=[]),
                    window(rank=2, status="joined", artifacts=[]),
                    window(rank="driver", backend="null", artifacts=[]),
                    engines=[
                        engine_entry(status="failed", artifacts=[]),
                        engine_entry(kind="rank", artifacts=[]),
                    ],
                )
            ],
        )
        assert [(each.label, each.status, each.events) for each in made.sources[1:]] == [
            ("actor rank 1", "lost", 0),
            ("rollout/0", "failed", 0),
        ]
        assert made.headlines[-1].text == "2 of 3 sources have no events: actor rank 1, rollout/0"

    @pytest.mark.parametrize("odd", [float("nan"), float("inf"), -1e300, 1e300, 10**30])
    def test_numbers_of_a_damaged_manifest_are_unknown(self, odd):
        entry = window(start_unix_ns=odd, end_unix_ns=odd, stall_seconds=odd, occurrence=odd)
        broken = manifest(entry, engines=[engine_entry(start_seconds=odd, replica=odd)])
        made = report(trace(0, ("thread", "cpu_op", "mm", 0, 10)), manifests=[broken])
        assert (made.seconds, made.roles) == (0.01, [])
        assert [(row.label, row.stall, row.start) for row in made.overhead] == [("rollout/?", None, None)]

    def test_a_stall_longer_than_anybody_waits_is_no_cause(self):
        made = report(
            spans(0, ("window", "actor", 0, 10, "actor"), ("region", "late", 19, 1, None)),
            manifests=[manifest(window(end=10, stall_seconds=1e9))],
        )
        assert made.idle[0].causes == {"unknown": 0.01}

    def test_findings_name_their_source(self):
        made = report(trace(0, ("thread", "cpu_op", "mm", 0, 1), findings=["breaks off"]))
        assert made.findings == [Finding("step-000002/actor/rank-0.trace.json.gz", "breaks off")]

    def test_the_clock(self):
        far = {"host": "far", "alignment": Alignment("ping-pong", 5, 250_000)}
        first, second = spans(0, ("window", "a", 0, 1, "a")), spans(1, ("window", "a", 0, 1, "a"), **far)
        made = report(first, second)
        assert (made.clock, made.clock_error_ns) == (
            "1 source by the clock of one host; 1 compared by ping-pong, right within 0.25 ms",
            250_000,
        )
        unknown = spans(2, ("window", "a", 0, 1, "a"), host="x", alignment=Alignment("unmeasured", 0, None))
        assert report(first, unknown).clock_error_ns is None

    def test_memory_by_process_and_device(self):
        made = report(
            trace(
                0,
                counters=[
                    ("memory allocated GPU 0", 10, 2**30),
                    ("memory allocated GPU 0", 20, 3 * 2**30),
                    ("memory allocated CPU", 10, 4 * 2**30),
                    ("queue", 10, 9),
                ],
            )
        )
        assert [(row.label, row.device, row.peak_bytes, row.at) for row in made.memory] == [
            ("actor rank 0", "CPU, allocated", 4 * 2**30, 0.0),
            ("actor rank 0", "GPU 0, allocated", 3 * 2**30, 0.01),
        ]
        assert [headline.text for headline in made.headlines] == [
            "actor rank 0 reached 3.0 GiB (GPU 0, allocated)"
        ]


class TestGantt:
    def test_windows_above_regions_and_calls_that_overlap_as_one(self):
        made = report(
            spans(
                0,
                ("window", "step", 0, 100, None),
                ("window", "rollout", 10, 50, "rollout"),
                ("region", "generate", 10, 30, "rollout"),
                ("region", "generate", 20, 30, "rollout"),
                ("region", "score", 70, 10, None),
            )
        )
        (row,) = made.gantt
        assert [(bar.start, bar.seconds, bar.name, bar.role, bar.depth) for bar in row.bars] == [
            (0.0, 0.1, "step", None, 0),
            (0.01, 0.05, "rollout", "rollout", 1),
            (0.01, 0.04, "generate", "rollout", 2),
            (0.07, 0.01, "score", None, 1),
        ]

    def test_an_engine_has_its_generation(self):
        (row,) = report(engine(0, (0, 10, 4), (10, 10, 2))).gantt
        assert [(bar.start, bar.seconds, bar.name, bar.role) for bar in row.bars] == [
            (0.0, 0.02, "generation", "rollout")
        ]
        assert row.busy == [(0.0, 0.02)]

    def test_the_longest_bars_stay_where_there_are_too_many(self, monkeypatch):
        monkeypatch.setattr("stepprof.report.gantt.MOST_BARS", 2)
        monkeypatch.setattr("stepprof.report.gantt.FEWEST_BARS", 2)
        regions = [("region", f"r{n}", 10 * n, n + 1, "actor") for n in range(5)]
        (row,) = report(spans(0, ("window", "actor", 0, 100, "actor"), *regions)).gantt
        assert [bar.name for bar in row.bars] == ["actor", "r4"]


def test_samples_one_after_the_other_are_no_rollout():
    grading = [(("sample", str(n)), "region", "grade", 10 * n, 5) for n in range(4)]
    assert report(source(Origin("spans", "s", rank=0), *grading)).rollout == []


def test_edges_that_do_not_quite_meet_are_no_cause():
    made = report(
        spans(0, ("window", "actor", 0, 10, "actor")), spans(1, ("window", "actor", 0.0003, 10, "actor"))
    )
    assert {row.label: row.causes for row in made.idle} == {
        "actor rank 0": {"unknown": 300e-9},
        "actor rank 1": {"unknown": 300e-9},
    }


def test_regions_of_several_captures_of_one_process_are_added_up():
    captures = [trace(0, ("thread", "user_annotation", "update", at, 10)) for at in (0, 50)]
    ((row,),) = [each.per_process for each in report(*captures).regions]
    assert (row.label, row.seconds, row.calls, row.end) == ("actor rank 0", 0.02, 2, 0.06)


def test_a_rank_whose_peers_were_not_captured_waits_for_nobody_that_is_known():
    made = report(
        trace(0, ("thread", "user_annotation", "gloo:all_reduce", 0, 30), ("thread", "cpu_op", "mm", 0, 5))
    )
    assert (made.skew, made.idle[0].causes) == ([], {})


def test_the_worker_with_the_most_iterations_speaks_for_its_engine():
    short, long = engine(0, (0, 10, 4)), engine(0, (0, 10, 4), (10, 10, 4), rank=1)
    for sources in ((short, long), (long, short)):
        assert [(row.label, row.iterations) for row in report(*sources).rollout] == [
            ("rollout/0 worker 1", 2)
        ]


def test_collectives_that_are_too_many_to_match_are_told(monkeypatch):
    monkeypatch.setattr("stepprof.report.collectives.MOST_CALLS", 1)
    calls = [("thread", "user_annotation", "gloo:all_reduce", at, 1) for at in (0, 5)]
    (finding,) = report(trace(0, *calls)).findings
    assert finding.problem.startswith("2 collectives are more than are matched across ranks")


extreme = st.sampled_from([0, 1, -1, 10**9, 2**40, -(2**61), 2**61, 2**62])


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["thread", "stream", "sample", "iterations", "async"]),
            st.sampled_from(["cpu_op", "kernel", "window", "region", "user_annotation"]),
            st.sampled_from(
                ["gloo:all_reduce", "ncclDevKernel_AllGather", "aten::mm", "step[DECODE bs=1]", "</script>"]
            ),
            extreme,
            extreme.map(abs),
        ),
        max_size=6,
    ),
    st.lists(
        st.tuples(st.sampled_from(["batch size", "memory allocated CPU"]), extreme, st.floats()), max_size=4
    ),
)
def test_whatever_times_and_values_a_damaged_file_holds(slices, counters):
    """A report is made, and it is JSON."""
    odd = trace(
        0,
        *((kind, cat, name, 0, 0) for kind, cat, name, _, _ in slices),
        counters=[(n, 0, v) for n, _, v in counters],
    )
    odd.slices.start[:] = [start for *_, start, _ in slices]
    odd.slices.duration[:] = [duration for *_, duration in slices]
    odd.counters.time[:] = [time for _, time, _ in counters]
    made = report(odd, trace(1, ("thread", "user_annotation", "gloo:all_reduce", 0, 1)))
    assert msgspec.json.decode(msgspec.json.encode(made), type=Report).run_id == "r"

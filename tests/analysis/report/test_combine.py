"""The report of a step from the digests of its sources. Every figure can be computed in the head."""

from __future__ import annotations

import msgspec
import pytest
from digested import MS, T0, engine, engine_entry, manifest, numbered, source, spans, trace, window
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest
from stepprof.analysis.report.schema import Problem, Report
from stepprof.analysis.timeline.model import Alignment, Origin


def report(*sources, **more):
    return combine([digest(each) for each in sources], step=2, run_id="r", **more)


APART = Alignment("unmeasured", 0, None, "boot b")
"""An alignment for a clock that was never compared with the others."""


def seconds(rows):
    return {row.label: round(row.seconds, 6) for row in rows}


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
            ("rank 0", 0.05, 1, 0.06),
            ("actor rank 1", 0.04, 1, 0.08),
        ]
        (update,) = made.regions
        assert (update.role, update.region, update.seconds) == ("actor", "update", 0.02)
        assert [(time.calls, time.seconds) for time in update.per_process] == [(1, 0.01), (2, 0.015)]

    def test_a_window_that_an_exception_left(self):
        """An exception ended the window. The report says so, because the missing work makes the
        step short.
        """
        raised = window(0, end=100, body_error="RuntimeError: reward service down")
        made = report(spans(0, ("window", "actor", 0, 100, "actor")), manifests=[manifest(raised)])
        (notice,) = [each for each in made.findings if each.topic == "coverage" and "exception" in each.text]
        assert notice.text == "an exception ended a window of actor rank 0: RuntimeError: reward service down"
        assert notice.process == "actor rank 0"

    def test_a_region_of_another_thread_does_not_begin_the_step(self):
        """The region of another thread began before the window and ended in it. Only its part in
        the window counts.
        """
        made = report(
            source(
                Origin("spans", "spans/rank-0.000001.jsonl", None, 0, None, "h", 100),
                ("thread", "window", "step", 40, 60, None),
                (("thread", "loader"), "region", "read", 10, 50, None),
            )
        )
        assert (made.start_unix_ns, made.seconds) == (T0 + 40 * MS, 0.06)
        assert [(time.region, time.seconds) for time in made.regions] == [("read", 0.02)]

    def test_a_region_inside_itself_counts_once(self):
        made = report(
            spans(
                0,
                ("window", "actor", 0, 100, "actor"),
                ("region", "update", 20, 30, "actor"),
                ("region", "update", 25, 10, "actor"),
            )
        )
        ((time,),) = [row.per_process for row in made.regions]
        assert (time.calls, time.seconds) == (1, 0.03)

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
        made = combine([], step=2, problems=[Problem(None, "no source")])
        assert (made.seconds, made.findings, made.problems) == (0.0, [], [Problem(None, "no source")])

    def test_processes_of_one_name_get_distinct_labels(self):
        far = spans(0, ("window", "actor", 0, 10, "actor"), host="far")
        near = spans(0, ("window", "actor", 0, 10, "actor"))
        assert [row.label for row in report(far, near).gantt] == ["actor rank 0 (far)", "actor rank 0 (h)"]

    @pytest.mark.parametrize(
        ("roles", "label"),
        [
            (["eval"], "eval rank 0"),
            ([None, "eval"], "rank 0"),
            (["rollout", "actor"], "rank 0"),
            ([None], "rank 0"),
        ],
    )
    def test_a_process_is_called_by_its_role_only_if_it_does_nothing_else(self, roles, label):
        """A window without a role is other work too: the process of an evaluation within a step is `rank 0`."""
        windows = [("window", role or "step", 40 * at, 40, role) for at, role in enumerate(roles)]
        made = report(spans(0, *windows), manifests=[manifest(*(window(role=role) for role in roles))])
        assert [row.label for row in made.gantt] == [label]
        assert {time.label for row in made.roles for time in row.per_process} == {label}
        assert {each.process for each in made.findings if each.process} <= {label}

    def test_a_capture_without_a_trace_has_the_label_of_its_process(self):
        """One sentence says that the capture of `rank 0` was lost; the same capture is not counted again as that of `actor rank 0`."""
        made = report(
            spans(0, ("window", "step", 0, 100, None), ("window", "actor", 0, 50, "actor")),
            manifests=[manifest({**window(status="lost"), "artifacts": []})],
        )
        assert [each.label for each in made.sources if each.kind == "rank"] == ["rank 0"]
        assert len([each for each in made.findings if each.topic == "coverage"]) == 1

    def test_a_process_whose_spans_are_of_another_occurrence(self):
        """A rank that was started again has one process in this occurrence: its label needs no process id."""
        before = source(Origin("spans", "spans/rank-0.000001.jsonl", None, 0, None, "h", 7))
        made = report(before, spans(0, ("window", "actor", 0, 10, "actor")))
        assert [row.label for row in made.gantt] == ["actor rank 0"]

    def test_ranks_with_the_same_roles_are_grouped_by_their_start(self):
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
    def test_the_last_process_is_named_with_the_waits_of_the_others(self):
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
        text = "actor rank 2 spent 39 ms longer than the median of the others in the window of actor"
        assert made.findings[1].text == text

    def test_a_spread_within_the_clocks_error_is_not_significant(self):
        rough = {"alignment": Alignment("ping-pong", 0, 30 * MS), "host": "far"}
        made = report(
            spans(0, ("window", "actor", 0, 50, "actor")),
            spans(1, ("window", "actor", 0, 70, "actor"), **rough),
        )
        assert [(row.spread, row.significant) for row in made.skew] == [(0.02, False)]
        # which rank ended last is unknown; how long each took is known from its own clock
        assert [each.text for each in made.findings if each.topic == "straggler"] == [
            "actor rank 1 spent 20 ms longer than actor rank 0 in the window of actor"
        ]

    def test_without_clock_comparison_only_processes_of_one_host_are_compared(self):
        unknown = {"alignment": Alignment("unmeasured", 0, None), "host": "far"}
        first, second = (
            spans(rank, ("window", "actor", 0, 50 + 20 * rank, "actor"), **unknown) for rank in (1, 2)
        )
        near = spans(0, ("window", "actor", 0, 50, "actor"))
        assert [row.significant for row in report(near, second).skew] == [False]
        assert [row.significant for row in report(first, second).skew] == [True]

    def test_no_straggler_across_clocks_that_were_never_compared(self):
        first = spans(0, ("window", "actor", 0, 50, "actor"), host="a")
        second = spans(1, ("window", "actor", 0, 90, "actor"), host="b", alignment=APART)
        assert report(first, second).skew == []

    def test_delay_by_the_profiler_is_not_counted_as_straggling(self):
        """The profiler of rank 1 takes 30 ms longer to start. Of its delay of 35 ms, only 5 ms are
        its own.
        """
        made = report(
            spans(0, ("window", "actor", 10, 50, "actor")),
            spans(1, ("window", "actor", 40, 55, "actor")),
            manifests=[
                manifest(
                    window(0, start=10, end=60, start_seconds=0.01),
                    window(1, start=40, end=95, start_seconds=0.04),
                )
            ],
        )
        (row,) = made.skew
        assert (row.straggler, row.spread, row.began_later, row.by_profiler) == (
            "actor rank 1",
            0.035,
            0.03,
            0.03,
        )
        (text,) = [each.text for each in made.findings if each.topic == "straggler"]
        assert text == "actor rank 1 spent 5 ms longer than actor rank 0 in the window of actor"

    def test_ranks_that_wait_in_collectives_end_together(self):
        """Before the all-reduce, ranks 0, 1 and 2 compute for 5, 25 and 10 ms. The call ends 5 ms
        after the last rank enters it.
        """

        def rank(number, at):
            call = ("thread", "user_annotation", "gloo:all_reduce", at, 30 - at)
            return [
                spans(number, ("window", "actor", 0, 40, "actor")),
                trace(number, call, ("thread", "cpu_op", "mm", 0, at), world=3),
            ]

        made = report(
            *rank(0, 5),
            *rank(1, 25),
            *rank(2, 10),
            manifests=[manifest(*(window(number, end=40) for number in range(3)))],
        )
        (row,) = [row for row in made.skew if row.basis == "collectives"]
        assert (row.role, row.straggler, row.spread, row.behind_median) == (
            "actor",
            "actor rank 1",
            0.02,
            0.0175,
        )
        assert seconds(row.waited) == {"actor rank 0": 0.02, "actor rank 2": 0.015}
        idle = {each.label: (each.busy, each.causes) for each in made.idle}
        assert idle == {  # the transfer is work; the time after it is unknown
            "actor rank 0": (0.01, {"collective": 0.02, "unknown": 0.01}),
            "actor rank 1": (0.03, {"unknown": 0.01}),
            "actor rank 2": (0.015, {"collective": 0.015, "unknown": 0.01}),
        }
        (late,) = [each for each in made.findings if each.topic == "straggler"]
        assert (
            late.text
            == "actor rank 1 spent 18 ms longer than the median of the others in the window of actor, collectives not counted"
        )
        assert "actor rank 0 waited 20 ms for it" in (late.why or "")
        assert made.unmatched == []
        assert {row.busy_share for row in made.overlap} == {None}, "no device was recorded"

    def test_no_straggler_if_a_member_was_not_recorded(self):
        """Only two of three ranks were recorded. Both may have waited for the third one."""
        made = report(
            *(
                trace(
                    rank, ("thread", "user_annotation", "gloo:all_reduce", 5 * rank, 30 - 5 * rank), world=3
                )
                for rank in range(2)
            )
        )
        assert made.skew == []
        (row,) = made.unmatched
        assert (row.role, row.region, row.recorded, row.members) == ("actor", None, 2, 3)
        assert seconds(row.spent) == {"actor rank 0": 0.03, "actor rank 1": 0.025}
        assert {each.label: each.causes["collective_unmatched"] for each in made.idle} == {
            "actor rank 0": 0.03,
            "actor rank 1": 0.025,
        }
        assert [each.text for each in made.findings if each.topic == "collectives"] == [
            "actor rank 0 spent 30 ms in nothing but collectives of actor; 2 of 3 members were recorded, so the rank it waited for is unknown"
        ]

    def test_captures_of_different_roles_may_hold_the_calls_of_one_group(self):
        """The capture of rank 1 began in role ref and covers its actor window too. So both members
        of the group were recorded.
        """
        reported = [
            window(0, end=40),
            window(1, role="ref", end=10),
            window(1, start=10, end=40, status="joined", artifacts=[], capture={"stem": "ref/rank-1"}),
        ]
        made = report(
            trace(0, ("thread", "user_annotation", "gloo:all_reduce", 12, 28), world=2),
            trace(1, ("thread", "user_annotation", "gloo:all_reduce", 30, 10), world=2, role="ref"),
            manifests=[manifest(*reported)],
        )
        assert made.unmatched == []
        (row,) = [row for row in made.skew if row.basis == "collectives"]
        assert (row.role, row.straggler, list(seconds(row.waited).values())) == ("actor", "rank 1", [0.018])

    def test_ranks_of_different_jobs_are_not_matched_with_each_other(self):
        """Rank 0 was recorded as actor, rank 1 as critic. Their groups have equal names and ranks,
        but they are two jobs.
        """
        args = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2, "Seq": 1}
        name = "ncclDevKernel_AllReduce_Sum"
        made = report(
            trace(0, (("stream", "20"), "kernel", name, 0, 30, args)),
            trace(1, (("stream", "20"), "kernel", name, 20, 10, args), role="critic", host="c"),
        )
        assert made.skew == []
        assert {row.role: (row.recorded, row.members) for row in made.unmatched} == {
            "actor": (1, 2),
            "critic": (1, 2),
        }

    def test_two_jobs_with_the_same_rank_numbers_are_matched_each_for_itself(self):
        """Actor and critic have different workers, and each group numbers its ranks from 0. Each
        job is matched by itself.
        """

        def rank(role, number, at):
            host = {"actor": "h", "critic": "c"}[role]
            args = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2, "Seq": 1}
            kernel = (("stream", "20"), "kernel", "ncclDevKernel_AllReduce_Sum", at, 30 - at, args)
            return trace(number, kernel, role=role, host=host)

        made = report(rank("actor", 0, 0), rank("actor", 1, 20), rank("critic", 0, 10), rank("critic", 1, 0))
        assert {row.role: (row.straggler, seconds(row.waited)) for row in made.skew} == {
            "actor": ("actor rank 1", {"actor rank 0": 0.02}),
            "critic": ("critic rank 0", {"critic rank 1": 0.01}),
        }

    def test_engines_are_matched_each_for_itself(self):
        """Both engines have a group of two workers with the same name and call numbers. Each engine
        is matched by itself.
        """

        def worker(replica, rank, start, took):
            path = f"step-000002/rollout/replica-{replica}/rank-{rank}.trace.json.gz"
            name, start, took, args = numbered(start, took, 1)
            return source(
                Origin("engine", path, "rollout", rank, replica, "h"),
                (("stream", "20"), "kernel", name, start, took, args),
            )

        made = report(worker(0, 0, 0, 30), worker(0, 1, 20, 10), worker(1, 0, 0, 10), worker(1, 1, 0, 10))
        rows = [row for row in made.skew if row.significant]
        assert [(row.straggler, seconds(row.waited)) for row in rows] == [
            ("rollout/0 worker 1", {"rollout/0 worker 0": 0.02})
        ]
        assert made.unmatched == []

    def test_a_wait_is_of_the_role_in_which_it_was(self):
        """One capture covers both roles of a rank. The windows assign each collective to a role."""

        def rank(number, *starts):
            calls = [
                ("thread", "user_annotation", "gloo:all_reduce", at, end - at)
                for at, end in zip(starts, (40, 90), strict=True)
            ]
            return [
                spans(number, ("window", "ref", 0, 50, "ref"), ("window", "actor", 50, 50, "actor")),
                trace(number, *calls, role=None, world=2),
            ]

        made = report(*rank(0, 10, 80), *rank(1, 30, 60))
        rows = {row.role: row for row in made.skew if row.basis == "collectives"}
        assert {role: (row.straggler, seconds(row.waited)) for role, row in rows.items()} == {
            "ref": ("rank 1", {"rank 0": 0.02}),
            "actor": ("rank 0", {"rank 1": 0.02}),
        }

    def test_a_wait_is_of_the_innermost_region(self):
        def rank(number, at):
            return trace(
                number,
                ("thread", "user_annotation", "update", 0, 50),
                ("thread", "user_annotation", "sync", 5, 40),
                (("thread", "worker"), "user_annotation", "gloo:all_reduce", at, 40 - at),
                world=2,
            )

        (row,) = [row for row in report(rank(0, 10), rank(1, 30)).skew if row.basis == "collectives"]
        assert (row.role, row.region, row.straggler) == ("actor", "sync", "actor rank 1")

    def test_waiting_for_a_rank_that_the_profiler_held_up_is_the_profilers_doing(self):
        """The profiler of rank 1 starts 30 ms later than that of rank 0. Of the 35 ms that rank 0
        waits, 5 ms are rank 1's own.
        """

        def rank(number, at):
            call = ("thread", "user_annotation", "gloo:all_reduce", at, 50 - at)
            return trace(number, ("thread", "cpu_op", "mm", at - 5, 5), call, world=2)

        made = report(
            spans("driver", ("window", "step", 0, 50, None)),
            rank(0, 10),
            rank(1, 45),
            manifests=[
                manifest(
                    window(0, start=5, end=50, start_seconds=0.005),
                    window(1, start=35, end=50, start_seconds=0.035),
                )
            ],
        )
        rows = {row.label: (row.busy, row.causes) for row in made.idle}
        assert rows["actor rank 0"] == (
            pytest.approx(0.01),
            pytest.approx({"profiler": 0.005 + 0.03, "collective": 0.005}),
        )
        (row,) = [row for row in made.skew if row.basis == "collectives"]
        assert (row.straggler, seconds(row.waited)) == ("actor rank 1", {"actor rank 0": 0.005})

    def test_the_world_size_may_come_from_the_manifest(self):
        """The manifest gives the world size. A trace of another profiler has no manifest, so its
        calls are not matched.
        """
        calls = [
            trace(rank, ("thread", "user_annotation", "gloo:all_reduce", 20 * rank, 30 - 20 * rank))
            for rank in range(2)
        ]
        reported = [window(rank, end=30, world_size=2) for rank in range(2)]
        (row,) = [
            row for row in report(*calls, manifests=[manifest(*reported)]).skew if row.basis == "collectives"
        ]
        assert (row.straggler, seconds(row.waited)) == ("actor rank 1", {"actor rank 0": 0.02})
        assert report(*calls).skew == []


class TestIdle:
    def test_busy_and_causes_are_the_wall_time(self):
        """Rank 0 trains, then the profiler delays it. It waits during the rollout and the other
        role; the rest is unknown.
        """
        made = report(
            spans(0, ("window", "actor", 0, 20, "actor")),
            spans(1, ("window", "critic", 60, 20, "critic")),
            spans(2, ("region", "last", 99, 1, None)),
            trace(0, ("thread", "cpu_op", "mm", 0, 20)),
            engine(0, (30, 20, 4)),
            manifests=[manifest(window(end=20, stall_seconds=0.005), engines=[engine_entry()])],
        )
        rows = {row.label: row for row in made.idle}
        assert list(rows) == ["actor rank 0", "rollout/0 worker 0"]
        assert rows["actor rank 0"].busy == 0.02
        assert rows["actor rank 0"].causes == pytest.approx(
            {"profiler": 0.005, "rollout": 0.02, "other_role": 0.02, "unknown": 0.035}
        )
        assert rows["rollout/0 worker 0"].busy == 0.02
        for row in made.idle:
            assert row.busy + sum(row.causes.values()) == pytest.approx(row.wall)
            assert row.wall == 0.1

    def test_a_process_without_a_capture_has_no_row(self):
        """Spans show where a process was, not whether it worked, so it has no row."""
        assert report(spans(0, ("window", "actor", 0, 50, "actor"))).idle == []

    def test_an_unwanted_capture_is_not_missing(self):
        made = report(
            spans(0, ("window", "actor", 0, 50, "actor")),
            manifests=[manifest(window(end=50, backend="null", artifacts=[]))],
        )
        (row,) = made.idle
        assert row.causes == {"unknown": 0.05}

    def test_a_rank_in_the_window_of_a_role_that_engines_do_waits_for_them(self):
        made = report(
            spans(0, ("window", "rollout", 0, 50, "rollout"), ("window", "actor", 50, 50, "actor")),
            trace(0, ("thread", "cpu_op", "mm", 50, 50)),
            engine(0, (5, 40, 4)),
            manifests=[manifest(window(role="rollout", end=50, backend="null"), window(start=50))],
        )
        rows = {row.label: row for row in made.idle}
        assert (rows["rank 0"].busy, rows["rank 0"].causes) == (0.05, {"rollout": 0.05})

    def test_recorded_work_during_generation_counts_as_work(self):
        """In the window of the rollout, the rank worked for 10 ms according to its own trace."""
        made = report(
            trace(0, ("thread", "cpu_op", "collate", 20, 10), role="rollout"),
            engine(0, (5, 40, 4)),
            manifests=[manifest(window(role="rollout", end=50))],
        )
        assert (made.idle[0].busy, made.idle[0].causes) == (0.01, {"rollout": 0.04})

    def test_the_job_waits_for_an_engine_to_start_and_to_stop(self):
        """By the controlling process's clock, the first 10 ms are the wait for the engine's start.
        The 30 ms after the rollout are the wait for its stop.
        """
        entry = engine_entry(
            start_unix_ns=T0 + 10 * MS,
            start_seconds=0.01,
            end_unix_ns=T0 + 50 * MS,
            stop_seconds=0.03,
        )
        made = report(
            spans("driver", ("window", "step", 0, 100, None), ("window", "rollout", 10, 40, "rollout")),
            spans(0, ("window", "actor", 80, 20, "actor")),
            trace(0, ("thread", "cpu_op", "mm", 80, 20)),
            manifests=[manifest(engines=[entry])],
        )
        (row,) = made.idle
        assert (row.busy, row.causes) == (0.02, {"rollout": 0.04, "profiler": 0.04})

    def test_the_profiler_holds_a_process_up_before_and_after_its_window(self):
        """The profiler is armed for 3 ms and started for 5 ms before the window, and stopped for 10
        ms after it.
        """
        entry = window(start=10, end=60, arm_seconds=0.003, start_seconds=0.005, stall_seconds=0.01)
        made = report(
            spans(0, ("window", "step", 0, 100, None), ("window", "actor", 10, 50, "actor")),
            trace(0, ("thread", "cpu_op", "mm", 10, 50)),
            manifests=[manifest(entry)],
        )
        (row,) = made.idle
        assert (row.busy, row.causes) == (0.05, pytest.approx({"profiler": 0.018, "unknown": 0.032}))

    def test_arming_counts_when_it_was(self):
        """The profiler was armed in the rollout, at 20 ms, long before the window that it was armed for."""
        entry = window(start=60, end=100, arm_seconds=0.003, arm_unix_ns=T0 + 20 * MS)
        made = report(
            spans(0, ("window", "rollout", 0, 60, "rollout"), ("window", "actor", 60, 40, "actor")),
            trace(0, ("thread", "cpu_op", "mm", 60, 40)),
            engine(0, (0, 60, 4)),
            manifests=[manifest(entry)],
        )
        assert made.idle[0].causes == pytest.approx({"profiler": 0.003, "rollout": 0.057})

    def test_a_rank_that_generates_itself_is_in_a_window_of_its_own(self):
        """The capture covers the whole rollout window of the rank. Time without events is unknown,
        not a wait for a rollout elsewhere.
        """
        made = report(
            trace(0, ("thread", "cpu_op", "mm", 0, 30), role="rollout"),
            manifests=[manifest(window(role="rollout", end=50))],
        )
        assert (made.idle[0].busy, made.idle[0].causes) == (0.03, {"unknown": 0.02})

    def test_while_other_ranks_of_its_role_are_in_it(self):
        made = report(
            trace(0, ("thread", "cpu_op", "mm", 0, 40)),
            trace(1, ("thread", "cpu_op", "mm", 0, 100)),
            manifests=[manifest(window(0, end=40), window(1))],
        )
        assert {row.label: (row.busy, row.causes) for row in made.idle} == {
            "actor rank 0": (0.04, {"peers": 0.06}),
            "actor rank 1": (0.1, {}),
        }

    def test_a_device_waits_for_its_host(self):
        made = report(
            spans(0, ("window", "actor", 0, 100, "actor")),
            trace(0, ("thread", "cpu_op", "mm", 0, 100), (("stream", "7"), "kernel", "gemm", 20, 30)),
        )
        (row,) = made.idle
        assert (row.busy, row.causes) == (0.03, {"host": 0.07})
        (overlap,) = made.overlap
        assert (overlap.device, overlap.busy_share) == ("gpu", 0.3)
        assert "the GPUs were busy for 30% of the captured time" in [
            finding.text for finding in made.findings
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
        assert (row.overlapped, row.exposed) == (0.005, 0.01)
        assert row.busy_share == pytest.approx(30 / 55), "of the third capture none, which covers 5 ms"

    def test_a_trace_alone_has_a_host_from_its_first_event_to_its_last(self):
        made = report(
            source(
                Origin("trace", "a.json"),
                ("thread", "cpu_op", "mm", 0, 50),
                (("stream", "7"), "kernel", "gemm", 10, 30),
            )
        )
        assert (made.idle[0].busy, made.idle[0].causes) == (0.03, {"host": 0.02})

    def test_closed_gaps_count_as_idle(self, monkeypatch):
        monkeypatch.setattr("stepprof.analysis.report.digest.MOST_STRETCHES", 2)
        kernels = [(("stream", "7"), "kernel", "gemm", at, 1) for at in (0, 2, 9)]
        (row,) = report(spans(0, ("window", "actor", 0, 10, "actor")), trace(0, *kernels)).idle
        assert (row.busy, row.causes) == (0.003, {"host": 0.007})

    def test_a_driver_has_no_row(self):
        assert report(spans("driver", ("window", "step", 0, 10, None))).idle == []


class TestCoverage:
    """A capture covers its window, unless it was capped, lost or damaged. Time outside it counts as
    not recorded, neither as idle nor as work.
    """

    def test_after_a_cap_nothing_is_recorded(self):
        made = report(
            spans(0, ("window", "actor", 0, 100, "actor")),
            trace(0, ("thread", "cpu_op", "mm", 0, 30)),
            manifests=[manifest(window(end=40, capped_by="max_seconds"))],
        )
        (row,) = made.idle
        assert (row.busy, row.causes) == (0.03, {"unknown": 0.01, "not_recorded": 0.06})
        (short,) = made.shortfalls
        assert (short.status, short.capped_by, short.recorded, short.window) == (
            "complete",
            "max_seconds",
            0.04,
            0.1,
        )
        assert [each.text for each in made.findings if each.topic == "coverage"] == [
            "the capture of actor rank 0 ended after 40 ms of 100 ms (max_seconds); 60% of its window was not recorded",
        ]

    @pytest.mark.parametrize("early", [{"capped_by": "max_seconds"}, {"status": "partial"}], ids=str)
    def test_a_device_is_idle_up_to_the_last_kernel_of_a_capture_that_ended_early(self, early):
        """A kernel that ran when it ended is not in the trace."""
        made = report(
            spans(0, ("window", "actor", 0, 100, "actor")),
            trace(0, *((("stream", "7"), "kernel", "gemm", at, 10) for at in (0, 20))),
            manifests=[manifest(window(end=40, **early))],
        )
        (row,) = made.idle
        assert (row.busy, row.causes) == (0.02, {"host": 0.01, "not_recorded": 0.07})

    def test_a_device_is_idle_to_the_end_of_its_window_not_to_its_last_event(self):
        made = report(
            trace(0, (("stream", "7"), "kernel", "gemm", 10, 30)),
            manifests=[manifest(window())],
        )
        assert made.idle[0].causes == {"host": 0.07}

    def test_a_lost_capture_covers_nothing(self):
        """Rank 1 exists only in the manifest. It still has a row, and a place in the Gantt chart."""
        made = report(
            trace(0, ("thread", "cpu_op", "mm", 0, 100)),
            manifests=[manifest(window(0), window(1, status="lost", artifacts=[], error="export: killed"))],
        )
        assert {row.label: (row.busy, row.causes) for row in made.idle} == {
            "actor rank 0": (0.1, {}),
            "actor rank 1": (0.0, {"not_recorded": 0.1}),
        }
        assert [(row.label, [bar.seconds for bar in row.bars]) for row in made.gantt] == [
            ("actor rank 0", [0.1]),
            ("actor rank 1", [0.1]),
        ]
        assert [(each.label, each.status, each.recorded) for each in made.shortfalls] == [
            ("actor rank 1", "lost", None)
        ]

    def test_a_process_that_only_the_manifest_knows_is_on_the_clock_of_its_host(self):
        """A source of the same host shows that its clock is 5 s ahead. The window of rank 1, known
        only from the manifest, is placed with that offset.
        """
        ahead = Alignment("ping-pong", 5_000 * MS, 10)
        made = report(
            trace(0, ("thread", "cpu_op", "mm", 0, 100), host="far", alignment=ahead),
            manifests=[
                manifest(
                    window(0, start=5_000, end=5_100, host="far"),
                    window(
                        1,
                        start=5_000,
                        end=5_050,
                        host="far",
                        status="skipped",
                        artifacts=[],
                        error="no device",
                    ),
                )
            ],
        )
        assert made.seconds == 0.1
        assert made.roles[0].per_process[1].end == 0.05
        assert made.idle[1].causes == {"not_recorded": 0.05, "peers": 0.05}

    def test_a_damaged_file_proves_no_idle_time(self):
        made = report(
            trace(0, (("stream", "7"), "kernel", "gemm", 0, 40), whole=False),
            manifests=[manifest(window())],
        )
        (row,) = made.idle
        assert (row.busy, row.causes) == (0.04, {"not_recorded": 0.06})
        assert made.overlap[0].busy_share is None
        assert "the capture of actor rank 0 is damaged: only part of its file could be read" in [
            finding.text for finding in made.findings
        ]

    def test_the_spans_of_a_lost_capture_have_its_regions(self):
        made = report(
            spans(0, ("window", "actor", 0, 100, "actor"), ("region", "update", 0, 60, "actor")),
            manifests=[manifest(window(status="lost", artifacts=[], error="export: killed"))],
        )
        assert [(row.region, row.seconds) for row in made.regions] == [("update", 0.06)]
        assert made.idle[0].causes == {"not_recorded": 0.1}


class TestCpuTime:
    """Without a device, the CPU time of a window's thread shows work that no operator does."""

    def made(self, *windows, ops=((0, 40),), sources=()):
        slices = [("thread", "cpu_op", "mm", start, took) for start, took in ops]
        return report(trace(0, *slices), *sources, manifests=[manifest(*windows)]).idle[0]

    def test_cpu_time_beyond_operators_is_work(self):
        """Operators took 40 ms of 70 ms of CPU time. The other 30 ms count as work too."""
        row = self.made(window(thread_cpu_seconds=0.07))
        assert (row.busy, row.causes) == (0.07, pytest.approx({"unknown": 0.03}))

    def test_a_thread_that_slept_did_not_work(self):
        row = self.made(window(thread_cpu_seconds=0.04))
        assert (row.busy, row.causes) == (0.04, {"unknown": 0.06})

    def test_cpu_time_counts_at_most_the_gaps(self):
        """The excess may come from the threads of other windows, or from a clock with a low resolution."""
        row = self.made(window(thread_cpu_seconds=0.5))
        assert (row.busy, row.causes) == (pytest.approx(0.1), {})

    def test_without_cpu_time_only_operators_are_work(self):
        assert self.made(window(thread_cpu_seconds=None)).busy == 0.04

    def test_a_window_around_others_is_not_counted_again(self):
        """The window of the whole step contains the CPU time of the window inside it."""
        row = self.made(
            window(role=None, thread_cpu_seconds=0.09),
            window(start=20, end=80, thread_cpu_seconds=0.05),
            ops=[(20, 10)],
        )
        assert (row.busy, row.causes) == (0.05, pytest.approx({"unknown": 0.05}))

    def test_cpu_time_is_ignored_for_a_rank_with_a_device(self):
        """The device waits for its busy host, so the CPU time of the host does not make the rank busy."""
        made = report(
            trace(0, (("stream", "7"), "kernel", "gemm", 0, 40)),
            manifests=[manifest(window(thread_cpu_seconds=0.1))],
        )
        assert (made.idle[0].busy, made.idle[0].causes) == (0.04, {"host": 0.06})


class TestIslands:
    """The clocks of the two hosts were never compared. Each figure covers one of them."""

    def two_hosts(self):
        """Return two ranks of a role, 100 ms and 60 ms long. The clock of host b is a day ahead."""
        off = 24 * 3600 * 1000
        return [
            spans(0, ("window", "actor", 0, 100, "actor"), ("region", "update", 10, 50, "actor"), host="a"),
            spans(1, ("window", "actor", off, 60, "actor"), ("region", "update", off, 40, "actor"), host="b", alignment=APART),
        ]  # fmt: skip

    def test_sums_do_not_cross_islands(self):
        made = report(*self.two_hosts())
        assert [(each.hosts, each.seconds) for each in made.islands] == [(["a"], 0.1), (["b"], 0.06)]
        assert (made.seconds, made.start_unix_ns) == (0.1, T0)
        for rows in (made.roles, made.regions):
            assert [(row.clock, len(row.per_process)) for row in rows] == [("a", 1), ("b", 1)]
        assert [(row.seconds, row.share) for row in made.roles] == [(0.1, 1.0), (0.06, 1.0)]
        assert made.skew == []

    def test_each_process_starts_by_the_clock_of_its_own(self):
        rows = report(*self.two_hosts()).gantt
        assert [(row.label, [bar.start for bar in row.bars]) for row in rows] == [
            ("actor rank 0", [0.0, 0.01]),
            ("actor rank 1", [0.0, 0.0]),
        ]

    def test_uncompared_clocks_are_the_first_finding(self):
        assert [finding.text for finding in report(*self.two_hosts()).findings[:2]] == [
            "the step took 100 ms on a, 60 ms on b, each by its own clock",
            "the clocks of 2 groups of processes were never compared: every figure covers one group only",
        ]

    def test_each_clock_has_a_path_of_its_own(self):
        """A time on one clock is no time on the other one."""
        made = report(*self.two_hosts())
        assert {each.clock for each in made.path} == {"a", "b"}
        for hosts, length in (("a", 0.1), ("b", 0.06)):
            assert sum(each.seconds for each in made.path if each.clock == hosts) == pytest.approx(length)
        assert {each.clock for each in report(spans(0, ("window", "actor", 0, 9, "actor"))).path} == {None}

    def test_what_mending_saves_on_one_clock_may_be_awaited_on_another(self):
        """Rank 1 of host a is late for rank 0. Nothing says what host b did meanwhile: the finding has no gain, and
        no process has slack.
        """

        def late(rank, load):
            return spans(
                rank,
                ("window", "actor", 0, 100, "actor"),
                ("region", "load", 0, load, "actor"),
                ("region", "meet", load, 100 - load, "actor"),
                host="a",
            )

        here = [late(0, 10), late(1, 99)]
        (alone,) = [
            each for each in report(*here).findings if each.topic == "straggler" and each.start is not None
        ]
        assert (round(alone.seconds, 3), round(alone.saves, 3)) == (0.089, 0.089)
        made = report(*here, spans(2, ("window", "actor", 5, 90, "actor"), host="b", alignment=APART))
        (apart,) = [each for each in made.findings if each.topic == "straggler" and each.start is not None]
        assert (round(apart.seconds, 3), apart.saves, apart.assumption) == (0.089, None, None)
        assert made.slack == []

    def test_work_of_another_island_explains_no_wait(self):
        """Host b generated meanwhile. On clocks that were never compared, that does not explain the
        idle time of rank 0 on host a.
        """
        made = report(
            spans(0, ("window", "actor", 0, 40, "actor"), host="a"),
            spans(2, ("region", "later", 99, 1, None), host="a"),
            trace(0, ("thread", "cpu_op", "mm", 0, 40), host="a"),
            trace(1, ("thread", "cpu_op", "generate", 0, 100), role="rollout", host="b", alignment=APART),
            manifests=[manifest(window(0, end=40, host="a"), window(1, role="rollout", host="b"))],
        )
        assert {row.label: row.causes for row in made.idle} == {
            "actor rank 0": {"unknown": 0.06},
            "rollout rank 1": {},
        }

    def test_waits_in_numbered_collectives_need_no_clock(self):
        """Rank 0 was 20 ms longer in the numbered call, so it waited that long. No clock is needed."""

        def rank(number, took, host, **more):
            args = {"Process Group Name": "1", "Process Group Ranks": "[0, 1]", "Group size": 2, "Seq": 7}
            kernel = (("stream", "20"), "kernel", "ncclDevKernel_AllReduce_Sum", 100 * number, took, args)
            return trace(number, kernel, host=host, **more)

        made = report(rank(0, 30, "a"), rank(1, 10, "b", alignment=APART))
        (row,) = made.skew
        assert (row.straggler, seconds(row.waited)) == ("actor rank 1", {"actor rank 0": 0.02})
        assert {each.label: (each.busy, each.causes) for each in made.idle} == {
            "actor rank 0": (0.01, {"collective": 0.02}),
            "actor rank 1": (0.01, {}),
        }

    def test_hosts_of_one_clock_are_one_island(self):
        near = spans(0, ("window", "actor", 0, 100, "actor"), host="a")
        far = spans(
            1, ("window", "actor", 20, 100, "actor"), host="b", alignment=Alignment("ping-pong", 0, 10)
        )
        made = report(near, far)
        assert [(each.hosts, each.seconds) for each in made.islands] == [(["a", "b"], 0.12)]
        assert [row.clock for row in made.roles] == [None]


class TestDevices:
    def test_two_devices_of_one_process(self):
        """The process is busy while any of its devices is busy. In the table of communication each
        device has its own row.
        """
        made = report(
            trace(
                0,
                (("stream", "7", "0"), "kernel", "gemm", 0, 30),
                (("stream", "7", "1"), "kernel", "gemm", 20, 40),
                (("stream", "20", "1"), "kernel", "ncclDevKernel_AllReduce", 50, 30),
                ("thread", "cpu_op", "mm", 0, 100),
            ),
            manifests=[manifest(window())],
        )
        assert [(row.device, row.compute, row.communication, row.exposed, row.busy_share) for row in made.overlap] == [
            ("gpu 0", 0.03, 0.0, 0.0, 0.3),
            ("gpu 1", 0.04, 0.03, 0.02, 0.6),
        ]  # fmt: skip
        (row,) = made.idle  # 60 to 80 ms: a collective whose other members are unknown
        assert (row.busy, row.causes) == (0.06, pytest.approx({"collective_unmatched": 0.02, "host": 0.02}))


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

    def test_a_capped_engine_reports_only_its_recorded_part(self):
        """The engine may have continued the rollout after the cap."""
        made = report(
            engine(0, (0, 50, 8), (50, 50, 2)),
            manifests=[manifest(engines=[engine_entry(capped_by="max_seconds", start_unix_ns=T0, end_unix_ns=T0 + 100 * MS)])],
        )  # fmt: skip
        (row,) = made.rollout
        assert row.whole is False
        assert [each.text for each in made.findings if each.topic in ("coverage", "tail")] == [
            "the capture of rollout/0 ended after 100 ms (max_seconds)",
        ]

    def test_the_schedulers_of_a_data_parallel_engine_are_added_up(self):
        """Each scheduler has its own file and batch. For 50 ms they have 4 and 8 sequences, then 4
        and none.
        """
        made = report(engine(0, (0, 50, 4), (50, 50, 4), group=0), engine(0, (0, 50, 8), group=1))
        (row,) = made.rollout
        assert (row.label, row.iterations, row.peak_batch, row.below_half, row.tail) == (
            "rollout/0",
            3,
            12,
            0.5,
            0.05,
        )
        assert [batch for _, batch in row.curve] == [12, 4, 0]

    def test_the_workers_of_each_scheduler_count_once(self):
        """The engine has two data-parallel schedulers with two tensor-parallel workers each."""
        made = report(
            *(
                engine(0, (0, 50, 4 + group), group=group, rank=rank)
                for group in range(2)
                for rank in range(2)
            )
        )
        (row,) = made.rollout
        assert (row.iterations, row.peak_batch) == (2, 9)

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
        assert made.findings == []  # without a window of the driver there is no path of the step

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
        reported = rows[-1].sample_seconds
        assert (reported.count, reported.longest) == (
            4,
            max(each.end - each.start for each in rows[-1].samples),
        )


class TestRecordingItself:
    def test_overhead_by_process_and_engine(self):
        made = report(
            spans(0, ("window", "actor", 0, 100, "actor")),
            manifests=[
                manifest(
                    window(
                        arm_seconds=0.02,
                        start_seconds=0.005,
                        wait_seconds=0.01,
                        stall_seconds=0.04,
                        export_seconds=1.0,
                    ),
                    window(role="ref", stall_seconds=0.03),
                    engines=[engine_entry(), engine_entry(status="joined", name="e0")],
                )
            ],
        )
        assert [
            (row.label, row.arm, row.start, row.wait, row.stall, row.export, row.stop)
            for row in made.overhead
        ] == [
            ("actor rank 0", 0.02, 0.005, 0.01, 0.07, 1.0, None),
            ("rollout/0", None, 0.25, None, None, None, 0.5),
        ]

    def test_captures_without_a_trace_are_sources_without_events(self):
        made = report(
            spans(0, ("window", "actor", 0, 100, "actor")),
            manifests=[
                manifest(
                    window(rank=1, status="lost", artifacts=[], error="export: killed"),
                    window(rank=2, status="joined", artifacts=[]),
                    window(rank="driver", backend="null", artifacts=[]),
                    engines=[
                        engine_entry(status="failed", artifacts=[], error="it does not answer"),
                        engine_entry(kind="rank", artifacts=[]),
                    ],
                )
            ],
        )
        assert [(each.label, each.status, each.events) for each in made.sources[1:]] == [
            ("actor rank 1", "lost", 0),
            ("rollout/0", "failed", 0),
        ]
        assert [finding.text for finding in made.findings if finding.topic == "coverage"][:2] == [
            "the capture of actor rank 1 was lost: export: killed; 100% of its window was not recorded",
            "the capture of rollout/0 failed: it does not answer",
        ]

    @pytest.mark.parametrize("odd", [float("nan"), float("inf"), -1e300, 1e300, 10**30])
    def test_numbers_of_a_damaged_manifest_are_unknown(self, odd):
        entry = window(start_unix_ns=odd, end_unix_ns=odd, stall_seconds=odd, occurrence=odd, damaged=True)
        broken = manifest(entry, engines=[engine_entry(start_seconds=odd, replica=odd, damaged=True)])
        made = report(trace(0, ("thread", "cpu_op", "mm", 0, 10)), manifests=[broken])
        assert (made.seconds, made.roles) == (0.01, [])
        assert [(row.label, row.stall, row.start) for row in made.overhead] == [("rollout/?", None, None)]

    def test_an_impossible_stall_is_ignored(self):
        made = report(
            spans(0, ("window", "actor", 0, 10, "actor")),
            spans(1, ("region", "late", 19, 1, None)),
            trace(0, ("thread", "cpu_op", "mm", 0, 10)),
            manifests=[manifest(window(end=10, stall_seconds=1e9))],
        )
        assert made.idle[0].causes == {"unknown": 0.01}

    def test_problems_name_their_source(self):
        made = report(trace(0, ("thread", "cpu_op", "mm", 0, 1), findings=["breaks off"]))
        assert made.problems == [Problem("step-000002/actor/rank-0.trace.json.gz", "breaks off")]

    def test_the_clock(self):
        far = {"host": "far", "alignment": Alignment("ping-pong", 5, 250_000)}
        first, second = spans(0, ("window", "a", 0, 1, "a")), spans(1, ("window", "a", 0, 1, "a"), **far)
        made = report(first, second)
        assert (made.clock, made.clock_error_ns) == (
            "1 source by the clock of one host; 1 compared by ping-pong, error at most 0.25 ms",
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
        assert [finding.text for finding in made.findings] == [
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

    def test_only_the_longest_bars_are_kept(self, monkeypatch):
        monkeypatch.setattr("stepprof.analysis.report.gantt.MOST_ROW_BARS", 2)
        monkeypatch.setattr("stepprof.analysis.report.gantt.FEWEST_BARS", 2)
        regions = [("region", f"r{n}", 10 * n, n + 1, "actor") for n in range(5)]
        (row,) = report(spans(0, ("window", "actor", 0, 100, "actor"), *regions)).gantt
        assert [bar.name for bar in row.bars] == ["actor", "r4"]


def test_serial_samples_are_not_a_rollout():
    grading = [(("sample", str(n)), "region", "grade", 10 * n, 5) for n in range(4)]
    assert report(source(Origin("spans", "s", rank=0), *grading)).rollout == []


def test_rounding_gaps_are_not_a_cause():
    made = report(
        *(trace(rank, ("thread", "cpu_op", "mm", 0.0003 * rank, 10)) for rank in range(2)),
        manifests=[
            manifest(*(window(rank, start=0.0003 * rank, end=10 + 0.0003 * rank) for rank in range(2)))
        ],
    )
    assert {row.label: row.causes for row in made.idle} == {
        "actor rank 0": {"unknown": 300e-9},
        "actor rank 1": {"unknown": 300e-9},
    }


def test_regions_of_several_captures_of_one_process_are_added_up():
    captures = [trace(0, ("thread", "user_annotation", "update", at, 10)) for at in (0, 50)]
    ((row,),) = [each.per_process for each in report(*captures).regions]
    assert (row.label, row.seconds, row.calls, row.end) == ("actor rank 0", 0.02, 2, 0.06)


def test_a_rank_whose_peers_were_not_captured_has_unmatched_time():
    """Computation of the rank during the call is work. The rest of the call is waiting or transfer."""
    made = report(
        trace(0, ("thread", "user_annotation", "gloo:all_reduce", 0, 30), ("thread", "cpu_op", "mm", 0, 5))
    )
    assert (made.skew, made.idle[0].busy, made.idle[0].causes) == ([], 0.005, {"collective_unmatched": 0.025})
    (row,) = made.unmatched
    assert (seconds(row.spent), row.recorded, row.members) == ({"actor rank 0": 0.025}, None, None)


def test_the_busiest_worker_represents_its_engine():
    short, long = engine(0, (0, 10, 4)), engine(0, (0, 10, 4), (10, 10, 4), rank=1)
    for sources in ((short, long), (long, short)):
        assert [(row.label, row.iterations) for row in report(*sources).rollout] == [
            ("rollout/0 worker 1", 2)
        ]


@pytest.mark.parametrize(
    ("roles", "label"),
    [
        (("eval",), "eval rank 0"),
        (("eval", "actor"), "rank 0"),
        (("eval", None), "rank 0"),
        ((None,), "rank 0"),
    ],
)
def test_a_process_of_several_roles_is_called_after_none(roles, label):
    """A step that trains and evaluates is no "eval rank 0"."""
    windows = [("window", role or "step", 100 * at, 100, role) for at, role in enumerate(roles)]
    made = report(spans(0, *windows))
    assert {each.process for each in made.path} == {label}


def test_too_many_collectives_to_match_are_reported(monkeypatch):
    monkeypatch.setattr("stepprof.analysis.report.collectives.MOST_CALLS", 1)
    calls = [("thread", "user_annotation", "gloo:all_reduce", at, 1) for at in (0, 5)]
    (finding,) = report(trace(0, *calls)).problems
    assert finding.problem.startswith("2 collectives exceed the limit for matching across ranks")


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
def test_damaged_times_and_values_still_give_a_valid_report(slices, counters):
    """Damaged times and values still give a report that survives JSON."""
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

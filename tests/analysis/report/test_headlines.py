"""The sentences of the report: which ones appear, and in which order."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from stepprof.analysis.report.headlines import sentences, shown_first
from stepprof.analysis.report.markdown import render
from stepprof.analysis.report.schema import (
    Bar,
    Finding,
    GanttRow,
    Island,
    Memory,
    Overlap,
    Part,
    PathSegment,
    PhaseSkew,
    ProcessTime,
    Report,
    Shortfall,
    SourceInfo,
    TimeOf,
    UnmatchedTime,
)
from stepprof.analysis.report.terminal import print_report


def report_of(**parts):
    return Report("r", 2, 0, 10.0, "one host", 0, **parts)


def texts(**parts):
    return [finding.text for finding in sentences(report_of(**parts), [])]


def skew(straggler="actor rank 3", late=1.8, *, role="actor", region="update_actor", others=3, **more):
    waited = [ProcessTime(f"actor rank {number}", late) for number in range(others)]
    more = {"significant": True, "began_later": 0.0, **more}
    return PhaseSkew(role, region, straggler, late, late, waited, **more)


def test_a_step_without_causes_has_only_its_length():
    assert texts() == []


def part(name, seconds, *, region=None, role=None):
    return Part(name, role, region, seconds, seconds / 10, seconds, seconds / 10)


PATH = [PathSegment("rank 0", 0.0, 10.0, "work")]


def test_the_step_length_comes_first():
    """The first sentence has the parts of the step by their shares of the critical path, the longest first, without tiny ones. Regions are quoted."""
    parts = [
        part("actor", 3.0, role="actor"),
        part("tiny", 0.04, role="tiny"),
        part("load/kl", 0.8, region="load/kl"),
        part("rollout", 5.1, role="rollout"),
        part("no role", 1.06),
    ]
    assert texts(parts=parts, path=PATH, skew=[skew()])[0] == (
        "the step took 10.0 s: rollout 51%, actor 30%, no role 11%, `load/kl` 8%"
    )


def test_a_step_that_nothing_divides():
    """Without roles and regions, the first sentence says so, with advice."""
    (first,) = sentences(report_of(parts=[part("step", 10.0)], path=PATH), [])
    assert first.text == "the step took 10.0 s, and no role or region divides it"
    assert "stepprof.region" in (first.advice or "")


class TestStragglers:
    def test_a_rank_that_finishes_after_the_others(self):
        assert texts(skew=[skew()]) == [
            "actor rank 3 was the last to finish update_actor (actor): 1.8 s behind the median of the others"
        ]
        assert texts(skew=[skew(region=None, others=1)]) == [
            "actor rank 3 was the last to finish actor: 1.8 s behind actor rank 0"
        ]

    def test_waits_inside_collectives_name_the_straggler(self):
        row = skew("actor rank 1", 0.5, region=None, basis="collectives", began_later=None)
        assert texts(skew=[row]) == [
            "actor rank 0 waited 500 ms for actor rank 1 in the collectives of actor"
        ]
        row = skew("rank 1", 0.5, role=None, region=None, others=1, basis="collectives")
        assert texts(skew=[row]) == ["actor rank 0 waited 500 ms for rank 1 in the collectives of the step"]

    def test_an_earlier_delay_is_not_counted_again(self):
        rows = [skew(region="forward", late=2.0), skew(region="backward", late=2.5, began_later=2.0)]
        assert texts(skew=rows) == [
            "actor rank 3 was the last to finish forward (actor): 2.0 s behind the median of the others"
        ]
        own = skew(region=None, late=2.5, began_later=1.0, straggler="actor rank 4")
        assert texts(skew=[own]) == [
            "actor rank 4 was the last to finish actor: 2.5 s behind the median of the others, having started 1.0 s later"
        ]

    def test_seconds_that_differ_from_the_delay_are_stated(self):
        """The seconds of the finding are those that the phase itself lost; the sentence has them too if they are not the delay."""
        (finding,) = sentences(report_of(skew=[skew(late=2.5, by_waiting=0.3)]), [])
        assert finding.seconds == pytest.approx(2.2)
        assert finding.text.endswith("2.5 s behind the median of the others, 2.2 s of it lost in this phase")

    def test_a_delay_by_the_profiler_is_subtracted_and_stated(self):
        """The profiler caused 1.0 s of 2.5 s, so the possible gain is 1.5 s. A rank delayed mostly
        by the profiler is not a straggler.
        """
        (finding,) = sentences(report_of(skew=[skew(region=None, late=2.5, by_profiler=1.0)]), [])
        assert finding.text == (
            "actor rank 3 was the last to finish actor: 2.5 s behind the median of the others, 1.0 s of it due to the profiler"
        )
        assert finding.seconds == 1.5
        assert texts(skew=[skew(late=2.5, by_profiler=2.45)]) == []

    @pytest.mark.parametrize("row", [skew(late=0.09), skew(significant=False), skew(began_later=1.79)])
    def test_small_or_uncertain_delays_are_not_reported(self, row):
        assert texts(skew=[row]) == []

    def test_at_most_three_stragglers_the_worst_first(self):
        rows = [skew(f"rank {n}", late=float(n), region=None) for n in range(1, 6)]
        assert [text.split(" was")[0] for text in texts(skew=rows)] == ["rank 5", "rank 4", "rank 3"]


class TestWaitsInCollectives:
    def row(self, spread):
        """Return a row in which rank 0 waited 2 s for rank 1, and rank 1 waited 2 s - `spread` for others."""
        waited = [ProcessTime("actor rank 0", 2.0)]
        return PhaseSkew("actor", "sync", "actor rank 1", spread, spread, waited, True, basis="collectives")

    def test_ranks_that_take_turns_in_being_late(self):
        """Ranks that wait for each other in turns lose time, although no rank is slower in total."""
        (found,) = sentences(report_of(skew=[self.row(0.1)]), [])
        assert found.text == (
            "actor rank 0 waited 2.0 s for actor rank 1 in the collectives of sync (actor), "
            "and actor rank 1 waited 1.9 s for others: they are late in turns"
        )
        assert (found.seconds, bool(found.advice)) == (1.9, True)

    def test_a_rank_that_began_late(self):
        """Rank 1 began its window 1.9 s later. Its work before the window is not recorded, so the
        sentence says only that.
        """
        gantt = [
            GanttRow(f"actor rank {number}", "h", "rank", [Bar(start, 5.0, "actor", "actor", 0)])
            for number, start in enumerate((0.0, 1.9))
        ]
        assert texts(skew=[self.row(2.0)], gantt=gantt) == [
            "actor rank 0 waited 2.0 s for actor rank 1 in the collectives of sync (actor); actor rank 1 began actor 1.9 s later"
        ]


class TestCollectives:
    """Time in collectives for which the awaited rank is unknown."""

    def spent(self, seconds=1.5, recorded=3, members=4, region=None):
        return UnmatchedTime("actor", region, [ProcessTime("actor rank 0", seconds), ProcessTime("actor rank 1", 0.5)], recorded, members)  # fmt: skip

    def test_how_many_members_were_recorded(self):
        assert texts(unmatched=[self.spent(region="update")]) == [
            "actor rank 0 spent 1.5 s in nothing but collectives of update (actor); 3 of 4 members were recorded, so the rank it waited for is unknown"
        ]

    @pytest.mark.parametrize(("recorded", "members"), [(None, None), (4, 4)])
    def test_unmatched_collectives_are_reported(self, recorded, members):
        assert texts(unmatched=[self.spent(recorded=recorded, members=members)]) == [
            "actor rank 0 spent 1.5 s in nothing but collectives of actor that could not be matched across ranks, so the rank it waited for is unknown"
        ]

    def test_little_time_is_not_reported(self):
        assert texts(unmatched=[self.spent(seconds=0.09)]) == []


class TestShortfalls:
    """Captures that cover only a part of their windows."""

    def test_a_capped_one_with_its_seconds(self):
        short = Shortfall("actor rank 0", "complete", "max_seconds", None, 1.0, 10.0)
        assert texts(shortfalls=[short]) == [
            "the capture of actor rank 0 ended after 1.0 s of 10 s (max_seconds); 90% of its window was not recorded"
        ]
        unknown = Shortfall("actor rank 0", "complete", "max_seconds", None, 1.0, None)
        assert texts(shortfalls=[unknown]) == ["the capture of actor rank 0 ended after 1.0 s (max_seconds)"]

    def test_the_regions_after_the_end_of_the_capture(self):
        """The sentence names the longest ones: no stacks and operators show what the process did there."""
        regions = {"save": 6.0, "log": 2.5, "gather": 0.01}
        short = Shortfall("rank 0", "complete", "max_seconds", None, 1.0, 10.0, regions=regions)
        (text,) = texts(shortfalls=[short])
        assert text.endswith("; 90% of its window was not recorded: `save` 6.0 s, `log` 2.5 s")
        other = Shortfall("rank 1", "complete", "max_seconds", None, 1.0, 10.0, regions={"save": 7.0})
        assert texts(shortfalls=[short, other])[0].endswith(
            "90% of their windows were not recorded: `save` up to 7.0 s, `log` up to 2.5 s"
        )

    def test_an_engine_that_ended_its_capture_at_max_iterations(self):
        """The sentence says that only the first forward steps were recorded."""
        one = Shortfall("rollout/0", "complete", "engine", None, None, 8.0, 32)
        assert texts(shortfalls=[one]) == [
            "only the first 32 forward steps of rollout/0 were recorded (max_iterations); the window lasted 8.0 s"
        ]
        other = Shortfall("rollout/1", "complete", "engine", None, None, 8.0, 30)
        assert texts(shortfalls=[one, other]) == [
            "only the first 30 to 32 forward steps of rollout/0, rollout/1 were recorded (max_iterations)"
        ]

    def test_a_lost_capture_is_reported(self):
        short = Shortfall("rank 0", "lost", None, "the process ended", None, 2.0)
        assert texts(shortfalls=[short]) == [
            "the capture of rank 0 was lost: the process ended; 100% of its window was not recorded"
        ]

    def test_similar_captures_share_a_sentence(self):
        rows = [Shortfall(f"rank {n}", "lost", None, "the process ended", None, None) for n in range(5)]
        assert texts(shortfalls=rows) == ["the capture of rank 0, rank 1, rank 2 and 2 more was lost"]
        capped = [Shortfall(f"rank {n}", "complete", "max_bytes", None, 1.0, 2.0) for n in range(2)]
        assert texts(shortfalls=capped) == [
            "the capture of rank 0, rank 1 ended before the window (max_bytes); 50% of their windows were not recorded"
        ]

    @pytest.mark.parametrize(
        ("status", "sentence"),
        [
            ("lost", "was lost"),
            ("failed", "failed"),
            ("skipped", "was skipped"),
            ("partial", "is partial"),
            ("damaged", "is damaged: only part of its file could be read"),
            ("unreadable", "is damaged: no event of its file could be used"),
            ("recording", "is recording"),
        ],
    )
    def test_outcomes(self, status, sentence):
        short = Shortfall("rank 0", status, None, None, None, None)
        assert texts(shortfalls=[short]) == [f"the capture of rank 0 {sentence}"]

    def test_the_reason_of_a_single_one(self):
        short = Shortfall("rank 0", "failed", None, "no device", None, None)
        assert texts(shortfalls=[short]) == ["the capture of rank 0 failed: no device"]

    def test_a_capture_that_ended_with_its_process(self):
        """The capture covers the window until SIGTERM; the window would have gone on."""
        ended = Shortfall("rank 1", "partial", None, "SIGTERM", 0.263, None, early=True)
        assert texts(shortfalls=[ended]) == [
            "the capture of rank 1 is partial: SIGTERM; what its window would have had after 263 ms is not recorded"
        ]
        covered = Shortfall("rank 1", "partial", None, "nsys: no report", 0.1, 0.1)
        assert texts(shortfalls=[covered]) == ["the capture of rank 1 is partial: nsys: no report"]

    def test_incomplete_captures_come_before_causes(self):
        short = Shortfall("rank 0", "lost", None, None, None, None)
        assert texts(shortfalls=[short], skew=[skew()])[0] == "the capture of rank 0 was lost"

    def test_a_lost_capture_is_reported_only_once(self):
        lost = SourceInfo("rank 0", "rank", None, None, 0, None, None, "lost", 0, None, "", 0, None)
        short = Shortfall("rank 0", "lost", None, None, None, None)
        assert texts(shortfalls=[short], sources=[lost]) == ["the capture of rank 0 was lost"]


class TestIslands:
    def test_several_clocks_have_a_time_each_and_no_share(self):
        """Each clock has its own time. Roles have no share, because a role may have been on several
        clocks.
        """
        islands = [Island(["a", "b"], 0, 10.0), Island(["c"], 0, 7.0)]
        roles = [TimeOf("actor", None, 3.0, 0.3, [], "a, b")]
        assert texts(islands=islands, roles=roles) == [
            "the step took 10 s on a, b, 7.0 s on c, each by its own clock",
            "the clocks of 2 groups of processes were never compared: every figure covers one group only",
        ]

    def test_several_clocks_that_nothing_divides(self):
        """The advice is that on one clock."""
        islands = [Island(["a"], 0, 10.0), Island(["b"], 0, 7.0)]
        advice = [
            sentences(report_of(islands=islands, parts=parts), [])[0].advice
            for parts in ([part("step", 10.0)], [part("load", 10.0, region="load")])
        ]
        assert advice == [
            'put `with stepprof.region("…"):` around its parts, or `role="…"` on its windows',
            None,
        ]

    def test_empty_traces_of_others(self):
        """A trace without events has a clock and no length."""
        trace = SourceInfo("rank 0", "trace", None, None, 0, None, None, None, 5, None, "", 0, None)
        islands = [Island(["a"], 0, 10.0), Island(["b"], 0, 0.0)]
        assert texts(islands=islands, sources=[trace], parts=[part("forward", 5.0, region="forward")])[0] == (
            "the step took 10 s on a; the others have no length"
        )

    def test_a_single_island_is_not_mentioned(self):
        assert texts(islands=[Island(["a", "b"], 0, 10.0)]) == []


class TestOverlap:
    def test_how_busy_the_devices_were(self):
        rows = [Overlap(f"rank {n}", "gpu", 1.0, 0.0, 0.0, 0.0, share) for n, share in enumerate((0.4, 0.6))]
        assert texts(overlap=rows) == ["the GPUs were busy for 50% of the captured time"]


def test_the_highest_peak_of_a_device_rather_than_of_the_host():
    rows = [
        Memory("rank 0", "CPU, allocated", 9 * 2**30, 1.0),
        Memory("rank 1", "GPU 0, reserved", 2**30, 1.0),
    ]
    assert texts(memory=rows) == ["rank 1 reached 1.0 GiB (GPU 0, reserved)"]
    assert texts(memory=rows[:1]) == ["rank 0 reached 9.0 GiB (CPU, allocated)"]


def test_traces_without_events_come_before_the_findings():
    """A sentence names the sources without events, because no table shows them."""

    def info(label, events, status="complete"):
        return SourceInfo(label, "rank", None, None, 0, None, None, status, events, None, "", 0, None)

    sources = [info(f"rank {n}", 0) for n in range(4)] + [info("rank 9", 5), info("spans", 0, None)]
    assert texts(sources=sources, skew=[skew()])[0] == (
        "4 of 6 sources have no events: rank 0, rank 1, rank 2 and 1 more"
    )


def test_causes_come_before_consequences():
    """A sentence is omitted if causes in other sentences explain at least half of its delay."""
    cause = Finding("rank 1 spent 1.0 s longer than rank 0 in `load`", "straggler", 1.0, process="rank 1")
    rows = [skew("rank 1", region="forward"), skew("rank 1", late=2.5), skew("rank 2", late=3.0)]
    said = [finding.text for finding in sentences(report_of(skew=rows), [cause])]
    assert said == [
        cause.text,
        "rank 2 was the last to finish update_actor (actor): 3.0 s behind the median of the others",
        "rank 1 was the last to finish update_actor (actor): 2.5 s behind the median of the others",
    ]


class TestNothingStandsOut:
    """Several short findings are those of any step on a busy machine."""

    SMALL = tuple(
        Finding(f"{at} ms of something", "gc", at / 1e3, start=0.1, end=0.2) for at in range(70, 200, 20)
    )
    TEXT = "nothing stands out: the longest of 7 findings is 190 ms, 2% of the step"

    def test_one_sentence_comes_first(self):
        """The sentence stands before the short findings, which stay in the report."""
        made = sentences(report_of(), self.SMALL)
        assert [each.text for each in made] == [self.TEXT, *(each.text for each in self.SMALL)]

    def test_what_is_printed(self):
        """The terminal has the sentence alone."""
        made = sentences(report_of(), self.SMALL)
        assert [each.text for each in shown_first(made)] == [self.TEXT]

    def test_where_the_others_are(self):
        """The terminal says where they are listed. The finding itself does not: the page and Markdown list them below it."""
        made = sentences(report_of(), self.SMALL)
        console = Console(file=io.StringIO(), width=120)
        print_report(report_of(findings=made), console)
        printed = console.file.getvalue()
        assert "the page, `report.json` and `--markdown` list the findings" in printed
        assert "190 ms of something" not in printed
        assert made[0].advice is None
        assert "list the findings" not in render(report_of(findings=made))

    def test_a_finding_that_stands_out(self):
        """With one finding of 5 % of the step, all are shown."""
        long = Finding("long", "data", 0.5, start=0.1, end=0.2)
        made = sentences(report_of(), [long, *self.SMALL])
        assert made == [long, *self.SMALL]
        assert shown_first(made) == made

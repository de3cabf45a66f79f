"""Two reports compared: like with like, and with the noise stated."""

from __future__ import annotations

import msgspec
import pytest

from stepprof.analysis.recording_cost import RecordingCost
from stepprof.analysis.report.compare import compare
from stepprof.analysis.report.schema import (
    EngineWork,
    Island,
    Op,
    Problem,
    ProcessTime,
    RecordedProcess,
    Report,
    Rollout,
    TimeOf,
)
from stepprof.analysis.report.step_times import ProcessSteps, RunSteps


def time_of(region, *seconds, role="actor", share=0.5):
    processes = [ProcessTime(f"rank {rank}", each) for rank, each in enumerate(seconds)]
    return TimeOf(role, region, max(seconds), share, processes)


def op(name, *own, kind="op"):
    processes = [ProcessTime(f"rank {rank}", each) for rank, each in enumerate(own)]
    return Op(name, kind, len(own), sum(own), sum(own), 0.5, processes)


def report(seconds=10.0, step=2, **more):
    return Report("r", step, 0, seconds, "one host", more.pop("clock_error_ns", 0), **more)


def rank(number, role=None, **more):
    label = f"rank {number}" if role is None else f"{role} rank {number}"
    return RecordedProcess(label, "rank", number, **{"captures": ["actor"], "whole": True, **more})


def others(**parts):
    """Return a run with other steps: the seconds of each part in them."""
    count = max(map(len, parts.values()))
    windows = {(step, 0): (step * 10**11, step * 10**11 + 10**10) for step in range(count + 1)}
    found = RunSteps([ProcessSteps(0, windows, {*windows})])
    for name, seconds in parts.items():
        if name == "step":
            found.windows = {(step, 0): each for step, each in enumerate(seconds, 1)}
        else:
            role, _, region = name.partition("_")
            found.parts[role, region or None] = {(step, 0): each for step, each in enumerate(seconds, 1)}
    return found


def change(comparison, what):
    return next(each for each in comparison.changes if each.what == what)


class TestChanges:
    def test_beyond_the_noise_is_significant_and_within_is_not(self):
        before = report(roles=[time_of(None, 3.0, 3.2), time_of(None, 1.0, 1.5, role="ref")])
        after = report(11.0, step=3, roles=[time_of(None, 4.0, 4.2), time_of(None, 1.0, 1.6, role="ref")])
        run = others(actor=[3.0, 3.1, 3.2, 3.1, 3.0, 3.1], ref=[1.4, 1.5, 1.6, 1.5, 1.4, 1.5])
        compared = compare(before, after, run, run)
        assert (compared.a, compared.b) == ("r step 2", "r step 3")
        slower = change(compared, "actor")
        assert (slower.topic, slower.a, slower.b, slower.significant) == ("role", 3.2, 4.2, True)
        assert slower.noise == slower.noise_steps == pytest.approx(2.57 * 2**0.5 * 0.0753, rel=1e-3)
        assert not change(compared, "ref").significant

    @pytest.mark.parametrize(
        ("seconds", "rows"), [(9.95, ["step"]), (6.0, ["step", "a window without a role"])]
    )
    def test_windows_without_a_role_that_are_the_step(self, seconds, rows):
        """A window around the whole step is as long as it: its change is stated once."""
        before = report(roles=[time_of(None, seconds, role=None)])
        after = report(20.0, step=3, roles=[time_of(None, 20.0, role=None)])
        assert sorted((each.what for each in compare(before, after).changes), reverse=True) == rows

    def test_the_largest_change_comes_first(self):
        compared = compare(
            report(10.0, regions=[time_of("a", 1.0), time_of("b", 5.0)]),
            report(10.5, regions=[time_of("a", 1.2), time_of("b", 2.0)]),
        )
        assert [each.what for each in compared.changes] == ["actor: b", "step", "actor: a"]

    def test_without_other_steps_the_noise_is_unknown(self):
        """Two ranks that meet in collectives take equally long: their spread is no noise of the step."""
        compared = compare(report(roles=[time_of(None, 3.0, 3.0)]), report(roles=[time_of(None, 5.0, 5.0)]))
        assert (change(compared, "actor").noise, change(compared, "actor").significant) == (None, False)
        assert [finding.text for finding in compared.findings] == [
            "the step took 10 s, as long as before",
            "actor took 67% longer: 3.0 s before, 5.0 s now; the noise is unknown: fewer than 3 other steps with it are known",
        ]

    def test_variation_between_steps_is_not_significant(self):
        """The steps of B vary as much as the difference. The sentence says where the noise is from."""
        before = report(10.0, roles=[time_of(None, 3.0, 3.0)], regions=[time_of("load", 1.0, 1.0)])
        after = report(11.0, step=3, roles=[time_of(None, 3.5, 3.5)], regions=[time_of("load", 2.0, 2.0)])
        a = others(step=[10.0, 10.1, 10.0, 9.9], actor=[3.0] * 4, actor_load=[1.0, 1.01, 0.99, 1.0])
        b = others(step=[9.0, 10.0, 11.0, 10.0], actor=[2.6, 3.2, 3.0, 3.4], actor_load=[2.0, 2.0, 2.0, 2.0])
        compared = compare(before, after, a, b)
        actor = change(compared, "actor")
        assert (actor.noise_processes, actor.noise_steps, actor.steps) == (None, actor.noise, 8)
        assert not actor.significant
        assert change(compared, "actor: load").significant
        assert [finding.text for finding in compared.findings] == [
            "the step took 10% longer: 10 s before, 11 s now; but steps that were not recorded took 10 s before and 10 s now (medians); the noise is 2.6 s, from step to step (8 steps): within noise",
            "actor: load took 100% longer: 1.0 s before, 2.0 s now; the noise is 26 ms, from step to step (8 steps)",
        ]

    def test_a_straggler_that_was_removed_is_no_noise(self):
        """Rank 0 loaded its data for 1.87 s in each step of A, the others for 7 ms, as all do in B."""
        before = report(regions=[time_of("data", 1.87, 0.0070, 0.0075)])
        after = report(8.2, regions=[time_of("data", 0.00765, 0.0070, 0.0075)])
        a = others(step=[10.0, 10.1, 9.9, 10.0], actor_data=[1.87, 1.88, 1.86, 1.87])
        b = others(step=[8.2, 8.3, 8.1, 8.2], actor_data=[0.0075, 0.0076, 0.0077, 0.0075])
        found = change(compare(before, after, a, b), "actor: data")
        assert (found.a, found.b, found.significant) == (1.87, 0.00765, True)
        assert not change(compare(before, after), "actor: data").significant
        assert change(compare(before, after), "actor: data").noise is None

    def test_the_slowest_process_is_compared_with_the_slowest(self):
        """The same work is distributed otherwise over the ranks: nothing became slower."""
        compared = compare(
            report(regions=[time_of("load", 1.0, 3.0)], ops=[op("mm", 1.0, 3.0)]),
            report(regions=[time_of("load", 3.0, 1.0)], ops=[op("mm", 3.0, 1.0)]),
        )
        assert {each.b - each.a for each in compared.changes} == {0.0}

    def test_clocks_that_were_never_compared(self):
        """In B the clocks of the hosts were not compared. The step and its parts are compared by the processes'
        own clocks.
        """
        rows = [time_of("load", 1.0), time_of("load", 1.0)]
        rows[1] = msgspec.structs.replace(rows[1], clock="other", per_process=[ProcessTime("rank 1", 1.0)])
        islands = [Island(["h"], 0, 3.0), Island(["other"], 0, 2.0, "other")]
        before = report(10.0, regions=[time_of("load", 1.0, 1.0)], islands=[Island(["h", "other"], 0, 10.0)])
        after = report(3.0, step=3, regions=rows, islands=islands)
        a, b = others(step=[10.0] * 4), others(step=[10.0] * 4)
        compared = compare(before, after, a, b)
        assert compared.findings[0].text == ("the step in its slowest process took 10 s, as long as before")
        assert (change(compared, "actor: load").a, change(compared, "actor: load").b) == (1.0, 1.0)
        assert "clocks of hosts were never compared" in compared.problems[0].problem
        assert [each.topic for each in compare(before, after).changes] == ["region"]

    def test_the_error_of_the_clocks_is_noise_of_the_step(self):
        """Two clocks were compared to within 2 s: the step may be as long as before."""
        a, b = report(clock_error_ns=0), report(11.5, step=3, clock_error_ns=2 * 10**9)
        run = others(step=[10.0] * 4)
        assert change(compare(a, b, run, run), "step").noise == 2.0
        assert not change(compare(a, b, run, run), "step").significant

    def test_the_time_until_the_next_step_is_compared(self):
        """The windows are as long as before, and the next step begins a second later."""
        costs = [RecordingCost(seconds, [1, 3], 10.0, 10.0, 10.0) for seconds in (10.0, 11.0)]
        run = others(step=[10.0] * 5)
        run.lengths = {(step, 0): 10.0 for step in range(1, 5)}
        compared = compare(report(recording=costs[0]), report(step=3, recording=costs[1]), run, run)
        assert [finding.text for finding in compared.findings] == [
            "the step took 10 s, as long as before",
            "the step until the next one begins took 10% longer: 10 s before, 11 s now; the noise is 0 us, from step to step (4 steps)",
        ]

    def test_operators_are_compared_in_the_ranks_of_both(self):
        """Report A has one rank and B has four, of which another one is slower."""
        compared = compare(
            report(ops=[op("mm", 1.0)], processes=[rank(0)]),
            report(ops=[op("mm", 1.0, 1.1, 0.9, 1.0)], processes=[rank(number) for number in range(4)]),
        )
        assert (change(compared, "mm").a, change(compared, "mm").b) == (1.0, 1.0)

    @pytest.mark.parametrize(
        ("after", "steps", "noise", "text"),
        [
            (1.005, 0.1, 0.015, None),
            (1.5, 0.1, 0.337, "the noise is 337 ms, by which whole steps differ"),
            (1.2, 0.1, None, "the noise is unknown: 15 ms between processes, and between steps perhaps more"),
            (
                1.2,
                None,
                None,
                "the noise is unknown: 15 ms between processes, and between steps perhaps more",
            ),
        ],
    )
    def test_an_operator_is_judged_by_processes_and_by_steps(self, after, steps, noise, text):
        """Three ranks do equal work to within 5 ms, and the steps differ by more than that."""
        sides = [[seconds - 0.005, seconds, seconds - 0.0025] for seconds in (1.0, after)]
        run = None if steps is None else others(step=[10 + steps, 10 - steps] * 5)
        compared = compare(report(ops=[op("mm", *sides[0])]), report(ops=[op("mm", *sides[1])]), run, run)
        found = change(compared, "mm")
        assert found.noise == (None if noise is None else pytest.approx(noise, abs=0.001))
        assert found.significant == (text is not None and noise is not None)
        assert [each.text.partition("now; ")[2] for each in compared.findings[1:]] == ([text] if text else [])

    def test_more_calls_are_said(self):
        """A region and an operator took longer because there were more calls."""
        before, after = ProcessTime("rank 0", 1.0, calls=2), ProcessTime("rank 0", 2.0, calls=4)
        compared = compare(
            report(regions=[TimeOf("actor", "load", 1.0, 0.1, [before])]),
            report(regions=[TimeOf("actor", "load", 2.0, 0.1, [after])]),
        )
        assert "1.0 s before, 2.0 s now; 2 calls before, 4 now; the noise" in compared.findings[1].text

    def test_rollouts_and_their_tails(self):
        row = Rollout("rollout/0", 10, 4.0, 8, 4, 0.5, 1.0, [])
        other = msgspec.structs.replace(row, label="rollout/1", seconds=4.1, tail=1.02)
        slower = msgspec.structs.replace(row, seconds=8.0, tail=3.0)
        third = msgspec.structs.replace(row, label="rollout/2", seconds=4.05, tail=1.01)
        run = others(step=[10.0] * 4)
        compared = compare(
            report(rollout=[row, other, third]), report(rollout=[slower, other, third]), run, run
        )
        assert change(compared, "rollout/0").significant
        assert change(compared, "rollout/0: tail").b == 3.0
        assert not change(compared, "rollout/1").significant

    def test_rollouts_of_another_number_of_engines_are_not_compared(self):
        """B has half as many engines: each has twice the work. All of them together are compared."""
        rows = [Rollout(f"rollout/{n}", 10, 4.0, 8, 4, 0.5, 1.0, []) for n in range(4)]
        whole = Rollout("all engines", 40, 4.0, 32, 4, 0.5, 1.0, [])
        longer = [msgspec.structs.replace(row, seconds=8.0) for row in rows[:2]]
        compared = compare(report(rollout=[*rows, whole]), report(rollout=[*longer, whole]))
        assert [each.what for each in compared.changes if each.topic == "rollout"] == [
            "all engines",
            "all engines: tail",
        ]
        assert "the work is divided among another number" in compared.problems[0].problem

    def test_a_rollout_that_was_not_recorded_to_its_end_is_not_compared(self):
        """B's capture ended after some forward steps: its rollout looks shorter."""
        row = Rollout("rollout/0", 10, 4.0, 8, 4, 0.5, 1.0, [])
        short = msgspec.structs.replace(row, seconds=0.4, whole=False)
        compared = compare(report(rollout=[row]), report(rollout=[short]))
        assert [each.topic for each in compared.changes] == ["step"]
        assert "its capture is not whole" in compared.problems[0].problem

    def test_a_rollout_with_more_tokens_says_so(self):
        row = Rollout("rollout/0", 10, 4.0, 8, 4, 0.5, 1.0, [])
        longer = msgspec.structs.replace(row, seconds=8.0)
        works = [EngineWork("rollout/0", 4.0, "generation", generated_tokens=n) for n in (100, 200)]
        compared = compare(
            report(rollout=[row], engines=works[:1]), report(rollout=[longer], engines=works[1:])
        )
        assert "; 100 generated tokens before, 200 now; " in compared.findings[1].text

    def test_samples_have_the_noise_of_other_processes_samples(self):
        rows = [Rollout(f"samples of rank {n}", 0, 4.0 + n, 8, 4, 0.5, 1.0, []) for n in range(2)]
        whole = Rollout("all samples", 0, 50.0, 8, 4, 0.5, 1.0, [])
        engine = Rollout("rollout/0", 5, 90.0, 8, 4, 0.5, 1.0, [])
        compared = compare(report(rollout=[*rows, whole, engine]), report(rollout=[*rows, whole, engine]))
        assert change(compared, "samples of rank 0").noise == pytest.approx(12.71 * 2**0.5 * 0.5 * 2**0.5)
        assert change(compared, "rollout/0").noise is None

    def test_a_shorter_step_is_reported(self):
        compared = compare(
            report(10.0, kernels=[op("gemm", 2.0, 2.0, kind="kernel")]),
            report(7.5, kernels=[op("gemm", 1.0, 1.0, kind="kernel")]),
        )
        assert [finding.text for finding in compared.findings] == [
            "the step took 25% shorter: 10 s before, 7.5 s now; the noise is unknown: fewer than 3 other steps are known",
            "gemm took 50% shorter: 2.0 s before, 1.0 s now; the noise is unknown: 0 us between processes, and between steps perhaps more",
        ]

    def test_a_step_with_nothing_in_it(self):
        compared = compare(report(0.0), report(1.0))
        assert compared.findings[0].text.startswith("the step took longer: 0 us before, 1.0 s now; ")


class TestProblems:
    def test_parts_of_only_one_report_are_problems(self):
        compared = compare(
            report(regions=[time_of("old", 2.0), time_of("tiny", 0.01, share=0.001)]),
            report(step=3, regions=[time_of("new", 3.0)]),
        )
        assert compared.problems == [
            Problem("r step 2", "actor: old took 2.0 s and does not occur in r step 3"),
            Problem("r step 3", "actor: new took 3.0 s and does not occur in r step 2"),
        ]

    def test_different_numbers_of_processes_and_reports_with_problems(self):
        compared = compare(
            report(roles=[time_of(None, 1.0)]),
            report(step=3, roles=[time_of(None, 1.0, 1.0)], problems=[Problem("x", "breaks off")]),
        )
        assert compared.problems == [
            Problem(None, "actor: processes: 1 in A, 2 in B"),
            Problem("r step 3", "its report has 1 note: it may be incomplete"),
        ]


class TestMissing:
    """Processes that one step lacks are no part of the comparison."""

    def test_the_step_is_compared_in_the_ranks_of_both(self):
        """B lacks the slow rank: its step looks shorter, and rank 0 took as long as before."""
        a, b = others(step=[10.0] * 4), others(step=[10.0] * 4)
        slow = {visit: (start, start + 2 * 10**10) for visit, (start, _) in a.processes[0].windows.items()}
        a.processes.append(ProcessSteps(1, slow, {*slow}))
        compared = compare(
            report(20.0, processes=[rank(0), rank(1)]), report(10.0, processes=[rank(0)]), a, b
        )
        assert compared.findings[0].text == "the step in its slowest process took 10 s, as long as before"
        assert compared.problems[0].problem == "B has no rank 1: what these did is not compared"
        assert "the step as a whole is not compared" in compared.problems[1].problem

    def test_without_spans_the_step_is_not_compared(self):
        """B's only capture ended before its window, and it has no spans: how long its step took is not known."""
        before, after = report(processes=[rank(0)]), report(1.0, processes=[rank(0, whole=False)])
        assert compare(before, after).findings == []

    def test_a_rank_with_spans_in_one_step_alone(self):
        """Without spans, the regions of B's rank 1 are those of its trace, which has no roles. The slowest rank
        of the others is compared with itself.
        """
        before = [time_of("load", 1.0, 3.0)]
        after = [time_of("load", 1.0), TimeOf(None, "load", 3.0, 0.3, [ProcessTime("rank 1", 3.0)])]
        found = compare(
            report(regions=before, processes=[rank(0, spans=True), rank(1, spans=True)]),
            report(step=3, regions=after, processes=[rank(0, spans=True), rank(1)]),
        )
        assert (change(found, "actor: load").a, change(found, "actor: load").b) == (1.0, 1.0)
        assert [each.problem for each in found.problems] == [
            "roles and regions of rank 1 are not compared: A or B alone has its spans",
        ]

    def test_what_is_missing_does_not_count_as_absent(self):
        """The spans of rank 1, which alone evaluates, are missing in B."""
        evaluation = [TimeOf("eval", "score", 2.0, 0.2, [ProcessTime("rank 1", 2.0)])]
        found = compare(
            report(regions=evaluation, processes=[rank(0), rank(1)]), report(step=3, processes=[rank(0)])
        )
        assert [each.problem for each in found.problems] == [
            "B has no rank 1: what these did is not compared",
            "a process or a part of it is missing: the step as a whole is not compared, but the slowest rank by its spans",
        ]


class TestWarmUp:
    def test_the_first_step_of_a_process_is_named(self):
        """B is the first step of its run, and A is not."""
        run = others(actor=[1.0] * 4)
        first = msgspec.structs.replace(report(), step=0)
        problem = "it is the first step of its process, which takes longer"
        assert compare(report(), first, run, run).problems == [Problem("r step 0", problem)]
        assert compare(first, first, run, run).problems == []


class TestOtherSteps:
    def test_other_steps_that_do_not_change_are_said(self):
        """The recorded step of B is longer, but its other steps are as long as those of A."""
        before, after = report(roles=[time_of(None, 3.0)]), report(roles=[time_of(None, 5.0)])
        runs = [others(step=[10.0] * 4, actor=[3.0, 3.1, 2.9, 3.0]) for _ in range(2)]
        texts = [each.text for each in compare(before, after, *runs).findings]
        assert "; but steps that were not recorded took 3.0 s before and 3.0 s now (medians)" in texts[1]
        same = [each.text for each in compare(before, after, runs[0], runs[0]).findings]
        assert "not recorded" not in same[1]
        runs[1].parts["actor", None] = {(step, 0): 5.0 for step in range(1, 5)}
        texts = [each.text for each in compare(before, after, *runs).findings]
        assert "not recorded" not in texts[1]


class TestCaptures:
    """Operators are compared only where the captures of both steps cover the same windows."""

    BEFORE, AFTER = [op("gemm", 1.0)], [op("gemm", 10.0)]

    def compared(self, a, b):
        return compare(report(ops=self.BEFORE, processes=a), report(step=3, ops=self.AFTER, processes=b))

    @pytest.mark.parametrize("side", ["A", "B"])
    def test_a_capture_that_ended_before_its_window_is_not_compared(self, side):
        """The capture of one step was capped: "gemm took 900 % longer" would be false."""
        processes = [[rank(0)], [rank(0)]]
        processes["AB".index(side)] = [rank(0, whole=False)]
        found = self.compared(*processes)
        assert found.changes == []
        assert found.problems[:1] == [
            Problem(
                None,
                f"operators and kernels are not compared: rank 0: its capture does not cover its window in {side}",
            )
        ]

    def test_captures_of_other_windows_are_not_compared(self):
        """A recorded the actor alone, and B all roles."""
        found = self.compared([rank(0)], [rank(0, captures=["actor", "ref"])])
        assert [each.topic for each in found.changes] == ["step"]
        assert "A recorded actor, and B actor, ref" in found.problems[0].problem

    @pytest.mark.parametrize(
        ("before", "after", "reason"),
        [
            (
                ['backend = "torch"'],
                ['backend = "torch"', "torch.with_stack = true"],
                "B was recorded with torch.with_stack = true, and A without",
            ),
            (
                ['backend = "torch"', 'torch.activities = ["cpu"]'],
                ['backend = "npu"'],
                'A was recorded with backend = "torch", torch.activities = ["cpu"], and B with backend = "npu"',
            ),
        ],
    )
    def test_captures_with_other_options_are_not_compared(self, before, after, reason):
        """The profiler of one side recorded more, or other things: a longer operator is not the job's."""
        found = self.compared([rank(0, options=before)], [rank(0, options=after)])
        assert [each.topic for each in found.changes] == ["step"]
        assert found.problems[0].problem == (
            f"operators and kernels are not compared: rank 0: {reason}, which can also change how long the step takes"
        )

    @pytest.mark.parametrize("options", [None, ["torch.with_stack = true"]])
    def test_captures_with_the_same_options_or_unknown_ones(self, options):
        """Manifests of older versions do not state the options: the captures are compared as before."""
        found = self.compared([rank(0, options=options)], [rank(0, options=["torch.with_stack = true"])])
        assert "op" in [each.topic for each in found.changes]

    def test_the_same_rank_may_have_another_label(self):
        """In B rank 0 has a second role, without a capture in it: its label has no role."""
        before, after = ProcessTime("actor rank 0", 1.0), ProcessTime("rank 0", 1.5)
        found = compare(
            report(ops=[Op("gemm", "op", 1, 1.0, 1.0, 1.0, [before])], processes=[rank(0, "actor")]),
            report(ops=[Op("gemm", "op", 1, 1.5, 1.5, 1.0, [after])], processes=[rank(0)]),
        )
        assert (change(found, "gemm").a, change(found, "gemm").b) == (1.0, 1.5)

    def test_only_the_ranks_of_both_are_compared(self):
        """A recorded rank 0, and B recorded rank 1, which had more work."""
        after = [Op("gemm", "op", 1, 10.0, 10.0, 1.0, [ProcessTime("rank 1", 10.0)])]
        found = compare(
            report(ops=self.BEFORE, processes=[rank(0)]), report(step=3, ops=after, processes=[rank(1)])
        )
        assert found.changes == []
        assert [each.problem for each in found.problems] == [
            "A has no rank 1: what these did is not compared",
            "B has no rank 0: what these did is not compared",
            "a process or a part of it is missing: the step as a whole is not compared, but the slowest rank by its spans",
        ]

    def test_regions_of_a_capture_that_is_not_whole_are_not_compared(self):
        """Without spans, the regions are those of the capture, which ended early in B."""
        before, after = [time_of("load", 1.0)], [time_of("load", 0.1)]
        found = compare(
            report(regions=before, processes=[rank(0)]),
            report(step=3, regions=after, processes=[rank(0, whole=False)]),
        )
        assert found.changes == []
        spans = [rank(0, spans=True)], [rank(0, whole=False, spans=True)]
        found = compare(
            report(regions=before, processes=spans[0]), report(step=3, regions=after, processes=spans[1])
        )
        assert [each.topic for each in found.changes] == ["region", "step"]

    def test_traces_of_another_profiler(self):
        """Two files are compared, and it is said that nobody knows whether they are the same work."""
        traces = [RecordedProcess(f"{name}.json", "trace", None, captures=["trace"]) for name in "ab"]
        ops = [
            [Op("gemm", "op", 9, n, n, 1.0, [ProcessTime(f"{name}.json", n, 9 * n)])]
            for name, n in (("a", 1), ("b", 10))
        ]
        found = compare(report(ops=ops[0], processes=traces[:1]), report(ops=ops[1], processes=traces[1:]))
        assert (
            "1.0 s before, 10 s now; 9 calls before, 90 now; the noise is unknown" in found.findings[1].text
        )
        assert "whether both sides did the same work is not known" in found.problems[0].problem


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_process_that_did_not_finish(side):
    """An exception, or SIGTERM, ended a window of rank 0 after 2 s of 10. The step is not shorter, nor is a region or an operator."""
    whole = report(regions=[time_of("a", 1.0)], ops=[op("mm", 1.0)], processes=[rank(0, spans=True)])
    early = report(
        2.0, step=3, regions=[time_of("a", 0.2)], ops=[op("mm", 0.2)], processes=[rank(0, spans=True, ended=False)]
    )  # fmt: skip
    compared = compare(*((early, whole) if side == "A" else (whole, early)))
    assert compared.changes == compared.findings == []
    (problem, *_) = compared.problems
    assert (
        problem.problem
        == f"rank 0 is not compared: the end of a window came early, or is not known, in {side}"
    )

"""Whether B is a regression of A: planted ones are found, noise is none, and what cannot be compared is not judged."""

from __future__ import annotations

import random

import pytest

from stepprof.analysis.report.gate import gate_runs, gate_steps
from stepprof.analysis.report.schema import MarkedLength
from stepprof.analysis.report.step_times import ProcessSteps, RunSteps, marked_run

LIMIT = 0.05
SECOND = 10**9


def process(rank, seconds, *, pause=0.0, first=1, ahead=0):
    """Return the steps of a process: a window in each, then a pause. A first and a last step are added, which
    are not compared.
    """
    windows, at = {}, ahead * SECOND
    for step, each in enumerate([9.0, *seconds, *(seconds[-1:] or [1.0])], first - 1):
        end = at + int(each * SECOND)
        windows[step, 0] = (at, end)
        at = end + int(pause * SECOND)
    return ProcessSteps(rank, windows, {*windows})


def run_of(*seconds, world_size=None, pause=0.0, first=1):
    """Return the steps of a run with one rank for each list of seconds."""
    ranks = [process(rank, each, pause=pause, first=first) for rank, each in enumerate(seconds)]
    return RunSteps(ranks, world_size)


def judged(a, b, limit=LIMIT):
    return gate_runs(run_of(a), run_of(b), limit)


def drawn(rng, steps, mean, noise):
    return [rng.gauss(mean, noise * mean) for _ in range(steps)]


class TestTwoRuns:
    @pytest.mark.parametrize("noise", [0.005, 0.02, 0.05, 0.2])
    def test_pure_noise_is_not_a_regression(self, noise):
        """Of 400 pairs of equal runs, fewer than 2.5 % are called a regression, at any level of noise."""
        rng = random.Random(7)
        verdicts = [
            judged(drawn(rng, 20, 1.0, noise), drawn(rng, 20, 1.0, noise)).verdict for _ in range(400)
        ]
        assert verdicts.count("regression") <= 10
        if noise <= 0.02:
            assert verdicts.count("none") >= 390

    @pytest.mark.parametrize(("planted", "noise"), [(1.08, 0.005), (1.10, 0.02), (1.3, 0.05), (2.0, 0.2)])
    def test_planted_regressions_are_found(self, planted, noise):
        """At least 95 of 100 pairs with a planted regression are found, and none gets the verdict `none`."""
        rng = random.Random(11)
        verdicts = [
            judged(drawn(rng, 20, 1.0, noise), drawn(rng, 20, planted, noise)).verdict for _ in range(100)
        ]
        assert verdicts.count("regression") >= 95
        assert "none" not in verdicts

    def test_a_change_below_the_limit_is_not_a_regression(self):
        """The change exceeds the noise, but not the limit."""
        rng = random.Random(3)
        found = judged(drawn(rng, 40, 1.0, 0.005), drawn(rng, 40, 1.03, 0.005))
        assert found.verdict == "none"
        assert found.text.startswith("no regression above 5%: 999 ms before, 1.03 s now (+3.0%, noise 0.3%; ")

    def test_noise_that_hides_the_limit_cannot_be_judged(self):
        rng = random.Random(5)
        found = judged(drawn(rng, 8, 1.0, 0.3), drawn(rng, 8, 1.0, 0.3))
        assert found.verdict == "unknown"
        assert found.text.startswith("cannot be judged: the noise hides a change of 5%: ")
        assert found.noise > LIMIT

    def test_an_improvement_is_not_a_regression(self):
        """The noise is above the limit, but too small to hide a regression."""
        rng = random.Random(5)
        assert judged(drawn(rng, 20, 2.0, 0.2), drawn(rng, 20, 1.0, 0.2)).verdict == "none"

    def test_occasional_checkpoints_do_not_add_noise(self):
        """In both runs a tenth of the steps take three times as long. The deviation is 60 %, but
        the medians agree.
        """
        rng = random.Random(2)

        def with_checkpoints(mean):
            return [
                each * (3 if step % 10 == 0 else 1) for step, each in enumerate(drawn(rng, 40, mean, 0.01))
            ]

        assert judged(with_checkpoints(1.0), with_checkpoints(1.0)).verdict == "none"
        assert judged(with_checkpoints(1.0), with_checkpoints(1.1)).verdict == "regression"

    @pytest.mark.parametrize(
        ("a", "b", "text"),
        [
            (20, 2, "run B has the spans of 3 steps that can be compared and needs 6"),
            (4, 20, "run A has the spans of 5 steps that can be compared and needs 6"),
        ],
    )
    def test_too_few_steps(self, a, b, text):
        found = judged([1.0] * a, [2.0] * b)
        assert (found.verdict, found.a, found.noise) == ("unknown", None, None)
        assert text in found.text

    def test_too_few_marked_steps(self):
        """All of them were recorded, and none is the first one of its process."""
        few, many = (marked_run([MarkedLength(step, 1.0) for step in range(count)]) for count in (5, 8))
        assert gate_runs(few, many, LIMIT).text == (
            "cannot be judged: torch's profiler marked 5 steps in A, and 6 are needed"
        )
        assert gate_runs(many, many, LIMIT).verdict == "none"

    def test_windows_are_judged_where_few_steps_show_the_time_until_the_next(self):
        """Of six steps, the last one has no next step: the windows are judged, and the text says so."""
        for after, verdict in ((1.0, "none"), (1.3, "regression")):
            found = judged([1.0] * 5, [after] * 5)
            assert found.verdict == verdict
            assert "the time until the next step is known in 5 steps, too few to judge it" in found.text
        longer = gate_runs(run_of([1.0] * 5), run_of([1.0] * 5, pause=1.0), LIMIT)
        moved = gate_runs(run_of([1.0] * 5, pause=1.0), run_of([2.0] * 5), LIMIT)
        assert (longer.verdict, moved.verdict) == ("unknown", "unknown")
        assert "they contradict 1.00 s before and 2.00 s now from begin to begin" in longer.text

    def test_steps_without_duration(self):
        assert judged([0.0] * 8, [1.0] * 8).verdict == "unknown"

    def test_time_between_windows_counts(self):
        """A second of data loading between the steps is a regression, though the windows are as long as before."""
        found = gate_runs(run_of([1.0] * 10), run_of([1.0] * 10, pause=1.0), LIMIT)
        assert found.verdict == "regression"
        assert "1.00 s before, 2.00 s now" in found.text
        assert "from begin to begin" in found.text

    def test_time_that_moves_into_the_windows_is_no_regression(self):
        """The data are loaded inside of the window now: the windows are longer, and the run is not slower."""
        assert gate_runs(run_of([1.0] * 10, pause=1.0), run_of([2.0] * 10), LIMIT).verdict == "none"

    def test_windows_are_judged_where_they_are_a_small_part(self):
        """A loop that begins a step every minute: the steps became twice as long."""
        before = run_of([1.0] * 10, pause=59.0)
        found = gate_runs(before, run_of([2.0] * 10, pause=58.0), LIMIT)
        assert found.verdict == "regression"
        assert "1.00 s before, 2.00 s now" in found.text
        assert "from the first window to the last" in found.text
        assert gate_runs(before, before, LIMIT).verdict == "none"

    def test_windows_of_other_roles_are_not_judged(self):
        """Without windows of the rollout, which takes as long as before, the windows of B are shorter. The time from begin to
        begin shows whether B is slower, where windows cover most of it in one of the runs.
        """
        for pause, after, verdict in ((0.0, 0.5, "none"), (0.0, 0.7, "regression"), (59.0, 59.5, "unknown")):
            before, now = run_of([1.0] * 10, pause=pause), run_of([0.5] * 10, pause=after)
            before.parts["rollout", None] = dict.fromkeys(before.windows, 0.5)
            found = gate_runs(before, now, LIMIT)
            assert found.verdict == verdict
        assert (
            found.text == "cannot be judged: run A alone has windows of rollout in half of the steps or more"
        )
        few = [run_of([each] * 5) for each in (1.0, 0.5)]
        few[0].parts["rollout", None] = dict.fromkeys(few[0].windows, 0.5)
        assert gate_runs(*few, LIMIT).text.startswith(
            "cannot be judged: run A alone has windows of rollout in half of the steps or more; "
        )

    def test_a_role_of_few_steps_changes_no_median(self):
        """B has an evaluation in one of 20 steps."""
        for length, verdict in ((1.0, "none"), (1.5, "regression")):
            before, now = run_of([1.0] * 20, pause=3.0), run_of([length] * 20, pause=3.0)
            now.parts["eval", None] = {sorted(now.windows)[8]: 0.05}
            assert gate_runs(before, now, LIMIT).verdict == verdict

    def test_only_steps_of_both_runs_are_compared(self):
        """The steps of A become longer with time, and B ended early: its steps are as long as those of A."""
        found = judged([1.0] * 8 + [3.0] * 20, [1.0] * 8)
        assert found.verdict == "none"
        assert found.text.endswith("; run A alone has finished steps 10-29")
        assert "alone has finished" not in judged([1.0] * 8, [1.0] * 8 + [3.0] * 20).text

    def test_a_run_whose_last_step_was_not_finished(self):
        """SIGTERM ended B in its ninth step: that is in no median, and the text says so."""
        before, after = run_of([1.0] * 8), run_of([1.0] * 8)
        after.processes[0].cut.add((8, 0))
        found = gate_runs(before, after, LIMIT)
        assert found.verdict == "none"
        assert found.text.endswith("; run A alone has finished step 8")

    def test_runs_of_other_steps_are_not_judged(self):
        found = gate_runs(run_of([1.0] * 8), run_of([3.0] * 8, first=100), LIMIT)
        assert found.verdict == "unknown"
        assert "0 steps that can be compared are in both runs" in found.text
        assert "A has steps 1-9, B has steps 100-108" in found.text


class TestProcesses:
    def test_the_slowest_rank_counts(self):
        """Ranks that do not meet: one of them became slower."""
        equal, slow = [1.0] * 8, [1.2] * 8
        assert gate_runs(run_of(equal, equal), run_of(equal, slow), LIMIT).verdict == "regression"
        assert gate_runs(run_of(slow, equal), run_of(equal, slow), LIMIT).verdict == "none"

    def test_a_rank_without_spans_is_not_judged(self):
        found = gate_runs(run_of([1.0] * 8, [1.0] * 8), run_of([1.0] * 8), LIMIT)
        assert found.verdict == "unknown"
        assert found.text == "cannot be judged: run B has no spans of rank 1 in step 1, which run A has"

    def test_another_number_of_ranks_is_not_judged(self):
        """A had two ranks, and B has four: a step is not the same work."""
        two, four = run_of(*[[1.0] * 8] * 2, world_size=2), run_of(*[[1.0] * 8] * 4, world_size=4)
        assert "run A has no spans of ranks 2-3 in step 1" in gate_runs(two, four, LIMIT).text
        assert "run B has no spans of ranks 2-3 in step 1" in gate_runs(four, two, LIMIT).text

    def test_ranks_that_both_lack_are_not_judged(self):
        """The world has four ranks, and both runs have the spans of two."""
        two = run_of(*[[1.0] * 8] * 2, world_size=4)
        assert gate_runs(two, two, LIMIT).text == "cannot be judged: run A has the spans of 2 of its 4 ranks"

    def test_a_rank_that_lacks_one_step_is_not_judged(self):
        """Rank 1 was killed in B, or its spans of a step were lost."""
        a, b = run_of([1.0] * 8, [1.0] * 8), run_of([1.0] * 8, [1.0] * 8)
        b.processes[1].seen.discard((5, 0))
        assert "run B has no spans of rank 1 in step 5" in gate_runs(a, b, LIMIT).text

    def test_a_rank_that_lacks_the_same_steps_in_both_is_judged(self):
        """Rank 1 evaluates in every other step only, in both runs."""
        a, b = run_of([1.0] * 8, [1.0] * 8), run_of([2.0] * 8, [1.0] * 8)
        for of in (a, b):
            of.processes[1].seen -= {(2, 0), (4, 0), (6, 0), (8, 0)}
        assert gate_runs(a, b, LIMIT).verdict == "regression"

    def test_a_driver_is_no_rank(self):
        """The driver drives two ranks, whose spans are there."""
        run = run_of([1.0] * 8, [1.0] * 8, world_size=2)
        run.processes.insert(0, process("driver", [1.0] * 8))
        assert gate_runs(run, run, LIMIT).verdict == "none"
        alone = RunSteps([process("driver", [1.0] * 8)], 2)
        assert "run A has the spans of 0 of its 2 ranks" in gate_runs(alone, alone, LIMIT).text


class TestTwoSteps:
    """Two steps of one run are compared. The noise is that of two single steps."""

    A, B = (20, 0), (21, 0)

    def run(self, times, others):
        found = run_of([*others])
        for visit, seconds in zip((self.A, self.B), times, strict=True):
            found.processes[0].windows[visit] = (0, int(seconds * SECOND))
            found.processes[0].seen.add(visit)
        found.recorded |= {20, 21, len(others) + 1}
        return found

    @pytest.mark.parametrize(
        ("times", "deviation", "verdict"),
        [
            ((10.0, 10.1), 0.1, "none"),
            ((10.0, 11.0), 0.1, "regression"),
            ((10.0, 11.0), 0.6, "unknown"),
            ((10.0, 11.5), 0.6, "unknown"),
            ((10.0, 13.0), 0.6, "regression"),
            ((10.0, 5.0), 0.6, "none"),
            ((10.0, 10.4), 0.1, "none"),
            ((10.0, 10.4), 0.2, "unknown"),
        ],
    )
    def test_verdicts(self, times, deviation, verdict):
        """The other steps alternate by a deviation. Two steps may differ by 3.2 deviations by chance."""
        others = [10.0 + deviation * (1 if step % 2 else -1) for step in range(9)]
        found = gate_steps(self.run(times, others), self.A, self.B, LIMIT)
        assert (found.verdict, found.a, found.b) == (verdict, *times)
        assert "two steps of one run, noise from 9 other steps" in found.text
        assert "the time until the next step does not count" in found.text

    def test_equal_steps_are_no_regression(self):
        """Of 400 pairs of equal steps, about 2.5 % are called a regression, with few other steps too."""
        rng = random.Random(5)
        verdicts = [
            gate_steps(
                self.run(drawn(rng, 2, 10.0, 0.05), drawn(rng, 4, 10.0, 0.05)), self.A, self.B, 0.01
            ).verdict
            for _ in range(400)
        ]
        assert verdicts.count("regression") <= 16

    def test_without_other_steps(self):
        found = gate_steps(self.run((1.0, 9.0), []), self.A, self.B, LIMIT)
        assert found.verdict == "unknown"
        assert "fewer than 3 other steps" in found.text

    def test_a_step_without_spans(self):
        found = gate_steps(self.run((1.0, 9.0), [1.0] * 8), self.A, None, LIMIT)
        assert found.text == "cannot be judged: step B has no windows in the spans"

    def test_a_rank_without_spans_in_one_of_them(self):
        run = self.run((1.0, 1.0), [1.0] * 8)
        run.processes.append(ProcessSteps(1, {self.A: (0, SECOND)}, {self.A}))
        assert "step 21 has no spans of rank 1" in gate_steps(run, self.A, self.B, LIMIT).text

    def test_the_first_step_of_a_process(self):
        """It compiles and allocates: that it is longer is no regression."""
        run = self.run((1.0, 1.0), [1.0] * 8)
        found = gate_steps(run, self.A, (0, 0), LIMIT)
        assert "step B is the first one of its process" in found.text

    def test_a_step_with_more_roles(self):
        """Step B alone evaluates. The noise is that of the steps without an evaluation."""
        run = self.run((1.0, 2.0), [1.0] * 4 + [2.0] * 4)
        run.parts["eval", None] = {(step, 0): 1.0 for step in (5, 6, 7, 8, 21)}
        found = gate_steps(run, self.A, self.B, LIMIT)
        assert found.text == "cannot be judged: step B alone has windows of eval: it is more work"
        del run.parts["eval", None][self.B]
        assert gate_steps(run, self.A, self.B, LIMIT).verdict == "regression"

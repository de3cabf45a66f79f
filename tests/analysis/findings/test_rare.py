"""Work that most neighbouring steps do not have. Times are in milliseconds."""

from __future__ import annotations

import pytest
from digested import MS, T0, spans
from spanning import write_steps

from stepprof.analysis.findings.neighbours import Neighbours
from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest
from stepprof.run.evidence import CaptureUse, Evidence, Frame, StackStretch

STEP = 5
WINDOW = ("window", "step", 0, 100, None)
UPDATE = ("region", "update", 0, 50, None)
PROBE = ("region", "probe", 50, 50, None)


def usual(at):
    """Return the spans of a step that does nothing but its update."""
    return [("window", "step", 0, 50, None), UPDATE]


def found(run, own, others=usual, steps=range(1, 10)):
    """Return the findings about work that is rare.

    Args:
        run: a folder.
        own: the spans of the recorded step.
        others: returns those of another step, by its number.
        steps: the numbers of all steps.
    """
    write_steps(run, {at: own if at == STEP else others(at) for at in steps})
    report = combine(
        [digest(spans(0, *own))], step=STEP, run_id="r", neighbours=Neighbours([run], STEP), runs=[run]
    )
    return [each for each in report.findings if each.topic == "rare"]


class TestRareWork:
    def test_a_region_of_one_step_in_three(self, tmp_path):
        """Two of eight neighbouring steps have `probe` too. The finding includes the regions inside it."""
        own = [WINDOW, UPDATE, PROBE, ("region", "update", 60, 20, None)]
        (rare,) = found(tmp_path, own, lambda at: [WINDOW, UPDATE, PROBE] if at in {3, 8} else usual(at))
        assert rare.text == "rank 0 spent 50 ms in `probe`, which 6 of the 8 steps around it do not have"
        assert rare.why == "steps 3, 8 have it too"
        assert (rare.process, rare.region, rare.saves) == ("rank 0", "probe", 0.05)

    def test_a_period(self, tmp_path):
        """Steps 5, 12, 19, … have `probe`: the sentence names the period, which the nearest steps do not show."""
        own = [WINDOW, UPDATE, PROBE]
        (rare,) = found(tmp_path, own, lambda at: own if at % 7 == 5 else usual(at), range(1, 30))
        assert rare.text == "rank 0 spent 50 ms in `probe`, which every 7th step has"

    @pytest.mark.parametrize("stride", [10, 1_000], ids=["tens", "thousands"])
    def test_a_loop_that_does_not_count_in_ones(self, tmp_path, stride):
        """The steps around are the nearest ones, whatever their numbers are."""
        own = [WINDOW, UPDATE, PROBE]
        (rare,) = found(tmp_path, own, usual, range(5 % stride, 20 * stride, stride))
        assert rare.text.endswith("in `probe`, which 4 of the 4 steps around it do not have")

    @pytest.mark.parametrize(
        ("having", "steps"), [((), (4, 5, 6)), ((1, 4, 7), range(1, 10))], ids=["few steps", "three of eight"]
    )
    def test_no_finding_without_comparable_steps(self, tmp_path, having, steps):
        own = [WINDOW, UPDATE, PROBE]
        assert found(tmp_path, own, lambda at: own if at in having else usual(at), steps) == []

    def test_no_finding_without_spans_of_other_steps(self):
        report = combine([digest(spans(0, WINDOW, UPDATE, PROBE))], step=STEP, run_id="r")
        assert [each for each in report.findings if each.topic == "rare"] == []


class TestCodeOfEveryStep:
    """Code that every step runs, although this step alone has its name: no finding."""

    def test_a_region_around_the_window_of_a_role(self, tmp_path):
        """TRL's `_prepare_inputs` is in no role, and contains the window of the rollout."""
        own = [
            ("window", "step", 0, 100, None),
            ("region", "prepare", 0, 90, None),
            ("window", "rollout", 5, 80, "rollout"),
        ]
        assert found(tmp_path, own, lambda at: own) == []

    @pytest.mark.parametrize("inside", ["training_step", None])
    def test_a_region_that_only_recorded_steps_have(self, tmp_path, inside):
        """Lightning's `run_training_batch` is around regions of every step, or around code without a name."""
        regions = [("region", inside, 5, 80, None)] if inside else []
        own = [("window", "step", 0, 100, None), ("region", "run_training_batch", 0, 90, None), *regions]
        assert found(tmp_path, own, lambda at: [own[0], *regions]) == []

    def test_a_recorded_step_that_is_slower(self, tmp_path):
        """The profiler makes the code three times as long: it is the same code."""
        own = [("window", "step", 0, 300, None), ("region", "run_training_batch", 0, 300, None)]
        assert found(tmp_path, own, lambda at: [("window", "step", 0, 100, None)]) == []

    @pytest.mark.parametrize(
        "name",
        ["rollout_{}", "step {}/100", "sample/{:032x}", "data/shard-{:05}.parquet", "epoch{}_batch"],
    )
    @pytest.mark.parametrize("in_coroutines", [False, True])
    def test_names_that_count(self, tmp_path, name, in_coroutines):
        """The number in a name is that of the step, of a sample or of a file."""

        def step(at):
            lane = (1, 7) if in_coroutines else ()
            return [WINDOW, UPDATE, ("region", name.format(at * 7), 50, 50, None, *lane)]

        own = [each[:5] for each in step(STEP)]
        assert found(tmp_path, own, step) == []

    def test_names_of_samples(self, tmp_path):
        """Each step has samples of its own names, and they take as long in each step."""

        def step(at):
            return [WINDOW, UPDATE, ("region", f"prompt {'abcdefghi'[at - 1]}", 50, 50, None)]

        assert found(tmp_path, step(STEP), step) == []

    def test_a_number_that_was_used_for_several_steps(self, tmp_path):
        """Each epoch counts from 1: which of the steps of one number are around this one is not known."""
        (tmp_path / "spans").mkdir()
        own = [WINDOW, UPDATE, PROBE]
        write_steps(tmp_path, {at: own if at == STEP else usual(at) for at in range(1, 10)})
        path = tmp_path / "spans" / "rank-0.000001.jsonl"
        again = path.read_text().replace('"start": ', '"start": 9').splitlines(keepends=True)[1:]
        path.write_text(path.read_text() + "".join(again))
        assert Neighbours([tmp_path], STEP).having(digest(spans(0, WINDOW)).origin, "probe") is None


class TestAdditionalWork:
    """Work that other steps do not have is found, whatever is inside or around it."""

    def test_a_common_region_inside(self, tmp_path):
        """The benchmark calls `generate`, as each rollout does."""
        generate = ("region", "generate", 0, 40, None)
        own = [
            ("window", "step", 0, 200, None),
            generate,
            ("region", "benchmark", 100, 100, None),
            ("region", "generate", 101, 98, None),
        ]
        (rare,) = found(tmp_path, own, lambda at: [("window", "step", 0, 100, None), generate])
        assert (rare.region, rare.seconds) == ("benchmark", 0.1)

    def test_the_rest_of_the_step_is_shorter(self, tmp_path):
        """The steps around are longer, because of what else they do."""
        own = [WINDOW, UPDATE, PROBE]
        (rare,) = found(
            tmp_path, own, lambda at: [("window", "step", 0, 500, None), ("region", "update", 0, 500, None)]
        )
        assert rare.region == "probe"

    def test_a_wait_in_it(self, tmp_path):
        """Its stacks show a sleep: that finding says that other steps do not have the region, and a region inside it is as rare."""
        own = [WINDOW, UPDATE, PROBE, ("region", "pause", 50, 50, None)]
        write_steps(tmp_path, {at: own if at == STEP else usual(at) for at in range(1, 10)})
        frames = (Frame("pause", "train.py", 5, own=True),)
        slept = StackStretch(1, STEP, None, T0 + 50 * MS, T0 + 100 * MS, 3, frames, "time.sleep", 0.0, 0.0, False, None, False)  # fmt: skip
        report = combine(
            [digest(spans(0, *own))],
            step=STEP,
            run_id="r",
            neighbours=Neighbours([tmp_path], STEP),
            evidence=[Evidence(0, "h", 100, stretches=(slept,), captures=(CaptureUse(1, STEP, None, T0, T0 + 100 * MS, None, None, 0),))],
        )  # fmt: skip
        found = [each for each in report.findings if each.topic == "sleep"]
        assert [each.region for each in found] == ["pause"]
        assert found[0].text.endswith(", which 8 of the 8 steps around it do not have")

    def test_a_number_in_its_name(self, tmp_path):
        """`benchmark_4` of step 2 and `benchmark_5` of this step are the same work."""

        def step(at):
            return (
                [WINDOW, UPDATE, ("region", f"benchmark_{at}", 50, 50, None)] if at in {2, 5} else usual(at)
            )

        (rare,) = found(tmp_path, step(STEP), step)
        assert rare.text.endswith("which 7 of the 8 steps around it do not have")

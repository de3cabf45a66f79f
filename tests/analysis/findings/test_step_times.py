"""The sums of the spans of steps of one process. Times are in milliseconds."""

from __future__ import annotations

import json

import pytest
from spanning import write_steps

from stepprof.analysis.findings.step_times import adds_work, kind_of, step_times

MS = 1_000_000
WINDOW = ("window", "step", 0, 100, None)


@pytest.fixture
def times(tmp_path):
    """Return a function that returns the times of steps, by their spans."""

    def read(**steps):
        numbered = {int(name[1:]): spans for name, spans in steps.items()}
        write_steps(tmp_path, numbered)
        return step_times([tmp_path / "spans" / "rank-0.000001.jsonl"], numbered)

    return read


class TestStepTimes:
    def test_each_moment_counts_in_its_innermost_span(self, times):
        found = times(
            s1=[
                WINDOW,
                ("region", "prepare", 0, 60, None),
                ("window", "rollout", 10, 40, "rollout"),
                ("region", "sample_1", 10, 5, "rollout"),
            ]
        )[1]
        assert {names: spent // MS for names, spent in found.own.items()} == {
            (): 40,
            ("prepare",): 20,
            ("prepare", "rollout"): 35,
            ("prepare", "rollout", "sample_#"): 5,
        }
        assert found.total[None, "prepare"] == 20 * MS
        assert found.total["rollout", "prepare"] == 40 * MS
        assert found.total["rollout", "sample_1"] == 5 * MS
        assert found.kinds == {"prepare": 1, "rollout": 1, "sample_#": 1}

    def test_of_equal_times_the_span_that_ended_later_is_outside(self, times):
        """Lines are in the order of the ends: a region is inside its window also if their times are equal."""
        spans = [("window", "reward", 0, 50, "reward"), ("region", "score", 0, 50, "reward")]
        assert {names: spent // MS for names, spent in times(s1=spans)[1].own.items()} == {
            ("reward",): 0,
            ("reward", "score"): 50,
        }

    def test_coroutines_and_threads_are_not_inside_each_other(self, times):
        found = times(s1=[("region", "one", 0, 50, None, 1, 7), ("region", "other", 10, 20, None, 2, None)])
        assert {names: spent // MS for names, spent in found[1].own.items()} == {("one",): 50, ("other",): 20}

    def test_a_region_inside_one_of_its_name_counts_once(self, times):
        found = times(s1=[WINDOW, ("region", "f", 0, 50, None), ("region", "f", 10, 20, None)])
        assert found[1].total[None, "f"] == 50 * MS

    def test_damaged_lines_are_left_out(self, tmp_path):
        write_steps(tmp_path, {1: [WINDOW]})
        path = tmp_path / "spans" / "rank-0.000001.jsonl"
        bare = json.dumps({"kind": "region", "step": 1})
        path.write_text(
            f'{path.read_text()}{bare}\n{{"step": 1, "kind": "region", "start": "x"}}\n{{"step": 1'
        )
        assert step_times([path], [1])[1].own[()] == 100 * MS


class TestKindOf:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("rollout_5", "rollout_17"),
            ("epoch3/step12", "epoch4/step1"),
            ("sample 0c9f1b3e", "sample 77aa01d2"),
            ("/data/shard-00001-of-9.parquet", "/data/shard-00002-of-9.parquet"),
        ],
    )
    def test_names_that_count(self, one, other):
        assert kind_of(one) == kind_of(other)

    @pytest.mark.parametrize(
        ("one", "other"), [("generate", "score"), ("eval_1", "rollout_1"), ("a.b", "a/b")]
    )
    def test_other_names(self, one, other):
        assert kind_of(one) != kind_of(other)


class TestAddsWork:
    def test_the_same_time_under_another_name(self, times):
        found = times(s1=[WINDOW, ("region", "new", 0, 80, None)], s2=[WINDOW])
        assert not adds_work(found[1], [found[2]], "new")

    def test_time_that_the_other_step_does_not_have(self, times):
        found = times(s1=[WINDOW, ("region", "new", 0, 80, None)], s2=[("window", "step", 0, 20, None)])
        assert adds_work(found[1], [found[2]], "new")

    @pytest.mark.parametrize(("calls", "adds"), [(2, False), (4, True)])
    def test_regions_inside_that_are_called_more_often(self, times, calls, adds):
        """The other step calls `generate` twice. Here the new region calls it twice too, alone or after two other calls."""
        generate = [("region", "generate", 20 * at, 20, None) for at in range(calls)]
        new = ("region", "new", 20 * (calls - 2), 40, None)
        found = times(s1=[WINDOW, new, *generate], s2=[WINDOW, *generate[:2]])
        assert adds_work(found[1], [found[2]], "new") == adds

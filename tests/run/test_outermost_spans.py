"""Calls inside a call of the same name are not counted."""

from __future__ import annotations

import json

import pytest

import stepprof
from stepprof.analysis.span_stats import Wanted, span_times
from stepprof.cli.main import main
from stepprof.run.outermost_spans import Outermost
from stepprof.run.runs import find_run
from stepprof.run.summary import region_times


def times_of(*spans):
    """Return the nanoseconds of each outermost span, and the number of errors. A
    span is (start, duration, more).
    """
    found = Outermost()
    for start, duration, *more in spans:
        found.add({"start": start, "dur": duration, **(more[0] if more else {})})
    return [round(seconds * 1e9) for seconds in found.seconds_of_each], found.errors


class TestOutermost:
    def test_inner_spans_are_not_counted(self):
        """Inner spans are not counted, however deep. An error inside counts with the call around it."""
        error = {"error": True}
        assert times_of((2, 1, error), (1, 3, error), (5, 1), (0, 10, error), (11, 4)) == ([10, 4], 1)

    def test_one_after_the_other_is_two(self):
        """Consecutive spans count separately, even if one begins at the end of the other,
        and if they have no duration.
        """
        assert times_of((0, 5), (5, 5), (10, 0), (10, 0)) == ([5, 5, 0, 0], 0)

    def test_the_same_time_twice_is_once(self):
        """Two spans with the same times count once: a coarse clock cannot tell
        the inner from the outer one.
        """
        assert times_of((0, 5), (0, 5)) == ([5], 0)

    @pytest.mark.parametrize("key", ["thread", "task"])
    def test_threads_and_tasks_are_apart(self, key):
        """A span of another thread or task at the same time is not an inner span."""
        assert times_of((2, 1, {key: 1}), (0, 10, {key: 2})) == ([1, 10], 0)

    def test_damaged_times(self):
        """A span with damaged times counts as a call without duration."""
        assert times_of((None, "x"), (2**63, 1e300)) == ([0, 0], 0)


@pytest.fixture
def recorded(tmp_path):
    """Record a function with a decorator, a region of the same name inside, and
    recursion: four outermost calls.
    """
    stepprof.init({"output_dir": str(tmp_path), "backend": "null", "steps": "2"}, rank=0, world_size=1)

    @stepprof.region("solve")
    def solve(depth):
        with stepprof.region("solve"):
            if depth:
                solve(depth - 1)

    try:
        for step in (1, 2):
            with stepprof.profile_step(step, role="actor"):
                solve(2)
                solve(0)
    finally:
        stepprof.shutdown()
    return find_run(tmp_path)


class TestCommands:
    def test_show(self, recorded):
        """`show` counts the two outermost calls. Their seconds are at most
        those of the window around them.
        """
        (time,) = region_times(recorded, 2).times
        (window,) = [time for time in span_times(recorded, Wanted(step=2)).times if time.kind == "window"]
        assert (time.name, time.count) == ("solve", 2)
        assert time.seconds <= window.seconds_of_each[0]

    def test_spans(self, recorded, capsys):
        """`spans` counts the four outermost of 16 calls, and states the longest of them."""
        assert main(["spans", str(recorded), "--region", "solve", "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["spans"]
        assert row["count"] == 4
        lines = [
            json.loads(line) for line in (recorded / "spans" / "rank-0.000001.jsonl").read_text().splitlines()
        ]
        calls = [line for line in lines if line.get("name") == "solve"]
        assert len(calls) == 16
        assert row["longest_seconds"] == max(call["dur"] for call in calls) / 1e9

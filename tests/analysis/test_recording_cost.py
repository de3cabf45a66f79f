"""The cost of recording: a recorded step compared with its neighbouring steps."""

from __future__ import annotations

import json

import pytest
from runs import make_run, record, region, write_spans

from stepprof.analysis.recording_cost import cost_sentences, recording_cost
from stepprof.cli.main import main
from stepprof.run.manifest import read_step

SECOND = 1_000_000_000


@pytest.fixture
def run(tmp_path):
    """Return a run whose step 3 was recorded."""
    made = make_run(tmp_path / "runs")
    record(made, step=3, arm_seconds=0.1, start_seconds=0.2, stall_seconds=0.5)
    return made


def write(run, lengths, rank=0):
    """Write windows of steps from 1 on, each with a role inside; `lengths` are the seconds until
    the next step begins.
    """
    start, spans = 1_700_000_000 * SECOND, []
    for step, length in enumerate(lengths, 1):
        for role in (None, "actor"):
            window = region(role or "step", 0.5, step, role, kind="window")
            spans.append({**window, "start": start})
        start += int(length * SECOND)
    write_spans(run, rank, *spans)


def write_life(run, steps, begins, pid):
    """Write windows of consecutive steps of one process of rank 0, a second each, from a time on [s]."""
    start = (1_700_000_000 + begins) * SECOND
    spans = [
        {**region("step", 0.5, step, None, kind="window"), "start": start + at * SECOND}
        for at, step in enumerate(steps)
    ]
    write_spans(run, 0, *spans, pid=pid)


def cost(run, step=3):
    manifest = read_step(run.path, step)
    return recording_cost(run.path, step, manifest["windows"], manifest["engines"])


class TestRecordingCost:
    def test_neighbours(self, run, capsys) -> None:
        """The step is compared with its neighbours, without the first and the last step of the run.
        `show` and `report` print the result.
        """
        write(run, [30, 2.8, 4.7, 2.7, 2.9, 1])
        found = cost(run)
        assert (found.seconds, found.others) == (4.7, [2, 4, 5])
        assert (found.shortest, found.median, found.longest) == (2.7, 2.8, 2.9)
        assert found.held == pytest.approx(0.8)
        assert main(["show", str(run.path), "--step", "3"]) == 0
        said = capsys.readouterr().out
        assert (
            "took 4.70 s; steps 2, 4-5, which were not recorded, took 2.80 s (2.70 s to 2.90 s): it was 1.90 s longer than their median, which the recording or anything else in this step can have caused"
            in said
        )
        assert "profilers of a process 800 ms" in said
        assert main(["show", str(run.path), "--step", "3", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["cost"]["others"] == [2, 4, 5]
        assert main(["report", str(run.path), "--step", "3", "--json", str(run.path / "r.json")]) == 0
        assert json.loads((run.path / "r.json").read_bytes())["recording"]["seconds"] == 4.7

    def test_a_step_that_is_not_longer(self, run) -> None:
        """If the recorded step is not longer, no difference is reported."""
        write(run, [2, 2.8, 2.8, 2.7, 2.9, 1])
        assert "no longer than these" in cost_sentences(cost(run))[0]

    def test_the_driver_comes_first(self, run) -> None:
        """If there is a driver, its steps are compared, because they are those of the job."""
        write(run, [1, 1, 1, 1, 1, 1])
        write(run, [2, 2, 2, 2, 2, 2], rank="driver")
        assert cost(run).seconds == 2

    @pytest.mark.parametrize("lengths", [[], [1, 1, 1], [1, 1, 1, 1]])
    def test_no_cost_without_steps_to_compare_with(self, run, lengths) -> None:
        """There is no cost without spans, for the last step, or with a single neighbour."""
        write(run, lengths)
        assert cost(run) is None
        assert cost_sentences(None) == []

    def test_a_step_number_that_is_used_again(self, run) -> None:
        """A step number that is used again is ambiguous, so there is no cost."""
        write(run, [1] * 6, rank=0)
        write_spans(run, 0, {**region("step", 1, 3, None, kind="window"), "start": 1_800_000_000 * SECOND})
        assert cost(run) is None


class TestRestart:
    """A rank that was started again: the time between two of its processes belongs to no step."""

    @pytest.mark.parametrize("last", [3, 6])
    def test_the_next_day(self, run, last) -> None:
        """The job ended with step `last`, and went on a day later. The recorded step is compared with steps of its own process."""
        write_life(run, range(1, last + 1), 0, 7)
        write_life(run, range(last + 1, 12), 86_400, 8)
        found = cost(run)
        if last == 3:
            assert found is None  # when its next step would have begun is not known
        else:
            assert (found.seconds, found.longest, found.others) == (1.0, 1.0, [2, 4, 5])

    @pytest.mark.parametrize("recorded_by", [7, 8])
    def test_a_step_that_is_done_again(self, run, recorded_by) -> None:
        """Two processes did steps 2 to 6. Each is compared with the steps of the one that recorded it."""
        write_life(run, range(1, 7), 0, 7)
        write_life(run, range(2, 9), 86_400, 8)
        record(run, step=4, pid=recorded_by)
        assert cost(run, 4).others == ([2, 5] if recorded_by == 7 else [5, 6, 7])

    def test_groups_of_ranks(self, run) -> None:
        """Two processes are rank 0 of different roles at the same time: that is no restart."""
        write_life(run, range(1, 9), 0, 7)
        write_life(run, range(1, 8), 0, 8)
        assert cost(run).others == [2, 4, 5, 6, 7]

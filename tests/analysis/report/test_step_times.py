"""The steps of a run by the spans of its processes: each process by its own clock, the slowest one counts."""

from __future__ import annotations

import json

import pytest
import runs

from stepprof.analysis.report.step_times import STEP, run_steps

SECOND = 10**9
START = 1_700_000_000 * SECOND
ACTOR = ("actor", None)


def spans(run, rank, seconds, *, pause=1.0, first=0, ahead=0.0, host="h", file=1, lacks=(), parts=1):
    """Write spans: in each step a window of `actor` with a region in its first half, then a pause.

    Args:
        run: the run.
        rank: of the process.
        seconds: the length of the window in each step.
        pause: seconds between windows.
        first: the number of the first step.
        ahead: seconds by which its clock is ahead.
        host: its host.
        file: the number of its file.
        lacks: steps of which the spans are missing.
        parts: the region is called so many times, one after the other.
    """
    pid = 7 + 100 * file + (rank if isinstance(rank, int) else 0)
    lines = [{"kind": "spans", "rank": rank, "host": host, "pid": pid, "run_id": "r", "world_size": 2}]
    at = START + int(ahead * SECOND)
    for step, each in enumerate(seconds, first):
        length = int(each * SECOND)
        own = {"thread": 1, "task": None, "step": step, "role": "actor"}
        if step not in lacks:
            for part in range(parts):
                begin = at + part * length // parts
                lines.append(
                    {"name": "load", "kind": "region", "start": begin, "dur": length // 2 // parts, **own}
                )
            lines.append({"name": "actor", "kind": "window", "start": at, "dur": length, **own})
        at += length + int(pause * SECOND)
    folder = run.path / "spans"
    folder.mkdir(exist_ok=True)
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / f"rank-{rank}.{file:06d}.jsonl").write_text(text, encoding="utf-8")


@pytest.fixture
def run(tmp_path):
    return runs.make_run(tmp_path)


class TestUsual:
    def test_the_first_step_and_recorded_ones_are_left_out(self, run):
        """Recorded steps are longer, and the first step compiles and allocates."""
        spans(run, 0, [60.0, 3.0, 4.0, 30.0, 5.0])
        runs.record(run, step=3)
        found = run_steps([run.path])
        assert found.values(ACTOR) == [3.0, 4.0, 5.0]
        assert found.values(("actor", "load")) == [1.5, 2.0, 2.5]
        assert found.values(STEP) == [3.0, 4.0, 5.0]

    def test_the_first_step_after_a_restart_is_left_out(self, run):
        """A process that continues the run begins with a long step, as the first one did."""
        spans(run, 0, [60.0, 3.0, 4.0])
        spans(run, 0, [50.0, 5.0, 6.0], first=3, ahead=1000, file=2)
        found = run_steps([run.path])
        assert found.values(ACTOR) == [3.0, 4.0, 5.0, 6.0]
        assert found.lengths == {(1, 0): 4.0, (4, 0): 6.0}

    @pytest.mark.parametrize("mark", ['"attrs": {"unfinished": true}', '"error": true'])
    def test_a_step_that_was_not_finished_is_left_out(self, run, mark):
        """How long it would have been is not known. SIGTERM, `sys.exit` and exceptions leave a window that says so."""
        spans(run, 0, [60.0, 3.0, 4.0, 0.1])
        path = run.path / "spans" / "rank-0.000001.jsonl"
        *lines, last = path.read_text().splitlines(keepends=True)
        path.write_text("".join([*lines, last.replace("}", f", {mark}}}")]))
        found = run_steps([run.path])
        assert found.values(STEP) == [3.0, 4.0]
        assert (found.by_rank((3, 0)), found.is_cut((3, 0)), found.is_cut((2, 0))) == ({}, True, False)

    def test_steps_that_some_ranks_visited_again_are_left_out(self, run):
        """One rank alone goes back to step 1: its visits are those of no other rank."""
        spans(run, 0, [1.0] * 4)
        spans(run, 1, [1.0] * 4)
        spans(run, 1, [1.0] * 2, ahead=1000, file=2)
        assert [visit[0] for visit in run_steps([run.path]).usual] == [2, 3]


class TestTimes:
    def test_a_clock_that_is_ahead_makes_no_step_longer(self, run):
        """Two hosts do the same, and the clock of the second one is 2 s ahead."""
        spans(run, 0, [1.0] * 5)
        spans(run, 1, [1.0] * 5, ahead=2.0, host="other")
        found = run_steps([run.path])
        assert set(found.windows.values()) == {1.0}
        assert found.lengths == {(step, 0): 2.0 for step in (1, 2, 3)}
        assert found.values(ACTOR) == [1.0] * 4

    def test_the_slowest_process_counts(self, run):
        """A part of a step takes as long as in its slowest process."""
        spans(run, 0, [1.0, 3.0, 3.0, 3.0])
        spans(run, 1, [1.0, 3.0, 3.0, 5.0])
        assert run_steps([run.path]).values(ACTOR) == [3.0, 3.0, 5.0]

    def test_a_step_lasts_until_the_next_one_begins(self, run):
        """The time between windows counts. The step before a recorded one has no length: the profiler is
        started in its time.
        """
        spans(run, 0, [1.0] * 6, pause=0.5)
        runs.record(run, step=4)
        assert run_steps([run.path]).lengths == {(1, 0): 1.5, (2, 0): 1.5}

    def test_a_rank_that_lacks_a_step_makes_the_step_before_no_longer(self, run):
        spans(run, 0, [1.0] * 5)
        spans(run, 1, [1.0] * 5, lacks=[2])
        found = run_steps([run.path])
        assert found.lengths == {(step, 0): 2.0 for step in (1, 2, 3)}
        assert (found.ranks((1, 0)), found.ranks((2, 0))) == ([0, 1], [0])

    @pytest.mark.parametrize("parts", [1, 4, 100])
    def test_spans_of_a_part_are_united(self, run, parts):
        spans(run, 0, [1.0, 2.0, 2.0], parts=parts)
        assert run_steps([run.path]).values(("actor", "load")) == [1.0, 1.0]

    def test_steps_of_other_processes_do_not_count(self, run):
        """A reward worker counts its own steps: ranks and the driver show how long those of the run are."""
        spans(run, 0, [1.0] * 4)
        spans(run, "reward-0", [0.1] * 40)
        assert {step for step, _ in run_steps([run.path]).windows} == {0, 1, 2, 3}

    def test_the_number_of_ranks_is_the_largest_that_is_stated(self, run):
        spans(run, 0, [1.0] * 4)
        assert run_steps([run.path]).world_size == 2


class TestDamage:
    def test_damaged_lines_are_skipped(self, run):
        spans(run, 0, [1.0, 3.0, 4.0, 5.0])
        file = next((run.path / "spans").iterdir())
        file.write_bytes(
            file.read_bytes() + b'{"name": "x", "kind": "region", "start": -9e99}\n\xff\n{"name": 1'
        )
        assert run_steps([run.path]).values(ACTOR) == [3.0, 4.0, 5.0]

    def test_a_run_without_spans_has_no_steps(self, run):
        found = run_steps([run.path])
        assert (found.usual, found.lengths, found.values(STEP)) == ([], {}, [])


class TestVisit:
    def test_an_occurrence_is_a_visit_if_all_were_recorded(self, run):
        """Of two visits, one was recorded: which one is not known."""
        spans(run, 0, [1.0] * 3)
        spans(run, 0, [1.0] * 3, ahead=1000, file=2)
        found = run_steps([run.path])
        assert [found.visit(1, number, 2) for number in (1, 2)] == [(1, 0), (1, 1)]
        assert (found.visit(1, 1, 1), found.visit(7, 1, 1), found.visit(None, 1, 1)) == (None, None, None)

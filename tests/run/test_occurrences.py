"""A step number that is used again, in each epoch or by a restarted job. Each time is a separate
occurrence.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from statistics import median

import pytest
from runs import ended_writer, make_run, record, record_engine, region, tell_engines

from stepprof.analysis.report.schema import Report
from stepprof.analysis.report.step_times import run_steps
from stepprof.analysis.report.store import read
from stepprof.analysis.timeline.find import find
from stepprof.analysis.timeline.load import load
from stepprof.cli.main import main
from stepprof.errors import ConfigError
from stepprof.run.manifest import read_step
from stepprof.run.occurrences import split
from stepprof.run.spans import read_spans

SECOND = 1_000_000_000
BEGIN = 1_700_000_000 * SECOND
EPOCHS = """
import sys, time
import stepprof
stepprof.init({"steps": sys.argv[1], "ranks": "all", "output_dir": "runs", "backend": "null"}, run_id="r", rank=int(sys.argv[3]), world_size=2)
for epoch in range(int(sys.argv[2])):
    for step in range(4):
        with stepprof.profile_step(step, role="rollout"), stepprof.region("generate"):
            time.sleep(0.02)
        for part in range(2):
            with stepprof.profile_step(step, role="actor"), stepprof.region("update"):
                time.sleep(0.01)
    time.sleep(0.1)
"""


@pytest.fixture
def epochs(tmp_path, monkeypatch):
    """Return a function that runs a job of one or more ranks, and returns the run's path and the logs."""
    monkeypatch.chdir(tmp_path)

    def start(steps="2", count=3, ranks=1):
        command = [sys.executable, "-c", EPOCHS, steps, str(count)]
        jobs = [
            subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True, env=os.environ)
            for rank in range(ranks)
        ]
        logs = [job.communicate(timeout=200)[1] for job in jobs]
        assert [job.returncode for job in jobs] == [0] * ranks
        return tmp_path / "runs" / "r", logs

    return start


def fragment(run, *, at, rank=0, role="actor", host="a", pid=7, seconds=1.0, visit=1, step=2, occurrence=1):
    """Record one window of a process."""
    begin = BEGIN + int(at * SECOND)
    writer = {**ended_writer(), "host": host, "boot_id": host, "pid": pid}
    record(
        run,
        step=step,
        rank=rank,
        role=role,
        host=host,
        pid=pid,
        writer=writer,
        visit=visit,
        occurrence=occurrence,
        start_unix_ns=begin,
        end_unix_ns=None if seconds is None else begin + int(seconds * SECOND),
    )


def times(run, step=2):
    """Return role, rank and begin of the windows of each occurrence."""
    return [
        [(each["role"], each["rank"], (each["start_unix_ns"] - BEGIN) / SECOND) for each in part["windows"]]
        for part in split(read_step(run.path, step))
    ]


class TestSplit:
    def test_windows_of_one_visit_are_one_occurrence(self, tmp_path):
        """Several windows of one role in one visit of the step are one occurrence."""
        run = make_run(tmp_path)
        for occurrence, at in enumerate((0, 5, 9), 1):
            fragment(run, at=at, occurrence=occurrence)
        assert len(times(run)) == 1

    def test_visits_of_one_process(self, tmp_path):
        """If a process visits the step twice, the windows of each visit are one occurrence, for each role."""
        run = make_run(tmp_path)
        for visit, at in enumerate((0, 100), 1):
            fragment(run, at=at, role="rollout", visit=visit)
            fragment(run, at=at + 50, visit=visit)
        assert times(run) == [
            [("actor", 0, 50.0), ("rollout", 0, 0.0)],
            [("actor", 0, 150.0), ("rollout", 0, 100.0)],
        ]

    def test_windows_of_a_restarted_job_are_another_occurrence(self, tmp_path):
        """If another process begins after the first one has ended, its windows are a second occurrence. The
        role that the first process never reached is in the second one.
        """
        run = make_run(tmp_path)
        fragment(run, at=0, role="rollout")
        fragment(run, at=100, role="rollout", pid=8)
        fragment(run, at=110, pid=8)
        assert times(run) == [[("rollout", 0, 0.0)], [("actor", 0, 110.0), ("rollout", 0, 100.0)]]

    def test_a_role_of_the_second_epoch_alone(self, tmp_path):
        """A role that was recorded in the second epoch only is placed by its time, although
        it begins before the others.
        """
        run = make_run(tmp_path)
        fragment(run, at=0)
        fragment(run, at=98, role="evaluate")
        fragment(run, at=100, visit=2)
        assert times(run)[1] == [("actor", 0, 100.0), ("evaluate", 0, 98.0)]

    def test_clocks_that_are_hours_apart(self, tmp_path):
        """The first window of each rank is in the first occurrence, whatever its clock says. A role with
        one window is placed by the clock of its host.
        """
        run = make_run(tmp_path)
        for visit, at in enumerate((0, 100), 1):
            fragment(run, at=at, visit=visit)
            fragment(run, at=at + 7_200, visit=visit, rank=1, host="b")
        fragment(run, at=7_301, rank=1, host="b", role="evaluate")
        first, second = times(run)
        assert first == [("actor", 0, 0.0), ("actor", 1, 7_200.0)]
        assert second == [("actor", 0, 100.0), ("actor", 1, 7_300.0), ("evaluate", 1, 7_301.0)]

    def test_groups_of_ranks_at_one_time(self, tmp_path):
        """Two processes that record rank 0 of one role at the same time are one occurrence, not a restart."""
        run = make_run(tmp_path)
        fragment(run, at=0)
        fragment(run, at=0.5, pid=8)
        assert len(times(run)) == 1

    def test_a_rank_that_came_back_within_the_step(self, tmp_path):
        """Rank 1 is lost and starts again, while rank 0 is in one window: that is one visit to the step."""
        run = make_run(tmp_path)
        fragment(run, at=0, seconds=10)
        fragment(run, at=0, rank=1, pid=8)
        fragment(run, at=4, rank=1, pid=9)
        assert times(run) == [[("actor", 0, 0.0), ("actor", 1, 0.0), ("actor", 1, 4.0)]]

    @pytest.mark.parametrize(("began", "count"), [(1, 1), (29, 2)])
    def test_the_end_of_a_lost_window_is_not_known(self, tmp_path, began, count):
        """Rank 1 was killed at some time after 0 s, and another process of it began at 30 s. Rank 0 began its window
        soon after the first, or with the second in a restarted job.
        """
        run = make_run(tmp_path)
        fragment(run, at=began, seconds=40)
        fragment(run, at=0, seconds=0, rank=1, pid=8)
        fragment(run, at=30, rank=1, pid=9)
        assert len(times(run)) == count

    def test_a_rank_that_came_back_while_another_one_went_on(self, tmp_path):
        """Rank 0 was in the step from the begin of its first window to the end of its last one."""
        run = make_run(tmp_path)
        fragment(run, at=0, role="rollout")
        fragment(run, at=9)
        for at, pid in ((0, 8), (4, 9)):
            fragment(run, at=at, rank=1, pid=pid, role="rollout")
        assert len(times(run)) == 1

    @pytest.mark.parametrize("hosts", ["bb", "bc", "ab", "ba"])
    def test_a_rank_that_came_back_on_another_host(self, tmp_path, hosts):
        """Rank 0, on host a, was in one window meanwhile. Rank 1 is alone on its host, or came back on another one."""
        run = make_run(tmp_path)
        fragment(run, at=0, seconds=10)
        for at, pid, host in zip((0, 4), (8, 9), hosts, strict=True):
            fragment(run, at=at, rank=1, pid=pid, host=host)
        assert len(times(run)) == 1

    @pytest.mark.parametrize("hosts", ["bb", "bc", "ab", "ba"])
    def test_a_rank_that_came_back_and_was_lost_again(self, tmp_path, hosts):
        """Neither of its windows has an end: it came back within the window of rank 0."""
        run = make_run(tmp_path)
        fragment(run, at=0, seconds=10)
        for at, pid, host in zip((0, 4), (8, 9), hosts, strict=True):
            fragment(run, at=at, seconds=0, rank=1, pid=pid, host=host)
        assert len(times(run)) == 1

    @pytest.mark.parametrize("ahead", [7_200, -7_200])
    @pytest.mark.parametrize("lasted", [0, 5])
    def test_a_rank_that_came_back_by_another_clock(self, tmp_path, ahead, lasted):
        """The clock of its new host is hours off: no window overlaps. All other ranks stayed in the one step that they have."""
        run = make_run(tmp_path)
        for rank in (0, 2):
            fragment(run, at=0, seconds=10, rank=rank, pid=7 + rank)
        fragment(run, at=0, seconds=0, rank=1, pid=8, host="b")
        fragment(run, at=4 + ahead, seconds=lasted, rank=1, pid=9, host="c")
        assert len(times(run)) == 1

    @pytest.mark.parametrize(
        ("lasts", "host", "again"),
        [(10, "c", 12), (10, "b", 5), (0, "c", 5)],
        ids=["longer than the step", "one clock", "all were lost"],
    )
    def test_a_job_that_was_restarted_elsewhere_with_fewer_ranks(self, tmp_path, lasts, host, again):
        """Rank 1 alone is started again, in a second step with this number."""
        run = make_run(tmp_path)
        fragment(run, at=0, seconds=lasts)
        fragment(run, at=0, seconds=0, rank=1, pid=8, host="b")
        fragment(run, at=7_200, seconds=again, rank=1, pid=9, host=host)
        assert len(times(run)) == 2

    def test_a_job_that_was_restarted_at_once_without_a_rank(self, tmp_path):
        """Rank 1 is not started again. Its clock is 20 s ahead, so that its window seems to overlap with both attempts."""
        run = make_run(tmp_path)
        for at, pid in ((0, 7), (610, 8)):
            fragment(run, at=at, seconds=600, pid=pid)
        fragment(run, at=20, seconds=600, pid=17, rank=1, host="b")
        assert [len(part) for part in times(run)] == [2, 1]

    @pytest.mark.parametrize("host", ["a", "b"])
    def test_a_job_that_was_restarted_at_once(self, tmp_path, host):
        """All ranks start again 10 s later. On another host, whose clock is 20 s ahead, a window of the first attempt
        seems to overlap with both.
        """
        run = make_run(tmp_path)
        for at, pid in ((0, 7), (610, 8)):
            fragment(run, at=at, seconds=600, pid=pid)
            fragment(run, at=at + (20 if host == "b" else 0), seconds=600, pid=pid + 10, rank=1, host=host)
        assert [len(part) for part in times(run)] == [2, 2]

    def test_a_job_that_was_restarted_with_fewer_ranks(self, tmp_path):
        """The rank that is not started again is in the first occurrence."""
        run = make_run(tmp_path)
        for rank in range(3):
            fragment(run, at=rank, seconds=5, rank=rank, pid=10 + rank)
        for rank in range(2):
            fragment(run, at=60, rank=rank, pid=20 + rank)
        assert [[rank for _, rank, _ in part] for part in times(run)] == [[0, 1, 2], [0, 1]]

    def test_engines_belong_to_the_occurrence_of_their_windows(self, tmp_path):
        """Each engine is in the same occurrence as the window of its driver."""
        run = make_run(tmp_path)
        for visit, at in enumerate((0, 100), 1):
            fragment(run, at=at, role="rollout", visit=visit)
            begin = BEGIN + at * SECOND
            tell_engines(
                run,
                record_engine(run, visit=visit, start_unix_ns=begin, end_unix_ns=begin + SECOND),
                writer={**ended_writer(), "host": "a", "boot_id": "a", "pid": 7},
            )
        first, second = split(read_step(run.path, 2))
        assert [len(part["engines"]) for part in (first, second)] == [1, 1]
        assert first["engines"][0]["start_unix_ns"] == BEGIN

    def test_a_window_without_a_time(self, tmp_path):
        """A window without times is in the same occurrence as the other windows of its process."""
        run = make_run(tmp_path)
        writer = {**ended_writer(), "host": "a", "boot_id": "a", "pid": 7}
        fragment(run, at=0)
        fragment(run, at=100, pid=8)
        record(run, role="ref", writer=writer, host="a", pid=7, start_unix_ns=None, end_unix_ns=None)
        first, _ = split(read_step(run.path, 2))
        assert [window["role"] for window in first["windows"]] == ["actor", "ref"]


class TestRecording:
    def test_reused_steps_are_warned_about_once(self, epochs):
        """A job that uses step numbers again logs one warning, however many steps and roles are affected."""
        _, (log,) = epochs(steps="1-2")
        assert log.count("a step number was used again") == 1
        assert "--occurrence" in log

    def test_no_warning_for_one_visit(self, epochs):
        """Two windows of a role in one step are one visit, and the job logs no warning."""
        run, (log,) = epochs(count=1)
        assert "a step number was used again" not in log
        windows = read_step(run, 2)["windows"]
        assert [(each["role"], each["occurrence"], each["visit"]) for each in windows] == [
            ("actor", 1, 1),
            ("actor", 2, 1),
            ("rollout", 1, 1),
        ]

    def test_the_last_step_of_an_epoch(self, epochs):
        """If the last step of an epoch is used again, an earlier step lies between,
        and the job logs the warning.
        """
        run, (log,) = epochs(steps="3", count=2)
        assert "a step number was used again" in log
        assert len(split(read_step(run, 3))) == 2


class TestCommands:
    def test_ls_prints_one_line_per_occurrence(self, epochs, capsys):
        """`ls` prints one line for each occurrence."""
        run, _ = epochs()
        assert main(["ls", str(run)]) == 0
        rows = capsys.readouterr().out.splitlines()[2:]
        assert [row.strip().split("  ")[0] for row in rows] == ["2 (1 of 3)", "2 (2 of 3)", "2 (3 of 3)"]
        assert main(["ls", str(run), "--json"]) == 0
        steps = json.loads(capsys.readouterr().out)["steps"]
        assert [(each["step"], each["occurrence"], each["occurrences"]) for each in steps] == [
            (2, 1, 3), (2, 2, 3), (2, 3, 3)
        ]  # fmt: skip

    @pytest.mark.parametrize("number", [None, 1, 2, 3])
    def test_show_uses_the_last_occurrence_by_default(self, epochs, capsys, number):
        """`show` prints the windows and regions of one occurrence, by default
        the last, and names the others.
        """
        run, _ = epochs(ranks=2)
        assert main(["show", str(run), *([] if number is None else ["--occurrence", str(number)])]) == 0
        text = capsys.readouterr().out
        assert f"step 2  occurrence {number or 3} of 3" in text
        assert "the number 2 was used for 3 steps of this run" in text
        assert (
            main(["show", str(run), "--json", *([] if number is None else ["--occurrence", str(number)])])
            == 0
        )
        shown = json.loads(capsys.readouterr().out)
        windows = shown["manifest"]["windows"]
        assert {window["visit"] for window in windows} == {number or 3}
        assert len(windows) == 6
        assert {each["name"]: each["count"] for each in shown["regions"]} == {"generate": 1, "update": 2}

    def test_an_unknown_occurrence_is_refused(self, epochs, capsys):
        """The error states how often the step was recorded, and suggests the nearest number."""
        run, _ = epochs()
        assert main(["show", str(run), "--occurrence", "7"]) == 2
        assert "--occurrence = 7: step 2 was recorded 3 times; did you mean 3?" in capsys.readouterr().err

    def test_report_covers_one_occurrence(self, epochs, capsys):
        """The report lasts as long as its occurrence, and each occurrence has its own report file."""
        run, _ = epochs(ranks=2)
        assert main(["report", str(run)]) == 0
        assert main(["report", str(run), "--occurrence", "1"]) == 0
        text = capsys.readouterr().out
        assert "step 2 (1 of 3)" in text
        assert "the number 2 was used for 3 steps of this run" in text
        assert main(["report", str(run), "--occurrence", "1", "--json"]) == 0
        stated = json.loads(capsys.readouterr().out)
        assert (stated["occurrence"], stated["occurrences"]) == (1, 3)
        parts = split(read_step(run, 2))
        for name, part in (("report.json", parts[2]), ("report.1.json", parts[0])):
            report = read(run / "step-000002" / name, Report)
            begins = [window["start_unix_ns"] for window in part["windows"]]
            ends = [window["end_unix_ns"] for window in part["windows"]]
            assert report.seconds == pytest.approx((max(ends) - min(begins)) / SECOND, abs=1e-3)

    def test_merge_has_only_spans_of_the_occurrence(self, epochs, capsys):
        """The timeline of an occurrence contains only spans of that occurrence."""
        run, _ = epochs(ranks=2)
        parts = split(read_step(run, 2))
        ends = [
            {
                f"spans/rank-{rank}.000001.jsonl": max(
                    each["end_unix_ns"] for each in part["windows"] if each["rank"] == rank
                )
                for rank in (0, 1)
            }
            for part in parts
        ]
        for number in (1, 2):
            assert main(["merge", str(run), "--occurrence", str(number), "--json"]) == 0
            merged = json.loads(capsys.readouterr().out)
            assert merged["path"].endswith(f"timeline.{number}.pftrace")
            assert (merged["occurrence"], merged["occurrences"]) == (number, 3)
            for source in merged["sources"]:
                name = source["path"]
                before = ends[number - 2][name] if number > 1 else 0
                assert before < source["first_unix_ns"] < ends[number - 1][name]
                assert source["last_unix_ns"] < ends[number][name]

    @pytest.mark.parametrize("number", [None, 1])
    def test_spans_of_a_step_are_of_one_occurrence(self, epochs, capsys, number, tmp_path):
        """With `--step`, `spans` reads one occurrence; without it, all spans.
        `--occurrence` requires `--step`.
        """
        run, _ = epochs(ranks=2)
        chosen = [] if number is None else ["--occurrence", str(number)]
        written = tmp_path / "spans.pftrace"
        command = ["spans", str(run), "--step", "2", *chosen, "--perfetto", str(written)]
        assert main(command) == 0
        assert f"this is occurrence {number or 3}" in capsys.readouterr().out
        assert main([*command, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["occurrence"], shown["occurrences"]) == (number or 3, 3)
        assert {each["count"] for each in shown["spans"] if each["name"] == "update"} == {2}
        assert main(["spans", str(run), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert {each["count"] for each in shown["spans"] if each["name"] == "update"} == {24}
        assert main(["spans", str(run), "--occurrence", "1"]) == 2
        assert "--occurrence: requires --step" in capsys.readouterr().err

    def test_a_restarted_job(self, epochs, capsys):
        """If a job starts again under its run id, each of its two visits of the step is one occurrence."""
        for _ in range(2):
            run, _ = epochs(count=1, ranks=2)
        for number in (1, 2):
            found = find([run], output_dir=run, occurrence=number)
            spans = [load(each, args=False, evidence=False) for each in found.inputs]
            assert sum(len(each.slices) for each in spans) == 12
            assert {each["visit"] for each in found.manifests[0]["windows"]} == {1}
            assert len(found.manifests[0]["windows"]) == 6


LOST = """
import os, sys, time
from pathlib import Path
import stepprof
rank, what = sys.argv[1:]
stepprof.init({"steps": "2", "ranks": "all", "output_dir": "runs", "backend": "null"}, run_id="r", rank=int(rank), world_size=2)
with stepprof.profile_step(2), stepprof.region("forward"):
    Path(what).touch()
    if what == "dies":
        os._exit(9)
    while what == "stays" and not Path("returned").exists():
        time.sleep(0.01)
"""


class TestRestartWithinAStep:
    def test_the_lost_process_is_in_the_report(self, tmp_path, monkeypatch, capsys):
        """Rank 1 dies in step 2 and starts again, while rank 0 stays in the step: that is one occurrence."""
        monkeypatch.chdir(tmp_path)
        command = [sys.executable, "-c", LOST]
        stays = subprocess.Popen([*command, "0", "stays"])
        while not (tmp_path / "stays").exists():
            time.sleep(0.01)
        assert subprocess.run([*command, "1", "dies"], check=False, timeout=200).returncode == 9
        assert subprocess.run([*command, "1", "returned"], check=False, timeout=200).returncode == 0
        assert stays.wait(60) == 0
        assert main(["report", "runs/r", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["occurrences"] == 1
        (text,) = [each["text"] for each in report["findings"] if "same rank" in each["text"]]
        assert text.startswith("rank 1 (")
        assert "did not finish its window" in text
        assert len({row["label"] for row in report["gantt"]}) == 3

    @pytest.mark.parametrize("ahead", [0, 86_400])
    def test_a_rank_that_came_back_on_another_host(self, tmp_path, capsys, ahead):
        """The lost process is in a sentence, and its clock shows no length of the step. The clock of the new host may be a day ahead."""
        run = make_run(tmp_path)
        for rank in (0, 2):
            fragment(run, at=55, seconds=10, rank=rank, pid=7 + rank, step=5)
            write_steps(run, rank, 7 + rank, "a", {step: 11 * step for step in range(9)})
        fragment(run, at=55, seconds=None, rank=1, pid=8, host="b", step=5)
        write_steps(run, 1, 8, "b", {step: 11 * step for step in range(6)}, lost=5)
        fragment(run, at=59 + ahead, seconds=5, rank=1, pid=9, host="c", step=5)
        write_steps(
            run, 1, 9, "c", {step: 59 + ahead + 11 * (step - 5) for step in range(5, 9)}, part=2, seconds=5
        )
        assert main(["report", str(run.path), "--step", "5", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["occurrences"] == 1
        texts = [each["text"] for each in report["findings"]]
        assert texts[0] == "the step took 10 s on a, 5.0 s on c, each by its own clock"
        assert any(
            "actor rank 1 (b) did not finish its window; actor rank 1 (c) did" in text for text in texts
        )

    def test_the_cost_of_recording_is_not_that_of_another_occurrence(self, tmp_path, capsys):
        """Rank 0 was killed in step 5. Another process of it did the step again a day later, and has all steps after it."""
        run = make_run(tmp_path)
        fragment(run, at=55, seconds=None, pid=7, step=5)
        write_steps(run, 0, 7, "a", {step: 11 * step for step in range(6)}, lost=5)
        fragment(run, at=86_400, seconds=10, pid=8, step=5)
        write_steps(run, 0, 8, "a", {step: 86_400 + 11 * (step - 5) for step in range(5, 12)}, part=2)
        reports = []
        for occurrence in ("1", "2"):
            assert main(["report", str(run.path), "--step", "5", "--occurrence", occurrence, "--json"]) == 0
            reports.append(json.loads(capsys.readouterr().out))
        first, second = reports
        assert (first["ended"], first["recording"], first["neighbourhood"]) == (False, None, None)
        assert second["recording"]["seconds"] == 11.0


def write_steps(run, rank, pid, host, begins, *, lost=None, part=1, seconds=10):
    """Write the spans of a process: a window for each step, but for the one in which it was lost, and a region."""
    lines = [{"kind": "spans", "rank": rank, "host": host, "pid": pid, "world_size": 3}]
    for step, at in begins.items():
        span = {"start": BEGIN + at * SECOND, "step": step, "role": "actor", "thread": 1, "task": None}
        lines.append({**span, "name": "forward", "kind": "region", "dur": 2 * SECOND})
        lines += [{**span, "name": "actor", "kind": "window", "dur": seconds * SECOND}] * (step != lost)
    path = run.path / "spans" / f"rank-{rank}.{part:06d}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


class TestSpans:
    def test_a_visit_that_was_not_recorded(self, tmp_path):
        """Three epochs visited the step, and one visit was recorded. Only the spans of
        the recorded visit are read.
        """
        run = make_run(tmp_path)
        fragment(run, at=100, seconds=1)
        path = run.spans_path(0)
        lines = [{"kind": "spans", "rank": 0, "host": "a", "pid": 7}]
        for epoch in range(3):
            for step in range(4):
                begin = BEGIN + (epoch * 50 + step - 2) * SECOND
                part = {"step": step, "role": "actor", "start": begin}
                lines.append({**region("update", 0.5), **part, "dur": SECOND // 2})
                lines.append({"name": "actor", "kind": "window", **part, "dur": SECOND})
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        found = find([run.path], output_dir=tmp_path, step=2)
        (spans,) = [load(each, args=False) for each in found.inputs if each.origin.kind == "spans"]
        assert sorted((spans.slices.start - BEGIN) // SECOND) == [100, 100]

    @pytest.mark.parametrize("rank", [0, "agent.loop", "agent loop"])
    def test_the_visit_of_a_process_with_a_name(self, tmp_path, capsys, rank):
        """`show` prints the regions of one visit, whatever characters the name of the process has. The files of
        its spans are found by the rank in their first lines.
        """
        run = make_run(tmp_path)
        for visit, at in enumerate((0, 100), 1):
            fragment(run, at=at, rank=rank, visit=visit)
        lines = [{"kind": "spans", "rank": rank, "host": "a", "pid": 7}]
        for at, step in ((0, 2), (10, 3), (100, 2), (110, 3)):
            part = {"step": step, "role": "actor", "start": BEGIN + at * SECOND, "dur": SECOND}
            lines.append({**part, "name": f"at {at}", "kind": "region"})
            lines.append({**part, "name": "actor", "kind": "window"})
        run.spans_path(rank).write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert main(["show", str(run.path), "--step", "2", "--json", "--occurrence", "1"]) == 0
        assert [each["name"] for each in json.loads(capsys.readouterr().out)["regions"]] == ["at 0"]

    def test_a_process_before_the_restart_that_recorded_nothing(self, tmp_path, capsys):
        """Spans of a process that ended before the recorded time are left out. Spans of another group of
        ranks with another role are kept.
        """
        run = make_run(tmp_path)
        fragment(run, at=100, seconds=1, rank=1)
        for pid, role, at in ((7, "actor", 0), (8, "actor", 100), (9, "rollout", 97)):
            span = {"start": BEGIN + at * SECOND, "dur": SECOND, "step": 2, "role": role}
            lines = [
                {"kind": "spans", "rank": 0, "host": "a", "pid": pid},
                {**span, "name": f"of {pid}", "kind": "region"},
                {**span, "name": role, "kind": "window"},
            ]
            run.spans_path(0).write_text("".join(json.dumps(line) + "\n" for line in lines))
        found = find([run.path], output_dir=tmp_path, step=2)
        assert {each.origin.pid for each in found.inputs if each.origin.kind == "spans"} == {8, 9}
        assert main(["show", str(run.path), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)["regions"]
        assert {each["name"] for each in shown} == {"of 8", "of 9"}


class TestClocksThatWereNeverCompared:
    """A process that recorded no window, on a host whose clock is hours ahead of the recording host."""

    def visits(self, tmp_path, *times, recorded=(0, 100), step=2):
        """Record occurrences on one host. On another host, write spans of a rank that visited
        the step at these times [s].
        """
        run = make_run(tmp_path)
        for number, at in enumerate(recorded, 1):
            fragment(run, at=at, visit=number)
        return self.spans(run, *times, step=step)

    def spans(self, run, *times, step=2, pid=9):
        """Write the spans of another process of that rank."""
        lines = [{"kind": "spans", "rank": 1, "host": "b", "pid": pid}]
        for at in times:
            part = {"step": step, "role": "actor", "start": BEGIN + int(at * SECOND), "dur": SECOND}
            between = {**part, "step": step + 1, "start": part["start"] + 10 * SECOND, "kind": "window"}
            lines += [
                {**part, "name": f"at {at}", "kind": "region"},
                {**part, "name": "actor", "kind": "window"},
            ]
            lines.append({**between, "name": "actor"})
        run.spans_path(1).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return run

    def names(self, run, capsys, number):
        """Return the regions that `show` and `merge` have, and their notes about excluded spans."""
        assert main(["show", str(run.path), "--json", "--occurrence", str(number)]) == 0
        shown = json.loads(capsys.readouterr().out)
        found = find([run.path], output_dir=run.path.parent, step=2, occurrence=number)
        (spans,) = [load(each, args=False) for each in found.inputs if each.origin.kind == "spans"]
        regions = {each["name"] for each in shown["regions"]}
        assert {name for name in spans.names if name.startswith("at ")} >= regions
        assert len(spans.slices.start) == 2 * len(regions)
        problems = [each["problem"] for each in shown["span_findings"]]
        assert spans.findings == problems
        return regions, problems

    def test_visits_and_occurrences_are_matched_by_order(self, tmp_path, capsys):
        """If the number of visits equals that of the occurrences, they are matched by their order."""
        run = self.visits(tmp_path, 7_200, 7_300)
        assert self.names(run, capsys, 1) == ({"at 7200"}, [])
        assert self.names(run, capsys, 2) == ({"at 7300"}, [])

    @pytest.mark.parametrize("times", [(7_200,), (7_200, 7_300, 7_400), (7_200, 9_300)])
    def test_visits_that_do_not_match_are_left_out_with_a_reason(self, tmp_path, capsys, times):
        """If the visits do not match the occurrences, the spans of the process are left out,
        and the reason is a finding.
        """
        run = self.visits(tmp_path, *times)
        for number in (1, 2):
            regions, (problem,) = self.names(run, capsys, number)
            assert regions == set()
            assert "2 occurrences of it were recorded" in problem

    def test_a_process_before_a_restart_and_one_after_it(self, tmp_path, capsys):
        """If two processes visited the step once each, their spans are left
        out: the occurrence is unknown.
        """
        run = self.visits(tmp_path, 7_200)
        self.spans(run, 7_300, pid=10)
        found = find([run.path], output_dir=run.path.parent, step=2)
        sources = [load(each, args=False) for each in found.inputs if each.origin.kind == "spans"]
        assert [len(source.slices.start) for source in sources] == [0, 0]
        assert all("visited it once" in source.findings[0] for source in sources)

    def test_a_capture_of_one_occurrence_alone(self, tmp_path):
        """If the clock of a host was never compared, its single capture may belong to either
        occurrence. A finding says so.
        """
        run = make_run(tmp_path)
        for number, at in enumerate((0, 100), 1):
            fragment(run, at=at, visit=number)
        fragment(run, at=7_200, rank=1, host="b")
        found = find([run.path], output_dir=tmp_path, step=2)
        assert any("captures of b may be of another occurrence" in problem for _, problem in found.findings)
        fragment(run, at=7_300, rank=1, host="b", visit=2)
        found = find([run.path], output_dir=tmp_path, step=2)
        assert not any("may be of another occurrence" in problem for _, problem in found.findings)

    def test_one_visit_belongs_to_the_one_occurrence(self, tmp_path, capsys):
        """If the step was recorded and visited once, the spans belong to that occurrence."""
        run = self.visits(tmp_path, 7_200, recorded=(0,))
        assert self.names(run, capsys, 1) == ({"at 7200"}, [])


class TestStepTimes:
    def test_a_step_of_each_epoch(self, epochs):
        """If each epoch uses the same step numbers, each visit counts as a step,
        and none is as long as the run.
        """
        run, _ = epochs(steps="none", count=3)
        found = run_steps([run])
        assert len(found.usual) == 11  # all of the twelve but the first
        spans = list(read_spans(run))
        total = max(each["start"] + each["dur"] for each in spans) - min(each["start"] for each in spans)
        assert 6 * median(found.lengths.values()) < total / SECOND

    def test_a_restarted_job(self, epochs):
        """The first step of each process is left out."""
        for _ in range(2):
            run, _ = epochs(steps="none", count=2, ranks=2)
        assert len(run_steps([run]).usual) == 14


def test_an_occurrence_of_a_step_that_was_recorded_once(tmp_path):
    run = make_run(tmp_path)
    fragment(run, at=0)
    with pytest.raises(ConfigError, match="was recorded once; did you mean 1"):
        find([run.path], output_dir=tmp_path, occurrence=2)

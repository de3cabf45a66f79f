"""Following several runs until all are over, with a job and without one, and signals."""

from __future__ import annotations

import json
import os
import signal

import pytest
import runs
from structlog.testing import capture_logs

from stepprof.config.config import Config
from stepprof.follow import loop
from stepprof.follow.follower import Follower
from stepprof.follow.lock import Lock
from stepprof.follow.loop import follow, is_open
from stepprof.host.process_identity import writer_identity


@pytest.fixture
def run(tmp_path):
    return runs.make_run(tmp_path)


def test_it_ends_with_the_run(run, tmp_path) -> None:
    """Without a job to ask, a follower ends when the run is over."""
    command, ran = runs.note(tmp_path)
    runs.record(run)
    runs.tell_status(run, ended=True)
    config = Config(on_complete=command)
    assert follow(config, lambda: [run.path]) is True
    assert ran() == ["2 complete"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert Lock(run.path).take()  # it was released


def test_several_runs_of_one_job(tmp_path, monkeypatch) -> None:
    """While the job runs, more runs may come. After it, each run is followed until no process of it is alive:
    some outlive their launcher.
    """
    monkeypatch.setattr(loop, "LOOK_SECONDS", 0.0)
    command, ran = runs.note(tmp_path, "$STEPPROF_RUN_ID $STEPPROF_STEP")
    known = [runs.make_run(tmp_path, name).path for name in ("a", "b")]
    made = [runs.open_run(tmp_path, run_id=path.name, rank=0, world_size=1, environ={}, description={}) for path in known]  # fmt: skip
    for run in made:
        runs.record(run)
        runs.tell_status(run, step=9)
    calls = []

    def job_runs() -> bool:
        calls.append(1)
        if len(calls) == 12:  # the job has ended before
            runs.record(made[1], 3)
            for run in made:
                runs.tell_status(run, ended=True)
        return len(calls) < 6

    shown = lambda: known[:1] if len(calls) < 3 else known  # noqa: E731
    with capture_logs() as logs:
        assert follow(Config(on_complete=command), shown, job_runs) is True
    assert ran() == ["a 2", "b 2", "b 3"]
    (line,) = [line for line in logs if line["event"] == "follow.waiting"]
    assert (line["processes"], line["count"]) == (["rank-0.json"] * 2, 2)


def test_a_run_that_is_over_costs_the_others_nothing(tmp_path, monkeypatch, mocker) -> None:
    """The work at the end of a run is done once, again when a process of it was started again, and once more
    when the job has ended.
    """
    monkeypatch.setattr(loop, "LOOK_SECONDS", 0.0)
    run = runs.make_run(tmp_path)
    runs.tell_status(run, ended=True)
    finish = mocker.spy(Follower, "_finish")
    counts = []

    def job_runs() -> bool:
        counts.append(finish.call_count)
        if len(counts) == 10:
            runs.tell_status(run, ended=True)
        return len(counts) < 20

    assert follow(Config(on_complete=["true"]), lambda: [run.path], job_runs) is True
    assert sorted(set(counts)) == [0, 1, 2]
    assert finish.call_count == 3


def test_what_it_waits_for_is_logged(run, monkeypatch) -> None:
    """The steps that are exported after the end of their process are named. A job without a run is logged."""
    monkeypatch.setattr(loop, "LOOK_SECONDS", 0.0)
    claim = runs.record(run, status="lost", error="x", pending=True, data=b"")
    content = json.loads(claim.fragment.read_text())
    runs.tell_status(run, step=2, writer=runs.ended_writer())
    claim.fragment.write_text(json.dumps({**content, "exporter": writer_identity()}))
    looks = []

    def known():
        looks.append(1)
        if len(looks) == 3:
            claim.fragment.write_text(json.dumps(content))
        return [run.path]

    with capture_logs() as logs:
        assert follow(Config(keep_steps=1), known, lambda: False) is True
        assert follow(Config(keep_steps=1), list, lambda: False) is True
    assert [(line["event"], line.get("count"), line.get("exporting")) for line in logs] == [
        ("follow.waiting", 0, [2]),
        ("follow.no_run", None, None),
    ]


def test_while_the_job_runs_its_processes_may_be_started_again(run, tmp_path, monkeypatch) -> None:
    """A run whose processes have died is not over while the job runs, however late they are started again."""
    monkeypatch.setattr(loop, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(loop, "RESTART_SECONDS", 0.0)
    command, ran = runs.note(tmp_path, "$STEPPROF_RECORDED_STEPS")
    runs.record(run)
    runs.tell_status(run, step=2, writer=runs.ended_writer())
    calls = []

    def job_runs() -> bool:
        calls.append(1)
        if len(calls) == 5:
            assert ran() == []
            runs.record(run, 3)
            runs.tell_status(run, ended=True)
        return len(calls) < 8

    config = Config(on_complete=command, on_complete_when="run")
    assert follow(config, lambda: [run.path], job_runs) is True
    assert ran() == ["2,3"]


def test_a_signal_asks_for_the_end_of_the_run(run, tmp_path, monkeypatch) -> None:
    """After SIGTERM no restart is awaited, and a process that is alive still is: it may be stopping and
    exporting. A second signal ends the follower at once.
    """
    monkeypatch.setattr(loop, "LOOK_SECONDS", 0.0)
    command, ran = runs.note(tmp_path)
    runs.record(run)
    runs.tell_status(run, step=2)
    asked = []

    def known():
        asked.append(1)
        if len(asked) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        if len(asked) == 5:
            runs.record(run, 3)
            runs.tell_status(run, step=3, writer=runs.ended_writer())
        return [run.path]

    assert follow(Config(on_complete=command), known) is True
    assert ran() == ["2 complete", "3 complete"]

    def twice():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        return [run.path]

    with pytest.raises(KeyboardInterrupt):
        follow(Config(on_complete=command), twice)
    assert Lock(run.path).take()


def test_a_closed_pipe_is_the_end_of_the_job() -> None:
    """`stepprof run` holds a pipe to its follower while the job runs, also when it is killed."""
    read, write = os.pipe()
    assert is_open(read)
    os.close(write)
    assert not is_open(read)
    os.close(read)

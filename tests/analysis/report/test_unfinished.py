"""A step whose end is not known, because a process was killed in it or is still in it. Times are in milliseconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from digested import MS, T0, manifest, spans, trace, window
from runs import ended_writer, make_run, record

from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest
from stepprof.cli.main import main

LOST = {**window(1, end=0, status="lost", artifacts=[]), "end_unix_ns": None}
WHOLE = digest(spans(0, ("window", "actor", 0, 100, "actor"), ("region", "update", 0, 90, "actor")))
OF_LOST = digest(spans(1, ("region", "load", 0, 40, "actor")))


def report(*windows, digests=(WHOLE, OF_LOST), runs=()):
    return combine(digests, step=2, run_id="r", manifests=[manifest(*windows)], runs=runs)


class TestAnEndThatIsNotKnown:
    def test_a_rank_was_killed(self):
        """What the other ranks show is the least: no part of the step has a share, and nothing a gain."""
        found = report(window(0), LOST)
        assert (found.ended, found.seconds, found.path, found.parts, found.slack) == (False, 0.1, [], [], [])
        texts = [each.text for each in found.findings]
        assert texts[0] == "the step lasted at least 100 ms: its end is not known"
        assert {row.share for row in (*found.roles, *found.regions, *found.tree)} == {None}
        assert (
            "actor rank 1 has no end of its window: it was killed, is still in it, or could not write its manifest"
            in texts
        )
        assert all(each.saves is None for each in found.findings)

    def test_nothing_but_the_begin_is_known(self):
        found = report(LOST, digests=())
        assert (found.ended, found.seconds) == (False, 0.0)
        assert found.findings[0].text == "how long the step lasted is not known: its end is missing"

    def test_the_status_has_the_last_sign_of_life(self, tmp_path):
        """The file that the process published 4 s after it had begun the step."""
        run = make_run(tmp_path)
        status = {"rank": 1, "host": "h", "pid": 101, "ended": False, "step": 1, "recording_step": 2}
        status |= {"published_unix_ns": T0 + 4000 * MS, "writer": ended_writer()}
        path = run.status_path(1)
        path.parent.mkdir()
        path.write_text(json.dumps(status))
        assert report(window(0), LOST, runs=[run.path]).seconds == 4.0
        path.write_text(json.dumps({**status, "recording_step": None}))  # of another step
        assert report(window(0), LOST, runs=[run.path]).seconds == 0.1

    def test_a_capture_that_was_capped_without_spans(self):
        """Its window ended later, at a time that is not known. The process was not lost."""
        capped = window(0, end=50, capped_by="duration")
        found = report(capped, digests=[digest(trace(0, ("thread", "cpu_op", "aten::mm", 0, 50)))])
        assert (found.ended, found.seconds) == (False, 0.05)
        assert not any("no end of" in each.text for each in found.findings)


class TestAKnownEnd:
    def test_the_driver_shows_it(self):
        """Its window contains the step."""
        driver = digest(spans("driver", ("window", "step", 0, 120, None)))
        found = report(window(0), LOST, digests=[driver, WHOLE, OF_LOST])
        assert (found.ended, found.seconds) == (True, 0.12)

    def test_a_later_process_of_the_rank_shows_it(self):
        again = spans(1, ("window", "actor", 50, 90, "actor"))
        again.origin = again.origin.__class__(**{**_fields(again.origin), "pid": 9})
        found = report(window(0), LOST, window(1, start=50, end=140, pid=9), digests=[WHOLE, digest(again)])
        assert (found.ended, found.seconds) == (True, 0.14)


def _fields(origin):
    return {name: getattr(origin, name) for name in origin.__dataclass_fields__}


class TestLastStep:
    def test_the_last_step_that_ended_is_reported(self, tmp_path, capsys):
        """The process was killed in step 3: step 2 is whole."""
        run = make_run(tmp_path)
        record(run, step=2)
        record(run, step=3, data=b"", status="lost", end_unix_ns=None, writer=ended_writer())
        assert main(["report", str(run.path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["step"] == 2
        assert main(["report", str(run.path), "--step", "3", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["ended"] is False


KILLED = """
import time
import stepprof
stepprof.init({"steps": "2", "output_dir": "runs", "backend": "null"}, run_id="r")
for step in (1, 2):
    with stepprof.profile_step(step, role="actor"):
        with stepprof.region("forward"):
            time.sleep(0.01)
        if step == 2:
            print("in it", flush=True)
            time.sleep(60)
"""


@pytest.mark.parametrize("markdown", [False, True])
def test_a_job_that_is_killed_in_the_step(tmp_path, monkeypatch, capsys, markdown):
    """SIGKILL, with the backend that records nothing."""
    monkeypatch.chdir(tmp_path)
    job = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, env=os.environ)
    job.stdout.readline()
    status = tmp_path / "runs" / "r" / "status" / "rank-0.json"
    while not status.exists() or json.loads(status.read_text())["recording_step"] != 2:
        time.sleep(0.05)
    job.send_signal(signal.SIGKILL)
    job.communicate(timeout=200)
    assert main(["report", "runs/r", "--step", "2", *["--markdown"] * markdown]) == 0
    printed = capsys.readouterr().out
    assert "took" not in printed
    assert "at least" in printed
    assert "%" not in printed
    assert "has no end of its window: it was killed" in printed

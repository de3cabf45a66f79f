"""The information about attached engines in the manifest, and in `check`, `show` and `ls`."""

from __future__ import annotations

import gzip
import json
import os
import re

import pytest
from runs import ended_writer, make_run, record, record_engine, tell_engines
from timelines import Timeline

from stepprof.analysis.verify import verify_run
from stepprof.cli.commands.show import render_step
from stepprof.cli.main import main
from stepprof.host.process_identity import writer_identity
from stepprof.run.manifest import read_step
from stepprof.run.summary import summarize_step

ELSEWHERE = "rank 0 has it"
LEFT = {"data": b"", "status": "joined", "reason_code": "driven_elsewhere", "error": ELSEWHERE}


@pytest.fixture
def run(tmp_path):
    """A run with a window of the role `rollout` on one rank."""
    run = make_run(tmp_path / "runs")
    record(run, role="rollout")
    return run


@pytest.fixture
def late(run):
    """Return a function that adds an engine to the run. The engine stopped 10 s late: it has 22 forward
    steps in the window of 0.22 s and 1,000 after it.
    """
    steps = [
        {
            "name": "step[DECODE bs=8]",
            "cat": "user_annotation",
            "ph": "X",
            "ts": at * 10_000,
            "dur": 9_000,
            "pid": 1,
            "tid": 1,
        }
        for at in range(1_022)
    ]
    events = {"baseTimeNanoseconds": 1_700_000_000_000_000_000, "traceEvents": steps}
    reported = {
        "end_unix_ns": 1_700_000_000_220_000_000,
        "stop_seconds": 11.0,
        "overrun_seconds": 10.0,
        "write_seconds": 1.0,
    }

    def late(**more):
        data = gzip.compress(json.dumps(events).encode())
        tell_engines(
            run,
            record_engine(run, data=data, **{"host": "h", **reported, **more}),
            clocks=more.pop("clocks", ()),
        )
        return run

    return late


def problems(run):
    return [f"{p.where}: {p.problem}" for p in verify_run(run.path).problems]


def notes(run):
    return [f"{n.where}: {n.problem}" for n in verify_run(run.path).notes]


class TestManifest:
    def test_the_engines_of_all_processes(self, run):
        """The manifest lists engines by occurrence, role and replica, each with the name of its fragment. A
        clock that several fragments contain is listed once.
        """
        clock = {"host": "node-1", "offset_ns": -3, "error_ns": 2, "method": "ping-pong"}
        tell_engines(run, record_engine(run, 10), record_engine(run, 2), clocks=[clock])
        tell_engines(run, record_engine(run, 0, occurrence=2), record_engine(run, 0), rank=1, clocks=[clock])
        tell_engines(run, record_engine(run, None, data=b"", status="failed"), rank=2)
        manifest = read_step(run.path, 2)
        assert [(e["occurrence"], e["replica"]) for e in manifest["engines"]] == [
            (1, 0),
            (1, 2),
            (1, 10),
            (1, None),
            (2, 0),
        ]
        assert manifest["engines"][0]["fragment"] == "rollout-engines-rank-1.json"
        assert [c["host"] for c in manifest["clocks"]] == ["h", "node-1"]
        assert manifest["findings"] == []

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ({"status": "fine"}, "status = 'fine' is none of complete"),
            ({"start_seconds": "1"}, "start_seconds = '1' is not a number"),
            ({"stop_seconds": []}, r"stop_seconds = \[\] is not a number"),
            ({"replica": "0"}, "replica = '0' is not a number"),
            ({"driver": -1}, "driver = -1 is not a rank"),
            ({"role": 1}, "role = 1 is not a name"),
            ({"kind": 7}, "kind = 7 is not a string"),
            ({"name": ["x"]}, r"name = \['x'\] is not a string"),
            ({"host": 1}, "host = 1 is not a string"),
            ({"health": True}, "health = True is not a string"),
            ({"error": {}}, r"error = \{\} is not a string"),
            ({"capture": "x"}, "capture = 'x' is not an object"),
            ({"artifacts": [{"path": "../../x", "bytes": 1}]}, "outside of the step: '../../x'"),
            ({"artifacts": [{"path": "a"}]}, "without a size: 'a'"),
        ],
    )
    def test_a_damaged_engine_is_a_finding(self, run, change, problem):
        """A damaged engine stays in the manifest. `show`, the summary and `check` can still read it."""
        tell_engines(run, {**record_engine(run, data=b""), **change})
        manifest = read_step(run.path, 2)
        assert len(manifest["engines"]) == 1
        assert [f["fragment"] for f in manifest["findings"]] == ["rollout-engines-rank-0.json"]
        assert re.search(problem, manifest["findings"][0]["problem"])
        assert render_step(run.path, 2)
        assert summarize_step(run.path, 2)
        assert verify_run(run.path).problems

    def test_an_engine_gets_every_key(self, run):
        """A key that is missing in the fragment of an engine is None. An unknown key is kept."""
        tell_engines(run, {"role": "rollout", "status": "complete", "of_a_newer_version": 1})
        (engine,) = read_step(run.path, 2)["engines"]
        assert set(record_engine(run, data=b"")) < set(engine)
        assert (engine["replica"], engine["artifacts"], engine["of_a_newer_version"]) == (None, [], 1)
        assert render_step(run.path, 2)

    @pytest.mark.parametrize(
        ("clock", "problem"),
        [
            ({"host": "a", "offset_ns": "1", "error_ns": 1}, "a clock with offset_ns = '1'"),
            ({"host": "a", "offset_ns": 1}, "a clock with error_ns = None"),
            ({"host": 1, "offset_ns": 1, "error_ns": 1}, "a clock of host = 1"),
        ],
    )
    def test_a_damaged_clock_is_a_finding(self, run, clock, problem):
        """A damaged comparison of clocks is dropped and reported, because times according to it would be
        wrong.
        """
        tell_engines(run, clocks=[clock])
        manifest = read_step(run.path, 2)
        assert [c["host"] for c in manifest["clocks"]] == ["h"]
        assert manifest["findings"] == [
            {"fragment": "rollout-engines-rank-0.json", "problem": f"damaged: {problem}"}
        ]


class TestLost:
    def read(self, run, writer, **engine):
        asked = {"data": b"", "status": "lost", "error": "the process ended", "stop_seconds": None}
        lost = record_engine(run, **asked, **engine)
        tell_engines(run, lost, writer=writer)
        (found,) = read_step(run.path, 2)["engines"]
        return found["status"], found["error"]

    @pytest.mark.parametrize(("end", "status"), [(None, "recording"), (5, "flushing")])
    def test_an_engine_is_not_lost_while_its_driver_lives(self, run, end, status):
        """The driver writes the entry of an engine ahead as lost. While the driver lives, the manifest
        shows it as recording or flushing.
        """
        assert self.read(run, writer_identity(), end_unix_ns=end) == (status, None)
        assert notes(run) == [f"step-000002/rollout/0: still {status}"]

    def test_once_it_has_ended(self, run):
        """After the driver's end an engine whose entry is pending is lost, with the reason in the entry."""
        assert self.read(run, ended_writer(), end_unix_ns=None) == ("lost", "the process ended")

    def test_an_engine_that_died_in_its_stop(self, run):
        """An engine that died during its stop is lost, even while its driver lives."""
        found = self.read(run, writer_identity(), health="dead", pending=False)
        assert found == ("lost", "the process ended")

    def test_the_state_on_another_host_is_unknown(self, run):
        """If the driver ran on another host, the engine is lost, and the reason says that
        liveness could not be checked.
        """
        status, error = self.read(run, {"host": "elsewhere", "pid": 7})
        assert status == "lost"
        assert error.endswith("(or still running: liveness can only be checked on elsewhere alone)")


class TestCheck:
    def test_files_of_all_engines_are_checked(self, run):
        """`check` counts and verifies the files of all engines."""
        tell_engines(run, record_engine(run, 0, files=("rank-0", "rank-1")), record_engine(run, 1))
        result = verify_run(run.path)
        assert (result.problems, result.notes) == ([], [])
        assert (result.engines, result.artifacts) == (2, 4)

    @pytest.mark.parametrize("status", ["lost", "failed", "skipped"])
    def test_a_missing_engine_is_a_problem(self, run, status):
        """If one of three engines has no recording, `check` reports this engine alone, with its reason."""
        tell_engines(
            run,
            record_engine(run, 0),
            record_engine(run, 1, data=b"", status=status, error="why"),
            record_engine(run, 2),
        )
        assert problems(run) == [f"step-000002/rollout/1: {status}: why"]

    def test_missing_and_damaged_files_are_problems(self, run):
        """A file is a problem if it is missing, truncated, or differs in size. A file that
        no manifest names is a note.
        """
        engine = record_engine(run, files=("rank-0", "rank-1", "rank-2"))
        tell_engines(run, engine)
        files = [run.path / "step-000002" / artifact["path"] for artifact in engine["artifacts"]]
        files[0].unlink()
        files[1].write_bytes(files[1].read_bytes() + b"x")
        data = files[2].read_bytes()
        files[2].write_bytes(data[:-4] + b"\0" * 4)
        files[2].with_name("rank0.profiler_out.txt").touch()
        found = problems(run)
        assert found[0].endswith("rank-0.trace.json.gz: is missing")
        assert "the manifest lists" in found[1]
        assert "is damaged" in found[2]
        assert notes(run) == [
            "step-000002/rollout/replica-0/rank0.profiler_out.txt: not listed in any manifest"
        ]

    @pytest.mark.parametrize(
        ("engine", "found"),
        [
            ({}, ["step-000002/rollout/0: is complete but lists no artifact"]),
            ({"kind": "rank"}, []),
            ({"kind": "spans"}, []),
        ],
    )
    def test_complete_without_a_file(self, run, engine, found):
        """A complete engine without a file is a problem. An engine of kind
        `rank` or `spans` needs no file.
        """
        tell_engines(run, record_engine(run, data=b"", **engine))
        assert problems(run) == found

    def test_files_on_another_host_are_noted(self, run):
        """If a partial engine's traces are on another host, `check` prints a note and no problem."""
        tell_engines(run, record_engine(run, data=b"", status="partial", error="its traces are on node-0"))
        assert problems(run) == []
        assert notes(run) == ["step-000002/rollout/0: partial: its traces are on node-0"]

    def test_a_joined_capture_must_exist(self, run):
        """If an engine joined a capture of its own, the files of that capture must exist. If it joined this
        process's capture, it needs no file.
        """
        tell_engines(
            run,
            record_engine(run, 0),
            record_engine(
                run,
                0,
                data=b"",
                occurrence=2,
                status="joined",
                capture={"step": 2, "stem": "rollout/replica-0"},
            ),
            record_engine(run, 1, data=b"", status="joined", error="its worker is this very process"),
        )
        assert problems(run) == []
        for file in (run.path / "step-000002" / "rollout" / "replica-0").iterdir():
            file.unlink()
        assert "step-000002/rollout/0 (2): joined a missing capture" in " ".join(problems(run))

    def test_ranks_of_an_engine_role_are_not_missing(self, tmp_path):
        """If engines of the role `rollout` exist, `check` does not expect rollout windows of other ranks.
        An engine of kind `rank` does not change that.
        """
        run = make_run(tmp_path, config={"ranks": "0", "roles": {"rollout": {"ranks": "all"}}})
        record(run, role="rollout")
        assert "no window of rank 1" in " ".join(problems(run))
        tell_engines(run, record_engine(run, 0), record_engine(run, 1))
        assert problems(run) == []
        tell_engines(run, record_engine(run, 0, data=b"", kind="rank", role="actor"), role="actor")
        assert problems(run) == []

    def test_driven_by_another_process(self, run):
        """`check` accepts rollout/0, whose outcome one rank has, and reports rollout/1, which each rank
        leaves to another process.
        """
        mine = record_engine(run, 0)
        others = [
            record_engine(run, 0, **LEFT),
            record_engine(run, 1, **LEFT),
        ]
        tell_engines(run, mine)
        for rank in (1, 2):
            tell_engines(run, *others, rank=rank)
        assert problems(run) == [
            f"step-000002/rollout/1: is left to another process, which reported nothing: {ELSEWHERE}"
        ]


class TestCommands:
    @pytest.fixture
    def recorded(self, run, monkeypatch):
        monkeypatch.setenv("STEPPROF_OUTPUT_DIR", os.fspath(run.path.parent))
        clocks = [
            {"host": "node-0", "offset_ns": 0, "error_ns": 0, "method": "same-host"},
            {"host": "node-1", "offset_ns": -1_500_000, "error_ns": 70_000, "method": "ping-pong"},
        ]
        dead = record_engine(
            run,
            1,
            data=b"",
            status="failed",
            health="dead",
            error="EngineFailure: it has died",
            start_seconds=None,
            stop_seconds=None,
        )
        tell_engines(run, record_engine(run, 0, capped_by="engine"), dead, clocks=clocks)
        tell_engines(run, record_engine(run, 0, **LEFT), rank=1)
        return run

    def test_show(self, recorded, capsys):
        """`show` prints a table of engines with the time of their calls and their problems, and a table of
        the clocks of other hosts.
        """
        assert main(["show", "--step", "2"]) == 0
        text = capsys.readouterr().out
        lines = [line.split() for line in text.splitlines()]
        assert [
            "engine",
            "kind",
            "status",
            "health",
            "seconds",
            "start",
            "s",
            "stop",
            "s",
            "bytes",
            "events",
            "host",
            "name",
        ] in lines
        (first,) = [line for line in lines if line[:2] == ["rollout/0", "vllm"]]
        assert first[:7] == ["rollout/0", "vllm", "complete", "ok", "1.500", "0.003", "1.250"]
        (second,) = [line for line in lines if line[:2] == ["rollout/1", "vllm"]]
        assert second[:7] == ["rollout/1", "vllm", "failed", "dead", "1.500", "-", "-"]
        assert "rollout/replica-0/rank-0.trace.json.gz" in text
        assert "rollout/0 (http://node-0:8000): ended early, capped by engine" in text
        assert "rollout/1 (http://node-1:8000): failed: EngineFailure: it has died" in text
        assert ["node-1", "-1.500", "0.070", "ping-pong"] in lines
        assert not [line for line in lines if line[-1:] == ["same-host"]]
        assert ELSEWHERE not in text

    def test_show_for_a_program(self, recorded, capsys):
        """`show --json` contains the engine entries of every process, and all clocks."""
        assert main(["show", "--step", "2", "--json"]) == 0
        manifest = json.loads(capsys.readouterr().out)["manifest"]
        assert [e["status"] for e in manifest["engines"]] == ["complete", "joined", "failed"]
        assert [c["method"] for c in manifest["clocks"]] == ["local", "same-host", "ping-pong"]

    def test_ls(self, recorded, capsys):
        """`ls` counts engines by outcome, and adds their artifacts to those of the step."""
        for arguments in (["ls"], ["ls", "r"]):
            assert main(arguments) == 0
            assert "1 complete, 1 failed" in capsys.readouterr().out
        assert main(["ls", "r", "--json"]) == 0
        (step,) = json.loads(capsys.readouterr().out)["steps"]
        assert (step["engines"], step["artifacts"]) == ({"complete": 1, "failed": 1}, 2)

    def test_check(self, recorded, capsys):
        """`check` exits with status 1, prints the reason of the failed engine, and counts
        windows, engines and artifacts.
        """
        assert main(["check"]) == 1
        text = capsys.readouterr().out
        assert "PROBLEM  step-000002/rollout/1: failed: EngineFailure: it has died" in text
        assert "1 window, 2 engines, 2 artifacts" in text
        assert main(["check", "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["checked"]["engines"] == 2

    def test_without_engines_there_is_no_engine_table(self, run):
        """If the step has no engines, `show` prints no column of engines."""
        assert "health" not in render_step(run.path, 2)


class TestLateStop:
    def test_a_report_is_of_the_window(self, late, capsys):
        """The report counts only the forward steps and seconds inside the window. A finding
        states how many it excluded.
        """
        run = late()
        assert main(["report", str(run.path), "--json"]) == 0
        [rollout] = (report := json.loads(capsys.readouterr().out))["rollout"]
        assert (rollout["iterations"], round(rollout["seconds"], 3)) == (22, 0.219)
        assert any("1000 of its 1022 forward steps" in each["problem"] for each in report["problems"])

    def test_a_timeline_is_of_the_window(self, late, tmp_path, capsys):
        """`merge` keeps only forward steps inside the window. `--to 5` includes later ones."""
        run = late()
        timeline = tmp_path / "t"
        assert main(["merge", str(run.path), "--output", str(timeline)]) == 0
        assert "1000 of its 1022 forward steps" in "".join(capsys.readouterr())
        assert forward_steps(timeline) == 22
        assert main(["merge", str(run.path), "--output", str(timeline), "--to", "5"]) == 0
        assert forward_steps(timeline) == 501
        assert main(["merge", str(run.path)]) == 0

    def test_show_states_the_overrun(self, late):
        """`show` prints how long the engine recorded after the window, and that it stopped late."""
        shown = render_step(late().path, 2)
        assert "late s" in shown
        assert "stopped late" in shown

    def test_a_clock_that_is_too_coarse_to_cut_by(self, late, capsys):
        """If the error of the clock is 1 s, the report has no rollout figures and says why."""
        clock = {"host": "node-0", "offset_ns": 3, "error_ns": 1_000_000_000, "method": "calls"}
        run = late(host="node-0", clocks=[clock])
        assert main(["report", str(run.path), "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["rollout"] == []
        assert any("its clock is known within 1 s only" in each["problem"] for each in report["problems"])

    def test_a_window_of_another_step_in_the_same_capture(self, late, run, capsys):
        """A window that joined the capture of another step has only the forward steps
        between its own begin and end.
        """
        late()
        start = 1_700_000_000_000_000_000
        joined = record_engine(
            run,
            data=b"",
            step=3,
            host="h",
            status="joined",
            capture={"step": 2, "stem": "rollout/replica-0/rank-0"},
        )
        times = {"start_unix_ns": start + 1_000_000_000, "end_unix_ns": start + 1_300_000_000}
        record(run, step=3, role="rollout")
        tell_engines(run, {**joined, **times, "start_seconds": None, "stop_seconds": None}, step=3)
        assert main(["report", str(run.path), "--step", "3", "--json"]) == 0
        [rollout] = json.loads(capsys.readouterr().out)["rollout"]
        assert rollout["iterations"] == 30


def forward_steps(timeline):
    """Return the number of forward steps in a timeline."""
    return sum(each["category"] == "iteration" for each in Timeline(timeline.read_bytes()).slices)

"""The commands `ls`, `show` and `check`, for people and for programs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from runs import make_run, record, region, write_spans

import stepprof
from stepprof.cli import main as cli
from stepprof.cli.commands.show import render_step
from stepprof.cli.main import main
from stepprof.formatting import printable, size, table
from stepprof.run.layout import open_run
from stepprof.run.summary import region_times


@pytest.fixture
def output_dir(tmp_path, monkeypatch):
    """Return the folder of runs, which the environment names."""
    monkeypatch.setenv("STEPPROF_OUTPUT_DIR", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def a_run(output_dir):
    """Return a run with two ranks of one step, each with a trace and spans."""
    run = make_run(output_dir, config={"ranks": "all", "roles": {}})
    for rank in (0, 1):
        record(run, rank=rank, version=5)
        later = {"start": 1_700_000_005_000_000_000, "error": True}
        write_spans(run, rank, region("update_actor", 1 + rank), region("update_actor", 1, **later))
    return run


def printed(capsys, *arguments, status=0):
    """Return the output of a command that must end with this exit status."""
    assert main(list(arguments)) == status
    return capsys.readouterr().out


def as_json(capsys, *arguments, status=0):
    content = json.loads(printed(capsys, *arguments, "--json", status=status))
    assert content.pop("schema_version") == 1
    return content


class TestMain:
    def test_help_names_every_command(self, capsys):
        """The help lists every command and explains the exit status."""
        with pytest.raises(SystemExit) as ended:
            main(["--help"])
        out = capsys.readouterr().out
        assert ended.value.code == 0
        assert all(name in out for name in cli.COMMANDS)
        assert "exit status" in out

    def test_version(self, capsys):
        """The version is that of the package, also in a source tree that is not installed."""
        with pytest.raises(SystemExit):
            main(["--version"])
        assert capsys.readouterr().out == f"stepprof {stepprof.__version__}\n"

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["sow"], '"sow": unknown command; did you mean "show"?'),
            (["xyz"], '"xyz": unknown command;'),
            (["--sow"], '"--sow": unknown option;'),
            (["show", "--stpe", "2"], '"--stpe": unknown option; did you mean "--step"?'),
            (["show", "a", "b"], '"b": unknown option;'),
            (["show", "--step", "x"], "argument --step: invalid int value: 'x';"),
        ],
    )
    def test_wrong_arguments(self, arguments, said, capsys):
        """The exit status is 2. One line has the argument and, where there is one, the most similar
        valid value.
        """
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
        assert line.endswith('--help" shows its options')

    def test_no_arguments_at_all(self, capsys):
        """The exit status is 2, and the usage and all commands are printed."""
        with pytest.raises(SystemExit) as ended:
            main([])
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert all(name in said for name in ("usage: stepprof", *cli.COMMANDS))

    def test_an_error_is_one_line(self, output_dir, capsys):
        """An error that the user can correct is one line without a traceback."""
        assert main(["show", "nothing"]) == 2
        assert capsys.readouterr().err.startswith('stepprof show: run "nothing": neither a run')

    def test_an_interrupted_command_ends_with_130(self, monkeypatch, output_dir):
        """The exit status is 130, as for a process that SIGINT ended."""
        from stepprof.cli.commands import ls

        def interrupted(_):
            raise KeyboardInterrupt

        monkeypatch.setattr(ls, "list_runs", interrupted)
        assert main(["ls"]) == 130

    @pytest.mark.parametrize("arguments", ["ls --json", "report", "report --json"])
    def test_prints_until_the_pipe_is_closed(self, a_run, arguments):
        """If the reader closes the pipe, as `head` does, the command ends with status 0 and no traceback."""
        done = subprocess.run(
            f"{sys.executable} -m stepprof {arguments} | true; exit ${{PIPESTATUS[0]}}",
            shell=True,
            executable="/bin/bash",
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert (done.returncode, done.stderr) == (0, "")

    def test_another_broken_pipe_is_raised(self, monkeypatch, output_dir):
        """A broken pipe other than stdout is an error and is raised."""
        from stepprof.cli.commands import ls

        def broken(_):
            raise BrokenPipeError

        monkeypatch.setattr(ls, "list_runs", broken)
        with pytest.raises(BrokenPipeError):
            main(["ls"])

    def test_reading_loads_nothing_heavy(self, a_run):
        """`show` imports neither torch nor Ray, numpy, rich, structlog or transitions."""
        code = (
            "import sys\nfrom stepprof.cli.main import main\nmain(['show'])\n"
            "heavy = {'torch', 'ray', 'numpy', 'rich', 'structlog', 'transitions'} & set(sys.modules)\n"
            "sys.exit(f'{heavy}' if heavy else 0)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


class TestRun:
    """The choice of a run."""

    @pytest.mark.parametrize(
        "command", ["ls", "show", "status", "trigger", "spans", "check", "analyse", "open"]
    )
    def test_a_folder_with_nothing_of_a_run(self, command, a_run, tmp_path, capsys):
        """Every command refuses the folder and names the existing runs."""
        (tmp_path / "docs").mkdir()
        assert main([command, str(tmp_path / "docs")]) == 2
        assert 'docs": is not a run; the newest under' in capsys.readouterr().err

    def test_a_run_as_the_folder_of_runs(self, a_run, capsys):
        """A run is given as `--output-dir`. The error says to pass it as RUN."""
        for command in ("ls", "show", "report"):
            assert main([command, "--output-dir", str(a_run.path)]) == 2
            assert "is a run, not a folder of runs; pass it as RUN" in capsys.readouterr().err

    def test_the_folder_of_a_step(self, a_run, capsys):
        """The folder of a step selects this step of its run."""
        record(a_run, step=3)
        record(a_run, step=4)
        folder = str(a_run.path / "step-000003")
        assert as_json(capsys, "show", folder)["manifest"]["step"] == 3
        assert as_json(capsys, "ls", folder)["run_id"] == "r"
        assert main(["show", folder, "--step", "4"]) == 2
        assert 'step-000003" is step 3; omit one of them' in capsys.readouterr().err


@contextlib.contextmanager
def as_ordinary_user():
    """Run as a user to whom file permissions apply."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(was)


class TestPermissions:
    @pytest.fixture
    def folder(self, monkeypatch, capsys):
        """Return a folder of two runs, one of which cannot be read.

        All commands have run once before, so that their modules are imported: the user may be
        unable to read Python's files too.
        """
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            folder.chmod(0o755)
            for run_id in ("mine", "theirs"):
                run = make_run(folder, run_id)
                record(run)
                write_spans(run, 0, region("update", 1))
            for command in ("ls", "show", "check", "merge", "report", "spans"):
                assert main([command, str(folder / "mine")]) in (0, 1)
            capsys.readouterr()
            (folder / "theirs").chmod(0o000)
            monkeypatch.setenv("STEPPROF_OUTPUT_DIR", name)
            yield folder
            for path in (folder / "theirs", folder / "mine" / "spans"):
                path.chmod(0o755)

    def test_an_unreadable_run_is_reported(self, folder, capsys):
        """An unreadable run is not listed. If it is named, the error says that it cannot be read."""
        with as_ordinary_user():
            assert [each["run_id"] for each in as_json(capsys, "ls")["runs"]] == ["mine"]
            for command in ("ls", "show", "check", "merge", "report"):
                assert main([command, str(folder / "theirs")]) == 2
                assert "theirs" in (said := capsys.readouterr().err)
                assert "Permission denied" in said

    def test_unreadable_spans_are_reported(self, folder, capsys):
        """Unreadable spans are reported, and all other data is shown."""
        (folder / "mine" / "spans").chmod(0o000)
        with as_ordinary_user():
            assert "spans/: cannot be read: Permission denied" in printed(capsys, "spans", "mine", status=1)
            report = json.loads(printed(capsys, "report", "mine", "--json"))
        assert {
            "source": None,
            "problem": "the spans cannot be read: Permission denied",
            "unread": False,
        } in report["problems"]


class TestLs:
    def test_no_runs(self, output_dir, capsys):
        """The message has the folder in which no run was found."""
        assert printed(capsys, "ls") == f"no runs in {output_dir}\n"
        assert as_json(capsys, "ls") == {"output_dir": str(output_dir), "runs": []}

    def test_runs(self, a_run, output_dir, capsys):
        """The table has one line for each run, the newest last."""
        lines = printed(capsys, "ls").splitlines()
        assert lines[0].split() == ["run", "world", "steps", "windows", "engines", "bytes", "path"]
        assert lines[1].split()[:5] == ["r", "2", "2", "2", "complete"]
        assert lines[1].endswith(str(output_dir / "r"))

    def test_runs_for_a_program(self, a_run, output_dir, capsys):
        """The JSON has stable keys."""
        make_run(output_dir, "empty")
        (run,) = (run for run in as_json(capsys, "ls")["runs"] if run["run_id"] == "r")
        assert run["steps"] == [2]
        assert run["statuses"] == {"complete": 2}
        assert run["bytes"] > 0
        assert set(run) == {"run_id", "path", "world_size", "steps", "statuses", "engines", "bytes"}

    def test_steps(self, a_run, capsys):
        """The table has one line for each step of the run."""
        record(a_run, step=10, rank="driver", data=b"", status="failed", role=None)
        for step in range(11, 16):
            record(a_run, step=step)
        lines = printed(capsys, "ls", "r").splitlines()
        assert lines[2].split()[:4] == ["2", "5", "2", "complete"]
        assert lines[3].split()[:8] == ["10", "-", "1", "failed", "-", "step", "driver", "0"]
        assert "2, 10, 11, …, 15, (7)" in printed(capsys, "ls")

    def test_steps_for_a_program(self, a_run, capsys):
        """The JSON has stable keys."""
        content = as_json(capsys, "ls", str(a_run.path))
        (step,) = content["steps"]
        assert (step["step"], step["version"], step["ranks"], step["roles"]) == (2, 5, [0, 1], ["actor"])
        assert (step["statuses"], step["artifacts"], step["findings"]) == ({"complete": 2}, 2, 0)

    def test_a_run_without_steps(self, output_dir, capsys):
        """The output says that no step is recorded."""
        make_run(output_dir)
        assert printed(capsys, "ls", "r").splitlines()[1] == "no step is recorded"
        assert printed(capsys, "ls", "--output-dir", str(output_dir)).splitlines()[1].split()[:4] == [
            "r",
            "2",
            "-",
            "-",
        ]


class TestShow:
    def test_per_rank_and_role(self, a_run, capsys):
        """The tables have status, bytes, events, stall and export seconds for each rank, the
        folder, and seconds per region.
        """
        out = printed(capsys, "show", "--step", "2")
        lines = [line.split() for line in out.splitlines()]
        assert lines[0] == ["run", "r", "step", "2", "version", "5"]
        row = ["actor", "0", "complete", "torch", "1.500", "0.012", "0.250", "3"]
        assert [cell for cell in lines[3] if cell in row] == row
        assert f"in {a_run.path / 'step-000002'}:" in out
        assert "actor/rank-1.trace.json.gz" in out
        assert ["actor", "update_actor", "4", "2", "2.000", "3.000"] in lines
        assert "notes" not in out

    def test_the_last_step_by_default(self, a_run, capsys):
        """Without `--step`, the last step of the newest run is shown."""
        record(a_run, step=7)
        assert printed(capsys, "show").startswith("run r  step 7\n")

    def test_json_has_the_combined_manifest(self, a_run, capsys):
        """The JSON has the combined manifest, the regions, and the missing ranks."""
        content = as_json(capsys, "show", "r")
        assert content["manifest"]["schema_version"] == 1
        assert content["regions"][0] == {
            "name": "update_actor",
            "role": "actor",
            "rank": 0,
            "count": 2,
            "seconds": 2.0,
            "errors": 1,
        }
        assert content["missing"] == content["span_findings"] == []
        assert content["folder"].endswith("/r/step-000002")

    def test_incomplete_windows_are_shown_with_reasons(self, output_dir):
        """Each window that did not complete is listed with its reason, and so is each missing rank."""
        run = make_run(output_dir, config={"ranks": "0", "roles": {"actor": {"ranks": "all"}, "critic": {}}})
        record(run, data=b"", status="lost", error="killed")
        record(
            run,
            role="critic",
            status="partial",
            capped_by="max_seconds",
            body_error="ValueError: x",
            occurrence=2,
        )
        record(
            run,
            role="critic",
            status="joined",
            data=b"",
            capture={"step": 1, "stem": "step/rank-0"},
            start_unix_ns=None,
        )
        record(run, role="ref", status="joined", data=b"", capture={"stem": "step/rank-0"})
        run.claim(2, "x", 0, {}).fragment.write_bytes(b"{")
        run.spans_path(0).write_bytes(b"{\n")
        text = render_step(run.path, 2)
        for note in (
            "actor rank 0: lost: killed",
            'actor: no window of rank 1, which ranks = "all" selects',
            "critic (2) rank 0: partial\n",
            "critic (2) rank 0: ended early, capped by max_seconds",
            "critic (2) rank 0: the body raised ValueError: x",
            "x-rank-0.json: damaged: ",
            "spans/rank-0.000001.jsonl: 1 damaged line",
        ):
            assert f"  {note}" in text
        assert "step-000001/step/rank-0" in text  # the captures that the windows joined
        assert "critic: no window" not in text

    @pytest.mark.parametrize(
        "config",
        [
            None,
            {"ranks": "0 and 1"},
            {"ranks": None},
            {"roles": {"actor": {"ranks": "0"}}},
            {"ranks": "0-1", "roles": []},
        ],
    )
    def test_without_a_configuration_no_rank_is_called_absent(self, output_dir, config):
        """Without a readable configuration, no rank is reported as absent."""
        run = make_run(output_dir, **({"config": config} if config is not None else {}))
        record(run, world_size=1)
        assert "no window of rank" not in render_step(run.path, 2)

    def test_only_the_first_absent_ranks_are_listed(self, output_dir):
        """The first eight absent ranks are listed, and the others are counted."""
        run = make_run(output_dir, config={"ranks": "all"})
        record(run, world_size=64)
        assert "no window of rank 1, 2, 3, 4, 5, 6, 7, 8 and 55 more" in render_step(run.path, 2)

    def test_many_ranks_show_the_spread_and_the_slowest(self, output_dir):
        """For many ranks, each region has the least, median and most seconds and the slowest rank."""
        run = make_run(output_dir)
        for rank in range(8):
            record(run, rank=rank)
            write_spans(
                run,
                rank,
                region("f", rank),
                {"name": "m", "kind": "mark", "step": 2},
                region("g", 1, role=None),
            )
        lines = [line.split() for line in render_step(run.path, 2).splitlines()]
        assert ["actor", "f", "8", "-", "8", "0.000", "3.500", "7.000", "7"] in lines
        assert ["step", "g", "8", "-", "8", "1.000", "1.000", "1.000", "0"] in lines

    def test_a_step_without_a_window(self, output_dir):
        """The output says that no window is recorded."""
        run = make_run(output_dir)
        (run.path / "step-000002").mkdir()
        assert "no window is recorded" in render_step(run.path, 2)

    def test_a_region_without_a_duration(self, output_dir):
        """A span line without a duration is damaged. It is reported and not shown with made-up seconds."""
        run = make_run(output_dir)
        write_spans(run, 0, {**region("f", 1), "dur": None, "role": 3})
        regions = region_times(run.path, 2)
        assert regions.times == []
        assert [each["problem"] for each in regions.findings] == ["1 damaged line ignored"]

    @pytest.mark.parametrize(
        ("recorded", "arguments", "message"),
        [
            ([], [], "no step is recorded"),
            ([2, 9], ["--step", "7"], "step 7: not recorded in .*; did you mean 9"),
        ],
    )
    def test_no_such_step(self, output_dir, capsys, recorded, arguments, message):
        """The error has the most similar recorded step."""
        import re

        run = make_run(output_dir)
        for step in recorded:
            record(run, step=step)
        assert main(["show", *arguments]) == 2
        assert re.search(message, capsys.readouterr().err)


class TestCheck:
    def test_a_complete_run_passes(self, a_run, capsys):
        """The check of a complete run prints one line that begins with `ok`; the exit status is 0."""
        assert printed(capsys, "check").startswith("ok: 1 step, 2 windows, 2 artifacts, ")

    def test_each_problem_is_on_its_own_line(self, a_run, capsys):
        """The exit status is 1, and every problem is on its own line."""
        (a_run.path / "step-000002" / "actor" / "rank-0.trace.json.gz").unlink()
        (a_run.path / "step-000002" / "actor" / "left").touch()
        lines = printed(capsys, "check", "r", status=1).splitlines()
        assert lines[0] == "note     step-000002/actor/left: not listed in any manifest"
        assert lines[1] == "PROBLEM  step-000002/actor/rank-0.trace.json.gz: is missing"
        assert lines[2].startswith("1 problem: ")

    def test_a_run_without_artifacts_fails(self, tmp_path, capsys):
        """The check of a run without recorded steps fails with exit status 1."""
        (tmp_path / "spans").mkdir()
        assert "no step is recorded" in printed(capsys, "check", str(tmp_path), status=1)
        content = as_json(capsys, "check", str(tmp_path), status=1)
        assert content["ok"] is False
        assert content["checked"] == {"steps": 0, "windows": 0, "engines": 0, "artifacts": 0, "bytes": 0}
        assert content["problems"][0] == {"step": None, "where": "run.json", "problem": "missing"}

    def test_json_of_a_whole_run_has_status_0(self, a_run, capsys):
        """The exit status is 0, and the JSON has no problems or notes."""
        content = as_json(capsys, "check")
        assert (content["ok"], content["problems"], content["notes"]) == (True, [], [])

    def test_no_such_run(self, output_dir, capsys):
        """If there is no run to check, the exit status is 2."""
        assert main(["check"]) == 2


class TestTables:
    def test_columns(self):
        """Each column is as wide as its longest cell. No line ends in blanks."""
        assert table(["a", "b"], [["xxx", 1], [None, 22]], "lr") == "a     b\nxxx   1\n-    22"

    def test_control_characters_are_replaced(self):
        """Names come from the user's program and may contain control characters."""
        assert printable("a\x1b[2Jb\n") == "a?[2Jb?"

    @pytest.mark.parametrize(
        ("count", "text"), [(None, "-"), (1023, "1023 B"), (2**20, "1.0 MiB"), (3 * 2**40, "3.0 TiB")]
    )
    def test_sizes(self, count, text):
        """Sizes are printed in binary units."""
        assert size(count) == text


def test_a_run_without_a_step_fails_the_check(tmp_path):
    """A run that a process has just created can be checked; the check fails because no step is recorded."""
    run = open_run(tmp_path, run_id=None, rank=0, world_size=1, environ={}, description={})
    assert main(["check", str(run.path)]) == 1

"""The command line: ls, show and check, for people and for programs."""

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
    """The folder of runs, as the environment names it."""
    monkeypatch.setenv("STEPPROF_OUTPUT_DIR", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def a_run(output_dir):
    """Two ranks of one step, each with a trace and spans."""
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
        """The help names every command and the exit status."""
        with pytest.raises(SystemExit) as ended:
            main(["--help"])
        out = capsys.readouterr().out
        assert ended.value.code == 0
        assert all(name in out for name in cli.COMMANDS)
        assert "exit status" in out

    def test_version(self, capsys):
        """The package's own, also from a source tree that is not installed."""
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
        """The exit status is 2, and one line names the valid values or the command that lists them."""
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
        assert line.endswith('--help" shows its options')

    def test_no_arguments_at_all(self, capsys):
        """Status 2, and all that there is."""
        with pytest.raises(SystemExit) as ended:
            main([])
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert all(name in said for name in ("usage: stepprof", *cli.COMMANDS))

    def test_an_error_is_one_line(self, output_dir, capsys):
        """No traceback for what the user can put right."""
        assert main(["show", "nothing"]) == 2
        assert capsys.readouterr().err.startswith('stepprof show: run "nothing": neither a run')

    def test_an_interrupted_command_ends_with_130(self, monkeypatch, output_dir):
        """Status 130, as of a process that SIGINT ended."""
        from stepprof.cli.commands import ls

        def interrupted(_):
            raise KeyboardInterrupt

        monkeypatch.setattr(ls, "list_runs", interrupted)
        assert main(["ls"]) == 130

    @pytest.mark.parametrize("arguments", ["ls --json", "report", "report --json"])
    def test_prints_until_the_pipe_is_closed(self, a_run, arguments):
        """`stepprof show | head -1` ends without a traceback, and well."""
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
        """A broken pipe other than stdout's is an error, not a reader that stopped reading."""
        from stepprof.cli.commands import ls

        def broken(_):
            raise BrokenPipeError

        monkeypatch.setattr(ls, "list_runs", broken)
        with pytest.raises(BrokenPipeError):
            main(["ls"])

    def test_reading_loads_nothing_heavy(self, a_run):
        """The reading commands import neither torch nor the packages of the recording side."""
        code = (
            "import sys\nfrom stepprof.cli.main import main\nmain(['show'])\n"
            "heavy = {'torch', 'ray', 'numpy', 'rich', 'structlog', 'transitions'} & set(sys.modules)\n"
            "sys.exit(f'{heavy}' if heavy else 0)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


class TestRun:
    """The selection of a run."""

    @pytest.mark.parametrize(
        "command", ["ls", "show", "status", "trigger", "spans", "check", "analyse", "open"]
    )
    def test_a_folder_with_nothing_of_a_run(self, command, a_run, tmp_path, capsys):
        """Every command refuses the folder and names the existing runs."""
        (tmp_path / "docs").mkdir()
        assert main([command, str(tmp_path / "docs")]) == 2
        assert 'docs": is not a run; the newest under' in capsys.readouterr().err

    def test_a_run_as_the_folder_of_runs(self, a_run, capsys):
        """The error names the right form."""
        for command in ("ls", "show", "report"):
            assert main([command, "--output-dir", str(a_run.path)]) == 2
            assert "is a run, not a folder of runs; pass it as RUN" in capsys.readouterr().err

    def test_the_folder_of_a_step(self, a_run, capsys):
        """Means that step of its run."""
        record(a_run, step=3)
        record(a_run, step=4)
        folder = str(a_run.path / "step-000003")
        assert as_json(capsys, "show", folder)["manifest"]["step"] == 3
        assert as_json(capsys, "ls", folder)["run_id"] == "r"
        assert main(["show", folder, "--step", "4"]) == 2
        assert 'step-000003" is step 3; omit one of them' in capsys.readouterr().err


@contextlib.contextmanager
def as_ordinary_user():
    """Run as a user to whom permissions apply."""
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
        """Of two runs, one of which nobody may look into. What the commands import has been imported: Python's own files may be closed as well."""
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
        """The run is not listed. If it is named, the message says that it cannot be read."""
        with as_ordinary_user():
            assert [each["run_id"] for each in as_json(capsys, "ls")["runs"]] == ["mine"]
            for command in ("ls", "show", "check", "merge", "report"):
                assert main([command, str(folder / "theirs")]) == 2
                assert "theirs" in (said := capsys.readouterr().err)
                assert "Permission denied" in said

    def test_unreadable_spans_are_reported(self, folder, capsys):
        """Unreadable spans are reported. All other data is shown."""
        (folder / "mine" / "spans").chmod(0o000)
        with as_ordinary_user():
            assert "spans/: cannot be read: Permission denied" in printed(capsys, "spans", "mine", status=1)
            report = json.loads(printed(capsys, "report", "mine", "--json"))
        assert {"source": None, "problem": "the spans cannot be read: Permission denied"} in report[
            "problems"
        ]


class TestLs:
    def test_no_runs(self, output_dir, capsys):
        """The message names the folder."""
        assert printed(capsys, "ls") == f"no runs in {output_dir}\n"
        assert as_json(capsys, "ls") == {"output_dir": str(output_dir), "runs": []}

    def test_runs(self, a_run, output_dir, capsys):
        """One line each, the newest last."""
        lines = printed(capsys, "ls").splitlines()
        assert lines[0].split() == ["run", "world", "steps", "windows", "engines", "bytes", "path"]
        assert lines[1].split()[:5] == ["r", "2", "2", "2", "complete"]
        assert lines[1].endswith(str(output_dir / "r"))

    def test_runs_for_a_program(self, a_run, output_dir, capsys):
        """Stable keys."""
        make_run(output_dir, "empty")
        (run,) = (run for run in as_json(capsys, "ls")["runs"] if run["run_id"] == "r")
        assert run["steps"] == [2]
        assert run["statuses"] == {"complete": 2}
        assert run["bytes"] > 0
        assert set(run) == {"run_id", "path", "world_size", "steps", "statuses", "engines", "bytes"}

    def test_steps(self, a_run, capsys):
        """One line for each step of a run."""
        record(a_run, step=10, rank="driver", data=b"", status="failed", role=None)
        for step in range(11, 16):
            record(a_run, step=step)
        lines = printed(capsys, "ls", "r").splitlines()
        assert lines[2].split()[:4] == ["2", "5", "2", "complete"]
        assert lines[3].split()[:8] == ["10", "-", "1", "failed", "-", "step", "driver", "0"]
        assert "2, 10, 11, …, 15, (7)" in printed(capsys, "ls")

    def test_steps_for_a_program(self, a_run, capsys):
        """Stable keys."""
        content = as_json(capsys, "ls", str(a_run.path))
        (step,) = content["steps"]
        assert (step["step"], step["version"], step["ranks"], step["roles"]) == (2, 5, [0, 1], ["actor"])
        assert (step["statuses"], step["artifacts"], step["findings"]) == ({"complete": 2}, 2, 0)

    def test_a_run_without_steps(self, output_dir, capsys):
        """The message says so."""
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
        """Status, bytes, events, stall and export seconds; where it lies; seconds per region of each rank."""
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
        """By default the last step of the newest run is used."""
        record(a_run, step=7)
        assert printed(capsys, "show").startswith("run r  step 7\n")

    def test_json_has_the_combined_manifest(self, a_run, capsys):
        """The manifest as the readers combine it, the regions, and what is missing."""
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
        """Each window that did not end well has its reason; so has each rank that is not there."""
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
        assert "step-000001/step/rank-0" in text  # what the joined windows are in
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
        """Without a configuration that can be read, no rank is claimed to be absent."""
        run = make_run(output_dir, **({"config": config} if config is not None else {}))
        record(run, world_size=1)
        assert "no window of rank" not in render_step(run.path, 2)

    def test_only_the_first_absent_ranks_are_listed(self, output_dir):
        """The first of them, and how many more."""
        run = make_run(output_dir, config={"ranks": "all"})
        record(run, world_size=64)
        assert "no window of rank 1, 2, 3, 4, 5, 6, 7, 8 and 55 more" in render_step(run.path, 2)

    def test_many_ranks_show_the_spread_and_the_slowest(self, output_dir):
        """The spread over the ranks, and the slowest."""
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
        """The message says so."""
        run = make_run(output_dir)
        (run.path / "step-000002").mkdir()
        assert "no window is recorded" in render_step(run.path, 2)

    def test_a_region_without_a_duration(self, output_dir):
        """A damaged line, and no seconds made up."""
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
        """Names the nearest."""
        import re

        run = make_run(output_dir)
        for step in recorded:
            record(run, step=step)
        assert main(["show", *arguments]) == 2
        assert re.search(message, capsys.readouterr().err)


class TestCheck:
    def test_a_complete_run_passes(self, a_run, capsys):
        """Status 0 and one line."""
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
        """A run without artifacts fails the check."""
        (tmp_path / "spans").mkdir()
        assert "no step is recorded" in printed(capsys, "check", str(tmp_path), status=1)
        content = as_json(capsys, "check", str(tmp_path), status=1)
        assert content["ok"] is False
        assert content["checked"] == {"steps": 0, "windows": 0, "engines": 0, "artifacts": 0, "bytes": 0}
        assert content["problems"][0] == {"step": None, "where": "run.json", "problem": "missing"}

    def test_json_of_a_whole_run_has_status_0(self, a_run, capsys):
        """The exit status is 0, and the JSON lists no problem."""
        content = as_json(capsys, "check")
        assert (content["ok"], content["problems"], content["notes"]) == (True, [], [])

    def test_no_such_run(self, output_dir, capsys):
        """Status 2: nothing was checked."""
        assert main(["check"]) == 2


class TestTables:
    def test_columns(self):
        """As wide as they must be, without trailing blanks."""
        assert table(["a", "b"], [["xxx", 1], [None, 22]], "lr") == "a     b\nxxx   1\n-    22"

    def test_control_characters_are_replaced(self):
        """Names come from the user's program."""
        assert printable("a\x1b[2Jb\n") == "a?[2Jb?"

    @pytest.mark.parametrize(
        ("count", "text"), [(None, "-"), (1023, "1023 B"), (2**20, "1.0 MiB"), (3 * 2**40, "3.0 TiB")]
    )
    def test_sizes(self, count, text):
        """Binary units."""
        assert size(count) == text


def test_claims_are_made_before_a_reader_looks(tmp_path):
    """A run that another process has only just opened is listed, and shows nothing yet."""
    run = open_run(tmp_path, run_id=None, rank=0, world_size=1, environ={}, description={})
    assert main(["check", str(run.path)]) == 1

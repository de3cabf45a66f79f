"""Commands on a run whose folder cannot be written, or whose disk is full: what was read is printed all the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from runs import make_run, record, region, write_spans

PROGRAM = Path(sys.executable).with_name("stepprof")
READ_ONLY = 'mount --bind "$1" "$1"; mount -o remount,ro,bind "$1"'
FULL = 'cp -r "$1" "$2"; mount -t tmpfs -o size=1m none "$1"; cp -r "$2/r" "$1"; cat /dev/zero > "$1/filler" || true'
"""Shell scripts that make a folder read-only, or the disk that it is on full, in a mount namespace of their own."""


def can_mount() -> bool:
    unshare = shutil.which("unshare")
    tried = unshare and subprocess.run(
        [unshare, "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True
    )
    return bool(tried) and tried.returncode == 0


@pytest.fixture
def runs(tmp_path):
    """Return a folder with one run."""
    run = make_run(tmp_path / "runs", "r")
    for step in (2, 3):
        record(run, step=step)
    write_spans(run, 0, region("update", 1.0), region("update", 0.5, step=3))
    return tmp_path / "runs"


@pytest.fixture(params=[pytest.param(READ_ONLY, id="read-only"), pytest.param(FULL, id="full")])
def stepprof(request, runs, tmp_path):
    """Return a function that runs a command where the folder of the runs cannot be written."""
    if not can_mount():
        pytest.skip("mounting a file system needs root and a mount namespace")

    def call(*arguments, until=None):
        script = (
            f'{request.param} 2>/dev/null; shift 2; "$@"; status=$?; ls -A "$RUNS"/r/step-* >&2; exit $status'
        )
        command = ["unshare", "-m", "sh", "-c", script, "sh", runs, tmp_path / "copy"]
        process = subprocess.Popen(
            [*map(str, command), str(PROGRAM), *map(str, arguments)],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "RUNS": str(runs), "STEPPROF_OUTPUT_DIR": str(runs)},
        )  # fmt: skip
        out = ""
        if until:
            for line in process.stdout:
                out += line
                if until in line:
                    break
            psutil.Process(process.pid).children()[0].send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=200)
        assert "Traceback" not in err
        return process.returncode, out + rest, err

    return call


class TestReport:
    def test_the_text_is_printed(self, stepprof, runs):
        """The files that belong to the text are not written, which is said. It is no failure: nobody asked for them."""
        status, out, err = stepprof("report", "--step", "2")
        assert status == 0
        assert "step 2" in out
        assert f'"{runs}/r/step-000002/report.html": cannot be written: ' in err
        assert f'"{runs}/r/step-000002/report.json": cannot be written: ' in err
        assert "report.html" not in out

    def test_a_file_that_was_asked_for(self, stepprof, runs, tmp_path):
        """The other outputs are complete, and the exit status is 1."""
        status, out, err = stepprof("report", "--html", runs / "a.html", "--json", tmp_path / "a.json")
        assert status == 1
        assert "a.html" in err
        assert out.splitlines()[-1] == str(tmp_path / "a.json")
        assert json.loads((tmp_path / "a.json").read_text())["step"] == 3

    def test_json_is_printed(self, stepprof):
        status, out, _ = stepprof("report", "--json", "--step", "3")
        assert (status, json.loads(out)["step"]) == (0, 3)

    def test_a_comparison(self, stepprof, runs):
        status, out, err = stepprof("report", "r:2", "r:3", "--html", runs / "a.html")
        assert status == 1
        assert "step 3" in out
        assert "a.html" in err


class TestOtherCommands:
    def test_merge_names_the_option(self, stepprof, runs):
        """A timeline has no other output. No part of one is left."""
        status, _, err = stepprof("merge", "--step", "2")
        assert status == 2
        assert f'output = "{runs}/r/step-000002/timeline.pftrace": cannot be written: ' in err
        assert "--output" in err
        assert "\ntimeline" not in err
        assert ".merge-" not in err

    def test_merge_elsewhere(self, stepprof, tmp_path):
        status, *_ = stepprof("merge", "--step", "2", "--output", tmp_path / "t.pftrace")
        assert (status, (tmp_path / "t.pftrace").exists()) == (0, True)

    def test_open_shows_a_temporary_timeline(self, stepprof):
        pytest.importorskip("viztracer")
        _, out, err = stepprof("open", "--step", "2", "--no-browser", until="Ctrl-C")
        assert "http://127.0.0.1:" in out
        assert "the timeline is temporary" in err
        assert not Path(out.splitlines()[1]).exists()

    @pytest.mark.parametrize("command", ["check", "ls", "show", "spans", "status"])
    def test_commands_that_only_print(self, stepprof, command):
        status, out, _ = stepprof(command)
        assert status in (0, 1)
        assert out

    def test_export(self, stepprof, runs, tmp_path):
        """No half file is left, and the message names the option."""
        status, _, err = stepprof("export", "--parquet", runs / "tables")
        assert status == 2
        assert f'--parquet "{runs}/tables": cannot be written' in err
        assert stepprof("export", "--parquet", tmp_path / "tables")[0] == 0


class TestOutput:
    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
    @pytest.mark.parametrize("command", [["ls"], ["report"], ["report", "--json"], ["spans"]])
    def test_a_full_disk_behind_stdout(self, runs, command):
        """One line says so, and the exit status is 2."""
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [PROGRAM, *command, "--output-dir", runs] if command == ["ls"] else [PROGRAM, *command[:1], runs / "r", *command[1:]],
                stdout=full, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert done.returncode == 2
        assert (
            done.stderr == f"stepprof {command[0]}: the output cannot be written: No space left on device\n"
        )

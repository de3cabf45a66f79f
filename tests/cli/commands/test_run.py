"""The command `stepprof run`: the job runs as without it, and the recorded steps are printed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_framework import write

import stepprof.integrations.bootstrap

BOOTSTRAP = str(Path(stepprof.integrations.bootstrap.__file__).parent)
JOB = """
import os, subprocess, sys
from stepprof.integrations.activation import register
from adapted import FAKE
if os.environ.get("STEPPROF_STEPS"):
    register(FAKE)
import framework
framework.Trainer().fit()
print(os.environ["STEPPROF_STEPS"], os.environ.get("STEPPROF_RANKS"), len(framework.CALLS), *sys.argv[1:])
"""

LOOP = """
import stepprof
stepprof.init({given})
for step in range(1, 5):
    with stepprof.profile_step(step):
        pass
"""


def run(folder, *arguments, **variables):
    """Run `stepprof run` in a folder and return the finished process."""
    return subprocess.run(
        [sys.executable, "-m", "stepprof", "run", *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


class TestRun:
    def test_a_job_is_recorded(self, tmp_path) -> None:
        """The options become environment variables, and the job keeps its own arguments. The next
        command is printed.
        """
        write(tmp_path)
        (tmp_path / "job.py").write_text(JOB)
        job = ["--", sys.executable, "job.py", "--steps", "9"]
        done = run(tmp_path, "--steps", "2", "--ranks", "all", "--backend", "null", *job)
        assert (done.returncode, done.stdout) == (0, "2 all 8 --steps 9\n"), done.stderr
        assert "step 2 is recorded (1 complete, 1 joined); next: stepprof report" in done.stderr

    def test_processes_that_the_job_starts(self, tmp_path) -> None:
        """Adapters are registered in all child processes that inherit the environment."""
        (tmp_path / "job.py").write_text(
            "import multiprocessing, subprocess, sys\n"
            "def look():\n    print('stepprof_autoload' in sys.modules, flush=True)\n"
            "if __name__ == '__main__':\n"
            "    look()\n"
            "    child = multiprocessing.get_context('spawn').Process(target=look)\n"
            "    child.start(), child.join()\n"
            "    subprocess.run([sys.executable, '-c', 'import job; job.look()'])\n"
        )
        done = run(tmp_path, "--steps", "2", sys.executable, "job.py")
        assert done.stdout.split() == ["True"] * 3, done.stderr

    @pytest.mark.parametrize("given", [None, "", "a", ":a", "a:"])
    def test_the_path_has_no_empty_entry_of_ours(self, tmp_path, given) -> None:
        """The job searches the folders that it searches without `stepprof run`, after ours. An empty entry of
        PYTHONPATH would be the working directory: there is one only if the job has it.
        """
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environ |= {} if given is None else {"PYTHONPATH": given}
        look = [sys.executable, str(tmp_path / "look.py")]
        Path(look[1]).write_text(
            "import json, os, sys; print(json.dumps([sys.path, os.environ.get('PYTHONPATH')]))"
        )
        plain, ours = (
            json.loads(subprocess.check_output(command, cwd=tmp_path, env=environ, timeout=100))
            for command in (look, [sys.executable, "-m", "stepprof", "run", "--", *look])
        )
        assert ours[1] == (f"{BOOTSTRAP}:{given}" if given else BOOTSTRAP)
        assert [each for each in ours[0] if each != BOOTSTRAP] == plain[0]

    def test_a_tool_whose_sitecustomize_hides_ours(self, tmp_path) -> None:
        """A tool may put a `sitecustomize` first that does not run the one behind it, as
        opentelemetry-instrument does. The processes behind it are recorded all the same.
        """
        write(tmp_path)
        tool = tmp_path / "tool"
        tool.mkdir()
        (tool / "sitecustomize.py").write_text(
            "import os; os.environ['TOOL'] = os.environ.get('TOOL', '') + 'x'"
        )
        (tmp_path / "job.py").write_text(f"{JOB}\nprint(os.environ['TOOL'])")
        (tmp_path / "instrument.py").write_text(
            "import os, sys\n"
            f"os.environ['PYTHONPATH'] = {str(tool)!r} + os.pathsep + os.environ['PYTHONPATH']\n"
            "os.execv(sys.executable, [sys.executable, 'job.py'])"
        )
        done = run(tmp_path, "--steps", "2", "--backend", "null", "--", sys.executable, "instrument.py")
        assert done.stdout == "2 None 8\nx\n", done.stderr
        assert "step 2 is recorded (1 complete, 1 joined)" in done.stderr

    def test_runs_that_were_there_before(self, tmp_path) -> None:
        """The files of earlier runs are not read before the job, and only new steps are named."""
        (tmp_path / "job.py").write_text(LOOP.format(given=""))
        command = [sys.executable, "job.py"]
        for steps, name in (("1", "other"), ("2", "mine")):
            run(tmp_path, "--steps", steps, "--backend", "null", *command, STEPPROF_RUN_ID=name)
        for path in (tmp_path / "stepprof-runs" / "other").rglob("*.json"):
            path.unlink()
            os.mkfifo(path)  # whatever reads it waits
        done = run(tmp_path, "--steps", "3", "--backend", "null", *command, STEPPROF_RUN_ID="mine")
        assert "step 3 is recorded" in done.stderr
        assert "step 2" not in done.stderr
        assert "other" not in done.stderr

    def test_nothing_was_recorded(self, tmp_path) -> None:
        """The job uses no supported framework: the command says what it looked for, and what such a loop needs."""
        done = run(tmp_path, "--steps", "2", sys.executable, "-c", "print(1)")
        assert done.stdout == "1\n"
        assert "nothing was recorded in stepprof-runs" in done.stderr
        assert "looks for accelerate, areal," in done.stderr
        assert "trl, verl" in done.stderr
        assert "calls stepprof.init() once, and has `with stepprof.profile_step(step):`" in done.stderr

    def test_a_process_without_the_environment_of_the_job(self, tmp_path) -> None:
        """A process that has not inherited the environment may have recorded elsewhere: nothing is said about it."""
        (tmp_path / "job.py").write_text(
            LOOP.format(given="{'steps': '2', 'backend': 'null', 'output_dir': 'mine'}")
        )
        done = run(tmp_path, "--steps", "2", "--", "env", "-i", sys.executable, "job.py")
        assert list(tmp_path.glob("mine/*/step-000002"))
        first = done.stderr.splitlines()[-3]
        assert first.startswith(
            "stepprof: nothing was recorded in stepprof-runs, and no process with the job's environment "
        )

    @pytest.mark.parametrize(
        ("given", "switch", "reason"),
        [
            ("", "0", "$STEPPROF switches stepprof off"),
            ("{'enabled': False, 'steps': 2}", "", "a process of the job has enabled = false"),
            ("{'spans': False}", "", "in a process of the job no step is selected, and spans = false"),
        ],
    )
    def test_a_session_that_is_off(self, tmp_path, given, switch, reason) -> None:
        """The loop calls `init`, and its configuration or $STEPPROF switches it off: the command says so, and looks for no framework."""
        (tmp_path / "job.py").write_text(LOOP.format(given=given))
        done = run(tmp_path, "--steps", "3", sys.executable, "job.py", STEPPROF=switch)
        assert done.stderr.splitlines()[-1] == f"stepprof: nothing was recorded: {reason}"
        assert "looks for" not in done.stderr

    @pytest.mark.parametrize("given", ["'stepprof.toml'", "{'steps': 2, 'backend': 'null'}"])
    def test_options_that_the_script_overrides(self, tmp_path, given) -> None:
        """The script passes its own configuration: one line in the job, and one at its end, name the options."""
        (tmp_path / "stepprof.toml").write_text('steps = "2"\nbackend = "null"\n')
        (tmp_path / "job.py").write_text(LOOP.format(given=given))
        done = run(tmp_path, "--steps", "3", "--ranks", "0", "--backend", "null", sys.executable, "job.py")
        assert done.returncode == 0
        assert "step 2 is recorded" in done.stderr
        said = [line for line in done.stderr.splitlines() if "its own configuration" in line]
        assert len(said) == 2, done.stderr
        assert "STEPPROF_STEPS" in said[0]
        assert "STEPPROF_RANKS" not in done.stderr
        assert said[1].startswith('stepprof: --steps ($STEPPROF_STEPS) "3" was ignored: ')

    @pytest.mark.parametrize("given", ["", "{'steps': 3, 'backend': 'null'}"])
    def test_options_that_the_script_reads_or_repeats(self, tmp_path, given) -> None:
        """`init()` without arguments reads the options; a configuration may agree with them. Nothing is said then."""
        (tmp_path / "job.py").write_text(LOOP.format(given=given))
        done = run(tmp_path, "--steps", "3", "--backend", "null", sys.executable, "job.py", STEPPROF_RANKS="")
        assert "step 3 is recorded" in done.stderr
        assert "ignored" not in done.stderr

    @pytest.mark.parametrize(
        ("before", "given", "place"),
        [
            ("", "{'steps': 2, 'backend': 'null', 'output_dir': 'there'}", "there"),
            ("import os; os.makedirs('out/1'); os.chdir('out/1')\n", "", "out/1/here"),
        ],
    )
    def test_a_run_in_another_folder(self, tmp_path, before, given, place) -> None:
        """The script has an output_dir of its own, or changes its working directory as Hydra does: the command
        finds the run, and names it.
        """
        (tmp_path / "job.py").write_text(before + LOOP.format(given=given))
        for _ in range(2):
            done = run(
                tmp_path,
                "--output-dir",
                "here",
                "--steps",
                "2",
                "--backend",
                "null",
                sys.executable,
                "job.py",
            )
            assert "step 2 is recorded" in done.stderr
            assert done.stderr.count(f"{tmp_path / place}/") == 1
            assert "nothing was recorded" not in done.stderr
            shutil.rmtree(tmp_path / "out", ignore_errors=True)

    def test_the_processes_of_the_job_get_no_file_after_it(self, tmp_path) -> None:
        """The file in which processes name their runs is removed at the end; a process that goes on is not disturbed."""
        code = "import os, stepprof; print(os.environ['STEPPROF_ANNOUNCE'])"
        done = run(tmp_path, "--steps", "2", sys.executable, "-c", code)
        assert not Path(done.stdout.strip()).exists()
        code = "import stepprof; stepprof.init({'backend': 'null'}); print(stepprof.state().run)"
        after = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={**os.environ, "STEPPROF_ANNOUNCE": done.stdout.strip()},
            capture_output=True,
            text=True,
            check=True,
            timeout=200,
        )
        assert "stepprof-runs" in after.stdout
        assert not Path(done.stdout.strip()).exists()

    @pytest.mark.parametrize(
        ("code", "status"),
        [
            ("raise SystemExit(3)", 3),
            ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
            ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ],
    )
    def test_the_exit_status_of_the_job_is_passed_on(self, tmp_path, code, status) -> None:
        """The command returns the exit status of the job, or the signal that killed it."""
        assert run(tmp_path, "--steps", "2", sys.executable, "-c", code).returncode == status

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
    def test_signals_reach_the_job(self, tmp_path, number) -> None:
        """A signal to `stepprof run` reaches the job, which handles it."""
        code = (
            "import signal, sys, time\n"
            f"signal.signal({int(number)}, lambda *_: sys.exit(5))\n"
            "print('ready', flush=True)\ntime.sleep(30)\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "stepprof", "run", "--steps", "2", sys.executable, "-c", code],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with process:
            assert process.stdout.readline() == b"ready\n"
            time.sleep(0.1)
            process.send_signal(number)
            assert process.wait(30) == 5

    @pytest.mark.parametrize(
        ("arguments", "status", "message"),
        [
            ([], 2, "COMMAND: is missing"),
            (["no-such-command"], 127, "command not found"),
            (["--steps", "banana", sys.executable, "-c", "1"], 2, '--steps = "banana": cannot read'),
            (["--steps", "2", "--ranks", "x", "--backend", "tocrh", "x"], 2, '; also --backend = "tocrh"'),
            (
                ["--config", "no.toml", "x"],
                2,
                'stepprof run: --config = "no.toml": no.toml: there is no such',
            ),
            ([sys.executable, "-c", "exit(7)"], 7, "nothing was recorded: the job ended with exit status 7,"),
            (["--setps", "2", sys.executable], 2, "--steps"),
        ],
    )
    def test_an_invalid_command_is_refused(self, tmp_path, arguments, status, message) -> None:
        """The message has the problem, by the option that was typed, and no job is started. A job that fails is said to have failed."""
        done = run(tmp_path, *arguments)
        assert done.returncode == status
        assert message in done.stderr

    def test_a_run_that_another_user_adds_is_harmless(self, tmp_path) -> None:
        """A file that another user puts into the folder of runs does not change the exit status of
        the job. It cannot move the cursor either.
        """
        adapters = {"a": 5, "b": {"status": "\x1b[2J", "reason": {"x": "y" * 100_000}}, "c": None}
        (tmp_path / "evil").mkdir()
        (tmp_path / "evil" / "run.json").write_text(json.dumps({"run_id": "evil", "adapters": adapters}))
        ended = run(
            tmp_path,
            "--",
            "sh",
            "-c",
            "mkdir runs; mv evil runs; mkfifo runs/evil/spans; exit 7",
            STEPPROF_OUTPUT_DIR="runs",
        )
        assert ended.returncode == 7
        assert "Traceback" not in ended.stderr
        assert r"\x1b[2J" in ended.stderr
        assert len(ended.stderr) < 10_000

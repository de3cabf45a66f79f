"""Windows and timers of a loop that belongs to the job's framework, and the start of the session."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_framework import write

import stepprof
from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs, steps

ENV = {"STEPPROF_STEPS": "2", "STEPPROF_BACKEND": "null", "STEPPROF_OUTPUT_DIR": "runs"}
JOB = """
import stepprof_autoload
from stepprof.integrations.activation import register
from adapted import FAKE, loop
if stepprof_autoload.wanted():
    register(FAKE)
import framework, stepprof
"""


@pytest.fixture(autouse=True)
def _framework(tmp_path):
    write(tmp_path)


class TestSession:
    def test_the_job_began_its_own(self, run_script, tmp_path) -> None:
        """If the job has started a session, the adapter uses it: the job's window is recorded, and the
        adapter opens none.
        """
        done = run_script(
            JOB + "mine = stepprof.init({'steps': '1', 'backend': 'null', 'output_dir': 'mine'})\n"
            "with stepprof.profile_step(1, role='train'):\n    framework.Trainer().fit()\n"
            "assert stepprof.init({'steps': '1', 'backend': 'null', 'output_dir': 'mine'}) is mine\n",
            env=ENV,
        ).check()
        assert not (tmp_path / "runs").exists(), done.stderr
        (run,) = list_runs(tmp_path / "mine")
        assert [each["role"] for each in read_step(run, 1)["windows"]] == ["train"]
        assert steps(run) == [1]

    def test_the_job_begins_its_own_later(self, run_script, tmp_path) -> None:
        """`init` in the job ends the adapter's session without an error and starts the job's own session."""
        run_script(
            JOB + "framework.STEPS = 1\ntrainer = framework.Trainer()\ntrainer.fit()\n"
            "stepprof.init({'steps': '7', 'backend': 'null', 'output_dir': 'mine'})\ntrainer.fit()\n"
            "with stepprof.profile_step(7):\n    pass\n",
            env=ENV,
        ).check()
        (run,) = list_runs(tmp_path / "mine")
        assert steps(run) == [7]

    def test_a_profile_of_the_job_runs(self, run_script, tmp_path) -> None:
        """The session begins at the first step. If it is inside a torch profile of the job, no module is loaded on a thread that the profile traces."""
        done = run_script(
            JOB + "import sys, threading, types\n"
            "torch = sys.modules['torch.autograd.profiler'] = types.ModuleType('torch.autograd.profiler')\n"
            "torch._is_profiler_enabled = True\n"
            "def watch(event, details):\n"
            "    if event == 'exec' and threading.current_thread() is threading.main_thread():\n"
            "        print(details[0].co_filename)\n"
            "sys.addaudithook(watch)\n"
            "framework.Trainer().fit()\n",
            env=ENV,
        ).check()
        package = f"{Path(stepprof.__file__).parent}/"
        assert [line for line in done.stdout.splitlines() if line.startswith(package)] == []
        (run,) = list_runs(tmp_path / "runs")
        assert steps(run) == [2]

    def test_switched_off_nothing_is_patched(self, run_script, tmp_path) -> None:
        """With STEPPROF=0 nothing is patched and nothing is recorded."""
        run_script(
            JOB
            + "assert type(vars(framework.Trainer)['fit']).__name__ == 'function'\nframework.Trainer().fit()\n",
            env={**ENV, "STEPPROF": "0"},
        ).check()
        assert not (tmp_path / "runs").exists()

    def test_a_wrong_configuration_costs_one_line(self, run_script) -> None:
        """With an invalid configuration the job runs, and the error is logged once, not at every step."""
        done = run_script(
            JOB + "framework.Trainer().fit()\n", env={**ENV, "STEPPROF_STEPS": "banana"}
        ).check()
        assert done.stderr.count("could not start a session") == 1

    def test_a_profiler_configuration_that_is_not_read(self, run_script, tmp_path) -> None:
        """If no adapter reads the framework's own steps, the job runs and one line suggests
        STEPPROF_STEPS.
        """
        env = {**ENV, "STEPPROF_FROM": "framework"}
        done = run_script(JOB + "framework.Trainer().fit()\n", env={**env, "STEPPROF_STEPS": ""}).check()
        assert done.stderr.count("set STEPPROF_STEPS instead") == 1
        assert not (tmp_path / "runs").exists()
        run_script(JOB + "framework.Trainer().fit()\n", env=env).check()
        (run,) = list_runs(tmp_path / "runs")
        assert steps(run) == [2]


class TestWindows:
    def test_an_evaluation_has_its_role(self, run_script, tmp_path) -> None:
        """Timers inside an evaluation are regions of it, even those that are roles in a step."""
        run_script(
            JOB + "for step in (1, 2):\n"
            "    loop.begin(step)\n"
            "    evaluation = loop.evaluation(step - 1)\n"
            "    with framework.Timer('generate'):\n        pass\n"
            "    loop.end_evaluation(evaluation)\n"
            "loop.end()\n",
            env=ENV,
        ).check()
        (run,) = list_runs(tmp_path / "runs")
        assert sorted(str(each["role"]) for each in read_step(run, 2)["windows"]) == ["None", "eval"]

    def test_a_loop_below_another_one_opens_none(self, run_script) -> None:
        """While the trainer's loop has claimed the steps, the loop of an underlying library opens no
        windows.
        """
        run_script(
            JOB + "from stepprof.integrations.training_loop import TrainingLoop\n"
            "below = TrainingLoop('below')\n"
            "loop.claim()\n"
            "assert below.is_claimed_elsewhere and not loop.is_claimed_elsewhere\n"
            "loop.release()\n"
            "assert not below.is_claimed_elsewhere\n",
            env=ENV,
        ).check()

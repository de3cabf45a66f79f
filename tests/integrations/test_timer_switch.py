"""Timers of a framework are skipped in steps that keep nothing of them, and closed in the state in which
they began.
"""

from __future__ import annotations

import pytest
from fake_framework import write

from stepprof.integrations.timer_switch import TimerSwitch
from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs

CONFIG = """
steps = "2"
backend = "null"
output_dir = "runs"
spans = false
"""
JOB = """
from stepprof.integrations.activation import register
from stepprof.integrations.timer_switch import timers
import adapted
register(adapted.FAKE)
import framework
busy = []
def seen(function):
    def call(*arguments):
        busy.append((adapted.loop.step, timers.busy))
        return function(*arguments)
    return call
framework.CALLS = type("Calls", (list,), {"append": seen(list.append)})()
framework.Trainer().fit()
print([count for step, count in busy if step == STEP], timers.busy)
"""


class TestSwitch:
    def test_the_switch_counts_open_timers(self) -> None:
        """After the switch is turned off, it stays busy until the last timer is closed."""
        switch = TimerSwitch()
        switch.busy += 1
        switch.turn(False)
        switch.turn(False)
        assert switch.busy == 1
        switch.busy -= 1
        assert switch.busy == 0
        switch.turn(True)
        assert switch.busy == 1


class TestSteps:
    @pytest.mark.parametrize(
        ("step", "roles", "busy"),
        [
            (1, "", "[0, 0] 1"),
            (2, "", "[2, 2] 1"),
            (1, "[roles.rollout]\nranks = '0'", "[2, 1] 1"),
        ],
        ids=["not recorded", "recorded", "a role may be"],
    )
    def test_without_spans_only_recorded_steps_use_the_timers(
        self, run_script, tmp_path, step, roles, busy
    ) -> None:
        """Without spans, timers are used only in recorded steps. If a role has its own configuration,
        other steps use them too.
        """
        write(tmp_path)
        (tmp_path / "stepprof.toml").write_text(CONFIG + roles)
        done = run_script(
            JOB.replace("STEP", str(step)),
            env={"STEPPROF_CONFIG": "stepprof.toml"},
        )
        assert done.check().stdout.strip() == busy
        (run,) = list_runs(tmp_path / "runs")
        assert len(read_step(run, 2)["windows"]) == 2

"""The log line after a recorded step."""

from __future__ import annotations

import pytest
from faulty import control
from filing import install

import stepprof
from stepprof import profile_step

SCRIPT = """
import logging, sys, time
import stepprof
logging.getLogger("stepprof").setLevel(int(sys.argv[1]))
if len(sys.argv) > 2:
    logging.basicConfig(level=sys.argv[2])
stepprof.init({"steps": "1,3", "backend": "filing", "output_dir": "runs", "min_free_memory": "none"}, run_id="job").by_adapter = "adapter" in sys.argv
for step in range(5):
    with stepprof.profile_step(step):
        pass
stepprof.shutdown()
"""


def lines(log) -> list[dict]:
    """Return the log lines about recorded steps."""
    return [line for line in log if line["event"] == "step.recorded"]


class TestStderr:
    @pytest.fixture(autouse=True)
    def plugin(self, tmp_path):
        """Install a backend without torch in the folder from which scripts import."""
        install(tmp_path)

    def test_without_configured_logging_it_is_a_sentence(self, run_script):
        """Without configured logging, one sentence is printed for each recorded step."""
        ran = run_script(SCRIPT, "0")
        shown = [line for line in ran.stderr.splitlines() if line.startswith("stepprof: ")]
        assert ran.returncode == 0, ran.stderr
        assert len(shown) == 2, ran.stderr
        for step, line in zip(
            (1, 3), sorted(shown), strict=True
        ):  # two exports run at a time, and either may end first
            assert line.startswith(f"stepprof: step {step} is recorded: 1 file, ")
            assert f"runs/job --step {step} (rank=0)" in line

    @pytest.mark.parametrize("arguments", [("40",), ("0", "WARNING")])
    def test_a_level_switches_it_off(self, run_script, arguments):
        """The level of the logger `stepprof`, or of the configured root logger, switches the line off."""
        assert "is recorded" not in run_script(SCRIPT, *arguments).stderr

    def test_a_frameworks_log_level_does_not_hide_the_line(self, run_script):
        """In a session of an adapter, the line is printed once per step, even if the
        framework hides lines below WARNING.
        """
        for level in ("WARNING", "INFO"):
            shown = run_script(SCRIPT, "0", level, "adapter").stderr
            assert shown.count("step.recorded") + shown.count(" is recorded: 1 file, ") == 2, shown
        assert "recorded" not in run_script(SCRIPT, "40", "WARNING", "adapter").stderr


@pytest.mark.usefixtures("faulty")
class TestOncePerStep:
    def test_roles_of_a_step_share_a_line(self, start, log):
        """One line for the step has the number of files of all its roles, the run and the rank.
        It is written after the step.
        """
        session = start(steps="2")
        for role in ("actor", "critic"):
            with profile_step(2, role=role):
                pass
            session._notice.look(session.last_step)
        assert lines(log) == []
        stepprof.shutdown()
        (line,) = lines(log)
        assert (line["step"], line["files"], line["run_id"], line["rank"]) == (2, "2 files", "run", 0)

    def test_a_step_without_files(self, start, log):
        """A step without files has no line, because its warning gives the reason."""
        start(steps="2")
        control.fail("start")
        with profile_step(2):
            pass
        stepprof.shutdown()
        assert lines(log) == []

    @pytest.mark.parametrize(
        ("rank", "ranks", "count"), [(0, "all", 1), (1, "all", 0), (1, "1-2", 1), (2, "1-2", 0)]
    )
    def test_only_the_lowest_selected_rank_writes_the_line(self, start, log, rank, ranks, count):
        """Only the lowest selected rank writes the line."""
        start(steps="2", rank=rank, world_size=3, ranks=ranks)
        with profile_step(2):
            pass
        stepprof.shutdown()
        assert [line["files"] for line in lines(log)] == ["1 file of this rank"] * count

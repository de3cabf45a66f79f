"""Test processes that share a device: each session ends before the next one begins."""

from __future__ import annotations

import itertools
import signal

from conftest import SESSION

from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs

RECORDER = """
init()
use_device()
for step in range(1, 6):
    with profile_step(step, role=sys.argv[1]):
        work()
        time.sleep(0.02)
"""


def sessions(npu):
    """Return each session as (its process, when it began, when it ended), in order."""
    found, open_sessions = [], {}
    for call in npu.calls():
        if call.name == "aclprofInit":
            assert call.pid not in open_sessions
            open_sessions[call.pid] = call.ns
        elif call.name == "aclprofFinalize":
            found.append((call.pid, open_sessions.pop(call.pid), call.ns))
    assert not open_sessions
    return sorted(found, key=lambda session: session[1])


def windows(npu, step):
    """Return the windows of a step in all runs, by role."""
    return {
        window["role"]: window
        for run in list_runs(npu.folder / "runs")
        for window in read_step(run, step)["windows"]
    }


class TestTurns:
    def test_two_processes_take_turns(self, npu):
        """Two processes record the same device in turn. No window is lost, and no two sessions
        overlap.
        """
        env = {"STEPPROF_STEPS": "1-5", "STEPPROF_RUN_ID": "r"}
        both = [npu.start(RECORDER, role, env=env) for role in ("trainer", "engine")]
        for running in both:
            running.wait().check()
        for step in range(1, 6):
            found = windows(npu, step)
            assert {role: window["status"] for role, window in found.items()} == {
                "trainer": "complete",
                "engine": "complete",
            }
        ordered = sessions(npu)
        assert {pid for pid, _, _ in ordered} == {running.pid for running in both}
        assert all(end < begin for (_, _, end), (_, begin, _) in itertools.pairwise(ordered))

    def test_two_devices_are_two(self, npu):
        """Device 0 of a process is the device that its ASCEND_RT_VISIBLE_DEVICES names. Two such
        devices have two leases.
        """
        env = {"STEPPROF_STEPS": "1", "STEPPROF_RUN_ID": "r"}
        script = """
            init(lease_wait_seconds=0.1)
            use_device()
            with profile_step(1, role=sys.argv[1]):
                print("in", flush=True)
                while not os.path.exists("go"):
                    time.sleep(0.01)
            """
        both = [
            npu.start(script, role, env={**env, "ASCEND_RT_VISIBLE_DEVICES": device})
            for role, device in (("trainer", "3"), ("engine", "5"))
        ]
        for running in both:
            running.wait_for("in")
        (npu.folder / "go").touch()
        for running in both:
            running.wait().check()
        assert {window["status"] for window in windows(npu, 1).values()} == {"complete"}
        assert sorted(path.name for path in (npu.folder / "leases").glob("*.lease")) == [
            "npu-3.lease",
            "npu-5.lease",
        ]

    def test_a_holder_that_is_killed(self, npu):
        """The window of a killed holder is lost. The waiting process skips its window and names the
        holder; its next window is complete.
        """
        env = {"STEPPROF_STEPS": "1-2", "STEPPROF_RUN_ID": "r"}
        holder = npu.start(
            """
            init()
            use_device()
            with profile_step(1, role="trainer"):
                print("in", flush=True)
                time.sleep(60)
            """,
            env=env,
        ).wait_for("in")
        other = npu.start(
            """
            init(lease_wait_seconds=0.2)
            use_device()
            with profile_step(1, role="engine"):
                work()
            print("first", flush=True)
            while not os.path.exists("go"):
                time.sleep(0.01)
            with profile_step(2, role="engine"):
                work()
            """,
            env=env,
        ).wait_for("first")
        holder.send(signal.SIGKILL).wait()
        (npu.folder / "go").touch()
        other.wait().check()
        first = windows(npu, 1)
        assert first["trainer"]["status"] == "lost"
        assert first["engine"]["status"] == "skipped"
        assert f"npu-0 is recorded by process {holder.pid} (trainer/rank-0" in first["engine"]["error"]
        assert windows(npu, 2)["engine"]["status"] == "complete"
        assert [call.name for call in npu.calls() if call.pid == other.pid] == SESSION

    def test_the_only_user_warms_up_ahead(self, npu):
        """The only process on a device warms up ahead of its window. A second process does not, so
        that no process waits for one that is only armed.
        """
        script = """
            init()
            use_device()
            with profile_step(1, role="trainer"):
                pass
            with open("acl.log", "a+") as log:
                log.seek(0)
                print("aclprofInit" in log.read(), flush=True)
            while not os.path.exists("go"):
                time.sleep(0.01)
            """
        first = npu.start(script).wait_for("True")
        second = npu.start(script.replace('"acl.log"', '"none"')).wait_for("False")
        assert len({call.pid for call in npu.calls()}) == 1
        (npu.folder / "go").touch()
        first.wait().check()
        second.wait().check()

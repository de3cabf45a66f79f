"""Engines follow the windows of this process: they start and stop together, and none harms the job."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path

import pytest
from simulated import Driver, Listener, Simulated, dead, read_entries

import stepprof
from stepprof.errors import ConfigError
from stepprof.remote.attach import check_options
from stepprof.remote.base import EngineFailure
from stepprof.remote.core import late_files


@pytest.fixture
def recording(start):
    """Return a function that starts a session that records the rollouts of all replicas."""

    def recording(**config):
        roles = {"rollout": {"ranks": "all", **config.pop("rollout", {})}}
        return start(**{"steps": "2-5", "backend": "null", "roles": roles, **config})

    return recording


def settled(session, step=2, count=1, until=lambda entry: entry.status != "lost", seconds=5.0):
    """Return the manifest of a step once it is final."""
    deadline = time.monotonic() + seconds
    while True:
        session.background.round()
        entries = read_entries(session, step)
        if (len(entries) >= count and all(map(until, entries))) or time.monotonic() > deadline:
            return entries
        time.sleep(0.01)


def shown(engines, seconds=5.0):
    """Return whether `stepprof.state` shows these states of the engines in time."""
    deadline = time.monotonic() + seconds
    while stepprof.state().engines != engines and time.monotonic() < deadline:
        time.sleep(0.01)
    return stepprof.state().engines == engines


class TestWindow:
    """One window over its engines."""

    def test_an_engine_is_recorded_for_the_window_of_its_role(self, recording, engine):
        """The engine is armed, started and stopped. Its file is in the folder of its replica, and the
        manifest lists it.
        """
        one, session = engine(), recording()
        stepprof.attach(one, role="rollout")
        with stepprof.profile_step(2, role="rollout"):
            assert one.calls == ["arm", "start"]
            assert stepprof.state().engines == {"rollout/0": "recording"}
        assert one.calls[:3] == ["arm", "start", "stop"]  # soon it is armed for the next step
        [entry] = settled(session)
        assert (entry.status, entry.error, entry.health) == ("complete", None, "ok")
        assert [a["path"] for a in entry.artifacts] == ["rollout/replica-0/rank-0.trace.json"]
        trace = json.loads((session.path / "step-000002" / entry.artifacts[0]["path"]).read_text())
        assert (trace["stepprof"]["step"], trace["stepprof"]["replica"]) == (2, 0)
        assert entry.start_unix_ns < entry.end_unix_ns
        assert shown({"rollout/0": "armed"})

    def test_a_driver_knows_its_timeouts(self, recording, engine):
        """The window that the driver gets contains the timeouts of its role."""
        one, session = engine(), recording(rollout={"engine_start_timeout_seconds": 3})
        stepprof.attach(one, role="rollout")
        with stepprof.profile_step(2, role="rollout"):
            pass
        bounds = session.config.policy("rollout")
        [window] = one.windows
        assert window.start_seconds == bounds.engine_start_timeout_seconds == 3
        assert window.stop_seconds == bounds.engine_stop_timeout_seconds

    def test_other_windows_reach_no_engine(self, recording, engine):
        """A window without a role, of another role, or of a step that is not selected starts no engine."""
        one, session = engine(), recording()
        stepprof.attach(one, role="rollout")
        for step, role in ((1, "actor"), (2, None), (2, "actor"), (7, "rollout")):
            with stepprof.profile_step(step, role=role):
                pass
        assert [call for call in one.calls if call != "arm"] == []
        assert read_entries(session) == []

    def test_two_steps_in_a_row_go_into_two_folders(self, recording, engine):
        """The engine gets one start and one stop for each step, and each step has its own folder."""
        one, session = engine(), recording()
        stepprof.attach(one)
        for step in (2, 3):
            with stepprof.profile_step(step, role="rollout"):
                pass
        assert one.asked("start") == one.asked("stop") == 2
        assert [settled(session, step)[0].status for step in (2, 3)] == ["complete", "complete"]
        assert [window.folder.name for window in one.windows] == ["step-000002", "step-000003"]

    def test_a_version_known_at_the_window_is_in_the_trace(self, recording, engine):
        """The metadata contains the version that the window gives, even if the engine was armed before it."""
        one, session = engine(), recording()
        stepprof.attach(one)
        for step in (2, 3):
            with stepprof.profile_step(step, role="rollout", version=step + 100):
                pass
            assert shown({"rollout/0": "armed"})
        assert [window.metadata["version"] for window in one.windows] == [102, 103]
        assert [window.metadata["engine"] for window in one.windows] == ["simulated"] * 2
        assert sorted(path.name for path in (session.path / "step-000003" / "rollout").iterdir()) == [
            "replica-0"
        ]

    def test_an_overtaken_arming_shares_its_folder(self, recording, engine):
        """If a window begins while the engine is still being armed for it, the step has only one folder of
        the replica.
        """
        one, session = engine(delays={"arm": 0.1}), recording()
        stepprof.attach(one)
        for step in (2, 3, 4):
            with stepprof.profile_step(step, role="rollout"):
                pass
        assert [settled(session, step)[0].status for step in (2, 3, 4)] == ["complete"] * 3
        for step in (2, 3, 4):
            folder = session.path / f"step-00000{step}" / "rollout"
            assert [path.name for path in folder.iterdir()] == ["replica-0"]

    def test_a_second_occurrence_has_a_folder_of_its_own(self, recording, engine):
        """The second window of the same step has its own folder, so no file is overwritten."""
        one, session = engine(), recording()
        stepprof.attach(one)
        for _ in range(2):
            with stepprof.profile_step(2, role="rollout"):
                pass
        assert [entry.status for entry in settled(session, count=2)] == ["complete", "complete"]
        assert [window.stem for window in one.windows] == ["rollout/replica-0", "rollout/replica-0.2"]

    def test_all_start_together_and_stop_together(self, recording, engine):
        """The starts of eight engines, 0.2 s each, run at the same time, so that the body begins within
        1.2 s.
        """
        engines = [engine(delays={"start": 0.2, "stop": 0.2}) for _ in range(8)]
        session = recording()
        stepprof.attach(engines)
        began = time.monotonic()
        with stepprof.profile_step(2, role="rollout"):
            entered = time.monotonic() - began
        assert entered < 1.2  # one after the other they would take 1.6
        assert [entry.status for entry in settled(session, count=8)] == ["complete"] * 8

    def test_the_exception_of_the_body_goes_on_and_stops_every_engine(self, recording, engine):
        """If the body raises, the exception reaches the caller, each engine is stopped, and each entry has
        the error.
        """
        engines, session = [engine(), engine()], recording()
        stepprof.attach(engines)
        with pytest.raises(KeyError, match="lost"), stepprof.profile_step(2, role="rollout"):
            raise KeyError("lost")
        assert [one.asked("stop") for one in engines] == [1, 1]
        assert {entry.body_error for entry in settled(session, count=2)} == {"KeyError: 'lost'"}

    def test_a_nested_window_of_the_role_joins(self, recording, engine):
        """A nested window of the same role joins the capture, and its entry says so."""
        one, session = engine(), recording()
        stepprof.attach(one)
        with stepprof.profile_step(2, role="rollout"), stepprof.profile_step(2, role="rollout"):
            pass
        assert one.asked("start") == one.asked("stop") == 1
        entries = settled(session, count=2)
        assert [entry.status for entry in entries] == ["complete", "joined"]
        assert entries[1].capture == {"step": 2, "stem": "rollout/replica-0"}

    def test_overlapping_windows_of_one_step_are_one_capture(self, recording, engine):
        """Two overlapping windows of one step share one capture, which ends with the second window."""
        one, session = engine(), recording()
        stepprof.attach(one)
        first = stepprof.profile_step(2, role="rollout").start()
        second = stepprof.profile_step(2, role="rollout")
        second.__enter__()
        first.stop()
        assert one.asked("stop") == 0
        second.__exit__(None, None, None)
        assert one.asked("stop") == 1
        assert [entry.status for entry in settled(session, count=2)] == ["complete", "joined"]

    def test_windows_that_enter_at_once_share_a_capture(self, recording, engine):
        """If two threads enter a window at the same time, the engine gets one start, and one window joins."""
        gate, both = threading.Event(), threading.Barrier(3)
        one, session = engine(hold={"start": gate}), recording()
        stepprof.attach(one)

        def enter():
            both.wait(5)
            with stepprof.profile_step(2, role="rollout"):
                both.wait(5)

        threads = [threading.Thread(target=enter) for _ in range(2)]
        for thread in threads:
            thread.start()
        both.wait(5)
        while "start" not in one.calls:
            time.sleep(0.005)
        gate.set()
        both.wait(5)
        for thread in threads:
            thread.join(5)
        assert one.asked("start") == one.asked("stop") == 1
        assert sorted(entry.status for entry in settled(session, count=2)) == ["complete", "joined"]

    def test_a_window_of_another_step_that_outlives_the_capture_is_partial(self, recording, engine):
        """A capture ends with the window of its own step. A window of another step that is still open is
        partial.
        """
        one, session = engine(), recording()
        stepprof.attach(one)
        first = stepprof.profile_step(2, role="rollout")
        second = stepprof.profile_step(3, role="rollout")
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert one.asked("stop") == 1
        second.__exit__(None, None, None)
        assert settled(session)[0].status == "complete"
        assert settled(session, 3, until=lambda entry: entry.status == "partial")[0].status == "partial"

    def test_a_window_left_open_is_closed_by_the_next_of_its_role(self, recording, engine):
        """The next window of the role closes a window that was left open; its engine is stopped and its
        entry is partial.
        """
        one, session = engine(), recording()
        stepprof.attach(one)
        stepprof.profile_step(2, role="rollout").start()
        second = stepprof.profile_step(3, role="rollout").start()
        second.stop()
        assert [settled(session, step)[0].status for step in (2, 3)] == ["partial", "complete"]

    def test_max_seconds_ends_the_capture_before_the_window(self, recording, engine):
        """`max_seconds` stops the engine during the window, and the entry names this cap."""
        one, session = engine(), recording(max_seconds=0.1)
        stepprof.attach(one)
        with stepprof.profile_step(2, role="rollout"):
            deadline = time.monotonic() + 5
            while not one.asked("stop") and time.monotonic() < deadline:
                time.sleep(0.01)
            assert one.asked("stop") == 1
        [entry] = settled(session)
        assert (entry.status, entry.capped_by) == ("complete", "max_seconds")


class TestTrouble:
    """A failure of an engine affects only that engine."""

    def test_a_start_that_hangs_delays_the_body_by_the_bound_alone(self, recording, engine):
        """The body waits for a hung start no longer than the timeout, and the other engine records. When
        the start answers, it is stopped at once and kept as partial.
        """
        gate = threading.Event()
        slow, good = engine(name="slow", hold={"start": gate}), engine(name="good")
        session = recording(engine_start_timeout_seconds=0.2)
        stepprof.attach([slow, good])
        began = time.monotonic()
        with stepprof.profile_step(2, role="rollout"):
            assert 0.15 < time.monotonic() - began < 1.5
            assert shown({"rollout/0": "unknown", "rollout/1": "recording"})
        by_name = {entry.name: entry for entry in settled(session, count=2)}
        assert by_name["good"].status == "complete"
        assert by_name["slow"].status == "failed"
        assert "did not answer its start within 0.2 s" in by_name["slow"].error
        gate.set()
        entries = settled(session, count=2, until=lambda entry: entry.status in ("complete", "partial"))
        late = next(entry for entry in entries if entry.name == "slow")
        assert (late.status, slow.asked("stop"), len(late.artifacts)) == ("partial", 1, 1)

    def test_a_late_start_covers_the_window_from_its_begin(self, recording, engine):
        """If only the answer to the start was late, the entry covers the window from its begin to its end."""
        gate = threading.Event()
        session = recording(engine_start_timeout_seconds=0.1)
        stepprof.attach(engine(hold={"start": gate}))
        window = stepprof.profile_step(2, role="rollout").start()
        began = time.time_ns()
        time.sleep(0.1)
        window.stop()
        ended = time.time_ns()
        time.sleep(0.1)
        gate.set()
        [entry] = settled(session, until=lambda entry: entry.status == "partial")
        assert entry.status == "partial"
        assert entry.start_unix_ns <= began < entry.end_unix_ns <= ended

    def test_a_hung_engine_is_skipped_until_it_answers(self, recording, engine):
        """A hung engine does not delay the next window. Its entry is skipped and names the unanswered
        start.
        """
        gate = threading.Event()
        one = engine(hold={"start": gate})
        session = recording(engine_start_timeout_seconds=2)
        stepprof.attach(one)
        with stepprof.profile_step(2, role="rollout"):
            pass
        began = time.monotonic()
        with stepprof.profile_step(3, role="rollout"):
            assert time.monotonic() - began < 1.8
        [entry] = settled(session, 3)
        assert entry.status == "skipped"
        assert "its start of step 2 has not been answered" in entry.error
        gate.set()
        settled(session, until=lambda entry: entry.status == "partial")
        with stepprof.profile_step(4, role="rollout"):
            pass
        assert settled(session, 4)[0].status == "complete"

    def test_a_stop_beyond_the_timeout_still_brings_its_files(self, recording, engine):
        """Until the stop is answered, the entry is lost, and later windows skip only this engine. Then the
        entry becomes complete.
        """
        gate = threading.Event()
        slow, good = engine(name="slow", hold={"stop": gate}), engine(name="good")
        session = recording(engine_stop_timeout_seconds=0.2, engine_start_timeout_seconds=0.1)
        stepprof.attach([slow, good])
        began = time.monotonic()
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert time.monotonic() - began < 1.5
        session.background.round()
        assert {entry.name: entry.status for entry in read_entries(session)} == {
            "slow": "lost",
            "good": "complete",
        }
        with stepprof.profile_step(3, role="rollout"):
            pass
        assert {entry.name: entry.status for entry in settled(session, 3, 2)} == {
            "slow": "skipped",
            "good": "complete",
        }
        gate.set()
        assert {entry.status for entry in settled(session, count=2)} == {"complete"}

    @pytest.mark.parametrize("verb", ["arm", "start", "stop"])
    @pytest.mark.parametrize(
        "failure", [dead(), EngineFailure("not set up", "unconfigured"), ValueError("odd")]
    )
    def test_a_failed_call_is_reported_and_the_others_record(self, recording, engine, verb, failure):
        """The entry has the engine's health and the driver's message. The other engine records, and the
        body does not raise.
        """
        bad, good = engine(name="bad", failing={verb: failure}), engine(name="good")
        session = recording()
        stepprof.attach([bad, good])
        with stepprof.profile_step(2, role="rollout"):
            pass
        by_name = {entry.name: entry for entry in settled(session, count=2)}
        assert by_name["good"].status == "complete"
        health = getattr(failure, "health", "unknown")
        lost = verb == "stop" and health == "dead"
        entry = by_name["bad"]
        assert (entry.status, entry.health) == ("lost" if lost else "failed", health)
        assert str(failure) in entry.error

    def test_a_known_outcome_is_kept_at_the_bound(self, recording, engine, monkeypatch):
        """The search for files of a dead engine exceeds the stop timeout. Its entry still has the known
        outcome and is not pending.
        """
        look = late_files.left_there
        monkeypatch.setattr(late_files, "left_there", lambda window: time.sleep(0.5) or look(window))
        session = recording(engine_stop_timeout_seconds=0.1)
        stepprof.attach(engine(failing={"stop": dead()}))
        with stepprof.profile_step(2, role="rollout"):
            pass
        stepprof.shutdown()
        [entry] = settled(session, until=lambda entry: entry.health == "dead")
        assert (entry.status, entry.pending, entry.reason_code) == ("lost", False, "engine_failed")
        assert "it has died" in entry.error

    def test_a_failed_engine_records_again_when_it_can(self, recording, engine, log):
        """One warning is logged for the whole failure, and one line when the engine has recovered."""
        one = engine(name="mine", failing={"arm": dead()})
        session = recording()
        stepprof.attach(one)
        for step in (2, 3):
            with stepprof.profile_step(step, role="rollout"):
                pass
        one.failing.clear()
        with stepprof.profile_step(4, role="rollout"):
            pass
        assert settled(session, 4)[0].status == "complete"
        stepprof.shutdown()  # the collected changes are logged by then
        told_of = [line["event"] for line in log if line.get("name") == "mine"]
        assert told_of == ["engine.unhealthy", "engine.healthy"]

    def test_many_engines_failing_together_share_a_log_line(self, recording, engine, log):
        """If 20 engines fail at the same time, one log line has their number."""
        session = recording()
        stepprof.attach([engine(failing={"arm": dead()}) for _ in range(20)])
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert {entry.status for entry in settled(session, count=20)} == {"failed"}
        deadline = time.monotonic() + 5
        while (
            not (lines := [line for line in log if line["event"] == "engine.unhealthy"])
            and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        assert [line.get("count") for line in lines] == [20]

    def test_a_start_whose_answer_is_lost_is_stopped(self, recording, engine):
        """A start without an answer may have arrived, so the engine is aborted."""
        failure = EngineFailure("connection reset", "unreachable", owes_stop=True)
        one = engine(failing={"start": failure})
        recording()
        stepprof.attach(one)
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert one.calls[:3] == ["arm", "start", "abort"]  # then it is armed for the next step

    def test_an_engine_whose_worker_is_this_process_is_never_started(self, recording, engine):
        """An engine whose worker is this process gets no call, because this process's own capture contains
        its work.
        """
        one, session = engine(inside=True), recording()
        stepprof.attach(one)
        with stepprof.profile_step(2, role="rollout"):
            pass
        [entry] = settled(session)
        assert (entry.status, one.calls) == ("joined", [])
        assert "this very process" in entry.error

    def test_a_clock_that_cannot_be_compared_costs_nothing_else(self, recording, engine):
        """If the clock cannot be compared, the entry is still complete."""
        one, session = engine(failing={"clock": OSError("no route")}), recording()
        stepprof.attach(one)
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert settled(session)[0].status == "complete"

    @pytest.mark.parametrize("ahead", [-3600.0, 0.0, 7.25])
    def test_a_clock_that_only_the_traces_show(self, recording, engine, ahead):
        """If the clock cannot be compared, the calls of the window bound it by the times of its traces: the true offset is within the stated error."""
        one, session = engine(ahead=ahead, delays={"start": 0.05, "stop": 0.05}), recording()
        stepprof.attach(one)
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert settled(session)[0].status == "complete"
        [file] = session.path.glob("step-000002/manifest/*-engines-*.json")
        [clock] = [each for each in json.loads(file.read_text())["clocks"] if each["host"] == "here"]
        assert clock["method"] == "calls"
        assert abs(clock["offset_ns"] - ahead * 1e9) <= clock["error_ns"]

    def test_a_clock_that_was_set(self, recording, engine):
        """A later capture that contradicts the known clock replaces it: the capture is whole."""
        one, session = engine(ahead=0, delays={"start": 0.02, "stop": 0.02}), recording()
        stepprof.attach(one)
        for step, ahead in ((2, 0), (3, 2)):
            one.ahead, one.delays = ahead, dict.fromkeys(("start", "stop"), 0.02 + ahead / 20)
            with stepprof.profile_step(step, role="rollout"):
                pass
        assert [each.status for each in settled(session)] == ["complete"]
        (file,) = session.path.glob("step-000003/manifest/*-engines-*.json")
        (clock,) = [each for each in json.loads(file.read_text())["clocks"] if each["host"] == "here"]
        assert abs(clock["offset_ns"] - 2e9) <= clock["error_ns"]

    def test_a_failed_compensating_stop_is_reported(self, recording, engine, log):
        """The failed abort is logged; the manifest has the failure of the start."""
        lost = EngineFailure("connection reset", "unreachable", owes_stop=True)
        one = engine(failing={"start": lost, "abort": OSError("still reset")})
        session = recording()
        stepprof.attach(one)
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert "connection reset" in settled(session)[0].error
        assert any(line["event"] == "engine.cleanup_failed" for line in log)

    def test_a_driver_may_explain_a_missing_answer(self, recording, engine):
        """If a start is not answered, the entry contains the driver's reason, such as an actor inside a
        method.
        """
        gate = threading.Event()
        session = recording(engine_start_timeout_seconds=0.1)
        attached = stepprof.attach(engine(hold={"start": gate}))
        attached.targets[0].driver.waiting = "the actor is inside a method"
        with stepprof.profile_step(2, role="rollout"):
            pass
        (entry,) = settled(session, until=lambda entry: entry.status == "failed")
        gate.set()
        assert "the actor is inside a method" in entry.error

    def test_a_driver_is_closed_when_it_is_detached(self, recording, engine, log):
        """`detach` closes the driver. If closing fails, one line is logged."""
        recording()
        attached = stepprof.attach(engine())
        closed = threading.Event()

        async def close(timeout, answer_seconds):
            closed.set()
            raise OSError("half closed")

        attached.targets[0].driver.close = close
        stepprof.detach(attached)
        assert closed.wait(5)
        deadline = time.monotonic() + 5
        while not any(line["event"] == "engine.not_closed" for line in log) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert any(line["event"] == "engine.not_closed" for line in log)

    def test_the_manifest_is_written_ahead_as_lost(self, recording, engine):
        """While the engine records, the manifest already has its entry as lost, in case the process is
        killed, with the rank of the process that drives it.
        """
        one, session = engine(), recording()
        stepprof.attach(one)
        with stepprof.profile_step(2, role="rollout"):
            deadline = time.monotonic() + 5
            while (
                not read_entries(session) and time.monotonic() < deadline
            ):  # the session's own thread may write it
                session.background.round()
            [entry] = read_entries(session)
            assert (entry.status, entry.driver) == ("lost", session.rank)

    def test_a_folder_that_cannot_be_made_is_reported(self, recording, engine, log):
        """If the engine's folder cannot be made, the body runs, the engine is not started, and one line is
        logged.
        """
        one, session = engine(), recording()
        stepprof.attach(one)
        (session.path / "step-000002").symlink_to("/proc/self")  # where no process can make a folder
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert one.asked("start") == 0
        assert any(line["event"] == "engine.not_recorded" for line in log)

    def test_shutdown_stops_running_captures(self, recording, engine):
        """If the run ends inside the window, the engine is stopped once, and its entry is partial."""
        one, session = engine(), recording()
        stepprof.attach(one)
        window = stepprof.profile_step(2, role="rollout").start()
        stepprof.shutdown()
        [entry] = read_entries(session)
        assert (entry.status, one.asked("stop")) == ("partial", 1)
        window.stop()
        assert one.asked("stop") == 1

    @pytest.mark.parametrize("verb", ["arm", "start", "stop"])
    def test_the_end_of_the_run_waits_as_long_as_a_stop_may_take(self, start, engine, log, verb):
        """The end of the run waits for a hung engine for the stop timeout, not for the timeout of exports.
        One line names the engine and the timeout.
        """
        start(
            steps="2",
            ranks="all",
            backend="null",
            engine_start_timeout_seconds=0.3,
            engine_stop_timeout_seconds=1,
        )
        stepprof.attach(engine(hold={verb: threading.Event()}))
        with stepprof.profile_step(2, role="rollout"):
            pass
        began = time.monotonic()
        stepprof.shutdown()
        assert time.monotonic() - began < 15
        lines = [line for line in log if line["event"] == "shutdown.waiting"]
        if verb == "arm":  # no start was sent to the engine
            assert not lines
        else:
            assert [(line["targets"], line["answer_seconds"]) for line in lines] == [("rollout/0", 1)]

    def test_the_end_of_the_run_after_a_detach(self, recording, engine):
        """If the run ends right after a detach, the engine is still stopped, and its capture is kept as
        partial.
        """
        one, session = engine(delays={"stop": 0.3}), recording()
        attached = stepprof.attach(one)
        stepprof.profile_step(2, role="rollout").start()
        stepprof.detach(attached)
        stepprof.shutdown()
        assert [entry.status for entry in read_entries(session)] == ["partial"]

    def test_shutdown_waits_at_most_its_timeout(self, recording, engine):
        """A stop that hangs delays the end of the job by no more than the timeout of the shutdown."""
        one, session = engine(hold={"stop": threading.Event()}), recording()
        stepprof.attach(one)
        stepprof.profile_step(2, role="rollout").start()
        began = time.monotonic()
        stepprof.shutdown(0.5)
        assert time.monotonic() - began < 4
        assert read_entries(session)[0].status == "lost"

    def test_a_stop_that_is_answered_while_the_run_ends_is_complete(self, recording, engine):
        """The window had already closed. If its stop is answered during the shutdown, the entry is
        complete.
        """
        gate = threading.Event()
        session = recording(engine_stop_timeout_seconds=0.1)
        stepprof.attach(engine(hold={"stop": gate}))
        with stepprof.profile_step(2, role="rollout"):
            pass
        threading.Timer(0.3, gate.set).start()
        stepprof.shutdown(20)
        [entry] = settled(session)
        assert (entry.status, entry.error) == ("complete", None)
        assert entry.stop_seconds > 0.1
        assert len(entry.artifacts) == 1

    def test_an_unanswered_stop_at_the_end_is_reported(self, recording, engine):
        """The entry has the end of the window, no duration of the stop, and an error about the unanswered
        stop.
        """
        session = recording(engine_stop_timeout_seconds=0.1)
        stepprof.attach(engine(hold={"stop": threading.Event()}))
        with stepprof.profile_step(2, role="rollout"):
            pass
        stepprof.shutdown(0.5)
        session.background.round()
        [entry] = read_entries(session)
        assert (entry.status, entry.stop_seconds) == ("lost", None)
        assert entry.start_unix_ns < entry.end_unix_ns
        assert "its window has closed, and its stop has not been answered" in entry.error
        assert "while it recorded" not in entry.error

    def test_when_a_window_closed_is_written_before_its_stop_is_answered(self, recording, engine):
        """The manifest has the end of the window before the stop is answered, in case the process is
        killed meanwhile.
        """
        gate = threading.Event()
        session = recording(engine_stop_timeout_seconds=20)
        stepprof.attach(engine(hold={"stop": gate}))
        window = stepprof.profile_step(2, role="rollout").start()
        closing = threading.Thread(target=window.stop)
        closing.start()
        [entry] = settled(session, until=lambda entry: entry.end_unix_ns is not None)
        gate.set()
        closing.join(20)
        assert (entry.status, entry.stop_seconds) == ("lost", None)
        assert entry.end_unix_ns > entry.start_unix_ns


class Blocking(Driver):
    """A driver whose start blocks stepprof's own event loop, which its contract forbids."""

    async def start(self, window):
        await super().start(window)
        time.sleep(1.5)


class TestStarts:
    """When the body begins, and which starts have been answered by then."""

    def test_a_start_that_fails_holds_the_body_up_no_longer(self, recording, engine):
        """After a failed start the body begins at once. The compensating stop is sent concurrently with
        the body.
        """
        gate, failure = threading.Event(), EngineFailure("it said no", owes_stop=True)
        one = engine(failing={"start": failure}, hold={"abort": gate})
        session = recording(engine_start_timeout_seconds=60)
        stepprof.attach(one)
        began = time.monotonic()
        with stepprof.profile_step(2, role="rollout"):
            assert time.monotonic() - began < 30
            assert [entry.status for entry in settled(session)] == ["failed"]
        assert time.monotonic() - began < 30
        assert one.asked("abort") == 1
        gate.set()

    def test_the_next_window_waits_for_that_stop(self, recording, engine):
        """The next window waits for the compensating stop up to its start timeout. Then it is skipped, and
        its entry names the failed start.
        """
        gate, failure = threading.Event(), EngineFailure("it said no", owes_stop=True)
        one = engine(failing={"start": failure}, hold={"abort": gate})
        session = recording(engine_start_timeout_seconds=0.3)
        stepprof.attach(one)
        for step in (2, 3):
            with stepprof.profile_step(step, role="rollout"):
                pass
        [entry] = settled(session, 3)
        assert entry.status == "skipped"
        assert "start of step 2 has failed" in entry.error
        gate.set()
        one.failing.clear()
        until_idle = time.monotonic() + 5
        while stepprof.state().engines == {"rollout/0": "unknown"} and time.monotonic() < until_idle:
            with stepprof.profile_step(4, role="rollout"):
                pass
        assert settled(session, 4)[-1].status == "complete"

    def test_a_stop_that_finds_the_engine_dead_explains_the_failed_start(self, recording, engine):
        """If the compensating stop finds the engine dead, the entry gets this reason and the health
        `dead`.
        """
        failure = EngineFailure("the call failed", owes_stop=True)
        one = engine(failing={"start": failure, "abort": dead("a worker was killed")})
        session = recording()
        stepprof.attach(one)
        with stepprof.profile_step(2, role="rollout"):
            pass
        [entry] = settled(session, until=lambda entry: entry.health == "dead")
        assert (entry.status, entry.health) == ("failed", "dead")
        assert "a worker was killed" in entry.error

    @pytest.mark.parametrize("form", ["with", "async with"])
    def test_a_body_that_began_without_an_answer_is_not_complete(self, recording, engine, form):
        """If the body began before the start was answered, the entry is partial, even if stepprof's own
        loop was blocked.
        """
        one, session = engine(), recording(engine_start_timeout_seconds=0.1)
        stepprof.attach(one).targets[0].driver.__class__ = Blocking

        async def body():
            async with stepprof.profile_step(2, role="rollout"):
                await asyncio.sleep(1)

        if form == "with":
            with stepprof.profile_step(2, role="rollout"):
                time.sleep(1)
        else:
            asyncio.run(body())
        [entry] = settled(session)
        assert entry.status == "partial"
        assert "beginning of the window is missing" in entry.error


class TestAsync:
    """Asynchronous windows do not block the event loop."""

    async def test_an_async_block_does_not_block_its_loop(self, recording, engine):
        """The event loop runs other coroutines while the engine starts and stops."""
        one, session = engine(delays={"start": 0.2, "stop": 0.2}), recording()
        stepprof.attach(one)
        turns = 0

        async def turn():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.01)

        turning = asyncio.ensure_future(turn())
        async with stepprof.profile_step(2, role="rollout"):
            assert turns > 5
            assert one.asked("start") == 1
        assert turns > 10
        assert one.asked("stop") == 1
        turning.cancel()
        assert settled(session)[0].status == "complete"

    async def test_an_engine_on_this_very_loop_answers_an_async_block(self, recording, engine):
        """An engine on the caller's own loop answers its start while the asynchronous block waits."""
        from stepprof.remote.loop import on_loop

        one, session = engine(), recording()
        loop = asyncio.get_running_loop()
        seen = []

        async def answer():
            seen.append(asyncio.get_running_loop())

        class Hopping(type(SimulatedDriver(one))):
            async def start(self, window):
                await on_loop(loop, answer)
                await super().start(window)

        attached = stepprof.attach(one)
        attached.targets[0].driver.__class__ = Hopping
        async with stepprof.profile_step(2, role="rollout"):
            assert seen == [loop]
        assert settled(session)[0].status == "complete"

    async def test_a_coroutine_cancelled_at_the_entry_stops_its_engines(self, recording, engine):
        """If a coroutine is cancelled while it enters a window, each engine is stopped and each entry is
        partial.
        """
        slow, quick = engine(name="slow", delays={"start": 0.5}), engine(name="quick")
        session = recording()
        stepprof.attach([slow, quick])

        async def body():
            async with stepprof.profile_step(2, role="rollout"):
                raise AssertionError("never came in")

        task = asyncio.ensure_future(body())
        while not quick.asked("start"):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        deadline = time.monotonic() + 5
        while (slow.asked("stop"), quick.asked("stop")) != (1, 1) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert (slow.asked("stop"), quick.asked("stop")) == (1, 1)
        entries = settled(session, count=2)
        assert [entry.status for entry in entries] == ["partial", "partial"]
        assert "cancelled" in entries[0].error

    async def test_a_window_after_a_cancelled_one_gets_the_engine(self, recording, engine):
        """A window after a cancelled one neither joins the old capture nor is skipped: its entry is
        complete.
        """
        gate = threading.Event()
        one, session = engine(hold={"start": gate}), recording()
        stepprof.attach(one)

        async def window(step):
            async with stepprof.profile_step(step, role="rollout"):
                pass

        given_up = asyncio.ensure_future(window(2))
        while "start" not in one.calls:
            await asyncio.sleep(0.005)
        given_up.cancel()
        await asyncio.wait({given_up})
        following = asyncio.ensure_future(window(3))
        await asyncio.sleep(0.05)
        gate.set()
        await following
        assert settled(session, 3, until=lambda entry: entry.status != "lost")[0].status == "complete"
        assert settled(session, 2)[0].status == "partial"

    async def test_astart_and_astop(self, recording, engine):
        """`astart` and `astop` start and stop the engine as an asynchronous block does."""
        one, session = engine(delays={"stop": 0.1}), recording()
        stepprof.attach(one)
        window = await stepprof.profile_step(2, role="rollout").astart()
        assert one.asked("start") == 1
        await window.astop()
        assert settled(session)[0].status == "complete"

    async def test_a_thread_waits_without_blocking_the_loop(self, recording, engine):
        """The engine lives on the loop and the window is in a thread. The loop stays free and answers the
        start.
        """
        one = engine(loop=asyncio.get_running_loop())
        session = recording()
        stepprof.attach(one)

        def body():
            with stepprof.profile_step(2, role="rollout"):
                assert one.asked("start") == 1

        await asyncio.to_thread(body)
        assert settled(session)[0].status == "complete"


class TestAttach:
    """Which engines take part in which windows."""

    def test_an_unknown_target_is_refused(self, recording):
        """`attach` refuses an object that is not a known kind of engine."""
        recording()
        with pytest.raises(ConfigError, match="not a known kind of engine"):
            stepprof.attach(object())

    def test_a_role_is_a_name(self, recording, engine):
        """A role that is no plain name is refused, because the role becomes a folder."""
        recording()
        with pytest.raises(ConfigError, match=r"\.\./x"):
            stepprof.attach(engine(), role="../x")

    def test_an_engine_attached_before_init_is_taken_over(self, engine, recording):
        """An engine that was attached before `init` is recorded by the next session."""
        one = engine()
        stepprof.attach(one)
        session = recording()
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert settled(session)[0].status == "complete"

    def test_the_default_is_the_replica_of_rank_0(self, start, engine):
        """By default only the first replica is recorded."""
        engines = [engine() for _ in range(3)]
        start(steps="2", backend="null")
        stepprof.attach(engines)
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert [one.asked("start") for one in engines] == [1, 0, 0]

    def test_global_ranks_map_to_the_replica_that_owns_them(self, recording, engine):
        """With four ranks per replica, the ranks 5 and 6 are the workers 1 and 2 of the second replica."""
        engines = [engine(workers=4) for _ in range(2)]
        recording(rollout={"ranks": "5,6"})
        stepprof.attach(engines)
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert [one.asked("start") for one in engines] == [0, 1]
        assert engines[1].windows[0].workers == {1, 2}

    def test_given_ranks_map_to_the_engines_of_a_list(self, recording, engine):
        """The option `ranks` gives the global ranks of the list's engines. The engine that has the
        selected rank is started.
        """
        engines = [engine(), engine()]
        recording(rollout={"ranks": "10"})
        stepprof.attach(engines, ranks="8-11")
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert [one.asked("start") for one in engines] == [0, 1]

    def test_ranks_beyond_a_list_are_an_error(self, recording, engine):
        """`attach` refuses a list that is too short for the configured ranks, and suggests the nearest
        rank.
        """
        recording(rollout={"ranks": "0,7"})
        with pytest.raises(ConfigError, match="did you mean 1"):
            stepprof.attach([engine(), engine()])

    def test_a_callable_is_asked_again_at_each_step(self, recording, engine):
        """A callable is called at each step, because engines restart and scale. Engines that stay keep
        their replica number.
        """
        first, second = engine(name="first"), engine(name="second")
        now = [first]
        session = recording()
        stepprof.attach(lambda: list(now))
        with stepprof.profile_step(2, role="rollout"):
            pass
        now.append(second)
        with stepprof.profile_step(4, role="rollout"):
            pass
        assert [(entry.name, entry.replica) for entry in settled(session, 4, 2)] == [
            ("first", 0),
            ("second", 1),
        ]

    def test_a_callable_that_raises_is_reported(self, recording):
        """If the callable raises, the body runs, and the manifest has a failed entry with the exception."""
        session = recording()

        def gone():
            raise LookupError("the router is down")

        stepprof.attach(gone)
        with stepprof.profile_step(2, role="rollout"):
            pass
        [entry] = settled(session)
        assert entry.status == "failed"
        assert "the router is down" in entry.error

    @pytest.mark.parametrize(
        ("role", "begins"), [("rollout", "in step 3"), (None, "in step 2"), ("actor", None)]
    )
    def test_attached_inside_a_recorded_window(self, recording, engine, log, role, begins):
        """If an engine is attached inside a window, one line says from which window on it takes part. For
        a window of another role nothing is logged.
        """
        recording()
        with stepprof.profile_step(2, role=role):
            stepprof.attach(engine())
        lines = [line for line in log if line["event"] == "attach.inside_window"]
        assert [line["takes_part_from"] for line in lines] == (
            [] if begins is None else [f"the first window of role rollout {begins}"]
        )

    def test_attached_inside_the_last_recorded_window(self, recording, engine, log):
        """If an engine is attached inside the last selected window, the line says that no window is left."""
        recording(steps="2")
        with stepprof.profile_step(2, role="rollout"):
            stepprof.attach(engine())
        [line] = [line for line in log if line["event"] == "attach.inside_window"]
        assert line["takes_part_from"] == "no window: no later step is selected"

    def test_attaching_between_windows_logs_nothing(self, recording, engine, log):
        """An attachment outside a recorded window logs no line."""
        recording()
        with stepprof.profile_step(2, role="rollout"):
            pass
        with stepprof.profile_step(7, role="rollout"):
            stepprof.attach(engine())
        assert not [line for line in log if line["event"] == "attach.inside_window"]

    def test_detached_while_it_records(self, recording, engine):
        """An engine that is detached while it records is stopped once and partial. The next window does
        not start it.
        """
        one, session = engine(), recording()
        attached = stepprof.attach(one)
        with stepprof.profile_step(2, role="rollout"):
            stepprof.detach(attached)
        with stepprof.profile_step(3, role="rollout"):
            pass
        [entry] = settled(session)
        assert (entry.status, one.asked("start"), one.asked("stop")) == ("partial", 1, 1)

    def test_an_armed_step_that_never_came(self, recording, engine):
        """If the loop skips the step that an engine was armed for, the engine becomes idle and the step's
        folder is removed.
        """
        one, session = engine(), recording(steps="2,3")
        stepprof.attach(one)
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert shown({"rollout/0": "armed"})
        with stepprof.profile_step(9, role="rollout"):
            pass
        assert shown({"rollout/0": "idle"})
        deadline = time.monotonic() + 5
        while (session.path / "step-000003").exists() and time.monotonic() < deadline:
            time.sleep(0.01)  # a thread removes the folder
        assert not (session.path / "step-000003").exists()

    def test_a_rank_that_is_not_selected_drives_its_engines(self, start, engine):
        """The role selects which replicas are recorded. Whether the driver's own rank is selected does not
        matter.
        """
        one = engine()
        session = start(rank=3, world_size=4, steps="2", backend="null", roles={"rollout": {"ranks": "0"}})
        stepprof.attach(one)
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert settled(session)[0].status == "complete"

    def test_listeners_get_every_step(self, recording, engine):
        """A listener gets each entry and each exit of every step, selected or not, with all open windows."""
        one = engine(cls=Listener, kind="spans")
        recording()
        stepprof.attach(one, role="reward")
        for step in (7, 8):
            with stepprof.profile_step(step, role="reward"):
                time.sleep(0.1)
            time.sleep(0.1)
        deadline = time.monotonic() + 5
        while one.calls[-2:] != [((8, "reward"),), ()] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert one.calls[-4:] == [((7, "reward"),), (), ((8, "reward"),), ()]

    def test_an_attachment_describes_its_engines(self, recording, engine):
        """The attachment shows its role, its engines and their states."""
        recording()
        attached = stepprof.attach([engine(name="a"), engine(name="b")])
        assert repr(attached) == "<Engine rollout a, b>"
        assert attached.status == {"rollout/0": "idle, ok", "rollout/1": "idle, ok"}
        assert repr(attached.targets[0]) == "<EngineTarget rollout/0 simulated a idle ok>"

    def test_an_engine_detached_before_init_takes_no_part(self, engine, recording):
        """An engine that is detached before `init` gets no call."""
        one = engine(name="early")
        attached = stepprof.attach(one, name="called")
        assert repr(attached) == "<Engine rollout called>"
        stepprof.detach(attached)
        recording()
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert one.calls == []

    def test_replicas_are_numbered_in_the_order_of_attaching(self, recording, engine):
        """Replicas are numbered in the order of attaching, unless a number is given."""
        recording()
        engines = [stepprof.attach(engine(), replica=number) for number in (None, 5, None)]
        assert [list(each.status) for each in engines] == [["rollout/0"], ["rollout/5"], ["rollout/1"]]

    def test_servers_are_numbered_before_they_have_answered(self, recording):
        """Servers are numbered in the order of attaching, before they answer. A list that is too short for
        the configured ranks is refused.
        """
        session = recording(rollout={"ranks": "0-2"})
        engines = [stepprof.attach(f"http://127.0.0.1:{port}") for port in (1, 2)]
        assert [list(each.status) for each in engines] == [["rollout/0"], ["rollout/1"]]
        with pytest.raises(ConfigError, match="did you mean 1"):
            stepprof.attach(["http://127.0.0.1:3", "http://127.0.0.1:4"])
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert [(e.replica, e.status, e.health) for e in settled(session, count=2)] == [
            (0, "failed", "unreachable"),
            (1, "failed", "unreachable"),
        ]

    def test_an_unknown_option_is_refused(self):
        """The error for an unknown option names the nearest option, or lists all options."""
        check_options({"api_key": "k"}, ["api_key"], "a server")
        with pytest.raises(ConfigError, match="did you mean api_key"):
            check_options({"api_kye": "k"}, ["api_key"], "a server")
        with pytest.raises(ConfigError, match="its options: api_key"):
            check_options({"zzz": 1}, ["api_key"], "a server")

    def test_a_list_in_a_list_and_a_coroutine_function(self, recording, engine):
        """If a callable is a coroutine function, it is awaited; a list in its list is flattened."""
        one, two = engine(name="one"), engine(name="two")
        session = recording()

        async def engines():
            return [one, [two]]

        stepprof.attach(engines)
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert [entry.name for entry in settled(session, count=2)] == ["one", "two"]

    def test_a_callable_that_hangs_is_reported(self, recording):
        """A callable that hangs delays the body only for the timeout, and the entry says so."""
        gate = threading.Event()
        session = recording(engine_start_timeout_seconds=0.2)
        stepprof.attach(gate.wait)
        began = time.monotonic()
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert time.monotonic() - began < 1.5
        [entry] = settled(session)
        assert "the engines could not be listed within 0.2 s" in entry.error
        gate.set()

    def test_removed_engines_are_released(self, recording, engine):
        """An engine that the callable no longer returns is removed, and a new engine gets its replica
        number.
        """
        first, second = engine(name="first"), engine(name="second")
        now = [first, second]
        session = recording()
        attached = stepprof.attach(lambda: list(now))
        with stepprof.profile_step(2, role="rollout"):
            pass
        now.remove(first)
        with stepprof.profile_step(4, role="rollout"):
            pass
        assert [entry.name for entry in settled(session, 4)] == ["second"]
        assert list(attached.status) == ["rollout/1"]
        now.append(engine(name="third"))
        with stepprof.profile_step(5, role="rollout"):
            pass
        assert {e.name: e.replica for e in settled(session, 5, 2)} == {"second": 1, "third": 0}

    def test_listeners_get_the_windows_of_their_role(self, recording, engine):
        """Each window is announced to the listeners of its role before the body. A window of the whole
        step is announced to all listeners.
        """
        loops, rewards = (engine(cls=Listener, kind="spans") for _ in range(2))
        recording()
        stepprof.attach(loops, role="rollout")
        stepprof.attach(rewards, role="reward")
        for role in ("rollout", "reward", None):
            with stepprof.profile_step(2, role=role):
                assert ((2, role),) in (rewards if role == "reward" else loops).calls
        assert [call for call in loops.calls if call] == [((2, "rollout"),), ((2, None),)]
        assert [call for call in rewards.calls if call] == [((2, "reward"),), ((2, None),)]


class TestShared:
    """An engine that several processes attach is driven by one of them."""

    def test_a_second_process_does_not_drive_the_engine(self, start, engine, run_script, tmp_path):
        """The second process sends no start to the engine. Its entry is joined and names the process that
        drives the engine.
        """
        script = """
            import sys
            from pathlib import Path
            sys.path.insert(0, sys.argv[1])
            import simulated, stepprof
            folder = Path("plugin")
            folder.mkdir()
            simulated.install(folder)
            sys.path.insert(0, str(folder))
            stepprof.init({"steps": "2", "backend": "null", "output_dir": sys.argv[2]}, rank=1, world_size=2, run_id="run")
            one = simulated.Simulated(key="http://127.0.0.1:1")
            stepprof.attach(one)
            with stepprof.profile_step(2, role="rollout"):
                pass
            stepprof.shutdown()
            print(one.asked("start"))
        """
        session = start(steps="2", backend="null", rank=0, world_size=2)
        one = engine(key="http://127.0.0.1:1")
        stepprof.attach(one)
        with stepprof.profile_step(2, role="rollout"):
            here = str(Path(__file__).parents[2] / "helpers")
            assert run_script(script, here, str(tmp_path / "runs")).check().stdout.split() == ["0"]
        assert one.asked("start") == 1
        entries = settled(session, count=2)
        assert sorted(entry.status for entry in entries) == ["complete", "joined"]
        assert any(f"pid {os.getpid()}" in (entry.error or "") for entry in entries)


def SimulatedDriver(target):  # noqa: N802
    """Return the driver of a simulated engine."""
    from simulated import Driver

    assert isinstance(target, Simulated)
    return Driver(target)

"""Test a real engine with a real session: ``init``, ``attach``, ``profile_step``, and the entries
in the manifest.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sglang_recorded
from driven import MATRIX, name_of, read_entries, wait_for_entry
from holding import check_only_step, reported
from sglang_driven import Trace, forward_steps
from sglang_host import Host, HostDiedError

from stepprof.run.manifest import read_step
from stepprof.run.runs import steps as recorded_steps
from stepprof.run.status import read_statuses

PARALLEL = {"dp_size": 2}


class TestSessions:
    def test_each_trace_has_exactly_its_windows_forward_steps(self, host: Host, tmp_path: Path) -> None:
        """Every entry is complete. Each trace has the forward steps of its window and its own
        metadata.
        """
        seen = host.run(sglang_recorded.synchronous, tmp_path, {})
        assert seen[1:3] == ["recording", "recording"]
        for step in (2, 3):
            (entry,) = read_entries(tmp_path, step)
            assert (entry["status"], entry["health"], entry["error"]) == ("complete", "ok", None)
            assert (entry["kind"], entry["name"], entry["replica"]) == ("sglang", "Engine", 0)
            (artifact,) = entry["artifacts"]
            trace = Trace.named(tmp_path, artifact, step)
            assert trace.forward == forward_steps(step + 2)
            assert entry["start_unix_ns"] < trace.within_ns[0] < trace.within_ns[1] < entry["end_unix_ns"]
            stated = {key: trace.stated[key] for key in ("run_id", "step", "role", "replica", "rank")}
            assert stated == {"run_id": "run", "step": step, "role": "rollout", "replica": 0, "rank": 0}
        assert not (tmp_path / "run" / "step-000001").exists()

    def test_coroutines_on_the_engines_loop(self, host: Host, tmp_path: Path) -> None:
        """On the engine's loop, ``async with`` records. A synchronous window would block itself, so
        it is skipped. Its error says what to write instead, and one warning covers all steps.
        """
        brought = host.run(sglang_recorded.in_coroutines, tmp_path)
        (entry,) = read_entries(tmp_path, 2)
        assert entry["status"] == "complete"
        assert ("DECODE", 2) in Trace.named(tmp_path, entry["artifacts"][0]).forward
        for step in (3, 4):
            (entry,) = read_entries(tmp_path, step)
            assert entry["status"] == "skipped"
            assert "async with stepprof.profile_step" in entry["error"]
        assert brought["seconds"] < 30
        (line,) = [line for line in brought["lines"] if line["event"] == "engine.not_started"]
        assert "async with stepprof.profile_step" in line["reason"]

    def test_synchronous_windows_on_another_loop(self, host: Host, tmp_path: Path) -> None:
        """The windows block a loop that the engine does not need. Each trace contains the forward
        steps of its window and no others.
        """
        host.run(sglang_recorded.on_another_loop, tmp_path)
        for step in (2, 3):
            (entry,) = read_entries(tmp_path, step)
            assert (entry["status"], entry["error"]) == ("complete", None)
            assert Trace.named(tmp_path, entry["artifacts"][0], step).forward == forward_steps(step + 2)

    def test_an_engine_that_hangs_costs_the_bounds(self, host: Host, tmp_path: Path) -> None:
        """The window blocks its loop only for the start timeout. A capture that the engine starts
        late is stopped at once, and the next window is complete.
        """
        brought = host.run(sglang_recorded.hangs_on_another_loop, tmp_path)
        assert brought["seconds"] < 20  # the stop has 60 s
        assert brought["entry"]["health"] == "unknown"
        assert "async with" in brought["entry"]["error"]
        (entry,) = read_entries(tmp_path)
        assert (entry["status"], len(entry["artifacts"])) == ("partial", 1)
        (entry,) = read_entries(tmp_path, 3)
        assert (entry["status"], entry["error"]) == ("complete", None)
        assert Trace.named(tmp_path, entry["artifacts"][0], 3).forward == forward_steps(3)

    def test_an_armed_step_that_never_begins(
        self, host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The engine was armed for a step that never begins. None of its files is left."""
        assert host.run(sglang_recorded.armed_in_vain, tmp_path)
        check_only_step(tmp_path / "run", capsys)

    def test_a_stop_whose_answer_is_lost_still_lists_its_files(self, host: Host, tmp_path: Path) -> None:
        """The entry names the trace that SGLang has left. At the end of the run the manifest
        contains the trace.
        """
        entry, left = host.run(sglang_recorded.answer_of_the_stop_is_lost, tmp_path)
        if entry["status"] != "partial":  # on a busy machine, a later stop may come before this check
            assert entry["status"] == "failed"
            (path,) = left
            assert path in entry["error"]
        (entry,) = read_entries(tmp_path)
        assert entry["status"] == "partial"
        assert Trace.named(tmp_path, entry["artifacts"][0]).forward == forward_steps(3)
        assert not list((tmp_path / "run").rglob("*TP-0*"))

    def test_a_synchronous_exit_on_the_engines_loop(self, host: Host, tmp_path: Path) -> None:
        """The stop is answered once the loop is free. The window does not wait for it and is
        `partial`, with one warning. The next window records.
        """
        brought = host.run(sglang_recorded.left_synchronously, tmp_path)
        assert brought["seconds"] < 40  # the bound is 60
        (line,) = [line for line in brought["lines"] if line["event"] == "engine.stop_not_awaited"]
        assert "async with" in line["reason"]
        (entry,) = read_entries(tmp_path, 2)
        assert entry["status"] == "partial"
        assert "astop" in entry["error"]
        assert len(Trace.named(tmp_path, entry["artifacts"][0]).forward) >= len(forward_steps(4))
        (entry,) = read_entries(tmp_path, 3)
        assert (entry["status"], entry["error"]) == ("complete", None)

    def test_body_that_raises(self, host: Host, tmp_path: Path) -> None:
        """The exception reaches the caller unchanged. The engine is stopped, and the entry has the
        exception and the trace.
        """
        assert host.run(sglang_recorded.body_that_raises, tmp_path) == {"unchanged": True, "stopped": True}
        (entry,) = read_entries(tmp_path)
        assert entry["status"] == "complete"
        assert "a bad sample" in entry["body_error"]
        assert Trace.named(tmp_path, entry["artifacts"][0]).forward == forward_steps(2)

    def test_auto_stop_is_a_legal_end(self, host: Host, tmp_path: Path) -> None:
        """The engine's own limit ends the capture. The entry is complete and says so, and the next
        step is recorded too.
        """
        host.run(sglang_recorded.synchronous, tmp_path, {"rollout": {"engine": {"max_iterations": 2}}})
        for step in (2, 3):
            (entry,) = read_entries(tmp_path, step)
            assert (entry["status"], entry["capped_by"]) == ("complete", "engine")
            assert Trace.named(tmp_path, entry["artifacts"][0], step).forward == forward_steps(2)

    def test_the_default_bound(self, host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The default limit is 32 forward steps. The entry and the report state it, and the report
        estimates the cost of a stop from it.
        """
        host.run(sglang_recorded.of_lengths, tmp_path, {2: 40, 3: 5})
        for step, capped, forward in ((2, "engine", 32), (3, None, 5)):
            (entry,) = read_entries(tmp_path, step)
            assert (entry["status"], entry["capped_by"]) == ("complete", capped)
            assert Trace.named(tmp_path, entry["artifacts"][0], step).forward == forward_steps(forward)
        report = reported(tmp_path / "run", capsys)
        said = "only the first 32 forward steps of rollout/0 were recorded"
        assert any(said in each["text"] for each in report["findings"])
        (cost,) = report["stops"]
        assert (cost["iterations"], cost["basis"]) == (32, "write")
        assert [bound for bound, _ in cost["estimates"]] == [128, 512]
        assert cost["estimates"][0][1] == pytest.approx(4 * cost["seconds"])

    def test_a_stop_beyond_the_timeout_still_brings_its_files(self, host: Host, tmp_path: Path) -> None:
        """The body does not wait longer than the stop timeout, and its next call to the engine
        works. The late answer is added to the manifest.
        """
        brought = host.run(sglang_recorded.stop_that_takes_too_long, tmp_path)
        (entry,) = read_entries(tmp_path)
        assert entry["status"] == "complete"
        assert entry["stop_seconds"] > 0.05
        assert brought["waited"] < entry["stop_seconds"] + 5
        forward, of_window = Trace.named(tmp_path, entry["artifacts"][0]).forward, forward_steps(40)
        assert forward[: len(of_window)] == of_window
        # a busy engine may begin that next call before it executes the stop
        assert len(forward) == len(of_window) or entry["overrun_seconds"] > 0

    def test_unwritable_folder(self, host: Host, tmp_path: Path) -> None:
        """The manifest has the reason. The engine's process keeps running, and the next step is
        recorded.
        """
        host.run(sglang_recorded.unwritable, tmp_path)
        folder = tmp_path / "run-of-two"
        (entry,) = read_entries(folder, 2)
        assert (entry["status"], entry["health"]) == ("failed", "unconfigured")
        assert "cannot be written" in entry["error"]
        (entry,) = read_entries(folder, 3)
        assert entry["status"] == "complete"
        assert Trace.named(folder, entry["artifacts"][0], 3).forward == forward_steps(2)


class TestTriggered:
    def test_the_next_step_from_a_shell(self, host: Host, tmp_path: Path) -> None:
        """``stepprof trigger RUN --step next --role rollout`` records the next step. Its trace has
        the forward steps of that step and of no other.
        """
        run, last = tmp_path / "run", tmp_path / "last-step"
        host.send(sglang_recorded.running, tmp_path, 4)
        step = 0
        try:
            deadline = time.monotonic() + 60
            while not any(status["step_seconds"] for status in read_statuses(run)):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            command = [sys.executable, "-m", "stepprof", "trigger", str(run), "--step", "next"]
            asked = subprocess.run(
                [*command, "--role", "rollout", "--ranks", "all", "--json"],
                capture_output=True,
                text=True,
                timeout=200,
                check=True,
            )
            step = json.loads(asked.stdout)["request"]["step"]
        finally:
            (tmp_path / "writing").write_text(str(step + 2))
            (tmp_path / "writing").rename(last)
            host.answer()
        assert recorded_steps(run) == [step]
        (entry,) = read_entries(tmp_path, step)
        assert (entry["status"], entry["health"], entry["error"]) == ("complete", "ok", None)
        (artifact,) = entry["artifacts"]
        trace = Trace.named(tmp_path, artifact, step)
        assert trace.forward == forward_steps(4)
        assert entry["start_unix_ns"] < trace.within_ns[0] < trace.within_ns[1] < entry["end_unix_ns"]
        assert (trace.stated["step"], trace.stated["replica"]) == (step, 0)
        (window,) = read_step(run, step)["windows"]
        assert (window["role"], window["status"]) == ("rollout", "complete")
        (status,) = read_statuses(run)
        assert [seen["outcome"] for seen in status["requests"].values()] == ["reached"]


@pytest.fixture(scope="module")
def pair(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Return the process with an engine of two data-parallel replicas."""
    made = Host(
        model, tmp_path_factory.mktemp("pair") / "log", env={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}, **PARALLEL
    )
    yield made
    made.close()


@pytest.mark.variant
class TestTwoReplicasInOneEngine:
    @pytest.mark.parametrize(("options", "ranks", "device"), MATRIX, ids=name_of)
    def test_step_2(
        self,
        request: pytest.FixtureRequest,
        tmp_path: Path,
        options: dict[str, Any],
        ranks: str,
        device: str,
    ) -> None:
        """Both workers are recorded, and each trace names its worker. The traces of the selected
        workers are kept, with the selected content.
        """
        if device != "cpu":
            pytest.skip(
                f"not run: no {device} device on the machines that run these tests, whose SGLang runs on the CPU"
            )
        pair: Host = request.getfixturevalue("pair")
        pair.run(sglang_recorded.warm_up)
        pair.run(
            sglang_recorded.synchronous,
            tmp_path,
            {"steps": "2", "rollout": {"ranks": ranks, "engine": options}},
            2,
            2,
        )
        (entry,) = read_entries(tmp_path)
        assert (entry["status"], entry["error"]) == ("complete", None)
        workers = [1] if ranks == "1" else [0, 1]
        assert [artifact["path"] for artifact in entry["artifacts"]] == [
            f"rollout/replica-0/dp-{worker}-rank-0.trace.json.gz" for worker in workers
        ]
        for worker, artifact in zip(workers, entry["artifacts"], strict=True):
            trace = Trace.named(tmp_path, artifact)
            assert (trace.stated["rank"], trace.stated["dp_rank"]) == (worker, worker)
            assert (trace.has_stacks, trace.has_shapes) == (bool(options), bool(options))
            assert trace.forward == forward_steps(4)  # two prompts, one for each worker

    def test_sglang_dies_if_its_folder_is_not_writable(self, pair: Host, tmp_path: Path) -> None:
        """SGLang kills the process that holds the engine; this is why stepprof refuses such a
        folder. This test must be the last one.
        """
        with pytest.raises(HostDiedError, match="exit status -9"):
            pair.run(sglang_recorded.raw_unwritable_stop, tmp_path)


class TestDriver:
    def test_an_actor_outlives_the_driver_of_its_job(self, host: Host, tmp_path: Path) -> None:
        """The driver is killed inside its window. The actor ends the capture, and the next job
        records all of its own forward steps.
        """
        assert host.run(sglang_recorded.driver_killed, tmp_path) == ["rollout/replica-0/rank-0.trace.json.gz"]
        trace = Trace.read(tmp_path / "second/run/step-000002/rollout/replica-0/rank-0.trace.json.gz")
        assert trace.forward == forward_steps(4)


class TestStopped:
    def test_the_run_waits_no_longer_than_its_stop_may_take(self, host: Host, tmp_path: Path) -> None:
        """The scheduler's process is stopped while it records. The window and the end of the run
        each wait at most the role's timeout. The scheduler answers the stop after the end of the
        run, and its trace is complete.
        """
        brought = host.run(sglang_recorded.scheduler_stopped, tmp_path)
        assert brought["seconds"] < 20
        (line,) = [line for line in brought["lines"] if line["event"] == "shutdown.waiting"]
        assert (line["targets"], line["answer_seconds"]) == ("rollout/0", 2)
        assert brought["status"] == {"rollout/0": "idle, ok"}
        entry = wait_for_entry(tmp_path, "complete")
        assert entry["error"] is None
        assert entry["stop_seconds"] > 2
        forward = Trace.named(tmp_path, entry["artifacts"][0]).forward
        assert forward[:2] == forward_steps(2)


class TestDeath:
    def test_scheduler_is_killed_while_recording(self, host: Host, tmp_path: Path) -> None:
        """The window ends within 30 s, unless SGLang ends the process that holds the engine. In
        both cases the manifest says that the capture was lost. This test must be the last one.
        """
        try:
            brought = host.run(sglang_recorded.scheduler_killed, tmp_path)
        except HostDiedError:
            brought = None
        (entry,) = read_entries(tmp_path)
        assert (entry["status"], entry["artifacts"]) == ("lost", [])
        if brought is not None:
            assert brought["seconds"] < 30
            assert entry["health"] == "dead"
            assert "has died" in entry["error"]
            (entry,) = read_entries(tmp_path, 3)
            assert (entry["status"], entry["health"]) == ("failed", "dead")

"""Test a real ``Engine`` that follows the windows: the content of its traces, its errors, and its
state afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sglang_scenarios
from sglang_driven import forward_steps

if TYPE_CHECKING:
    from pathlib import Path

    from sglang_host import Host

FILE = "rollout/replica-0/rank-0.trace.json.gz"
PREFILL = "rollout/replica-0/rank-0.prefill.trace.json.gz"
DECODE = "rollout/replica-0/rank-0.decode.trace.json.gz"


def forward(brought: dict[str, Any]) -> dict[str, list[tuple[str, int]]]:
    """Return the forward steps of each file."""
    return {path: trace["forward"] for path, trace in brought["traces"].items()}


class TestWindows:
    def test_two_steps_are_written_to_two_folders_without_a_restart(self, host: Host, tmp_path: Path) -> None:
        """The folder of each step has the forward steps of its own window, and no others."""
        first, second = host.run(sglang_scenarios.two_steps, tmp_path)
        for brought, step, tokens in ((first, 2, 5), (second, 3, 9)):
            assert forward(brought) == {FILE: forward_steps(tokens)}
            trace = brought["traces"][FILE]
            began, ended = trace["within_ns"]
            assert brought["body_ns"][0] < began < ended < brought["body_ns"][1]
            assert trace["stated"] == {
                "run_id": "test",
                "step": step,
                "role": "rollout",
                "replica": 0,
                "rank": 0,
            }
            assert (trace["stacks"], trace["shapes"]) == (False, False)
            assert (brought["capped_by"], brought["partial"]) == (None, None)
            assert brought["left"] == ["rank-0.trace.json.gz"]

    def test_first_use_decides_the_loop(self, host: Host) -> None:
        """The start of an engine that was never used is sent with its first request, so that the
        engine keeps its own loop. The manifest says that steps may be missing. The next window has
        all of its steps.
        """
        brought = host.before
        assert not brought["used_before"]
        assert brought["left_unused"]
        assert brought["is_its_own_loop"]
        assert set(forward(brought["first"])[FILE]) <= {("EXTEND", 1), ("DECODE", 1)}
        assert len(forward(brought["first"])[FILE]) >= 3
        assert "never been used before" in brought["first"]["partial"]
        assert forward(brought["second"]) == {FILE: forward_steps(3)}
        assert brought["second"]["partial"] is None

    def test_window_without_work(self, host: Host, tmp_path: Path) -> None:
        """A window in which the engine did nothing has a trace without forward steps."""
        brought = host.run(sglang_scenarios.window_with, tmp_path, 0, {})
        assert forward(brought) == {FILE: []}

    def test_stacks_and_shapes_are_recorded_on_request(self, host: Host, tmp_path: Path) -> None:
        """Stacks and shapes are recorded only on request, although SGLang records both by default."""
        brought = host.run(
            sglang_scenarios.window_with, tmp_path, 3, {"with_stack": True, "record_shapes": True}
        )
        trace = brought["traces"][FILE]
        assert trace["forward"] == forward_steps(3)
        assert (trace["stacks"], trace["shapes"]) == (True, True)

    @pytest.mark.parametrize("activities", [None, ["cpu"]])
    def test_available_activities_are_recorded(
        self, host: Host, tmp_path: Path, activities: list[str] | None
    ) -> None:
        """The named activities are recorded, or all that are available."""
        brought = host.run(sglang_scenarios.window_with, tmp_path, 2, {"activities": activities})
        assert forward(brought) == {FILE: forward_steps(2)}

    def test_only_selected_workers_are_kept(self, host: Host, tmp_path: Path) -> None:
        """The missing file of a requested rank is reported, and the files of the other ranks are
        removed.
        """
        message = host.run(sglang_scenarios.other_worker, tmp_path)
        assert "rank 7" in message


class TestBounds:
    def test_engine_ends_by_itself(self, host: Host, tmp_path: Path) -> None:
        """With a limit of three forward steps, the trace has exactly three. The entry says that the
        engine ended the capture.
        """
        brought = host.run(sglang_scenarios.window_with, tmp_path, 8, {"max_iterations": 3})
        assert forward(brought) == {FILE: forward_steps(3)}
        assert (brought["capped_by"], brought["partial"]) == ("engine", None)

    def test_window_ends_before_its_bound(self, host: Host, tmp_path: Path) -> None:
        """The window ends before the limit. The engine's later work is not recorded."""
        brought = host.run(sglang_scenarios.window_with, tmp_path, 4, {"max_iterations": 50})
        assert forward(brought) == {FILE: forward_steps(4)}
        assert brought["capped_by"] is None
        assert brought["left_later"] == brought["left"]

    def test_by_stage_prefill_and_decode_have_a_file_each(self, host: Host, tmp_path: Path) -> None:
        """Prefill and decode have a file each, within the limit of both."""
        options = {"max_iterations": 3, "by_stage": True}
        brought = host.run(sglang_scenarios.window_with, tmp_path, 8, options)
        assert forward(brought) == {PREFILL: [("EXTEND", 1)], DECODE: [("DECODE", 1)] * 2}
        assert brought["traces"][DECODE]["stated"]["stage"] == "decode"
        assert brought["capped_by"] == "engine"
        assert brought["left_later"] == ["rank-0.decode.trace.json.gz", "rank-0.prefill.trace.json.gz"]

    def test_by_stage_many_windows_end_no_process(self, host: Host, tmp_path: Path) -> None:
        """SGLang's own capture by stage ends its process within a few windows. With stepprof, 12
        windows end no process.
        """
        for number in range(12):
            options = {"max_iterations": 4, "by_stage": True}
            brought = host.run(sglang_scenarios.window_with, tmp_path / str(number), 6, options)
            assert set(brought["traces"]) == {PREFILL, DECODE}

    def test_a_stage_that_was_not_reached(self, host: Host, tmp_path: Path) -> None:
        """A window contains only prefill. The decode steps after it are not recorded."""
        options = {"max_iterations": 2, "by_stage": True}
        brought = host.run(sglang_scenarios.window_with, tmp_path, 1, options)
        assert forward(brought) == {PREFILL: [("EXTEND", 1)]}
        assert brought["left_later"] == ["rank-0.prefill.trace.json.gz"]

    def test_a_window_in_which_no_stage_ran(self, host: Host, tmp_path: Path) -> None:
        """A window without work has one trace without forward steps, also by stage."""
        options = {"max_iterations": 2, "by_stage": True}
        brought = host.run(sglang_scenarios.window_with, tmp_path, 0, options)
        assert forward(brought) == {FILE: []}
        assert brought["left_later"] == ["rank-0.trace.json.gz"]

    def test_delay_is_refused(self, host: Host, tmp_path: Path) -> None:
        """A delay is refused, because SGLang's start_step is an absolute number. The next window
        records.
        """
        brought = host.run(sglang_scenarios.failure_of, tmp_path, 3, {"delay_iterations": 2})
        assert "delay_iterations = 2 cannot be applied" in brought["message"]
        assert brought["health"] == "unconfigured"
        assert forward(brought["next"]) == {FILE: forward_steps(2)}


class TestState:
    def test_the_users_own_profile_is_left_alone(self, host: Host, tmp_path: Path) -> None:
        """The window is refused as `busy`. The user's stop works, and the user's file has all of
        its forward steps. The next window records.
        """
        brought = host.run(sglang_scenarios.recorded_by_the_user, tmp_path)
        assert brought["health"] == "busy"
        assert "is already recording for an unknown job" in brought["message"]
        assert brought["users_steps"] == 5
        assert forward(brought["next"]) == {FILE: forward_steps(2)}

    def test_a_living_drivers_capture_is_left_alone_and_a_dead_ones_stopped(
        self, host: Host, tmp_path: Path
    ) -> None:
        """The capture of a living driver is not changed. After that driver has ended, its capture
        is stopped, and its trace stays where it is. The next window has all of its own steps.
        """
        brought = host.run(sglang_scenarios.two_drivers, tmp_path)
        assert brought["health"] == "busy"
        assert "is recorded by another driver: run test, step 2" in brought["message"]
        assert brought["first"] == [*forward_steps(3), *forward_steps(2)]
        assert forward(brought["second"]) == {FILE: forward_steps(4)}

    def test_second_start_is_refused_before_it_is_sent(self, host: Host, tmp_path: Path) -> None:
        """The first capture has all forward steps, and the folder of the second one is empty."""
        brought = host.run(sglang_scenarios.second_start, tmp_path)
        assert "records step 2 already" in brought["message"]
        assert brought["health"] == "busy"
        assert brought["armed"]["health"] == "busy"
        assert forward(brought["first"]) == {FILE: [*forward_steps(3), *forward_steps(2)]}
        assert brought["second_left"] == []

    def test_stop_without_start(self, host: Host, tmp_path: Path) -> None:
        """The driver refuses a stop without a start. SGLang's own message for that is the one that
        the driver expects.
        """
        brought = host.run(sglang_scenarios.stop_without_start, tmp_path)
        assert brought["message"].startswith("stop without start")
        assert "not in progress" in brought["raw"]

    def test_a_stop_by_another_client_keeps_the_recording(self, host: Host, tmp_path: Path) -> None:
        """If another client stops the capture, the recording until then is kept as partial."""
        brought = host.run(sglang_scenarios.stopped_by_another, tmp_path)
        assert forward(brought) == {FILE: forward_steps(3)}
        assert brought["partial"] == "another client stopped it before the window ended"

    def test_an_armed_request_of_another_client_is_cleared(self, host: Host, tmp_path: Path) -> None:
        """SGLang keeps an armed request if its step was not reached. After a window of stepprof it
        is cleared.
        """
        brought = host.run(sglang_scenarios.armed_by_another, tmp_path)
        assert brought == {"trap": ["by-itself-TP-0.trace.json.gz"], "ours": [FILE], "after": []}

    def test_abort(self, host: Host, tmp_path: Path) -> None:
        """An abort discards the capture, a second abort does nothing, and the engine records again."""
        brought = host.run(sglang_scenarios.aborted, tmp_path)
        assert brought["left"] == []
        assert forward(brought["next"]) == {FILE: forward_steps(2)}


class TestWhatWouldKillIt:
    def test_folder_that_cannot_be_made(self, host: Host, tmp_path: Path) -> None:
        """The arm call refuses the folder. The engine keeps running, and records into the next
        folder.
        """
        brought = host.run(sglang_scenarios.unwritable, tmp_path)
        assert "cannot be written" in brought["message"]
        assert brought["health"] == "unconfigured"
        assert forward(brought["next"]) == {FILE: forward_steps(2)}

    def test_folder_that_is_lost_under_way(self, host: Host, tmp_path: Path) -> None:
        """The stop is not sent while the folder is missing, because it would kill the engine. Once
        the folder is back, the next window records.
        """
        brought = host.run(sglang_scenarios.folder_lost_while_recording, tmp_path)
        assert "was not stopped" in brought["message"]
        assert "was not stopped" in brought["still"]["message"]
        assert forward(brought["next"]) == {FILE: forward_steps(2)}

    @pytest.mark.parametrize("activities", [["cuda"], ["cpu", "cuda"], ["xpu"], ["privateuse1"]])
    def test_activity_that_the_build_has_not(self, host: Host, tmp_path: Path, activities: list[str]) -> None:
        """An activity that the build does not support is refused with the name of the device."""
        brought = host.run(sglang_scenarios.failure_of, tmp_path, 3, {"activities": activities})
        assert f"runs on cpu, which cannot record {activities[-1]}" in brought["message"]
        assert brought["health"] == "unconfigured"

    def test_second_version_of_its_profiler(self, host: Host, tmp_path: Path) -> None:
        """A variable of the environment with which every start would kill the engine is refused at
        the arm call.
        """
        brought = host.run(sglang_scenarios.with_environment, tmp_path, "SGLANG_PROFILE_V2", "1")
        assert "SGLANG_PROFILE_V2" in brought["message"]
        assert brought["health"] == "unconfigured"


class TestLoops:
    def test_tokenizer_manager_on_a_running_loop(self, host: Host, tmp_path: Path) -> None:
        """Start and stop are answered on the loop that generates, with a request in progress, and
        do not block it.
        """
        brought = host.run(sglang_scenarios.asynchronous, tmp_path)
        assert brought["knows_loop"]
        assert not brought["was_done"]
        assert ("EXTEND", 1) in forward(brought)[FILE]
        assert forward(brought)[FILE].count(("DECODE", 2)) >= 3
        assert brought["ticks_while_stopping"] >= 5

    def test_a_loop_that_stops_before_the_answer(self, host: Host, tmp_path: Path) -> None:
        """A start and a stop are answered while another thread generates, even if its loop stops
        running before the answer.
        """
        brought = host.run(sglang_scenarios.loop_stops_and_runs, tmp_path)
        assert brought["failed"] == []
        assert len(forward(brought)[FILE]) >= 10

"""Test that another process requests a recording from a running loop with a real engine. Exactly
that step is recorded.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from driven import begin
from vllm_driven import Trace

import stepprof
from stepprof.run.manifest import read_step
from stepprof.run.requests import Request, place_request
from stepprof.run.runs import steps
from stepprof.run.status import read_statuses
from stepprof.run.trigger import wait_for_answers

if TYPE_CHECKING:
    from vllm_driven import Live

TOKENS = 4


class Loop:
    """A training loop that runs step by step."""

    def __init__(self, live: Live, path: Path) -> None:
        self.live = live
        self.path = path
        self.step = 0

    def once(self) -> None:
        """Run one more step. The engine generates in its own window, and in that of another role."""
        self.step += 1
        with stepprof.profile_step(self.step, role="rollout"):
            self.live.generate(TOKENS)
        with stepprof.profile_step(self.step, role="actor"):
            self.live.generate(1, prompts=3)

    def until_answered(self, *arguments: str, seconds: float = 100) -> str:
        """Run steps until the command of another process has ended; return its output."""
        command = [sys.executable, "-m", "stepprof", "trigger", str(self.path), *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
            deadline = time.monotonic() + seconds
            while asking.poll() is None and time.monotonic() < deadline:
                self.once()
            asking.kill()
            printed = asking.communicate()[0]
        assert asking.returncode == 0, printed
        return printed


@pytest.fixture
def loop(live: Live, tmp_path: Path) -> Iterator[Loop]:
    """Return a loop without a selected step."""
    session = begin(tmp_path, steps="none", roles={})
    stepprof.attach(live.engine, role="rollout")
    assert session.path is not None
    yield Loop(live, session.path)
    stepprof.shutdown()


def test_the_next_step_from_a_shell(loop: Loop, tmp_path: Path) -> None:
    """``stepprof trigger RUN --step next --role rollout`` records the next step. Its trace has the
    forward steps of that step and of no other.
    """
    while not any(status["step_seconds"] for status in read_statuses(loop.path)):
        loop.once()
    began = loop.step
    answer = json.loads(
        loop.until_answered("--step", "next", "--role", "rollout", "--ranks", "all", "--json")
    )
    asked = answer["request"]["step"]
    assert asked > began
    while loop.step < asked + 2:
        loop.once()
    stepprof.shutdown()

    assert steps(loop.path) == [asked]
    manifest = read_step(loop.path, asked)
    (entry,) = manifest["engines"]
    assert (entry["status"], entry["health"], entry["error"]) == ("complete", "ok", None)
    (window,) = manifest["windows"]
    assert (window["role"], window["status"]) == ("rollout", "complete")
    (artifact,) = entry["artifacts"]
    trace = Trace.named(tmp_path, artifact, asked)
    assert trace.forward == [(3, 0), *[(0, 1)] * (TOKENS - 1)]
    assert entry["start_unix_ns"] < trace.within_ns[0] < trace.within_ns[1] < entry["end_unix_ns"]
    assert (trace.stated["step"], trace.stated["replica"]) == (asked, 0)
    (status,) = read_statuses(loop.path)
    assert status["requests"][answer["request"]["name"]]["outcome"] == "reached"


def test_a_withdrawn_request_reaches_no_engine(loop: Loop) -> None:
    """A request is withdrawn by name, from a shell: its step is not recorded, and the loop continues."""
    loop.once()
    request = stepprof.trigger(step=300, role="rollout", ranks="all")
    assert "withdrawn" in loop.until_answered("--withdraw", request.name)
    loop.step = 297
    while loop.step < 302:
        loop.once()
    stepprof.shutdown()
    assert steps(loop.path) == []


def test_two_requests_at_once_and_one_for_a_past_step(loop: Loop) -> None:
    """Two requests name one step, one for the engine's role and one for another role. One trace of
    the engine satisfies both. A request for a past step is reported as missed, and nothing is
    recorded for it.
    """
    while loop.step < 3:
        loop.once()
    asked = [stepprof.trigger(step=6, role=role, ranks="all") for role in ("rollout", "actor")]
    asked.append(Request.make(2, role="rollout"))
    place_request(loop.path, asked[-1])
    for request in asked:
        assert set(wait_for_answers(loop.path, request.name, 60)) <= {"accepted", "missed"}
    while loop.step < 7:
        loop.once()
    stepprof.shutdown()

    assert steps(loop.path) == [6]
    manifest = read_step(loop.path, 6)
    assert [(entry["role"], entry["status"]) for entry in manifest["engines"]] == [("rollout", "complete")]
    assert sorted((window["role"], window["status"]) for window in manifest["windows"]) == [
        ("actor", "complete"),
        ("rollout", "complete"),
    ]
    (status,) = read_statuses(loop.path)
    outcomes = [status["requests"][request.name]["outcome"] for request in asked]
    assert outcomes == ["reached", "reached", "missed"]

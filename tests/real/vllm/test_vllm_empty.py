"""Test a forward step without a request, and an armed step that never begins."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from driven import begin, read_entries
from holding import check_only_step
from vllm_driven import Trace

import stepprof
from stepprof.analysis.report.analyse import analyse
from stepprof.analysis.timeline.find import find

if TYPE_CHECKING:
    from vllm_driven import Live

EMPTY = "execute_context_0(0)_generation_0(0)"


@pytest.fixture
def run(live: Live, tmp_path: Path) -> Iterator[Any]:
    """Start a session that records rollouts of the shared engine."""
    session = begin(tmp_path)
    stepprof.attach(live.engine, role="rollout")
    yield session
    stepprof.shutdown()


def test_a_forward_step_without_a_request_is_not_counted(live: Live, run: Any, tmp_path: Path) -> None:
    """vLLM runs a step without a request when its last request has ended. The report counts only
    steps with requests.
    """
    with stepprof.profile_step(2, role="rollout"):
        live.generate(4)
        time.sleep(0.3)
        live.generate(3)
    path = run.path
    stepprof.shutdown()
    (entry,) = read_entries(tmp_path, 2)
    trace = Trace.named(tmp_path, entry["artifacts"][0], 2)
    assert any(span["name"] == EMPTY for span in trace.spans)
    (row,) = analyse(find([path], output_dir=tmp_path, step=2), workers=1).rollout
    assert row.iterations == len(trace.forward) == 7


def test_an_armed_step_that_never_begins_leaves_no_files(
    live: Live, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine was armed for step 3 at the end of step 2. No file of step 3 is left."""
    with stepprof.profile_step(2, role="rollout"):
        live.generate(2)
    deadline = time.monotonic() + 20
    while "armed" not in stepprof.state().engines.values() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (run.path / "step-000003" / "rollout").exists()
    path = run.path
    stepprof.shutdown()
    check_only_step(path, capsys)

"""Test a real engine in a real Ray actor that outlives the driver of its job."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import environment
from detached import detached, entry_of, kill_a_job
from vllm_driven import Holder, Trace


@pytest.mark.ray
def test_the_driver_is_killed_while_the_engine_records(model: str, tmp_path: Path) -> None:
    """The actor stops the capture itself; the dead job's entry stays lost. The trace of the next job has all of its own forward steps."""
    first, second, env = tmp_path / "first", tmp_path / "second", environment()
    with detached(Holder, (model, str(tmp_path / "traces")), env) as handle:
        kill_a_job(handle, first, second, env)
    (artifact,) = entry_of(second, 3)["artifacts"]
    assert Trace.named(second, artifact, 3).forward == [(3, 0), *[(0, 1)] * 3]

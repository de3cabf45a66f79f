"""Test a real engine in a real Ray actor that outlives the driver of its job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sglang_tiny
from detached import detached, entry_of, kill_a_job
from sglang_driven import Holder, Trace, forward_steps

HERE = Path(__file__).parent


@pytest.mark.ray
def test_the_driver_is_killed_while_the_engine_records(model: str, tmp_path: Path) -> None:
    """The actor stops the capture itself; the dead job's entry stays lost. The trace of the next job has all of its own forward steps."""
    first, second, env = tmp_path / "first", tmp_path / "second", sglang_tiny.variables()
    env["PYTHONPATH"] = os.pathsep.join([str(HERE), env["PYTHONPATH"]])
    with detached(Holder, (model,), env) as handle:
        kill_a_job(handle, first, second, env)
    (artifact,) = entry_of(second, 3)["artifacts"]
    assert Trace.named(second, artifact, 3).forward == forward_steps(4)

"""Clocks that a library cannot freeze."""

from __future__ import annotations

import datetime
import json
import time

import freezegun
import pytest

import stepprof
from stepprof.host import real_time


@pytest.mark.parametrize("name", real_time.__all__)
def test_a_clock_goes_on_while_time_is_frozen(name) -> None:
    """It reads what the clock of the interpreter reads, however often `time` is replaced."""
    clock = getattr(real_time, name)
    with freezegun.freeze_time("2001-01-01"):
        first = clock()
        for _ in range(100_000):
            pass
        assert clock() > first
        assert getattr(real_time, name) is clock
    unit = 10**9 if name.endswith("_ns") else 1
    assert abs(getattr(time, name)() - clock()) < 60 * unit


def test_a_step_in_frozen_time(tmp_path) -> None:
    """Windows and regions have their real lengths and times, and the end of the session does not wait for ever."""
    before = time.time_ns()
    session = stepprof.init({"backend": "null", "steps": "2", "output_dir": tmp_path})
    with freezegun.freeze_time("2001-01-01"):
        assert datetime.datetime.now(tz=datetime.timezone.utc).year == 2001
        for step in (1, 2):
            with stepprof.profile_step(step), stepprof.region("work"):
                end = real_time.perf_counter() + 0.02
                while real_time.perf_counter() < end:
                    pass
        stepprof.shutdown(10)
    texts = [path.read_text() for path in session.path.glob("spans/*.jsonl")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    spans = [line for line in lines if line.get("name") in ("step", "work")]
    assert len(spans) == 4
    for span in spans:
        assert span["dur"] >= 20_000_000
        assert before <= span["start"] <= time.time_ns()

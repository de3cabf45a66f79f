"""The end time of an NPU recording is corrected: torch_npu reads one clock and stores its value as that of
another.
"""

from __future__ import annotations

import json
import time

import pytest

from stepprof.backends.npu import export
from stepprof.backends.npu.export import correct_end

SLEWED = 250_000_000


@pytest.fixture
def now(monkeypatch):
    """Return the three clocks of a machine whose clock was slewed by a quarter of a second since its
    start.
    """
    clocks = {"raw": 10**12, "plain": 10**12 + SLEWED, "wall": 1_795_000_000 * 10**9}
    monkeypatch.setattr(export, "_RAW", 4)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: clocks["raw"])
    monkeypatch.setattr(time, "monotonic_ns", lambda: clocks["plain"])
    monkeypatch.setattr(time, "time_ns", lambda: clocks["wall"])
    return clocks


def corrected(folder, **end):
    file = folder / "profiler_info_3.json"
    file.write_text(json.dumps({"config": {"é": 1}, "end_info": end}))
    correct_end(folder)
    return json.loads(file.read_text())


def test_a_wrong_end_time_is_corrected(tmp_path, now):
    """The end time is corrected two seconds after the end; the other content of the file is unchanged."""
    end = {"collectionTimeEnd": now["wall"] - 2 * 10**9, "MonotonicTimeEnd": now["plain"] - 2 * 10**9}
    after = corrected(tmp_path, **end)
    assert after["end_info"] == {**end, "MonotonicTimeEnd": now["raw"] - 2 * 10**9}
    assert after["config"] == {"é": 1}


def test_a_right_end_time_stays(tmp_path, now):
    """An end time that is already on the right clock is unchanged."""
    end = {"collectionTimeEnd": now["wall"] - 2 * 10**9, "MonotonicTimeEnd": now["raw"] - 2 * 10**9}
    assert corrected(tmp_path, **end)["end_info"] == end


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"end_info": {"collectionTimeEnd": "x"}}', "\xff"])
def test_an_unexpected_file_is_unchanged(tmp_path, text):
    file = tmp_path / "profiler_info.json"
    file.write_bytes(text.encode("latin-1"))
    correct_end(tmp_path)
    assert file.read_bytes() == text.encode("latin-1")


def test_a_system_without_that_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_RAW", None)
    assert corrected(tmp_path, collectionTimeEnd=1, MonotonicTimeEnd=2)["end_info"]["MonotonicTimeEnd"] == 2

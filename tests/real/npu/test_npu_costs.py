"""Run the benchmark that compares regions with mstx's own calls once. The tests check that it runs, not its
figures.
"""

from __future__ import annotations

import pytest
from project.test_benchmarks import trial

from benchmarks.npu_regions import MODES


@pytest.mark.timeout(300)
def test_off_armed_and_recorded(tmp_path):
    rows = trial(tmp_path, "npu")["rows"]
    names = {"with region(name)", "@region", "mstx range_start, range_end", "mstx with annotate(name)"}
    for mode in MODES.values():
        measured = {row["name"]: row["value"] for row in rows if row["group"].endswith(mode)}
        assert names <= measured.keys()
        assert all(measured[name] > 0 for name in names - {"@region"})

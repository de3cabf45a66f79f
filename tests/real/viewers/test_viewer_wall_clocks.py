"""Test processes of one host with different wall clocks: the C library gives one of them another
time (libfaketime, Debian's `faketime`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gloojob import record

from stepprof.analysis.report.analyse import analyse, placed
from stepprof.analysis.timeline.find import find
from stepprof.analysis.timeline.load import load

SECOND = 10**9
AHEAD_NS = 37 * SECOND
(LIBRARY,) = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
MONOTONIC = {"FAKETIME_DONT_FAKE_MONOTONIC": "1"}

STEPS = """
import os, select, sys, time

# libfaketime cannot sleep until a moment of the monotonic clock, as Python does since 3.11
time.sleep = lambda seconds: select.select([], [], [], seconds) and None

import torch

import stepprof

rank, backend = int(sys.argv[1]), sys.argv[2]
# exported in place: libfaketime's own locks do not survive a fork
config = {"output_dir": ".", "steps": "2,4", "ranks": "all", "backend": backend, "export": "inline"}
stepprof.init(config, run_id="r", rank=rank, world_size=2)
for step in (1, 2, 3, 4):
    if step == 4 and "FAKETIME_TIMESTAMP_FILE" in os.environ:
        with open(os.environ["FAKETIME_TIMESTAMP_FILE"], "w") as file:
            file.write("+37s")
        time.sleep(0.05)
    with stepprof.profile_step(step, role="actor"), stepprof.region("work"):
        torch.ones(100, 100) @ torch.ones(100, 100)
        time.sleep(0.1)
stepprof.shutdown()
"""


def steps(folder, *environments, backend="torch"):
    """Run the steps in a rank for each environment, and return the run directory."""
    (folder / "job.py").write_text(STEPS)
    ranks = [
        subprocess.Popen(
            [sys.executable, "job.py", str(rank), backend], cwd=folder, env={**os.environ, **environment}
        )
        for rank, environment in enumerate(environments)
    ]
    assert [rank.wait(120) for rank in ranks] == [0] * len(ranks)
    return folder / "r"


class TestTwoClocks:
    @pytest.mark.parametrize("more", [MONOTONIC, {}], ids=["wall", "wall and monotonic"])
    def test_collectives(self, tmp_path, more):
        """The ranks are on one clock within the stated error: by the kernel's clock if they share
        it, otherwise by their collectives. The report takes less than 30 s.
        """
        runs = record(tmp_path, {"LD_PRELOAD": str(LIBRARY), "FAKETIME": "+37s", **more}, host="node")
        found = find(runs, output_dir=tmp_path)
        report = analyse(found, workers=1)
        (there,) = {each.alignment for each in report.sources if each.rank == 1}
        assert there == ("kernel" if more else "collectives")
        for source in report.sources:
            assert abs(source.offset_ns - AHEAD_NS * source.rank) <= source.error_ns + 1_000
        assert report.problems == []
        assert report.seconds < 30
        assert {each.alignment.offset_ns for each in placed(found, workers=1).inputs} == {
            source.offset_ns for source in report.sources
        }

    def test_without_collectives_spans_are_placed_by_the_kernels_clock(self, tmp_path):
        """Without collectives, spans are placed by the kernel's clock."""
        faked = {"LD_PRELOAD": str(LIBRARY), "FAKETIME": "+37s", **MONOTONIC}
        report = analyse(find([steps(tmp_path, {}, faked, backend="null")], output_dir=tmp_path), workers=1)
        assert {each.alignment for each in report.sources if each.rank == 1} == {"kernel"}
        assert report.seconds < 30

    def test_clocks_that_cannot_be_compared(self, tmp_path):
        """Without collectives and with another monotonic clock, the report says that the clocks
        were never compared. No finding mixes them.
        """
        faked = {"LD_PRELOAD": str(LIBRARY), "FAKETIME": "+37s"}
        report = analyse(find([steps(tmp_path, {}, faked, backend="null")], output_dir=tmp_path), workers=1)
        assert len(report.islands) == 2
        assert {each.alignment for each in report.sources if each.rank == 1} == {"unmeasured"}
        assert "never compared" in report.problems[0].problem
        assert report.seconds < 30
        assert not any(finding.seconds is not None and finding.seconds > 30 for finding in report.findings)


def test_a_clock_that_is_set_between_two_windows(tmp_path):
    """The wall clock of one rank is set between two windows. Its trace and spans stay on one clock,
    and the ranks remain aligned.
    """
    clock = tmp_path / "clock"
    clock.write_text("+0s")
    set_later = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        **MONOTONIC,
    }
    run = steps(tmp_path, set_later, {})
    for step in (2, 4):
        found = find([run], step=step, output_dir=tmp_path)
        assert {each.alignment.island for each in found.inputs} == {""}
        assert [
            round(each.wall_ahead_ns / SECOND) for each in found.inputs if each.origin.kind == "rank"
        ] == [
            37 * (step == 4),
            0,
        ]
        spans, work = (
            {
                source.origin.rank: source.slices.start[source.slices.name == source.names.index(name)].min()
                for each in found.inputs
                if each.origin.kind == kind
                for source in [load(each, args=False)]
            }
            for kind, name in (("spans", "work"), ("rank", "aten::matmul"))
        )
        for rank in (0, 1):
            assert 0 < work[rank] - spans[rank] < SECOND
        report = analyse(found, workers=1)
        assert report.seconds < 30

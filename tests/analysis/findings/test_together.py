"""One finding for a cause of many ranks and regions. tests/analysis/report/test_traces_of_others.py has whole reports."""

from __future__ import annotations

import pytest
from combined import report
from digested import source

from stepprof.analysis.findings.together import folded
from stepprof.analysis.report.schema import Finding
from stepprof.analysis.timeline.model import Origin


def finding(process, seconds, topic="host", advice="launch less"):
    return Finding(f"{process}: {seconds}", topic, seconds, process=process, advice=advice)


class TestFolded:
    def test_the_longest_stays(self):
        """The others are counted, with their seconds."""
        (made,) = folded([finding("rank 1", 0.2), finding("rank 0", 0.3), finding("rank 2", 0.1)])
        assert made.text == "rank 0: 0.3; similar in 2 other processes, 100 ms to 200 ms"
        assert (made.process, made.seconds) == ("rank 0", 0.3)

    def test_another_kind_stays(self):
        """So does one with other advice, and a finding of one process alone has no addition."""
        several = [
            finding("rank 0", 0.3),
            finding("rank 1", 0.2, "data"),
            finding("rank 1", 0.1, advice="copy"),
        ]
        assert folded(several) == several
        (made,) = folded([finding("rank 0", 0.3), finding("rank 1", 0.3)])
        assert made.text.endswith("; similar in another process, 300 ms")

    def test_another_one_of_the_same_process_stays(self):
        """So does one of several processes, such as all ranks on another clock."""
        several = [finding("rank 0", 0.3), finding("rank 0", 0.2), finding(None, 0.1)]
        assert folded(several) == several
        made = folded([finding(None, 0.3), finding("rank 1", 0.2), finding("rank 2", 0.1)])
        assert [each.text for each in made] == ["None: 0.3", "rank 1: 0.2", "rank 2: 0.1"]


class TestClaimTogether:
    def test_short_parts_count_together(self):
        """Two hundred regions with idle time of half a percent of the step each: 100 ms in all."""
        slices = [(("thread", "main"), "user_annotation", f"layer {at}", at, 1) for at in range(200)]
        kernels = [(("stream", "7"), "kernel", "gemm", at, 0.5) for at in range(200)]
        made = report(source(Origin("trace", "a.json", None, 0, None, "h", 7), *slices, *kernels))
        (found,) = (each for each in made.findings if each.topic == "host")
        assert found.seconds == pytest.approx(0.1, abs=0.001)
        assert found.text.startswith("the device of a.json had no work for 100 ms in ")
        assert found.text.endswith(" and 197 more")

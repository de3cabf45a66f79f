"""Processes that were lost in a step and started again. Times are in milliseconds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from digested import T0, manifest, spans, window

from stepprof.analysis.report.combine import combine
from stepprof.analysis.report.digest import digest
from stepprof.analysis.timeline.model import Alignment


def life(pid, *slices, rank=1):
    made = spans(rank, *slices)
    made.origin = replace(made.origin, pid=pid)
    return digest(made)


def texts(digests, *windows):
    report = combine(digests, step=2, run_id="r", manifests=[manifest(*windows)] if windows else [])
    return [each.text for each in report.findings if "same rank" in each.text]


class TestReplaced:
    def test_a_process_without_an_end(self):
        """Rank 1 was killed in its window. The sentence says which processes the rank had."""
        rest = life(9, ("window", "actor", 60, 30, "actor"))
        lost = {**window(1, end=0, status="lost", pid=8), "end_unix_ns": None}
        (text,) = texts([rest], lost, window(1, start=60, end=90, pid=9))
        assert text == (
            "actor rank 1 (8) did not finish its window; actor rank 1 (9) began again as the same rank, "
            "60 ms after actor rank 1 (8) had begun"
        )
        assert lost["start_unix_ns"] == T0

    def test_a_process_that_ended_between_two_windows(self):
        """The first process finished its rollout, and the second one did it again."""
        first = life(8, ("window", "rollout", 0, 30, "rollout"))
        second = life(9, ("window", "rollout", 50, 30, "rollout"), ("window", "actor", 80, 10, "actor"))
        (text,) = texts([first, second])
        assert text.startswith(
            "rollout rank 1 ended within this step; rank 1 began again as the same rank, 50 ms"
        )

    @pytest.mark.parametrize(
        "other",
        [("window", "actor", 40, 60, "actor"), ("window", "rollout", 60, 40, "rollout")],
        ids=["at one time", "of another role"],
    )
    def test_groups_of_ranks(self, other):
        """Several processes may have equal ranks in a job."""
        assert texts([life(8, ("window", "actor", 0, 50, "actor")), life(9, other)]) == []

    def test_a_clock_that_was_never_compared(self):
        """The rank came back on another host. Which of the two began first is not known."""
        there = Alignment("unmeasured", 0, None, "other")
        made = spans(1, ("window", "actor", 60, 30, "actor"), host="other", alignment=there)
        made.origin = replace(made.origin, pid=9)
        lost = {**window(1, end=0, status="lost", pid=8), "end_unix_ns": None}
        (text,) = texts([digest(made)], lost, window(1, start=60, end=90, pid=9, host="other"))
        assert text == (
            "actor rank 1 (h) did not finish its window; actor rank 1 (other) did, as the same rank, by a clock that was never compared"
        )


def test_a_process_that_ended_in_its_window():
    """SIGTERM or `sys.exit` came in the window, and the backend recorded nothing that would say so."""
    made = spans(0, ("window", "actor", 0, 30, "actor"))
    made.slices.args = [b'{"role":"actor","kind":"window","unfinished":true}']
    report = combine(
        [digest(made)], step=2, run_id="r", manifests=[manifest(window(0, end=30, backend="null"))]
    )
    assert "actor rank 0 left a window before its end: what it would have had after that is not known" in [
        each.text for each in report.findings
    ]

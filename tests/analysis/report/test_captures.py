"""Captures of one process, one after the other."""

from __future__ import annotations

from digested import T0

from stepprof.analysis.report.captures import last_captures
from stepprof.analysis.report.digest import Digest
from stepprof.analysis.timeline.model import Alignment, Origin


def capture(path, start, end, *, rank=0, kind="trace", pid=7):
    origin = Origin(kind, path, None, rank, None, "node", pid)
    return Digest(origin, Alignment("reference"), 1, T0 + start, T0 + end)


class TestLastCaptures:
    def test_the_last_capture_of_all_ranks_stays(self):
        """Those that overlap belong together."""
        captures = [
            capture(f"iteration_{number}/rank{rank}.json", 1000 * number, 1000 * number + 100, rank=rank)
            for number in (1, 2, 3)
            for rank in (0, 1)
        ]
        kept, note = last_captures(captures)
        assert kept == [False] * 4 + [True] * 2
        assert note == (
            "3 captures, one after the other, are of one process: this is the last one; name another one, or two to compare "
            "(left out: iteration_1/rank0.json, iteration_1/rank1.json, iteration_2/rank0.json and 1 more)"
        )

    def test_other_processes_stay(self):
        """Two ranks that were recorded one after the other, a process that states no identity, and what stepprof recorded."""
        for captures in (
            [capture("a", 0, 10), capture("b", 20, 30, rank=1)],
            [capture("a", 0, 10, rank=None, pid=None), capture("b", 20, 30, rank=None, pid=None)],
            [capture("a", 0, 10, kind="rank"), capture("b", 20, 30, kind="rank")],
            [capture("a", 0, 10), capture("b", 5, 30)],
        ):
            assert last_captures(captures) == ([True, True], None)

"""Captures of one process, one after the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from digested import T0

from stepprof.analysis.report.captures import last_captures
from stepprof.analysis.report.digest import Digest
from stepprof.analysis.timeline.model import Alignment, Origin
from stepprof.cli.main import main


def capture(path, start, end, *, rank=0, kind="trace", pid=7):
    origin = Origin(kind, path, None, rank, None, "node", pid)
    return Digest(origin, Alignment("reference"), 1, T0 + start, T0 + end)


class TestLastCaptures:
    def test_the_last_capture_of_all_ranks_stays(self):
        """Those that overlap belong together."""
        captures = [
            capture(f"{number}/rank{rank}.json", 1000 * number, 1000 * number + 100, rank=rank)
            for number in (1, 2, 3)
            for rank in (0, 1)
        ]
        kept, note = last_captures(captures)
        assert kept == [False] * 4 + [True] * 2
        assert note == (
            "3 captures, one after the other, are of one process: this is the last one; name another one, or two to compare "
            "(left out: 1/rank0.json, 1/rank1.json, 2/rank0.json and 1 more)"
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

    def test_an_iteration_in_the_names(self):
        """Each process has the rest of the name; the time in it is no part of that."""
        for names in (
            ["iteration_9/a.json", "iteration_9/b.json", "iteration_10/a.json", "iteration_10/b.json"],
            ["0/step_9.json", "1/step_9.json", "0/step_10.json", "1/step_10.json"],
            ["w0-iter9.1690000000.json", "w1-iter9.1690000001.json", "w0-iter10.1690000900.json", "w1-iter10.1690000901.json"],
        ):  # fmt: skip
            kept, note = last_captures([capture(name, 0, 100, rank=None, pid=None) for name in names])
            assert kept == [False, False, True, True]
            assert note == (
                "2 captures, one after the other by their names, are of one process: this is the last one; "
                f"name another one, or two to compare (left out: {names[0]}, {names[1]})"
            )

    def test_steps_of_unlike_processes(self):
        """The iterations of one rank are no captures of another one."""
        captures = [capture("step1.json", 0, 100), capture("step2.json", 0, 100, rank=1)]
        assert last_captures(captures) == ([True, True], None)


def event(name: str, cat: str, ts: float, dur: float) -> dict[str, object]:
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "pid": 7, "tid": 7}


@pytest.mark.parametrize("base", [{}, {"baseTimeNanoseconds": T0}])
@pytest.mark.parametrize("stated", [True, False])
class TestIterationFolders:
    """As torchtitan writes them: `iteration_N/rankM_trace.json`, of which no file has a host or process id."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, base: dict[str, int], stated: bool) -> Path:
        for number, iteration in enumerate((10, 20)):
            for rank in (0, 1):
                at = 1e6 * number
                events = [
                    event(f"ProfilerStep#{iteration}", "user_annotation", at, 1000 + rank),
                    event("aten::mm", "cpu_op", at, 900 + rank),
                ]
                head = {"distributedInfo": {"rank": rank, "world_size": 2}} if stated else {}
                file = tmp_path / f"iteration_{iteration}" / f"rank{rank}_trace.json"
                file.parent.mkdir(exist_ok=True)
                file.write_text(json.dumps({"schemaVersion": 1, **base, **head, "traceEvents": events}))
        return tmp_path

    @pytest.mark.parametrize(
        ("options", "left", "kept"), [([], 10, 20), (["--step", "10"], 20, 10), (["--one-clock"], 10, 20)]
    )
    def test_they_are_captures_of_two_processes(
        self, folder: Path, options: list[str], left: int, kept: int
    ) -> None:
        """The step is one of the capture that stays, whatever its times are relative to."""
        out = folder / "out" / "report.json"
        out.parent.mkdir()
        assert main(["report", str(folder), "--json", str(out), *options]) == 0
        report = json.loads(out.read_text())
        assert [each["path"] for each in report["sources"]] == [
            f"iteration_{kept}/rank{rank}_trace.json" for rank in (0, 1)
        ]
        assert report["step"] == kept
        assert report["seconds"] == pytest.approx(0.001, abs=2e-6)
        (note,) = [each["problem"] for each in report["problems"] if "captures" in each["problem"]]
        assert f"left out: iteration_{left}/rank0_trace.json, iteration_{left}/rank1_trace.json" in note

    def test_of_one_process(self, folder: Path) -> None:
        """The capture that stays is the only source, and needs no other clock."""
        out = folder / "out" / "report.json"
        out.parent.mkdir()
        for iteration in (10, 20):
            (folder / f"iteration_{iteration}" / "rank1_trace.json").unlink()
        assert main(["report", str(folder), "--json", str(out)]) == 0
        (problem,) = json.loads(out.read_text())["problems"]
        assert problem["problem"].startswith("2 captures, one after the other by their names, are of one")

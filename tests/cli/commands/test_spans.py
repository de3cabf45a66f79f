"""The command `stepprof spans`: how long each step took, recorded or not, as a table, as JSON or as
a timeline.
"""

from __future__ import annotations

import json

import pytest
from runs import make_run
from timelines import Timeline

from stepprof.analysis.span_stats import Wanted, span_times
from stepprof.cli.main import main
from stepprof.config.selection import Ranks

S = 10**9


@pytest.fixture
def run(tmp_path):
    """Return a run with three steps of two ranks and a driver. Rank 1 is slow in the last step."""
    path = make_run(tmp_path / "runs", "r").path
    folder = path / "spans"
    folder.mkdir()
    for rank in (0, 1, "driver"):
        lines = [{"schema_version": 1, "kind": "spans", "rank": rank, "host": "a", "pid": 1}]
        for step in (1, 2, 3):
            start, seconds = step * 100 * S, 9 if (rank, step) == (1, 3) else 1
            common = {"thread": 1, "task": None, "step": step, "role": "actor"}
            for number in range(2):
                dur = seconds * S // 2
                lines.append(
                    {"name": "update", "kind": "region", **common, "start": start + number * dur, "dur": dur}
                )
            lines.append({"name": "actor", "kind": "window", **common, "start": start, "dur": seconds * S})
            lines.append(
                {
                    "name": "log",
                    "kind": "region",
                    **common,
                    "role": None,
                    "start": start,
                    "dur": S // 10,
                    "error": True,
                }
            )
            lines.append({"name": "queue", "kind": "counter", **common, "start": start, "dur": 0, "value": 3})
            lines.append({"name": "synced", "kind": "mark", **common, "start": start, "dur": 0})
        text = "\n".join(map(json.dumps, lines)) + "\n"
        if rank == 1:
            text += '{"name": 1}\n{"kind": "region", "name": 5}\nnot JSON\n{"name": "x", "kind": "other"}\n{"name": "half'
        (folder / f"rank-{rank}.000001.jsonl").write_text(text)
    return path


def shown(capsys, *arguments, status=0) -> str:
    assert main(["spans", *map(str, arguments)]) == status
    return capsys.readouterr().out


def rows(capsys, *arguments) -> list[dict]:
    return json.loads(shown(capsys, *arguments, "--json"))["spans"]


class TestTable:
    def test_per_role_and_rank(self, run, capsys) -> None:
        """The spans with the most time come first. Each has the step in which it was longest."""
        lines = [line.split() for line in shown(capsys, run).splitlines()]
        assert lines[1] == [
            "kind",
            "name",
            "role",
            "rank",
            "count",
            "seconds",
            "median",
            "longest",
            "in",
            "step",
            "errors",
        ]
        assert lines[2] == ["window", "actor", "actor", "1", "3", "11.000", "1.000", "9.000", "3", "-"]
        assert ["region", "update", "actor", "0", "6", "3.000", "0.500", "0.500", "1", "-"] in lines
        assert ["region", "log", "-", "driver", "3", "0.300", "0.100", "0.100", "1", "3"] in lines
        assert ["mark", "synced", "actor", "0", "3", "-", "-", "-", "-", "-"] in lines
        assert lines[-1][0] == "spans/rank-1.000001.jsonl:"

    def test_many_ranks_are_one_row(self, run, capsys) -> None:
        """The spans of many ranks share a row, which has the rank with the longest one."""
        text = (run / "spans" / "rank-0.000001.jsonl").read_text()
        for rank in range(2, 10):
            (run / "spans" / f"rank-{rank}.000001.jsonl").write_text(
                text.replace('"rank": 0', f'"rank": {rank}')
            )
        lines = [line.split() for line in shown(capsys, run).splitlines()]
        assert lines[2] == [
            "window",
            "actor",
            "actor",
            "11",
            "ranks",
            "33",
            "41.000",
            "1.000",
            "9.000",
            "3,",
            "rank",
            "1",
            "-",
        ]

    def test_spans_are_selected_by_step_role_name_and_rank(self, run, capsys) -> None:
        """`--step`, `--role`, `--region` and `--ranks` select spans."""
        assert {row["longest_step"] for row in rows(capsys, run, "--step", 2) if row["kind"] == "window"} == {
            2
        }
        assert {row["role"] for row in rows(capsys, run, "--role", "actor")} == {"actor"}
        assert {row["name"] for row in rows(capsys, run, "--region", "update")} == {"update"}
        (row,) = rows(capsys, run, "--region", "update", "--ranks", "1", "--step", 3)
        assert row == {
            "kind": "region",
            "name": "update",
            "role": "actor",
            "rank": 1,
            "count": 2,
            "errors": 0,
            "seconds": 9.0,
            "median_seconds": 4.5,
            "longest_seconds": 4.5,
            "longest_step": 3,
        }

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--step", "7"), "--step = 7: no spans in"),
            (("--step", "7"), "did you mean 3?"),
            (("--role", "actr"), 'did you mean "actor"?'),
            (("--region", "updat"), 'did you mean "update"?'),
            (("--ranks", "x"), "--ranks"),
            (("--ranks", "7"), '--ranks = "7": no spans in'),
            (("--perfetto", "/proc/nowhere/x"), "cannot be written"),
        ],
    )
    def test_a_missing_selection_names_the_nearest(self, run, capsys, arguments, message) -> None:
        """The error has the option or the most similar existing value."""
        assert main(["spans", str(run), *arguments]) == 2
        assert message in capsys.readouterr().err

    def test_no_spans(self, tmp_path, capsys) -> None:
        """A run without spans has an empty table and exit status 1."""
        path = make_run(tmp_path / "runs", "empty").path
        assert "no spans" in shown(capsys, path, status=1)
        assert span_times(path, Wanted(step=3)).times == []

    def test_ranks_that_are_names(self, run) -> None:
        """The driver has no rank number, so `--ranks all` does not select it."""
        assert span_times(run, Wanted(ranks=Ranks.parse("all"))).ranks == [0, 1]
        assert span_times(run).ranks == [0, 1, "driver"]


class TestPerfetto:
    def test_every_span_is_on_a_track_of_its_process(self, run, tmp_path, capsys) -> None:
        """All spans are on the timeline, each process on its own tracks."""
        file = tmp_path / "spans.pftrace"
        assert str(file) in shown(capsys, run, "--perfetto", file)
        names = sorted(name for name, _ in self.slices(file))
        assert names == sorted(["actor"] * 9 + ["update"] * 18 + ["log"] * 9)

    def test_the_timeline_has_only_the_selected_spans(self, run, tmp_path, capsys) -> None:
        """The timeline has only spans of the selected name, step and rank."""
        file = tmp_path / "spans.pftrace"
        reported = json.loads(
            shown(
                capsys, run, "--region", "update", "--step", 3, "--ranks", "1", "--perfetto", file, "--json"
            )
        )
        assert reported["timeline"] == str(file)
        assert self.slices(file) == [("update", 4.5 * S)] * 2

    @staticmethod
    def slices(file) -> list[tuple[str, float]]:
        return [(each["name"], each["end"] - each["start"]) for each in Timeline(file.read_bytes()).slices]

"""The output of `show`, `status` and `state()` for thousands of ranks and engines: few lines,
exceptions first, and counts of omitted rows.
"""

from __future__ import annotations

import json
import re
import time

import pytest
from runs import TRACE, make_run, record, region, tell_engines, write_spans

from stepprof.cli.commands.show import render_step
from stepprof.cli.main import main
from stepprof.cli.row_grouping import FULL_ROWS, bounded, grouped, spread
from stepprof.formatting import label_ranges, ranges
from stepprof.host.process_identity import writer_identity
from stepprof.instrument.state import State

RANKS = 4096
LINES = 40
"""The most lines of `show`, which has seven tables with headers."""


def copies(path, count, change) -> None:
    """Copy the file of rank 0 for each other rank; `change` returns the content of each."""
    text = path.read_text()
    for rank in range(1, count):
        content = change(json.loads(text), rank)
        path.with_name(path.name.replace("rank-0", f"rank-{rank}")).write_text(json.dumps(content))


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Return a run of 4,096 ranks: 4 failed and one is slow. Each has an artifact and two regions;
    there are 1,000 engines.
    """
    run = make_run(tmp_path_factory.mktemp("many"), config={"ranks": "all"})
    times = {"arm_seconds": 0.25, "start_seconds": 0.125, "wait_seconds": 0.0, "world_size": RANKS}
    claim = record(run, **times)
    write_spans(run, 0, region("forward", 1.0), region("backward", 2.0))

    def of_rank(content, rank):
        (window,) = content["windows"]
        window.update(rank=rank, stall_seconds=0.012 + rank % 3 / 1000)
        if rank in (7, 8, 9, 4000):
            window.update(status="failed", error="CUDA is busy", artifacts=[], end_unix_ns=None)
            return content
        window["artifacts"][0]["path"] = f"actor/rank-{rank}.trace.json.gz"
        window["artifacts"][0]["bytes"] = 1000 + rank
        if rank == 1234:
            window["end_unix_ns"] += 1_000_000_000
        return content

    copies(claim.fragment, RANKS, of_rank)
    for rank in range(1, RANKS, 64):  # enough ranks for the summary of many ranks
        write_spans(run, rank, region("forward", 1.0), region("backward", 2.0))
    engines = [
        {
            **engine_entry(replica),
            "status": "failed" if replica == 77 else "complete",
            "error": "unreachable" if replica == 77 else None,
        }
        for replica in range(1000)
    ]
    clocks = [
        {"host": f"node-{n}", "offset_ns": n, "error_ns": 100 + n, "method": "ping-pong"} for n in range(1000)
    ]
    tell_engines(run, *engines, clocks=clocks)
    return run


def engine_entry(replica):
    path = f"rollout/replica-{replica}/rank-0.trace.json.gz"
    return {
        "role": "rollout",
        "occurrence": 1,
        "replica": replica,
        "kind": "vllm",
        "name": f"http://node-{replica}:8000",
        "host": f"node-{replica}",
        "status": "complete",
        "health": "ok",
        "error": None,
        "body_error": None,
        "start_unix_ns": 1_700_000_000_000_000_000,
        "end_unix_ns": 1_700_000_001_500_000_000,
        "start_seconds": 0.003,
        "stop_seconds": 9.5 if replica == 500 else 1.25,
        "capped_by": None,
        "artifacts": [{"path": path, "kind": "trace", "bytes": len(TRACE), "events": 3}],
        "capture": None,
    }


@pytest.fixture(scope="module")
def shown(many):
    return render_step(many.path, 2)


class TestShow:
    def test_any_number_of_rows_makes_few_lines(self, shown) -> None:
        """`show` prints few lines for any number of ranks, engines, files, hosts and notes."""
        assert len(shown.splitlines()) <= LINES
        assert max(map(len, shown.splitlines())) < 200

    def test_windows_that_are_alike_share_a_row(self, shown) -> None:
        """The common row has the range of each figure. Failed windows and slow ones have separate rows."""
        lines = shown.splitlines()
        whole = next(line for line in lines if "actor" in line and " complete " in line)
        assert "0-6, 10-1233, 1235-3999, 4001-4095" in whole
        assert "0.012-0.014" in whole
        assert re.search(r"actor +1234 +complete +torch +2\.500 ", shown)
        assert re.search(r"actor +7-9, 4000 +failed ", shown)
        assert "(4,096 windows in 3 rows; --all shows each)" in lines

    def test_a_failure_is_printed_once(self, shown) -> None:
        """One line has all ranks that failed for the same reason."""
        assert "  actor rank 7-9, 4000: failed: CUDA is busy" in shown
        assert "  rollout/77 (http://node-77:8000): failed: unreachable" in shown

    def test_slow_and_failed_engines_have_their_own_rows(self, shown) -> None:
        """The slow engine and the failed one have separate rows."""
        assert re.search(r"rollout/500 +vllm +complete +ok +1\.500 +0\.003 +9\.500", shown)
        assert re.search(r"rollout/77 +vllm +failed", shown)
        assert re.search(r"rollout/0-76, 78-499, 501-999 .* 998 hosts +998 engines", shown)
        assert "(1,000 engines in 3 rows; --all shows each)" in shown

    def test_files_that_differ_in_a_number_share_a_row(self, shown) -> None:
        """Files whose paths differ only in numbers share a row, which has their count."""
        assert re.search(
            r"actor/rank-0\.trace\.json\.gz … rank-\d+\.trace\.json\.gz +torch-trace +4,092 ", shown
        )
        assert re.search(r"rollout/replica-0/rank-0\S+ … \S+ +trace +1,000 ", shown)
        assert "(5,092 files in 2 rows; --all shows each)" in shown

    def test_the_clocks_of_many_hosts(self, shown) -> None:
        """The clocks with the largest errors are listed, and the others are counted."""
        assert re.search(r"^node-999 +\+0\.001 +0\.001 ", shown, re.MULTILINE)
        assert "(997 clocks with a smaller error omitted; --all shows them)" in shown

    def test_all_shows_a_row_for_each(self, many, capsys) -> None:
        """`--all` shows a row for each window and engine. The JSON is always complete."""
        assert main(["show", str(many.path), "--all"]) == 0
        text = capsys.readouterr().out
        assert len(re.findall(r"^actor +\d+ ", text, re.MULTILINE)) == RANKS
        assert len(re.findall(r"^rollout/\d+ ", text, re.MULTILINE)) == 1000
        assert "--all" not in text
        assert main(["show", str(many.path), "--json"]) == 0
        content = json.loads(capsys.readouterr().out)
        assert len(content["manifest"]["windows"]) == RANKS
        assert len(content["manifest"]["engines"]) == 1000

    def test_many_regions_and_notes_are_shortened(self, tmp_path) -> None:
        """The longest regions and some notes of each kind are shown, and the others are counted."""
        run = make_run(tmp_path)
        for rank in range(30):
            record(run, rank=rank, data=b"", status="failed", error=f"reason {rank}")
        write_spans(run, 0, *(region(f"region-{n}", n) for n in range(100)))
        text = render_step(run.path, 2)
        assert "… and 27 more notes: --all shows them" in text
        assert "region-99" in text
        assert "region-79 " not in text
        assert "(80 shorter regions omitted; --all shows them)" in text


class TestColumns:
    def test_each_figure_has_its_own(self, tmp_path) -> None:
        """The window's seconds, arm, start, wait, stall and export are separate columns."""
        run = make_run(tmp_path)
        record(
            run, arm_seconds=0.1, start_seconds=0.2, wait_seconds=0.3, stall_seconds=0.4, export_seconds=0.5
        )
        headers, row = render_step(run.path, 2).splitlines()[2:4]
        expected = "role rank status backend seconds arm_s start_s wait_s stall_s export_s bytes events"
        assert re.sub(r" s\b", "_s", headers).split() == expected.split()
        assert row.split()[4:10] == ["1.500", "0.100", "0.200", "0.300", "0.400", "0.500"]

    def test_empty_columns_are_left_out(self, tmp_path) -> None:
        """Columns without any value except zero are omitted. An unknown value is not shown as zero."""
        run = make_run(tmp_path)
        record(
            run,
            rank=0,
            data=b"",
            wait_seconds=0.0,
            start_seconds=None,
            stall_seconds=0.0,
            export_seconds=None,
        )
        record(
            run, rank=1, data=b"", wait_seconds=0.0, start_seconds=0.0, stall_seconds=0.5, export_seconds=None
        )
        headers, *rows = render_step(run.path, 2).splitlines()[2:5]
        assert re.sub(r" s\b", "_s", headers).split() == [
            "role",
            "rank",
            "status",
            "backend",
            "seconds",
            "stall_s",
        ]
        assert [row.split()[-1] for row in rows] == ["0.000", "0.500"]


@pytest.fixture
def statuses(tmp_path):
    """Return a run with the statuses of 4,096 ranks. All are idle, except for one that records, one
    that is behind and one with an error.
    """
    run = make_run(tmp_path)
    folder = run.path / "status"
    folder.mkdir(exist_ok=True)
    now = time.time_ns()
    engine = {"kind": "vllm", "name": "x", "host": "n", "state": "idle", "health": "ok"}
    content = {
        "run_id": "r", "rank": 0, "world_size": RANKS, "host": "node-0", "pid": 1, "writer": writer_identity(),
        "started_unix_ns": now, "published_unix_ns": now, "beat_seconds": 1e9, "ended": False, "state": "idle",
        "state_since_unix_ns": now, "health": "ok", "step": 41, "role": "actor", "step_seconds": 1.0,
        "requests": {"q": {"outcome": "missed", "reason": "too late", "missed": "40", "steps": "40", "role": None}},
        "engines": {
            f"rollout/{n}": engine if n != 7 else {**engine, "health": "dead"} for n in range(100)
        },
    }  # fmt: skip
    (folder / "rank-0.json").write_text(json.dumps(content))
    different = {5: {"state": "recording"}, 6: {"step": 12}, 9: {"last_error": "export: a disk is full"}}

    def of_rank(status, rank):
        status.update(rank=rank, host=f"node-{rank // 8}", engines={}, **different.get(rank, {}))
        return status

    copies(folder / "rank-0.json", RANKS, of_rank)
    record(run, step=40)
    return run


class TestStatus:
    def test_many_processes_are_grouped(self, statuses, capsys) -> None:
        """Similar processes share a row, as do engines of one state; different ones have their own.
        `--all` shows each.
        """
        assert main(["status", str(statuses.path)]) == 0
        text = capsys.readouterr().out
        assert len(text.splitlines()) <= 25
        assert re.search(
            r"^0-4, 7-8, 10-4095 +512 hosts +live +idle .* 41 +actor +1\.000 +ok", text, re.MULTILINE
        )
        assert re.search(r"^5 +node-0 +live +recording", text, re.MULTILINE)
        assert re.search(r"^6 +node-0 +live +idle +\S+ s +12 ", text, re.MULTILINE)
        assert re.search(r"^9 +node-1 +live", text, re.MULTILINE)
        assert "(4,096 processes in 4 rows; --all shows each)" in text
        assert re.search(r"^  rollout/7 .* dead ", text, re.MULTILINE)
        assert re.search(r"^  rollout/0-6, 8-99 .* ok ", text, re.MULTILINE)
        assert "  rank 9: export: a disk is full" in text
        assert "missed by 4096" in text
        assert main(["status", str(statuses.path), "--all"]) == 0
        everything = capsys.readouterr().out.splitlines()
        assert sum(" live " in line for line in everything) == RANKS
        assert sum(line.startswith("  rollout/") for line in everything) == 100
        assert main(["status", str(statuses.path), "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["processes"]) == RANKS
        assert f"  request q: missed by rank 0-{RANKS - 1}: too late" in render_step(statuses.path, 40)


class TestState:
    def test_many_engines_are_one_short_line(self) -> None:
        """The line stays short whatever the states of the 1,000 engines."""
        states = {f"rollout/{n}": ("idle", "armed", "recording", "flushing")[n % 4] for n in range(1000)}
        line = str(State(engines=states))
        assert len(line) < 400
        assert "rollout/0,4,8,12,16,20,… (250):idle" in line
        assert str(State(engines=dict.fromkeys(states, "idle"))) == "idle engines=rollout/0-999:idle"

    def test_few_engines_are_shown_by_name(self) -> None:
        """Each of a few engines is shown by its name."""
        states = {"rollout/0": "idle", "reward/0": "armed"}
        assert str(State(engines=states)) == "idle engines=rollout/0:idle,reward/0:armed"


class TestGrouped:
    def test_few_are_not_grouped(self) -> None:
        """Each of a few items has a row, and there is no note."""
        groups = grouped(range(FULL_ROWS), lambda _: 0)
        assert groups.rows == [[n] for n in range(FULL_ROWS)]
        assert groups.note("things") is None

    def test_omitted_rows_are_counted_and_urgent_ones_first(self) -> None:
        """Urgent rows come first, and a note counts the omitted rows."""
        groups = grouped(range(100), lambda n: n, urgent=lambda n: n > 95)
        assert [row[0] for row in groups.rows[:5]] == [96, 97, 98, 99, 0]
        assert (
            groups.note("things") == f"100 things in {FULL_ROWS} rows, 80 of them omitted; --all shows each"
        )

    def test_unknown_or_similar_measures_make_no_outlier(self) -> None:
        """A measure that is unknown or nearly equal for all items makes no item an outlier."""
        assert len(grouped(range(100), lambda _: 0, (lambda _: None, lambda n: 100.0 + n / 10)).rows) == 1

    def test_spread_and_notes(self) -> None:
        """`spread` prints a range. `bounded` keeps short lists of notes complete."""
        assert spread([0.5, 1.5], "{:.1f}".format) == "0.5-1.5"
        assert bounded([["a"] * 3, ["b"] * 3]) == ["a"] * 3 + ["b"] * 3
        assert bounded([["x"]] * 20) == ["x"] * 20
        assert bounded([["a"] * 50], show_all=True) == ["a"] * 50


class TestRanges:
    def test_names_and_bounds(self) -> None:
        """Numbers are shortened to ranges, names follow them, and the limit of parts is kept."""
        assert ranges(["driver", 2, 1, 1]) == "1-2, driver"
        assert ranges([0, 2, 4, "driver"], most=2) == "0, 2, … (4)"
        assert label_ranges([f"role-{n}/0" for n in range(5)], most=2) == "role-0/0, role-1/0, … (5 roles)"
        assert label_ranges(["odd", "rollout/1 (2)"]) == "odd, rollout/1 (2)"

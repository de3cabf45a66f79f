"""Tests of `stepprof export`: which Parquet files it writes, and what they contain."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from runs import make_run, record, region, write_spans

from stepprof.cli.main import main


@pytest.fixture
def run(tmp_path):
    made = make_run(tmp_path / "runs", "r")
    record(made, step=2)
    record(made, step=5)
    write_spans(made, 0, region("update", 0.5), region("update", 0.5, step=3))
    return made.path


def export(*arguments):
    return main(["export", *map(str, arguments)])


def test_every_table_is_written(run, tmp_path, capsys):
    """The command writes a file for each table. One file has the slices of all recorded steps."""
    assert export(run, "--parquet", tmp_path / "out") == 0
    tables = {path.stem: pq.read_table(path) for path in (tmp_path / "out").iterdir()}
    assert sorted(tables) == ["findings", "iterations", "slices", "spans", "steps"]
    assert set(tables["slices"]["step"].to_pylist()) == {2, 5}
    assert tables["spans"]["step"].to_pylist() == [2, 3]
    assert tables["slices"].schema.field("duration_ns").metadata[b"unit"] == b"ns"
    assert f"{tmp_path}/out/spans.parquet  2 rows" in capsys.readouterr().out


def test_one_step_exports_only_its_rows(run, tmp_path, capsys):
    assert export(run, "--parquet", tmp_path / "out", "--step", 2, "--json") == 0
    assert set(pq.read_table(tmp_path / "out" / "slices.parquet")["step"].to_pylist()) == {2}
    reported = json.loads(capsys.readouterr().out)
    assert [(file["path"], file["rows"]) for file in reported["files"]][1] == (
        str(tmp_path / "out" / "spans.parquet"),
        2,
    )
    assert (reported["run_id"], reported["problems"]) == ("r", [])


def test_a_second_export_replaces_the_first(run, tmp_path):
    out = tmp_path / "out"
    assert export(run, "--parquet", out) == 0
    (out / "spans.parquet").write_text("old")
    assert export(run, "--parquet", out) == 0
    assert pq.read_table(out / "spans.parquet").num_rows == 2
    assert sorted(path.name for path in out.iterdir()) == [
        f"{name}.parquet" for name in ("findings", "iterations", "slices", "spans", "steps")
    ]


def test_every_occurrence_of_a_step(tmp_path):
    made = make_run(tmp_path / "runs", "r")
    base = 1_700_000_000_000_000_000
    for number in range(2):
        record(
            made,
            start_unix_ns=base + number * 10**10,
            end_unix_ns=base + number * 10**10 + 10**9,
            visit=number + 1,
        )
    assert export(made.path, "--parquet", tmp_path / "out") == 0
    occurrences = pq.read_table(tmp_path / "out" / "slices.parquet")["occurrence"].to_pylist()
    assert sorted(set(occurrences)) == [1, 2]


def test_damage_is_printed(run, tmp_path, capsys):
    (run / "step-000002" / "actor" / "rank-0.trace.json.gz").write_bytes(b"no gzip")
    assert export(run, "--parquet", tmp_path / "out") == 0
    assert "notes:\n  step-000002/actor/rank-0.trace.json.gz: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--parquet", "out", "--step", "9"), "step 9: not recorded"),
        (("--parquet", "file"), '--parquet "file": cannot be written: File exists'),
    ],
)
def test_invalid_arguments_are_refused(run, tmp_path, monkeypatch, capsys, arguments, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert export(run, *arguments) == 2
    assert problem in capsys.readouterr().err

"""Test that pandas, Polars and DuckDB accept the tables of a run and read the same values as
pyarrow.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest
from runs import make_run, record, record_engine, region, tell_engines, write_spans

import stepprof
from stepprof.analysis.data.run import Run
from stepprof.analysis.data.schema import TABLES, Column, Columns
from stepprof.analysis.data.table import Table

BASE = 1_700_000_000_000_000_000
MANY = 1_000_000
Rows = list[dict[str, Any]]


def by_pandas(table: Table) -> Rows:
    """Read a table with pandas, as docs/data.md shows for integers with nulls."""
    frame = pa.table(table).to_pandas(types_mapper=pandas.ArrowDtype)
    columns = {name: frame[name].astype(object).where(frame[name].notna(), None) for name in frame}
    return pandas.DataFrame(columns).to_dict("records")


def by_polars(table: Table) -> Rows:
    return polars.DataFrame(table).to_dicts()


def by_duckdb(table: Table) -> Rows:
    found = duckdb.from_arrow(table)
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


CONSUMERS = [by_pandas, by_polars, by_duckdb]


def trace(*events: dict[str, Any]) -> bytes:
    return gzip.compress(json.dumps({"baseTimeNanoseconds": BASE, "traceEvents": events}).encode())


def op(name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": 7, "ts": ts, "dur": dur, **more}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run with every kind of row: nulls, unsigned numbers of 64 bits, names in other
    scripts, and names that are not UTF-8.
    """
    made = make_run(tmp_path_factory.mktemp("runs"), "r")
    record(
        made,
        data=trace(op("é日\x00 \U0001f600", 1, 2, args={"n": 1 << 63}), op("half \ud800", 3, 4.125)),
        start_unix_ns=BASE,
        end_unix_ns=BASE + 10**9,
    )
    forward = op("execute_context_1(7)_generation_3(3)", 400, 90, cat="user_annotation")
    tell_engines(made, record_engine(made, data=trace(forward), host="h"))
    window = {"name": "step", "kind": "window", "dur": 10**9, "thread": 7}
    write_spans(
        made,
        0,
        *({**window, "step": step, "start": BASE + step * 10**9} for step in (2, 3)),
        region("update \ud800", 0.25, attrs={"tokens": 3}),
        region("", 0.0, role=None, thread=(1 << 63) - 1, task=-(1 << 63)),
        region("unsigned", 0.0, thread=(1 << 64) - 1),
        {"name": "loss", "kind": "counter", "start": BASE, "value": "inf", "step": None},
        pid=(1 << 64) - 1,
    )
    return stepprof.open_run(made.path)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = make_run(tmp_path_factory.mktemp("runs"), "e")
    record(made, data=trace())
    return stepprof.open_run(made.path)


def tables(run: Run) -> dict[str, Table]:
    step = run.step()
    return {
        "steps": run.steps,
        "spans": run.spans,
        "slices": step.slices,
        "iterations": step.iterations,
        "findings": step.findings,
    }


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("name", list(TABLES))
class TestEachTable:
    def test_every_row(self, run: Run, name: str, consumer: Callable[[Table], Rows]) -> None:
        """Each consumer reads the values and nulls that pyarrow reads."""
        table = tables(run)[name]
        expected = pa.table(table).to_pylist()
        assert consumer(table) == expected
        assert expected

    def test_tables_without_rows_can_be_read(
        self, empty: Run, name: str, consumer: Callable[[Table], Rows]
    ) -> None:
        """The recorded step has no events. Only the tables of steps and findings may have rows, and
        each consumer reads them.
        """
        table = tables(empty)[name]
        assert name in ("steps", "findings") or pa.table(table).num_rows == 0
        assert consumer(table) == pa.table(table).to_pylist()


def test_empty_tables_have_their_columns(tmp_path) -> None:
    spans = stepprof.open_run(make_run(tmp_path, "r").path).spans
    names = [column.name for column in spans.columns]
    assert list(pandas.DataFrame.from_arrow(spans)) == names
    assert polars.DataFrame(spans).columns == names
    assert duckdb.sql("from spans").columns == names
    assert (len(polars.DataFrame(spans)), duckdb.sql("from spans").fetchall()) == (0, [])


def test_pandas_makes_floats_of_integers_with_nulls(run: Run) -> None:
    """By default pandas converts integers with nulls to floats, as the page documents. Columns without
    nulls stay integers.
    """
    frame = pandas.DataFrame.from_arrow(run.spans)
    table = pa.table(run.spans)
    for column in run.spans.columns:
        values = table.column(column.name)
        if column.type == "int64":
            assert frame[column.name].dtype == ("float64" if values.null_count else "int64")
        elif column.type == "category":
            assert frame[column.name].dtype == "category"
    assert frame["start_unix_ns"].tolist() == table.column("start_unix_ns").to_pylist()
    assert frame["step"].isna().tolist() == [step is None for step in table.column("step").to_pylist()]


def test_queries_of_the_page(run: Run) -> None:
    """The queries of docs/data.md work: they name a table by its variable."""
    spans, slices = run.spans, run.step().slices  # noqa: F841 - DuckDB finds them by name
    assert duckdb.sql(
        "from spans select name, count(*), sum(duration_ns) / 1e9 as seconds where kind = 'region' group by name order by name"
    ).fetchall() == [("", 1, 0.0), ("unsigned", 1, 0.0), ("update \ufffd", 1, 0.25)]
    found = duckdb.sql(
        "from slices select process, name, sum(duration_ns) / 1e6 as ms group by all"
    ).fetchall()
    assert ("actor rank 0", "half \ufffd", 0.004125) in found
    begun = duckdb.sql("from spans select make_timestamp_ns(start_unix_ns)::varchar order by all").fetchall()
    assert begun[0] == ("2023-11-14 22:13:20",)
    step = run.step()
    assert polars.DataFrame(step.findings)["text"].to_list() == [
        each["text"] for each in step.report["findings"]
    ]


def test_times_are_not_copied() -> None:
    """Polars and pyarrow use the memory of stepprof's array without a copy."""
    times = np.arange(1000, dtype=np.int64)
    table = Table(Columns("t", "", (Column("a", "int64", ""),)), lambda _: [(len(times), {"a": times})])
    (chunk,) = pa.table(table).column("a").chunks
    assert chunk.buffers()[1].address == times.ctypes.data
    assert polars.DataFrame(table)["a"].to_numpy(allow_copy=False).ctypes.data == times.ctypes.data


def test_a_million_rows(tmp_path) -> None:
    """The table is read in batches. Each consumer counts and adds the same."""
    made = make_run(tmp_path, "r")
    events = ",".join(
        f'{{"ph":"X","name":"op {number % 500}","pid":7,"tid":7,"ts":{number * 10},"dur":{number % 7}}}'
        for number in range(MANY)
    )
    record(made, data=gzip.compress(f'{{"baseTimeNanoseconds":{BASE},"traceEvents":[{events}]}}'.encode(), 1))
    slices = stepprof.open_run(made.path).step().slices.select("name", "start_unix_ns", "duration_ns")
    total = sum(number % 7 for number in range(MANY)) * 1000
    expected = (MANY, total, BASE + (MANY - 1) * 10_000)
    frame = pandas.DataFrame.from_arrow(slices)
    assert (len(frame), frame["duration_ns"].sum(), frame["start_unix_ns"].max()) == expected
    table = polars.DataFrame(slices)
    assert (len(table), table["duration_ns"].sum(), table["start_unix_ns"].max()) == expected
    assert table["name"].n_unique() == 500
    query = "from slices select count(*), sum(duration_ns)::bigint, max(start_unix_ns)"
    assert duckdb.sql(query).fetchall() == [expected]
    assert sum(batch.num_rows for batch in slices.reader()) == MANY

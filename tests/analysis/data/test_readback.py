"""Random spans and traces are written to a run directory; the tables are compared with them row by row."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import make_run, record, write_spans

import stepprof
from stepprof.instrument.scope import LARGEST_STEP

BASE = 1_700_000_000_000_000_000
KINDS = ("window", "region", "mark", "counter")
LARGEST = (1 << 62) - 1

# names have control characters, quotes and every script; in traces also lone surrogates
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
any_names = st.text(st.characters(), min_size=1, max_size=12)
# unsigned integers of 64 bits are included; a column of int64 cannot hold them
numbers = st.none() | st.integers(-(1 << 63), (1 << 64) - 1)
# a span file stores NaN and infinities as strings, so its numbers are finite
finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), finite, names),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)
spans = st.lists(
    st.fixed_dictionaries(
        {"name": names, "kind": st.sampled_from(KINDS), "start": st.integers(0, LARGEST)},
        optional={
            "dur": st.integers(0, LARGEST),
            "step": st.none() | st.integers(0, LARGEST_STEP),
            "role": st.none() | names,
            "thread": numbers,
            "task": numbers,
            "value": st.sampled_from(["inf", "-inf", "7.5", "none"]) | json_values,
            "error": st.booleans(),
            "attrs": st.dictionaries(names, json_values, max_size=3),
        },
    ),
    max_size=8,
)
processes = st.lists(st.tuples(spans, numbers), min_size=1, max_size=3)
microseconds = st.decimals(0, 10**9, places=3)
events = st.lists(
    st.fixed_dictionaries(
        {"name": any_names, "ts": microseconds, "dur": microseconds, "tid": st.integers(1, 5)},
        optional={"args": st.dictionaries(names.filter(lambda name: name != "Trace name"), json_values, max_size=3)},
    ),
    max_size=8,
)  # fmt: skip


def text(name):
    """Return a name as UTF-8 can hold it: U+FFFD replaces each lone surrogate."""
    return None if name is None else name.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def int64(value):
    return value if value is not None and -(1 << 63) <= value < 1 << 63 else None


def counted(span):
    """Return the value of a counter, as docs/data.md defines it."""
    if span["kind"] != "counter":
        return None
    try:
        return float(span.get("value"))
    except (TypeError, ValueError, OverflowError):
        return None


@settings(max_examples=80)
@given(processes)
def test_spans(tmp_path_factory, written):
    """Each line is a row, in order, with every field. A value that no column can hold is null."""
    made = make_run(tmp_path_factory.mktemp("runs"), "r")
    for rank, (lines, pid) in enumerate(written):
        write_spans(made, rank, *lines, pid=pid)
    run = stepprof.open_run(made.path)
    found = pa.table(run.spans).to_pylist()
    expected = [
        {
            "step": span.get("step"),
            "kind": span["kind"],
            "name": text(span["name"]),
            "role": text(span.get("role")),
            "process": f"rank {rank}",
            "rank": rank,
            "host": "h",
            "pid": int64(pid),
            "thread": int64(span.get("thread")),
            "task": int64(span.get("task")),
            "start_unix_ns": span["start"],
            "duration_ns": span.get("dur", 0),
            "value": counted(span),
            "error": span.get("error", False),
        }
        for rank, (lines, pid) in enumerate(written)
        for span in lines
    ]
    attributes = [row.pop("attributes") for row in found]
    assert found == expected
    stated = [span.get("attrs") or None for lines, _ in written for span in lines]
    assert [None if each is None else json.loads(each) for each in attributes] == stated
    assert run.problems == []
    assert pa.table(run.spans.select("name", "step")).to_pylist() == [
        {"name": row["name"], "step": row["step"]} for row in expected
    ]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=8))
def test_steps(tmp_path_factory, drawn):
    """Windows follow one another. The table has a row for each, with its duration and the time
    until the next one.
    """
    windows, at = [], BASE
    for number, (length, gap) in enumerate(drawn):
        windows.append({"name": "step", "kind": "window", "step": number, "start": at, "dur": length})
        at += length + gap + 1
    made = make_run(tmp_path_factory.mktemp("runs"), "r")
    write_spans(made, 0, *windows)
    found = pa.table(stepprof.open_run(made.path).steps).to_pylist()
    starts = [window["start"] for window in windows]
    assert found == [
        {
            "step": number,
            "visit": 1,
            "process": "rank 0",
            "recorded": False,
            "start_unix_ns": window["start"],
            "duration_ns": window["dur"],
            "until_next_ns": starts[number + 1] - starts[number] if number + 1 < len(starts) else None,
        }
        for number, window in enumerate(windows)
    ]


@settings(max_examples=60)
@given(st.lists(events, min_size=1, max_size=3))
def test_slices(tmp_path_factory, traces):
    """Each event of a trace is a row with its arguments and with times exact to the nanosecond."""
    made = make_run(tmp_path_factory.mktemp("runs"), "r")
    expected = []
    for rank, drawn in enumerate(traces):
        lines = [
            {**event, "ph": "X", "cat": "cpu_op", "pid": 7, "ts": float(event["ts"]), "dur": float(event["dur"])}
            for event in drawn
        ]  # fmt: skip
        content = {"schemaVersion": 1, "baseTimeNanoseconds": BASE, "traceEvents": lines}
        record(made, rank=rank, data=gzip.compress(json.dumps(content).encode()))
        expected += [
            (
                rank,
                text(event["name"]),
                BASE + int(event["ts"] * 1000),
                int(event["dur"] * 1000),
                json.dumps(event["args"]) if "args" in event else None,
            )
            for event in drawn
        ]
    step = stepprof.open_run(made.path).step()
    found = [
        (row["rank"], row["name"], row["start_unix_ns"], row["duration_ns"], row["arguments"])
        for row in pa.table(step.slices).to_pylist()
        if row["source_kind"] == "rank"
    ]
    assert sorted(row[:4] for row in found) == sorted(row[:4] for row in expected)
    stated = sorted(json.dumps(json.loads(row[4]), sort_keys=True) for row in found if row[4] is not None)
    assert stated == sorted(json.dumps(json.loads(row[4]), sort_keys=True) for row in expected if row[4])
    assert pa.table(step.iterations).num_rows == 0

"""Files that are no trace are named by their content, whatever their name is."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest
from runs import make_run, record, region, write_spans

from stepprof.cli.main import main
from stepprof.formats.recognise import TAKEN, What, not_a_trace, not_for_perfetto, shows_events

TRACE = json.dumps(
    {
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 1, "dur": 4}
        ],
    }
).encode()


def text(what: What | None) -> str | None:
    return None if what is None else what.text


EVENTS_IN_LINES = "has an event on each line: `jq -s . FILE` makes a list of them, which is a trace"
NSIGHT = "is an export of Nsight Systems as JSON, and no trace: nsys-ui opens its .nsys-rep"
PICKLE = "is a pickle, such as a memory snapshot of torch: https://docs.pytorch.org/memory_viz shows it"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (TRACE, None),
        (gzip.compress(TRACE, mtime=0), None),
        (b'[{"ph": "X"}', None),
        (b'{"traceEvents": [', None),
        (b'{"schemaVersion": 1, "deviceProperties": [', None),
        (gzip.compress(TRACE, mtime=0)[:20], None),
        (gzip.compress(TRACE, mtime=0)[:10] + b"\xff" * 20, None),
        (b"", None),
        (gzip.compress(b"", mtime=0), None),
        (b"\0" * 64, None),
        (b"{\0\0\0", None),
        (b"\x7fELF\0\0\0", None),
        (TRACE.decode().encode("utf-16"), "is JSON in UTF-16: convert it to UTF-8"),
        (TRACE.decode().encode("utf-16-be"), "is JSON in UTF-16: convert it to UTF-8"),
        (b"loss 0.1\n", f"is text and no trace: {TAKEN}"),
        (b"\xef\xbb\xbf<!DOCTYPE html>", f"is a web page and no trace: {TAKEN}"),
        (
            b'{"baseTimeNanoseconds":17,"stepprof":{"timeline":[{"piece":{}}]},"traceEvents":[\n',
            "is a merged timeline of stepprof: give the run or the traces that it was merged from; `stepprof open` shows the timeline",
        ),
        (b'{"lr": 0.1}', "is JSON without traceEvents, and no trace"),
        (gzip.compress(b'{"lr": 0.1}', mtime=0), "is JSON without traceEvents, and no trace"),
        (b"[[1, 2], [3, 4]]", "is a JSON list without events, and no trace"),
        (b"[[1, 2], [3, 4", "is a JSON list without events, and no trace"),
        (b'[{"args": {"a": "' + b"x" * 99_999 + b'"}, "ph": "X"}]', None),
        (b'[{"a": 1}, {"a": 2}]', "is a JSON list without events, and no trace"),
        (b'[{"a": 1}, {"a"', None),
        (b"[]", None),
        (
            b'{\n  "schema": "1.1.1-chakra.0.0.4", "pid": 7, "nodes": [' + b" " * 99_999,
            "is an execution trace of torch, whose nodes have no times, and no trace",
        ),
        (
            b"\x28\xb5\x2f\xfd\x04\x58...",
            "is compressed with Zstandard, which is not read: `zstd -d FILE` first",
        ),
        (b"\xfd7zXZ\0...", "is compressed with xz, which is not read: `xz -dk FILE` first"),
        (b"BZh91AY&SY...", "is compressed with bzip2, which is not read: `bzip2 -dk FILE` first"),
        (b"\x04\x22\x4d\x18...", "is compressed with LZ4, which is not read: `lz4 -d FILE` first"),
        (gzip.compress(b"a" * 257 + b"ustar", mtime=0), "is a tar archive: extract the traces in it first"),
        (b'{"ph": "X", "ts": 1}\n{"ph": "X"}\n', EVENTS_IN_LINES),
        (gzip.compress(b'{"ph": "X", "ts": 1}\r\n\r\n{"ph": "', mtime=0), EVENTS_IN_LINES),
        (b'{"loss": 0.1}\n{"loss": 0.2}\n', "is JSON with an object on each line, and no trace"),
        (b'{"data": ["a"]}\n{"Type": 48, "CudaEvent": {"startNs": "1"}}\n', NSIGHT),
        (b'{"NvtxEvent": {"GlobalTid": "2"}}\n{"NvtxEvent": {"Glob', NSIGHT),
        (b'{"a": 1}\n"traceEv', None),
        (pickle.dumps({"segments": []}), PICKLE),
        (b"PK\x03\x04...", f"is a ZIP archive: {TAKEN}"),
        (b"SQLite format 3\0...", f"is a SQLite database of another tool: {TAKEN}"),
    ],
)
def test_what_a_file_is(tmp_path: Path, content: bytes, what: str | None) -> None:
    """The start of the content decides. A damaged trace may still be one."""
    path = tmp_path / "a.json"
    path.write_bytes(content)
    assert text(not_a_trace(path)) == what


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"\x7fELF\0\0\0", f"is a binary file and no trace: {TAKEN}"),
    ],
)
def test_another_name(tmp_path: Path, content: bytes, what: str) -> None:
    """Only the name of a trace makes an empty or a binary file a damaged trace."""
    path = tmp_path / "a.bin"
    path.write_bytes(content)
    assert text(not_a_trace(path)) == what


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.pftrace.gz", gzip.compress(b"\x0a\x08\x50\x01\x68\x01\x32\0\0", mtime=0), None),
        ("a.pftrace.gz", gzip.compress(b"\x0a\x08\x32\0\0\0", mtime=0), None),
        ("a.txt", b"systrace", None),
        ("a.html", b"<html>", None),
        ("a.json", b"", "is empty"),
        ("a.json", gzip.compress(b"", mtime=0), "is empty"),
        ("a.nsys-rep", b"\x7f\0", "is a report of Nsight Systems: nsys-ui opens it"),
        ("a.json", TRACE.decode().encode("utf-16"), "is JSON in UTF-16: convert it to UTF-8"),
    ],
)
def test_what_perfetto_cannot_show(tmp_path: Path, name: str, content: bytes, what: str | None) -> None:
    """The kind of the file decides, compressed or not; Perfetto shows text, pages of systrace and its own format."""
    path = tmp_path / name
    path.write_bytes(content)
    assert text(not_for_perfetto(path)) == what


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (TRACE, True),
        (gzip.compress(TRACE, mtime=0), True),
        (b'[{"name": "a", "ph": "X"}', True),
        (b'{"schemaVersion": 1, "deviceProperties": [', True),
        (b'{"model": {"vocab": {"a": 0', False),
        (b"[[1, 2], [3, 4", False),
        (gzip.compress(TRACE, mtime=0)[:10] + b"\xff" * 20, False),
    ],
)
def test_a_start_that_shows_events(tmp_path: Path, content: bytes, shown: bool) -> None:
    """A key of a trace, or a list of events. What may be anything shows nothing."""
    path = tmp_path / "a.json"
    path.write_bytes(content)
    assert shows_events(path) is shown


def test_files_of_stepprof(tmp_path: Path) -> None:
    """The report, the comparison, the timeline, the manifest, spans and `run.json` are each named."""
    run = make_run(tmp_path, "r")
    for step in (2, 3):
        record(run, step=step, data=gzip.compress(TRACE, mtime=0))
    write_spans(run, 0, region("update", 0.5))
    assert (
        main(["report", str(run.path), "--step", "2"]) == main(["merge", str(run.path), "--step", "2"]) == 0
    )
    compared = tmp_path / "compared.json"
    assert main(["report", f"{run.path}:2", f"{run.path}:3", "--json", str(compared)]) == 0
    step = run.path / "step-000002"
    (manifest,) = (step / "manifest").glob("*.json")
    (spans,) = (run.path / "spans").glob("*.jsonl")
    run_file = run.path / "run.json"
    assert [text(not_a_trace(each)) for each in (step / "report.json", step / "report.html", compared)] == [
        "is a report of stepprof, and no trace",
        "is a report of stepprof, for a browser, and no trace",
        "is a comparison of stepprof, and no trace",
    ]
    assert [text(not_a_trace(each)) for each in (manifest, spans, run_file)] == [
        "is a manifest of a step: give the folder of its run",
        "is a file of spans: give the folder of its run",
        "is the description of a run: give the folder of the run",
    ]
    timeline = step / "timeline.pftrace"
    assert (
        text(not_a_trace(timeline))
        == "is a merged timeline of stepprof: give the run or the traces that it was merged from; `stepprof open` shows the timeline"
    )
    assert not_for_perfetto(timeline) is None
    assert text(not_for_perfetto(step / "report.json")) == "is a report of stepprof, and no trace"

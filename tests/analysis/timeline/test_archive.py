"""An archive of a step, checked by a reader that follows
https://perfetto.dev/docs/reference/perfetto-manifest.
"""

from __future__ import annotations

import gzip
import json
import os
import struct
import zipfile
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import make_run, record

from analysis.timeline.test_merge import BASE, kineto, spans
from stepprof.analysis.timeline.archive import write_archive
from stepprof.analysis.timeline.archive_manifest import is_archive, manifest
from stepprof.analysis.timeline.find import Input, find
from stepprof.analysis.timeline.load import load
from stepprof.analysis.timeline.model import Alignment, Origin
from stepprof.errors import ConfigError

CLOCKS = {"REALTIME", "REALTIME_COARSE", "MONOTONIC", "MONOTONIC_COARSE", "MONOTONIC_RAW", "BOOTTIME"}


class Archive:
    """A reader of archives as Perfetto documents them: the members, and the slices on the merged timeline."""

    def __init__(self, path):
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            self.members = {name: archive.read(name) for name in archive.namelist()}
        manifests = [
            name
            for name, content in self.members.items()
            if b"".join(content[:512].split()).startswith(b'{"perfetto_manifest"')
        ]
        assert manifests == ["perfetto_manifest.json"]
        document = json.loads(self.members.pop(manifests[0]))
        assert list(document) == ["perfetto_manifest"]
        self.manifest = document["perfetto_manifest"]
        self._check()

    def _check(self):
        """Check the conditions under which Perfetto refuses an import or ignores a file."""
        assert set(self.manifest) <= {"version", "trace_time", "files", "attributes"}
        assert self.manifest["version"] == 1
        paths = [file["path"] for file in self.manifest["files"]]
        assert sorted(paths) == sorted(self.members)
        assert len(set(paths)) == len(paths)
        # files of one machine would share its processes and threads
        machines = [file["machine"]["name"] for file in self.manifest["files"]]
        assert len(set(machines)) == len(machines)
        assert set(self.manifest["trace_time"]) == {"clock", "file"}
        assert self.manifest["trace_time"]["clock"] in CLOCKS
        assert self.manifest["trace_time"]["file"] in paths
        for file in self.manifest["files"]:
            assert set(file) == {"path", "machine", "clocks"}
            assert not any(part.startswith(".") for part in file["path"].split("/"))
            assert len(file["path"].encode()) <= 99
            assert set(file["machine"]) == {"name"}
            assert file["machine"]["name"]
            assert set(file["clocks"]) == {"sync_to", "offset_ns"}
            assert type(file["clocks"]["offset_ns"]) is int
            assert abs(file["clocks"]["offset_ns"]) < 1 << 63
            assert file["clocks"]["sync_to"]["file"] in paths
            assert file["clocks"]["sync_to"]["clock"] in CLOCKS
            # Perfetto refuses an override for a member that is an archive itself
            assert self.members[file["path"]][:2] not in (b"\x1f\x8b", b"PK")
            # Perfetto takes any other beginning for another format, or fails the import
            begins = b"".join(self.members[file["path"]][:128].split())
            assert begins.startswith((b'{"', b'[{"'))
            assert not begins.startswith((b'{"meta"', b'{"libs"', b'{"perfetto_manifest"'))
        for key, value in self.manifest["attributes"].items():
            assert key
            assert isinstance(value, str | int)

    def slices(self):
        """Return (machine, name, start, duration) of each slice, on the clock of the timeline."""
        wanted = self.manifest["trace_time"]
        found = []
        for file in self.manifest["files"]:
            assert file["clocks"]["sync_to"] == wanted
            content = json.loads(self.members[file["path"]], parse_float=Decimal)
            for event in content["traceEvents"]:
                if event.get("ph") == "X":
                    start = int(event["ts"] * 1000) + file["clocks"]["offset_ns"]
                    found.append((file["machine"]["name"], event["name"], start, int(event["dur"] * 1000)))
        return found


def archived(found, path, **how):
    made = write_archive(found.inputs, path, **how)
    assert made.bytes == path.stat().st_size
    assert is_archive(path)
    return made, Archive(path)


def test_traces_are_as_they_were_recorded(tmp_path):
    """The archive has two traces with different bases, unchanged byte for byte, each at its own time."""
    made = make_run(tmp_path, "r")
    data = [kineto("a", "b"), kineto("c", base=BASE + 500_000_000)]
    for rank, content in enumerate(data):
        record(made, rank=rank, pid=7 + rank, data=content)
    merged, archive = archived(find([made.path], output_dir=tmp_path), tmp_path / "a.zip")
    assert archive.members == {
        f"step-000002/actor/rank-{rank}.trace.json": gzip.decompress(content)
        for rank, content in enumerate(data)
    }
    assert archive.slices() == [
        ("actor rank 0 · h", "a", BASE, 5_000),
        ("actor rank 0 · h", "b", BASE + 10_000, 5_000),
        ("actor rank 1 · h", "c", BASE + 500_000_000, 5_000),
    ]
    assert (merged.format, [part.slices for part in merged.parts]) == ("archive", [2, 1])


def test_attributes(tmp_path):
    """The attributes have the run, the step, and the error of the clock."""
    made = make_run(tmp_path, "r")
    record(made, data=kineto("a"))
    found = find([made.path], output_dir=tmp_path)
    _, archive = archived(found, tmp_path / "a.zip", about={"run_id": "r", "step": 2, "manifests": []})
    assert archive.manifest["attributes"] == {
        "stepprof.clock": "1 source by the clock of one host",
        "stepprof.clock_error_ns": 0,
        "stepprof.run_id": "r",
        "stepprof.step": 2,
    }


def test_spans_are_converted(tmp_path):
    """Perfetto cannot read span files, so the archive has them converted."""
    made = make_run(tmp_path, "r")
    record(made, data=kineto("a"))
    spans(made, 0, ("update", 1_000_001, 2_000_003))
    _, archive = archived(find([made.path], output_dir=tmp_path), tmp_path / "a.zip")
    assert sorted(archive.members) == ["step-000002/actor/rank-0.trace.json", "stepprof.json"]
    assert ("stepprof", "update", BASE + 1_000_001, 2_000_003) in archive.slices()


def test_converted_spans_are_named_as_in_other_formats(tmp_path):
    """The spans of a rank are named differently from its trace."""
    made = make_run(tmp_path, "r")
    record(made, role=None, data=kineto("a"))
    spans(made, 0, ("update", 1_000, 2_000))
    merged, archive = archived(find([made.path], output_dir=tmp_path), tmp_path / "a.zip")
    events = json.loads(archive.members["stepprof.json"])["traceEvents"]
    shown = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert shown == {"rank 0 · spans · h"}
    assert [part.label for part in merged.parts] == ["rank 0 · spans · h", "rank 0 · torch · h"]


def test_a_damaged_trace_is_converted(tmp_path):
    """A damaged trace would fail the import of the whole archive, so it is converted."""
    made = make_run(tmp_path, "r")
    record(made, data=kineto("a"))
    whole = gzip.decompress(kineto("b", "c"))
    record(made, rank=1, data=gzip.compress(whole[: whole.index(b'{"ph"', 90)]))
    merged, archive = archived(find([made.path], output_dir=tmp_path), tmp_path / "a.zip")
    assert sorted(archive.members) == ["step-000002/actor/rank-0.trace.json", "stepprof.json"]
    assert {name for _, name, _, _ in archive.slices()} >= {"a", "b"}
    assert (
        "actor rank 1 · h",
        "is in stepprof.json, converted, and not as it was recorded",
    ) in merged.findings


@pytest.mark.parametrize(
    "begins",
    [b"\xef\xbb\xbf{", b" " * 200 + b"{", b'{"meta": {}, ', b'{"perfetto_manifest": {}, ', b'{"libs": [],'],
)
def test_a_beginning_that_perfetto_does_not_recognise(tmp_path, begins):
    """Such a beginning would fail the import of the whole archive or show no slices, so the trace
    is converted.
    """
    file = tmp_path / "a.json"
    file.write_bytes(begins + gzip.decompress(kineto("a"))[1:])
    merged, archive = archived(find([file], output_dir=tmp_path), tmp_path / "a.zip")
    assert archive.slices() == [("stepprof", "a", BASE, 5_000)]
    assert ("a.json", "is in stepprof.json, converted, and not as it was recorded") in merged.findings


def test_a_time_that_is_no_number(tmp_path):
    """Perfetto reads no event of such a trace and refuses the archive, so the trace is converted."""
    file = tmp_path / "a.json"
    file.write_bytes(gzip.decompress(kineto("a", "b")).replace(b'"dur": 5', b'"dur": "x"', 1))
    merged, archive = archived(find([file], output_dir=tmp_path), tmp_path / "a.zip")
    assert list(archive.members) == ["stepprof.json"]
    assert ("a.json", "is in stepprof.json, converted, and not as it was recorded") in merged.findings


def test_a_capture_of_two_steps(tmp_path):
    """A capture of two steps is included as a whole, and a note says so."""
    made = make_run(tmp_path, "r")
    capture = {"step": 2, "stem": "actor/rank-0"}
    second = 10**9
    data = gzip.compress(gzip.decompress(kineto("early", "late")).replace(b'"ts": 10.0', b'"ts": 5000000.0'))
    record(made, data=data, start_unix_ns=BASE, end_unix_ns=BASE + 4 * second, capture=capture)
    record(
        made,
        step=3,
        data=b"",
        start_unix_ns=BASE + 4 * second,
        end_unix_ns=BASE + 8 * second,
        capture=capture,
        status="joined",
    )
    for step in (2, 3):
        merged, archive = archived(find([made.path], output_dir=tmp_path, step=step), tmp_path / "a.zip")
        assert {name for _, name, _, _ in archive.slices()} == {"early", "late"}
        assert [problem for _, problem in merged.findings] == [
            "the archive has its whole file, including events outside of the step"
        ]


def test_a_trace_without_a_start_time(tmp_path):
    """A trace without a start time is refused by name. An assumed offset places it."""
    made = make_run(tmp_path, "r")
    record(made, data=kineto("a"))
    record(made, rank=1, data=b'{"traceEvents":[{"ph":"X","name":"b","pid":1,"tid":1,"ts":1,"dur":2}]}')
    found = find([made.path], output_dir=tmp_path)
    merged, archive = archived(found, tmp_path / "a.zip")
    assert [name for _, name, _, _ in archive.slices()] == ["a"]
    assert any("refused: it has no baseTimeNanoseconds" in problem for _, problem in merged.findings)
    _, archive = archived(found, tmp_path / "a.zip", assume={"*": BASE})
    assert [(name, start) for _, name, start, _ in archive.slices()] == [("a", BASE), ("b", BASE + 1_000)]


def test_names_of_members(tmp_path):
    """Names are changed if Perfetto would skip them, if its page cannot hold them, or if two files
    have them.
    """
    inputs = []
    for number, shown in enumerate(
        (".hidden.json", "x" * 200 + ".json", "a.json", "./a.json", "é\ud800.json")
    ):
        file = tmp_path / f"{number}.json"
        file.write_bytes(gzip.decompress(kineto(f"s{number}")))
        inputs.append(Input(Origin("trace", shown), (str(file),), 1))
    write_archive(inputs, tmp_path / "a.zip")
    archive = Archive(tmp_path / "a.zip")
    assert sorted(name for _, name, _, _ in archive.slices()) == ["s0", "s1", "s2", "s3", "s4"]
    assert {"_hidden.json", "a.json", "é?.json"} < set(archive.members)


def test_traces_of_one_rank_of_two_runs(tmp_path):
    """Both traces name the same rank in their heads. Their folders distinguish them."""
    files = []
    for run in ("before", "after"):
        file = tmp_path / run / "rank-0.trace.json"
        file.parent.mkdir()
        head = {
            "baseTimeNanoseconds": BASE,
            "stepprof": {"run_id": run, "step": 2, "role": "actor", "rank": 0},
        }
        event = {"ph": "X", "name": run, "pid": 7, "tid": 7, "ts": 0, "dur": 5}
        file.write_text(json.dumps({**head, "traceEvents": [event]}))
        files.append(file)
    _, archive = archived(find(files, output_dir=tmp_path), tmp_path / "a.zip")
    assert {(machine, name) for machine, name, _, _ in archive.slices()} == {
        (f"actor rank 0 ({file.as_posix()})", file.parent.name) for file in files
    }


def test_with_nothing_to_write_an_existing_archive_stays(tmp_path):
    """If there is nothing to write, an existing file stays."""
    (tmp_path / "a.zip").write_text("old")
    file = tmp_path / "a.json"
    file.write_text("{}")
    for inputs in ([], [Input(Origin("trace", "a.json"), (str(file),), 2)]):
        with pytest.raises(ConfigError, match=r"nothing (to merge|could be read)"):
            write_archive(inputs, tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_text() == "old"
    assert not is_archive(tmp_path / "a.zip")
    assert not is_archive(tmp_path / "none.zip")


def test_a_table_of_contents_of_200_gigabytes(tmp_path):
    """A sparse file of 200 GiB that looks like an archive is not read as a whole. A pipe is not
    opened for reading.
    """
    path, size = tmp_path / "timeline.pftrace", 200 << 30
    with path.open("wb") as file:
        file.write(b"PK\x03\x04")
        file.truncate(size)
        file.seek(size)
        file.write(struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, size - 1024, 0))
        file.write(struct.pack("<4sLQL", b"PK\x06\x07", 0, size, 1))
        file.write(struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))
    assert not is_archive(path)
    os.mkfifo(tmp_path / "pipe")
    assert not is_archive(tmp_path / "pipe")


def test_a_folder_that_is_not_there(tmp_path):
    made = make_run(tmp_path, "r")
    record(made, data=kineto("a"))
    found = find([made.path], output_dir=tmp_path)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_archive(found.inputs, tmp_path / "none" / "a.zip")


TIMES = st.decimals(0, 10**9, places=3)
SOURCES = st.lists(
    st.tuples(
        st.integers(1_600_000_000_000_000_000, 1_800_000_000_000_000_000),
        st.integers(-(10**12), 10**12),
        st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30, deadline=None)
@given(SOURCES)
def test_times_are_those_of_the_timeline(tmp_path_factory, sources):
    """Times are exact to the nanosecond for any bases of files and offsets of hosts."""
    folder = tmp_path_factory.mktemp("archive")
    inputs = []
    for number, (base, offset, times) in enumerate(sources):
        events = ",".join(
            f'{{"ph":"X","name":"s{number}","pid":1,"tid":1,"ts":{start},"dur":{length}}}'
            for start, length in times
        )
        file = folder / f"{number}.json"
        file.write_text(f'{{"baseTimeNanoseconds":{base},"traceEvents":[{events}]}}')
        each = Input(Origin("trace", file.name), (str(file),), file.stat().st_size)
        inputs.append(replace(each, alignment=Alignment("ping-pong", offset, 10)))
    write_archive(inputs, folder / "a.zip", workers=1)
    expected = []
    for each in inputs:
        source = load(each, args=False)
        names = [source.names[name] for name in source.slices.name]
        expected += zip(names, source.slices.start.tolist(), source.slices.duration.tolist(), strict=True)
    shown = [(name, start, length) for _, name, start, length in Archive(folder / "a.zip").slices()]
    assert sorted(shown) == sorted(expected)


def test_the_example_of_the_reference():
    """The manifest has the keys, nesting and types of the documented example."""
    text = manifest([{"path": "a.json", "machine": {"name": "a"}, "offset_ns": 250_000_000}], {"x": None})
    assert json.loads(text) == {
        "perfetto_manifest": {
            "version": 1,
            "trace_time": {"clock": "REALTIME", "file": "a.json"},
            "files": [
                {
                    "path": "a.json",
                    "machine": {"name": "a"},
                    "clocks": {
                        "sync_to": {"file": "a.json", "clock": "REALTIME"},
                        "offset_ns": 250_000_000,
                    },
                }
            ],
            "attributes": {},
        }
    }

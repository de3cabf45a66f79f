"""The check of one artifact against its manifest entry. Merge can read each artifact that passes,
and reports damage in each that does not.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from dataclasses import replace

import pytest
from runs import TRACE

from stepprof.analysis import artifact_check
from stepprof.analysis.artifact_check import check_artifact
from stepprof.analysis.timeline.find import find
from stepprof.analysis.timeline.load import load

EVENT = {"name": "aten::add", "ph": "X", "ts": 1, "dur": 2}
BASE = 1_700_000_000_000_000_000


def trace(*events, **header):
    return json.dumps({"baseTimeNanoseconds": BASE, **header, "traceEvents": list(events)}).encode()


NOT_WHOLE = {
    "UTF-16": (TRACE.decode().encode("utf-16"), "is not a trace"),
    "NaN": (trace({**EVENT, "ts": float("nan")}, EVENT), "1 damaged event"),
    "no base": (json.dumps({"traceEvents": [EVENT]}).encode(), "refused: it has no baseTime"),
    "no events": (trace(), "has no events"),
    "metadata alone": (trace({"ph": "M", "name": "process_name", "args": {"name": "x"}}), "has no events"),
    "no time": (trace({"ph": "X", "name": "a"}), "1 times are invalid"),
    "no trace": (b"{}", "has no traceEvents"),
    "a number": (b"1", "is not a trace"),
    "an array of numbers": (b'{"traceEvents": [1, 2]}', "1 damaged"),
    "without its last brace": (TRACE[:-1], "is truncated after its events"),
    "breaks off": (TRACE[:-20], "breaks off after"),
    "brackets": (b'{"traceEvents":' + b"[" * 100_000, "breaks off"),
    "not UTF-8": (TRACE.replace(b"add", b"\xff\xfe", 1), "2 bytes are not UTF-8"),
    "damaged event": (trace(EVENT, EVENT).replace(b'"X"', b'"X', 1), "damaged"),
    "head": (TRACE.replace(b"{", b'{"a" 5,', 1), "not JSON"),
    "truncated gzip": (gzip.compress(TRACE, mtime=0)[:-12], "is truncated gzip"),
    "gzip without its checksum": (gzip.compress(TRACE, mtime=0)[:-8], "is truncated gzip"),
    "wrong checksum": (gzip.compress(TRACE, mtime=0)[:-8] + b"\0" * 8, "damaged as gzip"),
    "garbage behind gzip": (gzip.compress(TRACE, mtime=0) + b"garbage", "gzip"),
}


class TestTraces:
    def check(self, tmp_path, data, name="a.trace.json.gz"):
        file = tmp_path / name
        file.write_bytes(data)
        return check_artifact(file, len(data), "torch-trace")

    @pytest.mark.parametrize("what", NOT_WHOLE)
    def test_damage_is_reported_in_the_words_of_merge(self, tmp_path, what):
        """If merge cannot read an artifact completely, the check reports a problem in the same words."""
        data, said = NOT_WHOLE[what]
        problem = self.check(tmp_path, data).problem
        assert problem is not None
        assert said in problem
        (wanted,) = find([tmp_path / "a.trace.json.gz"], output_dir=tmp_path).inputs
        source = load(
            replace(wanted, alone=False), args=False
        )  # a recorded artifact is one of several sources
        events = len(source.slices) + len(source.instants) + len(source.counters)
        assert any(said in finding for finding in source.findings) or not events

    @pytest.mark.parametrize(
        "data",
        [
            TRACE,
            gzip.compress(TRACE, mtime=0),
            b"\xef\xbb\xbf" + TRACE,
            json.dumps([{**EVENT, "ts": BASE / 1e3}]).encode(),
            trace(EVENT, name="zoë 東京"),
            json.dumps({"traceEvents": [EVENT], "baseTimeNanoseconds": BASE}).encode(),
        ],
        ids=["text", "gzip", "byte order mark", "array with Unix times", "not ASCII", "base behind"],
    )
    def test_whole_traces_pass_in_every_form(self, tmp_path, data):
        """Every form that merge reads passes, whatever the name of the file."""
        for name in ("a.trace.json", "a.trace.json.gz"):
            assert (
                check_artifact(self.put(tmp_path, name, data), len(data), "torch-trace")
                == artifact_check.Checked()
            )

    @staticmethod
    def put(folder, name, data):
        file = folder / name
        file.write_bytes(data)
        return file

    def test_oddities_of_an_intact_file_are_notes(self, tmp_path):
        """An oddity in an intact file is a note and not a problem."""
        checked = self.check(tmp_path, trace(EVENT, {"ph": "B", "name": "open", "ts": 2}))
        assert checked.problem is None
        assert checked.notes == ("1 events have no end: they are shown up to the last known time",)

    def test_without_the_reader_a_note_says_what_was_not_checked(self, tmp_path):
        """Without stepprof[report], the check covers compression and JSON only, and a note says so."""
        whole, cut = gzip.compress(TRACE, mtime=0), gzip.compress(TRACE[:-1], mtime=0)
        program = (
            "import sys; sys.modules.update(dict.fromkeys(('msgspec', 'numpy', 'isal')));"
            "sys.modules.pop('stepprof.analysis.timeline', None)\n"
            "import importlib.util; importlib.util.find_spec = lambda name: None\n"
            "from pathlib import Path; from stepprof.analysis.artifact_check import check_artifact\n"
            "for name in sys.argv[1:]:\n"
            "    file = Path(name); print(check_artifact(file, file.stat().st_size, 'torch-trace'))"
        )
        files = [
            str(self.put(tmp_path, name, data)) for name, data in (("a.json.gz", whole), ("b.json.gz", cut))
        ]
        done = subprocess.run(
            [sys.executable, "-c", program, *files], capture_output=True, text=True, check=True
        )
        first, second = done.stdout.splitlines()
        assert first.startswith(
            "Checked(problem=None, notes=('its events were not checked: install the extra"
        )
        assert "is not JSON" in second


class TestOthers:
    def check(self, tmp_path, name, data, size=None, kind="torch-trace"):
        file = tmp_path / name
        file.write_bytes(data)
        return check_artifact(file, len(data) if size is None else size, kind)

    @pytest.mark.parametrize(
        ("name", "data", "kind"),
        [
            ("a.json", b'{"x": 1}', "report"),
            ("a.json", b"[1]", None),
            ("a.pickle", b"\x80", "torch-memory"),
            ("a.sqlite.gz", gzip.compress(b"x" * 3_000_000, mtime=0), "nsys"),
        ],
    )
    def test_whole_files_of_other_kinds_pass(self, tmp_path, name, data, kind):
        """Intact files of other kinds pass."""
        assert self.check(tmp_path, name, data, kind=kind).problem is None

    @pytest.mark.parametrize(
        ("name", "data", "expected"),
        [
            ("a.json", b"", "is empty"),
            ("a.json", b'{"x": 1', "is not JSON: "),
            ("a.json", b"[" * 100_000, "is not JSON: "),
            ("a.sqlite.gz", gzip.compress(b"x" * 99, mtime=0)[:-4], "is damaged: "),
            ("a.sqlite.gz", b"x" * 99, "is damaged: Not a gzipped file"),
            ("a.sqlite.gz", b"\x1f\x8b\x08" + b"\0" * 7 + b"\xff" * 30, "is damaged: "),
        ],
    )
    def test_damage_of_other_kinds_is_described(self, tmp_path, name, data, expected):
        """The problem describes the damage."""
        assert self.check(tmp_path, name, data, kind="report").problem.startswith(expected)

    def test_a_changed_size_is_reported_with_both_sizes(self, tmp_path):
        """The problem has the actual size and the size in the manifest."""
        checked = self.check(tmp_path, "a.json", TRACE, 1)
        assert checked.problem == f"has {len(TRACE)} bytes; the manifest lists 1"

    def test_missing_files_and_folders_are_problems(self, tmp_path):
        """A missing file, a folder, and a file in the place of a folder are problems."""
        assert check_artifact(tmp_path / "none.json", 1, None).problem == "is missing"
        assert check_artifact(tmp_path, 1, None).problem == "is not a file"
        (tmp_path / "file").touch()
        assert check_artifact(tmp_path / "file" / "a", 1, None).problem == "cannot be read: Not a directory"

    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            (TRACE, None),
            (TRACE[:-1], "is not JSON: it has an unexpected end"),
        ],
    )
    def test_too_large_to_be_parsed(self, tmp_path, monkeypatch, data, expected):
        """Only the begin and the end of the file are checked, and a note says so."""
        monkeypatch.setattr(artifact_check, "PARSED_BYTES", 50)
        monkeypatch.setattr(artifact_check, "_CHUNK", 40)
        checked = self.check(tmp_path, "a.json", data, kind="report")
        assert checked.problem == expected or checked.problem.startswith(expected)
        assert checked.notes or checked.problem

"""Reading a run directory in any condition."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from stepprof.errors import ConfigError
from stepprof.host.process_identity import writer_identity
from stepprof.run.layout import open_run
from stepprof.run.manifest import read_step
from stepprof.run.runs import find_run, is_run, list_runs, read_run, steps
from stepprof.run.spans import read_spans


def make_run(output_dir, run_id="r", **description):
    return open_run(output_dir, run_id=run_id, rank=0, world_size=2, environ={}, description=description)


def fragment(*windows, step=2, run_id="r", writer=None, **changes):
    """Return a fragment as the recording side writes it. Its writer has ended unless another one is given."""
    writer = writer or {**writer_identity(), "pid_start": 1}
    content = {
        "schema_version": 1,
        "run_id": run_id,
        "step": step,
        "version": None,
        "writer": writer,
        "windows": list(windows),
        "engines": [],
        "clocks": [{"host": writer["host"], "offset_ns": 0, "error_ns": 50, "method": "local"}],
    }
    return {**content, **changes}


def window(role="actor", rank=0, **changes):
    return {
        "role": role,
        "occurrence": 1,
        "rank": rank,
        "world_size": 2,
        "status": "complete",
        "artifacts": [],
        **changes,
    }


def age(path, seconds):
    """Set the time of the last change of all files of a run to this many seconds ago."""
    for child in [path, *path.rglob("*")]:
        os.utime(child, (1_700_000_000 - seconds,) * 2)


HEADER = {
    "schema_version": 1,
    "kind": "spans",
    "run_id": "r",
    "rank": 1,
    "world_size": 2,
    "host": "h",
    "pid": 7,
}


class TestFindRun:
    def test_the_newest_with_a_step(self, tmp_path):
        """Without a name, an older run that has a recorded step comes before newer ones without: workers may have left these."""
        for name in ("a", "b", "c"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "run.json").write_text("{}")
        assert find_run(tmp_path) == tmp_path / "c"
        (tmp_path / "b" / "step-000002" / "manifest").mkdir(parents=True)
        os.utime(tmp_path / "b" / "step-000002" / "manifest", (1, 1))
        os.utime(tmp_path / "b" / "run.json", (1, 1))
        assert find_run(tmp_path) == tmp_path / "b"
        assert find_run(tmp_path, holds=is_run) == tmp_path / "c"

    def test_the_newest_by_default(self, tmp_path):
        """The run that was recorded into last is found, whatever its name. A report that
        was made later does not count.
        """
        for name, seconds in (("c", 30), ("a", 10), ("b", 20)):
            run = make_run(tmp_path, name)
            run.claim(2, "actor", 0, fragment())
            age(run.path, seconds)
        (tmp_path / "c" / "step-000002" / "report.html").touch()
        assert [path.name for path in list_runs(tmp_path)] == ["c", "b", "a"]
        assert find_run(tmp_path) == tmp_path / "a"

    def test_a_run_is_found_by_id_path_or_parent_folder(self, tmp_path, monkeypatch):
        """`find_run` accepts the id of a run, its path, or the folder that contains it."""
        make_run(tmp_path / "runs")
        monkeypatch.chdir(tmp_path)
        for text in ("r", str(tmp_path / "runs" / "r"), "runs/r", "runs"):
            assert find_run(tmp_path / "runs", text).resolve() == tmp_path / "runs" / "r"

    @pytest.mark.parametrize("inside", [True, False])
    def test_a_folder_of_the_same_name_does_not_hide_a_run(self, tmp_path, monkeypatch, inside):
        """A run id names the run, whether the other folder is among the runs or in the working directory. A path with a separator names what is there."""
        run = make_run(tmp_path / "runs" if inside else tmp_path).path
        (tmp_path / "r" if inside else tmp_path / "runs" / "r").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        assert find_run(tmp_path / "runs", "r").resolve() == run.resolve()
        assert find_run(tmp_path / "runs", "./r").resolve() == tmp_path / "r"

    @pytest.mark.parametrize("name", ["x" * 5000, "x\0y", "a/" * 3000])
    def test_a_name_that_no_folder_can_have(self, tmp_path, name):
        """A name that is too long or has a NUL raises the error of an unknown run."""
        with pytest.raises(ConfigError, match="neither a run under"):
            find_run(tmp_path, name)

    def test_a_folder_that_is_not_a_run_is_left_to_the_caller(self, tmp_path):
        """`find_run` returns a folder that exists although it is no run: `check` decides about it."""
        (tmp_path / "empty").mkdir()
        assert find_run(tmp_path, "empty") == tmp_path / "empty"
        assert not is_run(tmp_path / "empty")

    @pytest.mark.parametrize("folder", ["", "absent"])
    def test_an_empty_folder_says_where_it_looked(self, tmp_path, folder):
        """The error names the folder that was searched, and suggests `stepprof demo`."""
        with pytest.raises(
            ConfigError, match=r'output_dir = ".*": no run is recorded there; .*stepprof demo'
        ):
            find_run(tmp_path / folder)

    def test_an_unknown_run_names_those_that_exist(self, tmp_path):
        """The error names the newest run, or says that no run is recorded there."""
        with pytest.raises(ConfigError, match=r'run "x": .*; nothing is recorded there'):
            find_run(tmp_path, "x")
        make_run(tmp_path, "known")
        with pytest.raises(ConfigError, match=r'run "x": .*; the newest there: known'):
            find_run(tmp_path, "x")

    def test_claims_are_not_runs(self, tmp_path):
        """Hidden folders, and folders without `run.json`, are not listed."""
        (tmp_path / ".claims").mkdir()
        (tmp_path / ".claims" / "run.json").touch()
        (tmp_path / "else").mkdir()
        assert list_runs(tmp_path) == []


class TestReadRun:
    def test_the_description_of_the_job_is_read(self, tmp_path):
        """`read_run` returns the description in `run.json`."""
        assert read_run(make_run(tmp_path, config={"steps": "2"}).path)["config"] == {"steps": "2"}

    @pytest.mark.parametrize("content", [None, b"", b"{", b"[1]", b"\xff"])
    def test_a_damaged_one_is_empty(self, tmp_path, content):
        """If `run.json` is missing or damaged, the description is empty."""
        run = make_run(tmp_path)
        (run.path / "run.json").unlink()
        if content is not None:
            (run.path / "run.json").write_bytes(content)
        assert read_run(run.path) == {}


class TestSteps:
    def test_steps_are_sorted_by_number(self, tmp_path):
        """Steps are sorted by number, not by name. A file and a folder with another name are no steps."""
        run = make_run(tmp_path)
        for step in (1_000_000, 10, 2):
            run.claim(step, "actor", 0, fragment())
        (run.path / "step-000003").touch()
        (run.path / "step-x").mkdir()
        assert steps(run.path) == [2, 10, 1_000_000]
        assert steps(tmp_path / "absent") == []


class TestReadStep:
    def test_combines_the_fragments(self, tmp_path):
        """The manifest has the windows of all ranks in order, each clock once, and the
        version that one rank stated.
        """
        run = make_run(tmp_path)
        run.claim(2, "actor", 1, fragment(window(rank=1), version=7))
        run.claim(2, "actor", 0, fragment(window(rank=0, occurrence=2), window(rank=0), window("a", 0)))
        run.claim(2, None, "driver", fragment(window(None, "driver")))
        manifest = read_step(run.path, 2)
        assert (manifest["schema_version"], manifest["run_id"], manifest["step"], manifest["version"]) == (
            1,
            "r",
            2,
            7,
        )
        assert [(w["role"], w["rank"], w["occurrence"]) for w in manifest["windows"]] == [
            (None, "driver", 1),
            ("a", 0, 1),
            ("actor", 0, 1),
            ("actor", 0, 2),
            ("actor", 1, 1),
        ]
        assert manifest["windows"][-1]["fragment"] == "actor-rank-1.json"
        assert len(manifest["clocks"]) == 1
        assert manifest["findings"] == []

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (b"", "damaged: empty"),
            (b'{"schema_version": 1, "windo', "damaged: "),
            (b"[]", "damaged: not a JSON object"),
            (b"\xff\xfe\x00", "damaged: "),
            (b"[" * 100_000, "damaged: "),
            (
                json.dumps({"schema_version": 2}).encode(),
                "written with schema_version 2; this stepprof reads 1",
            ),
            (json.dumps(fragment(step=3)).encode(), "says step = 3 and lies in 2"),
            (json.dumps(fragment(run_id="x")).encode(), "says run_id = 'x' and lies in 'r'"),
            (json.dumps(fragment(windows={})).encode(), "damaged: windows is not a list"),
            (json.dumps(fragment(engines=["x"])).encode(), "damaged: an entry of engines is not an object"),
        ],
    )
    def test_a_damaged_fragment_is_a_finding(self, tmp_path, content, problem):
        """A damaged fragment is a finding with the name of its file. The other fragments are read."""
        run = make_run(tmp_path)
        claim = run.claim(2, "actor", 0, {})
        claim.fragment.write_bytes(content)
        run.claim(2, "actor", 1, fragment(window(rank=1)))
        manifest = read_step(run.path, 2)
        assert [finding["fragment"] for finding in manifest["findings"]] == ["actor-rank-0.json"]
        assert manifest["findings"][0]["problem"].startswith(problem)
        assert [w["rank"] for w in manifest["windows"]] == [1]

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ({"status": "fine"}, "status = 'fine' is none of complete"),
            ({"status": None}, "status = None is none of"),
            ({"stall_seconds": "1"}, "stall_seconds = '1' is not a number"),
            ({"occurrence": True}, "occurrence = True is not a number"),
            ({"role": 1}, "role = 1 is not a name"),
            ({"rank": None}, "rank = None is not a rank"),
            ({"capture": []}, r"capture = \[\] is not an object"),
            ({"artifacts": "x"}, "an artifact without a path: 'x'"),
            ({"artifacts": [{"path": 1}]}, "an artifact without a path"),
            ({"artifacts": [{"path": "../../x", "bytes": 1}]}, "outside of the step: '../../x'"),
            ({"artifacts": [{"path": "/etc/x", "bytes": 1}]}, "outside of the step: '/etc/x'"),
            ({"artifacts": [{"path": "", "bytes": 1}]}, "outside of the step: ''"),
            ({"artifacts": [{"path": "a\\b", "bytes": 1}]}, "outside of the step"),
            ({"artifacts": [{"path": "a", "bytes": None}]}, "without a size: 'a'"),
            ({"artifacts": [{"path": "a", "bytes": True}]}, "without a size: 'a'"),
        ],
    )
    def test_a_damaged_window_is_a_finding(self, tmp_path, change, problem):
        """A damaged window stays in the manifest without the invalid artifacts,
        and the problem is a finding.
        """
        run = make_run(tmp_path)
        run.claim(2, "actor", 0, fragment(window(**change)))
        manifest = read_step(run.path, 2)
        (found,) = manifest["windows"]
        assert found["artifacts"] == []
        assert len(manifest["findings"]) == 1
        assert re.search(problem, manifest["findings"][0]["problem"])

    def test_artifacts_get_every_key(self, tmp_path):
        """A key that is missing in an artifact is None."""
        run = make_run(tmp_path)
        run.claim(2, "actor", 0, fragment(window(artifacts=[{"path": "actor/a.json", "bytes": 1}])))
        (artifact,) = read_step(run.path, 2)["windows"][0]["artifacts"]
        assert artifact == {"path": "actor/a.json", "kind": None, "bytes": 1, "events": None}

    def test_ranks_that_do_not_agree_on_the_version(self, tmp_path):
        """If ranks state different versions, a finding names them: these ranks
        did not train the same step.
        """
        run = make_run(tmp_path)
        for rank in (0, 1):
            run.claim(2, "actor", rank, fragment(window(rank=rank), version=rank + 7))
        assert (
            read_step(run.path, 2)["findings"][0]["problem"] == "the ranks do not agree on the version: 7, 8"
        )

    def test_a_step_without_a_manifest(self, tmp_path):
        """If a step has no manifest, a finding says so."""
        run = make_run(tmp_path)
        assert read_step(run.path, 2)["findings"][0]["problem"].startswith("the step has no manifest: ")

    def test_temporary_files_are_not_read(self, tmp_path):
        """Hidden files, and files that are not JSON, are not read."""
        run = make_run(tmp_path)
        claim = run.claim(2, "actor", 0, fragment(window()))
        claim.fragment.with_name(".x.json").write_text("{")
        claim.fragment.with_name("notes.txt").write_text("{")
        assert read_step(run.path, 2)["findings"] == []

    def test_an_unreadable_fragment(self, tmp_path):
        """A folder with the name of a fragment is a finding."""
        run = make_run(tmp_path)
        claim = run.claim(2, "actor", 0, fragment(window()))
        claim.fragment.with_name("b.json").mkdir()
        assert read_step(run.path, 2)["findings"] == [
            {"fragment": "b.json", "problem": "cannot be read: Is a directory"}
        ]


class TestLost:
    def lost(self, **changes):
        return window(status="lost", error="the process ended", **changes)

    def read(self, tmp_path, writer, **changes):
        run = make_run(tmp_path)
        run.claim(2, "actor", 0, fragment(self.lost(**changes), writer=writer))
        (found,) = read_step(run.path, 2)["windows"]
        return found

    @pytest.mark.parametrize(("end", "status"), [(None, "recording"), (5, "exporting")])
    def test_the_entry_of_a_living_writer_is_recording_or_exporting(self, tmp_path, end, status):
        """The entry is written ahead as lost. While its writer lives, it is read as recording, or as
        exporting once the window has ended.
        """
        found = self.read(tmp_path, writer_identity(), end_unix_ns=end)
        assert (found["status"], found["error"]) == (status, None)

    def test_the_entry_of_a_killed_writer_is_lost(self, tmp_path):
        """While a process lives its entry is recording, and after SIGKILL it is lost."""
        code = (
            "import os, sys, json\n"
            "from stepprof.host.process_identity import writer_identity\n"
            "print(json.dumps(writer_identity()), flush=True); sys.stdin.read()"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        writer = json.loads(process.stdout.readline())
        run = make_run(tmp_path)
        run.claim(2, "actor", 0, fragment(self.lost(), writer=writer))
        assert read_step(run.path, 2)["windows"][0]["status"] == "recording"
        process.kill()
        process.communicate()
        (found,) = read_step(run.path, 2)["windows"]
        assert (found["status"], found["error"]) == ("lost", "the process ended")

    @pytest.mark.parametrize(("writer", "where"), [({"host": "h", "pid": 7}, "h"), ({"pid": 7}, "its host")])
    def test_the_state_on_another_host_is_unknown(self, tmp_path, writer, where):
        """If the writer ran on another host, the entry is lost. The reason says that
        liveness could not be checked.
        """
        run = make_run(tmp_path)
        content = {**fragment(self.lost()), "writer": writer}
        run.claim(2, "actor", 0, content)
        (found,) = read_step(run.path, 2)["windows"]
        assert found["status"] == "lost"
        assert (
            found["error"]
            == f"the process ended (or still running: liveness can only be checked on {where} alone)"
        )

    def test_the_process_of_a_fragment_without_a_writer_may_still_run(self, tmp_path):
        """If a fragment names no writer, its entry stays lost. The reason says
        that the process may still run.
        """
        run = make_run(tmp_path)
        run.claim(2, "actor", 0, {**fragment({**self.lost(), "error": None}), "writer": None})
        assert read_step(run.path, 2)["windows"][0]["error"].startswith("lost (or still running")


class TestReadSpans:
    def write(self, run, rank, *lines):
        run.spans_path(rank).write_bytes(b"".join(lines))

    def line(self, **span):
        return json.dumps(span).encode() + b"\n"

    def test_spans_of_all_ranks_and_files(self, tmp_path):
        """Spans are read in the order written, each with the rank, host and process of its file."""
        run = make_run(tmp_path)
        self.write(run, 1, self.line(**HEADER), self.line(name="a", step=2))
        self.write(run, 1, self.line(**HEADER), self.line(name="b", step=3))
        self.write(run, "driver", self.line(name="c", step=20))
        (run.path / "spans" / "notes.txt").touch()
        assert list(read_spans(run.path)) == [
            {"name": "a", "step": 2, "rank": 1, "host": "h", "pid": 7},
            {"name": "b", "step": 3, "rank": 1, "host": "h", "pid": 7},
            {"name": "c", "step": 20, "rank": "driver", "host": None, "pid": None},
        ]

    @pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
    def test_only_spans_of_the_step_are_read(self, tmp_path, separators):
        """For step 2, the spans of steps 0 and 20 and those without a step are not read."""
        run = make_run(tmp_path)
        lines = [
            json.dumps({"name": str(step), "step": step}, separators=separators).encode() + b"\n"
            for step in (0, 2, 20, None)
        ]
        self.write(run, 0, self.line(**HEADER), *lines)
        assert [span["name"] for span in read_spans(run.path, step=2)] == ["2"]

    def test_an_incomplete_last_line_is_not_a_finding(self, tmp_path):
        """An incomplete last line is ignored without a finding: its process was writing it, or was killed."""
        run = make_run(tmp_path)
        self.write(run, 0, self.line(**HEADER), self.line(name="a", step=2), b'{"name": "b", "st')
        findings = []
        assert [span["name"] for span in read_spans(run.path, findings=findings)] == ["a"]
        assert findings == []

    def test_damaged_lines_are_skipped_and_reported(self, tmp_path):
        """Damaged lines are counted in a finding, and the spans after them are read."""
        run = make_run(tmp_path)
        self.write(run, 0, b"\0\0\n", b"[1]\n", self.line(x=1), self.line(name="a", step=2))
        self.write(run, 1, b"\n", self.line(name="b", step=2))
        (run.path / "spans" / "rank-2.000001.jsonl").mkdir()
        findings = []
        assert [span["name"] for span in read_spans(run.path, findings=findings)] == ["a", "b"]
        assert findings == [
            {"file": "spans/rank-0.000001.jsonl", "problem": "3 damaged lines ignored"},
            {"file": "spans/rank-1.000001.jsonl", "problem": "1 damaged line ignored"},
            {"file": "spans/rank-2.000001.jsonl", "problem": "cannot be read: Is a directory"},
        ]
        assert len(list(read_spans(run.path))) == 2

    def test_a_run_without_spans(self, tmp_path):
        """A run without span files has no spans."""
        assert list(read_spans(make_run(tmp_path).path)) == []

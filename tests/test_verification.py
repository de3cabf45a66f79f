"""Artifacts against manifests."""

from __future__ import annotations

import gzip
import json

import pytest
from runs import TRACE, make_run, record, write_spans

from stepprof import verification
from stepprof.verification import artifact_problem, verify_run
from stepprof.writer import writer_identity


def problems(path):
    return [f"{p.where}: {p.problem}" for p in verify_run(path).problems]


class TestVerifyRun:
    def test_a_whole_run(self, tmp_path):
        """Everything that is claimed is there."""
        run = make_run(tmp_path)
        for rank in (0, 1):
            record(run, rank=rank)
        write_spans(run, 0)
        result = verify_run(run.path)
        assert result.ok
        assert result.notes == []
        assert (result.steps, result.windows, result.artifacts) == (1, 2, 2)
        assert result.bytes == 2 * len(gzip.compress(TRACE, mtime=0))

    def test_an_empty_directory(self, tmp_path):
        """Nothing to check is a failure."""
        assert problems(tmp_path) == ["run.json: missing or damaged", ": no step is recorded here"]

    def test_a_run_without_steps(self, tmp_path):
        """Nothing was recorded."""
        assert problems(make_run(tmp_path).path) == [": no step is recorded here"]

    def test_a_step_without_a_window(self, tmp_path):
        """A folder alone is no recording."""
        run = make_run(tmp_path)
        (run.path / "step-000002" / "manifest").mkdir(parents=True)
        assert problems(run.path) == ["step-000002: has no complete window"]

    @pytest.mark.parametrize("status", ["lost", "failed", "skipped"])
    def test_what_was_selected_and_is_not_there(self, tmp_path, status):
        """The reason is told, also beside a rank that has its trace."""
        run = make_run(tmp_path)
        record(run, rank=0)
        record(run, rank=1, data=b"", status=status, error="why")
        assert problems(run.path) == [f"step-000002/actor rank 1: {status}: why"]

    def test_the_only_window_is_partial(self, tmp_path):
        """A partial one is a note; that the step has no complete one is the problem."""
        run = make_run(tmp_path)
        record(run, status="partial", error="SIGTERM")
        result = verify_run(run.path)
        assert [note.problem for note in result.notes] == ["partial: SIGTERM"]
        assert [problem.problem for problem in result.problems] == ["has no complete window"]

    def test_still_recording(self, tmp_path):
        """A living process is not a problem; but there is nothing complete yet."""
        run = make_run(tmp_path)
        record(run, data=b"", status="lost", writer=writer_identity())
        result = verify_run(run.path)
        assert [note.problem for note in result.notes] == ["still exporting"]
        assert [problem.problem for problem in result.problems] == ["has no complete window"]

    def test_complete_without_an_artifact(self, tmp_path):
        """Claims to be complete and names nothing; the null backend has nothing to name."""
        run = make_run(tmp_path)
        record(run, rank=0, data=b"", backend="null")
        record(run, rank=1, data=b"")
        assert problems(run.path) == ["step-000002/actor rank 1: is complete and names no artifact"]

    def test_joined_windows(self, tmp_path):
        """A window that joined a capture needs that capture's file, in whichever step it lies."""
        run = make_run(tmp_path)
        record(run, role=None)
        record(run, role=None, rank=10)
        for rank, capture in enumerate(
            [
                {"step": 2, "stem": "step/rank-0"},
                None,
                {"step": 2, "stem": "step/rank-1"},
                {"step": "2"},
                {"step": 9, "stem": "a/b"},
            ]
        ):
            record(run, step=3, rank=rank, data=b"", status="joined", capture=capture)
        assert [p.where for p in verify_run(run.path).problems] == [
            "step-000003/actor rank 2",
            "step-000003/actor rank 3",
            "step-000003/actor rank 4",
        ]

    def test_joined_windows_of_the_null_backend(self, tmp_path):
        """Its captures leave nothing: a Ray driver's windows overlap without a file."""
        run = make_run(tmp_path)
        record(run, role=None, data=b"", backend="null")
        capture = {"step": 2, "stem": "step/rank-0"}
        record(run, rank="driver", data=b"", backend="null", status="joined", capture=capture)
        assert verify_run(run.path).problems == []

    def test_findings_of_manifests_and_spans(self, tmp_path):
        """Damage that the reader steps over is a problem here."""
        run = make_run(tmp_path)
        record(run)
        run.claim(2, "b", 0, {}).fragment.write_bytes(b"{")
        run.spans_path(0).write_bytes(b"{\n")
        found = problems(run.path)
        assert found[0].startswith("step-000002/manifest/b-rank-0.json: damaged: ")
        assert found[1] == "spans/rank-0.000001.jsonl: 1 damaged line passed over"

    def test_a_step_without_a_manifest(self, tmp_path):
        """Told with its folder."""
        run = make_run(tmp_path)
        (run.path / "step-000002").mkdir()
        assert problems(run.path)[0].startswith("step-000002/manifest/: the step has no manifest")

    def test_ranks_that_should_be_there(self, tmp_path):
        """A selected rank without a window is missing."""
        run = make_run(tmp_path, config={"ranks": "all", "roles": {}})
        record(run, rank=0)
        assert problems(run.path)[0].startswith("step-000002: actor: no window of rank 1, ")

    def test_a_window_still_open(self, tmp_path):
        """Its process lives and its window has not ended."""
        run = make_run(tmp_path)
        record(run, rank=0)
        record(run, rank=1, data=b"", status="lost", writer=writer_identity(), end_unix_ns=None)
        result = verify_run(run.path)
        assert result.ok
        assert [note.problem for note in result.notes] == ["still recording"]

    def test_files_that_nobody_names(self, tmp_path):
        """What a killed process left behind is a note; reports at the top of the step are none."""
        run = make_run(tmp_path)
        claim = record(run)
        (claim.folder / "actor" / ".rank-0.tmp").touch()
        (claim.folder / "report.html").touch()
        result = verify_run(run.path)
        assert result.ok
        assert [note.where for note in result.notes] == ["step-000002/actor/.rank-0.tmp"]


class TestArtifactProblem:
    def problem(self, tmp_path, name, data, size=None, kind="torch-trace"):
        file = tmp_path / name
        file.write_bytes(data)
        return artifact_problem(file, len(data) if size is None else size, kind)

    @pytest.mark.parametrize(
        ("name", "data", "kind"),
        [
            ("a.trace.json", TRACE, "torch-trace"),
            ("a.trace.json.gz", gzip.compress(TRACE, mtime=0), "torch-trace"),
            ("a.json", b'{"x": 1}', "report"),
            ("a.json", b"[1]", None),
            ("a.json", b'[{"name": "x"}]', "torch-trace"),
            ("a.pickle", b"\x80", "torch-memory"),
            ("a.sqlite.gz", gzip.compress(b"x" * 3_000_000, mtime=0), "nsys"),
        ],
    )
    def test_whole(self, tmp_path, name, data, kind):
        """Every kind that is read to its end."""
        assert self.problem(tmp_path, name, data, kind=kind) is None

    @pytest.mark.parametrize(
        ("name", "data", "expected"),
        [
            ("a.trace.json", b"", "is empty"),
            ("a.trace.json", TRACE[:-1], "is no JSON: "),
            ("a.trace.json", b'{"traceEvents": []}', "has no traceEvents"),
            ("a.trace.json", b"{}", "has no traceEvents"),
            ("a.trace.json", b"1", "has no traceEvents"),
            ("a.trace.json", b"[" * 100_000, "is no JSON: "),
            ("a.trace.json.gz", gzip.compress(TRACE, mtime=0)[:-4], "is damaged: "),
            ("a.trace.json.gz", gzip.compress(TRACE, mtime=0)[:-8] + b"\0" * 8, "is damaged: CRC"),
            ("a.trace.json.gz", TRACE, "is damaged: Not a gzipped file"),
            ("a.trace.json.gz", b"\x1f\x8b\x08" + b"\0" * 7 + b"\xff" * 30, "is damaged: "),
        ],
    )
    def test_damaged(self, tmp_path, name, data, expected):
        """What is wrong, in words."""
        assert self.problem(tmp_path, name, data).startswith(expected)

    def test_another_size(self, tmp_path):
        """Both sizes are told."""
        assert self.problem(tmp_path, "a.json", TRACE, 1) == f"has {len(TRACE)} bytes; the manifest says 1"

    def test_missing_and_no_file(self, tmp_path):
        """A name without a file, or with something else under it."""
        assert artifact_problem(tmp_path / "none.json", 1, None) == "is missing"
        assert artifact_problem(tmp_path, 1, None) == "is no file"
        (tmp_path / "file").touch()
        assert artifact_problem(tmp_path / "file" / "a", 1, None) == "cannot be read: Not a directory"

    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            (TRACE, None),
            (TRACE[:-1], "is no JSON: it does not end as it should"),
            (json.dumps({"x": "y" * 300, "traceEvents": []}).encode(), "has no traceEvents"),
            (json.dumps({"x": "y" * 300}).encode(), "has no traceEvents"),
        ],
    )
    def test_too_large_to_be_parsed(self, tmp_path, monkeypatch, data, expected):
        """Looked at from both ends."""
        monkeypatch.setattr(verification, "PARSED_BYTES", 50)
        monkeypatch.setattr(verification, "_CHUNK", 40)
        problem = self.problem(tmp_path, "a.trace.json", data)
        assert problem == expected or problem.startswith(expected)


class TestOtherKinds:
    """What backends other than torch leave."""

    def put(self, tmp_path, kind, path, write):
        """A run with one such artifact of 5 bytes; its folder."""
        run = make_run(tmp_path)
        claim = record(run, data=b"", backend=kind)
        write(claim.folder / path)
        content = json.loads(claim.fragment.read_text())
        content["windows"][0]["artifacts"] = [{"path": path, "kind": kind, "bytes": 5, "events": None}]
        claim.write(content)
        return run.path

    def test_a_folder_of_torch_npu(self, tmp_path):
        """Its parts are looked for; its size changes when it is analysed, and its files are not strangers."""

        def write(folder):
            (folder / "FRAMEWORK").mkdir(parents=True)
            (folder / "FRAMEWORK" / "torch.op_range").write_bytes(b"x" * 9)
            (folder / "profiler_info_0.json").write_text("{}")

        path = self.put(tmp_path, "npu-profile", "actor/rank-0.npu", write)
        result = verify_run(path)
        assert (result.problems, result.notes) == ([], [])
        (path / "step-000002/actor/rank-0.npu/profiler_info_0.json").unlink()
        (problem,) = problems(path)
        assert problem.startswith("step-000002/actor/rank-0.npu: torch_npu did not end the recording")

    def test_a_folder_that_is_missing_or_none(self, tmp_path):
        """Both are told."""
        path = self.put(
            tmp_path, "npu-profile", "actor/rank-0.npu", lambda folder: folder.write_bytes(b"12345")
        )
        assert problems(path) == ["step-000002/actor/rank-0.npu: is no folder"]
        (path / "step-000002/actor/rank-0.npu").unlink()
        assert problems(path) == ["step-000002/actor/rank-0.npu: is missing"]

    def test_a_report_of_nsys(self, tmp_path):
        """It is there, and as large as the manifest says."""
        path = self.put(tmp_path, "nsys", "actor/rank-0.nsys-rep", lambda file: file.write_bytes(b"12345"))
        assert problems(path) == []
        (path / "step-000002/actor/rank-0.nsys-rep").write_bytes(b"")
        assert problems(path) == ["step-000002/actor/rank-0.nsys-rep: has 0 bytes; the manifest says 5"]

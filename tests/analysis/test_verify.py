"""The check of a run: its artifacts against its manifests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from runs import TRACE, make_run, record, region, write_spans

from stepprof.analysis.verify import verify_run
from stepprof.host.process_identity import writer_identity


def problems(path):
    return [f"{p.where}: {p.problem}" for p in verify_run(path).problems]


class TestVerifyRun:
    def test_a_whole_run_has_no_problems(self, tmp_path):
        """A run whose files match the manifest has no problems and no notes."""
        run = make_run(tmp_path)
        for rank in (0, 1):
            record(run, rank=rank)
        write_spans(run, 0)
        result = verify_run(run.path)
        assert result.ok
        assert result.notes == []
        assert (result.steps, result.windows, result.artifacts) == (1, 2, 2)
        assert result.bytes == 2 * len(gzip.compress(TRACE, mtime=0))

    def test_an_empty_directory_fails(self, tmp_path):
        """The check of an empty directory fails, because it contains no run."""
        assert problems(tmp_path) == ["run.json: missing", ": no step is recorded"]

    def test_a_run_without_steps(self, tmp_path):
        """The check of a run without recorded steps fails."""
        assert problems(make_run(tmp_path).path) == [": no step is recorded"]

    def test_a_step_without_a_window(self, tmp_path):
        """A step's folder without a window is a problem."""
        run = make_run(tmp_path)
        (run.path / "step-000002" / "manifest").mkdir(parents=True)
        assert problems(run.path) == ["step-000002: has no complete window"]

    @pytest.mark.parametrize("status", ["lost", "failed", "skipped"])
    def test_a_selected_window_that_was_not_recorded(self, tmp_path, status):
        """The problem has the reason, also if another rank has its trace."""
        run = make_run(tmp_path)
        record(run, rank=0)
        record(run, rank=1, data=b"", status=status, error="why")
        assert problems(run.path) == [f"step-000002/actor rank 1: {status}: why"]

    def test_the_only_window_is_partial(self, tmp_path):
        """A partial window is a note. A step without any complete window is a problem."""
        run = make_run(tmp_path)
        record(run, status="partial", error="SIGTERM")
        result = verify_run(run.path)
        assert [note.problem for note in result.notes] == ["partial: SIGTERM"]
        assert [problem.problem for problem in result.problems] == ["has no complete window"]

    def test_a_window_of_a_living_process_is_a_note(self, tmp_path):
        """A window of a living process is a note. The step has no complete window yet, which is a problem."""
        run = make_run(tmp_path)
        record(run, data=b"", status="lost", writer=writer_identity())
        result = verify_run(run.path)
        assert [note.problem for note in result.notes] == ["still exporting"]
        assert [problem.problem for problem in result.problems] == ["has no complete window"]

    def test_complete_without_an_artifact(self, tmp_path):
        """A complete window without an artifact is a problem, except with the null backend, which
        writes none.
        """
        run = make_run(tmp_path)
        record(run, rank=0, data=b"", backend="null")
        record(run, rank=1, data=b"")
        assert problems(run.path) == ["step-000002/actor rank 1: is complete but lists no artifact"]

    def test_joined_windows(self, tmp_path):
        """A joined window needs the artifact of its capture, in whichever step's folder that is."""
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
            "step-000003/manifest/actor-rank-3.json",
            "step-000003/actor rank 2",
            "step-000003/actor rank 4",
        ]

    def test_joined_windows_of_the_null_backend(self, tmp_path):
        """Captures of the null backend have no files, so a window that joined one needs none."""
        run = make_run(tmp_path)
        record(run, role=None, data=b"", backend="null")
        capture = {"step": 2, "stem": "step/rank-0"}
        record(run, rank="driver", data=b"", backend="null", status="joined", capture=capture)
        assert verify_run(run.path).problems == []

    def test_findings_of_manifests_and_spans(self, tmp_path):
        """Damage that the reader skips is a problem in the check."""
        run = make_run(tmp_path)
        record(run)
        run.claim(2, "b", 0, {}).fragment.write_bytes(b"{")
        run.spans_path(0).write_bytes(b"{\n")
        found = problems(run.path)
        assert found[0].startswith("step-000002/manifest/b-rank-0.json: damaged: ")
        assert found[1] == "spans/rank-0.000001.jsonl: 1 damaged line ignored"

    def test_a_step_without_a_manifest(self, tmp_path):
        """The problem names the step's folder."""
        run = make_run(tmp_path)
        (run.path / "step-000002").mkdir()
        assert problems(run.path)[0].startswith("step-000002/manifest/: the step has no manifest")

    def test_a_selected_rank_without_a_window_is_missing(self, tmp_path):
        """Rank 1 is selected but has no window. The check reports it."""
        run = make_run(tmp_path, config={"ranks": "all", "roles": {}})
        record(run, rank=0)
        assert problems(run.path)[0].startswith("step-000002: actor: no window of rank 1, ")

    def test_a_window_still_open(self, tmp_path):
        """A window of a living process that has not ended is a note and not a problem."""
        run = make_run(tmp_path)
        record(run, rank=0)
        record(run, rank=1, data=b"", status="lost", writer=writer_identity(), end_unix_ns=None)
        result = verify_run(run.path)
        assert result.ok
        assert [note.problem for note in result.notes] == ["still recording"]

    def test_worker_processes_find_the_same_problems(self, tmp_path):
        """Several worker processes report the same problems in the same order as one. The progress
        counts each artifact once.
        """
        run = make_run(tmp_path)
        for rank in range(5):
            record(run, rank=rank, data=gzip.compress(TRACE, mtime=0)[: -12 if rank % 2 else None])
        reported = []
        alone = verify_run(run.path, workers=1)
        result = verify_run(run.path, workers=2, progress=lambda *done: reported.append(done))
        assert result.problems == alone.problems
        assert [problem.where for problem in result.problems] == [
            f"step-000002/actor/rank-{rank}.trace.json.gz" for rank in (1, 3)
        ]
        assert reported == [(number, 5) for number in range(1, 6)]

    def test_joined_windows_do_not_read_a_folder_again(self, tmp_path, mocker):
        """Each folder is read at most twice, however many windows joined a capture in it."""
        run = make_run(tmp_path)
        for rank in range(20):
            record(run, role=None, rank=rank)
            capture = {"step": 2, "stem": f"step/rank-{rank}"}
            record(run, step=3, rank=rank, data=b"", status="joined", capture=capture)
        looks = mocker.spy(Path, "iterdir")
        assert verify_run(run.path).problems == []
        assert sum(call.args[0].name == "step" for call in looks.call_args_list) in (1, 2)

    def test_invalid_utf8_in_manifests_and_spans_is_a_problem(self, tmp_path):
        """Invalid UTF-8 in a manifest or a span file is a problem."""
        run = make_run(tmp_path)
        claim = record(run)
        claim.fragment.write_bytes(claim.fragment.read_bytes().replace(b'"r"', b'"\xff"'))
        write_spans(run, 0, region("x", 1, role="rollout"))
        (spans,) = run.path.glob("spans/*.jsonl")
        spans.write_bytes(spans.read_bytes().replace(b"rollout", b"roll\xffout"))
        found = "\n".join(problems(run.path))
        assert "damaged: 'utf-8' codec can't decode byte 0xff" in found
        assert "damaged line" in found

    def test_unlisted_files_are_notes(self, tmp_path):
        """A temporary file that a killed process left is a note. Reports in the step's folder are not."""
        run = make_run(tmp_path)
        claim = record(run)
        (claim.folder / "actor" / ".rank-0.tmp").touch()
        (claim.folder / "report.html").touch()
        result = verify_run(run.path)
        assert result.ok
        assert [note.where for note in result.notes] == ["step-000002/actor/.rank-0.tmp"]


class TestOtherKinds:
    """Artifacts of backends other than torch."""

    def put(self, tmp_path, kind, path, write):
        """Return the directory of a run with one artifact of 5 bytes, which `write` creates."""
        run = make_run(tmp_path)
        claim = record(run, data=b"", backend=kind)
        write(claim.folder / path)
        content = json.loads(claim.fragment.read_text())
        content["windows"][0]["artifacts"] = [{"path": path, "kind": kind, "bytes": 5, "events": None}]
        claim.write(content)
        return run.path

    def test_a_folder_of_torch_npu(self, tmp_path):
        """The check looks for the parts of the folder. Its size is not compared, since an analysis
        changes it, and its files are not reported as unlisted.
        """

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
        """A file in place of the folder, and no folder at all, are problems."""
        path = self.put(
            tmp_path, "npu-profile", "actor/rank-0.npu", lambda folder: folder.write_bytes(b"12345")
        )
        assert problems(path) == ["step-000002/actor/rank-0.npu: is not a folder"]
        (path / "step-000002/actor/rank-0.npu").unlink()
        assert problems(path) == ["step-000002/actor/rank-0.npu: is missing"]

    def test_a_report_of_nsys(self, tmp_path):
        """The report of nsys must exist with the size in the manifest."""
        path = self.put(tmp_path, "nsys", "actor/rank-0.nsys-rep", lambda file: file.write_bytes(b"12345"))
        assert problems(path) == []
        (path / "step-000002/actor/rank-0.nsys-rep").write_bytes(b"")
        assert problems(path) == ["step-000002/actor/rank-0.nsys-rep: has 0 bytes; the manifest lists 5"]

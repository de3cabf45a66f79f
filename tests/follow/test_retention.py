"""The deletion of old artifacts, and its limits."""

from __future__ import annotations

import os

import pytest
import runs

from stepprof.analysis.post_step_notes import after_notes
from stepprof.analysis.verify import verify_run
from stepprof.follow.completeness import Step
from stepprof.follow.retention import choose, prune
from stepprof.run.manifest import read_step

HEADER = {"schema_version": 1, "run_id": "r", "writer": {}}


class TestPruning:
    def test_the_oldest_steps_are_chosen(self) -> None:
        """The oldest steps are chosen for deletion. The newest one always stays, and steps
        without artifacts do not count.
        """
        steps = [Step(n, artifacts={"a": n}) for n in (5, 6, 7)] + [Step(8)]
        assert [step.number for step, _ in choose(steps, 1, None)] == [5, 6]
        assert [step.number for step, _ in choose(steps, None, 13)] == [5]
        assert [step.number for step, _ in choose(steps, None, 1)] == [5, 6]
        assert choose(steps, 3, 18) == []
        assert choose([], 1, 1) == []
        steps[0].not_uploaded = 1
        assert [step.number for step, _ in choose(steps, 1, None)] == [6]
        assert [step.number for step, _ in choose(steps, 1, 13)] == [5, 6]
        steps[0].recorded_unix_ns = 9  # recorded again after a restart
        assert [step.number for step, _ in choose(steps, 1, None)] == [6, 7]

    def test_only_what_the_manifest_names(self, tmp_path) -> None:
        """The artifacts in the manifest and the folders that become empty are deleted.
        Other files of the step stay.
        """
        run = runs.make_run(tmp_path)
        claim = runs.record(run)
        folder = claim.folder
        (folder / "notes.txt").write_text("mine")
        (folder / "actor" / "notes.txt").write_text("mine")
        (folder / "rollout/replica-0/deep").mkdir(parents=True)
        (folder / "rollout/replica-0/deep/x").write_text("1")
        step = Step(2, artifacts={"actor/rank-0.trace.json.gz": 5, "rollout/replica-0": 1, "actor/gone": 1})
        entry = prune(run.path, step, "keep_steps = 1", HEADER)
        assert entry.kept == []
        left = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
        assert left == ["actor", "actor/notes.txt", "manifest", f"manifest/{claim.fragment.name}", "manifest/pruned.json", "notes.txt"]  # fmt: skip
        assert verify_run(run.path).problems == []

    @pytest.mark.parametrize("link", ["actor", "actor/rank-0.trace.json.gz", ".", "actor/inside"])
    def test_no_link_is_followed(self, tmp_path, link) -> None:
        """Deletion follows no link: of the step's folder, of the role's folder, of the file, or inside an
        artifact that is a folder.
        """
        outside = tmp_path / "outside"
        (outside / "actor").mkdir(parents=True)
        precious = [outside / "rank-0.trace.json.gz", outside / "actor" / "rank-0.trace.json.gz"]
        for file in precious:
            file.write_text("precious")
        run = runs.make_run(tmp_path / "runs")
        claim = runs.record(run, data=b"")
        artifacts = {"actor/rank-0.trace.json.gz": 8}
        if link == ".":
            (run.path / "step-000003").symlink_to(outside)
            (outside / "manifest").mkdir()
            with pytest.raises(PermissionError, match="a link is on the way"):
                prune(run.path, Step(3, artifacts=artifacts), "x", HEADER)
            assert list((outside / "manifest").iterdir()) == []
        else:
            place = claim.folder / link
            if link == "actor":
                place.rmdir()
            place.symlink_to(outside if link != "actor/rank-0.trace.json.gz" else precious[0])
            if link == "actor/inside":
                artifacts = {"actor": 8}
            entry = prune(run.path, Step(2, artifacts=artifacts), "x", HEADER)
            assert bool(entry.kept) == (link == "actor")
        assert [file.read_text() for file in precious] == ["precious"] * 2

    def test_deletions_are_noted_first(self, tmp_path, mocker) -> None:
        """If the note of the deletion cannot be written, no file is deleted."""
        run = runs.make_run(tmp_path)
        claim = runs.record(run)
        file = claim.folder / "actor/rank-0.trace.json.gz"
        mocker.patch("stepprof.follow.retention.write_atomically", side_effect=OSError(28, "No space"))
        with pytest.raises(OSError, match="No space"):
            prune(run.path, Step(2, artifacts={"actor/rank-0.trace.json.gz": 5}), "x", HEADER)
        assert file.exists()

    def test_a_deletion_that_was_killed(self, tmp_path) -> None:
        """A later deletion in the same step adds to the note: `check` misses no file of an earlier one, and the
        files of a deletion that was killed are counted once.
        """
        run = runs.make_run(tmp_path)
        claim = runs.record(run)
        runs.record(run, rank=1)
        names = [f"actor/rank-{rank}.trace.json.gz" for rank in (0, 1)]
        sizes = {name: (claim.folder / name).stat().st_size for name in names}
        prune(run.path, Step(2, artifacts=sizes), "keep_steps = 1", HEADER)
        (claim.folder / "actor").mkdir()
        (claim.folder / names[1]).write_bytes(b"as if it had not been deleted")
        prune(run.path, Step(2, artifacts={names[1]: sizes[names[1]]}), "keep_steps = 1", HEADER)
        assert not (claim.folder / names[1]).exists()
        runs.record(run, rank=2)
        name = "actor/rank-2.trace.json.gz"
        prune(run.path, Step(2, artifacts={name: 7}), "keep_bytes = 1", HEADER)
        assert [entry["paths"] for entry in read_step(run.path, 2)["pruned"]] == [names, [name]]
        assert verify_run(run.path).problems == []

    def test_files_that_cannot_be_deleted_are_reported(self, tmp_path, mocker) -> None:
        """A file that cannot be deleted is listed with the reason, in the entry
        and in the notes of the step.
        """
        run = runs.make_run(tmp_path)
        runs.record(run)
        unlink = os.unlink

        def refuse(name, *, dir_fd=None):
            if dir_fd is not None:
                raise PermissionError(13, "Permission denied")
            unlink(name)

        mocker.patch.object(os, "unlink", side_effect=refuse)
        entry = prune(run.path, Step(2, artifacts={"actor/rank-0.trace.json.gz": 5}), "x", HEADER)
        assert entry.kept == ["actor/rank-0.trace.json.gz: Permission denied"]
        assert "  not deleted: actor/rank-0.trace.json.gz: Permission denied" in after_notes(
            read_step(run.path, 2)
        )

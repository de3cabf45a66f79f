"""Files below a run: no link is followed, and only plain files are opened."""

from __future__ import annotations

import os

import pytest

from stepprof.follow.below import opened_files, own


class TestBelow:
    def test_files_of_a_folder(self, tmp_path) -> None:
        """The plain files of a folder are opened, each with its path; links and pipes are left out."""
        (tmp_path / "a/deep").mkdir(parents=True)
        for name in ("a/x", "a/deep/y", "outside"):
            (tmp_path / name).write_text(name)
        (tmp_path / "a/link").symlink_to(tmp_path / "outside")
        os.mkfifo(tmp_path / "a/pipe")
        found = {path: file.read() for path, file in opened_files(tmp_path, "a")}
        assert found == {"a/x": b"a/x", "a/deep/y": b"a/deep/y"}

    def test_what_is_no_file(self, tmp_path) -> None:
        """A pipe does not block; it is refused. So is a link in the place of one of our files."""
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(OSError, match="not a plain file"):
            list(opened_files(tmp_path, "pipe"))
        (tmp_path / "link").symlink_to("nowhere")
        with pytest.raises(PermissionError, match="belongs to another user, or is no plain file"):
            own(tmp_path, tmp_path / "link")
        assert own(tmp_path, tmp_path / "none") == tmp_path / "none"

"""The folder that contains the runs."""

from __future__ import annotations

from pathlib import Path

from stepprof.run.output_root import output_root


class TestOutputRoot:
    def test_below_the_working_directory(self, tmp_path, monkeypatch) -> None:
        """A relative folder lies below the working directory, and an absolute one is unchanged."""
        monkeypatch.chdir(tmp_path)
        assert output_root("runs") == tmp_path / "runs"
        assert output_root("../x") == tmp_path.parent / "x"
        assert output_root("/scratch/x") == Path("/scratch/x")

    def test_a_working_directory_that_ray_deletes(self, tmp_path, monkeypatch) -> None:
        """If Ray deletes the working directory, a relative folder lies below the home
        directory, if that is writable.
        """
        there = tmp_path / "session_2026-01-01/runtime_resources/working_dir_files/_ray_pkg_1"
        there.mkdir(parents=True)
        (tmp_path / "home").mkdir()
        monkeypatch.chdir(there)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert output_root("runs") == tmp_path / "home" / "runs"
        assert output_root(tmp_path / "runs") == tmp_path / "runs"
        monkeypatch.setenv("HOME", str(tmp_path / "none"))
        assert output_root("runs") == there / "runs"

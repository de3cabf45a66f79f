"""Test the file in which the processes of `stepprof run` name their runs."""

from __future__ import annotations

from pathlib import Path

from stepprof.run.announced import VARIABLE, announce, announce_off, announced, announced_off


class TestAnnounce:
    def test_each_run_once(self, tmp_path: Path) -> None:
        """Several processes of a run name it once, also if its path has a line break. A line that is cut off is skipped."""
        file = tmp_path / "file"
        file.touch()
        runs = [tmp_path / "a", tmp_path / "b\nc", tmp_path / "a"]
        for run in runs:
            announce(run, {VARIABLE: str(file)})
        with file.open("a") as opened:
            opened.write('"/half')
        assert announced(file) == runs[:2]

    def test_why_a_process_has_no_run(self, tmp_path: Path) -> None:
        """A process that has no run adds the reason instead; each reason is returned once, and is no run."""
        file = tmp_path / "file"
        file.touch()
        for reason in ("off", "off", "other"):
            announce_off(reason, {VARIABLE: str(file)})
        assert (announced(file), announced_off(file)) == ([], ["off", "other"])

    def test_without_the_file(self, tmp_path: Path) -> None:
        """Without the variable, or without the file, nothing is written."""
        announce(tmp_path, {})
        announce(tmp_path, {VARIABLE: ""})
        announce(tmp_path, {VARIABLE: str(tmp_path / "gone")})
        assert list(tmp_path.iterdir()) == []

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        """A link in place of the file is not followed: its target is not the command's."""
        (tmp_path / "target").touch()
        (tmp_path / "link").symlink_to("target")
        announce(tmp_path, {VARIABLE: str(tmp_path / "link")})
        assert (tmp_path / "target").read_text() == ""

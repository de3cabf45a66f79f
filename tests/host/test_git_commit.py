"""The commit that is checked out, compared with the output of git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stepprof.host.git_commit import git_commit


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


class TestCommit:
    def test_the_commit_of_a_branch(self, repository: Path) -> None:
        """The commit of a branch with a slash in its name is found from a folder below."""
        git(repository, "checkout", "-q", "-b", "feature/one")
        (repository / "a" / "b").mkdir(parents=True)
        assert git_commit(repository / "a" / "b") == git(repository, "rev-parse", "HEAD")

    def test_detached(self, repository: Path) -> None:
        git(repository, "checkout", "-q", "--detach")
        assert git_commit(repository) == git(repository, "rev-parse", "HEAD")

    def test_the_commit_of_packed_references(self, repository: Path) -> None:
        git(repository, "pack-refs", "--all")
        assert not list((repository / ".git" / "refs" / "heads").iterdir())
        assert git_commit(repository) == git(repository, "rev-parse", "HEAD")

    def test_the_commit_of_a_worktree(self, repository: Path, tmp_path: Path) -> None:
        """In a worktree, `.git` is a file, and the branch is in the folder of the repository."""
        git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
        git(tmp_path / "tree", "commit", "-q", "--allow-empty", "-m", "second")
        assert git_commit(tmp_path / "tree") == git(tmp_path / "tree", "rev-parse", "HEAD")
        assert git_commit(tmp_path / "tree") != git_commit(repository)

    def test_nothing_is_known(self, repository: Path, tmp_path: Path) -> None:
        """Without a repository, or with a missing branch, a damaged file or a link, the commit is None."""
        assert git_commit(Path("/proc/self")) is None
        head = repository / ".git" / "HEAD"
        for text in ("ref: refs/heads/../../secret\n", "ref: refs/heads/missing\n", "\xff\0", ""):
            head.write_text(text, encoding="latin-1")
            assert git_commit(repository) is None
        head.unlink()
        head.symlink_to(tmp_path / "elsewhere")
        assert git_commit(repository) is None

"""Read the commit that is checked out around a folder, from the files in `.git`, without starting git."""

from __future__ import annotations

import re
from pathlib import Path

from stepprof.host.plain_files import open_plain
from stepprof.interrupts import ours

MOST_FOLDERS = 32
"""The number of parent folders that are searched for a `.git`."""
MOST_BYTES = 1 << 20
"""The maximum number of bytes read of a file."""
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"ref: (refs/[\w./-]{1,250})")


def git_commit(folder: Path) -> str | None:
    """Return the commit of the repository that contains a folder; None: there is none, or it cannot be read.

    Files that differ from the commit are not noticed.
    """
    try:
        for place in [folder, *folder.parents][:MOST_FOLDERS]:
            git = place / ".git"
            if git.is_dir():
                return _head(git)
            if git.is_file():
                pointed = _text(git).removeprefix("gitdir:").strip()
                return _head(place / pointed)
    except ours(OSError, ValueError):
        return None
    return None


def _head(git: Path) -> str | None:
    """Return the commit of a repository, or of a worktree, whose branches are in the repository's folder."""
    head = _text(git / "HEAD").strip()
    if _COMMIT.fullmatch(head):
        return head
    ref = _REF.fullmatch(head)
    if ref is None or ".." in ref[1]:
        return None
    common = git / "commondir"
    for place in [git, *([git / _text(common).strip()] if common.is_file() else [])]:
        if (place / ref[1]).is_file():
            found = _text(place / ref[1]).strip()
            return found if _COMMIT.fullmatch(found) else None
        if (place / "packed-refs").is_file():
            packed = re.search(
                rf"^([0-9a-f]{{40,64}}) {re.escape(ref[1])}$", _text(place / "packed-refs"), re.MULTILINE
            )
            if packed is not None and _COMMIT.fullmatch(packed[1]):
                return packed[1]
    return None


def _text(path: Path) -> str:
    with open_plain(path) as file:
        return file.read(MOST_BYTES).decode("utf-8", "replace")

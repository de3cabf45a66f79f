"""Make the folders of a run, even if another file has the name of one.

A file or a broken link with the name of a step's folder would cost every rank the step. It is moved
aside, under a name that says so, and its content is kept. A folder of another user cannot be moved
safely, since a rank may be that user: it is reported instead.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from stepprof.interrupts import ignored, ours

ASIDE = ".aside-"
"""The separator between the original name and a number."""
_TRIES = 20


def make_folder(run: Path, path: Path | str) -> None:
    """Make a folder below the run directory, with those above it. Move aside files that have their names.

    Raises:
        OSError: it cannot be made. If another user's folder prevents it, the error names the user.
    """
    try:
        _make(run, path)
    except PermissionError as error:
        owner = _owner(Path(path), run)
        if owner is None:
            raise
        raise PermissionError(error.errno, f"{error.strerror}: {owner}", str(path)) from error


def _make(run: Path, path: Path | str) -> None:
    for tries in range(_TRIES):  # other processes make the same folders at the same time
        try:
            _make_all(str(path))
            return
        except (FileExistsError, NotADirectoryError):
            if tries == _TRIES - 1:
                raise
            for each in (Path(path), *Path(path).parents):
                if run in each.parents:
                    _set_aside(each)


def _make_all(path: str, *, above: bool = True) -> None:
    """Make a folder and those above it. With strings, as training waits for it: `Path.mkdir` takes twice as long."""
    try:
        os.mkdir(path)  # noqa: PTH102 - as above
    except FileNotFoundError:
        if not above:  # the system refuses, but not because a folder above is missing
            raise
        _make_all(os.path.dirname(path))  # noqa: PTH120 - as above
        _make_all(path, above=False)
    except ours(OSError):  # a system may refuse before it notices that the folder exists
        if not os.path.isdir(path):  # noqa: PTH112 - as above
            raise


def _set_aside(path: Path) -> None:
    """Move aside a file that is not a folder."""
    if not os.path.lexists(path) or path.is_dir():
        return
    for number in itertools.count(1):
        aside = path.with_name(f"{path.name}{ASIDE}{number}")
        try:
            os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            continue
        break
    try:
        # a folder that another process has made there meanwhile cannot replace a file
        path.rename(aside)
    except (FileNotFoundError, NotADirectoryError):
        aside.unlink()
    except BaseException:
        with ignored(OSError):
            aside.unlink()
        raise
    else:
        from stepprof.log import logger  # readers of a run work without structlog

        logger.warning(
            "run.set_aside", path=str(path), now=aside.name, reason="a folder of the run has this name"
        )


def _owner(path: Path, run: Path) -> str | None:
    """Return which of the folders above belongs to another user."""
    for each in (path, *path.parents):
        if each == run:
            break
        with ignored(OSError):
            owner = each.stat().st_uid
            if owner != run.stat().st_uid:
                return f"{each.relative_to(run)} belongs to user {owner}, and the run to user {run.stat().st_uid}"
    return None

"""Delete the artifacts of the oldest steps, within the budget of the configuration.

Recordings are the user's work, so only files that a manifest of the step names are deleted, and no
link is followed. `manifest/pruned.json` lists the files before the first one is deleted. The
manifest stays.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from stepprof.host import real_time
from stepprof.host.atomic_files import write_atomically, write_exclusively
from stepprof.interrupts import ignored, ours
from stepprof.recording.post_step.completeness import Step
from stepprof.run.layout import MANIFEST, PRUNED, step_folder
from stepprof.run.schema import PrunedEntry


def choose(steps: Sequence[Step], keep_steps: int | None, keep_bytes: int | None) -> list[tuple[Step, str]]:
    """Return the steps to delete, each with the exceeded budget. The last step is always kept.

    >>> steps = [Step(n, artifacts={"a": 10}) for n in (1, 2, 3)]
    >>> [(step.number, why) for step, why in choose(steps, 2, None)], [step.number for step, _ in choose(steps, None, 5)]
    ([(1, 'keep_steps = 2')], [1, 2])
    """
    there = [step for step in steps if step.artifacts]
    total = sum(step.bytes for step in there)
    chosen = []
    for position, step in enumerate(there[:-1]):
        if keep_steps is not None and len(there) - position > keep_steps:
            reason = f"keep_steps = {keep_steps}"
        elif keep_bytes is not None and total > keep_bytes:
            reason = f"keep_bytes = {keep_bytes}"
        else:
            break
        total -= step.bytes
        chosen.append((step, reason))
    return chosen


def prune(run: Path, step: Step, reason: str, header: Mapping[str, object]) -> PrunedEntry:
    """Delete the artifacts of a step. Return what was deleted.

    Args:
        run: the run directory.
        step: a complete step.
        reason: the exceeded budget.
        header: the run and the writer, for the note.

    Raises:
        OSError: the note cannot be written; nothing is deleted then.
    """
    note = run / step_folder(step.number) / MANIFEST / PRUNED
    entry = PrunedEntry(
        unix_ns=real_time.time_ns(),
        reason=reason,
        files=len(step.artifacts),
        bytes=step.bytes,
        not_uploaded=step.not_uploaded,
        paths=sorted(step.artifacts),
    )

    def content() -> bytes:
        reported = {**header, "step": step.number, "pruned": [entry.to_dict()]}
        return json.dumps(reported, indent=1).encode()

    if not write_exclusively(note, content()):
        write_atomically(note, content())
    entry.kept = _delete(run, step.number, step.artifacts)
    if entry.kept:
        write_atomically(note, content())
    return entry


def _delete(run: Path, number: int, paths: Iterable[str]) -> list[str]:
    """Delete files below a step's folder, then its empty folders. Return what could not be deleted, and why."""
    kept = []
    folders: set[tuple[str, ...]] = set()
    with contextlib.ExitStack() as opened:
        try:
            root = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, root)
            base = _down(root, (step_folder(number),))
        except ours(OSError) as error:
            return [f"{step_folder(number)}: {error.strerror or error}"]
        opened.callback(os.close, base)
        for path in paths:
            parts = PurePosixPath(path).parts
            try:
                _delete_one(base, parts)
            except FileNotFoundError:
                pass  # already deleted
            except ours(OSError) as error:
                kept.append(f"{path}: {error.strerror or error}")
            folders.update(parts[:depth] for depth in range(1, len(parts)))
        for parts in sorted(folders, key=len, reverse=True):
            with ignored(OSError):  # it holds a file that is not ours
                above = _down(base, parts[:-1])
                try:
                    os.rmdir(parts[-1], dir_fd=above)
                finally:
                    os.close(above)
    return kept


def _delete_one(base: int, parts: tuple[str, ...]) -> None:
    above = _down(base, parts[:-1])
    try:
        name = parts[-1]
        if stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
            _delete_folder(above, name)
        else:
            os.unlink(name, dir_fd=above)  # of a link: the link itself
    finally:
        os.close(above)


def _delete_folder(above: int, name: str) -> None:
    """Delete an artifact that is a folder, with its content."""
    folder = _down(above, (name,))
    try:
        with os.scandir(folder) as entries:
            inside = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for child, is_folder in inside:
            if is_folder:
                _delete_folder(folder, child)
            else:
                os.unlink(child, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=above)


def _down(base: int, parts: tuple[str, ...]) -> int:
    """Return a descriptor of the folder `parts` below `base`. Raise OSError for a link or another file."""
    here = os.dup(base)
    for part in parts:
        try:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here

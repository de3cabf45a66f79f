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

from stepprof.follow.below import opened_folder, own
from stepprof.follow.completeness import Step
from stepprof.host import real_time
from stepprof.host.atomic_files import write_atomically
from stepprof.host.plain_files import read_table
from stepprof.run.layout import MANIFEST, PRUNED, step_folder
from stepprof.run.schema import PrunedEntry


def choose(steps: Sequence[Step], keep_steps: int | None, keep_bytes: int | None) -> list[tuple[Step, str]]:
    """Return the steps to delete, each with the exceeded budget. The latest step is always kept; one that
    was not uploaded is deleted only for its bytes: without `keep_bytes` it is kept.

    >>> steps = [Step(n, artifacts={"a": 10}) for n in (1, 2, 3)]
    >>> [(step.number, why) for step, why in choose(steps, 2, None)], [step.number for step, _ in choose(steps, None, 5)]
    ([(1, 'keep_steps = 2')], [1, 2])
    """
    there = sorted((step for step in steps if step.artifacts), key=lambda each: each.recorded_unix_ns)
    total = sum(step.bytes for step in there)
    chosen = []
    for position, step in enumerate(there[:-1]):
        if keep_steps is not None and len(there) - position > keep_steps and not step.not_uploaded:
            reason = f"keep_steps = {keep_steps}"
        elif keep_bytes is not None and total > keep_bytes:
            reason = f"keep_bytes = {keep_bytes}"
        else:
            continue
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
    note = own(run, run / step_folder(step.number) / MANIFEST / PRUNED)
    try:
        found = read_table(note).get("pruned")
    except (OSError, ValueError):
        found = []
    before = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    noted = {path for each in before for path in each.get("paths") or ()}
    new = {path: size for path, size in step.artifacts.items() if path not in noted}
    entry = PrunedEntry(
        unix_ns=real_time.time_ns(),
        reason=reason,
        files=len(new),
        bytes=sum(new.values()),
        not_uploaded=step.not_uploaded,
        paths=sorted(new),
    )

    def save() -> None:
        reported = {**header, "step": step.number, "pruned": [*before, entry.to_dict()]}
        write_atomically(note, json.dumps(reported, indent=1).encode())

    if new:  # else an earlier process has noted them, and died before it had deleted them
        save()
    entry.kept = _delete(run, step.number, step.artifacts)
    if entry.kept:
        save()
    return entry


def _delete(run: Path, number: int, paths: Iterable[str]) -> list[str]:
    """Delete files below a step's folder, then its empty folders. Return what could not be deleted, and why."""
    kept = []
    folders: set[tuple[str, ...]] = set()
    try:
        with opened_folder(run, (step_folder(number),)) as base:
            for path in paths:
                parts = PurePosixPath(path).parts
                try:
                    with opened_folder(base, parts[:-1]) as above:
                        _delete_one(above, parts[-1])
                except FileNotFoundError:
                    pass  # already deleted
                except OSError as error:
                    kept.append(f"{path}: {error.strerror or error}")
                folders.update(parts[:depth] for depth in range(1, len(parts)))
            for parts in sorted(folders, key=len, reverse=True):
                # an error: it holds a file that is not ours
                with contextlib.suppress(OSError), opened_folder(base, parts[:-1]) as above:
                    os.rmdir(parts[-1], dir_fd=above)
    except OSError as error:
        return [f"{step_folder(number)}: {error.strerror or error}"]
    return kept


def _delete_one(above: int, name: str) -> None:
    """Delete a file, or a folder with its content. Of a link, delete the link itself."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=above)
        return
    with opened_folder(above, (name,)) as folder:
        for child in os.listdir(folder):  # noqa: PTH208 - of a descriptor
            _delete_one(folder, child)
    os.rmdir(name, dir_fd=above)

"""The run directory: the one place where the recording and the reading side meet, and the one module that knows its layout.

    <output_dir>/<run_id>/
      run.json                                 what the job was
      spans/rank-0.000001.jsonl                spans of every step, rolling files
      status/rank-0.json                       what each process does now, or did last
      requests/step-7-0b1c….json               what was asked for while the job ran
      after/leader.1.json                      who looks after what comes after a recording
      step-000002/
        manifest/actor-rank-0.json             one fragment per target, written ahead as `lost`
        manifest/on-complete.json              the command that was run when the step was recorded
        manifest/pruned.json                   when and why its artifacts were deleted
        actor/rank-0.trace.json.gz             its artifacts

Every rank writes here beside the others without a lock. A name belongs to the process that made it first, whatever the clock says; what comes later under the same name (a second occurrence, a second run
of the same step) gets a number: `actor-rank-0.2.json` with `actor/rank-0.2…`. How a file is made whole and exclusive is `files.py`'s, which run it is `runid.py`'s.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stepprof.errors import ConfigError
from stepprof.host.atomic_files import (
    place,
    publish,
    suffixed,
    write_atomically,
    write_exclusively,
    write_temporary,
)
from stepprof.host.plain_files import read_table
from stepprof.host.process_identity import is_alive, writer_identity
from stepprof.run.folders import make_folder
from stepprof.run.names import safe_name
from stepprof.run.rendezvous import RUN_FILE
from stepprof.run.run_id import agree_on_run

if TYPE_CHECKING:
    from stepprof.run.job_store import JobStore

__all__ = [
    "AFTER",
    "MANIFEST",
    "ON_COMPLETE",
    "PRUNED",
    "REQUESTS",
    "RUN_FILE",
    "SPANS",
    "STATUS",
    "Claim",
    "RunDir",
    "is_alive",
    "open_run",
    "publish",
    "step_folder",
    "step_number",
    "write_atomically",
    "writer_identity",
]

SPANS = "spans"
MANIFEST = "manifest"
STATUS = "status"
REQUESTS = "requests"
AFTER = "after"
ON_COMPLETE = "on-complete.json"
PRUNED = "pruned.json"
WHOLE_STEP = "step"  # stands for the role in the names of a window without one
_STEP_FOLDER = re.compile(r"step-(\d{6,18})", re.ASCII)


def step_folder(step: int) -> str:
    """The name of a step's folder.

    >>> step_folder(2)
    'step-000002'
    """
    return f"step-{step:06d}"


def step_number(name: str) -> int | None:
    """The step whose folder has this name; None if it is something else.

    >>> step_number("step-000002"), step_number("spans")
    (2, None)
    """
    match = _STEP_FOLDER.fullmatch(name)
    return int(match[1]) if match and step_folder(int(match[1])) == name else None


def open_run(
    output_dir: Path,
    *,
    run_id: str | None,
    rank: int | str,
    world_size: int | None,
    environ: Mapping[str, str],
    description: Mapping[str, object],
    store: JobStore | None = None,
) -> RunDir:
    """Agree with the other processes of the job on the run, make its folder, and describe the job in `run.json` if no process has yet.

    Args:
        output_dir: the folder that holds runs.
        run_id: the caller's own name of the run; None: what the launcher says (`stepprof.run.run_id`).
        rank: the global rank of this process, or what a process without one is called.
        world_size: ranks in the job, where it is known.
        environ: the environment of the process.
        description: what goes into `run.json`, JSON-able.
        store: of the torch.distributed job, where its ranks can settle on one of several claims.

    Raises:
        ConfigError: the folder cannot be made or written, or `run_id` is no plain name.
    """
    root = Path(os.path.abspath(output_dir))  # noqa: PTH100 - the job may change its directory, and resolve() would ask the file system about links
    try:
        agreement = agree_on_run(root, run_id=run_id, world_size=world_size, environ=environ, store=store)
        path = root / agreement.run_id
        path.mkdir(parents=True, exist_ok=True)
        content = {
            "schema_version": 1,
            "run_id": agreement.run_id,
            "run_id_from": agreement.source,
            "rank": rank,
            "world_size": world_size,
            "writer": writer_identity(),
            **description,
        }
        # written by every rank and kept of the first: the others have shown that they can write here
        write_exclusively(path / RUN_FILE, _dump(content))
    except ConfigError:
        raise
    except ValueError as error:  # a NUL in the path, or what the file system's encoding lacks
        raise ConfigError.at("output_dir", str(output_dir), f"no path: {error}") from error
    except OSError as error:
        raise ConfigError(
            f'output_dir = "{output_dir}": cannot be made or written: {error.filename or root}: {error.strerror or error}; '
            "name a folder that every process of the job can write, with free space"
        ) from error
    return RunDir(path, agreement.run_id)


class RunDir:
    """One run's folder, as a process that records into it sees it.

    Made by `open_run`. It holds no open file and no lock, so that a thread, a forked child or a copy may use it at will.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path
        self.run_id = run_id

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    def restate(self, **fields: object) -> None:
        """Correct `run.json`, if this process has described the run.

        Args:
            fields: the keys that change: the rank and the world size once they are known, the adapters.

        Raises:
            OSError: it cannot be written.
        """
        path = self.path / RUN_FILE
        try:
            content = read_table(path)
        except (OSError, ValueError):  # removed or damaged: what is left says nothing wrong
            return
        if content.get("writer") == writer_identity():
            write_atomically(path, _dump({**content, **fields}))

    def claim(
        self,
        step: int,
        role: str | None,
        rank: int | str,
        content: Mapping[str, object],
        *,
        engines: bool = False,
    ) -> Claim:
        """Take a place in a step for one target: its fragment, written ahead as `content`, and the stem of its artifacts.

        Folders that are missing are made, also where they were removed meanwhile.

        Args:
            step: the step, not negative.
            role: None for a window without one.
            rank: the global rank, or what a process without one is called.
            content: the first version of the fragment, JSON-able: what holds if this process is never heard of again.
            engines: the fragment tells of the engines that this process drives, not of itself: `rollout-engines-rank-0.json`.

        Raises:
            OSError: it cannot be written.
        """
        # joined as strings: pathlib would take as long as the system takes
        folder = f"{self.path}/{step_folder(step)}"
        name = role or WHOLE_STEP
        target = f"engines-rank-{_part(rank)}" if engines else f"rank-{_part(rank)}"
        make_folder(self.path, f"{folder}/{MANIFEST}")
        artifacts = _artifacts_folder(name)
        make_folder(self.path, f"{folder}/{artifacts}")
        wanted = Path(f"{folder}/{MANIFEST}/{name}-{target}.json")
        tmp = write_temporary(wanted, _dump(content))
        try:
            number = 1
            while not place(tmp, suffixed(wanted, number)):
                number += 1
        except BaseException:
            tmp.unlink(missing_ok=True)
            raise
        ending = "" if number == 1 else f".{number}"
        before = None if number == 1 else suffixed(wanted, number - 1)
        return Claim(Path(folder), f"{artifacts}/{target}{ending}", suffixed(wanted, number), before)

    def engine_folder(self, step: int, role: str, replica: int) -> tuple[Path, str]:
        """A new and empty folder for the files of one engine: the step's folder, and the path below it (`rollout/replica-0`, then `replica-0.2`).

        Raises:
            OSError: it cannot be made.
        """
        folder = self.path / step_folder(step)
        above = folder / _artifacts_folder(role)
        make_folder(self.path, above)
        number = 1
        while True:
            name = f"replica-{replica}" if number == 1 else f"replica-{replica}.{number}"
            try:
                (above / name).mkdir()
            except FileExistsError:
                number += 1
            else:
                return folder, f"{above.name}/{name}"

    def take_engine(self, step: int, role: str, key: str, occurrence: int) -> Mapping[str, object] | None:
        """Be the one process that drives an engine in this window; None: it is this one, else who it is.

        A claim whose writer is known to be dead is passed over.

        Raises:
            OSError: it cannot be written.
        """
        folder = self.path / step_folder(step) / MANIFEST
        make_folder(self.path, folder)
        digest = hashlib.sha256(f"{role} {occurrence} {key}".encode()).hexdigest()[:16]
        number = 1
        while True:
            path = folder / f".engine-{digest}.{number}"
            if write_exclusively(path, _dump(writer_identity())):
                return None
            try:
                holder = read_table(path)
            except (
                OSError,
                ValueError,
            ):  # being written, or on a file system that shows it late: it is taken
                return {}
            if is_alive(holder) is not False:
                return holder
            number += 1

    def status_path(self, rank: int | str, number: int = 1) -> Path:
        """Where this rank's process tells of itself; `number` tells processes of one rank apart: `status/rank-0.json`, `rank-0.2.json`, …"""
        return suffixed(self.path / STATUS / f"rank-{_part(rank)}.json", number)

    def spans_path(self, rank: int | str) -> Path:
        """A new and empty file for this rank's spans, ours alone: `spans/rank-0.000001.jsonl`, then `.000002`, …

        Raises:
            OSError: it cannot be made.
        """
        folder = self.path / SPANS
        make_folder(self.path, folder)
        number = 1
        while True:
            path = folder / f"rank-{_part(rank)}.{number:06d}.jsonl"
            try:
                path.touch(exist_ok=False)
            except FileExistsError:
                number += 1
            else:
                return path


class Claim:
    """One target's place in a step: `folder` is the step's, `stem` the artifacts' path below it without a suffix, `fragment` its part of the manifest.

    `before` is the fragment that has the same name and the number before it, if any.
    """

    def __init__(self, folder: Path, stem: str, fragment: Path, before: Path | None = None) -> None:
        self.folder = folder
        self.stem = stem
        self.fragment = fragment
        self.before = before

    def __repr__(self) -> str:
        return f"Claim({str(self.fragment)!r})"

    def write(self, content: Mapping[str, object]) -> None:
        """Replace our fragment by a newer version, whole or not at all.

        Where the folder was removed meanwhile, it is made again and the fragment claimed anew: the manifest tells the truth also about a capture whose artifacts are gone.

        Raises:
            OSError: it cannot be written; the version before is untouched.
        """
        data = _dump(content)
        if self.fragment.exists():
            write_atomically(self.fragment, data)
            return
        self.fragment.parent.mkdir(parents=True, exist_ok=True)
        tmp = write_temporary(self.fragment, data)
        try:
            self.fragment = publish(tmp, self.fragment)
        except BaseException:
            tmp.unlink(missing_ok=True)
            raise


def _artifacts_folder(name: str) -> str:
    """A role called like the folder of the fragments must not put its artifacts among them."""
    return f"{name}-artifacts" if name.lower() == MANIFEST else name


def _part(rank: int | str) -> str:
    """A rank as a part of a file name: a number, or the name of a process without one."""
    return str(rank) if isinstance(rank, int) else safe_name(rank) or "unnamed"


def _dump(content: Mapping[str, object]) -> bytes:
    """One value on a line, for people to read; not indented, which would take four times as long, while training waits."""
    return json.dumps(content, separators=(",\n ", ": "), default=str).encode()

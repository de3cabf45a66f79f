"""The layout of the run directory, where the recording and the reading side meet. No other module
knows it.

    <output_dir>/<run_id>/
      run.json                                 description of the job
      spans/rank-0.000001.jsonl                spans of every step, rolling files
      status/rank-0.json                       current or final status of each process
      requests/step-7-0b1c….json               requests made while the job ran
      after/follow.lock                        held by the process of `stepprof follow`
      after/uploads.json                       which files of the run were uploaded
      step-000002/
        manifest/actor-rank-0.json             one fragment per target, written ahead as `lost`
        manifest/uploads.json                  which artifacts and fragments were uploaded
        manifest/on-complete.json              the command that was run for the step
        manifest/pruned.json                   when and why its artifacts were deleted
        actor/rank-0.trace.json.gz             its artifacts

All ranks write here at the same time without a lock. A name belongs to the process that created it
first; no clock decides. A later target with the same name (a second occurrence, a second run of the same
step) gets a number: `actor-rank-0.2.json` with `actor/rank-0.2…`. Files are created by
`stepprof.host.atomic_files`, and the run is chosen by `stepprof.run.run_id`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.errors import ConfigError
from stepprof.host.atomic_files import (
    place,
    publish,
    suffixed,
    write_atomically,
    write_exclusively,
    write_temporary,
)
from stepprof.host.own_files import foreign_folder
from stepprof.host.plain_files import read_table
from stepprof.host.process_identity import is_alive, writer_identity
from stepprof.interrupts import ours
from stepprof.run.announced import announce
from stepprof.run.folders import make_folder
from stepprof.run.names import RUN_FILE, STATUS, rank_name
from stepprof.run.output_root import output_root
from stepprof.run.run_id import Agreement, agree_on_run
from stepprof.run.siblings import is_second_of_many

if TYPE_CHECKING:
    from stepprof.run.job_store import JobStore

SPANS = "spans"
MANIFEST = "manifest"
REQUESTS = "requests"
AFTER = "after"
ON_COMPLETE = "on-complete.json"
PRUNED = "pruned.json"
UPLOADS = "uploads.json"
_TRIES = 20
WHOLE_STEP = "step"  # replaces the role in the names of a window without one
_STEP_FOLDER = re.compile(r"step-(\d{6,18})", re.ASCII)


def step_folder(step: int) -> str:
    """Return the name of a step's folder.

    >>> step_folder(2)
    'step-000002'
    """
    return f"step-{step:06d}"


def step_number(name: str) -> int | None:
    """Return the step of a folder's name; None for any other name.

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
    """Agree on the run with the other processes of the job, make its folder, and write `run.json` if
    it does not exist.

    Args:
        output_dir: the folder of the runs.
        run_id: the caller's name of the run; None: that of the launcher (`stepprof.run.run_id`).
        rank: the global rank of this process, or its name if it has none.
        world_size: number of ranks of the job, if known.
        environ: the environment of the process.
        description: the content of `run.json`, JSON-able.
        store: the store of the torch.distributed job, where its ranks can agree on one of several claims.

    Raises:
        ConfigError: the folder cannot be made or written, or `run_id` is not a plain name.
    """
    root = output_root(output_dir)
    try:
        agreement, path = _agreed_folder(
            root, run_id=run_id, rank=rank, world_size=world_size, environ=environ, store=store
        )
        content = {
            "schema_version": 1,
            "run_id": agreement.run_id,
            "run_id_from": agreement.source,
            "rank": rank,
            "world_size": world_size,
            "writer": writer_identity(),
            **description,
        }
        # every rank writes it and the first version stays: so each rank has shown that it can write here
        write_exclusively(path / RUN_FILE, _dump(content))
        if agreement.source == "process" and world_size in (None, 1) and is_second_of_many(path, content):
            from stepprof.log import logger  # readers of a run work without structlog

            logger.warning(
                "run.alone",
                reason="if they are the ranks of one job, its launcher is not known here: set RANK and WORLD_SIZE, "
                "or give rank= and world_size= to stepprof.init; and give all of them one STEPPROF_RUN_ID",
            )
    except ConfigError:
        raise
    except ours(ValueError) as error:  # a NUL in the path, or a character that the file system cannot encode
        raise ConfigError.at("output_dir", str(output_dir), f"no path: {error}") from error
    except ours(OSError) as error:
        raise ConfigError(
            f'output_dir = "{output_dir}": cannot be made or written: {error.filename or root}: {error.strerror or error}; '
            "name a folder that every process of the job can write, with free space"
        ) from error
    announce(path, environ)
    return RunDir(path, agreement.run_id)


def _agreed_folder(root: Path, **known: Any) -> tuple[Agreement, Path]:
    """Agree on the run and make its folder. Another user who is faster gets it: then agree again."""
    for _ in range(_TRIES):
        agreement = agree_on_run(root, **known)
        path = root / agreement.run_id
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
        reason = foreign_folder(path)
        if reason is None:
            return agreement, path
    raise PermissionError(errno.EACCES, reason, str(path))


class RunDir:
    """The folder of one run, for a process that records into it.

    Made by `open_run`. It holds no open file and no lock, so a thread, a forked child or a copy may
    use it.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path
        self.run_id = run_id

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    def restate(self, **fields: object) -> None:
        """Correct `run.json`, if this process has written it.

        Args:
            fields: the changed keys: the rank and the world size once they are known, the adapters.

        Raises:
            OSError: it cannot be written.
        """
        path = self.path / RUN_FILE
        try:
            content = read_table(path)
        except ours(OSError, ValueError):  # removed or damaged: nothing wrong is left
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
        """Claim a place in a step for one target: write its fragment ahead with `content`, and return
        it with the stem of its artifacts.

        Missing folders are made, also if they were removed meanwhile.

        Args:
            step: the step, not negative.
            role: None for a window without one.
            rank: the global rank, or the name of a process without one.
            content: the first version of the fragment, JSON-able: it must be true if this process dies.
            engines: the fragment is of the engines that this process drives: `rollout-engines-rank-0.json`.

        Raises:
            OSError: it cannot be written.
        """
        # joined as strings: pathlib would take as long as the system calls
        folder = f"{self.path}/{step_folder(step)}"
        name = role or WHOLE_STEP
        target = f"engines-rank-{rank_name(rank)}" if engines else f"rank-{rank_name(rank)}"
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
        """Return a new and empty folder for the files of one engine: the step's folder, and the path
        below it (`rollout/replica-0`, then `replica-0.2`).

        Raises:
            OSError: it cannot be made.
        """
        folder = self.path / step_folder(step)
        above = folder / _artifacts_folder(role)
        make_folder(self.path, above)
        for number in itertools.count(1):
            name = f"replica-{replica}" if number == 1 else f"replica-{replica}.{number}"
            with contextlib.suppress(FileExistsError):
                (above / name).mkdir()
                break
        return folder, f"{above.name}/{name}"

    def take_engine(self, step: int, role: str, key: str, occurrence: int) -> Mapping[str, object] | None:
        """Claim an engine for this window. Return None if this process drives it, else the process
        that does.

        The claim of a dead process is skipped.

        Raises:
            OSError: it cannot be written.
        """
        import hashlib  # with OpenSSL: 3.4 MB that most commands do not need

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
            except ours(OSError, ValueError):
                return {}  # being written, or shown late by the file system: it is taken
            if is_alive(holder) is not False:
                return holder
            number += 1

    def status_path(self, rank: int | str, number: int = 1) -> Path:
        """Return the path of this rank's status file. `number` separates processes of one rank:
        `status/rank-0.json`, `rank-0.2.json`, …
        """
        return suffixed(self.path / STATUS / f"rank-{rank_name(rank)}.json", number)

    def spans_path(self, rank: int | str) -> Path:
        """Return a new and empty file for this rank's spans, ours alone: `spans/rank-0.000001.jsonl`,
        then `.000002`, …

        Raises:
            OSError: it cannot be made.
        """
        folder = self.path / SPANS
        make_folder(self.path, folder)
        for number in itertools.count(1):
            path = folder / f"rank-{rank_name(rank)}.{number:06d}.jsonl"
            with contextlib.suppress(FileExistsError):
                path.touch(exist_ok=False)
                break
        return path


@dataclass(eq=False, slots=True)
class Claim:
    """The place of one target in a step."""

    folder: Path
    """The step's folder."""
    stem: str
    """The path of its artifacts below the folder, without a suffix."""
    fragment: Path
    """Its part of the manifest."""
    before: Path | None = None
    """The fragment with the same name and the previous number, if any."""

    def write(self, content: Mapping[str, object]) -> None:
        """Replace our fragment atomically by a newer version.

        If the folder was removed meanwhile, it is made and the fragment claimed again: the manifest
        is correct also for a capture whose artifacts are gone.

        Raises:
            OSError: it cannot be written; the previous version is untouched.
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
    """Return the folder of a role's artifacts, which is never that of the fragments."""
    return f"{name}-artifacts" if name.lower() == MANIFEST else name


def _dump(content: Mapping[str, object]) -> bytes:
    """Return JSON with one value per line: training waits, and indenting takes four times as long."""
    return json.dumps(content, separators=(",\n ", ": "), default=str).encode()

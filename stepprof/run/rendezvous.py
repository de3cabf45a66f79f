"""Let the ranks of one job find the same run through the file system, without communication.

A launcher that names its job (Slurm, `torchrun --rdzv-id`) decides. A plain `torchrun` or
`mp.spawn` only sets MASTER_ADDR and MASTER_PORT, and the next job on the same machine may have the
same. Jobs differ in their launcher, the parent of the ranks: its process id and its start are the
same as long as the job lives, also over an elastic restart of its workers. So a claim is a file
with a run id, and next to it one member file per host with the one launcher of that host in the
job:

    <output_dir>/.claims/<key>/000003.json               the run id, its founder, when its launcher began
    <output_dir>/.claims/<key>/000003.<host>.json        the launcher of that host which belongs to it
    <output_dir>/.claims/<key>/launcher-<id>.json        what the ranks of one launcher agreed on

Lightning has no launcher: rank 0 begins alone, and starts the other ranks of its host itself. They
find its run by its `run.json`, which names its process.

Each file is made by a hard link, which fails if the name is taken. The file system decides, and no
process waits for another.

Other users may be able to write to `output_dir`. So a file counts only if it belongs to the job's
own user, and its content is checked: a run id is a plain name, never a path. Names taken by other
users are skipped: the second user of an `output_dir` has `.claims.2`.
"""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import re
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from stepprof.errors import ConfigError
from stepprof.host import real_time
from stepprof.host.atomic_files import write_exclusively
from stepprof.host.own_files import foreign_folder, is_foreign, owner_for, read_own
from stepprof.host.plain_json import parse_json
from stepprof.host.process_identity import boot_id, pid_namespace, process_start, writer_identity
from stepprof.interrupts import ignored, ours
from stepprof.run.finished import is_finished
from stepprof.run.names import RUN_FILE, is_plain_name

CLAIMS = ".claims"
_BOOT = Path("/proc/stat")
JOIN_WITHIN_SECONDS = 600.0
"""Launchers of one job on several hosts begin within this time; a later one is another job."""
MOST_FILES = 50_000
"""Maximum number of files in a folder of claims; a job makes two or three."""
MOST_ROUNDS = 1000
"""Maximum number of attempts to join or found a run."""
_CLAIM = re.compile(r"(\d{6,12})(\.[0-9a-f]{16})?\.json", re.ASCII)
_NEVER = frozenset({errno.ELOOP, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENXIO})
"""Errors that no retry removes: a link, another user's file, no file."""
_UNREADABLE_SECONDS = 2.0  # how long a taken name may stay unreadable (NFS caches, a file system without links) before it is skipped


@dataclass(frozen=True, slots=True)
class Launcher:
    """The process that started the ranks of this host. `token` is unique among all launchers,
    `started` is in Unix seconds.
    """

    host: str
    token: str
    started: float


def current_launcher(*, own: bool = False) -> Launcher:
    """Return the parent of this process. Return the process itself if it has none (the first one of a
    container), or starts the ranks of its host (`own`).
    """
    pid = os.getpid() if own else os.getppid() or os.getpid()
    ticks = process_start(pid)
    host = f"{socket.gethostname()} {pid_namespace()}"
    return Launcher(host=host, token=f"{host} {boot_id()} {pid} {ticks}", started=_unix_seconds(ticks))


def claim_for_launcher(
    output_dir: Path,
    key: str,
    launcher: Launcher,
    world_size: int | None,
    *,
    rank: int | str | None = None,
) -> str:
    """Return the run id for all processes of this launcher, and of its fellows on other hosts, with
    the same `key` and `output_dir`.

    A shell may start one job after the other with the same key. A run that is over for `rank` is not
    joined; None: every run is joined.

    Raises:
        ConfigError: the folder of claims has far more files than jobs make, or other processes take every name in it.
        OSError: `output_dir` cannot be made or written.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    folder = _own_folder(_own_folder(output_dir / CLAIMS) / _digest(key))
    first = launcher.token
    for number in itertools.count(2):
        agreed = folder / f"launcher-{_digest(launcher.token)}.json"
        known = _run_id(_read(agreed))
        if known is None or rank is None or not is_finished(output_dir / known, rank):
            break
        launcher = replace(launcher, token=f"{first} job {number}")
    if known is None:
        run_id = _join_or_found(output_dir, folder, launcher, world_size, rank)
        if write_exclusively(agreed, _dump({"run_id": run_id, "launcher": launcher.token})):
            return run_id
        # another rank of ours was first: its run counts
        known = _run_id(_read_patiently(agreed)) or run_id
    return known


def claim_for_process(output_dir: Path) -> str:
    """Return a unique run id. Its folder is made here, which decides; the time in the name is only for
    the reader.

    Raises:
        OSError: `output_dir` cannot be made or written.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    run_id, number = stamp, 1
    while True:
        try:
            (output_dir / run_id).mkdir()
        except FileExistsError:
            number += 1
            run_id = f"{stamp}.{number}"
        else:
            return run_id


def run_of_parent(output_dir: Path) -> str | None:
    """Return the last run that the parent of this process has opened here, and shares with no other process."""
    parent, began = writer_identity(os.getppid()), current_launcher().started - 2.0
    opened: list[tuple[float, str]] = []
    with ignored(OSError):
        for folder in output_dir.iterdir():
            path = folder / RUN_FILE
            with ignored(OSError):
                if path.stat().st_mtime < began:
                    continue
                content = _read(path) or {}
                is_its_own = content.get("writer") == parent and content.get("run_id_from") == "process"
                if is_its_own and _run_id(content) == folder.name:
                    opened.append((_number(content.get("created_unix_ns")), folder.name))
    return max(opened)[1] if opened else None


def _join_or_found(
    output_dir: Path, folder: Path, launcher: Launcher, world_size: int | None, rank: int | str | None
) -> str:
    passed_over: set[int] = set()
    for _ in range(MOST_ROUNDS):  # each round joins, founds, or skips a name that another process has taken
        claims = _claims(folder)
        # the launcher that began nearest to ours first; if two are equally near, the later claim
        for claim in sorted(
            claims, key=lambda n: (abs(_number(claims[n].get("founded")) - launcher.started), -n)
        ):
            run_id = str(claims[claim]["run_id"])
            if rank is not None and is_finished(output_dir / run_id, rank):
                continue
            if _may_join(claims[claim], launcher, world_size) and _register(folder, claim, launcher):
                return run_id
        run_id = claim_for_process(output_dir)
        new = _free_number(folder, launcher, [*claims, *passed_over])
        content = {
            "run_id": run_id,
            "founded": launcher.started,
            "host": launcher.host,
            "launcher": launcher.token,
            "world_size": world_size,
        }
        founded = write_exclusively(folder / f"{new:06d}.json", _dump(content))
        if founded and _register(folder, new, launcher):
            return run_id
        if founded:
            continue  # another launcher of this host has just joined it: the run is its own now
        with ignored(OSError):  # only an empty folder is left behind
            (output_dir / run_id).rmdir()
        if _read_patiently(folder / f"{new:06d}.json") is None:
            passed_over.add(new)
    raise ConfigError(f"{folder}: other processes take every name; remove this folder while no job starts")


def _own_folder(wanted: Path) -> Path:
    """Make a folder of this user and return it, with a number if another user has taken the name.

    Raises:
        ConfigError: other users have taken every name.
        OSError: it cannot be made.
    """
    for number in range(1, MOST_ROUNDS):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}.{number}")
        with ignored(FileExistsError):
            path.mkdir()
        if foreign_folder(path) is None and not path.is_symlink():
            return path
    raise ConfigError(f"{wanted}: other users have taken every name")


def _claims(folder: Path) -> dict[int, dict[str, object]]:
    """Return the claims of this user's jobs by their number."""
    found: dict[int, dict[str, object]] = {}
    for name in _names(folder):
        match = _CLAIM.fullmatch(name)
        content = _read(folder / name) if match is not None and match[2] is None else None
        if match is not None and _run_id(content) is not None:
            found[int(match[1])] = content or {}
    return found


def _free_number(folder: Path, launcher: Launcher, known: Iterable[int]) -> int:
    """Return the first number after the known claims that no other user has taken."""
    new = max(known, default=0) + 1
    while is_foreign(folder / f"{new:06d}.json") or is_foreign(_member(folder, new, launcher)):
        new += 1
    return new


def _member(folder: Path, claim: int, launcher: Launcher) -> Path:
    return folder / f"{claim:06d}.{_digest(launcher.host)}.json"


def _names(folder: Path) -> list[str]:
    """Return the names in a folder of claims. Raise ConfigError if they are far too many, and OSError."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in itertools.islice(entries, MOST_FILES + 1)]
    if len(names) > MOST_FILES:
        raise ConfigError(f"{folder}: more than {MOST_FILES} files; remove this folder while no job starts")
    return names


def _may_join(claim: dict[str, object], launcher: Launcher, world_size: int | None) -> bool:
    """Return whether a launcher may join a claim: its own, or one of the same size that began about then."""
    if claim.get("launcher") == launcher.token:
        return True
    if claim.get("world_size") != world_size:
        return False
    return abs(_number(claim.get("founded")) - launcher.started) <= JOIN_WITHIN_SECONDS


def _register(folder: Path, claim: int, launcher: Launcher) -> bool:
    """Register the launcher of this host in the claim. Return True if it is ours, now or before."""
    member = _member(folder, claim, launcher)
    content = _read(member)
    if content is None:
        if write_exclusively(member, _dump({"launcher": launcher.token, "started": launcher.started})):
            return True
        content = _read_patiently(member)
    return content is not None and content.get("launcher") == launcher.token


def _read(path: Path) -> dict[str, object] | None:
    """Return the content of a file of this user; None if it is missing or invalid."""
    try:
        return _read_own(path)
    except ours(OSError, ValueError):  # the caller decides
        return None


def _read_own(path: Path) -> dict[str, object]:
    """Return the object in a file of this user. Raise ConfigError, ValueError (no object) or OSError."""
    content = parse_json(read_own(path, owner_for(path)))
    if not isinstance(content, dict):
        raise ValueError("no table")
    return content


def _read_patiently(path: Path) -> dict[str, object] | None:
    """Return the content of a file like `_read`, but wait while another process of this user writes it.

    A file that can never become valid is not waited for.
    """
    deadline = real_time.monotonic() + _UNREADABLE_SECONDS
    pause = 0.001
    while True:
        try:
            return _read_own(path)
        except ConfigError:
            return None
        except ours(OSError, ValueError, RecursionError) as error:
            if real_time.monotonic() > deadline or getattr(error, "errno", None) in _NEVER:
                return None
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


def _run_id(content: dict[str, object] | None) -> str | None:
    """Return the run id in a file, if it is a plain name."""
    run_id = (content or {}).get("run_id")
    return str(run_id) if is_plain_name(run_id) else None


def _dump(content: dict[str, object]) -> bytes:
    return json.dumps(content).encode()


def _digest(text: str) -> str:
    import hashlib  # with OpenSSL: 3.4 MB that most commands do not need

    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _number(value: object) -> float:
    """Return a number; infinity for anything else, or a number too large to compare."""
    if not isinstance(value, int | float) or not abs(value) < 1e300:
        return math.inf
    return float(value)


def _unix_seconds(ticks: int | None) -> float:
    """Return when a process began, from its clock ticks since the boot; now, if unknown."""
    try:
        booted = re.search(r"^btime (\d+)$", _BOOT.read_text(), re.MULTILINE)
    except ours(OSError):
        booted = None
    if ticks is None or booted is None:
        return real_time.time()
    return int(booted[1]) + ticks / os.sysconf("SC_CLK_TCK")

"""Upload files, in a program of its own: it reads one request per line and writes one answer per line.

A store's client brings an event loop, connections and megabytes of modules, and a call that hangs
can only be ended by killing its process. An upload is verified once it is in the store, and retried if it fails. Where the store has no atomic writes, a file is uploaded under a temporary name and then
renamed.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stepprof.host.plain_files import open_plain
from stepprof.run.reasons import ReasonCode

WHOLE_AT_ONCE = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az", "adl", "oci", "oss", "tos", "memory"})
"""Stores with atomic writes. Elsewhere a file is renamed at the end."""
MOST_ERROR = 1 << 16
"""Maximum characters of a store's message. The job masks the keys in it, then shortens it further."""
_CHUNK = 1 << 20


class Final(Exception):
    """A retry would not help: the name is taken, or the file cannot be read."""

    code: ReasonCode | None = None


class NameTaken(Final):
    """Another file has this name."""

    code = ReasonCode.NAME_TAKEN


def failed(*, tries: int, error: str | None, seconds: float) -> dict[str, Any]:
    """Return the outcome of a failed upload."""
    known = {"tries": tries, "error": error, "seconds": seconds}
    return {"status": "failed", "bytes": None, "verified": None, "reason_code": None, **known}


class Target:
    """The folder of a file system that files are uploaded to.

    Args:
        url: the folder.
        tries: maximum tries of a file. After a file has failed, each file is tried once until one succeeds, so that a store that is down does not delay every file.
        pause_seconds: the pause before the second try; it doubles with each try.
    """

    def __init__(self, url: str, tries: int, pause_seconds: float) -> None:
        from fsspec.core import url_to_fs

        self._fs, self._root = url_to_fs(url)
        self._at_once = url.partition("://")[0] in WHOLE_AT_ONCE
        self._tries = tries
        self._patient = True
        self._pause_seconds = pause_seconds

    def upload(self, local: Path, name: str, *, replace: bool = False) -> dict[str, Any]:
        """Upload one file under a name. Return the outcome; never raise.

        Args:
            local: the file.
            name: its path below the target.
            replace: overwrite an earlier version.
        """
        began = time.monotonic()
        outcome = failed(tries=0, error=None, seconds=0.0)
        tries = self._tries if self._patient else 1
        for attempt in range(1, tries + 1):
            outcome["tries"] = attempt
            try:
                outcome["bytes"], outcome["verified"] = self._try(local, name, replace=replace)
                outcome.update(status="uploaded", reason_code=None, error=None)
                self._patient = True
                break
            except Exception as error:  # noqa: BLE001 - whatever a store's client raises is the outcome
                outcome["reason_code"] = error.code if isinstance(error, Final) else None
                outcome["error"] = str(error) if isinstance(error, Final) else _describe(error)
                if isinstance(error, Final):
                    break
            if attempt == tries:
                self._patient = False
            else:
                time.sleep(self._pause_seconds * 2 ** (attempt - 1) * random.uniform(0.75, 1.25))  # noqa: S311 - spreads retries; no secret comes from it
        outcome["seconds"] = round(time.monotonic() - began, 3)
        return outcome

    def remove(self, name: str) -> str | None:
        """Remove an uploaded file. Return why it could not be removed, or None."""
        try:
            self._fs.rm_file(f"{self._root.rstrip('/')}/{name}")
        except Exception as error:  # noqa: BLE001 - as above
            return f"it cannot be removed: {_describe(error)}"
        return None

    def _try(self, local: Path, name: str, *, replace: bool) -> tuple[int, str]:
        try:
            size, digest = _read(local)
        except OSError as error:
            raise Final(f"it cannot be read: {error.strerror or error}") from error
        remote = f"{self._root.rstrip('/')}/{name}"
        self._fs.invalidate_cache()
        if not replace and (there := self._info(remote)) is not None:
            checked = self._checked(remote, there, size, digest, thorough=True)
            if checked is None:
                raise NameTaken(f"another file has this name already, with {there.get('size')} bytes")
            return size, checked
        if self._at_once:
            return size, self._put(local, remote, size, digest)
        folder, _, last = remote.rpartition("/")
        self._fs.makedirs(folder, exist_ok=True)
        part = f"{folder}/.{last}.{os.getpid()}.part"
        verified = self._put(local, part, size, digest)
        self._fs.mv(part, remote)
        return size, verified

    def _put(self, local: Path, remote: str, size: int, digest: bytes) -> str:
        """Write and verify the file. Return the kind of verification. Remove a wrong file."""
        whole = self._at_once
        try:
            self._fs.put_file(str(local), remote)
            self._fs.invalidate_cache()
            there = self._info(remote)
            if there is None:
                raise OSError("it is missing after the upload")
            verified = self._checked(remote, there, size, digest, thorough=False)
            if verified is None:
                whole = False
                raise OSError(f"the uploaded file differs: {there.get('size')} bytes of {size}")
        except BaseException:
            if not whole:  # else an earlier version may still be there
                with contextlib.suppress(Exception):
                    self._fs.rm_file(remote)
            raise
        return verified

    def _info(self, remote: str) -> Mapping[str, Any] | None:
        try:
            info: Mapping[str, Any] = self._fs.info(remote)
        except FileNotFoundError:
            return None
        return info

    def _checked(
        self, remote: str, there: Mapping[str, Any], size: int, digest: bytes, *, thorough: bool
    ) -> str | None:
        """Return how the remote file was verified; None if it differs.

        A store's checksum may be of something else (S3 with customer keys). If it differs, the
        remote file itself is read.
        """
        if there.get("size") != size:
            return None
        theirs = _md5_of(there)
        if theirs == digest:
            return "md5"
        if theirs is None and not thorough:
            return "size"
        found = hashlib.md5(usedforsecurity=False)
        with self._fs.open(remote, "rb") as file:
            while chunk := file.read(_CHUNK):
                found.update(chunk)
        return "read" if found.digest() == digest else None


def _md5_of(info: Mapping[str, Any]) -> bytes | None:
    """Return the MD5 that a store states: S3 of single-part uploads, Google, Azure."""
    tag = str(info.get("ETag", "")).strip('"')
    if len(tag) == 32:
        with contextlib.suppress(ValueError):
            return bytes.fromhex(tag)
    with contextlib.suppress(ValueError, TypeError, KeyError):
        settings = info.get("content_settings")
        if isinstance(settings, Mapping):
            return bytes(settings["content_md5"])
        return base64.b64decode(info["md5Hash"], validate=True)
    return None


def _read(local: Path) -> tuple[int, bytes]:
    digest, size = hashlib.md5(usedforsecurity=False), 0
    with open_plain(local) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.digest()


def _describe(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text[:MOST_ERROR]


def _files(local: Path) -> Iterator[tuple[Path, str]]:
    """Yield a file, or the files of a folder, with their paths below it. Follow no link."""
    if not local.is_dir() or local.is_symlink():
        yield local, ""
        return
    for folder, _, names in os.walk(local):
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                yield path, "/" + path.relative_to(local).as_posix()


def _upload(target: Target, request: Mapping[str, Any]) -> dict[str, Any]:
    local, name = Path(request["local"]), str(request["name"])
    outcomes = [
        target.upload(file, name + below, replace=bool(request.get("replace")))
        for file, below in _files(local)
    ]
    if request.get("remove") and outcomes and outcomes[0]["status"] == "uploaded":
        outcomes[0]["error"] = target.remove(name)
    first = next((each for each in outcomes if each["status"] != "uploaded"), None)
    if first is None and not outcomes:
        return failed(tries=0, error="an empty folder", seconds=0.0)
    return {
        **(first or outcomes[-1]),
        "bytes": sum(each["bytes"] or 0 for each in outcomes),
        "tries": max(each["tries"] for each in outcomes),
        "seconds": round(sum(each["seconds"] for each in outcomes), 3),
    }


def main() -> int:
    """Read a line with the target, then a line for each file, and answer each. Return the exit status."""
    with contextlib.suppress(OSError):
        os.nice(5)  # training goes first
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the output of a library must not look like an answer
    setup = json.loads(sys.stdin.readline())
    try:
        target = Target(setup["url"], setup["tries"], setup["pause_seconds"])
    except Exception as error:  # noqa: BLE001 - no such module, no credentials, no such place: any exception is the answer
        answers.write(json.dumps({"error": _describe(error)}) + "\n")
        answers.flush()
        return 1
    answers.write(json.dumps({"ready": True}) + "\n")
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(_upload(target, json.loads(line))) + "\n")
        answers.flush()
    return 0

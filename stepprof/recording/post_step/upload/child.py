"""The program that uploads: started by the process that recorded, one line in for each file and one line out.

A process of its own, since a store's client brings an event loop, a pool of connections and megabytes of modules, and a call that hangs can only be ended together with its process. It knows fsspec, and of
stepprof only how a plain file is opened: a file gets its name at once and whole, is looked at again when it is there, and is tried again after a while when that fails.
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

__all__ = ["Target", "main"]

WHOLE_AT_ONCE = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az", "adl", "oci", "oss", "tos", "memory"})
"""Stores in which an object is there when it is whole; elsewhere a file is moved to its name at the end."""
MOST_ERROR = 1 << 16
"""Characters of what a store says; the process that recorded masks the keys in it, and shortens it then."""
_CHUNK = 1 << 20


class Final(Exception):
    """No further try would change it: another file lies there, or ours is not here."""

    code: ReasonCode | None = None


class NameTaken(Final):
    """Another file lies there already."""

    code = ReasonCode.NAME_TAKEN


class Target:
    """Where files go to: a folder of some file system.

    Args:
        url: the folder.
        tries: how often a file is tried; after one that failed as often, once each until one succeeds: a store that is down is not waited for at every file.
        pause_seconds: before the second try; twice as long before each further one.
    """

    def __init__(self, url: str, tries: int, pause_seconds: float) -> None:
        from fsspec.core import url_to_fs

        self._fs, self._root = url_to_fs(url)
        self._at_once = url.partition("://")[0] in WHOLE_AT_ONCE
        self._tries = tries
        self._patient = True
        self._pause_seconds = pause_seconds

    def upload(self, local: Path, name: str, *, replace: bool = False) -> dict[str, Any]:
        """Upload one file under a name; return the outcome, and never raise.

        Args:
            local: the file.
            name: its path below the target.
            replace: an earlier version of it lies there.
        """
        began = time.monotonic()
        outcome: dict[str, Any] = {
            "status": "failed",
            "bytes": None,
            "verified": None,
            "tries": 0,
            "reason_code": None,
            "error": None,
        }
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
        """Take away what was uploaded under a name; why that could not be, or None."""
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
                raise NameTaken(f"another file lies there already, with {there.get('size')} bytes")
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
        """Write it there; by what it is known to be there. What is not as it should be does not stay."""
        whole = self._at_once
        try:
            self._fs.put_file(str(local), remote)
            self._fs.invalidate_cache()
            there = self._info(remote)
            if there is None:
                raise OSError("it is not there after it was uploaded")
            verified = self._checked(remote, there, size, digest, thorough=False)
            if verified is None:
                whole = False
                raise OSError(f"what arrived is not the file: {there.get('size')} bytes of {size}")
        except BaseException:
            if not whole:  # else an earlier version of it may lie there still
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
        """By what it is known to be the same file; None where it is another one.

        A store's checksum that differs may be one of something else (of S3 with a key of its own it is): then the file itself is read.
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
    """The MD5 that a store states: of S3 where the file went up in one part, of Google's, of Azure's."""
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
    """A file, or those of a folder, with their paths below it; through no link."""
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
        return {"status": "failed", "bytes": None, "verified": None, "tries": 0, "reason_code": None, "error": "an empty folder", "seconds": 0.0}  # fmt: skip
    return {
        **(first or outcomes[-1]),
        "bytes": sum(each["bytes"] or 0 for each in outcomes),
        "tries": max(each["tries"] for each in outcomes),
        "seconds": round(sum(each["seconds"] for each in outcomes), 3),
    }


def main() -> int:
    """Read a line that says where to, then a line for each file, and answer each."""
    with contextlib.suppress(OSError):
        os.nice(5)  # training goes first
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not look like an answer
    hello = json.loads(sys.stdin.readline())
    try:
        target = Target(hello["url"], hello["tries"], hello["pause_seconds"])
    except Exception as error:  # noqa: BLE001 - no such module, no credentials, no such place: whatever it is, it is the answer
        answers.write(json.dumps({"error": _describe(error)}) + "\n")
        answers.flush()
        return 1
    answers.write(json.dumps({"ready": True}) + "\n")
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(_upload(target, json.loads(line))) + "\n")
        answers.flush()
    return 0

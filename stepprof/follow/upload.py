"""Upload files to a store, by fsspec, with retries and a time limit.

A store's client may hang for ever. So each call runs on a daemon thread, and is left behind when its
time is over. After a failure the rest waits.
"""

from __future__ import annotations

import importlib.util
import io
import os
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stepprof.follow.below import opened_files
from stepprof.formatting import install
from stepprof.host import real_time
from stepprof.host.own_files import owner_for
from stepprof.host.plain_files import data_bytes
from stepprof.redaction.messages import quoted

TRIES = 4
PAUSE_SECONDS = 0.5
"""The pause before the second try is at most this long; it doubles with each try."""
RETRY_SECONDS = 30.0
"""After a failure of the store nothing is sent for this long; a file that failed is not tried again."""
MOST_REASON = 500
"""Maximum characters of the reason for a failed upload."""
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az", "adl", "oci", "oss", "tos", "memory"})
"""Stores without folders: none is made before a file."""


class NotUploaded(Exception):
    """A file that was not uploaded, with the reason in one line."""

    def __init__(self, reason: object) -> None:
        super().__init__(quoted(reason, MOST_REASON))


def rests(failed_at: float | None) -> bool:
    """Return whether a failure was so short before that what failed is not tried again yet."""
    return failed_at is not None and real_time.monotonic() - failed_at < RETRY_SECONDS


class StoreFailed(NotUploaded):
    """The store did not take it: it may take nothing else either."""


def missing(url: str) -> str | None:
    """Return which package is missing for this URL and how to install it; None if all are there.

    >>> missing("file:///data") is None or "fsspec" in missing("file:///data")
    True
    """
    if not all(map(importlib.util.find_spec, ("fsspec", "tenacity"))):
        return f"fsspec and tenacity are needed: {install('upload')}"
    from fsspec.registry import known_implementations

    known: Mapping[str, str] = known_implementations.get(url.partition("://")[0], {})
    module = str(known.get("class", "fsspec")).partition(".")[0]
    if importlib.util.find_spec(module) is None:
        return f"{url} needs {module}, which is not installed: pip install {module}"
    return None


class Store:
    """A folder in a store.

    Args:
        url: the folder.
        timeout_seconds: the time limit of each call, with all its tries.
        tries: maximum tries of a file.
    """

    def __init__(self, url: str, timeout_seconds: float, tries: int = TRIES) -> None:
        self.url = url
        self._timeout_seconds = timeout_seconds
        self._tries = tries
        self._failed_at: float | None = None
        self._opened: tuple[Any, str] | None = None

    @property
    def rests(self) -> bool:
        """Return whether a call has failed shortly before: then the rest waits."""
        return rests(self._failed_at)

    def reset(self) -> None:
        """Use the store again at once."""
        self._failed_at = None

    def put(self, root: Path, path: str, size: int | None = None) -> int:
        """Write a file below `root`, or all files of a folder, to the same path in the store. Return the
        number of bytes.

        Args:
            root: the folder of what is uploaded. No link below it is followed.
            path: below it.
            size: a file of another size is refused; None: any.

        Raises:
            NotUploaded: the file cannot be read, or was not written.
        """
        return self._call(lambda: self._put(root, path, size))

    def remove(self, name: str) -> None:
        """Remove a file. Raises NotUploaded."""

        def remove() -> int:
            files, root = self._open()
            files.rm_file(f"{root}/{name}")
            return 0

        self._call(remove)

    def _open(self) -> tuple[Any, str]:
        if self._opened is None:
            from fsspec.core import url_to_fs

            files, root = url_to_fs(self.url, skip_instance_cache=True)
            self._opened = files, root.rstrip("/")
        return self._opened

    def _put(self, root: Path, path: str, size: int | None) -> int:
        sizes = []
        try:
            for name, file in opened_files(root, path):
                status = os.fstat(file.fileno())
                if status.st_uid not in (os.geteuid(), owner_for(root / name)):
                    raise NotUploaded(f"{name} belongs to another user")
                if data_bytes(file) < status.st_size:
                    raise NotUploaded(f"{name} is a sparse file of {status.st_size} bytes")
                if size is not None and name == path and status.st_size != size:
                    raise NotUploaded(f"{name} has {status.st_size} bytes; the manifest lists {size}")
                sizes.append(status.st_size)
                self._retried(file, name, status.st_size)
        except OSError as error:
            raise NotUploaded(f"it cannot be read: {error.strerror or error}") from error
        if not sizes:
            raise NotUploaded("an empty folder")
        return sum(sizes)

    def _retried(self, file: io.BufferedReader, name: str, size: int) -> None:
        from tenacity import Retrying, stop_after_attempt, wait_random_exponential

        retrying = Retrying(
            stop=stop_after_attempt(self._tries), wait=wait_random_exponential(PAUSE_SECONDS), reraise=True
        )
        try:
            retrying(self._write, file, name, size)
        except Exception as error:
            raise StoreFailed(
                f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            ) from error

    def _write(self, file: io.BufferedReader, name: str, size: int) -> None:
        files, root = self._open()
        if self.url.partition("://")[0] not in OBJECT_STORES:
            files.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
        file.seek(0)  # on some systems the next line opens it where it stands
        files.put_file(
            f"/dev/fd/{file.fileno()}", f"{root}/{name}"
        )  # what was checked, not what has its name now
        files.invalidate_cache()
        found = files.info(f"{root}/{name}")["size"]
        if found != size:
            raise OSError(f"after the upload, the store has {found} bytes of {size}")

    def _call(self, work: Callable[[], int]) -> int:
        """Call the store on a thread."""
        answers: queue.SimpleQueue[int | Exception] = queue.SimpleQueue()

        def call() -> None:
            try:
                answers.put(work())
            except Exception as error:  # noqa: BLE001 - whatever a store's client raises is the reason
                answers.put(error)

        threading.Thread(target=call, name="stepprof-upload", daemon=True).start()
        try:
            answer = answers.get(timeout=self._timeout_seconds)
        except queue.Empty:
            self._opened = None
            answer = StoreFailed(f"the upload timed out after {self._timeout_seconds:g} s")
        if isinstance(answer, int):
            return answer
        if not isinstance(answer, NotUploaded):
            answer = StoreFailed(f"{type(answer).__name__}: {answer}")
        if isinstance(answer, StoreFailed):
            self._failed_at = real_time.monotonic()
        raise answer

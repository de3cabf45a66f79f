"""Upload what is new in one folder of the run, and keep the record of it in its `uploads.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stepprof.follow.upload import NotUploaded, Store, rests
from stepprof.host import real_time
from stepprof.host.atomic_files import write_atomically
from stepprof.host.own_files import is_foreign
from stepprof.host.plain_files import read_table
from stepprof.log import logger
from stepprof.run.schema import UploadEntry


class Uploaded:
    """The uploads of one folder.

    Args:
        store: the folder of the run in the store.
        run: the run directory.
        record: the `uploads.json`.
        base: the folder that the paths are below: that of a step, or the run directory.
        header: the run, the step and the writer, for the record.
    """

    def __init__(
        self, store: Store, run: Path, record: Path, base: Path, header: Mapping[str, object]
    ) -> None:
        self._store = store
        self._run = run
        self.record = record
        self._base = base
        self._header = header
        self._own = record.relative_to(base).as_posix()
        try:
            content = {} if is_foreign(record) else read_table(record)
        except (OSError, ValueError):  # missing, or damaged: everything is uploaded again
            content = {}
        self.artifacts = _entries(content)
        files = content.get("files")
        self._files: dict[str, Any] = files if isinstance(files, dict) else {}
        """When each file was changed that was uploaded, in Unix nanoseconds, by its path."""
        self._failed: dict[str, tuple[int | None, float]] = {}
        """Size or time of what failed, and when it failed, by its path."""
        self.failures = sum(not self.has(path) for path in self.artifacts)
        """How often something has failed: what fails often comes last."""

    def upload(self, artifacts: Mapping[str, int], files: Iterable[Path]) -> int:
        """Upload what is new: artifacts that were not uploaded, and files that are new or have changed. What has
        failed before comes last. After a failure of the store the rest waits. Return how many are not uploaded.

        Args:
            artifacts: their sizes, by their paths below the base; they do not change.
            files: manifest files, spans and other files of the run.

        Raises:
            OSError: the record cannot be written.
        """
        modified = {path.relative_to(self._base).as_posix(): _modified(path) for path in files}
        modified.pop(self._own, None)
        due = [path for path in artifacts if not self.has(path)]
        changed = [path for path, at in modified.items() if at != self._files.get(path)]
        versions = {path: {**modified, **artifacts}[path] for path in (*due, *changed)}
        failed = [path for path in versions if path in self._failed or path in self.artifacts]
        sent = self._send([path for path in versions if path not in failed], versions, artifacts)
        sent += self._send([path for path in failed if self._may_try(path, versions)], versions, artifacts)
        if sent:
            size = sum(entry.bytes or 0 for entry in sent)
            logger.notice("upload.finished", **self._where, url=self._store.url, files=len(sent), bytes=size)
        left = [path for path in artifacts if not self.has(path)]
        left += [path for path, at in modified.items() if at != self._files.get(path)]
        return len(left) + (0 if self._files.get(self._own) else 1)

    def retry(self) -> None:
        """Try what failed again at once."""
        self._failed = dict.fromkeys(self._failed, (None, 0.0))

    def _may_try(self, path: str, versions: Mapping[str, int | None]) -> bool:
        version, failed_at = self._failed.get(path, (None, None))
        return version != versions[path] or not rests(failed_at)

    def _send(
        self, paths: Iterable[str], versions: Mapping[str, int | None], artifacts: Mapping[str, int]
    ) -> list[UploadEntry]:
        """Upload files, then the record if it has changed. Return what was uploaded."""
        sent = []
        is_new = not self._files.get(self._own) and not self._store.rests
        for path in paths:
            if self._store.rests:
                break
            before = self.artifacts.get(path)
            entry = self._put(path, artifacts.get(path), before)
            if path in artifacts:
                self.artifacts[path] = entry
                is_new |= before is None or before.error != entry.error
            elif entry.error is None:
                self._files[path], is_new = versions[path], True
            if entry.error is None:
                sent.append(entry)
                self._failed.pop(path, None)
            else:
                self.failures += 1
                self._failed[path] = versions[path], real_time.monotonic()
        if is_new:
            self._save()
        return sent

    def _save(self) -> None:
        """Write the record, and upload it."""
        self._files[self._own] = real_time.time_ns()
        try:
            self._write()
        except OSError:
            self._files[self._own] = None
            raise
        if self._store.rests or self._put(self._own).error is not None:
            self._files[self._own] = None
            self._write()

    def has(self, path: str) -> bool:
        """Return whether an artifact was uploaded."""
        return path in self.artifacts and self.artifacts[path].status == "uploaded"

    @property
    def _where(self) -> dict[str, Any]:
        return {key: value for key, value in self._header.items() if key == "step"}

    def _put(self, path: str, size: int | None = None, before: UploadEntry | None = None) -> UploadEntry:
        name = (self._base / path).relative_to(self._run).as_posix()
        entry = UploadEntry(path=path, url=f"{self._store.url}/{name}")
        began = real_time.monotonic()
        try:
            entry.update(bytes=self._store.put(self._run, name, size), status="uploaded")
        except NotUploaded as error:
            entry.error = str(error)
            if before is None or before.error != entry.error:  # else it was logged
                logger.warning("upload.failed", **self._where, url=entry.url, reason=entry.error)
        entry.seconds = round(real_time.monotonic() - began, 3)
        return entry

    def _write(self) -> None:
        uploads = [entry.to_dict() for entry in self.artifacts.values()]
        content = {**self._header, "uploads": uploads, "files": self._files}
        write_atomically(self.record, json.dumps(content, indent=1).encode())


def _entries(content: Mapping[str, Any]) -> dict[str, UploadEntry]:
    found = content.get("uploads")
    tables = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    return {entry.path: entry for entry, _ in map(UploadEntry.from_dict, tables)}


def _modified(path: Path) -> int | None:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return None

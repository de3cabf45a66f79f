"""Upload what is new in one folder of the run, and keep the record of it in its `uploads.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stepprof.follow.upload import NotUploaded, Store
from stepprof.host import real_time
from stepprof.host.atomic_files import write_atomically
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
        self._record = record
        self._base = base
        self._header = header
        try:
            content = read_table(record)
        except (OSError, ValueError):  # missing, or damaged: everything is uploaded again
            content = {}
        self.artifacts = _entries(content)
        files = content.get("files")
        self._files: dict[str, Any] = files if isinstance(files, dict) else {}
        """When each file was changed that was uploaded, in Unix nanoseconds, by its path."""

    def upload(self, artifacts: Mapping[str, int], files: Iterable[Path]) -> int:
        """Upload what is new: artifacts that were not uploaded, and files that are new or have changed. After
        a failure of the store the rest waits. Return how many are not uploaded.

        Args:
            artifacts: their sizes, by their paths below the base; they do not change.
            files: manifest files, spans and other files of the run.

        Raises:
            OSError: the record cannot be written.
        """
        own = self._record.relative_to(self._base).as_posix()
        modified = {path.relative_to(self._base).as_posix(): _modified(path) for path in files}
        modified.pop(own, None)
        due = [path for path in artifacts if not self.has(path)]
        changed = [path for path, at in modified.items() if at != self._files.get(path)]
        if not due and not changed and self._files.get(own):
            return 0
        done = []
        for path in sorted(due, key=self.artifacts.__contains__):  # what has failed before comes last
            if not self._store.rests:
                done.append(self._put(path, artifacts[path], self.artifacts.get(path)))
                self.artifacts[path] = done[-1]
        for path in changed:
            if not self._store.rests:
                done.append(self._put(path))
                if done[-1].error is None:
                    self._files[path] = modified[path]
        if done or not (self._files.get(own) or self._store.rests):
            self._files[own] = real_time.time_ns()
            self._save()
            if self._store.rests or self._put(own).error is not None:
                self._files[own] = None
                self._save()
        sent = [entry for entry in done if entry.status == "uploaded"]
        if sent:
            size = sum(entry.bytes or 0 for entry in sent)
            logger.notice("upload.finished", **self._where, url=self._store.url, files=len(sent), bytes=size)
        left = [path for path in artifacts if not self.has(path)]
        left += [path for path, at in modified.items() if at != self._files.get(path)]
        return len(left) + (0 if self._files.get(own) else 1)

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

    def _save(self) -> None:
        uploads = [entry.to_dict() for entry in self.artifacts.values()]
        content = {**self._header, "uploads": uploads, "files": self._files}
        write_atomically(self._record, json.dumps(content, indent=1).encode())


def _entries(content: Mapping[str, Any]) -> dict[str, UploadEntry]:
    found = content.get("uploads")
    tables = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    return {entry.path: entry for entry, _ in map(UploadEntry.from_dict, tables)}


def _modified(path: Path) -> int | None:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return None
